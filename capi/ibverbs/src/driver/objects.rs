//! Calls of drivers about contexts, devices, ports, domains, regions, windows, address handles, multicast.
//!
//! All pointers are the driver's: null or to their structures, commands and responses as long as their sizes say.

use std::ffi::{c_int, c_void};

use ironverbs_kernel::command::{self, HEADER, Path, Reregistration, Response};
use ironverbs_kernel::method;

use super::abi::*;
use super::command::{Call, Errno, Extra, driven, ended, handle, is_missing, issue, status};
use crate::abi::*;

/// Runs a call's work.
fn run(work: impl FnOnce() -> Result<(), Errno>) -> c_int {
    status(work())
}

/// `ibv_cmd_get_context`.
pub(crate) unsafe extern "C" fn cmd_get_context(
    context: *mut verbs_context,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        // SAFETY: the driver's promise.
        unsafe {
            let public = &raw mut (*context).context;
            let extra = || Extra::new(cmd, cmd_size, HEADER + 8, resp, resp_size, 8);
            let (mut vectors, mut support) = ([0; 4], [0; 8]);
            let mut call = Call::new(method::GET_CONTEXT);
            call.output(0, &mut vectors);
            call.output(1, &mut support);
            call.extend(extra()?.attributes()?);
            match call.issue(public) {
                Ok(_) => {
                    (*public).num_comp_vectors = c_int::from_ne_bytes(vectors);
                    let device = (*public).device.cast::<verbs_device>();
                    (*device).core_support = u64::from_ne_bytes(support);
                }
                Err(errno) if is_missing(errno) => {
                    let response = issue(public, &command::get_context(), extra()?)?;
                    let response = Response(&response);
                    (*public).async_fd = response.u32(0) as c_int;
                    (*public).num_comp_vectors = response.u32(4) as c_int;
                }
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    })
}

/// `ibv_cmd_query_context`, of an imported one.
pub(crate) unsafe extern "C" fn cmd_query_context(
    context: *mut ibv_context,
    link: *mut ibv_command_buffer,
) -> c_int {
    run(|| {
        let (mut vectors, mut support) = ([0; 4], [0; 8]);
        let mut call = Call::new(method::QUERY_CONTEXT);
        call.output(0, &mut vectors);
        call.output(1, &mut support);
        // SAFETY: the driver's promise.
        unsafe {
            call.link(link);
            call.issue(context)?;
            (*context).num_comp_vectors = c_int::from_ne_bytes(vectors);
            let device = (*context).device.cast::<verbs_device>();
            (*device).core_support = u64::from_ne_bytes(support);
        }
        Ok(())
    })
}

/// Gets the context a descriptor for asynchronous events.
///
/// # Safety
/// `context` is a driver's.
pub(super) unsafe fn alloc_async_fd(context: *mut ibv_context) -> c_int {
    let mut call = Call::new(method::ALLOC_ASYNC);
    let at = call.object(0, 0);
    // SAFETY: the caller's promise.
    unsafe {
        match call.issue(context) {
            Ok(attributes) => {
                (*context).async_fd = handle(&attributes, at) as c_int;
                0
            }
            Err(errno) => errno,
        }
    }
}

