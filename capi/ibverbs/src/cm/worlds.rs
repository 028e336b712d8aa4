//! Where ids live, on a channel that hears of both worlds: software devices, and the kernel's.
//!
//! A new id is the software devices' and takes nothing of the kernel. The first call that names an address gives it its
//! place. A wildcard listens in both: the same port in either, or in none. A local address, and the one that the route to
//! a destination leaves from, is the kernel's where a device of the kernel has it that this process can open, unless the
//! setting `prefer` is `software` and one of ours has it too. Whether a device of the kernel has it is asked of the kernel,
//! by an id that is bound to it and ended again; so what the kernel's connection manager takes for an address of an RDMA
//! device (a VLAN's, a bond's, IP over InfiniBand's) is one here. What fails changes nothing.

use std::ffi::{c_int, c_void};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ptr;
use std::sync::Arc;

use ironverbs::raw as soft;
use ironverbs_sys::netlink;
use soft::cm::CmId;
use soft::config::Prefer;

use super::address::Address;
use super::channel::Channel;
use super::id::milliseconds;
use super::objects::{self, Handle, field};
use super::{id, kernel, options};
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::host::host;

/// An id that has a half of the software devices, and has or may get one of the kernel.
pub(super) struct Open {
    handle: Handle,
    kernel: Option<kernel::Handle>,
    channel: Arc<Channel>,
}

/// The id behind a program's pointer if its place is open, or if it listens in both worlds.
///
/// # Safety
/// As for [`objects::find`].
pub(super) unsafe fn open(c: *mut rdma_cm_id) -> Option<Open> {
    // SAFETY: the caller's promise.
    let halves = unsafe { objects::halves(c) }.ok()?;
    let id = halves.soft?;
    halves.channel.kernel()?;
    if halves.kernel.is_none() && id.soft.local_addr().is_some() {
        return None;
    }
    let kernel = halves.kernel.map(|id| kernel::Handle { c, id });
    Some(Open { handle: Handle { c, id }, kernel, channel: halves.channel })
}

/// Attempts to find a port that is free in both worlds.
const ATTEMPTS: u32 = 16;

impl Open {
    /// rdma_bind_addr(3).
    ///
    /// # Safety
    /// As for [`id::bind_addr`].
    pub(super) unsafe fn bind_addr(self, addr: *mut libc::sockaddr) -> c_int {
        // SAFETY: the caller's promise.
        fail::number("rdma_bind_addr", || match unsafe { Address::read(addr)? } {
            Address::Ip(addr) => self.bind(addr).map(|()| 0),
            addr => {
                addr.bind(&self.handle.id.soft)?;
                self.handle.refresh()?;
                Ok(0)
            }
        })
    }

    fn bind(&self, addr: SocketAddr) -> Outcome<()> {
        if self.kernel.is_some() {
            // It says in which state it is.
            return Ok(self.handle.id.soft.bind(addr)?);
        }
        if addr.ip().is_unspecified() {
            return self.bind_both(addr);
        }
        if self.is_kernels(addr.ip(), addr) {
            let half = self.new_half()?;
            return self.settle(half, |half| {
                half.bind(addr).map_err(taken)?;
                half.refresh()
            });
        }
        self.handle.id.soft.bind(addr)?;
        self.handle.refresh()
    }

    /// Binds to the wildcard address in both worlds.
    fn bind_both(&self, addr: SocketAddr) -> Outcome<()> {
        let mut attempts = if addr.port() == 0 { ATTEMPTS } else { 1 };
        loop {
            attempts -= 1;
            let bound = self.try_both(addr);
            match &bound {
                Err(refused) if refused.errno() == libc::EADDRINUSE && attempts > 0 => {}
                _ => return bound,
            }
        }
    }

