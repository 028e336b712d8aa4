//! Extended reliable connections (IBA A14): requests name the SRQ they are for.

use ironverbs_transport::device::{QpEvent, Queue, RecvWqe};
use ironverbs_transport::qp::{ModifyError, Payload, PostError};
use ironverbs_transport::verbs::{
    AttrMask, QpState, QpType, SendFlags, SendWr, VendorErr, WcStatus, WrOpcode,
};
use ironverbs_wire::{Bth, Op, Packet, Reth, Service, XrcEth, psn};

use crate::support::memory::{ALL, XrcSrq};
use crate::support::pair::{Options, PKEY, Pair};
use crate::support::rng::Rng;
use crate::support::wr;

const LEN: usize = 16_384;
const PSN: u32 = 0xff_fffa;

/// SRQs 1 and 2 in protection domains 1 and 2, each with a region.
fn pair() -> Pair {
    let mut pair = Pair::connected(Options {
        qp_type: QpType::XrcSend,
        psn: PSN,
        rnr_retry: 0,
        ..Options::default()
    });
    pair.hosts[0].dev.register(LEN, ALL);
    Rng(3).fill(&mut pair.hosts[0].dev.regions[0].bytes);
    for pd in [1, 2] {
        let index = pair.hosts[1].dev.register(LEN, ALL);
        pair.hosts[1].dev.regions[index].pd = pd;
        pair.hosts[1].dev.xrc.insert(pd, XrcSrq { pd, ..XrcSrq::default() });
    }
    pair
}

fn receive(pair: &mut Pair, srqn: u32, wr_id: u64, len: u32) {
    let dev = &mut pair.hosts[1].dev;
    let sges = vec![dev.regions[srqn as usize - 1].sge(0, len)];
    dev.xrc.get_mut(&srqn).unwrap().receives.push_back(RecvWqe { wr_id, sges });
}

fn to(srqn: u32, wr_id: u64, opcode: WrOpcode) -> SendWr {
    SendWr { xrc_srqn: srqn, ..wr(wr_id, opcode) }
}

fn remote(pair: &Pair, srqn: u32, region: usize, opcode: WrOpcode) -> SendWr {
    let region = &pair.hosts[1].dev.regions[region];
    SendWr { remote_addr: region.base, rkey: region.rkey, ..to(srqn, 9, opcode) }
}

/// Posts a send of `len` bytes and waits for it.
fn send(pair: &mut Pair, request: &SendWr, len: u32) -> WcStatus {
    let sge = pair.hosts[0].dev.regions[0].sge(0, len);
    pair.send(0, request, &[sge]);
    pair.wait(0, Queue::Send).status
}

/// A packet for SRQ `srqn`, `n` after the first.
fn packet(n: u32, op: Op, srqn: u32, payload: &[u8]) -> Packet<'_> {
    Packet {
        bth: Bth { pkey: PKEY, ack_req: true, psn: psn::add(PSN, n), ..Bth::default() },
        op,
        service: Service::Xrc,
        reth: None,
        atomic: None,
        aeth: None,
        atomic_ack: None,
        deth: None,
        xrceth: Some(XrcEth { srqn }),
        imm: None,
        ieth: None,
        payload,
    }
}

fn give(pair: &mut Pair, packet: &Packet<'_>) {
    let (path, now) = (pair.path(0), pair.net.now);
    let host = &mut pair.hosts[1];
    host.dev.selected = None;
    host.qp.handle_packet(packet, &path, 0, now, &mut host.dev);
}

#[test]
fn messages_go_to_the_srq_that_they_name() {
    let mut pair = pair();
    for (wr_id, srqn) in [(1, 2), (2, 1), (3, 2), (4, 1)] {
        receive(&mut pair, srqn, wr_id, 2000);
    }
    let order = [(2, 1), (1, 2), (1, 4), (2, 3)];
    for (i, (srqn, wr_id)) in order.into_iter().enumerate() {
        let imm = SendWr { imm: [i as u8; 4], ..to(srqn, 0, WrOpcode::SendWithImm) };
        assert_eq!(send(&mut pair, &imm, 1000), WcStatus::Success);
        let wc = pair.poll(1, Queue::Recv).unwrap();
        assert_eq!((wc.wr_id, wc.status, wc.byte_len), (wr_id, WcStatus::Success, 1000));
        assert_eq!((wc.imm, wc.qpn), ([i as u8; 4], pair.hosts[1].qp.qpn()));
    }
    assert_eq!(pair.hosts[1].dev.received_on, [2, 1, 1, 2]);
    for region in &pair.hosts[1].dev.regions {
        assert_eq!(region.bytes[..1000], pair.hosts[0].dev.regions[0].bytes[..1000]);
    }
}

