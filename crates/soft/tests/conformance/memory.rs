//! Registering memory.

use ironverbs_soft::*;
use ironverbs_sys::errno::{EFAULT, EINVAL, EOPNOTSUPP};
use ironverbs_sys::mem::{self, Mapping};

use crate::fabric::Fabric;
use crate::side::{ALL, Side, outcomes, pair, pattern, wr};

cases![
    rights_that_contradict_each_other_are_refused,
    rights_that_nobody_knows_are_refused,
    a_readonly_mapping_registers_without_local_write,
    memory_that_is_not_there_is_refused,
    ranges_that_make_no_sense_are_refused,
    a_failed_rereg_changes_nothing,
    a_region_of_more_than_four_gib,
    regions_may_overlap,
    a_part_of_a_page_is_a_region,
    registering_touches_nothing,
];

fn reg(side: &Side, addr: u64, len: u64, access: Access) -> Result<std::sync::Arc<Mr>, Error> {
    // SAFETY: what can be registered here lies in mappings that outlive the region.
    unsafe { side.pd.reg_mr(addr, len, addr, access) }
}

fn rights_that_contradict_each_other_are_refused(f: &Fabric) {
    let side = f.side();
    let (addr, len) = (side.memory.addr(), side.memory.len() as u64);
    for bits in 0..1 << 5 {
        let access = Access::from_bits_retain(bits);
        let writes = access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC);
        let legal = !writes || access.contains(Access::LOCAL_WRITE);
        match reg(&side, addr, len, access) {
            Ok(region) => {
                assert!(legal, "{access:?}");
                assert_eq!(region.access(), access);
            }
            Err(error) => {
                assert!(!legal, "{access:?}");
                assert_eq!(error.errno(), EINVAL, "{access:?}");
            }
        }
    }
    // SAFETY: refused.
    let done = unsafe { side.mr.rereg(None, None, Some(Access::REMOTE_WRITE)) };
    assert_eq!(done.unwrap_err().errno(), EINVAL);
}

fn rights_that_nobody_knows_are_refused(f: &Fabric) {
    let side = f.side();
    let (addr, len) = (side.memory.addr(), side.memory.len() as u64);
    for bit in 10..20 {
        let access = ALL | Access::from_bits_retain(1 << bit);
        let errno = reg(&side, addr, len, access).unwrap_err().errno();
        assert!([EINVAL, EOPNOTSUPP].contains(&errno), "bit {bit}");
    }
    for access in [Access::FLUSH_GLOBAL, Access::FLUSH_PERSISTENT] {
        let errno = reg(&side, addr, len, ALL | access).unwrap_err().errno();
        assert!([EINVAL, EOPNOTSUPP].contains(&errno), "{access:?}");
    }
    // Those of the optional range may be ignored (ibv_reg_mr(3)).
    for bit in 20..30 {
        reg(&side, addr, len, ALL | Access::from_bits_retain(1 << bit)).unwrap();
    }
}

fn a_readonly_mapping_registers_without_local_write(f: &Fabric) {
    let (a, b) = f.two();
    let memory = Mapping::anonymous(8192).unwrap();
    let data = pattern(8192, 1);
    // SAFETY: within the mapping.
    unsafe { mem::write(memory.addr(), &data) };
    memory.protect(true, false).unwrap();
    let len = memory.len() as u64;
    for access in [ALL, Access::LOCAL_WRITE, Access::LOCAL_WRITE | Access::REMOTE_READ] {
        assert_eq!(reg(&a, memory.addr(), len, access).unwrap_err().errno(), EFAULT);
    }
    let region = reg(&a, memory.addr(), len, Access::REMOTE_READ).unwrap();
    // It can be sent from, and read by a peer.
    let (x, y) = pair(&a, &b, QpType::Rc);
    y.post_recv(1, &[b.sge(0, 8192)]).unwrap();
    let sge = Sge { addr: memory.addr(), len: 8192, lkey: region.lkey() };
    x.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[sge])).unwrap();
    assert_eq!(f.completion(&b).status, WcStatus::Success);
    assert!(b.read(0, 8192) == data);
    let from = SendWr { remote_addr: memory.addr(), rkey: region.rkey(), ..wr(2, WrOpcode::Read) };
    y.post_send(&from, Payload::Sges(&[b.sge(10_000, 8192)])).unwrap();
    assert_eq!(f.completion(&b).status, WcStatus::Success);
    assert!(b.read(10_000, 8192) == data);
    // Nothing writes to it.
    f.completion(&a);
    x.post_recv(3, &[sge]).unwrap();
    y.post_send(&wr(3, WrOpcode::Send), Payload::Sges(&[b.sge(0, 8)])).unwrap();
    assert_eq!(outcomes(&f.completions(&b, 1)), [(3, WcStatus::RemOpErr)]);
    assert_eq!(f.completion(&a).status, WcStatus::LocProtErr);
    region.destroy().unwrap();
}

