//! Management datagrams: those the kernel sent, and any.

use std::collections::BTreeMap;

use ironverbs_wire::mad::cm::{
    ApStatus, Apr, CmError, Destination, Drep, Dreq, Ece, IpHeader, IpHeaderError, Lap, Message,
    Mra, PortSpace, Rej, RejReason, Rep, Req, ReqPath, Responded, Rtu, ServiceId, SidrRep, SidrReq,
    SidrStatus, Transport, destination,
};
use ironverbs_wire::mad::{self, GSI_QKEY, GmpError, MAD_LEN, Mad, MadHeader};
use ironverbs_wire::{Deth, Gid, Packet};
use proptest::prelude::*;

use crate::pcap::all;

/// Every MAD of the captures, with the name of its packet.
fn captured() -> Vec<(String, Mad)> {
    let mads: Vec<_> = all()
        .into_iter()
        .filter_map(|captured| {
            let packet = Packet::parse(captured.body()).unwrap();
            (packet.bth.dest_qpn == 1).then(|| {
                let mad = mad::mad_of(&packet).unwrap_or_else(|e| panic!("{}: {e}", captured.name));
                // The kernel asks for an acknowledgement that no datagram gets.
                let mut again = mad::gmp(packet.bth.pkey, packet.bth.psn, mad);
                again.bth.ack_req = packet.bth.ack_req;
                assert_eq!(again, packet, "{}", captured.name);
                (captured.name.clone(), *mad)
            })
        })
        .collect();
    assert_eq!(mads.len(), 17);
    mads
}

fn message(bytes: &[u8]) -> Message {
    Message::parse(bytes).unwrap().1
}

#[test]
fn every_captured_mad_is_emitted_byte_for_byte() {
    let mut kinds = BTreeMap::new();
    for (name, bytes) in captured() {
        let (tid, message) = Message::parse(&bytes).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(message.emit(tid), bytes, "{name}: {message:?}");
        *kinds.entry(MadHeader::parse(bytes.first_chunk().unwrap()).attribute).or_insert(0) += 1;
        let header = MadHeader::parse(bytes.first_chunk().unwrap());
        assert_eq!(header.emit(), bytes[..MadHeader::LEN], "{name}");
    }
    let expected = [(0x10, 3), (0x13, 3), (0x14, 3), (0x15, 3), (0x16, 3), (0x17, 1), (0x18, 1)];
    assert_eq!(kinds, BTreeMap::from(expected));
}

