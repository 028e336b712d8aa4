//! Raw packet queue pairs. What programs call is in `qp`, `post` and `qp_ex`; it comes here when the queue pair is one of
//! these.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ironverbs::raw as soft;
use soft::raw::{RawInit, RawQp, RxHash};
use soft::{AttrMask, SendFlags, SendWr, WrOpcode};

use crate::abi::*;
use crate::convert;
use crate::fail::{Failure, Outcome};
use crate::objects::{self, QpExtra, View, find};
use crate::pool::Object;
use crate::{post, qp_ex};

/// Makes one.
///
/// # Safety
/// As for [`objects::find`], for the PD and every object in `init`.
pub(crate) unsafe fn create(
    pd: *mut ibv_pd,
    init: &mut ibv_qp_init_attr,
    ops: Option<u64>,
) -> Outcome<*mut ibv_qp> {
    if ops.is_some_and(|ops| ops & !IBV_QP_EX_WITH_SEND != 0) {
        return Err(Failure::Unsupported { what: "one of the send operations asked for" });
    }
    // SAFETY: the caller's promise.
    let (found, asked) = unsafe {
        let srq = match init.srq.is_null() {
            true => None,
            false => Some(find::<ibv_srq>(init.srq)?.inner.clone()),
        };
        let cq = |cq| Ok::<_, Failure>(find::<ibv_cq_ex>(cq)?.inner.clone());
        let asked = RawInit {
            send_cq: cq(init.send_cq)?,
            recv_cq: cq(init.recv_cq)?,
            srq,
            cap: convert::cap(&init.cap),
            sq_sig_all: init.sq_sig_all != 0,
        };
        (find::<ibv_pd>(pd)?, asked)
    };
    let qp = RawQp::new(&found.inner, &asked)?;
    let extra = if ops.is_some() { qp_ex::with_batch() } else { QpExtra::default() };
    let view = View { inner: qp, context: found.context, unacknowledged: AtomicU32::new(0), extra };
    let made = present(pd, init, view, ops)?;
    // SAFETY: it was just made.
    init.cap = convert::c_cap(&unsafe { find::<raw_qp>(made)? }.inner.cap());
    Ok(made)
}

/// Makes one that spreads what it receives over a table of work queues.
///
/// # Safety
/// As for [`objects::find`], for every object in `attr`; the key in it has the length that it says.
pub(crate) unsafe fn create_spread(attr: &mut ibv_qp_init_attr_ex) -> Outcome<*mut ibv_qp> {
    let both = IBV_QP_INIT_ATTR_RX_HASH | IBV_QP_INIT_ATTR_IND_TABLE;
    if attr.comp_mask & both != both {
        return Err(Failure::Argument { what: "comp_mask", value: attr.comp_mask.into() });
    }
    if attr.qp_type != IBV_QPT_RAW_PACKET {
        return Err(Failure::Unsupported { what: "work queues of a queue pair of this type" });
    }
    let conf = &attr.rx_hash_conf;
    if conf.rx_hash_function != IBV_RX_HASH_FUNC_TOEPLITZ {
        return Err(Failure::Unsupported { what: "the hash function" });
    }
    if conf.rx_hash_key.is_null() {
        return Err(Failure::Null { what: "rx_hash_key" });
    }
    // SAFETY: the caller's promise.
    let key = unsafe { std::slice::from_raw_parts(conf.rx_hash_key, conf.rx_hash_key_len.into()) };
    let hash = RxHash::new(key, conf.rx_hash_fields_mask)?;
    // SAFETY: the caller's promise.
    let (found, table) =
        unsafe { (find::<ibv_pd>(attr.pd)?, find::<ibv_rwq_ind_table>(attr.rwq_ind_tbl.cast())?) };
    let qp = RawQp::spread(&found.inner, &table.inner, hash)?;
    let init = ibv_qp_init_attr {
        qp_context: attr.qp_context,
        send_cq: std::ptr::null_mut(),
        recv_cq: std::ptr::null_mut(),
        srq: std::ptr::null_mut(),
        cap: ibv_qp_cap::default(),
        qp_type: attr.qp_type,
        sq_sig_all: 0,
    };
    let view = View {
        inner: qp,
        context: found.context,
        unacknowledged: AtomicU32::new(0),
        extra: QpExtra::default(),
    };
    present(attr.pd, &init, view, None)
}

