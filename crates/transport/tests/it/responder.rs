//! The responder, packet by packet: what it takes, refuses, repeats and never does twice (IBA
//! 9.7.4, 9.7.5).

use crate::support::memory::{ALL, Memory};
use crate::support::net::{Outbox, Sent};
use crate::support::pair::{Options, PKEY, Pair};
use crate::support::rng::Rng;
use ironverbs_transport::device::{QpEvent, Queue};
use ironverbs_transport::qp::{Counters, Output};
use ironverbs_transport::verbs::{AttrMask, QpAttr, QpState, Sge, WcStatus};
use ironverbs_wire::{
    Aeth, AtomicEth, Bth, NakCode, Op, Packet, Path, Reth, Service, Syndrome, psn,
};

const PSN: u32 = 0xff_fffa;
const MTU: usize = 256;

/// A packet as operation, PSN after the first, and what its AETH says.
type Answer = (Op, u32, Option<(Syndrome, u32)>);

/// A responder in RTS, its peer being the test.
struct Bench {
    pair: Pair,
}

impl Bench {
    fn new(options: Options) -> Bench {
        let mut pair = Pair::connected(options);
        let region = pair.hosts[1].dev.register(8192, ALL);
        let mut bytes = vec![0; 8192];
        Rng(3).fill(&mut bytes);
        pair.hosts[1].dev.regions[region].bytes = bytes;
        Bench { pair }
    }

    fn dev(&mut self) -> &mut Memory {
        &mut self.pair.hosts[1].dev
    }

    fn counters(&self) -> Counters {
        *self.pair.hosts[1].qp.counters()
    }

    fn state(&self) -> QpState {
        self.pair.hosts[1].qp.state()
    }

    fn recv(&mut self, wr_id: u64, len: u32) {
        let sge = self.pair.hosts[1].dev.regions[0].sge(4096, len);
        self.pair.recv(1, wr_id, &[sge]);
    }

    /// A request `n` after the first, without payload and with AckReq.
    fn request(&self, n: u32, op: Op) -> Packet<'static> {
        let region = &self.pair.hosts[1].dev.regions[0];
        Packet {
            bth: Bth { pkey: PKEY, ack_req: true, psn: psn::add(PSN, n), ..Bth::default() },
            op,
            service: self.service(),
            reth: op.has_reth().then_some(Reth { va: region.base, rkey: region.rkey, len: 0 }),
            atomic: op.has_atomic_eth().then_some(AtomicEth {
                va: region.base,
                rkey: region.rkey,
                swap_add: 1,
                compare: 0,
            }),
            aeth: None,
            atomic_ack: None,
            deth: None,
            imm: op.has_imm().then_some(*b"imm!"),
            xrceth: None,
            ieth: None,
            payload: &[],
        }
    }

    fn service(&self) -> Service {
        match self.pair.options.qp_type {
            ironverbs_transport::verbs::QpType::Uc => Service::Uc,
            _ => Service::Rc,
        }
    }

    fn read(&self, n: u32, offset: u64, len: u32) -> Packet<'static> {
        let mut packet = self.request(n, Op::ReadRequest);
        packet.reth.as_mut().unwrap().va += offset;
        packet.reth.as_mut().unwrap().len = len;
        packet
    }

    fn give(&mut self, packet: &Packet<'_>) {
        let path = self.pair.path(0);
        self.give_from(packet, &path);
    }

    fn give_from(&mut self, packet: &Packet<'_>, path: &Path) {
        let now = self.pair.net.now;
        let host = &mut self.pair.hosts[1];
        host.qp.handle_packet(packet, path, 0, now, &mut host.dev);
    }

    /// What the responder sends now.
    fn sent(&mut self) -> Vec<Sent> {
        self.sent_up_to(1000)
    }

    fn sent_up_to(&mut self, room: usize) -> Vec<Sent> {
        let now = self.pair.net.now;
        let host = &mut self.pair.hosts[1];
        let mut outbox = Outbox::new(room);
        host.qp.transmit(now, &mut host.dev, &mut outbox);
        outbox.packets
    }

    /// The same in short.
    fn answers(&mut self) -> Vec<Answer> {
        self.sent().iter().map(|sent| answer(&sent.packet())).collect()
    }
}

fn answer(packet: &Packet<'_>) -> Answer {
    let told = |aeth: Aeth| (Syndrome::from_u8(aeth.syndrome).unwrap(), aeth.msn);
    (packet.op, psn::sub(packet.bth.psn, PSN), packet.aeth.map(told))
}