/// Against what an independent decoder (tshark) prints of the same packets.
#[test]
fn fields_of_captured_mads_have_the_values_another_decoder_finds() {
    let mads: BTreeMap<_, _> = captured().into_iter().collect();
    let Message::Req(req) = message(&mads["ucmatose_rc_rdmacm 1"]) else { panic!() };
    assert_eq!(
        Req { private_data: [0; 92], ..req },
        Req {
            local_comm_id: 0x276b_a112,
            service_id: ServiceId::of_port(PortSpace::Tcp, 7471),
            local_ca_guid: 0x7c40_6dff_fe4a_270c,
            local_qkey: 0,
            local_qpn: 0x1a,
            responder_resources: 1,
            local_eecn: 0,
            initiator_depth: 1,
            remote_eecn: 0,
            remote_cm_response_timeout: 20,
            transport: Transport::Rc,
            end_to_end_flow_control: false,
            starting_psn: 0x0b_ef0c,
            local_cm_response_timeout: 20,
            retry_count: 5,
            pkey: 0xffff,
            mtu: 5,
            rdc_exists: false,
            rnr_retry_count: 0,
            max_cm_retries: 15,
            srq: false,
            ece: Ece::default(),
            primary: ReqPath {
                local_lid: 0xffff,
                remote_lid: 0xffff,
                local_gid: "10.90.0.1".parse().unwrap(),
                remote_gid: "10.90.0.2".parse().unwrap(),
                flow_label: 0xc_68c5,
                packet_rate: 0,
                traffic_class: 0,
                hop_limit: 64,
                sl: 0,
                subnet_local: false,
                ack_timeout: 19,
            },
            alternate: ReqPath::default(),
            private_data: [0; 92],
        }
    );
    assert_eq!(
        IpHeader::parse(req.private_data.first_chunk().unwrap()),
        Ok(IpHeader {
            src_port: 0xe9aa,
            src: "10.90.0.1".parse().unwrap(),
            dst: "10.90.0.2".parse().unwrap()
        })
    );

    let Message::Rep(rep) = message(&mads["ucmatose_rc_rdmacm 2"]) else { panic!() };
    assert_eq!(
        rep,
        Rep {
            local_comm_id: 0x266b_a112,
            remote_comm_id: 0x276b_a112,
            local_qkey: 0,
            local_qpn: 0x1a,
            local_eecn: 0,
            starting_psn: 0x89_4105,
            responder_resources: 1,
            initiator_depth: 1,
            target_ack_delay: 15,
            failover_accepted: 0,
            end_to_end_flow_control: false,
            rnr_retry_count: 7,
            srq: false,
            ece: Ece::default(),
            local_ca_guid: 0xd438_67ff_fe68_f4e5,
            private_data: [0; 196],
        }
    );
    let Message::Dreq(dreq) = message(&mads["ucmatose_rc_rdmacm 12"]) else { panic!() };
    assert_eq!((dreq.local_comm_id, dreq.remote_comm_id), (0x266b_a112, 0x276b_a112));
    assert_eq!(dreq.remote_qpn, 0x1a);

    let Message::SidrReq(sidr) = message(&mads["udaddy_ud_rdmacm 1"]) else { panic!() };
    assert_eq!((sidr.request_id, sidr.pkey), (0x246b_a112, 0xffff));
    assert_eq!(sidr.service_id.port(), Some((PortSpace::Udp, 7174)));
    let header = IpHeader::parse(sidr.private_data.first_chunk().unwrap()).unwrap();
    assert_eq!(header.src_port, 0xbd2b);
    let Message::SidrRep(sidr) = message(&mads["udaddy_ud_rdmacm 2"]) else { panic!() };
    assert_eq!((sidr.request_id, sidr.status), (0x246b_a112, SidrStatus::VALID));
    assert_eq!((sidr.qpn, sidr.qkey), (0x1b, 0x0123_4567));
    assert_eq!(sidr.service_id.port(), Some((PortSpace::Udp, 7174)));

    let Message::Req(req) = message(&mads["rping_ipv6 1"]) else { panic!() };
    let header = IpHeader::parse(req.private_data.first_chunk().unwrap()).unwrap();
    assert_eq!((header.src, header.dst), ("fd90::1".parse().unwrap(), "fd90::2".parse().unwrap()));
    assert_eq!(req.primary.local_gid, Gid::from_ip(header.src));
}

#[test]
fn a_mad_goes_to_the_service_or_to_whoever_it_answers() {
    let mads: BTreeMap<_, _> = captured().into_iter().collect();
    let to = |name: &str| destination(&mads[name]);
    let service = |space, port| Destination::ServiceId(ServiceId::of_port(space, port));
    assert_eq!(to("ucmatose_rc_rdmacm 1"), service(PortSpace::Tcp, 7471));
    assert_eq!(to("ucmatose_rc_rdmacm 2"), Destination::CommId(0x276b_a112));
    assert_eq!(to("ucmatose_rc_rdmacm 3"), Destination::CommId(0x266b_a112));
    assert_eq!(to("ucmatose_rc_rdmacm 12"), Destination::CommId(0x276b_a112));
    assert_eq!(to("ucmatose_rc_rdmacm 13"), Destination::CommId(0x266b_a112));
    assert_eq!(to("udaddy_ud_rdmacm 1"), service(PortSpace::Udp, 7174));
    assert_eq!(to("udaddy_ud_rdmacm 2"), Destination::CommId(0x246b_a112));
}