    fn try_both(&self, mut addr: SocketAddr) -> Outcome<()> {
        let half = self.new_half()?;
        let bound = half.bind(addr).map_err(taken).and_then(|()| {
            addr.set_port(half.port()?);
            Ok(self.handle.id.soft.bind(addr)?)
        });
        if bound.is_err() {
            let _ = half.unregister();
        }
        bound?;
        objects::change(self.handle.c, |halves| halves.kernel = Some(half.id.clone()))?;
        self.handle.refresh()
    }

    /// rdma_listen(3).
    pub(super) fn listen(mut self, backlog: c_int) -> c_int {
        fail::number("rdma_listen", || {
            if self.kernel.is_none() {
                self.bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
                // SAFETY: the id is alive.
                let halves = unsafe { objects::halves(self.handle.c)? };
                self.kernel = halves.kernel.map(|id| kernel::Handle { c: self.handle.c, id });
            }
            let backlog = u32::try_from(backlog).unwrap_or(0);
            if let Some(half) = &self.kernel {
                half.listen(backlog)?;
            }
            let soft = &self.handle.id.soft;
            if let Err(refused) = soft.listen(backlog) {
                self.unlisten();
                return Err(refused.into());
            }
            self.handle.refresh()?;
            Ok(0)
        })
    }

    /// Takes back that the kernel's half listens: it is made anew, and bound as it was.
    fn unlisten(&self) {
        let Some(half) = &self.kernel else { return };
        let _ = half.unregister();
        let bound = self.handle.id.soft.local_addr().and_then(|addr| {
            let half = self.new_half().ok()?;
            half.bind(addr).ok()?;
            Some(half.id)
        });
        let _ = objects::change(self.handle.c, |halves| halves.kernel = bound);
    }

    /// rdma_resolve_addr(3).
    ///
    /// # Safety
    /// As for [`id::resolve_addr`].
    pub(super) unsafe fn resolve_addr(
        self,
        src: *mut libc::sockaddr,
        dst: *mut libc::sockaddr,
        timeout_ms: c_int,
    ) -> c_int {
        let c = self.handle.c;
        let kernels = fail::returned("rdma_resolve_addr", || {
            // SAFETY: the caller's promise.
            let (from, to) = unsafe { (Address::read_optional(src)?, Address::read(dst)?) };
            let (Some(Address::Ip(_)) | None, Address::Ip(to)) = (from, to) else {
                return Ok(false);
            };
            let from = match from {
                Some(Address::Ip(from)) => Some(from),
                _ => None,
            };
            let bound = self.handle.id.soft.local_addr();
            // An address of another kind is refused by those who know why.
            if from.or(bound).is_some_and(|from| from.is_ipv4() != to.is_ipv4()) {
                return Ok(false);
            }
            let given = from.filter(|from| !from.ip().is_unspecified());
            let Some(local) = given.map(|from| from.ip()).or_else(|| leaves_from(to)) else {
                return Ok(false);
            };
            if !self.is_kernels(local, from.unwrap_or(to)) {
                return Ok(false);
            }
            let half = match self.kernel.clone() {
                Some(half) => half,
                None => self.new_half()?,
            };
            self.settle(half, |half| half.resolve(from, to, milliseconds(timeout_ms)))?;
            Ok(true)
        });
        match kernels {
            Err(_) => -1,
            Ok(true) => {
                // SAFETY: the id is alive, and all of it is the kernel's now.
                fail::number("rdma_resolve_addr", || unsafe {
                    kernel::find(c)?.complete().map(|()| 0)
                })
            }
            Ok(false) => {
                // SAFETY: the caller's promise.
                let done = unsafe { id::resolve_addr(c, src, dst, timeout_ms) };
                // What was refused at once may still listen on all devices.
                if done == 0 {
                    self.leave_kernel();
                }
                done
            }
        }
    }

