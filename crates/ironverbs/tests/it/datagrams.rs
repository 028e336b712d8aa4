//! Unreliable datagrams.

use ironverbs::{
    Ah, CompletionError, Context, Cq, Destination, GRH_LEN, Inline, Pd, Qp, QpState, RequestError,
    Slice, Ud, WcStatus,
};

use crate::support::{all, context, done, ok, until};

const QKEY: u32 = 0x1234_5678;

struct End {
    context: Context,
    pd: Pd,
    cq: Cq,
    qp: Qp<Ud>,
}

fn end(context: &Context, qkey: u32) -> End {
    let (pd, cq) = (Pd::new(context).unwrap(), Cq::new(context, 1).unwrap());
    let qp = Qp::<Ud>::builder(&pd, &cq).qkey(qkey).slices(2, 2).inline(64).build().unwrap();
    End { context: context.clone(), pd, cq, qp }
}

impl End {
    fn slice(&self, len: usize) -> Slice {
        self.pd.region(len, all()).unwrap().slice(..).unwrap()
    }

    fn to(&self, peer: &End, qkey: u32) -> Destination {
        let gid = peer.context.gid(0).unwrap();
        Destination { ah: Ah::new(&self.pd, gid, 0).unwrap(), qpn: peer.qp.qpn(), qkey }
    }
}

#[test]
fn data_starts_after_forty_bytes() {
    let context = context();
    let (a, b) = (end(&context, 1), end(&context, QKEY));
    let recv = b.qp.recv(b.slice(GRH_LEN + 100)).unwrap();
    let mut data = a.slice(5);
    data.assign(b"hello").unwrap();
    ok(a.qp.send_with_imm(data, &a.to(&b, QKEY), *b"\xff\0\x80\x01").post().unwrap());
    let (received, slice) = ok(recv);
    assert_eq!((received.len, received.payload()), (45, 40..45));
    assert!(received.grh);
    assert_eq!(received.data(&slice), b"hello");
    assert_eq!((received.src_qpn, received.qpn), (a.qp.qpn(), b.qp.qpn()));
    assert_eq!(received.immediate, Some(*b"\xff\0\x80\x01"));
    if context.gid(0).unwrap().is_ipv4() {
        let mut header = [0; 20];
        slice.read_at(20, &mut header).unwrap();
        assert_eq!(header[0], 0x45);
        let words = header.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let sum: u32 = words.sum();
        assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the checksum of the IPv4 header");
    }
}

#[test]
fn a_datagram_is_answered_by_what_came_with_it() {
    let context = context();
    let (a, b) = (end(&context, 7), end(&context, QKEY));
    let recv = b.qp.recv(b.slice(GRH_LEN + 8)).unwrap();
    let answer = a.qp.recv(a.slice(GRH_LEN + 8)).unwrap();
    ok(a.qp.send(Inline(b"ping"), &a.to(&b, QKEY)).post().unwrap());
    let (received, slice) = ok(recv);
    let ah = Ah::reply(&b.pd, &received, &slice).unwrap();
    let back = Destination { ah, qpn: received.src_qpn, qkey: 7 };
    ok(b.qp.send(Inline(b"pong"), &back).post().unwrap());
    let (received, slice) = ok(answer);
    assert_eq!(received.data(&slice), b"pong");
}

#[test]
fn to_a_wrong_key_or_number_the_sender_succeeds_and_nobody_receives() {
    let context = context();
    let (a, b) = (end(&context, 1), end(&context, QKEY));
    let recv = b.qp.recv(b.slice(GRH_LEN + 8)).unwrap();
    ok(a.qp.send(Inline(b"no"), &a.to(&b, QKEY + 1)).post().unwrap());
    let nobody = Destination { qpn: b.qp.qpn() ^ 0x80_0000, ..a.to(&b, QKEY) };
    ok(a.qp.send(Inline(b"no"), &nobody).post().unwrap());
    until("the wrong key was seen", || {
        b.cq.poll().unwrap();
        b.qp.counters().dropped.qkey == 1
    });
    let recv = recv.try_take().unwrap_err();
    ok(a.qp.send(Inline(b"yes"), &a.to(&b, QKEY)).post().unwrap());
    let (received, slice) = ok(recv);
    assert_eq!(received.data(&slice), b"yes");
}

#[test]
fn the_top_bit_stands_for_the_senders_own_key() {
    let context = context();
    let (a, b) = (end(&context, QKEY), end(&context, QKEY));
    let recv = b.qp.recv(b.slice(GRH_LEN + 8)).unwrap();
    ok(a.qp.send(Inline(b"own"), &a.to(&b, 0x8000_0000)).post().unwrap());
    assert_eq!(ok(recv).0.len, GRH_LEN + 3);
}

#[test]
fn more_than_the_mtu_fails_and_the_queue_pair_goes_on_when_told() {
    let context = context();
    let (a, b) = (end(&context, 1), end(&context, QKEY));
    let mtu = context.port(1).unwrap().active_mtu.bytes();
    let recv = b.qp.recv(b.slice(GRH_LEN + mtu)).unwrap();
    ok(a.qp.send(a.slice(mtu), &a.to(&b, QKEY)).post().unwrap());
    assert_eq!(ok(recv).0.len, GRH_LEN + mtu);
    let (result, slice) = done(a.qp.send(a.slice(mtu + 1), &a.to(&b, QKEY)).post().unwrap());
    assert_eq!(result.unwrap_err().status(), Some(WcStatus::LocLenErr));
    assert_eq!((slice.len(), a.qp.state()), (mtu + 1, QpState::Sqe));
    let (result, _) = done(a.qp.send(a.slice(1), &a.to(&b, QKEY)).post().unwrap());
    assert_eq!(result, Err(CompletionError::Flushed));
    a.qp.resume().unwrap();
    let recv = b.qp.recv(b.slice(GRH_LEN + 1)).unwrap();
    ok(a.qp.send(a.slice(1), &a.to(&b, QKEY)).post().unwrap());
    ok(recv);
}

#[test]
fn an_address_of_another_domain_is_refused() {
    let context = context();
    let (a, b) = (end(&context, 1), end(&context, QKEY));
    let rejected = a.qp.send(a.slice(1), &b.to(&a, 1)).post().unwrap_err();
    assert_eq!(rejected.error, RequestError::OtherDomainAddress);
}

#[test]
fn an_address_needs_a_gid_of_its_kind() {
    let context = context();
    let pd = Pd::new(&context).unwrap();
    assert!(Ah::new(&pd, Default::default(), 0).is_err());
    assert!(Ah::new(&pd, context.gid(0).unwrap(), 127).is_err());
}