fn ack(n: u32, msn: u32) -> Answer {
    (Op::Ack, n, Some((Syndrome::Ack { credits: 31 }, msn)))
}

fn nak(n: u32, code: NakCode, msn: u32) -> Answer {
    (Op::Ack, n, Some((Syndrome::Nak(code), msn)))
}

#[test]
fn one_acknowledgement_serves_several_requests() {
    let mut bench = Bench::new(Options::default());
    for n in 0..10 {
        bench.give(&bench.request(n, Op::WriteOnly));
    }
    assert_eq!(bench.pair.hosts[1].qp.output(), Output::AcksOnly);
    assert_eq!(bench.answers(), [ack(9, 10)]);
    assert_eq!(bench.pair.hosts[1].qp.output(), Output::None);
}

#[test]
fn nothing_is_acknowledged_that_does_not_ask() {
    let mut bench = Bench::new(Options::default());
    let mut packet = bench.request(0, Op::WriteOnly);
    packet.bth.ack_req = false;
    bench.give(&packet);
    assert_eq!(bench.answers(), []);
    bench.give(&bench.request(1, Op::WriteOnly));
    assert_eq!(bench.answers(), [ack(1, 2)]);
}

#[test]
fn one_nak_per_gap() {
    let mut bench = Bench::new(Options::default());
    bench.give(&bench.request(0, Op::WriteOnly));
    for n in 2..6 {
        bench.give(&bench.request(n, Op::WriteOnly));
    }
    // Kernel rxe takes the NAK alone for no acknowledgement of the WRITE.
    assert_eq!(bench.answers(), [ack(0, 1), nak(1, NakCode::PsnSequence, 1)]);
    bench.give(&bench.request(7, Op::WriteOnly));
    assert_eq!(bench.answers(), []);
    bench.give(&bench.request(1, Op::WriteOnly));
    bench.give(&bench.request(3, Op::WriteOnly));
    assert_eq!(bench.answers(), [ack(1, 2), nak(2, NakCode::PsnSequence, 2)]);
    assert_eq!(bench.counters().seq_naks_sent, 2);
    assert_eq!(bench.counters().dropped.sequence, 6);
}

#[test]
fn no_acknowledgement_goes_before_a_nak_where_it_could_be_taken_for_something_else() {
    // Of nothing, of the answer to a READ, of a message that goes on.
    let mut bench = Bench::new(Options::default());
    bench.give(&bench.request(1, Op::WriteOnly));
    assert_eq!(bench.answers(), [nak(0, NakCode::PsnSequence, 0)]);
    bench.give(&bench.read(0, 0, 10));
    bench.give(&bench.request(2, Op::WriteOnly));
    let answers = bench.answers();
    assert_eq!(answers.first().map(|answer| answer.0), Some(Op::ReadRespOnly));
    assert_eq!(answers[1..], [nak(1, NakCode::PsnSequence, 1)]);
    let payload = [7; MTU];
    let mut first = Packet { payload: &payload, ..bench.request(1, Op::WriteFirst) };
    first.reth.as_mut().unwrap().len = 2 * MTU as u32 + 1;
    first.bth.ack_req = false;
    bench.give(&first);
    bench.give(&Packet { payload: &payload[..1], ..bench.request(3, Op::WriteLast) });
    assert_eq!(bench.answers(), [nak(2, NakCode::PsnSequence, 1)]);
}

#[test]
fn a_gap_that_closes_before_the_nak_has_left_needs_none() {
    let mut bench = Bench::new(Options::default());
    bench.give(&bench.request(1, Op::WriteOnly));
    bench.give(&bench.request(0, Op::WriteOnly));
    assert_eq!(bench.answers(), [ack(0, 1)]);
}

#[test]
fn duplicates_are_acknowledged_with_the_latest_psn_and_not_carried_out() {
    let mut bench = Bench::new(Options::default());
    bench.recv(1, 100);
    bench.recv(2, 100);
    let send = Packet { payload: b"once", ..bench.request(0, Op::SendOnly) };
    bench.give(&send);
    bench.give(&bench.request(1, Op::WriteOnly));
    assert_eq!(bench.answers(), [ack(1, 2)]);
    bench.give(&send);
    assert_eq!(bench.answers(), [ack(1, 2)]);
    assert_eq!(bench.pair.poll(1, Queue::Recv).unwrap().wr_id, 1);
    assert_eq!(bench.pair.poll(1, Queue::Recv), None);
    assert_eq!(bench.counters().duplicates, 1);
}

