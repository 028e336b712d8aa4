//! How requests fail: local faults, NAKs, and the end of patience (IBA 9.9, 10.10).

use crate::support::memory::ALL;
use crate::support::pair::{Options, Pair};
use crate::support::wr;
use ironverbs_transport::device::{QpEvent, Queue};
use ironverbs_transport::qp::Payload;
use ironverbs_transport::verbs::{
    Access, QpState, SendFlags, SendWr, Sge, VendorErr, Wc, WcOpcode, WcStatus, WrOpcode,
};

const LEN: u32 = 4096;

/// Makes a request, or what it relies on, wrong.
type Spoil = fn(&mut Pair, &mut SendWr);
/// Makes a request that is wrong.
type Make = fn(&mut Pair) -> (SendWr, Sge);

/// A pair with a region of full rights at each side.
fn pair(options: Options) -> Pair {
    let mut pair = Pair::connected(options);
    for host in &mut pair.hosts {
        host.dev.register(LEN as usize, ALL);
    }
    pair
}

fn local(pair: &Pair, len: u32) -> Sge {
    pair.hosts[0].dev.regions[0].sge(0, len)
}

fn remote(pair: &Pair, opcode: WrOpcode) -> SendWr {
    let region = &pair.hosts[1].dev.regions[0];
    SendWr { remote_addr: region.base, rkey: region.rkey, ..wr(1, opcode) }
}

/// Expects the first send of the first side to end so, the QP to be in ERR, and a request after it
/// to be flushed.
fn fails(pair: &mut Pair, status: WcStatus, why: VendorErr) -> Wc {
    let wc = pair.wait(0, Queue::Send);
    assert_eq!((wc.wr_id, wc.status, wc.vendor_err), (1, status, why as u32));
    assert_eq!(pair.hosts[0].qp.state(), QpState::Err);
    wc
}

#[test]
fn receive_too_small() {
    let mut pair = pair(Options::default());
    let to = pair.hosts[1].dev.regions[0].sge(0, 999);
    pair.recv(1, 5, &[to]);
    pair.recv(1, 6, &[to]);
    let sge = local(&pair, 1000);
    pair.send(0, &SendWr { flags: SendFlags::empty(), ..wr(1, WrOpcode::Send) }, &[sge]);
    pair.send(0, &wr(2, WrOpcode::Send), &[sge]);
    let wc = fails(&mut pair, WcStatus::RemInvReqErr, VendorErr::NakInvalidRequest);
    assert_eq!(wc.opcode, WcOpcode::Send);
    let flushed = pair.wait(0, Queue::Send);
    assert_eq!((flushed.wr_id, flushed.status), (2, WcStatus::WrFlushErr));
    let received = pair.wait(1, Queue::Recv);
    assert_eq!((received.wr_id, received.status), (5, WcStatus::LocLenErr));
    assert!(received.solicited, "errors are solicited");
    let flushed = pair.wait(1, Queue::Recv);
    assert_eq!((flushed.wr_id, flushed.status), (6, WcStatus::WrFlushErr));
    assert_eq!(pair.hosts[1].qp.state(), QpState::Err);
}

#[test]
fn receive_with_a_bad_lkey() {
    let mut pair = pair(Options::default());
    let bad = Sge { lkey: 0x99, ..pair.hosts[1].dev.regions[0].sge(0, 1000) };
    pair.recv(1, 5, &[bad]);
    let sge = local(&pair, 10);
    pair.send(0, &wr(1, WrOpcode::Send), &[sge]);
    fails(&mut pair, WcStatus::RemOpErr, VendorErr::NakRemoteOperational);
    let received = pair.wait(1, Queue::Recv);
    assert_eq!((received.wr_id, received.status), (5, WcStatus::LocProtErr));
    assert_eq!(received.vendor_err, VendorErr::LkeyUnknown as u32);
}

