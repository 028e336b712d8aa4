//! Every operation of every service, and what arrives.

use ironverbs::{
    ConnectOptions, Connected, Error, Inline, Mtu, QpState, Rc, ReceivedKind, RequestError, Uc,
};

use crate::support::{context, done, ok, pair, pair_with, text};

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 7 + i / 251) as u8).collect()
}

fn send_sizes<T: Connected>() {
    let (a, b) = pair::<T>();
    for len in [1, 3, 4095, 4096, 4097, 100_000] {
        let bytes = pattern(len);
        let recv = b.qp.recv(b.slice(len + 10)).unwrap();
        ok(a.qp.send(a.filled(&bytes)).post().unwrap());
        let (received, slice) = ok(recv);
        assert_eq!(received.len, len);
        assert_eq!(received.kind, ReceivedKind::Send);
        assert_eq!((received.immediate, received.grh), (None, false));
        assert_eq!((received.qpn, received.src_qpn), (b.qp.qpn(), a.qp.qpn()));
        assert_eq!(received.data(&slice), bytes, "{len} bytes");
    }
}

#[test]
fn rc_send() {
    send_sizes::<Rc>();
}

#[test]
fn uc_send() {
    send_sizes::<Uc>();
}

#[test]
fn immediate_data_has_no_byte_order() {
    let (a, b) = pair::<Rc>();
    for immediate in [[0x80, 0, 0, 1], [0xff; 4], [1, 2, 3, 4]] {
        let recv = b.qp.recv(()).unwrap();
        ok(a.qp.send_with_imm((), immediate).post().unwrap());
        let (received, ()) = ok(recv);
        assert_eq!(received.immediate, Some(immediate));
        assert_eq!(received.len, 0);
    }
}

#[test]
fn write_lands_and_tells_nobody() {
    let (a, b) = pair::<Rc>();
    let target = b.region(10_000);
    let bytes = pattern(9_000);
    let remote = target.remote().part(500, 9_500).unwrap();
    ok(a.qp.write(a.filled(&bytes), &remote).post().unwrap());
    let mut found = vec![0; 10_000];
    target.read_at(0, &mut found).unwrap();
    assert_eq!(found[500..9_500], bytes);
    assert!(found[..500].iter().chain(&found[9_500..]).all(|b| *b == 0));
}

#[test]
fn write_with_immediate_completes_a_receive_of_the_length_written() {
    fn check<T: Connected>() {
        let (a, b) = pair::<T>();
        let target = b.region(6_000);
        let recv = b.qp.recv(b.slice(8)).unwrap();
        let bytes = pattern(5_000);
        ok(a.qp.write_with_imm(a.filled(&bytes), &target.remote(), [9, 8, 7, 6]).post().unwrap());
        let (received, slice) = ok(recv);
        assert_eq!(received.kind, ReceivedKind::WriteWithImm);
        assert_eq!((received.len, received.immediate), (5_000, Some([9, 8, 7, 6])));
        assert!(received.payload().is_empty() && slice.to_vec() == [0; 8]);
        let mut found = vec![0; 5_000];
        target.read_at(0, &mut found).unwrap();
        assert_eq!(found, bytes);
    }
    check::<Rc>();
    check::<Uc>();
}

#[test]
fn read_fetches_what_is_there() {
    let (a, b) = pair::<Rc>();
    let source = b.region(70_000);
    let bytes = pattern(70_000);
    source.write_at(0, &bytes).unwrap();
    let ((), slice) = ok(a.qp.read(a.slice(70_000), &source.remote()).post().unwrap());
    assert!(slice.to_vec() == bytes);
    let part = source.remote().part(1_234, 100).unwrap();
    let ((), slice) = ok(a.qp.read(a.slice(100), &part).post().unwrap());
    assert_eq!(slice.to_vec(), bytes[1_234..1_334]);
}

#[test]
fn atomics_bring_the_value_before() {
    let (a, b) = pair::<Rc>();
    let counter = b.region(16);
    counter.store_u64(8, 40).unwrap();
    let remote = counter.remote().part(8, 8).unwrap();
    let (before, slice) = ok(a.qp.fetch_add(a.slice(8), &remote, 2).post().unwrap());
    assert_eq!((before, counter.load_u64(8).unwrap()), (40, 42));
    assert_eq!(slice.to_vec(), 40u64.to_ne_bytes());
    let (before, slice) = ok(a.qp.compare_swap(slice, &remote, 41, 7).post().unwrap());
    assert_eq!((before, counter.load_u64(8).unwrap()), (42, 42));
    let (before, slice) = ok(a.qp.compare_swap(slice, &remote, 42, 7).post().unwrap());
    assert_eq!((before, counter.load_u64(8).unwrap()), (42, 7));
    let (before, _) = ok(a.qp.fetch_add(slice, &remote, u64::MAX).post().unwrap());
    assert_eq!((before, counter.load_u64(8).unwrap()), (7, 6));
    assert_eq!(counter.load_u64(0).unwrap(), 0);
}

