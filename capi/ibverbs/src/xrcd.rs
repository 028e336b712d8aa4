//! XRC domains, and queue pairs opened again.

use std::ffi::c_int;
use std::os::fd::BorrowedFd;
use std::sync::atomic::AtomicU32;

use ironverbs::raw as soft;
use soft::QpType;

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, QpExtra, View, find};
use crate::pool::Object;

/// ibv_open_xrcd(3). `fd` -1, or none, is a domain that no file names.
///
/// # Safety
/// As for [`objects::context`]; `init` is null or points to the structure; its `fd` is -1 or stays
/// open during the call.
pub(crate) unsafe extern "C" fn open_xrcd(
    context: *mut ibv_context,
    init: *mut ibv_xrcd_init_attr,
) -> *mut ibv_xrcd {
    fail::object("ibv_open_xrcd", || {
        if init.is_null() {
            return Err(Failure::Null { what: "xrcd_init_attr" });
        }
        // SAFETY: the caller's promise.
        unsafe { open(context, &*init) }
    })
}

/// # Safety
/// As for [`open_xrcd`].
pub(crate) unsafe fn open(
    context: *mut ibv_context,
    init: &ibv_xrcd_init_attr,
) -> Outcome<*mut ibv_xrcd> {
    // SAFETY: the caller's promise.
    let found = unsafe { objects::context(context)? };
    // The manual asks for both, and so does the kernel's library.
    let needed = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
    if init.comp_mask & needed != needed {
        return Err(Failure::Argument { what: "comp_mask", value: init.comp_mask.into() });
    }
    if init.comp_mask & !needed != 0 {
        return Err(Failure::Unsupported { what: "an attribute of the XRC domain" });
    }
    if init.oflags & !(libc::O_CREAT | libc::O_EXCL) != 0 {
        return Err(Failure::Argument { what: "oflags", value: init.oflags as u64 });
    }
    let file = match init.fd {
        -1 => None,
        fd if fd < 0 => {
            return Err(std::io::Error::from_raw_os_error(libc::EBADF).into());
        }
        // SAFETY: not -1, and the caller's promise; a closed one gives EBADF.
        fd => Some(unsafe { BorrowedFd::borrow_raw(fd) }),
    };
    let (create, exclusive) = (init.oflags & libc::O_CREAT != 0, init.oflags & libc::O_EXCL != 0);
    let xrcd = found.context.open_xrcd(file, create, exclusive)?;
    let id = objects::ContextId::of(context);
    let object = ibv_xrcd::pool().insert(View::new(xrcd, id), |object, _| {
        // SAFETY: nobody else sees the place yet.
        unsafe { (*object).context = context };
    })?;
    Ok(object.as_ptr())
}

/// ibv_close_xrcd(3): EBUSY while a QP or SRQ that was made with it is there.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn close_xrcd(xrcd: *mut ibv_xrcd) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_close_xrcd", || unsafe {
        objects::destroy::<ibv_xrcd, _, _>(xrcd, |xrcd: &soft::Xrcd| xrcd.destroy())
    })
}

/// ibv_open_qp(3): another handle of an XRC_RECV queue pair, which goes with the last of them.
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn open_qp(
    context: *mut ibv_context,
    attr: *mut ibv_qp_open_attr,
) -> *mut ibv_qp {
    fail::object("ibv_open_qp", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "qp_open_attr" });
        }
        // SAFETY: the caller's promise.
        let attr = unsafe {
            objects::context(context)?;
            &*attr
        };
        let needed = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD;
        let known = needed | IBV_QP_OPEN_ATTR_CONTEXT | IBV_QP_OPEN_ATTR_TYPE;
        if attr.comp_mask & needed != needed || attr.comp_mask & !known != 0 {
            return Err(Failure::Argument { what: "comp_mask", value: attr.comp_mask.into() });
        }
        if attr.comp_mask & IBV_QP_OPEN_ATTR_TYPE != 0 && attr.qp_type != IBV_QPT_XRC_RECV {
            return Err(Failure::Argument { what: "qp_type", value: attr.qp_type.into() });
        }
        // SAFETY: the caller's promise.
        let found = unsafe { find::<ibv_xrcd>(attr.xrcd)? };
        let qp = found.inner.open_qp(attr.qp_num)?;
        let qp_context = match attr.comp_mask & IBV_QP_OPEN_ATTR_CONTEXT {
            0 => std::ptr::null_mut(),
            _ => attr.qp_context,
        };
        let view = View {
            inner: qp.clone(),
            context: found.context,
            unacknowledged: AtomicU32::new(0),
            extra: QpExtra::default(),
        };
        let object = ibv_qp_ex::pool().insert(view, |object, handle| {
            // SAFETY: nobody else sees the place yet; it starts zeroed.
            let base = unsafe { &mut (*object).qp_base };
            (base.context, base.qp_context) = (found.context.pointer(), qp_context);
            (base.handle, base.qp_num) = (handle, qp.qpn());
            (base.state, base.qp_type) = (qp.state() as u32, IBV_QPT_XRC_RECV);
        });
        if object.is_err() {
            let _ = qp.destroy();
        }
        Ok(object?.as_ptr())
    })
}

/// Events of a queue pair go to the handle that its cookie names: when that one has gone, to another.
pub(crate) fn hand_over(qp: &soft::Qp, gone: usize) {
    if qp.qp_type() != QpType::XrcRecv || qp.cookie() != gone {
        return;
    }
    let same = |view: &View<soft::Qp, QpExtra>| std::ptr::eq(&*view.inner, qp);
    let others = ibv_qp_ex::pool().living(same);
    let other = others.first().map_or(0, |other| other.object().expose_provenance());
    qp.set_cookie(other);
}