#[test]
fn remote_access_errors_leave_memory_alone_and_raise_an_event() {
    let opcodes = [WrOpcode::Write, WrOpcode::Read, WrOpcode::FetchAdd, WrOpcode::CompareSwap];
    for opcode in opcodes {
        let spoil: [(&str, Spoil); 4] = [
            ("unknown rkey", |_, wr| wr.rkey ^= 0x40),
            ("out of range", |_, wr| wr.remote_addr += u64::from(LEN) - 4 + 4),
            ("deregistered", |pair, _| pair.hosts[1].dev.regions[0].registered = false),
            ("missing right", |pair, _| {
                pair.hosts[1].dev.regions[0].access = Access::LOCAL_WRITE;
            }),
        ];
        for (what, spoil) in spoil {
            let mut pair = pair(Options::default());
            let mut request = remote(&pair, opcode);
            spoil(&mut pair, &mut request);
            pair.hosts[0].dev.regions[0].bytes.fill(7);
            let sge = local(&pair, 8);
            pair.send(0, &request, &[sge]);
            fails(&mut pair, WcStatus::RemAccessErr, VendorErr::NakRemoteAccess);
            assert_eq!(pair.hosts[1].dev.events, [QpEvent::AccessError], "{opcode:?} {what}");
            assert_eq!(pair.hosts[1].qp.state(), QpState::Err);
            assert!(pair.hosts[1].dev.regions[0].bytes.iter().all(|&byte| byte == 0));
            assert!(pair.hosts[0].dev.regions[0].bytes.iter().all(|&byte| byte == 7));
        }
    }
}

#[test]
fn operations_the_queue_pair_does_not_allow_are_invalid_requests() {
    for opcode in [WrOpcode::Write, WrOpcode::Read, WrOpcode::FetchAdd] {
        let mut pair = pair(Options { access: Access::LOCAL_WRITE, ..Options::default() });
        let (request, sge) = (remote(&pair, opcode), local(&pair, 8));
        pair.send(0, &request, &[sge]);
        fails(&mut pair, WcStatus::RemInvReqErr, VendorErr::NakInvalidRequest);
        assert_eq!(pair.hosts[1].dev.events, [QpEvent::RequestError]);
    }
}

#[test]
fn unaligned_atomics_are_invalid_requests() {
    let mut pair = pair(Options::default());
    let (mut request, sge) = (remote(&pair, WrOpcode::FetchAdd), local(&pair, 8));
    request.remote_addr += 4;
    pair.send(0, &request, &[sge]);
    fails(&mut pair, WcStatus::RemInvReqErr, VendorErr::NakInvalidRequest);
}

#[test]
fn zero_bytes_succeed_whatever_the_rkey() {
    let mut pair = pair(Options::default());
    for opcode in [WrOpcode::Write, WrOpcode::Read] {
        let request = SendWr { rkey: 0xdead_beef, remote_addr: 3, ..remote(&pair, opcode) };
        pair.send(0, &request, &[]);
        assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
        pair.send(0, &request, &[Sge { addr: 1, len: 0, lkey: 0x77 }]);
        assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    }
}

#[test]
fn local_faults_send_nothing_and_wait_for_their_turn() {
    let cases: [(WcStatus, VendorErr, Make); 4] = [
        (WcStatus::LocProtErr, VendorErr::LkeyUnknown, |pair| {
            (wr(1, WrOpcode::Send), Sge { lkey: 0x55, ..local(pair, 10) })
        }),
        (WcStatus::LocProtErr, VendorErr::LkeyRange, |pair| {
            (wr(1, WrOpcode::Send), local(pair, LEN + 1))
        }),
        (WcStatus::LocProtErr, VendorErr::LkeyAccess, |pair| {
            pair.hosts[0].dev.regions[0].access = Access::empty();
            (remote(pair, WrOpcode::Read), local(pair, 10))
        }),
        (WcStatus::LocLenErr, VendorErr::TooLong, |pair| {
            (wr(1, WrOpcode::Send), local(pair, (1 << 31) + 1))
        }),
    ];
    for (status, why, request) in cases {
        let mut pair = pair(Options::default());
        pair.recv(1, 1, &[]);
        let (request, sge) = request(&mut pair);
        // One that succeeds goes before; unsignaled, so that the failure is the first to be seen.
        let before = SendWr { flags: SendFlags::empty(), ..wr(0, WrOpcode::Send) };
        pair.send(0, &before, &[]);
        pair.send(0, &request, &[sge]);
        fails(&mut pair, status, why);
        pair.settle();
        assert_eq!(pair.poll(1, Queue::Recv).map(|wc| wc.status), Some(WcStatus::Success));
        assert_eq!(pair.hosts[1].qp.counters().rx_packets, 1, "{why:?}");
        assert_eq!(pair.hosts[1].qp.state(), QpState::Rts);
    }
}

