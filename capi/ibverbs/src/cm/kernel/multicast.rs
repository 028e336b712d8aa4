//! Multicast groups of the kernel's ids.

use std::ffi::{c_int, c_void};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use ironverbs_kernel::cm::{self, CmRecord};
use parking_lot::Mutex;

use super::ids::{given_address, number};
use super::objects::{self, Counter, Handle, field, given};
use crate::abi::*;
use crate::cm::address;
use crate::dispatch;
use crate::fail::{self, Failure, Outcome};

/// A membership of an id.
pub(super) struct Member {
    /// What events call it: odd, as no address of an id is.
    name: u64,
    /// The kernel's number.
    handle: AtomicU32,
    id: u64,
    group: SocketAddr,
    /// The program's word.
    word: usize,
    /// The group's GID and LID, once its queue pair is attached.
    attached: Mutex<Option<([u8; 16], u16)>>,
    pub(super) events: Arc<Counter>,
}

static MEMBERS: Mutex<Vec<Arc<Member>>> = Mutex::new(Vec::new());

/// The membership that events call so.
pub(super) fn named(name: u64) -> Option<Arc<Member>> {
    if name.is_multiple_of(2) {
        return None;
    }
    MEMBERS.lock().iter().find(|member| member.name == name).cloned()
}

impl Member {
    /// What an event means for it: its id, the program's word.
    pub(super) fn told(&self, record: &CmRecord) -> Outcome<(Handle, usize)> {
        const JOIN: u32 = 12;
        let unknown = Failure::Unknown { what: "rdma_cm_id", handle: 0 };
        let handle = objects::named(self.id).ok_or(unknown)?;
        let qp = handle.get(field!(qp));
        if record.event == JOIN && record.status == 0 && !qp.is_null() {
            let path = record.ud().path;
            let path = ironverbs_kernel::command::Response(&path);
            let (gid, lid): ([u8; 16], u16) = (path.part(0).unwrap_or_default(), path.u16(24));
            // SAFETY: the queue pair is the id's, and the GID is there.
            if unsafe { dispatch::attach_mcast(qp, gid.as_ptr().cast(), lid) } == 0 {
                *self.attached.lock() = Some((gid, lid));
            }
        }
        Ok((handle, self.word))
    }
}

pub(in crate::cm) unsafe fn join_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
    context: *mut c_void,
) -> c_int {
    fail::number("rdma_join_multicast", || {
        // SAFETY: the caller's promise.
        unsafe { join(&objects::find(id)?, addr, RDMA_MC_JOIN_FLAG_FULLMEMBER, context)? };
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn join_multicast_ex(
    id: *mut rdma_cm_id,
    attr: *mut rdma_cm_join_mc_attr_ex,
    context: *mut c_void,
) -> c_int {
    fail::number("rdma_join_multicast_ex", || {
        // SAFETY: the caller's promise.
        let (handle, attr) = unsafe { (objects::find(id)?, &*given("mc_join_attr", attr)?) };
        if attr.comp_mask != RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS {
            return Err(Failure::Argument { what: "comp_mask", value: attr.comp_mask.into() });
        }
        // SAFETY: the caller's promise.
        unsafe { join(&handle, attr.addr, attr.join_flags, context)? };
        Ok(0)
    })
}

/// # Safety
/// As for [`address::read`].
unsafe fn join(
    handle: &Handle,
    addr: *const libc::sockaddr,
    flags: u32,
    context: *mut c_void,
) -> Outcome<()> {
    static NAMES: AtomicU64 = AtomicU64::new(1);
    // SAFETY: the caller's promise.
    let (group, (bytes, len)) = unsafe { (address::read(addr)?, given_address(addr)?) };
    let flags = u16::try_from(flags)
        .map_err(|_| Failure::Argument { what: "join_flags", value: flags.into() })?;
    let member = Arc::new(Member {
        name: NAMES.fetch_add(2, Ordering::Relaxed),
        handle: AtomicU32::new(u32::MAX),
        id: handle.c.expose_provenance() as u64,
        group,
        word: context.expose_provenance(),
        attached: Mutex::new(None),
        events: Arc::default(),
    });
    MEMBERS.lock().push(member.clone());
    let joined = handle.id.issue(&cm::join(handle.id.number(), member.name, flags, &bytes, len));
    match joined {
        Ok(response) => member.handle.store(number(&response), Ordering::Release),
        Err(refused) => {
            forget(member.name);
            return Err(refused);
        }
    }
    handle.complete()
}

fn forget(name: u64) {
    MEMBERS.lock().retain(|member| member.name != name);
}

pub(in crate::cm) unsafe fn leave_multicast(
    id: *mut rdma_cm_id,
    addr: *mut libc::sockaddr,
) -> c_int {
    fail::number("rdma_leave_multicast", || {
        // SAFETY: the caller's promise.
        let (handle, group) = unsafe { (objects::find(id)?, address::read(addr)?) };
        let own = handle.c.expose_provenance() as u64;
        let found = {
            let members = MEMBERS.lock();
            members.iter().find(|m| m.id == own && m.group.ip() == group.ip()).cloned()
        };
        let none = Failure::Io(std::io::Error::from_raw_os_error(libc::EADDRNOTAVAIL));
        let member = found.ok_or(none)?;
        let qp = handle.get(field!(qp));
        if let Some((gid, lid)) = member.attached.lock().take()
            && !qp.is_null()
        {
            // SAFETY: the queue pair is the id's, and the GID is there.
            unsafe { dispatch::detach_mcast(qp, gid.as_ptr().cast(), lid) };
        }
        let response = handle.id.issue(&cm::leave(member.handle.load(Ordering::Acquire)))?;
        // The last event of a synchronous id is acknowledged by its next call, which may be this one.
        handle.drop_event();
        member.events.wait(number(&response));
        forget(member.name);
        Ok(0)
    })
}

/// Forgets the memberships of an id that has ended.
pub(super) fn forget_all(id: *mut rdma_cm_id) {
    let own = id.expose_provenance() as u64;
    MEMBERS.lock().retain(|member| member.id != own);
}