/// `ibv_cmd_query_device_any`: the structure as far as the caller has it, from what the kernel tells.
pub(crate) unsafe extern "C" fn cmd_query_device_any(
    context: *mut ibv_context,
    input: *const u32,
    attr: *mut ibv_device_attr_ex,
    attr_size: usize,
    resp: *mut c_void,
    resp_size: *mut usize,
) -> c_int {
    const PLAIN: usize = size_of::<ibv_device_attr>();
    const WHOLE: usize = command::QUERY_DEVICE_EXTENDED_RESPONSE;
    run(|| {
        // SAFETY: the driver's promise.
        unsafe {
            if attr.is_null() || attr_size < PLAIN || (!input.is_null() && *input != 0) {
                return Err(libc::EINVAL);
            }
            let extra = || match resp.is_null() || resp_size.is_null() {
                true => Ok(Extra::NONE),
                false => Extra::new(std::ptr::null(), 0, 0, resp, *resp_size, WHOLE),
            };
            let mut response = Err(libc::EOPNOTSUPP);
            if attr_size > PLAIN {
                response = issue(context, &command::query_device_extended(WHOLE), extra()?);
            }
            let whole = response.is_ok();
            let response = match response {
                Err(libc::EOPNOTSUPP | libc::ENOSYS) => {
                    let mut response = issue(context, &command::query_device(), Extra::NONE)?;
                    response.resize(WHOLE, 0);
                    let length = (command::QUERY_DEVICE_RESPONSE as u32).to_ne_bytes();
                    if let Some(place) = response.get_mut(LENGTH..LENGTH + 4) {
                        place.copy_from_slice(&length);
                    }
                    extra()?.show(&response);
                    response
                }
                other => other?,
            };
            if !resp_size.is_null() && !resp.is_null() {
                *resp_size = Response(&response).u32(LENGTH) as usize;
            }
            let mut out = device_attr(Response(&response), whole);
            let told = (*(*context).device.cast::<verbs_device>()).sysfs;
            out.phys_port_cnt_ex = match (*told).num_ports {
                0 => out.orig_attr.phys_port_cnt.into(),
                ports => ports,
            };
            let n = attr_size.min(size_of::<ibv_device_attr_ex>());
            attr.cast::<u8>().write_bytes(0, attr_size);
            std::ptr::copy_nonoverlapping((&raw const out).cast::<u8>(), attr.cast::<u8>(), n);
        }
        Ok(())
    })
}

/// Where the extended response says how long it is.
const LENGTH: usize = 180;

fn device_attr(r: Response<'_>, whole: bool) -> ibv_device_attr_ex {
    let int = |at| r.u32(at) as c_int;
    // What lies behind the length that the response states is zero.
    let length = r.u32(LENGTH) as usize;
    let there = |end: usize| whole && length >= end;
    let (l, q) = (
        |at, end| if there(end) { r.u32(at) } else { 0 },
        |at, end| {
            if there(end) { r.u64(at) } else { 0 }
        },
    );
    ibv_device_attr_ex {
        orig_attr: ibv_device_attr {
            // A driver's to say.
            fw_ver: [0; 64],
            node_guid: r.u64(8),
            sys_image_guid: r.u64(16),
            max_mr_size: r.u64(24),
            page_size_cap: r.u64(32),
            vendor_id: r.u32(40),
            vendor_part_id: r.u32(44),
            hw_ver: r.u32(48),
            max_qp: int(52),
            max_qp_wr: int(56),
            device_cap_flags: r.u32(60),
            max_sge: int(64),
            max_sge_rd: int(68),
            max_cq: int(72),
            max_cqe: int(76),
            max_mr: int(80),
            max_pd: int(84),
            max_qp_rd_atom: int(88),
            max_ee_rd_atom: int(92),
            max_res_rd_atom: int(96),
            max_qp_init_rd_atom: int(100),
            max_ee_init_rd_atom: int(104),
            atomic_cap: int(108),
            max_ee: int(112),
            max_rdd: int(116),
            max_mw: int(120),
            max_raw_ipv6_qp: int(124),
            max_raw_ethy_qp: int(128),
            max_mcast_grp: int(132),
            max_mcast_qp_attach: int(136),
            max_total_mcast_qp_attach: int(140),
            max_ah: int(144),
            max_fmr: int(148),
            max_map_per_fmr: int(152),
            max_srq: int(156),
            max_srq_wr: int(160),
            max_srq_sge: int(164),
            max_pkeys: r.u16(168),
            local_ca_ack_delay: r.u8(170),
            phys_port_cnt: r.u8(171),
        },
        comp_mask: 0,
        odp_caps: ibv_odp_caps {
            general_caps: q(184, 208),
            per_transport_caps: [l(192, 208), l(196, 208), l(200, 208)],
        },
        completion_timestamp_mask: q(208, 216),
        hca_core_clock: q(216, 224),
        device_cap_flags_ex: q(224, 232),
        tso_caps: [0; 2],
        rss_caps: ibv_rss_caps {
            supported_qpts: l(232, 248),
            max_rwq_indirection_tables: l(236, 248),
            max_rwq_indirection_table_size: l(240, 248),
            ..ibv_rss_caps::default()
        },
        max_wq_type_rq: l(248, 252),
        packet_pacing_caps: [0; 3],
        raw_packet_caps: l(252, 256),
        tm_caps: [l(256, 280), l(260, 280), l(264, 280), l(268, 280), l(272, 280)],
        cq_mod_caps: if there(288) { [r.u16(280), r.u16(282)] } else { [0; 2] },
        max_dm_size: q(288, 296),
        pci_atomic_caps: [0; 3],
        xrc_odp_caps: l(296, 300),
        phys_port_cnt_ex: 0,
    }
}

