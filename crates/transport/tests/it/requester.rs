//! The requester, answer by answer: what it believes and what it does not (IBA 9.7.6).

use ironverbs_transport::device::Queue;
use ironverbs_transport::qp::Counters;
use ironverbs_transport::verbs::{QpState, SendFlags, SendWr, VendorErr, Wc, WcStatus, WrOpcode};
use ironverbs_wire::{Aeth, Bth, NakCode, Op, Packet, Service, Syndrome, psn};

use crate::support::memory::ALL;
use crate::support::net::Outbox;
use crate::support::pair::{Options, PKEY, Pair};
use crate::support::wr;

const PSN: u32 = 0xff_fffa;
const PAYLOAD: [u8; 256] = [9; 256];
const ACK: Syndrome = Syndrome::Ack { credits: 31 };

/// A requester in RTS, its peer being the test.
struct Bench {
    pair: Pair,
}

impl Bench {
    fn new() -> Bench {
        Bench::with(Options::default())
    }

    fn with(options: Options) -> Bench {
        let mut pair = Pair::connected(options);
        pair.hosts[0].dev.register(1 << 20, ALL);
        Bench { pair }
    }

    /// Posts a request of `len` bytes and gives what is sent.
    fn post(&mut self, wr_id: u64, opcode: WrOpcode, len: u32) -> Vec<(Op, u32)> {
        let sge = self.pair.hosts[0].dev.regions[0].sge(0, len);
        let request = SendWr { remote_addr: 0x1000, rkey: 5, ..wr(wr_id, opcode) };
        self.pair.send(0, &request, &[sge]);
        self.sent()
    }

    fn sent(&mut self) -> Vec<(Op, u32)> {
        self.packets().into_iter().map(|(op, n, _)| (op, n)).collect()
    }

    /// Operation, PSN after the first, and AckReq of what is sent.
    fn packets(&mut self) -> Vec<(Op, u32, bool)> {
        let now = self.pair.net.now;
        let host = &mut self.pair.hosts[0];
        let mut outbox = Outbox::new(1000);
        host.qp.transmit(now, &mut host.dev, &mut outbox);
        let short =
            |packet: Packet<'_>| (packet.op, psn::sub(packet.bth.psn, PSN), packet.bth.ack_req);
        outbox.packets.iter().map(|sent| short(sent.packet())).collect()
    }

    fn answer(&mut self, n: u32, op: Op, syndrome: Syndrome, payload: &[u8]) {
        let packet = Packet {
            bth: Bth { pkey: PKEY, psn: psn::add(PSN, n), ..Bth::default() },
            op,
            service: Service::Rc,
            reth: None,
            atomic: None,
            aeth: op.has_aeth().then_some(Aeth { syndrome: syndrome.to_u8(), msn: 1 }),
            atomic_ack: (op == Op::AtomicAck).then_some(7),
            deth: None,
            imm: None,
            xrceth: None,
            ieth: None,
            payload,
        };
        let (path, now) = (self.pair.path(1), self.pair.net.now);
        let host = &mut self.pair.hosts[0];
        host.qp.handle_packet(&packet, &path, 0, now, &mut host.dev);
    }

    fn ack(&mut self, n: u32) {
        self.answer(n, Op::Ack, ACK, &[]);
    }

    fn poll(&mut self) -> Option<Wc> {
        self.pair.poll(0, Queue::Send)
    }

    fn completed(&mut self) -> Vec<(u64, WcStatus)> {
        std::iter::from_fn(|| self.poll()).map(|wc| (wc.wr_id, wc.status)).collect()
    }

    fn counters(&self) -> Counters {
        *self.pair.hosts[0].qp.counters()
    }
}

#[test]
fn one_acknowledgement_completes_all_before_it_in_order() {
    let mut bench = Bench::new();
    for id in 0..5 {
        bench.post(id, WrOpcode::Send, 300);
    }
    bench.ack(6);
    let done =
        |ids: std::ops::Range<u64>| -> Vec<_> { ids.map(|id| (id, WcStatus::Success)).collect() };
    assert_eq!(bench.completed(), done(0..3));
    bench.ack(9);
    assert_eq!(bench.completed(), done(3..5));
}

#[test]
fn answers_to_what_was_not_sent_or_is_done_are_ignored() {
    let mut bench = Bench::new();
    bench.ack(0);
    bench.post(1, WrOpcode::Send, 300);
    bench.ack(2);
    bench.ack(0xff_0000);
    bench.answer(5, Op::Ack, Syndrome::Nak(NakCode::RemoteAccess), &[]);
    assert_eq!(bench.poll(), None);
    bench.ack(1);
    assert_eq!(bench.completed(), [(1, WcStatus::Success)]);
    bench.ack(1);
    bench.answer(1, Op::Ack, Syndrome::Nak(NakCode::RemoteAccess), &[]);
    assert_eq!(bench.pair.hosts[0].qp.state(), QpState::Rts);
    assert_eq!(bench.counters().dropped.stale, 6);
}

