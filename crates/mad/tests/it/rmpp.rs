//! Messages of many segments.

use ironverbs_mad::Instant;
use ironverbs_mad::rmpp::{Receiver, Sender, data_offset, is_active, is_long};
use ironverbs_wire::mad::Mad;

use crate::support::{MS, Rng, SECOND};

fn head(class: u8) -> Mad {
    let mut mad = [0; 256];
    mad[..4].copy_from_slice(&[1, class, 2, 0x92]);
    mad[8..16].copy_from_slice(&77u64.to_be_bytes());
    mad[44..46].copy_from_slice(&14u16.to_be_bytes());
    mad
}

fn message(len: usize) -> Vec<u8> {
    (0..len).map(|n| (n * 7 + n / 251) as u8).collect()
}

/// What the receiver got, over a network that loses, repeats and delays.
fn exchange(class: u8, len: usize, loss: u64, seed: u64) -> Option<Vec<u8>> {
    let mut rng = Rng(seed);
    let (mut sender, mut receiver) = (Sender::new(&head(class), message(len)), Receiver::new());
    let mut now = Instant(SECOND);
    let mut got = None;
    for _ in 0..100_000 {
        while let Some(mad) = sender.poll_transmit(now) {
            assert!(is_active(&mad));
            for _ in 0..if rng.percent(5) { 2 } else { 1 } {
                if rng.percent(loss) {
                    continue;
                }
                let step = receiver.handle(&mad);
                assert!(!step.failed);
                if let Some(done) = step.done {
                    assert!(got.replace(done).is_none(), "twice");
                }
                if let Some(ack) = step.reply.filter(|_| !rng.percent(loss)) {
                    assert_eq!(ack[3], 0x12);
                    sender.handle(now, &ack);
                }
            }
        }
        if sender.is_done() {
            return got;
        }
        now = now.after(50 * MS);
        sender.handle_timeout(now);
        if sender.has_failed() {
            return None;
        }
    }
    panic!("never ends");
}

#[test]
fn messages_of_every_length_arrive_whole() {
    for class in [0x03, 0x04, 0x06, 0x32] {
        for len in [0, 1, 199, 200, 201, 219, 220, 221, 400, 12_800, 12_801, 100_000] {
            let got = exchange(class, len, 0, 1).unwrap();
            let offset = data_offset(class);
            assert_eq!(got.len(), offset + len, "class {class:#x}, {len} bytes");
            assert_eq!(got[offset..], message(len));
            assert_eq!(got[..24], head(class)[..24]);
        }
    }
}

#[test]
fn loss_is_made_good() {
    for seed in 0..200 {
        let got = exchange(0x03, 5_000, seed % 30, seed).unwrap();
        assert_eq!(got[56..], message(5_000), "seed {seed}");
    }
}

#[test]
fn one_that_nobody_takes_is_given_up() {
    let mut sender = Sender::new(&head(3), message(1000));
    let mut now = Instant(SECOND);
    let mut aborts = 0;
    while !sender.has_failed() {
        while sender.poll_transmit(now).is_some() {}
        now = sender.next_timeout().unwrap();
        aborts += u32::from(sender.handle_timeout(now).is_some());
    }
    assert_eq!(aborts, 1);
    assert_eq!((sender.next_timeout(), sender.poll_transmit(now)), (None, None));
}

#[test]
fn garbage_ends_in_order() {
    let mut rng = Rng(9);
    for _ in 0..20_000 {
        let (mut sender, mut receiver) = (Sender::new(&head(3), message(900)), Receiver::new());
        for _ in 0..8 {
            let mut mad = head([3, 4, 0x32, 0xff][rng.below(4) as usize]);
            for byte in &mut mad[24..40] {
                *byte = if rng.percent(50) { rng.below(5) as u8 } else { rng.next() as u8 };
            }
            sender.handle(Instant(1), &mad);
            sender.poll_transmit(Instant(1));
            let step = receiver.handle(&mad);
            if step.failed || step.done.is_some() {
                break;
            }
        }
    }
}

#[test]
fn the_flag_alone_asks_for_segments() {
    // As opensm does; a message shorter than a MAD then keeps its length.
    let mut message = vec![0; 56 + 4 * 8];
    (message[0], message[1], message[3]) = (1, 3, 0x92);
    assert!(!is_long(&message));
    message[26] = 1;
    assert!(is_long(&message));
    // An acknowledgement is none.
    message[25] = 2;
    assert!(!is_long(&message));
}