#[test]
fn an_atomic_needs_eight_bytes_on_both_sides() {
    let (a, b) = pair::<Rc>();
    let target = b.region(8);
    let remote = target.remote();
    let rejected = a.qp.fetch_add(a.slice(7), &remote, 1).post().unwrap_err();
    assert_eq!(rejected.error, RequestError::AtomicBuffer { asked: 7 });
    assert_eq!(rejected.buffer.len(), 7);
    let short = remote.part(0, 7).unwrap();
    let rejected = a.qp.fetch_add(a.slice(8), &short, 1).post().unwrap_err();
    assert_eq!(rejected.error, RequestError::BeyondRemote { asked: 8, len: 7 });
    // Of a longer slice the first eight are used.
    let (_, slice) = ok(a.qp.fetch_add(a.slice(100), &remote, 1).post().unwrap());
    assert_eq!(slice.len(), 100);
}

/// Adapters invalidate memory windows, and no region of a program.
#[test]
fn send_with_invalidate_of_a_region_is_refused() {
    let (a, b) = pair::<Rc>();
    let region = b.region(64);
    let remote = region.remote();
    let recv = b.qp.recv(b.slice(64)).unwrap();
    let (result, _) = done(a.qp.send_with_inv(a.filled(b"bye"), remote.rkey).post().unwrap());
    assert!(matches!(result, Err(ironverbs::CompletionError::RemoteAccess { .. })), "{result:?}");
    let (result, _) = done(recv);
    assert!(result.is_err());
}

#[test]
fn lists_are_gathered_and_scattered_in_order() {
    let (a, b) = pair::<Rc>();
    let recv = b.qp.recv(vec![b.slice(3), b.slice(5_000), b.slice(10)]).unwrap();
    let parts = vec![a.filled(&pattern(4_000)), a.filled(&[1, 2, 3]), a.slice(0x10)];
    let expected: Vec<u8> = parts.iter().flat_map(|part| part.to_vec()).collect();
    let ((), parts) = ok(a.qp.send(parts).post().unwrap());
    assert_eq!(parts.len(), 3);
    let (received, into) = ok(recv);
    assert_eq!(received.len, expected.len());
    let found: Vec<u8> = into.iter().flat_map(|part| part.to_vec()).collect();
    assert_eq!(found[..expected.len()], expected);
    assert_eq!(found[expected.len()..], [0; 994]);
}

#[test]
fn inline_data_needs_no_region() {
    let (a, b) = pair::<Rc>();
    let recv = b.qp.recv(b.slice(300)).unwrap();
    let send = {
        let bytes = pattern(256);
        let send = a.qp.send(Inline(&bytes)).post().unwrap();
        drop(bytes);
        send
    };
    ok(send);
    let (received, slice) = ok(recv);
    assert_eq!(received.data(&slice), pattern(256));
    let rejected = a.qp.send(Inline(&pattern(257))).post().unwrap_err();
    assert_eq!(text(rejected), "257 bytes of inline data, at most 256 are allowed");
}

#[test]
fn a_shared_slice_is_sent_by_several_at_a_time() {
    let (a, b) = pair::<Rc>();
    let shared = a.filled(&pattern(1_000)).share();
    let recvs: Vec<_> = (0..4).map(|_| b.qp.recv(b.slice(1_000)).unwrap()).collect();
    let sends: Vec<_> = (0..4).map(|_| a.qp.send(shared.clone()).post().unwrap()).collect();
    let shared = shared.into_slice().unwrap_err();
    for recv in recvs {
        let (received, slice) = ok(recv);
        assert_eq!(received.data(&slice), pattern(1_000));
    }
    for send in sends {
        ok(send);
    }
    let slice = shared.into_slice().unwrap();
    assert_eq!(slice.to_vec(), pattern(1_000));
}

