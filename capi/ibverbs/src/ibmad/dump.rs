//! The functions that print one kind of value, and those that print all fields of an attribute.

use std::ffi::{c_char, c_int, c_void};

use super::fields::dump;
use super::text::{Kind, print};

macro_rules! values {
    ($($name:ident: $kind:ident,)*) => {$(
        /// # Safety
        /// As [`print`].
        pub(crate) unsafe extern "C" fn $name(
            buf: *mut c_char,
            size: c_int,
            value: *mut c_void,
            bytes: c_int,
        ) {
            // SAFETY: the caller's promise.
            unsafe { print(Kind::$kind, buf, size, value, bytes) };
        }
    )*};
}

values! {
    mad_dump_array: Array,
    mad_dump_bitfield: Bitfield,
    mad_dump_hex: Hex,
    mad_dump_int: Int,
    mad_dump_linkdowndefstate: LinkDownDefState,
    mad_dump_linkspeed: LinkSpeed,
    mad_dump_linkspeeden: LinkSpeedSup,
    mad_dump_linkspeedext: LinkSpeedExt,
    mad_dump_linkspeedexten: LinkSpeedExtEn,
    mad_dump_linkspeedextsup: LinkSpeedExtSup,
    mad_dump_linkspeedsup: LinkSpeedSup,
    mad_dump_linkwidth: LinkWidth,
    mad_dump_linkwidthen: LinkWidthEn,
    mad_dump_linkwidthsup: LinkWidthSup,
    mad_dump_mtu: Mtu,
    mad_dump_node_type: NodeType,
    mad_dump_nodedesc: NodeDesc,
    mad_dump_opervls: OperVls,
    mad_dump_physportstate: PhysPortState,
    mad_dump_portcapmask: PortCapMask,
    mad_dump_portcapmask2: PortCapMask2,
    mad_dump_portstate: PortState,
    mad_dump_rhex: Rhex,
    mad_dump_sltovl: SlToVl,
    mad_dump_string: Text,
    mad_dump_uint: Uint,
    mad_dump_vlarbitration: VlArbitration,
    mad_dump_vlcap: VlCap,
}

macro_rules! attributes {
    ($($name:ident: $first:expr $(, $more:expr)*;)*) => {$(
        /// # Safety
        /// As [`dump`].
        pub(crate) unsafe extern "C" fn $name(
            buf: *mut c_char,
            size: c_int,
            value: *mut c_void,
            _bytes: c_int,
        ) {
            let numbers = ($first)$(.chain($more))*;
            // SAFETY: the caller's promise.
            unsafe { dump(buf, size, value, numbers) };
        }
    )*};
}

/// PortSelect and CounterSelect, which stand before optional counters.
const SELECT: std::ops::RangeInclusive<u32> = 121..=122;

// Numbers of fields (enum MAD_FIELDS of <infiniband/mad.h>).
attributes! {
    mad_dump_cc_cacongestionentry: 571..=574;
    mad_dump_cc_cacongestionsetting: 568..=569;
    mad_dump_cc_congestioncontroltable: 576..=576;
    mad_dump_cc_congestioncontroltableentry: 578..=579;
    mad_dump_cc_congestioninfo: 521..=522;
    mad_dump_cc_congestionkeyinfo: 524..=527;
    mad_dump_cc_congestionlog: 529..=530;
    mad_dump_cc_congestionlogca: 541..=543;
    mad_dump_cc_congestionlogentryca: 545..=551;
    mad_dump_cc_congestionlogentryswitch: 536..=539;
    mad_dump_cc_congestionlogswitch: 532..=534;
    mad_dump_cc_switchcongestionsetting: 553..=560;
    mad_dump_cc_switchportcongestionsettingelement: 562..=566;
    mad_dump_cc_timestamp: 581..=581;
    mad_dump_classportinfo: 206..=227;
    mad_dump_mlnx_ext_port_info: 515..=518;
    mad_dump_nodeinfo: 75..=86;
    mad_dump_perfcounters: 121..=134, 659..=659, 135..=140;
    mad_dump_perfcounters_ext: 194..=203, 643..=657;
    mad_dump_perfcounters_port_flow_ctl_counters: SELECT, 372..=373;
    mad_dump_perfcounters_port_op_rcv_counters: SELECT, 369..=370;
    mad_dump_perfcounters_port_vl_op_data: SELECT, 392..=407;
    mad_dump_perfcounters_port_vl_op_packet: SELECT, 375..=390;
    mad_dump_perfcounters_port_vl_xmit_flow_ctl_update_errors: SELECT, 409..=424;
    mad_dump_perfcounters_port_vl_xmit_wait_counters: SELECT, 426..=441;
    mad_dump_perfcounters_rcv_con_ctrl: SELECT, 460..=461;
    mad_dump_perfcounters_rcv_err: SELECT, 267..=272;
    mad_dump_perfcounters_rcv_sl: SELECT, 245..=260;
    mad_dump_perfcounters_sl_rcv_becn: SELECT, 480..=495;
    mad_dump_perfcounters_sl_rcv_fecn: SELECT, 463..=478;
    mad_dump_perfcounters_sw_port_vl_congestion: SELECT, 443..=458;
    mad_dump_perfcounters_vl_xmit_time_cong: SELECT, 499..=513;
    mad_dump_perfcounters_xmit_con_ctrl: SELECT, 497..=497;
    mad_dump_perfcounters_xmt_disc: SELECT, 262..=265;
    mad_dump_perfcounters_xmt_sl: SELECT, 228..=243;
    mad_dump_port_ext_speeds_counters: 328..=367;
    mad_dump_port_ext_speeds_counters_rsfec_active: 623..=641;
    mad_dump_portinfo: 27..=73, 323..=326;
    mad_dump_portinfo_ext: 616..=621, 660..=661, 663..=664;
    mad_dump_portsamples_control: 274..=303;
    mad_dump_portsamples_result: 598..=614;
    mad_dump_portstates: 39..=40;
    mad_dump_switchinfo: 88..=105;
}
