//! Queries of devices and ports.

use std::ffi::{c_char, c_int, c_void};
use std::{mem, ptr};

use ironverbs::raw as soft;

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::objects;

/// Runs `get` on the device's context.
///
/// # Safety
/// As for [`objects::find`].
unsafe fn with<T>(
    context: *const ibv_context,
    get: impl FnOnce(&soft::Context) -> Outcome<T>,
) -> Outcome<T> {
    // SAFETY: the caller's promise.
    let found = unsafe { objects::context(context)? };
    get(&found.context)
}

fn not_null<T>(pointer: *mut T, what: &'static str) -> Outcome<*mut T> {
    if pointer.is_null() { Err(Failure::Null { what }) } else { Ok(pointer) }
}

fn int(value: u32) -> c_int {
    c_int::try_from(value).unwrap_or(c_int::MAX)
}

fn device_attr(attr: &soft::DeviceAttr) -> ibv_device_attr {
    let mut fw_ver: [c_char; 64] = [0; 64];
    for (to, from) in fw_ver.iter_mut().zip(attr.fw_ver.bytes().take(63)) {
        *to = from as c_char;
    }
    ibv_device_attr {
        fw_ver,
        node_guid: attr.node_guid.to_be(),
        sys_image_guid: attr.sys_image_guid.to_be(),
        max_mr_size: attr.max_mr_size,
        page_size_cap: attr.page_size_cap,
        vendor_id: attr.vendor_id,
        vendor_part_id: attr.vendor_part_id,
        hw_ver: attr.hw_ver,
        max_qp: int(attr.max_qp),
        max_qp_wr: int(attr.max_qp_wr),
        device_cap_flags: attr.device_cap_flags,
        max_sge: int(attr.max_sge),
        max_sge_rd: int(attr.max_sge_rd),
        max_cq: int(attr.max_cq),
        max_cqe: int(attr.max_cqe),
        max_mr: int(attr.max_mr),
        max_pd: int(attr.max_pd),
        max_qp_rd_atom: int(attr.max_qp_rd_atom),
        max_ee_rd_atom: 0,
        max_res_rd_atom: int(attr.max_res_rd_atom),
        max_qp_init_rd_atom: int(attr.max_qp_init_rd_atom),
        max_ee_init_rd_atom: 0,
        atomic_cap: int(attr.atomic_cap),
        max_ee: 0,
        max_rdd: 0,
        max_mw: int(attr.max_mw),
        max_raw_ipv6_qp: 0,
        max_raw_ethy_qp: int(attr.max_raw_qp),
        max_mcast_grp: int(attr.max_mcast_grp),
        max_mcast_qp_attach: int(attr.max_mcast_qp_attach),
        max_total_mcast_qp_attach: int(attr.max_total_mcast_qp_attach),
        max_ah: int(attr.max_ah),
        max_fmr: 0,
        max_map_per_fmr: 0,
        max_srq: int(attr.max_srq),
        max_srq_wr: int(attr.max_srq_wr),
        max_srq_sge: int(attr.max_srq_sge),
        max_pkeys: attr.max_pkeys,
        local_ca_ack_delay: attr.local_ca_ack_delay,
        phys_port_cnt: attr.phys_port_cnt,
    }
}

/// ibv_query_device(3).
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or has room for the structure.
pub(crate) unsafe extern "C" fn query_device(
    context: *mut ibv_context,
    attr: *mut ibv_device_attr,
) -> c_int {
    fail::status("ibv_query_device", || {
        let attr = not_null(attr, "device_attr")?;
        // SAFETY: the caller's promise.
        unsafe { attr.write(with(context, |c| Ok(device_attr(&c.attr())))?) };
        Ok(())
    })
}