    /// rdma_set_option(3): what it sets in one world it sets in both, or in none.
    ///
    /// # Safety
    /// As for [`options::set_option`].
    pub(super) unsafe fn set_option(
        self,
        level: c_int,
        name: c_int,
        value: *mut c_void,
        len: usize,
    ) -> c_int {
        let before = self.handle.id.soft.options();
        // SAFETY: the caller's promise.
        let done = unsafe { options::set_option(self.handle.c, level, name, value, len) };
        let Some(half) = self.kernel.filter(|_| done == 0) else { return done };
        // SAFETY: the caller's promise: it was read a moment ago.
        let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), len) };
        let done =
            fail::number("rdma_set_option", || half.set_option(level, name, bytes).map(|()| 0));
        if done != 0 {
            let _ = self.handle.id.soft.set_options(before);
        }
        done
    }

    /// rdma_destroy_id(3).
    pub(super) fn destroy_id(self) -> c_int {
        self.handle.drop_event();
        self.leave_kernel();
        // SAFETY: the id is alive, and its structure with it.
        unsafe { id::destroy_id(self.handle.c) }
    }

    /// Ends the kernel's half, if there is one.
    fn leave_kernel(&self) {
        if let Some(half) = &self.kernel {
            let _ = objects::change(self.handle.c, |halves| halves.kernel = None);
            let _ = half.unregister();
        }
    }

    /// A half of the kernel, with the id's options, which nobody sees yet.
    fn new_half(&self) -> Outcome<kernel::Handle> {
        let none = Failure::Null { what: "kernel's part of the channel" };
        let channel = self.channel.kernel().cloned().ok_or(none)?;
        let id = kernel::half(channel, self.handle.is_sync(), u32::MAX);
        let half = kernel::Handle { c: self.handle.c, id };
        half.register(self.handle.get(field!(ps)), self.handle.get(field!(qp_type)))?;
        if let Err(refused) = equip(&half, &self.handle.id.soft) {
            let _ = half.unregister();
            return Err(refused);
        }
        Ok(half)
    }

    /// Makes the kernel's half the id, when `first` works; else all is as it was.
    fn settle(
        &self,
        half: kernel::Handle,
        first: impl FnOnce(&kernel::Handle) -> Outcome<()>,
    ) -> Outcome<()> {
        // Events name the id, and may come at once.
        let new = Some(half.id.clone());
        let before = objects::change(self.handle.c, |halves| {
            (halves.soft, halves.kernel) = (None, new);
        })?;
        if let Err(refused) = first(&half) {
            objects::change(self.handle.c, |halves| *halves = before)?;
            if self.kernel.is_none() {
                let _ = half.unregister();
            }
            return Err(refused);
        }
        self.handle.drop_event();
        let _ = self.handle.id.soft.destroy();
        Ok(())
    }

    /// Whether a local address is to be the kernel's. `like` has its scope.
    fn is_kernels(&self, local: IpAddr, like: SocketAddr) -> bool {
        let mut addr = like;
        addr.set_ip(local);
        addr.set_port(0);
        // The kernel's connection manager has no such ids.
        let space = self.handle.get(field!(ps));
        if local.is_loopback() || !kernel::has_port_space(space) {
            return false;
        }
        let prefers = host().map(|host| host.config().prefer.value);
        if prefers.is_ok_and(|prefer| prefer == Prefer::Software) && self.is_ours(addr) {
            return false;
        }
        self.new_half().is_ok_and(|probe| {
            let usable = probe.bind(addr).and_then(|()| probe.node_guid()).and_then(kernel::opened);
            let _ = probe.unregister();
            if let Err(refused) = &usable
                && refused.errno() != libc::ENODEV
                && refused.errno() != libc::EADDRNOTAVAIL
            {
                let what = format!(": {local} is left to the software devices");
                fail::note("the kernel's connection manager", refused, &what);
            }
            usable.is_ok()
        })
    }

    /// Whether a software device has the address.
    fn is_ours(&self, addr: SocketAddr) -> bool {
        let soft = &self.handle.id.soft;
        CmId::new(&soft.channel(), soft.port_space(), None)
            .and_then(|probe| probe.bind(addr))
            .is_ok()
    }
}

