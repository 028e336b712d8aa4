//! Keys, domains, ranges and rights, on either side of every operation: the status at both ends, memory that stays
//! as it was, and the event that tells the responder.

use std::sync::Arc;

use ironverbs_soft::*;

use crate::fabric::Fabric;
use crate::side::{ALL, Side, move_to, next_key, outcomes, pair, pair_with, pattern, wr};

cases![
    what_a_peer_may_not_reach_it_does_not_reach,
    the_last_byte_of_a_region_counts,
    rights_of_the_queue_pair_come_first,
    rights_are_separate,
    an_lkey_is_no_rkey_nor_an_rkey_an_lkey,
    bad_local_memory_fails_the_request,
    bad_receive_memory_fails_both_ends,
    a_receive_that_is_too_small_fails_both_ends,
    misaligned_atomics_are_invalid,
    zero_length_needs_no_key,
    deregistering_ends_access,
    zero_based_and_moved_regions_are_named_by_their_iova,
    rereg_changes_what_peers_may_do,
    send_with_invalidate_ends_a_window,
    a_window_gives_what_it_was_bound_with,
    a_window_that_cannot_be_bound_breaks_the_queue_pair,
    windows_keep_the_order_of_requests,
    null_regions_are_everywhere_and_nowhere,
    an_rkey_that_may_not_be_invalidated_fails_both_ends,
    unsignaled_requests_that_fail_complete,
    events_name_the_queue_pair_and_come_once,
];

/// Operations on a peer's memory.
const REMOTE: [WrOpcode; 5] = [
    WrOpcode::Write,
    WrOpcode::WriteWithImm,
    WrOpcode::Read,
    WrOpcode::CompareSwap,
    WrOpcode::FetchAdd,
];

/// What an operation needs.
fn right(opcode: WrOpcode) -> Access {
    match opcode {
        WrOpcode::Write | WrOpcode::WriteWithImm => Access::REMOTE_WRITE,
        WrOpcode::Read => Access::REMOTE_READ,
        _ => Access::REMOTE_ATOMIC,
    }
}

/// Two sides with memory of different contents.
fn sides(f: &Fabric) -> (Side, Side, Vec<u8>, Vec<u8>) {
    let (a, b) = f.two();
    let (mine, yours) = (pattern(1 << 20, 1), pattern(1 << 20, 2));
    a.fill(0, &mine);
    b.fill(0, &yours);
    (a, b, mine, yours)
}

/// A new pair posts the request, which must fail, and break the connection at both ends.
#[track_caller]
fn refused(
    f: &Fabric,
    a: &Side,
    b: &Side,
    request: &SendWr,
    len: u32,
    want: (WcStatus, EventKind),
) {
    let (x, y) = pair(a, b, QpType::Rc);
    y.post_recv(70, &[b.sge(0, 64)]).unwrap();
    x.post_send(request, Payload::Sges(&[a.sge(0, len)])).unwrap();
    x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    let what = format!("{request:x?} of {len} bytes");
    assert_eq!(outcomes(&f.completions(a, 2)), [(1, want.0), (2, WcStatus::WrFlushErr)], "{what}");
    assert_eq!(outcomes(&f.completions(b, 1)), [(70, WcStatus::WrFlushErr)], "{what}");
    assert_eq!(f.event(b).kind, want.1, "{what}");
    assert_eq!((x.state(), y.state()), (QpState::Err, QpState::Err), "{what}");
    f.nothing_more(&[a, b]);
    assert!(a.next_event().is_none() && b.next_event().is_none(), "{what}");
    x.destroy().unwrap();
    y.destroy().unwrap();
}

const ACCESS: (WcStatus, EventKind) = (WcStatus::RemAccessErr, EventKind::QpAccessErr);
const INVALID: (WcStatus, EventKind) = (WcStatus::RemInvReqErr, EventKind::QpReqErr);

fn what_a_peer_may_not_reach_it_does_not_reach(f: &Fabric) {
    let (a, b, mine, yours) = sides(f);
    let gone = b.register(ALL);
    let gone_rkey = gone.rkey();
    gone.destroy().unwrap();
    let (_pd, foreign) = b.other_domain();
    let end = b.memory.addr() + b.memory.len() as u64;
    for opcode in REMOTE {
        let good = SendWr { compare_add: 1, ..b.remote(1, opcode, 4096) };
        let len = if right(opcode) == Access::REMOTE_ATOMIC { 8 } else { 3000 };
        let lacking = b.register(ALL - right(opcode));
        let nothing = b.register(Access::LOCAL_WRITE);
        let keys = [
            gone_rkey,
            foreign.rkey(),
            lacking.rkey(),
            nothing.rkey(),
            b.mr.lkey(),
            b.mr.rkey() ^ 1,
            b.mr.rkey() ^ 0x8000_0000,
            0,
            u32::MAX,
            0xdead_beef,
        ];
        for rkey in keys {
            refused(f, &a, &b, &SendWr { rkey, ..good }, len, ACCESS);
        }
        for remote_addr in [
            b.memory.addr() - 8,
            b.memory.addr() - 4096,
            end - u64::from(len) / 8 * 8 + 8,
            end,
            end + (1 << 32),
            0,
            u64::MAX - 7,
            u64::MAX - 4095,
        ] {
            refused(f, &a, &b, &SendWr { remote_addr, ..good }, len, ACCESS);
        }
        lacking.destroy().unwrap();
        nothing.destroy().unwrap();
    }
    assert!(a.read(0, 1 << 20) == mine, "the requester's memory changed");
    assert!(b.read(0, 1 << 20) == yours, "the responder's memory changed");
}