#[test]
fn nothing_is_sent_by_every_operation_whatever_the_key() {
    let (a, b) = pair::<Rc>();
    let nowhere = ironverbs::RemoteRegion { addr: 0x1000, rkey: 0xdead_beef, len: 0 };
    let recv = b.qp.recv(()).unwrap();
    ok(a.qp.send(()).post().unwrap());
    assert_eq!(ok(recv).0.len, 0);
    ok(a.qp.write((), &nowhere).post().unwrap());
    ok(a.qp.read((), &nowhere).post().unwrap());
    let mut empty = a.slice(4);
    empty.set_len(0).unwrap();
    let ((), empty) = ok(a.qp.write(empty, &nowhere).post().unwrap());
    ok(a.qp.read(empty, &nowhere).post().unwrap());
    let recv = b.qp.recv(()).unwrap();
    ok(a.qp.write_with_imm((), &nowhere, *b"zero").post().unwrap());
    assert_eq!(ok(recv).0.immediate, Some(*b"zero"));
    assert_eq!(a.qp.state(), QpState::Rts);
}

#[test]
fn solicited_and_fenced_requests_arrive_as_such() {
    let (a, b) = pair::<Rc>();
    let source = b.region(1 << 16);
    source.write_at(0, &pattern(1 << 16)).unwrap();
    let recv = b.qp.recv(b.slice(1 << 16)).unwrap();
    // The send reads what the read fetches: only a fence makes that right, and a list of slices no data race.
    let region = a.region(1 << 16);
    let read = a.qp.read(region.slice(..).unwrap(), &source.remote()).post().unwrap();
    let send = a.qp.send(a.filled(b"after")).fence().solicited().post().unwrap();
    let (received, slice) = ok(recv);
    assert!(received.solicited);
    assert_eq!(received.data(&slice), b"after");
    ok(send);
    // The fenced send has arrived, so that the read has ended.
    assert_eq!(ok(read).1.to_vec(), pattern(1 << 16));
}

#[test]
fn unsignaled_requests_end_with_the_next_signaled_one() {
    let (a, b) = pair::<Rc>();
    let target = b.region(8);
    let silent: Vec<_> = (0u8..10)
        .map(|i| a.qp.write(a.filled(&[i]), &target.remote()).unsignaled().post().unwrap())
        .collect();
    ok(a.qp.write(a.filled(&[10]), &target.remote()).post().unwrap());
    for op in silent {
        let (result, slice) = op.try_take().expect("success is implied");
        result.unwrap();
        assert_eq!(slice.len(), 1);
    }
    let mut last = [0];
    target.read_at(0, &mut last).unwrap();
    assert_eq!(last, [10]);
}

#[test]
fn a_queue_of_unsignaled_requests_does_not_fill_up() {
    let (a, b) = pair::<Rc>();
    let target = b.region(8);
    let remote = target.remote();
    let mut posted = 0;
    crate::support::until("1,000 requests were posted", || {
        if a.qp.write(a.slice(8), &remote).unsignaled().post().is_ok() {
            posted += 1;
        }
        posted == 1_000
    });
}

#[test]
fn many_messages_keep_their_order() {
    let (a, b) = pair::<Rc>();
    let (mut recvs, mut sends) = (Vec::new(), Vec::new());
    for i in 0u32..100 {
        recvs.push(b.qp.recv(b.slice(4)).unwrap());
        sends.push(a.qp.send(a.filled(&i.to_be_bytes())).post().unwrap());
    }
    for (i, recv) in recvs.into_iter().enumerate() {
        let (received, slice) = ok(recv);
        assert_eq!(received.data(&slice), (i as u32).to_be_bytes());
    }
    for send in sends {
        ok(send);
    }
}

#[test]
fn every_path_mtu_carries_every_length() {
    let context = context();
    let active = context.port(1).unwrap().active_mtu;
    for mtu in Mtu::ALL.into_iter().filter(|mtu| *mtu <= active) {
        let options = ConnectOptions { mtu: Some(mtu), ..ConnectOptions::default() };
        let contexts = [context.clone(), context.clone()];
        let (a, b) = pair_with::<Rc>(contexts, |builder| builder, &options);
        for len in [mtu.bytes() - 1, mtu.bytes(), mtu.bytes() + 1, 5 * mtu.bytes() + 3] {
            let recv = b.qp.recv(b.slice(len)).unwrap();
            ok(a.qp.send(a.filled(&pattern(len))).post().unwrap());
            let (received, slice) = ok(recv);
            assert_eq!(received.data(&slice), pattern(len), "{mtu:?}, {len} bytes");
        }
    }
}

#[test]
fn a_message_is_not_longer_than_its_remote_region() {
    let (a, b) = pair::<Rc>();
    let remote = b.region(64).remote();
    let rejected = a.qp.write(a.slice(65), &remote).post().unwrap_err();
    assert_eq!(rejected.error, RequestError::BeyondRemote { asked: 65, len: 64 });
    let rejected = a.qp.read(a.slice(65), &remote).post().unwrap_err();
    let error: Error = rejected.into();
    assert_eq!(error.to_string(), "65 bytes do not fit the 64 bytes of the remote region");
}