#[test]
fn duplicates_in_the_middle_of_a_message_leave_its_sequence_intact() {
    let mut bench = Bench::new(Options::default());
    let payload = [7; MTU];
    bench.give(&bench.read(0, 0, 10));
    let mut first = Packet { payload: &payload, ..bench.request(1, Op::WriteFirst) };
    first.reth.as_mut().unwrap().len = 2 * MTU as u32 + 1;
    bench.give(&first);
    bench.sent();
    bench.give(&bench.read(0, 0, 10));
    bench.give(&first);
    bench.give(&Packet { payload: &payload, ..bench.request(2, Op::WriteMiddle) });
    bench.give(&bench.read(0, 0, 10));
    bench.give(&Packet { payload: &payload[..1], ..bench.request(3, Op::WriteLast) });
    let answers = bench.answers();
    assert_eq!(answers.last(), Some(&ack(3, 2)));
    assert_eq!(answers[0].0, Op::ReadRespOnly);
    assert_eq!(bench.state(), QpState::Rts);
}

#[test]
fn reads_are_answered_in_psn_order_before_later_acknowledgements() {
    let mut bench = Bench::new(Options::default());
    bench.give(&bench.request(0, Op::WriteOnly));
    bench.give(&bench.read(1, 0, 3 * MTU as u32 - 1));
    bench.give(&bench.request(4, Op::WriteOnly));
    bench.give(&bench.request(5, Op::FetchAdd));
    bench.give(&bench.request(6, Op::WriteOnly));
    let aeth = Some((Syndrome::Ack { credits: 31 }, 2));
    let atomic = Some((Syndrome::Ack { credits: 31 }, 4));
    assert_eq!(
        bench.answers(),
        [
            (Op::ReadRespFirst, 1, aeth),
            (Op::ReadRespMiddle, 2, None),
            (Op::ReadRespLast, 3, aeth),
            (Op::AtomicAck, 5, atomic),
            ack(6, 5),
        ]
    );
}

#[test]
fn part_of_a_read_is_answered_again() {
    let mut bench = Bench::new(Options::default());
    let len = 4 * MTU as u32 - 7;
    bench.give(&bench.read(0, 16, len));
    let all = bench.sent();
    assert_eq!(all.len(), 4);
    // From the third packet on.
    bench.give(&bench.read(2, 16 + 2 * MTU as u64, len - 2 * MTU as u32));
    let part = bench.sent();
    let ops: Vec<_> = part.iter().map(|sent| sent.packet().op).collect();
    assert_eq!(ops, [Op::ReadRespFirst, Op::ReadRespLast]);
    for (again, original) in part.iter().zip(&all[2..]) {
        assert_eq!(again.packet().payload, original.packet().payload);
        assert_eq!(again.packet().bth.psn, original.packet().bth.psn);
    }
    // Of the middle only.
    bench.give(&bench.read(1, 16 + MTU as u64, MTU as u32));
    let part = bench.sent();
    assert_eq!(part.len(), 1);
    assert_eq!(part[0].packet().op, Op::ReadRespOnly);
    assert_eq!(part[0].packet().payload, all[1].packet().payload);
}

#[test]
fn a_repeated_read_cannot_reach_beyond_the_original() {
    let mut bench = Bench::new(Options::default());
    bench.give(&bench.read(0, 0, 2 * MTU as u32));
    assert_eq!(bench.sent().len(), 2);
    let foreign_key = {
        let mut packet = bench.read(0, 0, 2 * MTU as u32);
        packet.reth.as_mut().unwrap().rkey ^= 1;
        packet
    };
    for packet in [
        bench.read(0, 1, 2 * MTU as u32),
        bench.read(0, 0, 2 * MTU as u32 + 1),
        bench.read(1, MTU as u64, MTU as u32 + 1),
        bench.read(1, 0, MTU as u32),
        bench.read(0, 0, u32::MAX),
        foreign_key,
    ] {
        bench.give(&packet);
        assert_eq!(bench.answers(), []);
    }
    assert_eq!(bench.counters().dropped.stale, 6);
    assert_eq!(bench.state(), QpState::Rts);
}