#[test]
fn write_with_immediate_takes_a_receive_of_the_srq() {
    let mut pair = pair();
    receive(&mut pair, 2, 7, 0);
    let request = remote(&pair, 2, 1, WrOpcode::WriteWithImm);
    assert_eq!(send(&mut pair, &request, 700), WcStatus::Success);
    assert_eq!(pair.poll(1, Queue::Recv).unwrap().wr_id, 7);
    assert_eq!(pair.hosts[1].dev.received_on, [2]);
}

#[test]
fn memory_is_that_of_the_domain_of_the_srq() {
    let opcodes = [WrOpcode::Write, WrOpcode::Read, WrOpcode::FetchAdd, WrOpcode::CompareSwap];
    for opcode in opcodes {
        let mut pair = pair();
        let len = if matches!(opcode, WrOpcode::Write | WrOpcode::Read) { 3000 } else { 8 };
        for srqn in [1, 2] {
            let own = remote(&pair, srqn, srqn as usize - 1, opcode);
            assert_eq!(send(&mut pair, &own, len), WcStatus::Success, "{opcode:?}");
        }
        let other = remote(&pair, 1, 1, opcode);
        let before = pair.hosts[1].dev.regions[1].bytes.clone();
        assert_eq!(send(&mut pair, &other, len), WcStatus::RemAccessErr, "{opcode:?}");
        assert_eq!(pair.hosts[1].dev.regions[1].bytes, before);
        assert_eq!(pair.hosts[1].dev.events.last(), Some(&QpEvent::AccessError));
    }
}

#[test]
fn send_with_invalidate_and_reads_in_a_row_keep_their_srqs() {
    let mut pair = pair();
    for region in &mut pair.hosts[1].dev.regions {
        Rng(region.pd.into()).fill(&mut region.bytes);
    }
    // Responses to one are sent while the other has been the last to be named.
    for (at, srqn) in [(0, 1), (4000, 2), (8000, 1)] {
        let sge = pair.hosts[0].dev.regions[0].sge(at, 4000);
        let request = remote(&pair, srqn, srqn as usize - 1, WrOpcode::Read);
        pair.send(0, &request, &[sge]);
    }
    for _ in 0..3 {
        assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    }
    let [a, b] = &pair.hosts;
    for (at, region) in [(0, 0), (4000, 1), (8000, 0)] {
        let expected = &b.dev.regions[region].bytes[..4000];
        assert_eq!(a.dev.regions[0].bytes[at..at + 4000], *expected);
    }
    let rkey = pair.hosts[1].dev.regions[1].rkey;
    receive(&mut pair, 2, 5, 100);
    let request = SendWr { invalidate_rkey: rkey, ..to(2, 1, WrOpcode::SendWithInv) };
    assert_eq!(send(&mut pair, &request, 100), WcStatus::Success);
    assert!(!pair.hosts[1].dev.regions[1].rkey_valid);
}

#[test]
fn an_srq_that_is_not_of_the_domain_is_an_invalid_request() {
    for opcode in [WrOpcode::Send, WrOpcode::Write, WrOpcode::Read, WrOpcode::FetchAdd] {
        let mut pair = pair();
        let request = SendWr { xrc_srqn: 3, ..remote(&pair, 1, 0, opcode) };
        assert_eq!(send(&mut pair, &request, 8), WcStatus::RemInvReqErr, "{opcode:?}");
        assert_eq!(pair.hosts[1].dev.events, [QpEvent::AccessError]);
        assert_eq!(pair.hosts[1].qp.state(), QpState::Err);
        assert_eq!(pair.poll(1, Queue::Recv), None);
    }
}

#[test]
fn an_empty_srq_says_not_ready_and_others_do_not_help() {
    let mut pair = pair();
    receive(&mut pair, 1, 1, 100);
    let status = send(&mut pair, &to(2, 1, WrOpcode::Send), 8);
    assert_eq!(status, WcStatus::RnrRetryExcErr);
    assert_eq!(pair.hosts[1].dev.xrc[&1].receives.len(), 1);
    assert_eq!(pair.hosts[1].qp.state(), QpState::Rts);
}