#[test]
fn reads_without_read_resources_fail() {
    // None on this side: nothing is sent.
    let mut ours = pair(Options { max_rd_atomic: 0, ..Options::default() });
    let (request, sge) = (remote(&ours, WrOpcode::Read), local(&ours, 8));
    ours.send(0, &request, &[sge]);
    fails(&mut ours, WcStatus::LocQpOpErr, VendorErr::OpNotAllowed);
    assert_eq!(ours.hosts[1].qp.counters().rx_packets, 0);
    // None on the other.
    let mut theirs = pair(Options { max_dest_rd_atomic: 0, ..Options::default() });
    theirs.send(0, &request, &[sge]);
    fails(&mut theirs, WcStatus::RemInvReqErr, VendorErr::NakInvalidRequest);
    assert_eq!(theirs.hosts[1].dev.events, [QpEvent::RequestError]);
}

#[test]
fn requests_before_the_refused_one_complete_first() {
    let mut pair = pair(Options::default());
    pair.recv(1, 1, &[]);
    let sge = local(&pair, 1000);
    let mut request = remote(&pair, WrOpcode::Read);
    request.wr_id = 10;
    pair.send(0, &request, &[sge]);
    pair.send(0, &SendWr { wr_id: 11, ..wr(0, WrOpcode::Send) }, &[]);
    pair.send(0, &SendWr { wr_id: 12, rkey: 1, ..remote(&pair, WrOpcode::Write) }, &[sge]);
    pair.send(0, &SendWr { wr_id: 13, ..request }, &[sge]);
    let ended: Vec<_> = (0..4).map(|_| pair.wait(0, Queue::Send)).collect();
    let found: Vec<_> = ended.iter().map(|wc| (wc.wr_id, wc.status)).collect();
    assert_eq!(
        found,
        [
            (10, WcStatus::Success),
            (11, WcStatus::Success),
            (12, WcStatus::RemAccessErr),
            (13, WcStatus::WrFlushErr)
        ]
    );
}

#[test]
fn a_read_whose_region_goes_away_meanwhile_is_refused() {
    let mut pair = pair(Options::default());
    pair.sink_room = 2;
    let (request, sge) = (remote(&pair, WrOpcode::Read), local(&pair, LEN));
    pair.send(0, &request, &[sge]);
    while pair.hosts[1].qp.counters().tx_packets < 2 {
        assert!(pair.step());
        if pair.hosts[1].qp.counters().rx_packets == 1 {
            pair.hosts[1].dev.regions[0].registered = false;
            break;
        }
    }
    fails(&mut pair, WcStatus::RemAccessErr, VendorErr::NakRemoteAccess);
    assert_eq!(pair.hosts[1].dev.events, [QpEvent::AccessError]);
}

#[test]
fn a_region_that_goes_away_in_the_middle_of_a_send_is_a_local_fault() {
    let mut pair = pair(Options::default());
    let to = pair.hosts[1].dev.regions[0].sge(0, LEN);
    pair.recv(1, 1, &[to]);
    let region = pair.hosts[0].dev.register(40_000, ALL);
    let sge = pair.hosts[0].dev.regions[region].sge(0, LEN + 1);
    pair.send(0, &wr(1, WrOpcode::Send), &[sge]);
    pair.transmit();
    pair.hosts[0].dev.regions[region].registered = false;
    fails(&mut pair, WcStatus::LocProtErr, VendorErr::LkeyUnknown);
}