#[test]
fn answers_that_do_not_fit_the_request_are_bad_responses() {
    let cases: [(WrOpcode, u32, u32, Op, usize); 12] = [
        (WrOpcode::Read, 600, 0, Op::ReadRespFirst, 255),
        (WrOpcode::Read, 600, 0, Op::ReadRespOnly, 256),
        (WrOpcode::Read, 600, 0, Op::ReadRespLast, 256),
        (WrOpcode::Read, 256, 0, Op::ReadRespFirst, 256),
        (WrOpcode::Read, 10, 0, Op::ReadRespOnly, 11),
        (WrOpcode::Read, 10, 0, Op::ReadRespOnly, 0),
        (WrOpcode::Read, 8, 0, Op::AtomicAck, 0),
        (WrOpcode::FetchAdd, 8, 0, Op::ReadRespOnly, 8),
        (WrOpcode::AtomicWrite, 8, 0, Op::ReadRespOnly, 8),
        (WrOpcode::AtomicWrite, 8, 0, Op::ReadRespFirst, 0),
        (WrOpcode::AtomicWrite, 8, 0, Op::AtomicAck, 0),
        (WrOpcode::Send, 8, 0, Op::ReadRespOnly, 8),
    ];
    for (opcode, len, n, op, payload) in cases {
        let mut bench = Bench::new();
        bench.post(1, opcode, len);
        bench.answer(n, op, ACK, &PAYLOAD[..payload]);
        let wc = bench.poll().unwrap();
        assert_eq!(wc.status, WcStatus::BadRespErr, "{opcode:?} {op:?} {payload}");
        assert_eq!(wc.vendor_err, VendorErr::BadResponse as u32);
        assert!(bench.pair.hosts[0].dev.regions[0].bytes.iter().all(|&byte| byte == 0));
    }
}

#[test]
fn a_response_acknowledges_what_was_sent_before_its_request() {
    let mut bench = Bench::new();
    bench.post(1, WrOpcode::Send, 300);
    bench.post(2, WrOpcode::FetchAdd, 8);
    bench.answer(2, Op::AtomicAck, ACK, &[]);
    assert_eq!(bench.completed(), [(1, WcStatus::Success), (2, WcStatus::Success)]);
    assert_eq!(bench.pair.hosts[0].dev.regions[0].bytes[..8], 7u64.to_ne_bytes());
}

#[test]
fn going_back_does_not_repeat_what_is_acknowledged() {
    let mut bench = Bench::new();
    assert_eq!(bench.post(1, WrOpcode::Read, 600), [(Op::ReadRequest, 0)]);
    assert_eq!(bench.post(2, WrOpcode::Send, 300), [(Op::SendFirst, 3), (Op::SendLast, 4)]);
    assert_eq!(bench.post(3, WrOpcode::Send, 8), [(Op::SendOnly, 5)]);
    bench.answer(0, Op::ReadRespFirst, ACK, &PAYLOAD);
    // The rest of the READ is missing, the first packet of the first SEND has arrived.
    bench.ack(3);
    assert_eq!(bench.sent(), [(Op::ReadRequest, 1), (Op::SendLast, 4), (Op::SendOnly, 5)]);
    // Complaints from before change nothing.
    bench.ack(4);
    assert_eq!(bench.sent(), []);
    bench.answer(1, Op::ReadRespFirst, ACK, &PAYLOAD);
    bench.answer(2, Op::ReadRespLast, ACK, &PAYLOAD[..88]);
    let success = WcStatus::Success;
    assert_eq!(bench.completed(), [(1, success), (2, success)]);
    bench.ack(5);
    assert_eq!(bench.completed(), [(3, success)]);
}

#[test]
fn a_sequence_nak_repeats_from_its_packet_on() {
    let mut bench = Bench::new();
    bench.post(1, WrOpcode::Send, 600);
    bench.post(2, WrOpcode::Send, 600);
    bench.answer(4, Op::Ack, Syndrome::Nak(NakCode::PsnSequence), &[]);
    assert_eq!(bench.completed(), [(1, WcStatus::Success)]);
    assert_eq!(bench.sent(), [(Op::SendMiddle, 4), (Op::SendLast, 5)]);
    bench.answer(4, Op::Ack, Syndrome::Nak(NakCode::PsnSequence), &[]);
    assert_eq!(bench.sent(), [], "once is enough until the packet has arrived");
}