fn memory_that_is_not_there_is_refused(f: &Fabric) {
    let side = f.side();
    let hidden = Mapping::anonymous(3 * 4096).unwrap();
    hidden.protect(false, false).unwrap();
    for access in [Access::empty(), Access::REMOTE_READ, ALL] {
        for (addr, len) in [(8, 8), (1 << 47, 1), (hidden.addr(), 1)] {
            let errno = reg(&side, addr, len, access).unwrap_err().errno();
            assert_eq!(errno, EFAULT, "{len} at {addr:#x}");
        }
        let errno = reg(&side, side.memory.addr(), 1 << 45, access).unwrap_err().errno();
        assert_eq!(errno, EFAULT, "far beyond its mapping");
    }
    // None of that is left behind.
    side.mr.destroy().unwrap();
    side.pd.destroy().unwrap();
}

fn ranges_that_make_no_sense_are_refused(f: &Fabric) {
    let side = f.side();
    let addr = side.memory.addr();
    for (addr, len) in [(addr, 0), (0, 0), (addr, u64::MAX), (u64::MAX - 7, 16)] {
        let errno = reg(&side, addr, len, ALL).unwrap_err().errno();
        assert_eq!(errno, EINVAL, "{len} at {addr:#x}");
    }
    // SAFETY: refused.
    let wraps = unsafe { side.pd.reg_mr(addr, 4096, u64::MAX - 4094, ALL) };
    assert_eq!(wraps.unwrap_err().errno(), EINVAL);
    // SAFETY: refused.
    let wraps = unsafe { side.mr.rereg(None, Some((addr, 4096, u64::MAX - 4094)), None) };
    assert_eq!(wraps.unwrap_err().errno(), EINVAL);
}