#[test]
fn atomics_run_once_and_their_result_is_repeated() {
    let mut bench = Bench::new(Options::default());
    let results =
        |sent: Vec<Sent>| -> Vec<_> { sent.iter().map(|sent| sent.packet().atomic_ack).collect() };
    let before = bench.dev().regions[0].bytes[..8].to_vec();
    let value = u64::from_ne_bytes(before.try_into().unwrap());
    for n in 0..4 {
        bench.give(&bench.request(n, Op::FetchAdd));
    }
    let first = results(bench.sent());
    assert_eq!(first, (0..4).map(|n| Some(value.wrapping_add(n))).collect::<Vec<_>>());
    for n in 0..4 {
        bench.give(&bench.request(n, Op::FetchAdd));
    }
    assert_eq!(results(bench.sent()), first);
    assert_eq!(bench.dev().atomics, 4);
    // The fifth takes the place of the first, which then is not answered any more.
    bench.give(&bench.request(4, Op::FetchAdd));
    bench.sent();
    bench.give(&bench.request(0, Op::FetchAdd));
    assert_eq!(bench.answers(), []);
    assert_eq!(bench.dev().atomics, 5);
}

#[test]
fn an_atomic_write_runs_once_and_is_answered_again() {
    let mut bench = Bench::new(Options::default());
    let base = bench.dev().regions[0].base;
    let write = |bench: &Bench, n, payload| {
        let reth = bench.request(n, Op::AtomicWrite).reth.map(|reth| Reth { len: 8, ..reth });
        Packet { reth, payload, ..bench.request(n, Op::AtomicWrite) }
    };
    let answered = |bench: &mut Bench| -> Vec<_> {
        bench.sent().iter().map(|sent| (sent.packet().op, sent.packet().payload.len())).collect()
    };
    bench.give(&write(&bench, 0, b"12345678"));
    assert_eq!(&bench.dev().regions[0].bytes[..8], b"12345678");
    assert_eq!(answered(&mut bench), [(Op::ReadRespOnly, 0)]);
    bench.give(&write(&bench, 0, b"abcdefgh"));
    assert_eq!(answered(&mut bench), [(Op::ReadRespOnly, 0)]);
    assert_eq!(&bench.dev().regions[0].bytes[..8], b"12345678");
    // Of another length, or to an address that is no multiple of eight.
    for (va, len, payload) in
        [(base, 8, b"abcd".as_slice()), (base, 4, b"abcd"), (base + 4, 8, b"abcdefgh")]
    {
        let mut bench = Bench::new(Options::default());
        let before = bench.dev().regions[0].bytes[..16].to_vec();
        let packet = bench.request(0, Op::AtomicWrite);
        let reth = packet.reth.map(|reth| Reth { va, len, ..reth });
        bench.give(&Packet { reth, payload, ..packet });
        assert_eq!(bench.state(), QpState::Err);
        assert_eq!(bench.dev().regions[0].bytes[..16], before);
    }
}

#[test]
fn more_reads_than_agreed_are_an_invalid_request() {
    let mut bench = Bench::new(Options { max_dest_rd_atomic: 2, ..Options::default() });
    for n in 0..3 {
        bench.give(&bench.read(n, 0, 8));
    }
    let answers = bench.answers();
    let ops: Vec<_> = answers.iter().map(|&(op, n, _)| (op, n)).collect();
    assert_eq!(ops, [(Op::ReadRespOnly, 0), (Op::ReadRespOnly, 1), (Op::Ack, 2)]);
    assert_eq!(answers[2], nak(2, NakCode::InvalidRequest, 2));
    assert_eq!(bench.state(), QpState::Err);
    assert_eq!(bench.dev().events, [QpEvent::RequestError]);
}

#[test]
fn the_number_of_reads_kept_can_be_changed_in_sqd() {
    let mut bench = Bench::new(Options { max_dest_rd_atomic: 1, ..Options::default() });
    let mut attr = QpAttr { state: QpState::Sqd, max_dest_rd_atomic: 2, ..QpAttr::default() };
    bench.pair.modify(1, attr, AttrMask::STATE);
    bench.pair.modify(1, attr, AttrMask::MAX_DEST_RD_ATOMIC);
    bench.give(&bench.read(0, 0, 8));
    bench.give(&bench.read(1, 0, 8));
    assert_eq!(bench.answers().len(), 2);
    assert_eq!(bench.state(), QpState::Sqd);
    attr.max_dest_rd_atomic = 1;
    bench.pair.modify(1, attr, AttrMask::MAX_DEST_RD_ATOMIC);
    bench.give(&bench.read(2, 0, 8));
    bench.sent();
    // Only the last is kept.
    bench.give(&bench.read(1, 0, 8));
    assert_eq!(bench.answers(), []);
    bench.give(&bench.read(2, 0, 8));
    assert_eq!(bench.answers().len(), 1);
}

