//! UD queue pairs (IBA 9.8.3).

use crate::support::memory::ALL;
use crate::support::pair::{Options, Pair, QKEY};
use crate::support::wr;
use ironverbs_transport::device::Queue;
use ironverbs_transport::verbs::{
    QpState, QpType, SendFlags, SendWr, UdDest, VendorErr, WcFlags, WcOpcode, WcStatus, WrOpcode,
};
use ironverbs_wire::grh;

fn pair() -> Pair {
    let mut pair = Pair::connected(Options { qp_type: QpType::Ud, ..Options::default() });
    for host in &mut pair.hosts {
        host.dev.register(4096, ALL);
    }
    pair.hosts[0].dev.regions[0].bytes.fill(6);
    pair
}

fn datagram(pair: &Pair, wr_id: u64) -> SendWr {
    SendWr { ud: Some(pair.destination(0)), ..wr(wr_id, WrOpcode::Send) }
}

#[test]
fn a_datagram_arrives_behind_forty_bytes() {
    let mut pair = pair();
    let to = pair.hosts[1].dev.regions[0].sge(0, 1000);
    pair.recv(1, 8, &[to]);
    let sge = pair.hosts[0].dev.regions[0].sge(0, 100);
    let request = SendWr {
        opcode: WrOpcode::SendWithImm,
        imm: *b"imm!",
        flags: SendFlags::SIGNALED | SendFlags::SOLICITED,
        ..datagram(&pair, 1)
    };
    pair.send(0, &request, &[sge]);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    let wc = pair.wait(1, Queue::Recv);
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (8, WcStatus::Success, WcOpcode::Recv));
    assert_eq!((wc.byte_len, wc.src_qpn, wc.qpn), (140, 0x11, 0x12));
    assert_eq!(wc.flags, WcFlags::GRH | WcFlags::WITH_IMM);
    assert_eq!((wc.imm, wc.solicited), (*b"imm!", true));
    let bytes = &pair.hosts[1].dev.regions[0].bytes;
    let path = grh::path_of(bytes.first_chunk().unwrap()).unwrap();
    assert_eq!((path.src, path.dst), (pair.hosts[0].gid, pair.hosts[1].gid));
    assert_eq!(bytes[40..140], [6; 100]);
    assert_eq!(bytes[140], 0);
}

#[test]
fn a_wrong_qkey_is_dropped_in_silence_and_the_sender_succeeds() {
    let mut pair = pair();
    let to = pair.hosts[1].dev.regions[0].sge(0, 1000);
    pair.recv(1, 8, &[to]);
    let right = pair.destination(0);
    let wrong = UdDest { qkey: QKEY + 1, ..right };
    pair.send(0, &SendWr { ud: Some(wrong), ..datagram(&pair, 1) }, &[]);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    pair.settle();
    assert_eq!(pair.poll(1, Queue::Recv), None);
    assert_eq!(pair.hosts[1].qp.counters().dropped.qkey, 1);
    // With its top bit set it stands for the sender's own.
    let own = UdDest { qkey: 0x8000_0000, ..right };
    pair.send(0, &SendWr { ud: Some(own), ..datagram(&pair, 2) }, &[]);
    assert_eq!(pair.wait(1, Queue::Recv).byte_len, 40);
}

#[test]
fn without_a_receive_it_is_dropped() {
    let mut pair = pair();
    pair.send(0, &datagram(&pair, 1), &[]);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    pair.settle();
    assert_eq!(pair.hosts[1].qp.counters().dropped.no_receive, 1);
}

#[test]
fn a_receive_that_is_too_small_is_the_only_one_lost() {
    let mut pair = pair();
    let small = pair.hosts[1].dev.regions[0].sge(0, 49);
    let large = pair.hosts[1].dev.regions[0].sge(0, 50);
    pair.recv(1, 1, &[small]);
    pair.recv(1, 2, &[large]);
    let sge = pair.hosts[0].dev.regions[0].sge(0, 10);
    pair.send(0, &datagram(&pair, 1), &[sge]);
    let wc = pair.wait(1, Queue::Recv);
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::LocLenErr));
    assert_eq!(pair.hosts[1].qp.state(), QpState::Rts);
    pair.send(0, &datagram(&pair, 2), &[sge]);
    let wc = pair.wait(1, Queue::Recv);
    assert_eq!((wc.wr_id, wc.status, wc.byte_len), (2, WcStatus::Success, 50));
}

#[test]
fn more_than_the_mtu_is_an_error() {
    let mut pair = pair();
    let to = pair.hosts[1].dev.regions[0].sge(0, 1000);
    pair.recv(1, 1, &[to]);
    let fits = pair.hosts[0].dev.regions[0].sge(0, 256);
    pair.send(0, &datagram(&pair, 1), &[fits]);
    assert_eq!(pair.wait(0, Queue::Send).status, WcStatus::Success);
    assert_eq!(pair.wait(1, Queue::Recv).byte_len, 296);
    let long = pair.hosts[0].dev.regions[0].sge(0, 257);
    pair.send(0, &datagram(&pair, 2), &[long]);
    let wc = pair.wait(0, Queue::Send);
    assert_eq!((wc.status, wc.vendor_err), (WcStatus::LocLenErr, VendorErr::TooLong as u32));
    assert_eq!(pair.hosts[0].qp.state(), QpState::Sqe);
}
