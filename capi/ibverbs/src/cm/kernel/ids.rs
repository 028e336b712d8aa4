//! Channels and ids of the kernel: creation, addresses, the end.

use std::ffi::{c_int, c_void};
use std::ptr;

use ironverbs_kernel::cm;

use super::objects::{self, Handle, field, given};
use crate::abi::*;
use crate::cm::address;
use crate::fail::{self, Failure, Outcome};

pub(in crate::cm) fn create_event_channel() -> *mut rdma_event_channel {
    fail::object("rdma_create_event_channel", || Ok(objects::new_channel()?.0))
}

pub(in crate::cm) unsafe fn destroy_event_channel(channel: *mut rdma_event_channel) {
    fail::silent("rdma_destroy_event_channel", || objects::remove_channel(channel));
}

const PS_TCP: u32 = 0x106;
const PS_IPOIB: u32 = 2;
const PS_UDP: u32 = 0x111;
const QPT_RC: u32 = 2;
const QPT_UD: u32 = 4;

pub(in crate::cm) unsafe fn create_id(
    channel: *mut rdma_event_channel,
    out: *mut *mut rdma_cm_id,
    context: *mut c_void,
    ps: u32,
) -> c_int {
    fail::number("rdma_create_id", || {
        let out = given("id", out)?;
        // SAFETY: the caller's promise.
        unsafe { out.write(create(channel, context, ps, 0)?.c) };
        Ok(0)
    })
}

/// An id on that channel, or on one of its own; of that type of queue pairs, or for 0 of its port space's.
///
/// # Safety
/// As for [`objects::channel`].
pub(super) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: u32,
    qp_type: u32,
) -> Outcome<Handle> {
    let usual = match ps {
        PS_TCP => QPT_RC,
        PS_UDP | PS_IPOIB => QPT_UD,
        other => return Err(Failure::Argument { what: "port space", value: other.into() }),
    };
    let sync = channel.is_null();
    let of = match sync {
        true => objects::new_channel()?,
        // SAFETY: the caller's promise.
        false => (channel, unsafe { objects::channel(channel)? }),
    };
    make(of, context, (ps, if qp_type == 0 { usual } else { qp_type }), sync)
}

/// An id. Its events are named by its place, which is there first.
fn make(
    of: (*mut rdma_event_channel, std::sync::Arc<objects::Channel>),
    context: *mut c_void,
    kind: (u32, u32),
    sync: bool,
) -> Outcome<Handle> {
    let (c, channel) = of;
    let first = objects::insert((c, channel.clone()), context, kind, sync, u32::MAX)?;
    let name = first.c.expose_provenance() as u64;
    let made = channel.issue(&cm::create_id(name, kind.0 as u16, kind.1 as u8));
    let response = match made {
        Ok(response) => response,
        Err(refused) => {
            first.remove();
            if sync {
                let _ = objects::remove_channel(c);
            }
            return Err(refused);
        }
    };
    first.id.handle.store(number(&response), std::sync::atomic::Ordering::Release);
    Ok(first)
}

pub(super) fn number(response: &[u8]) -> u32 {
    ironverbs_kernel::command::Response(response).u32(0)
}

pub(in crate::cm) unsafe fn destroy_id(id: *mut rdma_cm_id) -> c_int {
    fail::number("rdma_destroy_id", || {
        // SAFETY: the caller's promise.
        destroy(&unsafe { objects::find(id)? }).map(|()| 0)
    })
}

/// Ends an id when its events are acknowledged.
pub(super) fn destroy(handle: &Handle) -> Outcome<()> {
    handle.drop_event();
    let response = handle.id.issue(&cm::destroy_id(handle.id.number()))?;
    handle.id.events.wait(number(&response));
    let own = handle.is_sync().then(|| handle.get(field!(channel)));
    super::multicast::forget_all(handle.c);
    handle.remove();
    if let Some(own) = own {
        let _ = objects::remove_channel(own);
    }
    Ok(())
}

/// An address as commands have it.
///
/// # Safety
/// As for [`address::read`].
pub(super) unsafe fn given_address(addr: *const libc::sockaddr) -> Outcome<([u8; 128], u16)> {
    // SAFETY: the caller's promise.
    let addr = unsafe { address::read(addr)? };
    let len = address::length(if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 });
    Ok((address::storage(addr).bytes, len as u16))
}