/// `ibv_cmd_query_port`.
pub(crate) unsafe extern "C" fn cmd_query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    cmd: *mut c_void,
    cmd_size: usize,
) -> c_int {
    run(|| {
        // The newer form has 8 bytes more.
        let mut response = vec![0; command::QUERY_PORT_RESPONSE + 8];
        let mut call = Call::new(method::QUERY_PORT);
        call.u64(0, port.into());
        call.output(1, &mut response);
        // SAFETY: the driver's promise.
        unsafe {
            match call.issue(context) {
                Err(errno) if is_missing(errno) => {
                    let extra = Extra::new(cmd, cmd_size, HEADER + 16, std::ptr::null_mut(), 0, 0)?;
                    response = issue(context, &command::query_port(port), extra)?;
                }
                other => drop(other?),
            }
            let r = Response(&response);
            attr.write(ibv_port_attr {
                state: r.u8(26).into(),
                max_mtu: r.u8(27).into(),
                active_mtu: r.u8(28).into(),
                gid_tbl_len: r.u32(16) as c_int,
                port_cap_flags: r.u32(0),
                max_msg_sz: r.u32(4),
                bad_pkey_cntr: r.u32(8),
                qkey_viol_cntr: r.u32(12),
                pkey_tbl_len: r.u16(20),
                lid: r.u16(22),
                sm_lid: r.u16(24),
                lmc: r.u8(29),
                max_vl_num: r.u8(30),
                sm_sl: r.u8(31),
                subnet_timeout: r.u8(32),
                init_type_reply: r.u8(33),
                active_width: r.u8(34),
                active_speed: r.u8(35),
                phys_state: r.u8(36),
                link_layer: r.u8(37),
                flags: r.u8(38),
                port_cap_flags2: r.u16(40),
            });
        }
        Ok(())
    })
}

/// `ibv_cmd_alloc_pd`.
pub(crate) unsafe extern "C" fn cmd_alloc_pd(
    context: *mut ibv_context,
    pd: *mut ibv_pd,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, HEADER + 8, resp, resp_size, 4)?;
        // SAFETY: the driver's promise.
        unsafe {
            let response = issue(context, &command::alloc_pd(), extra)?;
            (*pd).handle = Response(&response).u32(0);
            (*pd).context = context;
        }
        Ok(())
    })
}

/// `ibv_cmd_dealloc_pd`.
pub(crate) unsafe extern "C" fn cmd_dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the driver's promise.
    run(|| unsafe {
        ended(issue((*pd).context, &command::dealloc_pd((*pd).handle), Extra::NONE)).map(drop)
    })
}

/// `ibv_cmd_reg_mr`.
pub(crate) unsafe extern "C" fn cmd_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
    mr: *mut verbs_mr,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        // The whole address space, which only starts at 0.
        if access as u32 & ACCESS_ON_DEMAND != 0 && length == usize::MAX && !addr.is_null() {
            return Err(libc::EINVAL);
        }
        let extra = Extra::new(cmd, cmd_size, HEADER + 40, resp, resp_size, 12)?;
        // SAFETY: the driver's promise, and its program's about the memory.
        unsafe {
            let context = (*pd).context;
            let wanted =
                command::reg_mr(addr as u64, length as u64, iova, (*pd).handle, access as u32);
            let response = issue(context, &wanted, extra)?;
            let r = Response(&response);
            (*mr).ibv_mr.handle = r.u32(0);
            (*mr).ibv_mr.lkey = r.u32(4);
            (*mr).ibv_mr.rkey = r.u32(8);
            (*mr).ibv_mr.context = context;
            (*mr).mr_type = IBV_MR_TYPE_MR;
            (*mr).access = access;
        }
        Ok(())
    })
}

