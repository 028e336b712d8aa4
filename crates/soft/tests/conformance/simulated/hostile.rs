//! Packets from strangers, and from peers that lie: dropped, counted, and no harm to anyone else.

use std::sync::Arc;

use ironverbs_soft::sim::Impairments;
use ironverbs_soft::*;
use ironverbs_wire::icrc;
use ironverbs_wire::{
    Aeth, AtomicEth, Bth, Deth, NakCode, Op, Opcode, Packet, ROCE_PORT, Reth, Service, Syndrome,
};

use crate::fabric::{Fabric, address};
use crate::side::{QKEY, Side, outcomes, pair, pattern, wr};

/// The port that simulated Hosts send from, and one as adapters have.
const PORTS: [u16; 2] = [0x8000, 0xd001];

/// Where connections of these cases start counting.
const PSN: u32 = 0xff_fff0;

/// A victim with a connection that is known to be good, and all that a forger needs.
struct Target {
    f: Fabric,
    hosts: [Host; 2],
    a: Side,
    b: Side,
    /// Never touched by a forger.
    bystander: (Arc<Qp>, Arc<Qp>),
    contents: Vec<u8>,
}

impl Target {
    fn new(seed: u64) -> Target {
        let f = Fabric::seeded(seed);
        let hosts = [f.host(), f.host()];
        let (a, b) = (Side::new(&hosts[0], 1 << 20), Side::new(&hosts[1], 1 << 20));
        let contents = pattern(1 << 20, seed);
        b.fill(0, &contents);
        let bystander = pair(&a, &b, QpType::Rc);
        Target { f, hosts, a, b, bystander, contents }
    }

    /// From the first Host, where the peers are.
    fn path(&self) -> Path {
        self.path_from(self.a.gid())
    }

    fn path_from(&self, src: Gid) -> Path {
        Path { src, dst: self.b.gid(), traffic_class: 0, hop_limit: 64, flow_label: 0, ib: None }
    }

    fn inject(&self, path: Path, bytes: &[u8]) {
        self.f.network().unwrap().inject(path, PORTS[0], bytes);
    }

    /// Sends a well-made packet from `path.src`.
    fn forge(&self, path: Path, packet: &Packet<'_>) {
        for port in PORTS {
            let bytes = seal(&path, port, &body(packet));
            self.f.network().unwrap().inject(path, port, &bytes);
        }
    }

    /// Everything is as it was: memory, the other connection, no completion and no event.
    #[track_caller]
    fn unharmed(&self) {
        self.f.nothing_more(&[&self.a, &self.b]);
        assert!(self.b.read(0, 1 << 20) == self.contents, "memory changed");
        assert!(self.b.next_event().is_none() && self.a.next_event().is_none());
        self.works();
    }

    #[track_caller]
    fn works(&self) {
        let (x, y) = &self.bystander;
        y.post_recv(77, &[]).unwrap();
        x.post_send(&wr(78, WrOpcode::Send), Payload::Sges(&[])).unwrap();
        assert_eq!(outcomes(&self.f.completions(&self.a, 1)), [(78, WcStatus::Success)]);
        assert_eq!(outcomes(&self.f.completions(&self.b, 1)), [(77, WcStatus::Success)]);
    }
}

/// A packet without its ICRC.
fn body(packet: &Packet<'_>) -> Vec<u8> {
    let mut out = vec![0; Packet::header_len(packet.service, packet.op)];
    assert_eq!(packet.emit_header(&mut out), out.len());
    out.extend_from_slice(packet.payload);
    out.resize(out.len() + usize::from(packet.bth.pad), 0);
    out
}

/// Adds the right ICRC.
fn seal(path: &Path, src_port: u16, body: &[u8]) -> Vec<u8> {
    let crc = icrc::compute(path, src_port, ROCE_PORT, 0, body);
    [body, &crc.to_le_bytes()].concat()
}

/// A SEND without payload.
static BARE: [u8; 12] = [0x04, 0, 0xff, 0xff, 0, 0, 0, 2, 0, 0, 0, 0];

