//! Protection domains and memory regions.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::{io, ptr};

use ironverbs::raw as soft;
use soft::Access;

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, ContextId, MrExtra, View, find};
use crate::pool::Object;
use crate::{convert, post};

/// ibv_alloc_pd(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    // SAFETY: the caller's promise.
    fail::object("ibv_alloc_pd", || unsafe { alloc(context) })
}

/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe fn alloc(context: *mut ibv_context) -> Outcome<*mut ibv_pd> {
    // SAFETY: the caller's promise.
    let soft = unsafe { objects::context(context)? }.context.clone();
    let view = View::new(soft.alloc_pd()?, ContextId::of(context));
    let pd = ibv_pd::pool().insert(view, |object, handle| {
        // SAFETY: nobody else sees the place yet.
        unsafe { object.write(ibv_pd { context, handle }) };
    })?;
    Ok(pd.as_ptr())
}

/// ibv_dealloc_pd(3): EBUSY while anything belongs to it.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_dealloc_pd", || unsafe {
        objects::destroy::<ibv_pd, _, _>(pd, |pd: &ironverbs::raw::Pd| pd.destroy())
    })
}

/// The rights that a program asked for. Rights from the optional range may be ignored, and are when
/// unknown; any other unknown right is refused.
pub(crate) fn access(flags: u32) -> Outcome<Access> {
    let known = Access::from_bits_truncate(flags);
    if flags & !Access::all().bits() & !IBV_ACCESS_OPTIONAL_RANGE != 0 {
        return Err(Failure::Argument { what: "access", value: flags.into() });
    }
    Ok(known)
}

/// ibv_reg_mr(3).
///
/// # Safety
/// As for [`objects::find`]; the memory stays mapped until the region is deregistered.
pub(crate) unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { reg_mr_iova2(pd, addr, length, addr as u64, access as u32) }
}

/// ibv_reg_mr_iova(3).
///
/// # Safety
/// As for [`reg_mr`].
pub(crate) unsafe extern "C" fn reg_mr_iova(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    unsafe { reg_mr_iova2(pd, addr, length, iova, access as u32) }
}

/// ibv_reg_mr_iova2: what the header's inline functions call when the rights are not constant.
///
/// # Safety
/// As for [`reg_mr`].
pub(crate) unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    flags: u32,
) -> *mut ibv_mr {
    fail::object("ibv_reg_mr", || {
        // SAFETY: the caller's promise.
        let (soft, context) = unsafe { domain(pd)? };
        // SAFETY: the caller keeps the memory mapped, as ibv_reg_mr(3) asks.
        let mr = unsafe { soft.reg_mr(addr as u64, length as u64, iova, access(flags)?)? };
        present(mr, context, pd, |object| (object.addr, object.length) = (addr, length))
    })
}

/// The device's domain behind a pointer, and its context.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe fn domain(pd: *mut ibv_pd) -> Outcome<(Arc<soft::Pd>, ContextId)> {
    // SAFETY: the caller's promise.
    let found = unsafe { find::<ibv_pd>(pd)? };
    Ok((found.inner.clone(), found.context))
}

/// The C side of a region. `finish` says where it is.
pub(crate) fn present(
    mr: Arc<soft::Mr>,
    context: ContextId,
    pd: *mut ibv_pd,
    finish: impl FnOnce(&mut ibv_mr),
) -> Outcome<*mut ibv_mr> {
    present_with(mr, context, pd, MrExtra::default(), finish)
}

/// The same, with what it stands on.
pub(crate) fn present_with(
    mr: Arc<soft::Mr>,
    context: ContextId,
    pd: *mut ibv_pd,
    extra: MrExtra,
    finish: impl FnOnce(&mut ibv_mr),
) -> Outcome<*mut ibv_mr> {
    let (lkey, rkey) = (mr.lkey(), mr.rkey());
    let view = View { inner: mr, context, unacknowledged: AtomicU32::new(0), extra };
    let context = context.pointer();
    let object = ibv_mr::pool().insert(view, |object, handle| {
        let (addr, length) = (ptr::null_mut(), 0);
        let mut mr = ibv_mr { context, pd, addr, length, handle, lkey, rkey };
        finish(&mut mr);
        // SAFETY: nobody else sees the place yet.
        unsafe { object.write(mr) };
    })?;
    Ok(object.as_ptr())
}

