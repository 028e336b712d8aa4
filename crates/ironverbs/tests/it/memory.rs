//! Regions and slices.

use ironverbs::{Access, Pd, RangeError, Rc};

use crate::support::{all, context, ok, pair};

#[test]
fn memory_is_zeroed_and_copied_in_and_out() {
    let pd = Pd::new(&context()).unwrap();
    let region = pd.region(10_000, Access::LOCAL_WRITE).unwrap();
    assert_eq!(region.len(), 10_000);
    let mut bytes = [1; 16];
    region.read_at(9_984, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 16]);
    region.write_at(5, b"five").unwrap();
    region.read_at(4, &mut bytes[..6]).unwrap();
    assert_eq!(bytes[..6], *b"\0five\0");
    let outside = RangeError::Outside { offset: 9_985, len: 16, size: 10_000 };
    assert_eq!(region.read_at(9_985, &mut bytes), Err(outside));
    assert_eq!(region.write_at(9_985, &bytes), Err(outside));
    assert!(region.write_at(usize::MAX, &bytes).is_err());
}

#[test]
fn words_are_atomic_where_they_are_aligned() {
    let pd = Pd::new(&context()).unwrap();
    let region = pd.region(16, Access::LOCAL_WRITE).unwrap();
    region.store_u64(8, 5).unwrap();
    assert_eq!(region.fetch_add_u64(8, 3), Ok(5));
    assert_eq!(region.compare_swap_u64(8, 7, 1), Ok(8));
    assert_eq!(region.compare_swap_u64(8, 8, 1), Ok(8));
    assert_eq!(region.load_u64(8), Ok(1));
    assert_eq!(region.load_u64(4), Err(RangeError::Misaligned { offset: 4 }));
    assert_eq!(region.load_u64(16), Err(RangeError::Outside { offset: 16, len: 8, size: 16 }));
}

#[test]
fn rights_that_contradict_each_other_are_refused() {
    let pd = Pd::new(&context()).unwrap();
    for access in [Access::REMOTE_WRITE, Access::REMOTE_ATOMIC] {
        let error = pd.region(8, access).unwrap_err().to_string();
        assert!(error.contains("need LOCAL_WRITE"), "{error}");
    }
    pd.region(8, Access::REMOTE_READ).unwrap();
    assert!(pd.region(0, all()).unwrap_err().to_string().contains("at least one byte"));
}

#[test]
fn slices_of_a_region_do_not_overlap() {
    let pd = Pd::new(&context()).unwrap();
    let region = pd.region(100, Access::LOCAL_WRITE).unwrap();
    let first = region.slice(10..20).unwrap();
    let second = region.slice(20..=29).unwrap();
    for range in [0..11, 19..20, 10..20, 12..13, 0..100, 29..30] {
        let (start, end) = if range.end <= 20 { (10, 20) } else { (20, 30) };
        let (offset, len) = (range.start, range.len());
        let taken = RangeError::Taken { offset, len, start, end };
        assert_eq!(region.slice(range).unwrap_err(), taken);
    }
    region.slice(..10).unwrap();
    region.slice(30..).unwrap();
    region.slice(15..15).unwrap();
    drop(first);
    assert_eq!(region.slice(..20).unwrap().capacity(), 20);
    assert_eq!((second.offset(), second.len()), (20, 10));
    assert!(region.slice(90..101).is_err() && region.slice(101..).is_err());
}

#[test]
fn what_a_slice_holds_is_reached_through_it_only() {
    let pd = Pd::new(&context()).unwrap();
    let region = pd.region(100, Access::LOCAL_WRITE).unwrap();
    let mut slice = region.slice(10..20).unwrap();
    let taken = RangeError::Taken { offset: 8, len: 4, start: 10, end: 20 };
    assert_eq!(region.write_at(8, &[1; 4]), Err(taken));
    assert_eq!(region.read_at(8, &mut [1; 4]), Err(taken));
    region.write_at(6, &[1; 4]).unwrap();
    region.write_at(20, &[1; 4]).unwrap();
    slice.write_at(0, b"slice").unwrap();
    slice.set_len(5).unwrap();
    assert_eq!((slice.to_vec(), slice.capacity()), (b"slice".to_vec(), 10));
    assert!(slice.set_len(11).is_err() && slice.write_at(7, &[0; 4]).is_err());
    assert_eq!(slice.len(), 5);
    drop(slice);
    let mut bytes = [0; 5];
    region.read_at(10, &mut bytes).unwrap();
    assert_eq!(&bytes, b"slice");
}

#[test]
fn a_slice_is_cut_in_two() {
    let pd = Pd::new(&context()).unwrap();
    let region = pd.region(100, Access::LOCAL_WRITE).unwrap();
    let whole = region.slice(..).unwrap();
    let (error, whole) = whole.split_at(101).unwrap_err();
    assert_eq!(error, RangeError::Outside { offset: 101, len: 0, size: 100 });
    let (left, right) = whole.split_at(40).unwrap();
    assert_eq!((left.len(), right.offset(), right.len()), (40, 40, 60));
    drop(left);
    region.slice(..40).unwrap();
    assert!(region.slice(39..41).is_err());
    let (none, right) = right.split_at(0).unwrap();
    drop(none);
    assert!(region.slice(40..41).is_err());
    drop(right);
    region.slice(..).unwrap();
}

#[test]
fn a_region_of_more_than_four_gib_is_reached_to_its_end() {
    let (a, b) = pair::<Rc>();
    let region = b.region(5 << 30);
    let end = region.remote().part((5 << 30) - 4, 4).unwrap();
    ok(a.qp.write(a.filled(b"last"), &end).post().unwrap());
    let mut bytes = [0; 4];
    region.read_at((5 << 30) - 4, &mut bytes).unwrap();
    assert_eq!(&bytes, b"last");
    let slice = region.slice((5 << 30) - 4..).unwrap();
    assert_eq!(slice.remote(), end);
    // A slice longer than a message is not posted.
    let rejected = b.qp.send(region.slice(..(2 << 30) + 1).unwrap()).post().unwrap_err();
    assert_eq!(
        rejected.error.to_string(),
        "2147483649 bytes are more than the 2147483648 of a message"
    );
}

#[test]
fn a_zero_based_region_is_used_like_any_other() {
    let (a, b) = pair::<Rc>();
    let target = b.pd.region(64, all() | Access::ZERO_BASED).unwrap();
    assert_eq!(target.remote().addr, 0);
    let source = a.pd.region(64, all() | Access::ZERO_BASED).unwrap();
    source.write_at(8, b"zero").unwrap();
    let remote = target.remote().part(32, 4).unwrap();
    ok(a.qp.write(source.slice(8..12).unwrap(), &remote).post().unwrap());
    let mut bytes = [0; 4];
    target.read_at(32, &mut bytes).unwrap();
    assert_eq!(&bytes, b"zero");
}

#[test]
fn a_region_lives_as_long_as_its_slices() {
    let (a, b) = pair::<Rc>();
    let slice = {
        let region = b.region(64);
        region.slice(8..16).unwrap()
    };
    ok(a.qp.write(a.filled(b"alive"), &slice.remote()).post().unwrap());
    let mut bytes = [0; 5];
    slice.read_at(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"alive");
}