#[test]
fn a_reason_has_one_code() {
    for code in 0..=u16::MAX {
        let reason = RejReason::from_u16(code);
        assert_eq!(reason.to_u16(), code);
        assert_eq!(matches!(reason, RejReason::Unknown(_)), !RejReason::NAMED.contains(&reason));
    }
    assert_eq!(RejReason::NAMED.len(), 34);
    assert_eq!(RejReason::from_u16(8), RejReason::InvalidServiceId);
    assert_eq!(RejReason::from_u16(10), RejReason::StaleConnection);
    assert_eq!(RejReason::from_u16(28), RejReason::ConsumerReject);
    assert_eq!(RejReason::from_u16(35), RejReason::VendorOption);
}

#[test]
fn what_is_no_message_says_why() {
    let (_, good) = captured().swap_remove(0);
    let with = |at: usize, byte: u8| {
        let mut bytes = good;
        bytes[at] = byte;
        Message::parse(&bytes).map(|_| ())
    };
    assert_eq!(with(0, 2), Err(CmError::BaseVersion { version: 2 }));
    assert_eq!(with(1, 3), Err(CmError::Class { class: 3 }));
    assert_eq!(with(2, 1), Err(CmError::ClassVersion { version: 1 }));
    assert_eq!(with(3, 0x83), Err(CmError::Method { method: 0x83 }));
    assert_eq!(with(17, 0x1b), Err(CmError::Attribute { attribute: 0x1b }));
    assert_eq!(with(4, 0xff), Ok(()), "a status is no matter of a message");
    for len in (0..MAD_LEN).chain([MAD_LEN + 4]) {
        let mut bytes = good.to_vec();
        bytes.resize(len, 0);
        assert_eq!(Message::parse(&bytes).map(|_| ()), Err(CmError::Length { len }));
        assert_eq!(destination(&bytes), Destination::Unknown);
    }
    let header = |version, ip_version| {
        let mut bytes = [0; IpHeader::LEN];
        bytes[0] = version;
        bytes[1] = ip_version;
        IpHeader::parse(&bytes).map(|_| ())
    };
    assert_eq!(header(0x10, 0x40), Err(IpHeaderError::Version { version: 0x10 }));
    assert_eq!(header(0, 0x50), Err(IpHeaderError::IpVersion { version: 5 }));
    assert_eq!(header(0, 0x4f), Ok(()), "the low nibble is reserved");
}

#[test]
fn what_is_no_mad_on_qp1_says_why() {
    let mad = [0; MAD_LEN];
    let good = mad::gmp(0xffff, 7, &mad);
    assert_eq!(mad::mad_of(&good), Ok(&mad));
    let qkey = Packet { deth: Some(Deth { qkey: 1, src_qpn: 1 }), ..good };
    assert_eq!(mad::mad_of(&qkey), Err(GmpError::Qkey { qkey: 1 }));
    let short = Packet { payload: &mad[..252], ..good };
    assert_eq!(mad::mad_of(&short), Err(GmpError::Length { len: 252 }));
    let mut other = good;
    other.bth.dest_qpn = 2;
    assert_eq!(mad::mad_of(&other), Err(GmpError::DestQpn { qpn: 2 }));
    let mut bytes = [0; 20];
    assert_eq!(good.emit_header(&mut bytes), 20);
    assert_eq!(bytes[12..], [GSI_QKEY.to_be_bytes(), 1u32.to_be_bytes()].concat());
}

fn data<const N: usize>() -> impl Strategy<Value = [u8; N]> {
    prop::collection::vec(any::<u8>(), N).prop_map(|bytes| bytes.try_into().unwrap())
}

const U24: std::ops::RangeInclusive<u32> = 0..=0xff_ffff;

fn gid() -> impl Strategy<Value = Gid> {
    any::<[u8; 16]>().prop_map(Gid)
}