/// The kernel's connection manager says EADDRNOTAVAIL, too, of a port that is taken: where one of the two has the wildcard.
/// Of an address that it has that is all it can mean.
fn taken(refused: Failure) -> Failure {
    match refused.errno() {
        libc::EADDRNOTAVAIL => Failure::Io(std::io::Error::from_raw_os_error(libc::EADDRINUSE)),
        _ => refused,
    }
}

/// Sets a new half's options to those of the id.
fn equip(half: &kernel::Handle, soft: &CmId) -> Outcome<()> {
    let options = soft.options();
    if options.tos != 0 {
        half.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_TOS, &[options.tos])?;
    }
    for (name, on) in
        [(RDMA_OPTION_ID_REUSEADDR, options.reuse_addr), (RDMA_OPTION_ID_AFONLY, options.af_only)]
    {
        if on {
            half.set_option(RDMA_OPTION_ID, name, &1i32.to_ne_bytes())?;
        }
    }
    if let Some(timeout) = options.ack_timeout {
        half.set_option(RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &[timeout])?;
    }
    Ok(())
}

/// The address of this host that the route to a destination leaves from, unless the program chooses; None without one.
fn leaves_from(to: SocketAddr) -> Option<IpAddr> {
    if to.ip().is_unspecified() || to.ip().is_loopback() {
        return None;
    }
    let scope = match to {
        SocketAddr::V6(to) => to.scope_id(),
        SocketAddr::V4(_) => 0,
    };
    let route = netlink::route_through(to.ip(), None, scope).ok()?;
    if route.local { Some(to.ip()) } else { route.prefer_src }
}

/// An id wherever it lives: for what is the same in both worlds.
pub(super) struct Any {
    pub(super) c: *mut rdma_cm_id,
    pub(super) halves: objects::Halves,
}

impl Any {
    /// # Safety
    /// As for [`objects::find`].
    pub(super) unsafe fn find(c: *mut rdma_cm_id) -> Outcome<Any> {
        // SAFETY: the caller's promise.
        Ok(Any { c, halves: unsafe { objects::halves(c)? } })
    }

    pub(super) fn is_sync(&self) -> bool {
        let soft = self.halves.soft.as_ref().is_some_and(|id| id.parts.lock().sync);
        soft || self.halves.kernel.as_ref().is_some_and(|id| id.parts.lock().sync)
    }

    /// Acknowledges the event that the last call of a synchronous id left in `id->event`.
    pub(super) fn drop_event(&self) {
        let last = self.event();
        if !last.is_null() {
            self.set_event(ptr::null_mut());
            // The program may have acknowledged it itself.
            // SAFETY: the address is all that is looked at.
            let _ = unsafe { super::ack_cm_event(last) };
        }
    }

    pub(super) fn event(&self) -> *mut rdma_cm_event {
        // SAFETY: places are never unmapped; a program does not touch an id while it calls us with it.
        unsafe { (&raw const (*self.c).event).read() }
    }

    pub(super) fn set_event(&self, event: *mut rdma_cm_event) {
        // SAFETY: as for `event`.
        unsafe { (&raw mut (*self.c).event).write(event) };
    }

    /// The channel of its events.
    pub(super) fn channel(&self) -> &Arc<Channel> {
        &self.halves.channel
    }

    /// Waits for the next event of a synchronous id, and leaves it in `id->event`: which, and its status.
    pub(super) fn await_event(&self) -> Outcome<(u32, i32)> {
        self.drop_event();
        let next = loop {
            match self.halves.channel.next() {
                // The call cannot be resumed, so that it goes on as after SA_RESTART.
                Err(Failure::Io(e)) if e.kind() == std::io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.set_event(next.c);
        Ok((next.event, next.status))
    }
}
