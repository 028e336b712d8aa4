//! Memory windows.

use std::ffi::c_int;

use ironverbs::raw as soft;
use soft::{Access, Bind, MwType, Payload, SendFlags, SendWr};

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::mr;
use crate::objects::{self, View, find};
use crate::pool::Object;

/// ibv_alloc_mw(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn alloc_mw(pd: *mut ibv_pd, kind: c_int) -> *mut ibv_mw {
    fail::object("ibv_alloc_mw", || {
        let kind = match kind {
            1 => MwType::One,
            2 => MwType::Two,
            other => return Err(Failure::Argument { what: "type", value: other as u64 }),
        };
        // SAFETY: the caller's promise.
        let (soft, id) = unsafe { mr::domain(pd)? };
        let mw = soft.alloc_mw(kind)?;
        let rkey = mw.rkey();
        let context = id.pointer();
        let object = ibv_mw::pool().insert(View::new(mw, id), |object, handle| {
            // SAFETY: nobody else sees the place yet.
            unsafe { object.write(ibv_mw { context, pd, rkey, handle, type_: kind as c_int }) };
        })?;
        Ok(object.as_ptr())
    })
}

/// ibv_dealloc_mw(3): bound or not.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_dealloc_mw", || unsafe {
        objects::destroy::<ibv_mw, _, _>(mw, |mw: &soft::Mw| mw.destroy())
    })
}

/// ibv_bind_mw(3), of windows of type 1: posts the request and changes the key.
///
/// # Safety
/// As for [`objects::find`], for the objects in `bind`, which is null or points to the structure, too.
pub(crate) unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp,
    mw: *mut ibv_mw,
    bind: *mut ibv_mw_bind,
) -> c_int {
    fail::status("ibv_bind_mw", || {
        if bind.is_null() {
            return Err(Failure::Null { what: "mw_bind" });
        }
        // SAFETY: the caller's promise.
        unsafe {
            let found = find::<ibv_qp_ex>(qp)?;
            // The lowest byte is the key's own; what is above names the window.
            let rkey = next_key((*mw).rkey);
            let bound = binding(MwType::One, mw, rkey, &(*bind).bind_info)?;
            let flags = SendFlags::from_bits_truncate((*bind).send_flags) - SendFlags::INLINE;
            let wr = SendWr::bind((*bind).wr_id, flags, &bound);
            found.inner.post_send(&wr, Payload::Sges(&[]))?;
            (*mw).rkey = rkey;
        }
        Ok(())
    })
}

fn next_key(rkey: u32) -> u32 {
    rkey & !0xff | u32::from((rkey as u8).wrapping_add(1))
}

/// What a request binds, as far as it can be told before its turn comes.
///
/// # Safety
/// As for [`objects::find`], for the window and the region.
pub(crate) unsafe fn binding(
    kind: MwType,
    mw: *const ibv_mw,
    rkey: u32,
    info: &ibv_mw_bind_info,
) -> Outcome<Bind> {
    // SAFETY: the caller's promise.
    let window = unsafe { find::<ibv_mw>(mw)? };
    if window.inner.kind() != kind {
        let value = window.inner.kind() as u64;
        return Err(Failure::Argument { what: "type of the window", value });
    }
    if (rkey ^ window.inner.rkey()) & !0xff != 0 {
        return Err(Failure::Argument { what: "rkey", value: rkey.into() });
    }
    let known = Access::REMOTE_WRITE
        | Access::REMOTE_READ
        | Access::REMOTE_ATOMIC
        | Access::LOCAL_WRITE
        | Access::ZERO_BASED;
    let access = Access::from_bits_retain(info.mw_access_flags);
    if access.bits() & !known.bits() != 0 {
        let value = info.mw_access_flags.into();
        return Err(Failure::Argument { what: "mw_access_flags", value });
    }
    let lkey = match info.mr.is_null() {
        true if kind == MwType::One && info.length == 0 => 0,
        true => return Err(Failure::Null { what: "memory region" }),
        // SAFETY: the caller's promise.
        false => unsafe { find::<ibv_mr>(info.mr)? }.inner.lkey(),
    };
    Ok(Bind { rkey, lkey, addr: info.addr, len: info.length, access })
}