fn the_last_byte_of_a_region_counts(f: &Fabric) {
    let (a, b, _, _) = sides(f);
    let (pd, addr) = (&b.pd, b.memory.addr());
    // SAFETY: within the mapping, which outlives the case.
    let region = unsafe { pd.reg_mr(addr + 100, 1000, addr + 100, ALL) }.unwrap();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let to = SendWr { rkey: region.rkey(), ..b.remote(1, WrOpcode::Write, 100) };
    x.post_send(&to, Payload::Sges(&[a.sge(0, 1000)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    assert_eq!(b.read(100, 1000), a.read(0, 1000));
    x.destroy().unwrap();
    y.destroy().unwrap();
    refused(f, &a, &b, &to, 1001, ACCESS);
    refused(f, &a, &b, &SendWr { remote_addr: addr + 99, ..to }, 1000, ACCESS);
    refused(f, &a, &b, &SendWr { remote_addr: addr + 101, ..to }, 1000, ACCESS);
    // Long enough for several packets, and only the last of them outside.
    refused(f, &a, &b, &b.remote(1, WrOpcode::Write, (1 << 20) - 5000), 5001, ACCESS);
    refused(f, &a, &b, &b.remote(1, WrOpcode::Read, (1 << 20) - 5000), 5001, ACCESS);
}

fn rights_of_the_queue_pair_come_first(f: &Fabric) {
    let (a, b, _, yours) = sides(f);
    for opcode in REMOTE {
        let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| attr.access = ALL - right(opcode));
        y.post_recv(70, &[b.sge(0, 64)]).unwrap();
        x.post_send(&b.remote(1, opcode, 4096), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        // An operation that a QP is not set up for is an invalid request (IBA 9.7.4.1.2).
        assert_eq!(outcomes(&f.completions(&a, 1)), [(1, WcStatus::RemInvReqErr)], "{opcode:?}");
        assert_eq!(outcomes(&f.completions(&b, 1)), [(70, WcStatus::WrFlushErr)], "{opcode:?}");
        assert_eq!(f.event(&b).kind, EventKind::QpReqErr, "{opcode:?}");
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
    assert!(b.read(0, 1 << 20) == yours);
}

fn rights_are_separate(f: &Fabric) {
    let (a, b, _, _) = sides(f);
    for opcode in REMOTE {
        // Exactly what it needs, in the QP and in the region.
        let need = right(opcode) | Access::LOCAL_WRITE;
        let region = b.register(need);
        let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| attr.access = need);
        y.post_recv(1, &[]).unwrap();
        let request = SendWr { rkey: region.rkey(), ..b.remote(1, opcode, 4096) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success, "{opcode:?}");
        x.destroy().unwrap();
        y.destroy().unwrap();
        f.settle();
        b.poll();
    }
    // A READ needs no right to write.
    let region = b.register(Access::REMOTE_READ);
    let (x, _y) = pair(&a, &b, QpType::Rc);
    let request = SendWr { rkey: region.rkey(), ..b.remote(1, WrOpcode::Read, 4096) };
    x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    // Nor a SEND from memory that is only registered.
    let region = a.register(Access::empty());
    let (x, y) = pair(&a, &b, QpType::Rc);
    y.post_recv(1, &[b.sge(0, 8)]).unwrap();
    let sge = Sge { lkey: region.lkey(), ..a.sge(0, 8) };
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[sge])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
}

fn an_lkey_is_no_rkey_nor_an_rkey_an_lkey(f: &Fabric) {
    let side = f.side();
    let mut keys = Vec::new();
    for _ in 0..300 {
        let region = side.register(ALL);
        assert_ne!(region.lkey(), region.rkey());
        keys.extend([region.lkey(), region.rkey()]);
        region.destroy().unwrap();
    }
    assert!(!keys.contains(&0));
    let count = keys.len();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys.len(), count, "a key was given out twice");
}

/// What is wrong with a local element, and what is told about it.
fn bad_local_elements(side: &Side) -> Vec<(Sge, VendorErr)> {
    let good = side.sge(4096, 8);
    let gone = side.register(ALL);
    let gone_lkey = gone.lkey();
    gone.destroy().unwrap();
    let end = side.memory.addr() + side.memory.len() as u64;
    vec![
        (Sge { lkey: gone_lkey, ..good }, VendorErr::LkeyUnknown),
        (Sge { lkey: 0xdead_beef, ..good }, VendorErr::LkeyUnknown),
        (Sge { lkey: 0, ..good }, VendorErr::LkeyUnknown),
        (Sge { lkey: side.mr.rkey(), ..good }, VendorErr::LkeyUnknown),
        (Sge { addr: side.memory.addr() - 1, ..good }, VendorErr::LkeyRange),
        (Sge { addr: end - 7, ..good }, VendorErr::LkeyRange),
        (Sge { addr: end, ..good }, VendorErr::LkeyRange),
        (Sge { addr: u64::MAX - 3, ..good }, VendorErr::LkeyRange),
        (Sge { addr: 0, ..good }, VendorErr::LkeyRange),
    ]
}

/// Elements of another domain, and ones that may not be written.
fn foreign_and_readonly(side: &Side) -> (Arc<Pd>, [Arc<Mr>; 2], Sge, Sge) {
    let (pd, foreign) = side.other_domain();
    let readonly = side.register(Access::REMOTE_READ);
    let good = side.sge(4096, 8);
    let (other, fixed) =
        (Sge { lkey: foreign.lkey(), ..good }, Sge { lkey: readonly.lkey(), ..good });
    (pd, [foreign, readonly], other, fixed)
}

fn bad_local_memory_fails_the_request(f: &Fabric) {
    let (a, b, mine, yours) = sides(f);
    let (_pd, _regions, foreign, readonly) = foreign_and_readonly(&a);
    let mut bad = bad_local_elements(&a);
    bad.push((foreign, VendorErr::LkeyPd));
    for opcode in
        [WrOpcode::Send, WrOpcode::Write, WrOpcode::Read, WrOpcode::CompareSwap, WrOpcode::FetchAdd]
    {
        let reads = !matches!(opcode, WrOpcode::Send | WrOpcode::Write);
        let mut bad = bad.clone();
        if reads {
            bad.push((readonly, VendorErr::LkeyAccess));
        }
        for (sge, why) in bad {
            let (x, y) = pair(&a, &b, QpType::Rc);
            y.post_recv(70, &[b.sge(0, 64)]).unwrap();
            x.post_send(&b.remote(1, opcode, 4096), Payload::Sges(&[sge])).unwrap();
            x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
            let found = f.completions(&a, 2);
            let want = [(1, WcStatus::LocProtErr), (2, WcStatus::WrFlushErr)];
            assert_eq!(outcomes(&found), want, "{opcode:?} {sge:x?}");
            assert_eq!(
                (found[0].vendor_err, found[0].qpn),
                (why as u32, x.qpn()),
                "{opcode:?} {sge:x?}"
            );
            // The responder was not reached.
            assert_eq!((x.state(), y.state()), (QpState::Err, QpState::Rts));
            f.nothing_more(&[&a, &b]);
            x.destroy().unwrap();
            y.destroy().unwrap();
        }
    }
    assert!(a.read(0, 1 << 20) == mine && b.read(0, 1 << 20) == yours);
}

fn bad_receive_memory_fails_both_ends(f: &Fabric) {
    let (a, b, _, yours) = sides(f);
    let (_pd, _regions, foreign, readonly) = foreign_and_readonly(&b);
    let mut bad = bad_local_elements(&b);
    bad.push((foreign, VendorErr::LkeyPd));
    bad.push((readonly, VendorErr::LkeyAccess));
    for (sge, why) in bad {
        let (x, y) = pair(&a, &b, QpType::Rc);
        y.post_recv(70, &[sge]).unwrap();
        y.post_recv(71, &[b.sge(0, 8)]).unwrap();
        x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
        let sent = f.completions(&a, 2);
        let want = [(1, WcStatus::RemOpErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(outcomes(&sent), want, "{sge:x?}");
        let received = f.completions(&b, 2);
        let want = [(70, WcStatus::LocProtErr), (71, WcStatus::WrFlushErr)];
        assert_eq!(outcomes(&received), want, "{sge:x?}");
        assert_eq!(received[0].vendor_err, why as u32, "{sge:x?}");
        assert_eq!((x.state(), y.state()), (QpState::Err, QpState::Err));
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
    assert!(b.read(0, 1 << 20) == yours);
}

fn a_receive_that_is_too_small_fails_both_ends(f: &Fabric) {
    let (a, b, _, _) = sides(f);
    // Within a packet, at its end, and some packets on.
    for (sent, room) in [(8, 0), (8, 7), (1025, 1024), (5000, 1024), (5000, 4999)] {
        let (x, y) = pair(&a, &b, QpType::Rc);
        y.post_recv(70, &[b.sge(0, room / 2), b.sge(2048, room - room / 2)]).unwrap();
        y.post_recv(71, &[]).unwrap();
        x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, sent)])).unwrap();
        x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[])).unwrap();
        let want = [(1, WcStatus::RemInvReqErr), (2, WcStatus::WrFlushErr)];
        assert_eq!(outcomes(&f.completions(&a, 2)), want, "{sent} into {room}");
        let want = [(70, WcStatus::LocLenErr), (71, WcStatus::WrFlushErr)];
        assert_eq!(outcomes(&f.completions(&b, 2)), want, "{sent} into {room}");
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
}