/// ibv_query_device_ex(3): as much of the structure as the caller's version of it has.
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or has room for `size` bytes.
pub(crate) unsafe extern "C" fn query_device_ex(
    context: *mut ibv_context,
    _input: *const c_void,
    attr: *mut ibv_device_attr_ex,
    size: usize,
) -> c_int {
    fail::status("ibv_query_device_ex", || {
        let attr = not_null(attr, "attr")?;
        if size < size_of::<ibv_device_attr>() {
            return Err(Failure::Argument { what: "attr_size", value: size as u64 });
        }
        // SAFETY: the caller's promise.
        let plain = unsafe { with(context, |c| Ok(c.attr()))? };
        let raw = plain.max_raw_qp > 0;
        let whole = ibv_device_attr_ex {
            orig_attr: device_attr(&plain),
            comp_mask: 0,
            odp_caps: ibv_odp_caps {
                general_caps: IBV_ODP_SUPPORT | IBV_ODP_SUPPORT_IMPLICIT,
                per_transport_caps: [ODP_RC, ODP_UC, ODP_UD],
            },
            completion_timestamp_mask: u64::MAX,
            hca_core_clock: CLOCK_KHZ,
            device_cap_flags_ex: u64::from(plain.device_cap_flags) | DEVICE_ATOMIC_WRITE,
            tso_caps: [0; 2],
            rss_caps: ibv_rss_caps {
                supported_qpts: if raw { 1 << IBV_QPT_RAW_PACKET } else { 0 },
                max_rwq_indirection_tables: plain.max_rwq_tables,
                max_rwq_indirection_table_size: plain.max_rwq_table_size,
                rx_hash_fields_mask: if raw { soft::raw::hash_fields::ALL } else { 0 },
                rx_hash_function: if raw { IBV_RX_HASH_FUNC_TOEPLITZ } else { 0 },
            },
            max_wq_type_rq: plain.max_wq,
            packet_pacing_caps: [0; 3],
            raw_packet_caps: if raw { IBV_RAW_PACKET_CAP_IP_CSUM } else { 0 },
            tm_caps: [0; 5],
            cq_mod_caps: [u16::MAX; 2],
            max_dm_size: plain.max_dm_size,
            pci_atomic_caps: [0; 3],
            xrc_odp_caps: ODP_RC,
            phys_port_cnt_ex: plain.phys_port_cnt.into(),
        };
        // SAFETY: the caller's promise.
        unsafe { put(attr.cast(), size, &whole) };
        Ok(())
    })
}

/// Nothing is pinned, so that every operation works on memory that comes on demand: SEND, RECV, WRITE, READ, ATOMIC,
/// SRQ_RECV, as far as the service has them.
const ODP_RC: u32 = 0x3f;
const ODP_UC: u32 = 0x07;
const ODP_UD: u32 = 0x23;

/// Time stamps count nanoseconds.
const CLOCK_KHZ: u64 = 1_000_000;

/// ibv_query_rt_values_ex(3): the clock that raw time stamps are of.
///
/// # Safety
/// As for [`objects::find`]; `values` is null or points to the structure.
pub(crate) unsafe extern "C" fn query_rt_values(
    context: *mut ibv_context,
    values: *mut ibv_values_ex,
) -> c_int {
    fail::status("ibv_query_rt_values_ex", || {
        let values = not_null(values, "values")?;
        // SAFETY: the caller's promise.
        unsafe {
            objects::context(context)?;
            if (*values).comp_mask & !IBV_VALUES_MASK_RAW_CLOCK != 0 {
                let value = (*values).comp_mask.into();
                return Err(Failure::Argument { what: "comp_mask", value });
            }
            libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut (*values).raw_clock);
            (*values).comp_mask = IBV_VALUES_MASK_RAW_CLOCK;
        }
        Ok(())
    })
}

/// Copies as much of `value` as fits, and zeroes what the caller's structure has beyond it.
///
/// # Safety
/// `to` has room for `size` bytes.
unsafe fn put<T: Copy>(to: *mut u8, size: usize, value: &T) {
    let n = size.min(size_of::<T>());
    // SAFETY: `n` is within both; padding is copied as the bytes that it is.
    unsafe {
        ptr::copy_nonoverlapping(ptr::from_ref(value).cast::<u8>(), to, n);
        ptr::write_bytes(to.add(n), 0, size - n);
    }
}