fn responded() -> impl Strategy<Value = Responded> {
    prop::sample::select(vec![
        Responded::Req,
        Responded::Rep,
        Responded::Other,
        Responded::Reserved,
    ])
}

prop_compose! {
    fn req_path()(
        (local_lid, remote_lid, traffic_class, hop_limit) in any::<(u16, u16, u8, u8)>(),
        (local_gid, remote_gid) in (gid(), gid()),
        (flow_label, packet_rate, sl, subnet_local, ack_timeout)
            in (0..=0xf_ffff_u32, 0..64u8, 0..16u8, any::<bool>(), 0..32u8),
    ) -> ReqPath {
        ReqPath {
            local_lid, remote_lid, local_gid, remote_gid, flow_label, packet_rate, traffic_class,
            hop_limit, sl, subnet_local, ack_timeout,
        }
    }
}

prop_compose! {
    fn ece()(vendor_id in U24, options in any::<u32>()) -> Ece {
        Ece { vendor_id, options }
    }
}

prop_compose! {
    fn req()(
        (local_comm_id, service_id, local_ca_guid, local_qkey, pkey)
            in any::<(u32, u64, u64, u32, u16)>(),
        (local_qpn, local_eecn, remote_eecn, starting_psn) in (U24, U24, U24, U24),
        (responder_resources, initiator_depth) in any::<(u8, u8)>(),
        (end_to_end_flow_control, rdc_exists, srq) in any::<(bool, bool, bool)>(),
        (remote_cm_response_timeout, local_cm_response_timeout) in (0..32u8, 0..32u8),
        (retry_count, rnr_retry_count, mtu, max_cm_retries) in (0..8u8, 0..8u8, 0..16u8, 0..16u8),
        transport in prop::sample::select(vec![
            Transport::Rc, Transport::Uc, Transport::Rd, Transport::Xrc, Transport::Extended(0),
            Transport::Extended(7),
        ]),
        (primary, alternate, private_data) in (req_path(), req_path(), data()),
        ece in ece(),
    ) -> Req {
        Req {
            local_comm_id, service_id: ServiceId(service_id), local_ca_guid, local_qkey, local_qpn,
            responder_resources, local_eecn, initiator_depth, remote_eecn,
            remote_cm_response_timeout, transport, end_to_end_flow_control, starting_psn,
            local_cm_response_timeout, retry_count, pkey, mtu, rdc_exists, rnr_retry_count,
            max_cm_retries, srq, ece, primary, alternate, private_data,
        }
    }
}

prop_compose! {
    fn rep()(
        (local_comm_id, remote_comm_id, local_qkey, local_ca_guid)
            in any::<(u32, u32, u32, u64)>(),
        (local_qpn, local_eecn, starting_psn) in (U24, U24, U24),
        (responder_resources, initiator_depth) in any::<(u8, u8)>(),
        (target_ack_delay, failover_accepted, rnr_retry_count) in (0..32u8, 0..4u8, 0..8u8),
        (end_to_end_flow_control, srq) in any::<(bool, bool)>(),
        (ece, private_data) in (ece(), data()),
    ) -> Rep {
        Rep {
            local_comm_id, remote_comm_id, local_qkey, local_qpn, local_eecn, starting_psn,
            responder_resources, initiator_depth, target_ack_delay, failover_accepted,
            end_to_end_flow_control, rnr_retry_count, srq, ece, local_ca_guid, private_data,
        }
    }
}

prop_compose! {
    fn lap()(
        (local_comm_id, remote_comm_id) in any::<(u32, u32)>(),
        (remote_qpn, remote_cm_response_timeout) in (U24, 0..32u8),
        path in req_path(),
        private_data in data(),
    ) -> Lap {
        Lap {
            local_comm_id, remote_comm_id, remote_qpn, remote_cm_response_timeout,
            local_lid: path.local_lid, remote_lid: path.remote_lid, local_gid: path.local_gid,
            remote_gid: path.remote_gid, flow_label: path.flow_label,
            traffic_class: path.traffic_class, hop_limit: path.hop_limit,
            packet_rate: path.packet_rate, sl: path.sl, subnet_local: path.subnet_local,
            ack_timeout: path.ack_timeout, private_data,
        }
    }
}