fn misaligned_atomics_are_invalid(f: &Fabric) {
    let (a, b, _, yours) = sides(f);
    for opcode in [WrOpcode::CompareSwap, WrOpcode::FetchAdd] {
        for offset in 1..8 {
            let request = SendWr { compare_add: 1, ..b.remote(1, opcode, 4096 + offset) };
            refused(f, &a, &b, &request, 8, INVALID);
        }
    }
    assert!(b.read(0, 1 << 20) == yours);
}

fn zero_length_needs_no_key(f: &Fabric) {
    let (a, b, mine, yours) = sides(f);
    let (x, y) = pair(&a, &b, QpType::Rc);
    let nowhere = Sge { addr: 0, len: 0, lkey: 0xdead_beef };
    for sges in [&[][..], &[nowhere], &[nowhere; 3]] {
        for opcode in [WrOpcode::Send, WrOpcode::Write, WrOpcode::Read, WrOpcode::WriteWithImm] {
            let two_sided = matches!(opcode, WrOpcode::Send | WrOpcode::WriteWithImm);
            if two_sided {
                y.post_recv(7, sges).unwrap();
            }
            for remote_addr in [0, b.memory.addr(), u64::MAX] {
                let request = SendWr { remote_addr, rkey: 0xbad, ..wr(1, opcode) };
                let once = remote_addr == 0 || !two_sided;
                if once {
                    x.post_send(&request, Payload::Sges(sges)).unwrap();
                    let wc = f.completion(&a);
                    assert_eq!((wc.status, wc.byte_len), (WcStatus::Success, 0), "{opcode:?}");
                }
            }
            if two_sided {
                let wc = f.completion(&b);
                assert_eq!((wc.wr_id, wc.status, wc.byte_len), (7, WcStatus::Success, 0));
            }
        }
    }
    // Among others, an empty element has no key either.
    y.post_recv(8, &[nowhere, b.sge(0, 4), nowhere, b.sge(4, 4)]).unwrap();
    let list = [nowhere, a.sge(0, 8), nowhere];
    x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&list)).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    assert_eq!(f.completion(&b).byte_len, 8);
    assert_eq!(b.read(0, 8), mine[..8]);
    assert!(b.read(8, (1 << 20) - 8) == yours[8..]);
}

