//! Between the structures of C and the values of the device.

use ironverbs::raw as soft;
use soft::{AhAttr, AttrMask, Gid, MigState, Mtu, QpAttr, QpCap, QpState, QpType, Sge, WrOpcode};

use crate::abi::*;
use crate::fail::{Failure, Outcome};

fn argument(what: &'static str, value: impl Into<u64>) -> Failure {
    Failure::Argument { what, value: value.into() }
}

/// `enum ibv_qp_type`: what this device has; the others by name.
pub(crate) fn qp_type(value: u32) -> Outcome<QpType> {
    match value {
        2 => Ok(QpType::Rc),
        3 => Ok(QpType::Uc),
        4 => Ok(QpType::Ud),
        // `raw` has its own.
        IBV_QPT_RAW_PACKET => Err(Failure::Unsupported { what: "a raw packet queue pair here" }),
        IBV_QPT_XRC_SEND => Ok(QpType::XrcSend),
        IBV_QPT_XRC_RECV => Ok(QpType::XrcRecv),
        IBV_QPT_DRIVER => Err(Failure::Unsupported { what: "a driver's queue pair" }),
        other => Err(argument("qp_type", other)),
    }
}

fn qp_state(what: &'static str, value: u32) -> Outcome<QpState> {
    Ok(match value {
        0 => QpState::Reset,
        1 => QpState::Init,
        2 => QpState::Rtr,
        3 => QpState::Rts,
        4 => QpState::Sqd,
        5 => QpState::Sqe,
        6 => QpState::Err,
        other => return Err(argument(what, other)),
    })
}

/// `enum ibv_wr_opcode`: the operations this device has.
pub(crate) fn wr_opcode(value: u32) -> Outcome<WrOpcode> {
    Ok(match value {
        0 => WrOpcode::Write,
        1 => WrOpcode::WriteWithImm,
        2 => WrOpcode::Send,
        3 => WrOpcode::SendWithImm,
        4 => WrOpcode::Read,
        5 => WrOpcode::CompareSwap,
        6 => WrOpcode::FetchAdd,
        7 => WrOpcode::LocalInv,
        8 => WrOpcode::BindMw,
        9 => WrOpcode::SendWithInv,
        15 => WrOpcode::AtomicWrite,
        other => return Err(argument("opcode", other)),
    })
}

pub(crate) fn cap(cap: &ibv_qp_cap) -> QpCap {
    QpCap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(crate) fn c_cap(cap: &QpCap) -> ibv_qp_cap {
    ibv_qp_cap {
        max_send_wr: cap.max_send_wr,
        max_recv_wr: cap.max_recv_wr,
        max_send_sge: cap.max_send_sge,
        max_recv_sge: cap.max_recv_sge,
        max_inline_data: cap.max_inline_data,
    }
}

pub(crate) fn ah_attr(attr: &ibv_ah_attr) -> AhAttr {
    AhAttr {
        dgid: Gid(attr.grh.dgid),
        flow_label: attr.grh.flow_label,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global != 0,
        port_num: attr.port_num,
    }
}

pub(crate) fn c_ah_attr(attr: &AhAttr) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: attr.dgid.0,
            flow_label: attr.flow_label,
            sgid_index: attr.sgid_index,
            hop_limit: attr.hop_limit,
            traffic_class: attr.traffic_class,
            ..Default::default()
        },
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global.into(),
        port_num: attr.port_num,
    }
}