/// A packet of any operation with every header it calls for.
fn packet<'a>(service: Service, op: Op, dest_qpn: u32, psn: u32, payload: &'a [u8]) -> Packet<'a> {
    let payload = if op.has_payload() { payload } else { &[] };
    let pad = (payload.len().next_multiple_of(4) - payload.len()) as u8;
    let bth = Bth { pkey: 0xffff, dest_qpn, psn, pad, ack_req: true, ..Bth::default() };
    #[allow(clippy::needless_update)]
    Packet {
        bth,
        op,
        service,
        reth: op.has_reth().then_some(Reth { va: 0, rkey: 0xbad, len: payload.len() as u32 }),
        atomic: op.has_atomic_eth().then_some(AtomicEth {
            va: 0,
            rkey: 0xbad,
            swap_add: 1,
            compare: 0,
        }),
        aeth: op.has_aeth().then_some(Aeth { syndrome: 0x1f, msn: 1 }),
        atomic_ack: (op == Op::AtomicAck).then_some(0xdead),
        deth: (service == Service::Ud).then_some(Deth { qkey: QKEY + 1, src_qpn: 5 }),
        imm: op.has_imm().then_some([9; 4]),
        xrceth: None,
        ieth: op.has_ieth().then_some(0xbad),
        payload,
        // Headers that none of these operations has.
        ..Packet::parse(&BARE).unwrap()
    }
}

/// Whether the operation is one of the service; it is no packet otherwise.
fn has(service: Service, op: Op) -> bool {
    Opcode::new(service, op).split().is_some()
}

const SERVICES: [Service; 3] = [Service::Rc, Service::Uc, Service::Ud];

/// One queue pair of each service at the victim, ready and with a receive posted.
fn victims(t: &Target) -> Vec<(Arc<Qp>, Arc<Qp>)> {
    [QpType::Rc, QpType::Uc, QpType::Ud]
        .into_iter()
        .map(|qp_type| {
            let (x, y) = pair(&t.a, &t.b, qp_type);
            y.post_recv(5, &[t.b.sge(0, 5000)]).unwrap();
            (x, y)
        })
        .collect()
}

#[test]
fn bytes_of_every_length_that_are_no_packet() {
    let t = Target::new(1);
    let victims = victims(&t);
    let mut random = fastrand::Rng::with_seed(1);
    let before = t.hosts[1].counters();
    let mut count = 0;
    for len in (0..400).chain([1500, 4200, 9000, 65_507]) {
        for n in 0..4 {
            let mut bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(len).collect();
            if n > 0 && len >= 8 {
                // As if for a queue pair that is there, with an opcode that is one.
                bytes[5..8].copy_from_slice(&victims[n - 1].1.qpn().to_be_bytes()[1..]);
                bytes[0] &= 0x77;
            }
            t.inject(t.path(), &bytes);
            count += 1;
        }
    }
    let after = t.hosts[1].counters();
    assert_eq!(after.rx_packets - before.rx_packets, count);
    let dropped = |c: HostCounters| c.truncated + c.bad_icrc + c.malformed + c.unknown_qp;
    assert_eq!(dropped(after) - dropped(before), count, "every one is accounted for");
    assert!(victims.iter().all(|(_, y)| y.counters().rx_packets == 0));
    t.unharmed();
}

#[test]
fn packets_cut_anywhere() {
    let t = Target::new(2);
    let victims = victims(&t);
    for (service, (_, y)) in SERVICES.into_iter().zip(&victims) {
        for op in Op::ALL {
            let whole = body(&packet(service, op, y.qpn(), PSN, &[7; 64]));
            let need = Packet::header_len(service, op);
            for len in 0..whole.len() {
                t.inject(t.path(), &whole[..len]);
                if len >= 12 && len < need {
                    let before = t.hosts[1].counters();
                    t.inject(t.path(), &seal(&t.path(), PORTS[0], &whole[..len]));
                    let after = t.hosts[1].counters();
                    assert_eq!(after.malformed, before.malformed + 1, "{service:?} {op:?} {len}");
                }
            }
        }
    }
    t.unharmed();
}

#[test]
fn every_flipped_bit_is_found() {
    let t = Target::new(3);
    let (_x, y) = pair(&t.a, &t.b, QpType::Rc);
    let mut good = packet(Service::Rc, Op::WriteOnly, y.qpn(), PSN, b"overwritten");
    good.reth = Some(Reth { va: t.b.memory.addr(), rkey: t.b.mr.rkey(), len: 11 });
    let whole = seal(&t.path(), PORTS[0], &body(&good));
    let before = t.hosts[1].counters();
    let mut flips = 0;
    for bit in 0..whole.len() * 8 {
        // Byte 4 of the BTH is the routers' to change.
        if bit / 8 == 4 {
            continue;
        }
        let mut bytes = whole.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        t.inject(t.path(), &bytes);
        flips += 1;
    }
    let after = t.hosts[1].counters();
    let found = after.bad_icrc - before.bad_icrc + after.unknown_qp - before.unknown_qp;
    assert_eq!(found, flips);
    assert_eq!(y.counters().rx_packets, 0);
    t.unharmed();
    // Unchanged it is taken: the forger had the right key, address and PSN.
    t.inject(t.path(), &whole);
    assert_eq!(t.b.read(0, 11), b"overwritten");
}