fn deregistering_ends_access(f: &Fabric) {
    let (a, b, _, _) = sides(f);
    let region = b.register(ALL);
    let (x, y) = pair(&a, &b, QpType::Rc);
    let request = SendWr { rkey: region.rkey(), ..b.remote(1, WrOpcode::Write, 0) };
    x.post_send(&request, Payload::Sges(&[a.sge(0, 100)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    region.destroy().unwrap();
    let before = b.read(0, 1 << 20);
    x.post_send(&request, Payload::Sges(&[a.sge(5000, 100)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::RemAccessErr);
    assert!(b.read(0, 1 << 20) == before);
    assert_eq!(y.state(), QpState::Err);

    // Under a request that waits for its receive, and under a receive.
    let region = a.register(ALL);
    // The responder asks for a pause of 164 ms, in which nothing is on its way.
    let (x, y) = pair_with(&a, &b, QpType::Rc, |attr| attr.min_rnr_timer = 28);
    let sge = Sge { lkey: region.lkey(), ..a.sge(0, 1000) };
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[sge])).unwrap();
    f.until("an RNR NAK", || x.counters().rnr_naks_received > 0);
    region.destroy().unwrap();
    y.post_recv(2, &[b.sge(0, 1000)]).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::LocProtErr);
    let region = b.register(ALL);
    let (x, y) = pair(&a, &b, QpType::Rc);
    y.post_recv(2, &[Sge { lkey: region.lkey(), ..b.sge(0, 8) }]).unwrap();
    region.destroy().unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::RemOpErr);
}

fn zero_based_and_moved_regions_are_named_by_their_iova(f: &Fabric) {
    let (a, b, mine, _) = sides(f);
    let (addr, len) = (b.memory.addr(), 8192);
    for (access, iova, start) in [
        (ALL | Access::ZERO_BASED, addr, 0),
        (ALL, 0x1000_0000_0000, 0x1000_0000_0000),
        (ALL, 0, 0),
        (ALL, u64::MAX - 8192, u64::MAX - 8192),
    ] {
        // SAFETY: within the mapping.
        let region = unsafe { b.pd.reg_mr(addr, len, iova, access) }.unwrap();
        assert_eq!(region.iova(), start);
        let (x, y) = pair(&a, &b, QpType::Rc);
        let request =
            SendWr { remote_addr: start + 100, rkey: region.rkey(), ..wr(1, WrOpcode::Write) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 3000)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        assert_eq!(b.read(100, 3000), mine[..3000]);
        // A local element names it the same way.
        y.post_recv(1, &[Sge { addr: start + 5000, len: 100, lkey: region.lkey() }]).unwrap();
        x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 100)])).unwrap();
        assert_eq!(f.completion(&b).status, WcStatus::Success);
        assert_eq!(b.read(5000, 100), mine[..100]);
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        x.destroy().unwrap();
        y.destroy().unwrap();
        if start != 0 || access.contains(Access::ZERO_BASED) {
            let request = SendWr { remote_addr: addr, ..request };
            refused(f, &a, &b, &request, 8, ACCESS);
        }
        region.destroy().unwrap();
    }
}