const REREG_CHANGE_PD: u32 = 1 << 1;

/// `ibv_cmd_rereg_mr`.
pub(crate) unsafe extern "C" fn cmd_rereg_mr(
    mr: *mut verbs_mr,
    flags: u32,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
    pd: *mut ibv_pd,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, HEADER + 48, resp, resp_size, 8)?;
        // SAFETY: the driver's promise, and its program's about the memory.
        unsafe {
            let moves = flags & REREG_CHANGE_PD != 0;
            if moves && pd.is_null() {
                return Err(libc::EINVAL);
            }
            let to = Reregistration {
                flags,
                start: addr as u64,
                length: length as u64,
                iova,
                pd: if moves { (*pd).handle } else { 0 },
                access: access as u32,
            };
            let public = &raw mut (*mr).ibv_mr;
            let response =
                issue((*public).context, &command::rereg_mr((*public).handle, &to), extra)?;
            (*public).lkey = Response(&response).u32(0);
            (*public).rkey = Response(&response).u32(4);
            if moves {
                (*public).context = (*pd).context;
            }
        }
        Ok(())
    })
}

/// `ibv_cmd_dereg_mr`.
pub(crate) unsafe extern "C" fn cmd_dereg_mr(mr: *mut verbs_mr) -> c_int {
    // SAFETY: the driver's promise.
    run(|| unsafe {
        let public = &raw mut (*mr).ibv_mr;
        let command = command::dereg_mr((*public).handle);
        ended(issue((*public).context, &command, Extra::NONE)).map(drop)
    })
}

/// `ibv_cmd_alloc_mw`.
pub(crate) unsafe extern "C" fn cmd_alloc_mw(
    pd: *mut ibv_pd,
    kind: c_int,
    mw: *mut ibv_mw,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, HEADER + 16, resp, resp_size, 8)?;
        // SAFETY: the driver's promise.
        unsafe {
            let context = (*pd).context;
            let response = issue(context, &command::alloc_mw((*pd).handle, kind as u8), extra)?;
            let r = Response(&response);
            let (handle, rkey) = (r.u32(0), r.u32(4));
            (*mw).context = context;
            (*mw).pd = pd;
            (*mw).handle = handle;
            (*mw).rkey = rkey;
            (*mw).type_ = kind;
        }
        Ok(())
    })
}

/// `ibv_cmd_dealloc_mw`.
pub(crate) unsafe extern "C" fn cmd_dealloc_mw(mw: *mut ibv_mw) -> c_int {
    // SAFETY: the driver's promise.
    run(|| unsafe {
        ended(issue((*mw).context, &command::dealloc_mw((*mw).handle), Extra::NONE)).map(drop)
    })
}

/// `ibv_cmd_open_xrcd`.
pub(crate) unsafe extern "C" fn cmd_open_xrcd(
    context: *mut ibv_context,
    xrcd: *mut verbs_xrcd,
    _size: c_int,
    attr: *mut ibv_xrcd_init_attr,
    cmd: *mut c_void,
    cmd_size: usize,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(cmd, cmd_size, HEADER + 16, resp, resp_size, 4)?;
        // SAFETY: the driver's promise.
        unsafe {
            let wanted = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
            match (*attr).comp_mask {
                mask if mask & !wanted != 0 => return Err(libc::EOPNOTSUPP),
                mask if mask != wanted => return Err(libc::EINVAL),
                _ => {}
            }
            let command = command::open_xrcd((*attr).fd, (*attr).oflags);
            let response = issue(context, &command, extra)?;
            (*xrcd).xrcd.context = context;
            (*xrcd).comp_mask = VERBS_XRCD_HANDLE;
            (*xrcd).handle = Response(&response).u32(0);
        }
        Ok(())
    })
}