fn a_failed_rereg_changes_nothing(f: &Fabric) {
    let (a, b) = f.two();
    let region = b.register(ALL);
    let before = (region.lkey(), region.rkey(), region.addr(), region.len(), region.access());
    let addr = b.memory.addr();
    for (range, access, errno) in [
        (Some((8, 8, 8)), None, EFAULT),
        (Some((addr, 0, addr)), None, EINVAL),
        (None, Some(Access::REMOTE_ATOMIC), EINVAL),
        (Some((addr, 8, addr)), Some(Access::REMOTE_WRITE), EINVAL),
        (None, Some(ALL | Access::FLUSH_GLOBAL), EOPNOTSUPP),
    ] {
        // SAFETY: refused.
        let done = unsafe { region.rereg(None, range, access) };
        assert_eq!(done.unwrap_err().errno(), errno, "{range:?} {access:?}");
    }
    let after = (region.lkey(), region.rkey(), region.addr(), region.len(), region.access());
    assert_eq!(before, after);
    let (x, _y) = pair(&a, &b, QpType::Rc);
    let to = SendWr { rkey: region.rkey(), ..b.remote(1, WrOpcode::Write, 0) };
    x.post_send(&to, Payload::Sges(&[a.sge(0, 100)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
}

fn a_region_of_more_than_four_gib(f: &Fabric) {
    let a = f.side();
    // Nothing of it is populated but what is written.
    let len: u64 = (9 << 30) + 12_345;
    let b = Side::new(&f.host(), len as usize);
    let data = pattern(100_000, 2);
    a.fill(0, &data);
    let (x, y) = pair(&a, &b, QpType::Rc);
    let last = b.memory.len() as u64 - 100_000;
    for offset in [0, (1 << 32) - 50_000, 1 << 32, (1 << 33) + 1, last] {
        x.post_send(&b.remote(1, WrOpcode::Write, offset), Payload::Sges(&[a.sge(0, 100_000)]))
            .unwrap();
        let back = a.sge(200_000, 100_000);
        x.post_send(&b.remote(2, WrOpcode::Read, offset), Payload::Sges(&[back])).unwrap();
        assert!(f.completions(&a, 2).iter().all(|wc| wc.status == WcStatus::Success));
        assert!(b.read(offset as usize, 100_000) == data, "{offset:#x}");
        assert!(a.read(200_000, 100_000) == data, "{offset:#x}");
        a.fill(200_000, &vec![0; 100_000]);
        y.post_recv(3, &[b.sge(offset, 10)]).unwrap();
        x.post_send(&wr(3, WrOpcode::Send), Payload::Sges(&[a.sge(50, 10)])).unwrap();
        assert_eq!(f.completion(&b).status, WcStatus::Success);
        assert_eq!(b.read(offset as usize, 10), data[50..60]);
        f.completion(&a);
    }
    let add = SendWr { compare_add: 1, ..b.remote(4, WrOpcode::FetchAdd, 6 << 30) };
    x.post_send(&add, Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    assert_eq!(b.read(6 << 30, 8), 1u64.to_ne_bytes());
    // One byte beyond.
    x.post_send(&b.remote(5, WrOpcode::Write, last + 1), Payload::Sges(&[a.sge(0, 100_000)]))
        .unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::RemAccessErr);
}

fn regions_may_overlap(f: &Fabric) {
    let (a, b) = f.two();
    let addr = b.memory.addr();
    let (x, _y) = pair(&a, &b, QpType::Rc);
    let regions: Vec<_> = (0..100).map(|i| reg(&b, addr + i * 8, 4096, ALL).unwrap()).collect();
    a.fill(0, &[1; 8]);
    for (i, region) in regions.iter().enumerate() {
        let to = SendWr { rkey: region.rkey(), ..b.remote(1, WrOpcode::Write, i as u64 * 8) };
        x.post_send(&to, Payload::Sges(&[a.sge(0, 8)])).unwrap();
        assert_eq!(f.completion(&a).status, WcStatus::Success);
    }
    assert_eq!(b.read(0, 801), [vec![1; 800], vec![0]].concat());
    // Deregistering one leaves the others.
    regions.iter().step_by(2).for_each(|region| region.destroy().unwrap());
    let to = SendWr { rkey: regions[1].rkey(), ..b.remote(1, WrOpcode::Write, 8) };
    x.post_send(&to, Payload::Sges(&[a.sge(0, 8)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
}

fn a_part_of_a_page_is_a_region(f: &Fabric) {
    let (a, b) = f.two();
    let region = reg(&b, b.memory.addr() + 4095, 2, ALL).unwrap();
    assert_eq!((region.addr(), region.len()), (b.memory.addr() + 4095, 2));
    let (x, _y) = pair(&a, &b, QpType::Rc);
    a.fill(0, b"xy");
    let to = SendWr { rkey: region.rkey(), ..b.remote(1, WrOpcode::Write, 4095) };
    x.post_send(&to, Payload::Sges(&[a.sge(0, 2)])).unwrap();
    assert_eq!(f.completion(&a).status, WcStatus::Success);
    assert_eq!(b.read(4094, 4), b"\0xy\0");
}

fn registering_touches_nothing(f: &Fabric) {
    let side = f.side();
    // More than any machine of ours has, hundreds of times: nothing is pinned, populated or locked.
    let memory = Mapping::anonymous(1 << 40).unwrap();
    for _ in 0..100 {
        reg(&side, memory.addr(), 1 << 40, ALL).unwrap().destroy().unwrap();
    }
}