#[test]
fn opcodes_out_of_sequence_are_invalid_requests() {
    let sequences: [&[Op]; 12] = [
        &[Op::SendMiddle],
        &[Op::SendLast],
        &[Op::WriteMiddle],
        &[Op::WriteLastImm],
        &[Op::SendFirst, Op::SendFirst],
        &[Op::SendFirst, Op::SendOnly],
        &[Op::SendFirst, Op::WriteLast],
        &[Op::WriteFirst, Op::SendMiddle],
        &[Op::WriteFirst, Op::WriteOnly],
        &[Op::WriteFirst, Op::ReadRequest],
        &[Op::SendFirst, Op::FetchAdd],
        &[Op::SendFirst, Op::SendMiddle, Op::WriteMiddle],
    ];
    let payload = [0; MTU];
    for sequence in sequences {
        let mut bench = Bench::new(Options::default());
        bench.recv(1, 4096);
        for (n, &op) in sequence.iter().enumerate() {
            let mut packet = bench.request(n as u32, op);
            if op.has_payload() {
                packet.payload = &payload;
            }
            if let Some(reth) = &mut packet.reth {
                reth.len = 1000;
            }
            bench.give(&packet);
        }
        let last = sequence.len() as u32 - 1;
        let code = NakCode::InvalidRequest;
        assert_eq!(bench.answers().last(), Some(&nak(last, code, 0)), "{sequence:?}");
        assert_eq!(bench.state(), QpState::Err);
        assert_eq!(bench.pair.poll(1, Queue::Recv).unwrap().status, WcStatus::WrFlushErr);
    }
}

#[test]
fn lengths_that_do_not_fit_are_invalid_requests() {
    let payload = [0; MTU + 4];
    let cases: [(Op, usize, u32); 7] = [
        (Op::SendFirst, MTU - 1, 0),
        (Op::SendFirst, 0, 0),
        (Op::SendOnly, MTU + 1, 0),
        (Op::WriteFirst, MTU, MTU as u32 - 1),
        (Op::WriteOnly, 10, 11),
        (Op::WriteOnly, 10, 9),
        (Op::ReadRequest, 0, (1 << 31) + 1),
    ];
    for (op, len, announced) in cases {
        let mut bench = Bench::new(Options::default());
        bench.recv(1, 4096);
        let mut packet = Packet { payload: &payload[..len], ..bench.request(0, op) };
        if let Some(reth) = &mut packet.reth {
            reth.len = announced;
        }
        bench.give(&packet);
        assert_eq!(bench.answers(), [nak(0, NakCode::InvalidRequest, 0)], "{op:?} {len}");
    }
    // An empty last packet, and a message longer than announced at its end.
    for (last, len) in [(Op::SendLast, 0), (Op::WriteLast, 2)] {
        let mut bench = Bench::new(Options::default());
        bench.recv(1, 4096);
        let first = if last == Op::SendLast { Op::SendFirst } else { Op::WriteFirst };
        let mut packet = Packet { payload: &payload[..MTU], ..bench.request(0, first) };
        if let Some(reth) = &mut packet.reth {
            reth.len = MTU as u32 + 1;
        }
        bench.give(&packet);
        bench.give(&Packet { payload: &payload[..len], ..bench.request(1, last) });
        assert_eq!(bench.answers().last(), Some(&nak(1, NakCode::InvalidRequest, 0)), "{last:?}");
    }
}

#[test]
fn no_receive_is_told_with_the_timer_and_the_message_waits() {
    let mut bench = Bench::new(Options { min_rnr_timer: 17, ..Options::default() });
    let rnr = |n, msn| (Op::Ack, n, Some((Syndrome::Rnr { timer: 17 }, msn)));
    let payload = [9; MTU];
    let send = Packet { payload: &payload, ..bench.request(0, Op::SendFirst) };
    bench.give(&send);
    // What follows belongs to the same message, and is not complained about.
    bench.give(&Packet { payload: &payload, ..bench.request(1, Op::SendLast) });
    assert_eq!(bench.answers(), [rnr(0, 0)]);
    bench.give(&send);
    assert_eq!(bench.answers(), [rnr(0, 0)]);
    bench.recv(1, 1000);
    bench.give(&send);
    bench.give(&Packet { payload: &payload, ..bench.request(1, Op::SendLast) });
    assert_eq!(bench.answers(), [ack(1, 1)]);
    assert_eq!(bench.pair.poll(1, Queue::Recv).unwrap().byte_len, 2 * MTU as u32);
    assert_eq!(bench.counters().rnr_naks_sent, 2);
}

