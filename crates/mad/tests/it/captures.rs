//! The kernel's connection manager on either side: we say what its peer said. The captures are
//! those of the wire crate.

use std::path::PathBuf;

use ironverbs_mad::{
    Accept, Cm, Config, Connect, Disconnect, Event, Instant, LocalAddr, Resolve, SidrAnswer,
    SidrRequest,
};
use ironverbs_wire::mad::cm::{IpHeader, Message};
use ironverbs_wire::mad::{MAD_LEN, Mad};
use ironverbs_wire::{Gid, Mtu, Path};

const NOW: Instant = Instant(1);
const FILES: [&str; 4] =
    ["rping_rc_rdmacm", "rping_ipv6", "ucmatose_rc_rdmacm", "udaddy_ud_rdmacm"];

/// The packets of a capture and the way they went, each from its BTH on.
fn datagrams(name: &str) -> Vec<(Path, Vec<u8>)> {
    let file = format!("../wire/tests/data/{name}.pcap");
    let bytes = std::fs::read(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap();
    let mut rest = &bytes[24..];
    let mut all = Vec::new();
    while !rest.is_empty() {
        let len = u32::from_le_bytes(rest[8..12].try_into().unwrap()) as usize;
        let (record, after) = rest.split_at(16 + len);
        rest = after;
        let (ether_type, ip) = record[16 + 12..].split_at(2);
        let (src, dst, udp) = if ether_type == [0x08, 0x00] {
            let gid =
                |at: usize| Gid::from_ipv4(<[u8; 4]>::try_from(&ip[at..at + 4]).unwrap().into());
            (gid(12), gid(16), &ip[20..])
        } else {
            let gid = |at: usize| Gid(ip[at..at + 16].try_into().unwrap());
            (gid(8), gid(24), &ip[40..])
        };
        let path = Path { src, dst, traffic_class: 0, hop_limit: 64, flow_label: 0, ib: None };
        all.push((path, udp[8..].to_vec()));
    }
    all
}

/// The MADs of a capture: destination QP 1, then 12 bytes of BTH and 8 of DETH before the MAD.
fn capture(name: &str) -> Vec<(Path, Mad)> {
    let to_qp1 = datagrams(name).into_iter().filter(|(_, packet)| packet[5..8] == [0, 0, 1]);
    let mads: Vec<_> =
        to_qp1.map(|(path, packet)| (path, packet[20..20 + MAD_LEN].try_into().unwrap())).collect();
    assert!(!mads.is_empty(), "{name}");
    mads
}

/// What a StartingPSN is: the PSN with which the peer of whoever names it begins. Between two kernels the packets of data that
/// follow show it.
#[test]
fn a_side_names_the_psn_that_its_peer_begins_with() {
    for name in ["rping_rc_rdmacm", "rping_ipv6", "ucmatose_rc_rdmacm"] {
        // A side, its queue pair, and what it named.
        let mut named = Vec::new();
        for (path, mad) in capture(name) {
            match Message::parse(&mad).unwrap().1 {
                Message::Req(req) => named.push((path.src, req.local_qpn, req.starting_psn)),
                Message::Rep(rep) => named.push((path.src, rep.local_qpn, rep.starting_psn)),
                _ => {}
            }
        }
        assert!(named.len() >= 2, "{name}");
        named.sort_unstable();
        named.dedup();
        for (side, qpn, psn) in named {
            let to_it = datagrams(name).into_iter().find(|(path, packet)| {
                let number = |at: usize| u32::from_be_bytes(packet[at..at + 4].try_into().unwrap());
                // Requests alone (below RDMA READ RESPONSE): answers have the PSNs of the other direction.
                packet[0] < 0x0d && path.dst == side && number(4) & 0xff_ffff == qpn
            });
            let (_, first) = to_it.unwrap_or_else(|| panic!("{name}: nothing comes to {qpn:#x}"));
            assert_eq!(u32::from_be_bytes([0, first[9], first[10], first[11]]), psn, "{name}");
        }
    }
}

/// Communication IDs in a message: the sender's and the receiver's, 0 where it has none.
fn ids(message: &mut Message) -> (&mut u32, Option<&mut u32>) {
    match message {
        Message::Req(m) => (&mut m.local_comm_id, None),
        Message::Rep(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Message::Rtu(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Message::Dreq(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Message::Drep(m) => (&mut m.local_comm_id, Some(&mut m.remote_comm_id)),
        Message::SidrReq(m) => (&mut m.request_id, None),
        other => panic!("{other:?} is in no capture"),
    }
}

/// One side of a capture, played by us.
struct Player {
    cm: Cm,
    /// What the kernel called the connection on our side, and what we do.
    our_id: Option<(u32, u32)>,
    /// Transactions: the kernel's and ours.
    tids: Vec<(u64, u64)>,
}

impl Player {
    /// Takes a message of the kernel, as if its peer had been us all along.
    fn hear(&mut self, path: &Path, mad: &Mad) {
        let (kernels_tid, mut message) = Message::parse(mad).unwrap();
        let tid = self.tids.iter().find(|(kernels, _)| *kernels == kernels_tid);
        let tid = tid.map_or(kernels_tid, |(_, ours)| *ours);
        if let Message::SidrRep(rep) = &mut message {
            assert_eq!(rep.request_id, self.our_id.unwrap().0);
            rep.request_id = self.our_id.unwrap().1;
        } else if let (_, Some(remote)) = ids(&mut message) {
            assert_eq!(*remote, self.our_id.unwrap().0);
            *remote = self.our_id.unwrap().1;
        }
        self.cm.handle_mad(NOW, path, 0xffff, &message.emit(tid));
    }

    /// What we say must be what the kernel said, but for the IDs that each chooses.
    fn say(&mut self, path: &Path, kernels: &Mad) {
        let transmit = self.cm.poll_transmit().expect("a message");
        assert_eq!(self.cm.poll_transmit(), None);
        assert_eq!((transmit.path.src, transmit.path.dst), (path.src, path.dst));
        assert_eq!(transmit.pkey, 0xffff);
        let (kernels_tid, mut kernels) = Message::parse(kernels).unwrap();
        let (tid, mut ours) = Message::parse(&transmit.mad).unwrap();
        match self.tids.iter().find(|(kernels, _)| *kernels == kernels_tid) {
            Some((_, known)) => assert_eq!(tid, *known, "{kernels:?}"),
            None => self.tids.push((kernels_tid, tid)),
        }
        if !matches!(kernels, Message::SidrRep(_)) {
            let names = (*ids(&mut kernels).0, *ids(&mut ours).0);
            assert_eq!(*self.our_id.get_or_insert(names), names);
            *ids(&mut ours).0 = names.0;
        }
        assert_eq!(ours, kernels);
    }
}

fn play(name: &str, we_are_active: bool) {
    let mads = capture(name);
    let ours = if we_are_active { mads[0].0 } else { Path { src: mads[0].0.dst, ..mads[0].0 } }.src;
    let cm = Cm::new(Config::new(3, 10, 0xfeed));
    let mut player = Player { cm, our_id: None, tids: Vec::new() };
    let (mut conn, mut asked, mut disconnected) = (None, None, 0);
    for (path, mad) in &mads {
        let (tid, message) = Message::parse(mad).unwrap();
        if path.src == ours {
            match message {
                Message::Req(req) => {
                    let ip = IpHeader::parse(req.private_data.first_chunk().unwrap()).unwrap();
                    let path = Path { flow_label: req.primary.flow_label, ..*path };
                    let connect = Connect {
                        ip: Some(ip),
                        starting_psn: req.starting_psn,
                        responder_resources: req.responder_resources,
                        initiator_depth: req.initiator_depth,
                        retry_count: req.retry_count,
                        rnr_retry_count: req.rnr_retry_count,
                        mtu: Mtu::M4096,
                        private_data: &req.private_data[IpHeader::LEN..],
                        ..Connect::new(path, req.service_id, req.local_ca_guid, req.local_qpn)
                    };
                    conn = Some(player.cm.connect(NOW, &connect).unwrap());
                }
                Message::Rep(rep) => {
                    let accept = Accept {
                        starting_psn: rep.starting_psn,
                        responder_resources: rep.responder_resources,
                        initiator_depth: rep.initiator_depth,
                        private_data: &rep.private_data,
                        ..Accept::new(rep.local_ca_guid, rep.local_qpn)
                    };
                    player.cm.accept(NOW, conn.unwrap(), &accept).unwrap();
                }
                Message::Rtu(rtu) => {
                    player.cm.establish(conn.unwrap(), &rtu.private_data).unwrap();
                }
                Message::Dreq(dreq) => {
                    player.cm.disconnect(NOW, conn.unwrap(), &dreq.private_data).unwrap();
                }
                // Sent on its own.
                Message::Drep(_) => {}
                Message::SidrReq(req) => {
                    let ip = IpHeader::parse(req.private_data.first_chunk().unwrap()).unwrap();
                    let resolve = Resolve {
                        ip: Some(ip),
                        private_data: &req.private_data[IpHeader::LEN..],
                        ..Resolve::new(*path, req.service_id)
                    };
                    player.cm.resolve(NOW, &resolve).unwrap();
                }
                Message::SidrRep(rep) => {
                    let request: Box<SidrRequest> = asked.take().unwrap();
                    assert_eq!(request.ip.unwrap().dst, ours.to_ip());
                    assert_eq!(request.private_data().len(), 180);
                    let answer = SidrAnswer {
                        status: rep.status,
                        qpn: rep.qpn,
                        qkey: rep.qkey,
                        private_data: &rep.private_data,
                    };
                    player.cm.sidr_answer(NOW, request.sidr, &answer).unwrap();
                }
                other => panic!("{other:?}"),
            }
            player.say(path, mad);
        } else {
            match message {
                Message::Req(req) => {
                    player.cm.listen(req.service_id, LocalAddr::Gid(ours), 1).unwrap();
                }
                Message::SidrReq(req) => {
                    player.cm.listen(req.service_id, LocalAddr::AnyIpv4, 1).unwrap();
                }
                _ => {}
            }
            if matches!(message, Message::Req(_) | Message::SidrReq(_)) {
                player.tids.push((tid, tid));
            }
            player.hear(path, mad);
            if let Message::Req(req) = message {
                let Some(Event::Request(request)) = player.cm.poll_event() else {
                    panic!("{name}");
                };
                assert_eq!(request.remote_qpn, req.local_qpn);
                assert_eq!(request.mtu, Mtu::M4096);
                assert_eq!(request.ip.unwrap().src, path.src.to_ip());
                assert_eq!(request.private_data(), &req.private_data[36..]);
                conn = Some(request.conn);
            }
        }
        while let Some(event) = player.cm.poll_event() {
            match (event, message) {
                (Event::Reply(reply), Message::Rep(rep)) => {
                    assert_eq!(reply.remote_qpn, rep.local_qpn);
                    assert_eq!(reply.starting_psn, rep.starting_psn);
                    assert_eq!(reply.initiator_depth, rep.responder_resources);
                }
                (Event::Established { .. }, Message::Rtu(_)) => {}
                (Event::Disconnected { by: Disconnect::Peer(_), .. }, Message::Dreq(_))
                | (Event::Disconnected { by: Disconnect::Confirmed(_), .. }, Message::Drep(_)) => {
                    disconnected += 1;
                }
                (Event::SidrRequest(request), Message::SidrReq(_)) => asked = Some(request),
                (Event::SidrReply(reply), Message::SidrRep(rep)) => {
                    assert_eq!((reply.qpn, reply.qkey), (rep.qpn, rep.qkey));
                    disconnected += 1;
                }
                (event, message) => panic!("{name}: {event:?} by {message:?}"),
            }
        }
    }
    let is_asked_for_datagrams = name.starts_with("udaddy") && !we_are_active;
    assert_eq!(disconnected, i32::from(!is_asked_for_datagrams), "{name}");
    player.cm.handle_timeout(NOW.after(20_000_000_000));
    assert!(player.cm.is_empty(), "{name}: {:?}", player.cm);
}

#[test]
fn we_ask_as_the_kernel_asks() {
    for name in FILES {
        play(name, true);
    }
}

#[test]
fn we_answer_as_the_kernel_answers() {
    for name in FILES {
        play(name, false);
    }
}