fn any_message() -> impl Strategy<Value = Message> {
    let ids = any::<(u32, u32)>;
    prop_oneof![
        req().prop_map(Message::Req),
        rep().prop_map(Message::Rep),
        lap().prop_map(Message::Lap),
        (ids(), responded(), 0..32u8, data()).prop_map(
            |((local_comm_id, remote_comm_id), message, service_timeout, private_data)| {
                Message::Mra(Mra {
                    local_comm_id,
                    remote_comm_id,
                    message,
                    service_timeout,
                    private_data,
                })
            }
        ),
        (ids(), responded(), 0..128u8, any::<u16>(), data(), data()).prop_map(
            |((local_comm_id, remote_comm_id), message, info_len, reason, info, private_data)| {
                let reason = RejReason::from_u16(reason);
                Message::Rej(Rej {
                    local_comm_id,
                    remote_comm_id,
                    message,
                    info_len,
                    reason,
                    info,
                    private_data,
                })
            }
        ),
        (ids(), data()).prop_map(|((local_comm_id, remote_comm_id), private_data)| {
            Message::Rtu(Rtu { local_comm_id, remote_comm_id, private_data })
        }),
        (ids(), U24, data()).prop_map(
            |((local_comm_id, remote_comm_id), remote_qpn, private_data)| {
                Message::Dreq(Dreq { local_comm_id, remote_comm_id, remote_qpn, private_data })
            }
        ),
        (ids(), data()).prop_map(|((local_comm_id, remote_comm_id), private_data)| {
            Message::Drep(Drep { local_comm_id, remote_comm_id, private_data })
        }),
        (ids(), any::<(u8, u8)>(), data(), data()).prop_map(
            |((local_comm_id, remote_comm_id), (info_len, status), info, private_data)| {
                Message::Apr(Apr {
                    local_comm_id,
                    remote_comm_id,
                    info_len,
                    status: ApStatus(status),
                    info,
                    private_data,
                })
            }
        ),
        (any::<(u32, u16, u64)>(), data()).prop_map(
            |((request_id, pkey, service_id), private_data)| {
                let service_id = ServiceId(service_id);
                Message::SidrReq(SidrReq { request_id, pkey, service_id, private_data })
            }
        ),
        (any::<(u32, u8, u8, u64, u32)>(), U24, data(), data()).prop_map(
            |((request_id, status, info_len, service_id, qkey), qpn, info, private_data)| {
                Message::SidrRep(SidrRep {
                    request_id,
                    status: SidrStatus(status),
                    info_len,
                    qpn,
                    service_id: ServiceId(service_id),
                    qkey,
                    info,
                    private_data,
                })
            }
        ),
    ]
}

