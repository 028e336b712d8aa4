//! Channels and ids of the kernel: creation, addresses, the end.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use ironverbs_kernel::cm::{self, Place};

use super::objects::{self, Handle, Shown, field, given};
use crate::abi::*;
use crate::cm::worlds::Any;
use crate::cm::{address, channel as channels};
use crate::fail::{self, Failure, Outcome};

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
/// As for [`objects::find`].
pub(in crate::cm) unsafe fn create(
    channel: *mut rdma_event_channel,
    context: *mut c_void,
    ps: u32,
    qp_type: u32,
) -> Outcome<Handle> {
    let usual = usual(ps)?;
    let sync = channel.is_null();
    // SAFETY: the caller's promise.
    let of = unsafe { channels::given_or_own(channel)? };
    let own = of.0;
    let qp_type = if qp_type == 0 { usual } else { qp_type };
    let made = objects::insert(Shown { channel: of, context, ps, qp_type }, sync, u32::MAX)
        .and_then(|first| match first.register(ps, qp_type) {
            Ok(()) => Ok(first),
            Err(refused) => {
                objects::remove(first.c);
                Err(refused)
            }
        });
    if made.is_err() && sync {
        let _ = channels::destroy(own);
    }
    made
}

/// Whether the kernel's connection manager has ids of a port space.
pub(in crate::cm) fn has_port_space(ps: u32) -> bool {
    usual(ps).is_ok()
}

/// The type of queue pairs of a port space.
fn usual(ps: u32) -> Outcome<u32> {
    match ps {
        PS_TCP => Ok(QPT_RC),
        PS_UDP | PS_IPOIB => Ok(QPT_UD),
        other => Err(Failure::Argument { what: "port space", value: other.into() }),
    }
}

impl Handle {
    /// Makes the kernel's id. Its events are named by the place of the structure, which is there first.
    pub(in crate::cm) fn register(&self, ps: u32, qp_type: u32) -> Outcome<()> {
        usual(ps)?;
        let name = self.c.expose_provenance() as u64;
        let response = self.id.issue(&cm::create_id(name, ps as u16, qp_type as u8))?;
        self.id.handle.store(number(&response), std::sync::atomic::Ordering::Release);
        Ok(())
    }

    /// Ends the kernel's id, when its events are acknowledged.
    pub(in crate::cm) fn unregister(&self) -> Outcome<()> {
        let response = self.id.issue(&cm::destroy_id(self.id.number()))?;
        self.id.events.wait(number(&response));
        super::multicast::forget_all(self.c);
        Ok(())
    }

    /// Binds to an address.
    pub(in crate::cm) fn bind(&self, addr: SocketAddr) -> Outcome<()> {
        let (bytes, len) = bytes_of(addr);
        self.id.issue(&cm::bind(self.id.number(), &bytes, len))?;
        Ok(())
    }

    /// Waits for requests.
    pub(in crate::cm) fn listen(&self, backlog: u32) -> Outcome<()> {
        self.id.issue(&cm::listen(self.id.number(), backlog))?;
        Ok(())
    }

    /// Begins to look for an address.
    pub(in crate::cm) fn resolve(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout: Duration,
    ) -> Outcome<()> {
        let (from, to) = (from.map(bytes_of), bytes_of(to));
        let from = from.as_ref().map(|(bytes, len)| (bytes, *len));
        let ms = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
        self.id.issue(&cm::resolve_addr(self.id.number(), ms, from, (&to.0, to.1)))?;
        self.set(field!(route.addr.dst_addr), sockaddr_storage { bytes: to.0 });
        Ok(())
    }

    /// The port that it is bound to.
    pub(in crate::cm) fn port(&self) -> Outcome<u16> {
        let place = Place::read(&self.id.issue(&cm::query_addr(self.id.number()))?);
        let [own, _] = place.addresses;
        Ok(u16::from_be(address::port(&sockaddr_storage { bytes: own })))
    }

    /// The device that it is bound to, in network order; ENODEV where it is none's.
    pub(in crate::cm) fn node_guid(&self) -> Outcome<u64> {
        let place = Place::read(&self.id.issue(&cm::query_addr(self.id.number()))?);
        match place.node_guid {
            0 => Err(Failure::Io(std::io::Error::from_raw_os_error(libc::ENODEV))),
            guid => Ok(guid),
        }
    }

    /// Sets an option by its bytes.
    pub(in crate::cm) fn set_option(&self, level: c_int, name: c_int, value: &[u8]) -> Outcome<()> {
        let (at, len) = (value.as_ptr().expose_provenance() as u64, value.len() as u32);
        let number = self.id.number();
        self.id.issue(&cm::set_option(number, level as u32, name as u32, at, len))?;
        Ok(())
    }

    /// Moves it to another open connection manager: where it was.
    pub(in crate::cm) fn migrate(
        &self,
        to: &Arc<objects::Channel>,
    ) -> Outcome<Arc<objects::Channel>> {
        use std::os::fd::AsRawFd;
        let old = self.id.parts.lock().channel.clone();
        if !Arc::ptr_eq(&old, to) {
            let response = to.issue(&cm::migrate_id(self.id.number(), old.fd.as_raw_fd()))?;
            self.id.events.wait(number(&response));
            self.id.parts.lock().channel = to.clone();
        }
        Ok(old)
    }
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
    handle.unregister()?;
    let own = handle.is_sync().then(|| handle.get(field!(channel)));
    objects::remove(handle.c);
    if let Some(own) = own {
        let _ = channels::destroy(own);
    }
    Ok(())
}

/// An address as commands have it.
///
/// # Safety
/// As for [`address::read`].
pub(super) unsafe fn given_address(addr: *const libc::sockaddr) -> Outcome<([u8; 128], u16)> {
    // SAFETY: the caller's promise.
    Ok(bytes_of(unsafe { address::read(addr)? }))
}

pub(super) fn bytes_of(addr: SocketAddr) -> ([u8; 128], u16) {
    let len = address::length(if addr.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 });
    (address::storage(addr).bytes, len as u16)
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
    pub(in crate::cm) fn drop_event(&self) {
        // SAFETY: the id is alive.
        if let Ok(any) = unsafe { Any::find(self.c) } {
            any.drop_event();
        }
    }

    /// For a synchronous id, waits for what a call led to, and leaves it in `id->event`.
    pub(in crate::cm) fn complete(&self) -> Outcome<()> {
        if !self.is_sync() {
            return Ok(());
        }
        // SAFETY: the id is alive.
        unsafe { Any::find(self.c)? }.complete()
    }
}
