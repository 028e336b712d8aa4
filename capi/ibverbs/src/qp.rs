//! Queue pairs: creation, attributes, the end.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::atomic::AtomicU32;

use ironverbs::raw as soft;
use soft::AttrMask;

use crate::abi::*;
use crate::convert;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, QpExtra, View, find};
use crate::pool::Object;
use crate::{qp_ex, raw, xrcd};

/// ibv_create_qp(3); `cap` then holds what was granted.
///
/// # Safety
/// As for [`objects::find`]; `init` is null or points to the structure.
pub(crate) unsafe extern "C" fn create_qp(
    pd: *mut ibv_pd,
    init: *mut ibv_qp_init_attr,
) -> *mut ibv_qp {
    fail::object("ibv_create_qp", || {
        if init.is_null() {
            return Err(Failure::Null { what: "qp_init_attr" });
        }
        // SAFETY: the caller's promise.
        unsafe {
            if (*init).qp_type == IBV_QPT_RAW_PACKET {
                return raw::qp::create(pd, &mut *init, None);
            }
            create(pd, &mut *init, QpExtra::default(), |_| ())
        }
    })
}

/// ibv_create_qp_ex(3). The header's inline function sends QPs with no more than a PD to
/// [`create_qp`]; here come the send operations of the extended interface, and what this device
/// lacks.
///
/// # Safety
/// As for [`objects::find`]; `init` is null or points to the structure.
pub(crate) unsafe extern "C" fn create_qp_ex(
    context: *mut ibv_context,
    init: *mut ibv_qp_init_attr_ex,
) -> *mut ibv_qp {
    fail::object("ibv_create_qp_ex", || {
        if init.is_null() {
            return Err(Failure::Null { what: "qp_init_attr_ex" });
        }
        // SAFETY: the caller's promise.
        unsafe { create_ex(context, &mut *init) }
    })
}

/// # Safety
/// As for [`objects::find`], for the context and every object in `attr`.
pub(crate) unsafe fn create_ex(
    context: *mut ibv_context,
    attr: &mut ibv_qp_init_attr_ex,
) -> Outcome<*mut ibv_qp> {
    // SAFETY: the caller's promise.
    unsafe {
        objects::context(context)?;
        let known = IBV_QP_INIT_ATTR_PD
            | IBV_QP_INIT_ATTR_XRCD
            | IBV_QP_INIT_ATTR_CREATE_FLAGS
            | IBV_QP_INIT_ATTR_IND_TABLE
            | IBV_QP_INIT_ATTR_RX_HASH
            | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
        if attr.comp_mask & !known != 0 {
            return Err(Failure::Unsupported { what: "an attribute of the queue pair" });
        }
        let flags = match attr.comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS {
            0 => 0,
            _ => attr.create_flags,
        };
        // Only datagrams go to groups.
        let datagrams = convert::qp_type(attr.qp_type).is_ok_and(|t| t == soft::QpType::Ud);
        let known = if datagrams { IBV_QP_CREATE_BLOCK_SELF_MCAST_LB } else { 0 };
        if flags & !known != 0 {
            return Err(Failure::Unsupported { what: "a creation flag" });
        }
        if attr.qp_type == IBV_QPT_XRC_RECV {
            return create_receiver(attr);
        }
        if attr.comp_mask & IBV_QP_INIT_ATTR_PD == 0 {
            return Err(Failure::Null { what: "protection domain" });
        }
        if attr.comp_mask & (IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE) != 0 {
            return raw::qp::create_spread(attr);
        }
        let mut plain = ibv_qp_init_attr {
            qp_context: attr.qp_context,
            send_cq: attr.send_cq,
            recv_cq: attr.recv_cq,
            srq: attr.srq,
            cap: attr.cap,
            qp_type: attr.qp_type,
            sq_sig_all: attr.sq_sig_all,
        };
        let ops = match attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS {
            0 => None,
            _ => Some(attr.send_ops_flags),
        };
        if attr.qp_type == IBV_QPT_RAW_PACKET {
            let qp = raw::qp::create(attr.pd, &mut plain, ops)?;
            attr.cap = plain.cap;
            return Ok(qp);
        }
        let extra = match ops {
            None => QpExtra::default(),
            Some(ops) => qp_ex::extra(convert::qp_type(attr.qp_type)?, ops)?,
        };
        let qp = create(attr.pd, &mut plain, extra, |object| {
            if let Some(ops) = ops {
                qp_ex::install(object, ops);
            }
        })?;
        if flags & IBV_QP_CREATE_BLOCK_SELF_MCAST_LB != 0 {
            find::<ibv_qp_ex>(qp)?.inner.block_own_mcast();
        }
        attr.cap = plain.cap;
        Ok(qp)
    }
}