#[test]
fn strangers_are_not_heard() {
    let t = Target::new(4);
    let victims = victims(&t);
    let stranger = Gid::from_ip(address(99));
    let mut random = fastrand::Rng::with_seed(4);
    for (service, (_, y)) in SERVICES.into_iter().zip(&victims) {
        let mut sent = 0;
        for op in Op::ALL.into_iter().filter(|op| has(service, *op)) {
            for psn in [PSN, PSN - 1, PSN + 1, 0, random.u32(0..1 << 24)] {
                let mut forged = packet(service, op, y.qpn(), psn, &[1; 100]);
                forged.reth = forged.reth.map(|reth| Reth {
                    va: t.b.memory.addr(),
                    rkey: t.b.mr.rkey(),
                    ..reth
                });
                forged.atomic = forged.atomic.map(|eth| AtomicEth {
                    va: t.b.memory.addr(),
                    rkey: t.b.mr.rkey(),
                    ..eth
                });
                forged.ieth = forged.ieth.map(|_| t.b.mr.rkey());
                t.forge(t.path_from(stranger), &forged);
                sent += PORTS.len() as u64;
            }
        }
        let dropped = y.counters().dropped;
        if service == Service::Ud {
            // Datagrams are anybody's; these have the wrong key.
            assert_eq!(dropped.qkey + dropped.service, sent);
        } else {
            assert_eq!(dropped.peer, sent);
        }
        assert_eq!(y.state(), QpState::Rts);
    }
    t.unharmed();
}

#[test]
fn packets_of_another_service_or_partition_are_dropped() {
    let t = Target::new(5);
    let victims = victims(&t);
    for (own, (_, y)) in SERVICES.into_iter().zip(&victims) {
        let mut sent = 0;
        for service in SERVICES.into_iter().filter(|service| *service != own) {
            for op in Op::ALL.into_iter().filter(|op| has(service, *op)) {
                t.forge(t.path(), &packet(service, op, y.qpn(), PSN, &[1; 64]));
                sent += PORTS.len() as u64;
            }
        }
        assert_eq!(y.counters().dropped.service, sent, "{own:?}");
        let mut sent = 0;
        for pkey in [0, 1, 0x7fff ^ 1, 0x8000, 0x8001, 0xfffe] {
            let mut forged = packet(own, Op::SendOnly, y.qpn(), PSN, &[1; 64]);
            forged.bth.pkey = pkey;
            t.forge(t.path(), &forged);
            sent += PORTS.len() as u64;
        }
        assert_eq!(y.counters().dropped.pkey, sent, "{own:?}");
    }
    t.unharmed();
}

#[test]
fn malformed_headers_are_counted() {
    let t = Target::new(6);
    let (_x, y) = pair(&t.a, &t.b, QpType::Rc);
    let whole = body(&packet(Service::Rc, Op::SendOnly, y.qpn(), PSN, &[1; 8]));
    let before = t.hosts[1].counters().malformed;
    let mut count = 0;
    let mut try_one = |change: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = whole.clone();
        change(&mut bytes);
        t.inject(t.path(), &seal(&t.path(), PORTS[0], &bytes));
        count += 1;
        assert_eq!(t.hosts[1].counters().malformed - before, count);
    };
    for version in 1..16 {
        try_one(&|bytes| bytes[1] |= version);
    }
    // Opcodes that are none, and more padding than payload.
    for opcode in (0x18..0x20).chain([0x15, 0x40, 0x60, 0x80, 0x81, 0xc0, 0xff]) {
        let known = opcode == 0x60;
        if !known {
            try_one(&|bytes| bytes[0] = opcode);
        }
    }
    try_one(&|bytes| {
        bytes[1] |= 0x30;
        bytes.truncate(12);
    });
    for odd in 1..4 {
        try_one(&|bytes| bytes.truncate(bytes.len() - odd));
    }
    t.unharmed();
}