#[test]
fn send_with_invalidate_of_an_rkey_that_is_none_is_refused() {
    let mut pair = pair(Options::default());
    let to = pair.hosts[1].dev.regions[0].sge(0, LEN);
    pair.recv(1, 5, &[to]);
    let sge = local(&pair, 10);
    pair.send(0, &SendWr { invalidate_rkey: 0x1234, ..wr(1, WrOpcode::SendWithInv) }, &[sge]);
    fails(&mut pair, WcStatus::RemAccessErr, VendorErr::NakRemoteAccess);
    let received = pair.wait(1, Queue::Recv);
    assert_eq!(received.vendor_err, VendorErr::InvalidateRefused as u32);
}

#[test]
fn rnr_retries_end_unless_seven() {
    for retries in [0, 2, 6] {
        let mut pair =
            pair(Options { rnr_retry: retries, min_rnr_timer: 13, ..Options::default() });
        let sge = local(&pair, 10);
        let start = pair.net.now;
        pair.send(0, &wr(1, WrOpcode::Send), &[sge]);
        fails(&mut pair, WcStatus::RnrRetryExcErr, VendorErr::RnrRetryExceeded);
        assert_eq!(pair.hosts[0].qp.counters().rnr_naks_received, u64::from(retries) + 1);
        assert!(pair.net.now.since(start) >= u64::from(retries) * 960_000, "waits as told");
        assert_eq!(pair.hosts[1].qp.state(), QpState::Rts);
    }
    let mut pair = pair(Options { rnr_retry: 7, min_rnr_timer: 13, ..Options::default() });
    let sge = local(&pair, 10);
    pair.send(0, &wr(1, WrOpcode::Send), &[sge]);
    pair.run_for(1_000_000_000);
    assert_eq!(pair.poll(0, Queue::Send), None);
    assert!(pair.hosts[0].qp.counters().rnr_naks_received > 900);
    let to = pair.hosts[1].dev.regions[0].sge(0, 10);
    pair.recv(1, 1, &[to]);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
}

#[test]
fn rnr_retries_count_anew_after_progress() {
    let mut pair = pair(Options { rnr_retry: 1, min_rnr_timer: 20, ..Options::default() });
    let to = pair.hosts[1].dev.regions[0].sge(0, 10);
    for id in 0..5 {
        pair.send(0, &wr(id, WrOpcode::Send), &[]);
    }
    for id in 0..5 {
        // Each is told to wait once, and has a receive before it may be told again.
        pair.run_for(5_000_000);
        pair.recv(1, id, &[to]);
        assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    }
    assert_eq!(pair.hosts[0].qp.counters().rnr_naks_received, 5);
}

#[test]
fn write_with_immediate_waits_for_a_receive_at_its_last_packet() {
    let mut pair = pair(Options::default());
    pair.hosts[0].dev.regions[0].bytes.fill(3);
    let (request, sge) = (remote(&pair, WrOpcode::WriteWithImm), local(&pair, 600));
    pair.send(0, &SendWr { imm: *b"imm!", ..request }, &[sge]);
    pair.run_for(2_000_000);
    assert!(pair.hosts[1].qp.counters().rnr_naks_sent > 0);
    assert_eq!(pair.hosts[1].dev.regions[0].bytes[511..513], [3, 0], "the last packet waits");
    pair.recv(1, 4, &[]);
    let wc = pair.wait(1, Queue::Recv);
    assert_eq!((wc.wr_id, wc.byte_len, wc.imm), (4, 600, *b"imm!"));
    assert_eq!(wc.opcode, WcOpcode::RecvWriteWithImm);
    assert!(pair.hosts[1].dev.regions[0].bytes[..600].iter().all(|&byte| byte == 3));
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
}