/// # Safety
/// As for [`objects::find`], for the PD and every object in `init`.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    extra: QpExtra,
    finish: impl FnOnce(*mut ibv_qp_ex),
) -> Outcome<*mut ibv_qp> {
    let qp_type = convert::qp_type(init.qp_type)?;
    if !qp_type.has_responder() {
        // It has neither, whatever stands there (ibv_create_qp_ex(3)).
        (init.recv_cq, init.srq) = (init.send_cq, ptr::null_mut());
    }
    // SAFETY: the caller's promise.
    let (found, send_cq, recv_cq, srq) = unsafe {
        let srq = match init.srq.is_null() {
            true => None,
            false => Some(find::<ibv_srq>(init.srq)?.inner.clone()),
        };
        let cq = |cq| Ok::<_, Failure>(find::<ibv_cq_ex>(cq)?.inner.clone());
        (find::<ibv_pd>(pd)?, cq(init.send_cq)?, cq(init.recv_cq)?, srq)
    };
    let asked = soft::QpInit {
        qp_type,
        send_cq,
        recv_cq,
        srq,
        cap: convert::cap(&init.cap),
        sq_sig_all: init.sq_sig_all != 0,
    };
    let qp = found.inner.create_qp(&asked)?;
    let id = found.context;
    let view = View { inner: qp.clone(), context: id, unacknowledged: AtomicU32::new(0), extra };
    let object = ibv_qp_ex::pool().insert(view, |object, handle| {
        // SAFETY: nobody else sees the place yet; it starts zeroed.
        let base = unsafe { &mut (*object).qp_base };
        (base.context, base.qp_context, base.pd) = (id.pointer(), init.qp_context, pd);
        (base.send_cq, base.recv_cq, base.srq) = (init.send_cq, init.recv_cq, init.srq);
        (base.handle, base.qp_num, base.qp_type) = (handle, qp.qpn(), init.qp_type);
        base.state = qp.state() as u32;
        finish(object);
    })?;
    qp.set_cookie(object.as_ptr().expose_provenance());
    init.cap = convert::c_cap(&qp.cap());
    Ok(object.as_ptr())
}

/// An XRC_RECV queue pair, which has a domain and nothing else.
///
/// # Safety
/// As for [`objects::find`], for the domain.
unsafe fn create_receiver(attr: &mut ibv_qp_init_attr_ex) -> Outcome<*mut ibv_qp> {
    if attr.comp_mask & IBV_QP_INIT_ATTR_XRCD == 0 {
        return Err(Failure::Null { what: "XRC domain" });
    }
    if attr.comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS != 0 && attr.send_ops_flags != 0 {
        return Err(Failure::Unsupported { what: "send operations of an XRC_RECV queue pair" });
    }
    // SAFETY: the caller's promise.
    let found = unsafe { find::<ibv_xrcd>(attr.xrcd)? };
    let (qp, id) = (found.inner.create_qp()?, found.context);
    let view = View {
        inner: qp.clone(),
        context: id,
        unacknowledged: AtomicU32::new(0),
        extra: QpExtra::default(),
    };
    let object = ibv_qp_ex::pool().insert(view, |object, handle| {
        // SAFETY: nobody else sees the place yet; it starts zeroed.
        let base = unsafe { &mut (*object).qp_base };
        (base.context, base.qp_context) = (id.pointer(), attr.qp_context);
        (base.handle, base.qp_num, base.qp_type) = (handle, qp.qpn(), attr.qp_type);
        base.state = qp.state() as u32;
    })?;
    qp.set_cookie(object.as_ptr().expose_provenance());
    attr.cap = convert::c_cap(&qp.cap());
    Ok(object.as_ptr())
}

/// ibv_modify_qp(3).
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn modify_qp(
    qp: *mut ibv_qp,
    attr: *const ibv_qp_attr,
    mask: c_int,
) -> c_int {
    fail::status("ibv_modify_qp", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "attr" });
        }
        let mask = AttrMask::from_bits(mask as u32)
            .ok_or(Failure::Argument { what: "attr_mask", value: mask as u64 })?;
        // SAFETY: the caller's promise.
        let found = match unsafe { find::<ibv_qp_ex>(qp) } {
            Ok(found) => found,
            // SAFETY: the caller's promise.
            Err(failure) => unsafe {
                return match raw::of(qp) {
                    Some(_) => raw::qp::modify(qp, &*attr, mask),
                    None => Err(failure),
                };
            },
        };
        // SAFETY: the caller's promise.
        let wanted = convert::qp_attr(unsafe { &*attr }, mask)?;
        found.inner.modify(&wanted, mask)?;
        if mask.contains(AttrMask::STATE) {
            // SAFETY: the place is alive; the field is ours to write.
            unsafe { (&raw mut (*found.object()).qp_base.state).write(wanted.state as u32) };
        }
        Ok(())
    })
}