fn port_attr(attr: &soft::PortAttr) -> ibv_port_attr {
    ibv_port_attr {
        state: attr.state as u32,
        max_mtu: attr.max_mtu as u32,
        active_mtu: attr.active_mtu as u32,
        gid_tbl_len: int(attr.gid_tbl_len),
        port_cap_flags: attr.port_cap_flags,
        max_msg_sz: attr.max_msg_sz,
        bad_pkey_cntr: attr.bad_pkey_cntr,
        qkey_viol_cntr: attr.qkey_viol_cntr,
        pkey_tbl_len: attr.pkey_tbl_len,
        lid: attr.lid,
        sm_lid: attr.sm_lid,
        lmc: attr.lmc,
        max_vl_num: attr.max_vl_num,
        sm_sl: attr.sm_sl,
        subnet_timeout: attr.subnet_timeout,
        init_type_reply: attr.init_type_reply,
        active_width: attr.active_width,
        active_speed: attr.active_speed as u8,
        phys_state: attr.phys_state,
        link_layer: attr.link_layer as u8,
        flags: attr.flags,
        port_cap_flags2: attr.port_cap_flags2,
    }
}

/// The exported ibv_query_port, for programs built against headers before version 25: their
/// structure ends with `flags`.
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or has room for the fields up to `flags`.
pub(crate) unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    let size = mem::offset_of!(ibv_port_attr, flags) + 1;
    // SAFETY: the caller's promise.
    unsafe { query_port_ex(context, port, attr, size) }
}

/// ibv_query_port(3) as the header's inline function calls it.
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or has room for `size` bytes.
pub(crate) unsafe extern "C" fn query_port_ex(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
    size: usize,
) -> c_int {
    fail::status("ibv_query_port", || {
        let attr = not_null(attr, "port_attr")?;
        // SAFETY: the caller's promise.
        unsafe {
            let whole = with(context, |c| {
                // Programs that ask the administrator by themselves go by `sm_lid`.
                c.await_subnet_manager();
                Ok(port_attr(&c.port(port)?))
            })?;
            put(attr.cast(), size, &whole);
        }
        Ok(())
    })
}

fn gid_entry(entry: &soft::GidEntry) -> ibv_gid_entry {
    ibv_gid_entry {
        gid: entry.gid.0,
        gid_index: entry.index,
        port_num: entry.port.into(),
        gid_type: entry.kind as u32,
        ndev_ifindex: entry.ifindex,
    }
}

/// One entry; ENODATA when it is empty.
fn gid(context: &soft::Context, port: u32, index: u32) -> Outcome<ibv_gid_entry> {
    let number = u8::try_from(port)
        .map_err(|_| Failure::Argument { what: "port_num", value: port.into() })?;
    let length = context.port(number)?.gid_tbl_len;
    match context.gid(number, index) {
        Ok(entry) => Ok(gid_entry(&entry)),
        Err(_) if index < length => {
            Err(Failure::NoEntry { what: "GID table entry", index: index.into() })
        }
        Err(error) => Err(error.into()),
    }
}

/// ibv_query_gid(3): an empty entry reads as zeros.
///
/// # Safety
/// As for [`objects::find`]; `out` is null or has room for a GID.
pub(crate) unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut [u8; 16],
) -> c_int {
    fail::number("ibv_query_gid", || {
        let out = not_null(out, "gid")?;
        let index = u32::try_from(index)
            .map_err(|_| Failure::Argument { what: "GID index", value: index as u64 })?;
        // SAFETY: the caller's promise.
        let entry = unsafe { with(context, |c| gid(c, port.into(), index)) };
        let bytes = match entry {
            Ok(entry) => entry.gid,
            Err(Failure::NoEntry { .. }) => [0; 16],
            Err(failure) => return Err(failure),
        };
        // SAFETY: the caller's promise.
        unsafe { out.write_unaligned(bytes) };
        Ok(0)
    })
}