fn rereg_changes_what_peers_may_do(f: &Fabric) {
    let (a, b, mine, _) = sides(f);
    let region = b.register(ALL);
    let old = region.rkey();
    // SAFETY: the same mapping.
    unsafe { region.rereg(None, None, Some(Access::LOCAL_WRITE | Access::REMOTE_READ)) }.unwrap();
    for rkey in [old, region.rkey()] {
        refused(f, &a, &b, &SendWr { rkey, ..b.remote(1, WrOpcode::Write, 0) }, 8, ACCESS);
    }
    // Another range, under another name.
    let (addr, iova) = (b.memory.addr() + 8192, 0x7000);
    // SAFETY: within the same mapping.
    unsafe { region.rereg(None, Some((addr, 4096, iova)), Some(ALL)) }.unwrap();
    assert_eq!((region.addr(), region.len(), region.iova()), (addr, 4096, iova));
    let (x, y) = pair(&a, &b, QpType::Rc);
    let request = SendWr { remote_addr: iova + 6, rkey: region.rkey(), ..wr(1, WrOpcode::Write) };
    x.post_send(&request, Payload::Sges(&[a.sge(0, 4090)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    assert_eq!(b.read(8198, 4090), mine[..4090]);
    x.destroy().unwrap();
    y.destroy().unwrap();
    // Another domain: out of this QP's reach.
    let pd = b.context.alloc_pd().unwrap();
    // SAFETY: the same mapping.
    unsafe { region.rereg(Some(&pd), None, None) }.unwrap();
    assert!(Arc::ptr_eq(&region.pd(), &pd));
    refused(f, &a, &b, &SendWr { rkey: region.rkey(), ..request }, 8, ACCESS);
    assert!(pd.destroy().is_err(), "the region is of this domain now");
    region.destroy().unwrap();
    pd.destroy().unwrap();
}

fn send_with_invalidate_ends_a_window(f: &Fabric) {
    let (a, b, mine, _) = sides(f);
    let region = b.windowed();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let mw = b.pd.alloc_mw(MwType::Two).unwrap();
    let rkey = b.bind(&y, &mw, &region, REACH);
    assert_eq!(f.completion(&b).opcode, WcOpcode::BindMw);
    x.post_send(&SendWr { rkey, ..b.remote(1, WrOpcode::Write, 0) }, Payload::Sges(&[a.sge(0, 8)]))
        .unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    y.post_recv(1, &[b.sge(0, 4000)]).unwrap();
    let request = SendWr { invalidate_rkey: rkey, ..wr(1, WrOpcode::SendWithInv) };
    x.post_send(&request, Payload::Sges(&[a.sge(0, 3000)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    let wc = f.completion(&b);
    assert_eq!((wc.status, wc.byte_len, wc.opcode), (WcStatus::Success, 3000, WcOpcode::Recv));
    assert_eq!((wc.flags, wc.invalidated_rkey), (WcFlags::WITH_INV, rkey));
    assert_eq!(b.read(0, 3000), mine[..3000]);
    x.post_send(&SendWr { rkey, ..b.remote(1, WrOpcode::Read, 0) }, Payload::Sges(&[a.sge(0, 8)]))
        .unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::RemAccessErr);
    // Locally the region is as before.
    x.destroy().unwrap();
    y.destroy().unwrap();
    let (x, y) = pair(&a, &b, QpType::Rc);
    y.post_recv(1, &[Sge { lkey: region.lkey(), ..b.sge(0, 8) }]).unwrap();
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&b).status, WcStatus::Success);
    region.destroy().unwrap();
}

/// All that peers can do.
const REACH: Access = Access::REMOTE_WRITE.union(Access::REMOTE_READ).union(Access::REMOTE_ATOMIC);

fn a_window_gives_what_it_was_bound_with(f: &Fabric) {
    let (a, b, mine, yours) = sides(f);
    let region = b.windowed();
    for kind in [MwType::One, MwType::Two] {
        let mw = b.pd.alloc_mw(kind).unwrap();
        let (x, y) = pair(&a, &b, QpType::Rc);
        let rkey = next_key(mw.rkey());
        let bind = Bind {
            rkey,
            lkey: region.lkey(),
            addr: b.memory.addr() + 4096,
            len: 4096,
            access: Access::REMOTE_WRITE,
        };
        let post = |bind: &Bind| {
            let request = SendWr::bind(5, SendFlags::SIGNALED, bind);
            y.post_send(&request, Payload::Sges(&[])).unwrap();
        };
        post(&bind);
        assert_eq!(outcomes(&f.completions(&b, 1)), [(5, WcStatus::Success)]);
        assert!(matches!(region.destroy(), Err(Error::Busy { users: 1, .. })));
        // SAFETY: the same memory.
        assert!(unsafe { region.rereg(None, None, Some(ALL)) }.is_err());
        let write = |offset| SendWr { rkey, ..b.remote(1, WrOpcode::Write, offset) };
        x.post_send(&write(4096), Payload::Sges(&[a.sge(0, 4096)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        assert_eq!(b.read(4096, 4096), mine[..4096]);
        b.fill(4096, &yours[4096..8192]);
        // Beyond its ends, or what it was not given: of either type by the queue pair that bound it, whose connection
        // breaks; a window of type 1 goes on with another.
        let (x, y) = match kind {
            MwType::One => pair(&a, &b, QpType::Rc),
            MwType::Two => (x, y),
        };
        let read = SendWr { rkey, ..b.remote(2, WrOpcode::Read, 4096) };
        x.post_send(&read, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::RemAccessErr);
        let _ = f.event(&b);
        if kind == MwType::One {
            let (x, _y) = pair(&a, &b, QpType::Rc);
            x.post_send(&write(4095), Payload::Sges(&[a.sge(0, 8)])).unwrap();
            assert_eq!(f.completion(&a).status, WcStatus::RemAccessErr);
            let _ = f.event(&b);
        } else {
            // Of type 2 it is for that queue pair alone.
            let (x, _y) = pair(&a, &b, QpType::Rc);
            x.post_send(&write(4096), Payload::Sges(&[a.sge(0, 8)])).unwrap();
            assert_eq!(f.completion(&a).status, WcStatus::RemAccessErr);
            let _ = f.event(&b);
        }
        assert_eq!(b.read(0, 1 << 16), yours[..1 << 16]);
        mw.destroy().unwrap();
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
    region.destroy().unwrap();
}

fn a_window_that_cannot_be_bound_breaks_the_queue_pair(f: &Fabric) {
    let (a, b, _, _) = sides(f);
    let good = b.windowed();
    let plain = b.register(ALL);
    let unwritable = b.register(Access::MW_BIND);
    let (other, foreign) = b.other_domain();
    let (first, len) = (b.memory.addr(), b.memory.len() as u64);
    let write = Access::REMOTE_WRITE;
    let cases = [
        (MwType::Two, plain.lkey(), first, 8, write, VendorErr::BindAccess),
        (MwType::Two, unwritable.lkey(), first, 8, write, VendorErr::BindAccess),
        (MwType::One, unwritable.lkey(), first, 8, Access::REMOTE_ATOMIC, VendorErr::BindAccess),
        (MwType::Two, foreign.lkey(), first, 8, write, VendorErr::BindPd),
        (MwType::Two, 0xdead_be00, first, 8, write, VendorErr::BindKey),
        (MwType::Two, good.rkey(), first, 8, write, VendorErr::BindKey),
        (MwType::Two, good.lkey(), first, 0, write, VendorErr::BindRange),
        (MwType::Two, good.lkey(), first - 1, 8, write, VendorErr::BindRange),
        (MwType::One, good.lkey(), first, len + 1, write, VendorErr::BindRange),
        (MwType::One, good.lkey(), first, u64::MAX, write, VendorErr::BindRange),
    ];
    for (kind, lkey, addr, len, access, why) in cases {
        let mw = b.pd.alloc_mw(kind).unwrap();
        let (_x, y) = pair(&a, &b, QpType::Rc);
        let bind = Bind { rkey: next_key(mw.rkey()), lkey, addr, len, access };
        y.post_send(&SendWr::bind(5, SendFlags::empty(), &bind), Payload::Sges(&[])).unwrap();
        y.post_send(&b.remote(6, WrOpcode::Write, 0), Payload::Sges(&[])).unwrap();
        let found = f.completions(&b, 2);
        assert_eq!(outcomes(&found), [(5, WcStatus::MwBindErr), (6, WcStatus::WrFlushErr)]);
        assert_eq!((found[0].vendor_err, found[0].opcode), (why as u32, WcOpcode::BindMw));
        assert_eq!(y.state(), QpState::Err);
        mw.destroy().unwrap();
    }
    // A window of another domain, one that is bound already, and keys that are none of a bound window.
    let elsewhere = other.alloc_mw(MwType::Two).unwrap();
    let taken = b.pd.alloc_mw(MwType::Two).unwrap();
    let (_x, y) = pair(&a, &b, QpType::Rc);
    b.bind(&y, &taken, &good, write);
    assert_eq!(f.completion(&b).status, WcStatus::Success);
    b.bind(&y, &taken, &good, write);
    assert_eq!(f.completion(&b).vendor_err, VendorErr::BindKey as u32);
    let (_x, y) = pair(&a, &b, QpType::Rc);
    b.bind(&y, &elsewhere, &good, write);
    assert_eq!(f.completion(&b).vendor_err, VendorErr::BindPd as u32);
    let first_type = b.pd.alloc_mw(MwType::One).unwrap();
    // The last is bound, but by another queue pair.
    for rkey in [0, good.rkey(), first_type.rkey(), taken.rkey(), next_key(taken.rkey())] {
        let (_x, y) = pair(&a, &b, QpType::Rc);
        let request = SendWr { invalidate_rkey: rkey, ..wr(9, WrOpcode::LocalInv) };
        y.post_send(&request, Payload::Sges(&[])).unwrap();
        let wc = f.completion(&b);
        assert_eq!((wc.status, wc.opcode), (WcStatus::MwBindErr, WcOpcode::LocalInv));
        assert_eq!(wc.vendor_err, VendorErr::InvalidateRefused as u32);
    }
    good.destroy().unwrap_err();
    taken.destroy().unwrap();
    good.destroy().unwrap();
}

/// What stands before a binding is complete before it, and what stands behind it goes when it is done.
fn windows_keep_the_order_of_requests(f: &Fabric) {
    let (a, b, mine, yours) = sides(f);
    let region = b.windowed();
    let (x, y) = pair(&a, &b, QpType::Rc);
    let mw = b.pd.alloc_mw(MwType::Two).unwrap();
    for round in 0..5_u64 {
        let rkey = mw.rkey() & !0xff | round as u32;
        let bind = Bind {
            rkey,
            lkey: region.lkey(),
            addr: region.iova(),
            len: region.len(),
            access: REACH,
        };
        x.post_recv(3, &[]).unwrap();
        {
            let mut batch = y.post_batch();
            let write = |id, offset| SendWr { wr_id: id, ..a.remote(id, WrOpcode::Write, offset) };
            batch.push(&write(1, 1 << 18), Payload::Sges(&[b.sge(1 << 18, 100_000)])).unwrap();
            batch.push(&SendWr::bind(2, SendFlags::SIGNALED, &bind), Payload::Sges(&[])).unwrap();
            // It tells the peer, which may use the key at once.
            batch.push(&wr(3, WrOpcode::Send), Payload::Sges(&[])).unwrap();
            batch.push(&write(4, 1 << 19), Payload::Sges(&[b.sge(1 << 19, 8)])).unwrap();
        }
        assert_eq!(f.completion(&a).wr_id, 3);
        let found = f.completions(&b, 4);
        let done: Vec<_> = (1..=4).map(|id| (id, WcStatus::Success)).collect();
        assert_eq!(outcomes(&found), done);
        assert_eq!(a.read(1 << 18, 100_000), yours[1 << 18..(1 << 18) + 100_000]);
        let write = SendWr { rkey, ..b.remote(5, WrOpcode::Write, 0) };
        x.post_send(&write, Payload::Sges(&[a.sge(0, 70_000)])).unwrap();
        assert_eq!(outcomes(&f.completions(&a, 1)), [(5, WcStatus::Success)]);
        assert_eq!(b.read(0, 70_000), mine[..70_000]);
        let end = SendWr { invalidate_rkey: rkey, ..wr(6, WrOpcode::LocalInv) };
        y.post_send(&end, Payload::Sges(&[])).unwrap();
        assert_eq!(outcomes(&f.completions(&b, 1)), [(6, WcStatus::Success)]);
        a.fill(1 << 18, &mine[1 << 18..(1 << 18) + 100_000]);
    }
    f.nothing_more(&[&a, &b]);
    // In a queue that is drained they wait; in one that fails they are flushed.
    move_to(&y, QpState::Sqd);
    b.bind(&y, &mw, &region, REACH);
    f.nothing_more(&[&b]);
    move_to(&y, QpState::Rts);
    assert_eq!(f.completion(&b).status, WcStatus::Success);
    move_to(&y, QpState::Err);
    b.bind(&y, &mw, &region, REACH);
    let wc = f.completion(&b);
    assert_eq!((wc.status, wc.opcode), (WcStatus::WrFlushErr, WcOpcode::BindMw));
}

fn null_regions_are_everywhere_and_nowhere(f: &Fabric) {
    let (a, b, mine, yours) = sides(f);
    let (x, y) = pair(&a, &b, QpType::Rc);
    let (from, to) = (a.pd.alloc_null_mr().unwrap(), b.pd.alloc_null_mr().unwrap());
    for len in [8u32, 5_000, 300_000] {
        let size = len as usize;
        let nothing = |mr: &Mr| Sge { addr: 99, len, lkey: mr.lkey() };
        let list = [a.sge(0, len), nothing(&from)];
        x.post_send(&b.remote(1, WrOpcode::Write, 0), Payload::Sges(&list)).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        assert_eq!(b.read(0, size), mine[..size]);
        assert_eq!(b.read(size, size), vec![0; size]);
        b.fill(0, &yours[..2 * size]);
        x.post_send(&b.remote(1, WrOpcode::Read, 0), Payload::Sges(&list)).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        assert_eq!(a.read(0, size), yours[..size]);
        a.fill(0, &mine[..size]);
        y.post_recv(4, &[nothing(&to), b.sge(0, len)]).unwrap();
        x.post_send(&wr(2, WrOpcode::Send), Payload::Sges(&[a.sge(0, 2 * len)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
        assert_eq!(outcomes(&f.completions(&b, 1)), [(4, WcStatus::Success)]);
        assert_eq!(b.read(0, size), mine[size..2 * size]);
        b.fill(0, &yours[..size]);
    }
    let request = SendWr { rkey: to.rkey(), ..b.remote(1, WrOpcode::Write, 0) };
    refused(f, &a, &b, &request, 8, ACCESS);
}

fn an_rkey_that_may_not_be_invalidated_fails_both_ends(f: &Fabric) {
    let (a, b, _, _) = sides(f);
    let (_pd, foreign) = b.other_domain();
    let local = b.register(Access::LOCAL_WRITE);
    let (first, unbound) =
        (b.pd.alloc_mw(MwType::One).unwrap(), b.pd.alloc_mw(MwType::Two).unwrap());
    // Of regions, adapters invalidate those of the kernel only.
    for rkey in [
        0,
        0xdead_beef,
        b.mr.lkey(),
        b.mr.rkey(),
        foreign.rkey(),
        local.rkey(),
        first.rkey(),
        unbound.rkey(),
    ] {
        let (x, y) = pair(&a, &b, QpType::Rc);
        y.post_recv(70, &[b.sge(0, 64)]).unwrap();
        let request = SendWr { invalidate_rkey: rkey, ..wr(1, WrOpcode::SendWithInv) };
        x.post_send(&request, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::RemAccessErr, "{rkey:#x}");
        let wc = f.completion(&b);
        assert_eq!((wc.wr_id, wc.status), (70, WcStatus::LocAccessErr), "{rkey:#x}");
        x.destroy().unwrap();
        y.destroy().unwrap();
    }
}

fn unsignaled_requests_that_fail_complete(f: &Fabric) {
    let (a, b, _, _) = sides(f);
    let (x, _y) = pair(&a, &b, QpType::Rc);
    let quiet = |wr: SendWr| SendWr { flags: SendFlags::empty(), ..wr };
    x.post_send(&quiet(b.remote(1, WrOpcode::Write, 0)), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    let bad = SendWr { rkey: 0xbad, ..b.remote(2, WrOpcode::Write, 0) };
    x.post_send(&quiet(bad), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    x.post_send(&quiet(b.remote(3, WrOpcode::Read, 0)), Payload::Sges(&[a.sge(0, 8)])).unwrap();
    let found = f.completions(&a, 2);
    let want = [(2, WcStatus::RemAccessErr), (3, WcStatus::WrFlushErr)];
    assert_eq!(outcomes(&found), want);
    let opcodes: Vec<_> = found.iter().map(|wc| (wc.opcode, wc.qpn)).collect();
    assert_eq!(opcodes, [(WcOpcode::Write, x.qpn()), (WcOpcode::Read, x.qpn())]);
    f.nothing_more(&[&a]);
}

fn events_name_the_queue_pair_and_come_once(f: &Fabric) {
    let (a, b, _, _) = sides(f);
    let pairs: Vec<_> = (0..4).map(|_| pair(&a, &b, QpType::Rc)).collect();
    for (x, y) in &pairs {
        let bad = SendWr { rkey: 0xbad, ..b.remote(1, WrOpcode::Write, 0) };
        x.post_send(&bad, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::RemAccessErr);
        let event = f.event(&b);
        assert_eq!(event.kind, EventKind::QpAccessErr);
        assert!(matches!(&event.source, EventSource::Qp(qp) if Arc::ptr_eq(qp, y)));
    }
    f.settle();
    assert!(a.next_event().is_none() && b.next_event().is_none());
}
