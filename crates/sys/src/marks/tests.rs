use super::*;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

fn entered(name: usize) -> Option<Mark> {
    match enter(name, || true) {
        Entry::Entered(mark) => Some(mark),
        Entry::Closed | Entry::NoPlace => None,
    }
}

fn is_marked(name: usize) -> bool {
    threads().any(|thread| thread.places.iter().any(|place| place.load(Ordering::SeqCst) == name))
}

#[test]
fn who_is_waited_for_is_done() {
    if !barrier::available() {
        return;
    }
    let name = Box::leak(Box::new(0u8)) as *const u8 as usize;
    let mark = entered(name);
    assert!(mark.is_some() && is_marked(name));
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let waiter = scope.spawn(|| {
            wait(name);
            assert!(done.load(Ordering::Acquire));
        });
        thread::sleep(Duration::from_millis(5));
        done.store(true, Ordering::Release);
        drop(mark);
        waiter.join().unwrap();
    });
    assert!(!is_marked(name));
}

#[test]
fn what_is_closed_is_not_entered() {
    if !barrier::available() {
        return;
    }
    let name = Box::leak(Box::new(0u8)) as *const u8 as usize;
    assert!(matches!(enter(name, || false), Entry::Closed));
    assert!(!is_marked(name));
}

#[test]
fn there_are_places_for_a_few_uses_and_for_all_threads() {
    if !barrier::available() {
        return;
    }
    let names: Vec<usize> = (0..=PLACES).map(|i| 8 * (i + 1)).collect();
    let marks: Vec<_> = names.iter().map(|name| entered(*name)).collect();
    assert_eq!(marks.iter().flatten().count(), PLACES);
    // A mark may be dropped by another thread.
    thread::spawn(move || drop(marks)).join().unwrap();
    assert!(entered(8).is_some());
    // Threads that have ended leave their places to others.
    let count = || threads().count();
    let before = count();
    for _ in 0..64 {
        thread::spawn(|| assert!(entered(8).is_some())).join().unwrap();
    }
    assert!(count() <= before + 8, "{} places for {} threads", count(), before);
}

#[test]
fn readers_see_whole_what_writers_change() {
    const WRITES: u64 = 2_000;
    let lock = Arc::new(Lock::<(u64, u64)>::default());
    let reads = Arc::new(AtomicU64::new(0));
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let (lock, reads) = (lock.clone(), reads.clone());
            thread::spawn(move || {
                let mut last = 0;
                while last < WRITES {
                    let pair = lock.read();
                    let first = pair.0;
                    std::hint::spin_loop();
                    assert_eq!((first, true), (pair.1, first >= last));
                    last = first;
                    reads.fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    for n in 1..=WRITES {
        let mut pair = lock.write();
        pair.0 = n;
        std::hint::black_box(&mut *pair);
        pair.1 = n;
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    assert!(reads.load(Ordering::Relaxed) >= 3);
}

#[test]
fn a_reader_keeps_writers_out_and_others_in() {
    let lock = Lock::<u32>::default();
    let one = lock.read();
    let two = lock.read();
    thread::scope(|scope| {
        let writer = scope.spawn(|| *lock.write() += 1);
        thread::sleep(Duration::from_millis(5));
        assert_eq!((*one, *two), (0, 0));
        drop((one, two));
        writer.join().unwrap();
    });
    assert_eq!(*lock.read(), 1);
}