#[test]
fn replayed_requests_are_not_carried_out_again() {
    let t = Target::new(7);
    let (x, y) = pair(&t.a, &t.b, QpType::Rc);
    let (at, rkey) = (t.b.memory.addr(), t.b.mr.rkey());
    t.a.fill(0, b"once....");
    t.b.fill(64, &[0; 8]);
    for i in 0..3 {
        y.post_recv(i, &[t.b.sge(128, 64)]).unwrap();
    }
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[t.a.sge(0, 8)])).unwrap();
    x.post_send(&t.b.remote(2, WrOpcode::Write, 0), Payload::Sges(&[t.a.sge(0, 8)])).unwrap();
    let add = SendWr { compare_add: 5, ..t.b.remote(3, WrOpcode::FetchAdd, 64) };
    x.post_send(&add, Payload::Sges(&[t.a.sge(8, 8)])).unwrap();
    x.post_send(&t.b.remote(4, WrOpcode::Read, 0), Payload::Sges(&[t.a.sge(16, 8)])).unwrap();
    assert!(t.f.completions(&t.a, 4).iter().all(|wc| wc.status == WcStatus::Success));
    assert_eq!(t.f.completions(&t.b, 1).len(), 1);
    // The program goes on to use its memory.
    t.b.fill(0, b"moved on");
    t.b.fill(128, b"moved on");
    for _ in 0..50 {
        let qpn = y.qpn();
        t.forge(t.path(), &packet(Service::Rc, Op::SendOnly, qpn, PSN, b"once...."));
        let mut write = packet(Service::Rc, Op::WriteOnly, qpn, PSN + 1, b"once....");
        write.reth = Some(Reth { va: at, rkey, len: 8 });
        t.forge(t.path(), &write);
        let mut again = packet(Service::Rc, Op::FetchAdd, qpn, PSN + 2, &[]);
        again.atomic = Some(AtomicEth { va: at + 64, rkey, swap_add: 5, compare: 0 });
        t.forge(t.path(), &again);
        let mut read = packet(Service::Rc, Op::ReadRequest, qpn, PSN + 3, &[]);
        read.reth = Some(Reth { va: at, rkey, len: 8 });
        t.forge(t.path(), &read);
    }
    t.f.nothing_more(&[&t.a, &t.b]);
    assert_eq!(t.b.read(0, 8), b"moved on");
    assert_eq!(t.b.read(128, 8), b"moved on");
    assert_eq!(t.b.read(64, 8), 5u64.to_ne_bytes());
    assert_eq!(y.counters().duplicates, 4 * 50 * PORTS.len() as u64);
    // The connection goes on, too.
    x.post_send(&wr(5, WrOpcode::Send), Payload::Sges(&[t.a.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&t.f.completions(&t.a, 1)), [(5, WcStatus::Success)]);
}

#[test]
fn answers_to_nothing_complete_nothing() {
    let t = Target::new(8);
    // Turned round: the victim is a requester whose requests nobody gets.
    let (x, y) = pair(&t.a, &t.b, QpType::Rc);
    t.f.network().unwrap().impair(Impairments { loss: 1.0, ..Impairments::default() });
    let before = t.b.read(0, 1 << 20);
    for i in 0..3 {
        y.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[t.b.sge(0, 8)])).unwrap();
    }
    for psn in [PSN - 1, PSN - 100, PSN + 3, PSN + 4, PSN + 1000, 0x7f_ffff] {
        for syndrome in 0..=255 {
            let mut forged = packet(Service::Rc, Op::Ack, y.qpn(), psn & 0xff_ffff, &[]);
            forged.aeth = Some(Aeth { syndrome, msn: 1 });
            t.forge(t.path(), &forged);
        }
        for op in Op::ALL.into_iter().filter(|op| op.is_response()) {
            t.forge(t.path(), &packet(Service::Rc, op, y.qpn(), psn & 0xff_ffff, &[9; 64]));
        }
    }
    assert_eq!(t.b.poll(), []);
    assert_eq!((y.state(), x.state()), (QpState::Rts, QpState::Rts));
    assert!(y.counters().dropped.stale > 1000);
    assert!(t.b.read(0, 1 << 20) == before);
    // Reserved syndromes of what was asked are nothing either.
    for syndrome in [0x40, 0x5f, 0x65, 0x7f, 0x80, 0xff] {
        let mut forged = packet(Service::Rc, Op::Ack, y.qpn(), PSN, &[]);
        forged.aeth = Some(Aeth { syndrome, msn: 1 });
        t.forge(t.path(), &forged);
    }
    assert_eq!(t.b.poll(), []);
    assert_eq!(y.state(), QpState::Rts);
    t.f.network().unwrap().impair(Impairments::default());
    t.works();
}