fn present(
    pd: *mut ibv_pd,
    init: &ibv_qp_init_attr,
    view: View<RawQp, QpExtra>,
    ops: Option<u64>,
) -> Outcome<*mut ibv_qp> {
    let (qp, id) = (view.inner.clone(), view.context);
    let object = raw_qp::pool().insert(view, |object, handle| {
        // SAFETY: nobody else sees the place yet; it starts zeroed.
        let ex = unsafe { &mut (*object).ex };
        let base = &mut ex.qp_base;
        (base.context, base.qp_context, base.pd) = (id.pointer(), init.qp_context, pd);
        (base.send_cq, base.recv_cq, base.srq) = (init.send_cq, init.recv_cq, init.srq);
        (base.handle, base.qp_num, base.qp_type) = (handle, qp.qpn(), init.qp_type);
        base.state = soft::QpState::Reset as u32;
        if let Some(ops) = ops {
            // SAFETY: as above.
            unsafe { qp_ex::install_raw(ex, ops) };
        }
    })?;
    qp.set_cookie(object.as_ptr().expose_provenance());
    Ok(object.as_ptr())
}

/// See `qp::modify_qp`.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe fn modify(qp: *mut ibv_qp, attr: &ibv_qp_attr, mask: AttrMask) -> Outcome<()> {
    // SAFETY: the caller's promise.
    let found = unsafe { find::<raw_qp>(qp)? };
    let wanted = convert::qp_attr(attr, mask)?;
    found.inner.modify(&wanted, mask)?;
    if mask.contains(AttrMask::STATE) {
        // SAFETY: the place is alive; the field is ours to write.
        unsafe { (&raw mut (*found.object()).ex.qp_base.state).write(wanted.state as u32) };
    }
    Ok(())
}

/// See `qp::query_qp`: attributes, capabilities, and whether all sends are signaled.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe fn query(qp: *mut ibv_qp) -> Outcome<(soft::QpAttr, soft::QpCap, bool)> {
    // SAFETY: the caller's promise.
    let found = unsafe { find::<raw_qp>(qp)? };
    let now = found.inner.query();
    // SAFETY: the place is alive; the field is ours to write.
    unsafe { (&raw mut (*found.object()).ex.qp_base.state).write(now.state as u32) };
    Ok((now, found.inner.cap(), found.inner.sq_sig_all()))
}

/// See `qp::destroy_qp`.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe fn end(qp: *mut ibv_qp) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe { objects::destroy::<raw_qp, _, _>(qp, |qp: &RawQp| qp.destroy()) }
}

/// See `post::post_send`.
///
/// # Safety
/// As for [`post::post_send`].
#[cold]
pub(crate) unsafe fn post_send(
    qp: &Arc<RawQp>,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> Outcome<()> {
    let mut batch = qp.post_batch();
    let one = |wr: &ibv_send_wr| {
        let opcode = convert::wr_opcode(wr.opcode)?;
        let request = request(wr.wr_id, opcode, wr.send_flags);
        // SAFETY: the caller's promise.
        unsafe {
            let list = post::elements(wr.sg_list, wr.num_sge)?;
            post::with_payload(&request, list, |data| batch.push(&request, data))
        }
    };
    // SAFETY: the caller's promise.
    unsafe { post::each(wr, bad, |wr| wr.next, one) }
}

/// A request that sends a frame.
fn request(wr_id: u64, opcode: WrOpcode, flags: u32) -> SendWr {
    SendWr::new(wr_id, opcode, SendFlags::from_bits_truncate(flags))
}

/// See `post::post_recv`.
///
/// # Safety
/// As for [`post::post_recv`].
#[cold]
pub(crate) unsafe fn post_recv(
    qp: &Arc<RawQp>,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> Outcome<()> {
    // SAFETY: the caller's promise.
    unsafe { post::receives(wr, bad, |wr_id, sges| qp.post_recv(wr_id, sges)) }
}