#[test]
fn packets_of_strangers_are_dropped_and_counted() {
    let mut bench = Bench::new(Options::default());
    let packet = bench.request(0, Op::WriteOnly);
    let good = bench.pair.path(0);
    bench.give_from(&packet, &Path { src: good.dst, ..good });
    bench.give_from(&packet, &Path { dst: good.src, ..good });
    assert_eq!(bench.counters().dropped.peer, 2);
    bench.give(&Packet { service: Service::Uc, ..packet });
    assert_eq!(bench.counters().dropped.service, 1);
    bench.give(&Packet { bth: Bth { pkey: 0x1234, ..packet.bth }, ..packet });
    assert_eq!(bench.counters().dropped.pkey, 1);
    assert_eq!(bench.answers(), []);
    // A limited member of the same partition may talk to a full one, but not to another.
    let limited = Packet { bth: Bth { pkey: 0x7fff, ..packet.bth }, ..packet };
    bench.give(&limited);
    assert_eq!(bench.answers(), [ack(0, 1)]);
    let mut bench = Bench::new(Options { pkey: 0x7fff, ..Options::default() });
    bench.give(&limited);
    assert_eq!(bench.counters().dropped.pkey, 1);
    bench.give(&packet);
    assert_eq!(bench.answers(), [ack(0, 1)]);
}

#[test]
fn a_read_repeated_while_it_is_answered_starts_over_from_there() {
    let mut bench = Bench::new(Options::default());
    let len = 4 * MTU as u32;
    bench.give(&bench.read(0, 0, len));
    assert_eq!(bench.sent_up_to(3).len(), 3);
    bench.give(&bench.read(1, MTU as u64, len - MTU as u32));
    let ops: Vec<_> = bench.answers().iter().map(|&(op, n, _)| (op, n)).collect();
    let first = Op::ReadRespFirst;
    assert_eq!(ops, [(first, 1), (Op::ReadRespMiddle, 2), (Op::ReadRespLast, 3)]);
    // What has not been sent yet is not to be sent twice.
    bench.give(&bench.read(4, 0, len));
    assert_eq!(bench.sent_up_to(1).len(), 1);
    bench.give(&bench.read(6, 2 * MTU as u64, len - 2 * MTU as u32));
    assert_eq!(bench.sent().len(), 3);
}

#[test]
fn states_that_do_not_receive_drop() {
    for state in [QpState::Reset, QpState::Err] {
        let mut bench = Bench::new(Options::default());
        bench.pair.enter(1, state);
        bench.give(&bench.request(0, Op::WriteOnly));
        assert_eq!(bench.answers(), []);
        let dropped = bench.counters().dropped;
        assert_eq!(dropped.state + dropped.peer + dropped.pkey, 1, "{state:?}");
    }
}

#[test]
fn zero_length_reads_take_a_psn() {
    let mut bench = Bench::new(Options::default());
    bench.give(&bench.read(0, 0, 0));
    bench.give(&bench.request(1, Op::WriteOnly));
    let answers = bench.answers();
    assert_eq!((answers[0].0, answers[0].1), (Op::ReadRespOnly, 0));
    assert_eq!(answers[1], ack(1, 2));
}

#[test]
fn a_long_read_is_made_as_the_sink_takes_it() {
    let mut bench = Bench::new(Options::default());
    bench.dev().regions[0].bytes = vec![5; 1 << 20];
    bench.give(&bench.read(0, 0, 1 << 20));
    let now = bench.pair.net.now;
    let host = &mut bench.pair.hosts[1];
    let mut total = 0;
    while host.qp.output() != Output::None {
        let mut outbox = Outbox::new(7);
        host.qp.transmit(now, &mut host.dev, &mut outbox);
        assert!(outbox.packets.len() <= 7);
        total += outbox.packets.len();
    }
    assert_eq!(total, (1 << 20) / MTU);
}