#[test]
fn answers_that_do_not_fit_fail_the_request_and_write_nothing() {
    // (what the peer answers, to a READ of 8 bytes at PSN)
    let wrong: [(Op, usize); 7] = [
        (Op::ReadRespOnly, 4),
        (Op::ReadRespOnly, 9),
        (Op::ReadRespOnly, 1024),
        (Op::ReadRespFirst, 1024),
        (Op::ReadRespMiddle, 8),
        (Op::ReadRespLast, 0),
        (Op::AtomicAck, 0),
    ];
    for (op, len) in wrong {
        let t = Target::new(9);
        let (_x, y) = pair(&t.a, &t.b, QpType::Rc);
        t.f.network().unwrap().impair(Impairments { loss: 1.0, ..Impairments::default() });
        let before = t.b.read(0, 1 << 20);
        y.post_send(&t.a.remote(1, WrOpcode::Read, 0), Payload::Sges(&[t.b.sge(100, 8)])).unwrap();
        y.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[])).unwrap();
        t.forge(t.path(), &packet(Service::Rc, op, y.qpn(), PSN, &vec![6; len]));
        let want = [(1, WcStatus::BadRespErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(outcomes(&t.b.poll()), want, "{op:?} of {len}");
        assert!(t.b.read(0, 1 << 20) == before, "{op:?} of {len}");
        assert_eq!(y.state(), QpState::Err);
        t.f.network().unwrap().impair(Impairments::default());
        t.works();
    }
}

#[test]
fn naks_of_every_code_end_the_request_they_name() {
    for (code, status) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr),
        (NakCode::RemoteOperational, WcStatus::RemOpErr),
        (NakCode::InvalidRdRequest, WcStatus::RemInvRdReqErr),
    ] {
        let t = Target::new(10);
        let (_x, y) = pair(&t.a, &t.b, QpType::Rc);
        t.f.network().unwrap().impair(Impairments { loss: 1.0, ..Impairments::default() });
        for i in 0..3 {
            y.post_send(&wr(i, WrOpcode::Send), Payload::Sges(&[t.b.sge(0, 8)])).unwrap();
        }
        let mut nak = packet(Service::Rc, Op::Ack, y.qpn(), PSN + 1, &[]);
        nak.aeth = Some(Aeth { syndrome: Syndrome::Nak(code).to_u8(), msn: 1 });
        t.forge(t.path(), &nak);
        // It acknowledges what came before it.
        let want = [(0, WcStatus::Success), (1, status), (2, WcStatus::WrFlushErr)];
        assert_eq!(outcomes(&t.b.poll()), want, "{code:?}");
    }
}

#[test]
fn a_peer_that_lies_about_lengths_writes_nowhere_else() {
    let mtu = 1024;
    // (operation, announced length, payload): each breaks a rule of IBA 9.7.4.1.
    let wrong: [(Op, u32, usize); 9] = [
        (Op::WriteOnly, 8, 9),
        (Op::WriteOnly, 100, 8),
        (Op::WriteOnly, 0, 8),
        (Op::WriteOnly, 8, 0),
        (Op::WriteOnly, u32::MAX, 8),
        (Op::WriteOnly, 2000, mtu + 4),
        (Op::WriteFirst, 2000, mtu - 4),
        (Op::WriteFirst, 100, mtu),
        (Op::ReadRequest, u32::MAX, 0),
    ];
    for (op, len, payload) in wrong {
        let t = Target::new(11);
        let (_x, y) = pair(&t.a, &t.b, QpType::Rc);
        let data = vec![0xee; payload];
        let mut forged = packet(Service::Rc, op, y.qpn(), PSN, &data);
        forged.reth = Some(Reth { va: t.b.memory.addr() + 4096, rkey: t.b.mr.rkey(), len });
        t.forge(t.path(), &forged);
        assert_eq!(y.state(), QpState::Err, "{op:?} {len} {payload}");
        let kind = t.f.event(&t.b).kind;
        let kinds = [EventKind::QpReqErr, EventKind::QpAccessErr];
        assert!(kinds.contains(&kind), "{op:?} {len} {payload}: {kind:?}");
        let got = t.b.read(0, 1 << 20);
        assert!(got[..4096] == t.contents[..4096]);
        let end = 4096 + len.min(1024) as usize;
        assert!(got[end..] == t.contents[end..], "{op:?} {len} {payload}");
        t.works();
    }
}