/// The attributes that `mask` names; the other fields may hold anything and are not looked at.
pub(crate) fn qp_attr(attr: &ibv_qp_attr, mask: AttrMask) -> Outcome<QpAttr> {
    let mut out = QpAttr::default();
    if mask.contains(AttrMask::STATE) {
        out.state = qp_state("qp_state", attr.qp_state)?;
    }
    if mask.contains(AttrMask::CUR_STATE) {
        out.cur_state = qp_state("cur_qp_state", attr.cur_qp_state)?;
    }
    if mask.contains(AttrMask::PATH_MTU) {
        let code = u8::try_from(attr.path_mtu).ok();
        out.path_mtu = code
            .and_then(|code| Mtu::try_from(code).ok())
            .ok_or(argument("path_mtu", attr.path_mtu))?;
    }
    if mask.contains(AttrMask::PATH_MIG_STATE) {
        out.path_mig_state = match attr.path_mig_state {
            0 => MigState::Migrated,
            1 => MigState::Rearm,
            2 => MigState::Armed,
            other => return Err(argument("path_mig_state", other)),
        };
    }
    if mask.contains(AttrMask::AV) {
        out.ah = ah_attr(&attr.ah_attr);
    }
    if mask.contains(AttrMask::ALT_PATH) {
        out.alt_ah = ah_attr(&attr.alt_ah_attr);
        out.alt_pkey_index = attr.alt_pkey_index;
        out.alt_port_num = attr.alt_port_num;
        out.alt_timeout = attr.alt_timeout;
    }
    if mask.contains(AttrMask::ACCESS_FLAGS) {
        // What is not a right of a QP has no meaning here and is ignored, as the kernel does.
        out.access = soft::Access::from_bits_truncate(attr.qp_access_flags);
    }
    if mask.contains(AttrMask::CAP) {
        out.cap = cap(&attr.cap);
    }
    if mask.contains(AttrMask::RATE_LIMIT) {
        out.rate_limit = attr.rate_limit;
    }
    out.qkey = attr.qkey;
    out.rq_psn = attr.rq_psn;
    out.sq_psn = attr.sq_psn;
    out.dest_qpn = attr.dest_qp_num;
    out.pkey_index = attr.pkey_index;
    out.en_sqd_async_notify = attr.en_sqd_async_notify != 0;
    out.max_rd_atomic = attr.max_rd_atomic;
    out.max_dest_rd_atomic = attr.max_dest_rd_atomic;
    out.min_rnr_timer = attr.min_rnr_timer;
    out.port_num = attr.port_num;
    out.timeout = attr.timeout;
    out.retry_cnt = attr.retry_cnt;
    out.rnr_retry = attr.rnr_retry;
    Ok(out)
}

pub(crate) fn c_qp_attr(attr: &QpAttr) -> ibv_qp_attr {
    ibv_qp_attr {
        qp_state: attr.state as u32,
        cur_qp_state: attr.cur_state as u32,
        path_mtu: attr.path_mtu as u32,
        path_mig_state: attr.path_mig_state as u32,
        qkey: attr.qkey,
        rq_psn: attr.rq_psn,
        sq_psn: attr.sq_psn,
        dest_qp_num: attr.dest_qpn,
        qp_access_flags: attr.access.bits(),
        cap: c_cap(&attr.cap),
        ah_attr: c_ah_attr(&attr.ah),
        alt_ah_attr: c_ah_attr(&attr.alt_ah),
        pkey_index: attr.pkey_index,
        alt_pkey_index: attr.alt_pkey_index,
        en_sqd_async_notify: attr.en_sqd_async_notify.into(),
        sq_draining: attr.sq_draining.into(),
        max_rd_atomic: attr.max_rd_atomic,
        max_dest_rd_atomic: attr.max_dest_rd_atomic,
        min_rnr_timer: attr.min_rnr_timer,
        port_num: attr.port_num,
        timeout: attr.timeout,
        retry_cnt: attr.retry_cnt,
        rnr_retry: attr.rnr_retry,
        alt_port_num: attr.alt_port_num,
        alt_timeout: attr.alt_timeout,
        rate_limit: attr.rate_limit,
    }
}

#[inline]
pub(crate) fn sge(sge: &ibv_sge) -> Sge {
    Sge { addr: sge.addr, len: sge.length, lkey: sge.lkey }
}

#[inline]
pub(crate) fn c_wc(wc: &soft::Wc) -> ibv_wc {
    let invalidated = wc.flags.contains(soft::WcFlags::WITH_INV);
    ibv_wc {
        wr_id: wc.wr_id,
        status: wc.status as u32,
        opcode: wc.opcode as u32,
        vendor_err: wc.vendor_err,
        byte_len: wc.byte_len,
        imm_data: if invalidated { wc.invalidated_rkey } else { u32::from_ne_bytes(wc.imm) },
        qp_num: wc.qpn,
        src_qp: wc.src_qpn,
        wc_flags: wc.flags.bits(),
        pkey_index: wc.pkey_index,
        slid: wc.slid,
        sl: wc.sl,
        dlid_path_bits: wc.dlid_path_bits,
    }
}