#[test]
fn a_message_is_for_one_srq() {
    let mut pair = pair();
    receive(&mut pair, 1, 1, 1000);
    receive(&mut pair, 2, 2, 1000);
    let payload = [7; 256];
    give(&mut pair, &packet(0, Op::SendFirst, 1, &payload));
    give(&mut pair, &packet(1, Op::SendLast, 2, &payload));
    assert_eq!(pair.hosts[1].dev.events, [QpEvent::RequestError]);
    // The receive in hand is flushed to the SRQ it came from; the other is still posted.
    let wc = pair.poll(1, Queue::Recv).unwrap();
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::WrFlushErr));
    assert_eq!(pair.hosts[1].dev.received_on, [1]);
    assert_eq!(pair.hosts[1].dev.xrc[&2].receives.len(), 1);
}

#[test]
fn a_receive_in_hand_is_flushed_to_its_srq_and_last_wqe_is_not_told() {
    let mut pair = pair();
    receive(&mut pair, 2, 5, 1000);
    give(&mut pair, &packet(0, Op::SendFirst, 2, &[7; 256]));
    pair.enter(1, QpState::Err);
    let wc = pair.poll(1, Queue::Recv).unwrap();
    assert_eq!((wc.wr_id, wc.status), (5, WcStatus::WrFlushErr));
    assert_eq!(wc.vendor_err, VendorErr::Flushed as u32);
    assert_eq!(pair.hosts[1].dev.received_on, [2]);
    assert_eq!(pair.hosts[1].dev.events, []);
}

#[test]
fn a_receive_too_small_is_told_on_both_sides() {
    let mut pair = pair();
    receive(&mut pair, 2, 5, 100);
    assert_eq!(send(&mut pair, &to(2, 1, WrOpcode::Send), 101), WcStatus::RemInvReqErr);
    assert_eq!(pair.poll(1, Queue::Recv).unwrap().status, WcStatus::LocLenErr);
    assert_eq!(pair.hosts[1].dev.received_on, [2]);
}

#[test]
fn an_srq_that_goes_between_request_and_response_refuses_the_read() {
    let mut pair = pair();
    let region = &pair.hosts[1].dev.regions[0];
    let reth = Some(Reth { va: region.base, rkey: region.rkey, len: 512 });
    let read = Packet { reth, ..packet(0, Op::ReadRequest, 1, &[]) };
    give(&mut pair, &read);
    pair.hosts[1].dev.xrc.remove(&1);
    pair.settle();
    assert_eq!(pair.hosts[1].qp.state(), QpState::Err);
    assert_eq!(pair.hosts[1].dev.events, [QpEvent::AccessError]);
}

#[test]
fn each_side_does_its_half() {
    let mut pair = pair();
    let posted = pair.hosts[0].qp.post_recv(1, &[]);
    assert_eq!(posted, Err(PostError::NoReceives));
    let posted = pair.hosts[1].qp.post_recv(1, &[]);
    assert_eq!(posted, Err(PostError::SharedReceives));
    let request = SendWr { flags: SendFlags::SIGNALED, ..to(1, 1, WrOpcode::Send) };
    let posted = pair.hosts[1].qp.post_send(&request, Payload::Sges(&[]));
    let error = PostError::OpNotAllowed { opcode: WrOpcode::Send, qp_type: QpType::XrcRecv };
    assert_eq!(posted, Err(error));

    // A request to the requester, a response to the responder, and another service.
    let (path, now) = (pair.path(1), pair.net.now);
    let host = &mut pair.hosts[0];
    host.qp.handle_packet(&packet(0, Op::SendOnly, 1, &[]), &path, 0, now, &mut host.dev);
    assert_eq!(host.qp.counters().dropped.service, 1);
    give(&mut pair, &packet(0, Op::Ack, 1, &[]));
    give(&mut pair, &Packet { service: Service::Rc, ..packet(0, Op::SendOnly, 1, &[]) });
    assert_eq!(pair.hosts[1].qp.counters().dropped.service, 2);
    assert_eq!(pair.hosts[1].qp.counters().rx_packets, 0);
}

#[test]
fn transitions_of_the_receive_side_need_their_attributes() {
    let options = Options { qp_type: QpType::XrcSend, ..Options::default() };
    let mut pair = Pair::reset(options);
    for (attr, mask) in [pair.init_attr(), pair.rtr_attr(1), pair.rts_attr(1)] {
        for bit in mask.iter().filter(|&bit| bit != AttrMask::STATE) {
            let error = pair.try_modify(1, attr, mask - bit).unwrap_err();
            assert_eq!(error, ModifyError::MissingAttr(bit));
        }
        let error = pair.try_modify(1, attr, mask | AttrMask::RATE_LIMIT).unwrap_err();
        assert_eq!(error, ModifyError::ExtraAttr(AttrMask::RATE_LIMIT));
        pair.modify(1, attr, mask);
    }
    assert_eq!(pair.hosts[1].qp.state(), QpState::Rts);
}