#[test]
fn a_message_cannot_go_on_as_another() {
    use Op::*;
    let starts = [SendFirst, WriteFirst];
    let next = Op::ALL.into_iter().filter(|op| !op.is_response() && !op.is_atomic());
    for start in starts {
        for op in next.clone() {
            let goes_on = if start == SendFirst {
                matches!(op, SendMiddle | SendLast | SendLastImm | SendLastInv)
            } else {
                matches!(op, WriteMiddle | WriteLast | WriteLastImm)
            };
            if goes_on {
                continue;
            }
            let t = Target::new(12);
            let (_x, y) = pair(&t.a, &t.b, QpType::Rc);
            y.post_recv(5, &[t.b.sge(0, 5000)]).unwrap();
            let mut first = packet(Service::Rc, start, y.qpn(), PSN, &[1; 1024]);
            let whole = Reth { va: t.b.memory.addr(), rkey: t.b.mr.rkey(), len: 3000 };
            first.reth = first.reth.map(|_| whole);
            t.inject(t.path(), &seal(&t.path(), PORTS[0], &body(&first)));
            assert_eq!(y.state(), QpState::Rts);
            let mut second = packet(Service::Rc, op, y.qpn(), PSN + 1, &[2; 1024]);
            second.reth = second.reth.map(|reth| Reth { len: reth.len.max(8), ..whole });
            t.inject(t.path(), &seal(&t.path(), PORTS[0], &body(&second)));
            assert_eq!(y.state(), QpState::Err, "{op:?} after {start:?}");
            assert_eq!(outcomes(&t.f.completions(&t.b, 1)), [(5, WcStatus::WrFlushErr)]);
            assert_eq!(t.f.event(&t.b).kind, EventKind::QpReqErr, "{op:?} after {start:?}");
            assert!(t.b.read(1024, (1 << 20) - 1024) == t.contents[1024..]);
            t.works();
        }
    }
}

#[test]
fn a_storm_from_the_peers_own_address_breaks_that_connection_at_most() {
    for seed in super::seeds() {
        let mut random = fastrand::Rng::with_seed(seed);
        let t = Target::new(seed);
        let victims = victims(&t);
        // What a peer may write: the rest must stay.
        let allowed = 0..8192u64;
        let (pd, addr) = (&t.b.pd, t.b.memory.addr());
        // SAFETY: within the mapping.
        let region = unsafe { pd.reg_mr(addr, allowed.end, addr, crate::side::ALL) }.unwrap();
        for _ in 0..300 {
            let (n, service) = random.choice(SERVICES.into_iter().enumerate()).unwrap();
            let y = &victims[n].1;
            let op = random.choice(Op::ALL).unwrap();
            let psn = PSN.wrapping_add(random.u32(0..8)).wrapping_sub(2) & 0xff_ffff;
            let data = vec![0xee; random.choice([0, 1, 8, 64, 1023, 1024, 1025, 4096]).unwrap()];
            let mut forged = packet(service, op, y.qpn(), psn, &data);
            let (va, rkey) = (addr + random.u64(0..9000), region.rkey());
            let len = if random.bool() { data.len() as u32 } else { random.u32(..10_000) };
            forged.reth = forged.reth.map(|_| Reth { va, rkey, len });
            forged.atomic = forged.atomic.map(|eth| AtomicEth { va, rkey, ..eth });
            forged.aeth =
                forged.aeth.map(|_| Aeth { syndrome: random.u8(..), msn: random.u32(..) });
            forged.deth = forged.deth.map(|_| Deth { qkey: QKEY, src_qpn: random.u32(..) });
            forged.bth.ack_req = random.bool();
            forged.bth.solicited = random.bool();
            t.inject(t.path(), &seal(&t.path(), PORTS[0], &body(&forged)));
            if random.u8(..) < 20 {
                t.f.settle();
            }
            if random.u8(..) < 40 {
                let _ = y.post_recv(6, &[t.b.sge(0, 8192)]);
            }
        }
        t.f.settle();
        t.a.poll();
        t.b.poll();
        while let Some(event) = t.b.next_event().or_else(|| t.a.next_event()) {
            event.ack();
        }
        let after = allowed.end as usize;
        assert!(t.b.read(after, (1 << 20) - after) == t.contents[after..], "seed {seed}");
        t.works();
    }
}