#[test]
fn a_peer_that_is_gone_exhausts_the_retries() {
    for retry_cnt in [0, 3] {
        let mut pair = pair(Options { retry_cnt, timeout: 12, ..Options::default() });
        pair.enter(1, QpState::Reset);
        let start = pair.net.now;
        let sge = local(&pair, 10);
        pair.send(0, &wr(1, WrOpcode::Send), &[sge]);
        fails(&mut pair, WcStatus::RetryExcErr, VendorErr::RetryExceeded);
        let timeout = 4_096 << 12;
        assert!(pair.net.now.since(start) >= timeout * (u64::from(retry_cnt) + 1));
        assert_eq!(pair.hosts[0].qp.counters().timeouts, u64::from(retry_cnt) + 1);
        assert_eq!(pair.hosts[0].qp.next_deadline(), None);
    }
}

#[test]
fn timeout_zero_waits_for_ever() {
    let mut pair = pair(Options { retry_cnt: 0, timeout: 0, ..Options::default() });
    pair.net.filter = Some(|_, _| false);
    let to = pair.hosts[1].dev.regions[0].sge(0, 10);
    pair.recv(1, 1, &[to]);
    pair.send(0, &wr(1, WrOpcode::Send), &[]);
    pair.run_for(3_600_000_000_000);
    assert_eq!(pair.poll(0, Queue::Send), None);
    pair.net.filter = None;
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
}

#[test]
fn inline_data_is_free_at_return_and_needs_no_region() {
    let mut pair = pair(Options::default());
    let to = pair.hosts[1].dev.regions[0].sge(0, 100);
    pair.recv(1, 1, &[to]);
    let mut data = *b"taken at once";
    pair.hosts[0]
        .qp
        .post_send(
            &wr(1, WrOpcode::Send),
            Payload::Inline { len: data.len(), copy: &mut |room| room.copy_from_slice(&data) },
        )
        .unwrap();
    data.fill(0);
    assert_eq!(pair.wait(1, Queue::Recv).byte_len, 13);
    assert_eq!(&pair.hosts[1].dev.regions[0].bytes[..13], b"taken at once");
}

#[test]
fn a_lost_nak_is_repeated() {
    // Packet 1 is the WRITE, 2 its NAK.
    let mut pair = pair(Options::default());
    pair.net.filter = Some(|_, number| number != 2);
    let (request, sge) = (remote(&pair, WrOpcode::Write), local(&pair, 8));
    pair.send(0, &SendWr { rkey: 1, ..request }, &[sge]);
    fails(&mut pair, WcStatus::RemAccessErr, VendorErr::NakRemoteAccess);
}

#[test]
fn what_an_unreliable_queue_pair_cannot_send_moves_it_to_sqe_and_receives_go_on() {
    use ironverbs_transport::verbs::QpType;
    for qp_type in [QpType::Uc, QpType::Ud] {
        let mut pair = pair(Options { qp_type, ..Options::default() });
        let ud = (qp_type == QpType::Ud).then(|| pair.destination(0));
        let bad = Sge { lkey: 0x55, ..local(&pair, 10) };
        pair.recv(0, 9, &[pair.hosts[0].dev.regions[0].sge(0, 100)]);
        pair.send(0, &SendWr { ud, ..wr(1, WrOpcode::Send) }, &[bad]);
        pair.send(0, &SendWr { ud, ..wr(2, WrOpcode::Send) }, &[]);
        let first = pair.wait(0, Queue::Send);
        assert_eq!((first.wr_id, first.status), (1, WcStatus::LocProtErr));
        let second = pair.wait(0, Queue::Send);
        assert_eq!((second.wr_id, second.status), (2, WcStatus::WrFlushErr));
        assert_eq!(pair.hosts[0].qp.state(), QpState::Sqe);

        let back = (qp_type == QpType::Ud).then(|| pair.destination(1));
        pair.send(1, &SendWr { ud: back, ..wr(3, WrOpcode::Send) }, &[]);
        assert_eq!(pair.wait(0, Queue::Recv).wr_id, 9);
        pair.enter(0, QpState::Rts);
        pair.recv(1, 10, &[pair.hosts[1].dev.regions[0].sge(0, 100)]);
        pair.send(0, &SendWr { ud, ..wr(4, WrOpcode::Send) }, &[]);
        assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
        assert_eq!(pair.wait(1, Queue::Recv).wr_id, 10);
    }
}