proptest! {
    #[test]
    fn parse_undoes_emit_of_any_message((tid, message) in (any::<u64>(), any_message())) {
        let bytes = message.emit(tid);
        prop_assert_eq!(Message::parse(&bytes), Ok((tid, message)));
        let expected = match message {
            Message::Req(m) => Destination::ServiceId(m.service_id),
            Message::SidrReq(m) => Destination::ServiceId(m.service_id),
            Message::SidrRep(m) => Destination::CommId(m.request_id),
            Message::Mra(m) => Destination::CommId(m.remote_comm_id),
            Message::Rej(m) => Destination::CommId(m.remote_comm_id),
            Message::Rep(m) => Destination::CommId(m.remote_comm_id),
            Message::Rtu(m) => Destination::CommId(m.remote_comm_id),
            Message::Dreq(m) => Destination::CommId(m.remote_comm_id),
            Message::Drep(m) => Destination::CommId(m.remote_comm_id),
            Message::Lap(m) => Destination::CommId(m.remote_comm_id),
            Message::Apr(m) => Destination::CommId(m.remote_comm_id),
        };
        let expected = if expected == Destination::CommId(0) {
            Destination::Unknown
        } else {
            expected
        };
        prop_assert_eq!(destination(&bytes), expected);
    }

    /// Whatever a MAD holds is understood or refused, and what is understood is written back alike,
    /// reserved bits apart.
    #[test]
    fn no_bytes_are_too_strange(
        attribute in 0x0f..0x1c_u8,
        body in prop::collection::vec(any::<u8>(), MAD_LEN - MadHeader::LEN),
    ) {
        let mut bytes = [0; MAD_LEN];
        bytes[..4].copy_from_slice(&[1, 7, 2, 3]);
        bytes[17] = attribute;
        bytes[MadHeader::LEN..].copy_from_slice(&body);
        match Message::parse(&bytes) {
            Ok((tid, message)) => {
                prop_assert_eq!(Message::parse(&message.emit(tid)), Ok((tid, message)));
                if let Message::Rej(rej) = message {
                    prop_assert!(rej.info().len() <= Rej::INFO);
                }
            }
            Err(error) => {
                prop_assert!(attribute == 0x0f || attribute == 0x1b, "{}", error);
                prop_assert_eq!(destination(&bytes), Destination::Unknown);
            }
        }
        let _ = IpHeader::parse(body.first_chunk().unwrap());
    }

    #[test]
    fn what_exceeds_its_field_leaves_the_neighbours(req in req(), wide in any::<(u32, u8)>()) {
        let (number, byte) = wide;
        let cut = Req {
            local_qpn: number & 0xff_ffff,
            starting_psn: number & 0xff_ffff,
            retry_count: byte & 7,
            rnr_retry_count: byte & 7,
            max_cm_retries: byte & 15,
            mtu: byte & 15,
            remote_cm_response_timeout: byte & 31,
            local_cm_response_timeout: byte & 31,
            primary: ReqPath {
                flow_label: number & 0xf_ffff,
                packet_rate: byte & 63,
                sl: byte & 15,
                ack_timeout: byte & 31,
                ..req.primary
            },
            ..req
        };
        let over = Req {
            local_qpn: number,
            starting_psn: number,
            retry_count: byte,
            rnr_retry_count: byte,
            max_cm_retries: byte,
            mtu: byte,
            remote_cm_response_timeout: byte,
            local_cm_response_timeout: byte,
            primary: ReqPath {
                flow_label: number,
                packet_rate: byte,
                sl: byte,
                ack_timeout: byte,
                ..req.primary
            },
            ..req
        };
        prop_assert_eq!(Message::parse(&Message::Req(over).emit(1)), Ok((1, Message::Req(cut))));
    }

    #[test]
    fn parse_undoes_emit_of_addresses(
        src_port in any::<u16>(),
        (v4, v6) in any::<([[u8; 4]; 2], [[u8; 16]; 2])>(),
        four in any::<bool>(),
    ) {
        let [src, dst] = if four { v4.map(|a| a.into()) } else { v6.map(|a| a.into()) };
        let header = IpHeader { src_port, src, dst };
        prop_assert_eq!(IpHeader::parse(&header.emit()), Ok(header));
    }

    #[test]
    fn a_service_id_is_that_of_one_port(number in any::<u64>(), port in any::<u16>()) {
        for space in [PortSpace::Ipoib, PortSpace::Tcp, PortSpace::Udp, PortSpace::Ib] {
            prop_assert_eq!(ServiceId::of_port(space, port).port(), Some((space, port)));
        }
        if let Some((space, port)) = ServiceId(number).port() {
            prop_assert_eq!(ServiceId::of_port(space, port), ServiceId(number));
        }
        prop_assert_eq!(ServiceId::of_port(PortSpace::Tcp, 80), ServiceId(0x0000_0000_0106_0050));
    }
}