#[test]
fn whatever_a_peer_sends_is_survived() {
    for seed in 0..2_000 {
        let mut rng = Rng(seed);
        let mut bench = Bench::new(Options::default());
        for id in 0..4 {
            bench.recv(id, 500);
        }
        let payload = [1; MTU + 8];
        for _ in 0..40 {
            let op = *rng.pick(&Op::ALL);
            let near = rng.below(6) as u32;
            let n = if rng.percent(90) { near } else { rng.next() as u32 };
            let mut packet = bench.request(n, op);
            packet.bth.psn &= psn::MASK;
            if op.has_payload() {
                let lens = [0, 1, MTU - 1, MTU, MTU, MTU, MTU + 8];
                packet.payload = &payload[..*rng.pick(&lens)];
            }
            let values = [0, 1, 256, 257, 8192, 8193, 1 << 31, u32::MAX];
            if let Some(reth) = &mut packet.reth {
                reth.len = *rng.pick(&values);
                reth.va = if rng.percent(80) { reth.va } else { rng.next() };
            }
            packet.ieth = op.has_ieth().then_some(*rng.pick(&values));
            packet.aeth = op
                .has_aeth()
                .then_some(Aeth { syndrome: rng.next() as u8, msn: rng.next() as u32 });
            packet.atomic_ack = (op == Op::AtomicAck).then_some(1);
            bench.give(&packet);
            if rng.percent(50) {
                let now = bench.pair.net.now;
                let host = &mut bench.pair.hosts[1];
                host.qp.transmit(now, &mut host.dev, &mut Outbox::new(5));
            }
        }
        // Whatever it was, the QP can be brought back.
        bench.pair.enter(1, QpState::Reset);
        bench.pair.connect_side(1);
        bench.dev().completions.clear();
        bench.give(&bench.request(0, Op::WriteOnly));
        assert_eq!(bench.answers(), [ack(0, 1)]);
    }
}

#[test]
fn an_unreliable_connection_drops_what_has_gaps_and_keeps_its_receive() {
    let qp_type = ironverbs_transport::verbs::QpType::Uc;
    let mut bench = Bench::new(Options { qp_type, ..Options::default() });
    let payload = [4; MTU];
    bench.recv(1, 1000);
    let part = |bench: &Bench, n, op| Packet { payload: &payload, ..bench.request(n, op) };
    // The middle is lost, then the first, then nothing.
    bench.give(&part(&bench, 0, Op::SendFirst));
    bench.give(&part(&bench, 2, Op::SendLast));
    bench.give(&part(&bench, 4, Op::SendLast));
    assert_eq!(bench.pair.poll(1, Queue::Recv), None);
    bench.give(&part(&bench, 6, Op::SendFirst));
    bench.give(&part(&bench, 7, Op::SendLast));
    let wc = bench.pair.poll(1, Queue::Recv).unwrap();
    assert_eq!((wc.wr_id, wc.byte_len), (1, 2 * MTU as u32));
    // No receive, too long, no right: dropped, and the QP goes on.
    bench.give(&part(&bench, 8, Op::SendOnly));
    bench.recv(2, 10);
    bench.give(&part(&bench, 9, Op::SendOnly));
    let mut write = part(&bench, 10, Op::WriteOnly);
    write.reth = Some(Reth { va: 0, rkey: 1, len: MTU as u32 });
    bench.give(&write);
    assert_eq!(bench.pair.poll(1, Queue::Recv), None);
    assert_eq!(bench.counters().dropped.message, 5);
    assert_eq!(bench.counters().dropped.no_receive, 1);
    assert_eq!((bench.answers(), bench.state()), (vec![], QpState::Rts));
    bench.give(&Packet { payload: b"fits", ..bench.request(11, Op::SendOnlyImm) });
    let wc = bench.pair.poll(1, Queue::Recv).unwrap();
    assert_eq!((wc.wr_id, wc.byte_len, wc.imm), (2, 4, *b"imm!"));
    // Memory of this side that is not there ends the QP.
    bench.pair.recv(1, 3, &[Sge { addr: 0, len: 100, lkey: 0x99 }]);
    bench.give(&Packet { payload: b"fits", ..bench.request(12, Op::SendOnly) });
    assert_eq!(bench.pair.poll(1, Queue::Recv).unwrap().status, WcStatus::LocProtErr);
    assert_eq!(bench.state(), QpState::Err);
}