/// ibv_query_qp(3): everything is filled in, whatever the mask names, but for the rate limit.
///
/// # Safety
/// As for [`objects::find`]; `attr` and `init` are null or have room for their structures.
pub(crate) unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    mask: c_int,
    init: *mut ibv_qp_init_attr,
) -> c_int {
    fail::status("ibv_query_qp", || {
        if attr.is_null() || init.is_null() {
            return Err(Failure::Null { what: "attr or init_attr" });
        }
        // SAFETY: the caller's promise.
        let (now, cap, sig_all) = match unsafe { find::<ibv_qp_ex>(qp) } {
            Ok(found) => (found.inner.query(), found.inner.cap(), found.inner.sq_sig_all()),
            // SAFETY: the caller's promise.
            Err(failure) => unsafe {
                match raw::of(qp) {
                    Some(_) => raw::qp::query(qp)?,
                    None => return Err(failure),
                }
            },
        };
        // SAFETY: the caller's promise; the place is alive.
        unsafe {
            let whole = convert::c_qp_attr(&now);
            if mask as u32 & AttrMask::RATE_LIMIT.bits() != 0 {
                attr.write(whole);
            } else {
                whole.write_without_rate_limit(attr);
            }
            let base = qp;
            (*base).state = now.state as u32;
            init.write(ibv_qp_init_attr {
                qp_context: (*base).qp_context,
                send_cq: (*base).send_cq,
                recv_cq: (*base).recv_cq,
                srq: (*base).srq,
                cap: convert::c_cap(&cap),
                qp_type: (*base).qp_type,
                sq_sig_all: sig_all.into(),
            });
        }
        Ok(())
    })
}

/// ibv_destroy_qp(3): in every state; waits until its events are acknowledged. EBUSY while it is
/// attached to a multicast group.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_destroy_qp", || unsafe { end(qp) })
}

/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe fn end(qp: *mut ibv_qp) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        let inner = match find::<ibv_qp_ex>(qp) {
            Ok(found) => found.inner.clone(),
            Err(_) if raw::of(qp).is_some() => return raw::qp::end(qp),
            Err(failure) => return Err(failure),
        };
        objects::destroy::<ibv_qp_ex, _, _>(qp, |qp: &soft::Qp| qp.destroy())?;
        xrcd::hand_over(&inner, qp.expose_provenance());
    }
    Ok(())
}

/// ibv_query_qp_data_in_order: 0, nothing is promised.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn query_qp_data_in_order(
    qp: *mut ibv_qp,
    _op: u32,
    _flags: u32,
) -> c_int {
    // SAFETY: the caller's promise.
    fail::silent("ibv_query_qp_data_in_order", || unsafe { find::<ibv_qp_ex>(qp).map(drop) });
    0
}

/// ibv_query_ece(3): there is no enhancement that this device could offer a peer, which is what zeros say.
///
/// # Safety
/// As for [`objects::find`]; `ece` is null or has room for the structure.
pub(crate) unsafe extern "C" fn query_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    fail::status("ibv_query_ece", || {
        // SAFETY: the caller's promise.
        unsafe {
            alive(qp)?;
            if ece.is_null() {
                return Err(Failure::Null { what: "ece" });
            }
            ece.write(ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 });
        }
        Ok(())
    })
}

/// ibv_set_ece(3): what a peer offers is taken note of, and nothing of it is used; [`query_ece`] then says so.
///
/// # Safety
/// As for [`objects::find`]; `ece` is null or points to the structure.
pub(crate) unsafe extern "C" fn set_ece(qp: *mut ibv_qp, ece: *mut ibv_ece) -> c_int {
    fail::status("ibv_set_ece", || {
        // SAFETY: the caller's promise.
        let comp_mask = unsafe {
            alive(qp)?;
            ece.as_ref().ok_or(Failure::Null { what: "ece" })?.comp_mask
        };
        match comp_mask {
            0 => Ok(()),
            other => Err(Failure::Argument { what: "comp_mask", value: other.into() }),
        }
    })
}

/// # Safety
/// As for [`objects::find`].
unsafe fn alive(qp: *const ibv_qp) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe {
        match find::<ibv_qp_ex>(qp) {
            Err(failure) if raw::of(qp).is_none() => Err(failure),
            _ => Ok(()),
        }
    }
}

/// ibv_attach_mcast(3). The LID has no meaning on Ethernet.
///
/// # Safety
/// As for [`objects::find`]; `gid` is null or points to one.
pub(crate) unsafe extern "C" fn attach_mcast(
    qp: *mut ibv_qp,
    gid: *const c_void,
    _lid: u16,
) -> c_int {
    fail::status("ibv_attach_mcast", || {
        // SAFETY: the caller's promise.
        unsafe { Ok(find::<ibv_qp_ex>(qp)?.inner.attach_mcast(&group(gid)?)?) }
    })
}

/// ibv_detach_mcast(3).
///
/// # Safety
/// As for [`attach_mcast`].
pub(crate) unsafe extern "C" fn detach_mcast(
    qp: *mut ibv_qp,
    gid: *const c_void,
    _lid: u16,
) -> c_int {
    fail::status("ibv_detach_mcast", || {
        // SAFETY: the caller's promise.
        unsafe { Ok(find::<ibv_qp_ex>(qp)?.inner.detach_mcast(&group(gid)?)?) }
    })
}

/// # Safety
/// `gid` is null or points to one.
unsafe fn group(gid: *const c_void) -> Outcome<soft::Gid> {
    if gid.is_null() {
        return Err(Failure::Null { what: "gid" });
    }
    // SAFETY: the caller's promise.
    Ok(soft::Gid(unsafe { gid.cast::<[u8; 16]>().read_unaligned() }))
}