#[test]
fn unsignaled_requests_complete_in_silence_and_free_their_place() {
    let mut bench = Bench::new();
    for round in 0..200 {
        let request = SendWr { flags: SendFlags::empty(), ..wr(round, WrOpcode::Send) };
        bench.pair.send(0, &request, &[]);
        bench.sent();
        bench.ack(round as u32);
    }
    assert_eq!(bench.completed(), []);
    assert_eq!(bench.counters().tx_messages, 200);
}

#[test]
fn each_nak_has_its_status() {
    for (code, status, why) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr, VendorErr::NakInvalidRequest),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr, VendorErr::NakRemoteAccess),
        (NakCode::RemoteOperational, WcStatus::RemOpErr, VendorErr::NakRemoteOperational),
        (NakCode::InvalidRdRequest, WcStatus::RemInvRdReqErr, VendorErr::NakInvalidRdRequest),
    ] {
        let mut bench = Bench::new();
        bench.post(1, WrOpcode::Send, 600);
        bench.post(2, WrOpcode::Send, 600);
        bench.answer(4, Op::Ack, Syndrome::Nak(code), &[]);
        let (first, second) = (bench.poll().unwrap(), bench.poll().unwrap());
        assert_eq!((first.wr_id, first.status), (1, WcStatus::Success));
        assert_eq!((second.status, second.vendor_err), (status, why as u32));
        assert_eq!(bench.pair.hosts[0].qp.state(), QpState::Err);
        assert_eq!(bench.sent(), []);
    }
}

#[test]
fn acknowledgements_are_asked_for_at_ends_twice_a_window_and_when_it_closes() {
    let mut bench = Bench::new();
    bench.post(1, WrOpcode::Send, 8);
    bench.post(2, WrOpcode::Send, 8);
    let sge = bench.pair.hosts[0].dev.regions[0].sge(0, 30 * 256);
    bench.pair.send(0, &wr(3, WrOpcode::Send), &[sge]);
    let asked: Vec<_> = bench.packets().iter().filter(|p| p.2).map(|p| p.1).collect();
    assert_eq!(asked, [9, 15], "the eighth since the last, and the last of sixteen");
    bench.ack(15);
    let asked: Vec<_> = bench.packets().iter().filter(|p| p.2).map(|p| p.1).collect();
    assert_eq!(asked, [31], "a window of 32 by now, and the end of the message");
}

#[test]
fn the_window_doubles_and_halves_when_a_packet_is_lost() {
    let mut bench = Bench::new();
    assert_eq!(bench.post(1, WrOpcode::Send, 1 << 20).len(), 16);
    bench.ack(15);
    assert_eq!(bench.sent().len(), 32);
    bench.ack(47);
    assert_eq!(bench.sent().len(), 64);
    bench.answer(48, Op::Ack, Syndrome::Nak(NakCode::PsnSequence), &[]);
    assert_eq!(bench.sent().len(), 32);
    // More of the same loss does not count again.
    bench.answer(60, Op::Ack, Syndrome::Nak(NakCode::PsnSequence), &[]);
    assert_eq!(bench.sent().len(), 32);
}

#[test]
fn a_repeated_rnr_nak_counts_once() {
    let mut bench = Bench::with(Options { rnr_retry: 1, ..Options::default() });
    bench.post(1, WrOpcode::Send, 8);
    let rnr = Syndrome::Rnr { timer: 12 };
    bench.answer(0, Op::Ack, rnr, &[]);
    bench.answer(0, Op::Ack, rnr, &[]);
    assert_eq!((bench.sent(), bench.poll()), (vec![], None));
    bench.pair.net.now = bench.pair.hosts[0].qp.next_deadline().unwrap();
    let host = &mut bench.pair.hosts[0];
    host.qp.handle_timeout(bench.pair.net.now, &mut host.dev);
    assert_eq!(bench.sent(), [(Op::SendOnly, 0)]);
    bench.answer(0, Op::Ack, rnr, &[]);
    assert_eq!(bench.completed(), [(1, WcStatus::RnrRetryExcErr)]);
}

#[test]
fn the_timeout_runs_anew_with_each_progress() {
    let mut bench = Bench::with(Options { retry_cnt: 0, timeout: 10, ..Options::default() });
    for id in 0..5 {
        bench.post(id, WrOpcode::Send, 8);
    }
    for n in 0..5 {
        // Three quarters of the timeout of 4.2 ms.
        bench.pair.net.now = bench.pair.net.now.after(3_000_000);
        let host = &mut bench.pair.hosts[0];
        host.qp.handle_timeout(bench.pair.net.now, &mut host.dev);
        bench.sent();
        bench.ack(n);
        assert_eq!(bench.completed(), [(n.into(), WcStatus::Success)]);
    }
    assert_eq!(bench.counters().timeouts, 0);
}