/// ibv_query_gid_ex(3).
///
/// # Safety
/// As for [`objects::find`]; `out` is null or has room for `size` bytes.
pub(crate) unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port: u32,
    index: u32,
    out: *mut ibv_gid_entry,
    flags: u32,
    size: usize,
) -> c_int {
    fail::status("ibv_query_gid_ex", || {
        let out = not_null(out, "entry")?;
        no_flags(flags)?;
        // SAFETY: the caller's promise.
        unsafe { put(out.cast(), size, &with(context, |c| gid(c, port, index))?) };
        Ok(())
    })
}

fn no_flags(flags: u32) -> Outcome<()> {
    match flags {
        0 => Ok(()),
        _ => Err(Failure::Unsupported { what: "a flag" }),
    }
}

/// ibv_query_gid_table(3): the number of entries, or a negative value of errno.
///
/// # Safety
/// As for [`objects::find`]; `entries` has room for `max` entries of `size` bytes.
pub(crate) unsafe extern "C" fn query_gid_table(
    context: *mut ibv_context,
    entries: *mut u8,
    max: usize,
    flags: u32,
    size: usize,
) -> isize {
    let count = fail::returned("ibv_query_gid_table", || {
        no_flags(flags)?;
        if size == 0 {
            return Err(Failure::Argument { what: "entry_size", value: 0 });
        }
        // SAFETY: the caller's promise.
        let table = unsafe {
            with(context, |c| {
                let ports = 1..=c.attr().phys_port_cnt;
                Ok(ports.flat_map(|port| c.gid_table(port)).collect::<Vec<_>>())
            })?
        };
        if table.len() > max || (entries.is_null() && !table.is_empty()) {
            return Err(Failure::Argument { what: "max_entries", value: max as u64 });
        }
        for (i, entry) in table.iter().enumerate() {
            // SAFETY: the caller's promise, and `i` is below `max`.
            unsafe { put(entries.add(i * size), size, &gid_entry(entry)) };
        }
        Ok(table.len() as isize)
    });
    count.unwrap_or_else(|errno| -(errno as isize))
}

/// ibv_query_gid_type of the private interface: what the kernel's sysfs says of the entry.
///
/// # Safety
/// As for [`objects::find`]; `out` is null or points to an int.
pub(crate) unsafe extern "C" fn query_gid_type(
    context: *mut ibv_context,
    port: u8,
    index: u32,
    out: *mut u32,
) -> c_int {
    fail::number("ibv_query_gid_type", || {
        let out = not_null(out, "type")?;
        // SAFETY: the caller's promise.
        unsafe {
            let entry = with(context, |c| gid(c, port.into(), index))?;
            let is_v2 = entry.gid_type == IBV_GID_TYPE_ROCE_V2;
            *out = if is_v2 { GID_TYPE_SYSFS_ROCE_V2 } else { 0 };
        }
        Ok(0)
    })
}

/// ibv_query_pkey(3), in network order.
///
/// # Safety
/// As for [`objects::find`]; `out` is null or has room for a P_Key.
pub(crate) unsafe extern "C" fn query_pkey(
    context: *mut ibv_context,
    port: u8,
    index: c_int,
    out: *mut u16,
) -> c_int {
    fail::number("ibv_query_pkey", || {
        let out = not_null(out, "pkey")?;
        let index = u32::try_from(index)
            .map_err(|_| Failure::Argument { what: "P_Key index", value: index as u64 })?;
        // SAFETY: the caller's promise.
        unsafe { *out = with(context, |c| Ok(c.pkey(port, index)?))?.to_be() };
        Ok(0)
    })
}

/// ibv_get_pkey_index(3): the index, or -1.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn get_pkey_index(
    context: *mut ibv_context,
    port: u8,
    pkey: u16,
) -> c_int {
    fail::number("ibv_get_pkey_index", || {
        // SAFETY: the caller's promise.
        unsafe {
            with(context, |c| {
                let length = u32::from(c.port(port)?.pkey_tbl_len);
                (0..length)
                    .find(|&index| c.pkey(port, index).is_ok_and(|key| key.to_be() == pkey))
                    .map(int)
                    .ok_or(Failure::Argument { what: "pkey", value: u16::from_be(pkey).into() })
            })
        }
    })
}