pub(in crate::cm) unsafe fn bind_addr(id: *mut rdma_cm_id, addr: *mut libc::sockaddr) -> c_int {
    fail::number("rdma_bind_addr", || {
        // SAFETY: the caller's promise.
        let (handle, (addr, len)) = unsafe { (objects::find(id)?, given_address(addr)?) };
        handle.id.issue(&cm::bind(handle.id.number(), &addr, len))?;
        handle.refresh()?;
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn resolve_addr(
    id: *mut rdma_cm_id,
    src: *mut libc::sockaddr,
    dst: *mut libc::sockaddr,
    timeout_ms: c_int,
) -> c_int {
    fail::number("rdma_resolve_addr", || {
        // SAFETY: the caller's promise.
        let (handle, to) = unsafe { (objects::find(id)?, given_address(dst)?) };
        // SAFETY: the caller's promise.
        let from = if src.is_null() { None } else { Some(unsafe { given_address(src)? }) };
        let from = from.as_ref().map(|(addr, len)| (addr, *len));
        let timeout = u32::try_from(timeout_ms).unwrap_or(0);
        let command = cm::resolve_addr(handle.id.number(), timeout, from, (&to.0, to.1));
        handle.id.issue(&command)?;
        handle.set(field!(route.addr.dst_addr), sockaddr_storage { bytes: to.0 });
        handle.complete()?;
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn resolve_route(id: *mut rdma_cm_id, timeout_ms: c_int) -> c_int {
    fail::number("rdma_resolve_route", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        let timeout = u32::try_from(timeout_ms).unwrap_or(0);
        handle.id.issue(&cm::resolve_route(handle.id.number(), timeout))?;
        handle.complete()?;
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn listen(id: *mut rdma_cm_id, backlog: c_int) -> c_int {
    fail::number("rdma_listen", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        let backlog = u32::try_from(backlog).unwrap_or(0);
        handle.id.issue(&cm::listen(handle.id.number(), backlog))?;
        handle.refresh()?;
        Ok(0)
    })
}

/// The kernel checks the option and its length.
pub(in crate::cm) unsafe fn set_option(
    id: *mut rdma_cm_id,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: usize,
) -> c_int {
    fail::number("rdma_set_option", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        let at = given("option value", value)?.expose_provenance() as u64;
        let len = u32::try_from(len)
            .map_err(|_| Failure::Argument { what: "optlen", value: len as u64 })?;
        let number = handle.id.number();
        handle.id.issue(&cm::set_option(number, level as u32, name as u32, at, len))?;
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn migrate_id(id: *mut rdma_cm_id, to: *mut rdma_event_channel) -> c_int {
    fail::number("rdma_migrate_id", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        if handle.is_sync() && to.is_null() {
            return Err(Failure::Null { what: "event channel of a synchronous id" });
        }
        // SAFETY: the caller's promise.
        unsafe { migrate(&handle, to)? };
        Ok(0)
    })
}

/// Moves an id to a channel, or to one of its own.
///
/// # Safety
/// As for [`objects::channel`].
pub(super) unsafe fn migrate(handle: &Handle, to: *mut rdma_event_channel) -> Outcome<()> {
    use std::os::fd::AsRawFd;
    let (c, channel) = match to.is_null() {
        true => objects::new_channel()?,
        // SAFETY: the caller's promise.
        false => (to, unsafe { objects::channel(to)? }),
    };
    handle.drop_event();
    let old = handle.id.parts.lock().channel.clone();
    let moved = channel.issue(&cm::migrate_id(handle.id.number(), old.fd.as_raw_fd()));
    if moved.is_err() && to.is_null() {
        let _ = objects::remove_channel(c);
    }
    handle.id.events.wait(number(&moved?));
    let shown = handle.get(field!(channel));
    handle.set(field!(channel), c);
    let was_sync = {
        let mut parts = handle.id.parts.lock();
        parts.channel = channel;
        std::mem::replace(&mut parts.sync, to.is_null())
    };
    if was_sync {
        let _ = objects::remove_channel(shown);
    }
    Ok(())
}

pub(in crate::cm) unsafe fn get_src_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    fail::returned("rdma_get_src_port", || unsafe {
        Ok(address::port(&objects::find(id)?.get(field!(route.addr.src_addr))))
    })
    .unwrap_or(0)
}

pub(in crate::cm) unsafe fn get_dst_port(id: *mut rdma_cm_id) -> u16 {
    // SAFETY: the caller's promise.
    fail::returned("rdma_get_dst_port", || unsafe {
        Ok(address::port(&objects::find(id)?.get(field!(route.addr.dst_addr))))
    })
    .unwrap_or(0)
}

impl Handle {
    /// Acknowledges the event that the last call of a synchronous id left in `id->event`.
    pub(super) fn drop_event(&self) {
        let last = self.get(field!(event));
        if !last.is_null() {
            self.set(field!(event), ptr::null_mut());
            // The program may have acknowledged it itself.
            let _ = super::event::acknowledge(last);
        }
    }

    /// For a synchronous id, waits for what a call led to, and leaves it in `id->event`.
    pub(super) fn complete(&self) -> Outcome<()> {
        if !self.is_sync() {
            return Ok(());
        }
        let next = self.await_event()?;
        const REJECTED: u32 = 8;
        let refused = |errno: i32| Err(Failure::Io(std::io::Error::from_raw_os_error(errno)));
        match next.status {
            0 => Ok(()),
            _ if next.event == REJECTED => refused(libc::ECONNREFUSED),
            status => refused(status.saturating_abs()),
        }
    }

    /// Waits for the next event of a synchronous id, and leaves it in `id->event`.
    pub(super) fn await_event(&self) -> Outcome<super::event::Read> {
        self.drop_event();
        let channel = self.id.parts.lock().channel.clone();
        let next = loop {
            match super::event::next(&channel) {
                Err(Failure::Io(e)) if e.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.set(field!(event), next.c);
        Ok(next)
    }
}
