//! The same API over a simulated network that loses, repeats, reorders and damages packets.

use std::net::{IpAddr, Ipv4Addr};

use ironverbs::sim::{Impairments, Network};
use ironverbs::{ConnectOptions, Cq, Devices, Kind, Op, Output, Qp, Rc, Returned};

use crate::support::{Side, pair_with};

fn address(n: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(10, 0, 0, n))
}

fn sides(network: &Network) -> (Side<Rc>, Side<Rc>) {
    let contexts = [1, 2].map(|n| {
        let devices = Devices::from(network.host(&[address(n)]).unwrap());
        devices.first().unwrap().open().unwrap()
    });
    pair_with(contexts, |builder| builder, &ConnectOptions::default())
}

/// Lets time pass until the operation has ended.
fn run<R: Returned, K: Kind>(network: &Network, cqs: [&Cq; 2], op: Op<R, K>) -> Output<R, K> {
    let mut op = op;
    for _ in 0..10_000_000u32 {
        match op.try_take() {
            Ok(output) => return output,
            Err(again) => op = again,
        }
        network.step();
        for cq in cqs {
            cq.poll().unwrap();
        }
    }
    panic!("the operation hangs at {} ns", network.now());
}

#[test]
fn every_operation_survives_a_bad_network() {
    for seed in 0..20 {
        let network = Network::new(seed);
        let (a, b) = sides(&network);
        network.impair(Impairments {
            loss: 0.1,
            duplication: 0.1,
            reordering: 0.1,
            corruption: 0.1,
            ..Impairments::default()
        });
        let cqs = [&a.cq, &b.cq];
        let target = b.region(20_000);
        let bytes: Vec<u8> = (0..20_000u32).map(|i| (i * 13 / 4) as u8 ^ seed as u8).collect();
        let mut counter = 0;
        for round in 0..5u8 {
            let recv = b.qp.recv(b.slice(20_000)).unwrap();
            let send = a.qp.send(a.filled(&bytes)).post().unwrap();
            let (sent, slice) = run(&network, cqs, send);
            sent.unwrap();
            let (received, into) = run(&network, cqs, recv);
            assert!(received.unwrap().data(&into) == bytes, "seed {seed}, round {round}");
            run(&network, cqs, a.qp.write(slice, &target.remote()).post().unwrap()).0.unwrap();
            let read = a.qp.read(a.slice(20_000), &target.remote()).post().unwrap();
            let (result, slice) = run(&network, cqs, read);
            result.unwrap();
            assert!(slice.to_vec() == bytes, "seed {seed}, round {round}");
            target.store_u64(0, counter).unwrap();
            let add = a.qp.fetch_add(a.slice(8), &target.remote(), 3).post().unwrap();
            let (before, _) = run(&network, cqs, add);
            assert_eq!(before.unwrap(), counter, "seed {seed}, round {round}");
            counter += 3;
            assert_eq!(target.load_u64(0).unwrap(), counter, "seed {seed}, round {round}");
        }
        assert!(network.traffic().lost > 0);
    }
}

#[test]
fn a_peer_that_is_cut_off_is_noticed() {
    let network = Network::new(1);
    let (a, b) = sides(&network);
    network.impair(Impairments { loss: 1.0, ..Impairments::default() });
    let send = a.qp.send(a.slice(8)).post().unwrap();
    let (result, _) = run(&network, [&a.cq, &b.cq], send);
    assert_eq!(result.unwrap_err().status(), Some(ironverbs::WcStatus::RetryExcErr));
}

#[test]
fn a_thousand_connected_queue_pairs() {
    let network = Network::new(2);
    let (a, b) = sides(&network);
    let more: Vec<(Qp<Rc>, Qp<Rc>)> = (0..500)
        .map(|_| {
            let near = Qp::<Rc>::builder(&a.pd, &a.cq).build().unwrap();
            let far = Qp::<Rc>::builder(&b.pd, &b.cq).build().unwrap();
            ironverbs::connect_pair(near, far, &ConnectOptions::default()).unwrap()
        })
        .collect();
    for (near, far) in &more {
        let recv = far.recv(b.slice(4)).unwrap();
        run(&network, [&a.cq, &b.cq], near.send(a.filled(b"each")).post().unwrap()).0.unwrap();
        let (received, slice) = run(&network, [&a.cq, &b.cq], recv);
        assert_eq!(received.unwrap().data(&slice), b"each");
    }
}