/// ibv_rereg_mr(3). Every failure leaves the region as it was: IBV_REREG_MR_ERR_INPUT and errno.
///
/// # Safety
/// As for [`reg_mr`]; `pd` as for [`objects::find`] where it is used.
pub(crate) unsafe extern "C" fn rereg_mr(
    mr: *mut ibv_mr,
    flags: c_int,
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    flags_of_access: c_int,
) -> c_int {
    let done = fail::returned("ibv_rereg_mr", || {
        let known =
            IBV_REREG_MR_CHANGE_TRANSLATION | IBV_REREG_MR_CHANGE_PD | IBV_REREG_MR_CHANGE_ACCESS;
        if flags == 0 || flags & !known != 0 {
            return Err(Failure::Argument { what: "flags", value: flags as u64 });
        }
        // SAFETY: the caller's promise.
        let found = unsafe { find::<ibv_mr>(mr)? };
        let soft = found.inner.clone();
        let new_pd = match flags & IBV_REREG_MR_CHANGE_PD {
            0 => None,
            // SAFETY: the caller's promise.
            _ => Some(unsafe { find::<ibv_pd>(pd)? }.inner.clone()),
        };
        let new_range = (flags & IBV_REREG_MR_CHANGE_TRANSLATION != 0).then_some((
            addr as u64,
            length as u64,
            addr as u64,
        ));
        if new_range.is_some() && addr.is_null() {
            return Err(Failure::Null { what: "address" });
        }
        let new_access = match flags & IBV_REREG_MR_CHANGE_ACCESS {
            0 => None,
            _ => Some(access(flags_of_access as u32)?),
        };
        // SAFETY: as for `reg_mr`.
        unsafe { soft.rereg(new_pd.as_ref(), new_range, new_access)? };
        // SAFETY: `found` keeps the place; a program does not read the region while it changes it.
        let object = unsafe { &mut *found.object() };
        if new_pd.is_some() {
            object.pd = pd;
        }
        if new_range.is_some() {
            (object.addr, object.length) = (addr, length);
        }
        (object.lkey, object.rkey) = (soft.lkey(), soft.rkey());
        Ok(())
    });
    done.map_or(IBV_REREG_MR_ERR_INPUT, |()| 0)
}

/// ibv_dereg_mr(3): when it returns, nobody reads or writes the memory any more.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_dereg_mr", || unsafe {
        objects::destroy::<ibv_mr, _, _>(mr, |mr: &ironverbs::raw::Mr| mr.destroy())
    })
}

/// ibv_reg_dmabuf_mr(3): of any descriptor whose memory can be mapped.
///
/// # Safety
/// As for [`objects::find`]; `fd` is open during the call, or no descriptor at all.
pub(crate) unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    flags: c_int,
) -> *mut ibv_mr {
    fail::object("ibv_reg_dmabuf_mr", || {
        // SAFETY: the caller's promise.
        let (soft, context) = unsafe { domain(pd)? };
        if fd < 0 {
            return Err(io::Error::from_raw_os_error(libc::EBADF).into());
        }
        // SAFETY: the caller's promise; one that is closed gives EBADF.
        let file = unsafe { BorrowedFd::borrow_raw(fd) };
        let flags = access(flags as u32)?;
        present(soft.reg_file_mr(file, offset, length as u64, iova, flags)?, context, pd, |mr| {
            // Nothing is said of where it is mapped.
            (mr.addr, mr.length) = (iova as *mut c_void, length);
        })
    })
}

/// ibv_alloc_null_mr(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn alloc_null_mr(pd: *mut ibv_pd) -> *mut ibv_mr {
    fail::object("ibv_alloc_null_mr", || {
        // SAFETY: the caller's promise.
        let (soft, context) = unsafe { domain(pd)? };
        present(soft.alloc_null_mr()?, context, pd, |mr| mr.length = usize::MAX)
    })
}

/// ibv_advise_mr(3).
///
/// # Safety
/// As for [`objects::find`]; `list` points to `count` elements.
pub(crate) unsafe extern "C" fn advise_mr(
    pd: *mut ibv_pd,
    advice: u32,
    flags: u32,
    list: *mut ibv_sge,
    count: u32,
) -> c_int {
    fail::status("ibv_advise_mr", || {
        // SAFETY: the caller's promise.
        let (soft, _) = unsafe { domain(pd)? };
        if flags & !IBV_ADVISE_MR_FLAG_FLUSH != 0 {
            return Err(Failure::Argument { what: "flags", value: flags.into() });
        }
        let (write, populate) = match advice {
            IBV_ADVISE_MR_ADVICE_PREFETCH => (false, true),
            IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE => (true, true),
            IBV_ADVISE_MR_ADVICE_PREFETCH_NO_FAULT => (false, false),
            _ => return Err(Failure::Unsupported { what: "that advice" }),
        };
        if count == 0 {
            return Err(Failure::Argument { what: "num_sge", value: 0 });
        }
        // SAFETY: the caller's promise.
        let list = unsafe { post::elements(list, c_int::try_from(count).unwrap_or(-1))? };
        for sge in list {
            soft.prefetch(&convert::sge(&sge.get()), write, populate)?;
        }
        Ok(())
    })
}