/// `ibv_cmd_close_xrcd`.
pub(crate) unsafe extern "C" fn cmd_close_xrcd(xrcd: *mut verbs_xrcd) -> c_int {
    // SAFETY: the driver's promise.
    run(|| unsafe {
        let command = command::close_xrcd((*xrcd).handle);
        ended(issue((*xrcd).xrcd.context, &command, Extra::NONE)).map(drop)
    })
}

/// The path of attributes.
pub(super) fn path(attr: &ibv_ah_attr) -> Path {
    Path {
        dgid: attr.grh.dgid,
        flow_label: attr.grh.flow_label,
        sgid_index: attr.grh.sgid_index,
        hop_limit: attr.grh.hop_limit,
        traffic_class: attr.grh.traffic_class,
        dlid: attr.dlid,
        sl: attr.sl,
        src_path_bits: attr.src_path_bits,
        static_rate: attr.static_rate,
        is_global: attr.is_global,
        port_num: attr.port_num,
    }
}

/// The reverse of [`path`].
pub(super) fn ah_attr(path: &Path) -> ibv_ah_attr {
    ibv_ah_attr {
        grh: ibv_global_route {
            dgid: path.dgid,
            _align: [],
            flow_label: path.flow_label,
            sgid_index: path.sgid_index,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
        },
        dlid: path.dlid,
        sl: path.sl,
        src_path_bits: path.src_path_bits,
        static_rate: path.static_rate,
        is_global: path.is_global,
        port_num: path.port_num,
    }
}

/// `ibv_cmd_create_ah`.
pub(crate) unsafe extern "C" fn cmd_create_ah(
    pd: *mut ibv_pd,
    ah: *mut ibv_ah,
    attr: *const ibv_ah_attr,
    resp: *mut c_void,
    resp_size: usize,
) -> c_int {
    run(|| {
        let extra = Extra::new(std::ptr::null(), 0, 0, resp, resp_size, 4)?;
        // SAFETY: the driver's promise.
        unsafe {
            let context = (*pd).context;
            let command = command::create_ah(ah as u64, (*pd).handle, &path(&*attr));
            let response = issue(context, &command, extra)?;
            (*ah).handle = Response(&response).u32(0);
            (*ah).context = context;
        }
        Ok(())
    })
}

/// `ibv_cmd_destroy_ah`.
pub(crate) unsafe extern "C" fn cmd_destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the driver's promise.
    run(|| unsafe {
        ended(issue((*ah).context, &command::destroy_ah((*ah).handle), Extra::NONE)).map(drop)
    })
}

/// `ibv_cmd_attach_mcast`.
pub(crate) unsafe extern "C" fn cmd_attach_mcast(
    qp: *mut ibv_qp,
    gid: *const [u8; 16],
    lid: u16,
) -> c_int {
    // SAFETY: the driver's promise.
    run(|| unsafe {
        let command = command::mcast(true, &*gid, (*qp).handle, lid);
        issue((*qp).context, &command, Extra::NONE).map(drop)
    })
}

/// `ibv_cmd_detach_mcast`.
pub(crate) unsafe extern "C" fn cmd_detach_mcast(
    qp: *mut ibv_qp,
    gid: *const [u8; 16],
    lid: u16,
) -> c_int {
    // SAFETY: the driver's promise.
    run(|| unsafe {
        let command = command::mcast(false, &*gid, (*qp).handle, lid);
        ended(issue((*qp).context, &command, Extra::NONE)).map(drop)
    })
}

/// A completion channel: its descriptor.
///
/// # Safety
/// `context` is a driver's.
pub(super) unsafe fn create_channel(context: *mut ibv_context) -> Result<c_int, Errno> {
    // SAFETY: the caller's promise.
    unsafe {
        driven(context)?;
        let response = issue(context, &command::create_comp_channel(), Extra::NONE)?;
        Ok(Response(&response).u32(0) as c_int)
    }
}
