//! Our copy beside memcpy, at distances between source and destination that matter.

use std::time::{Duration, Instant};

use ironverbs_sys::copy;
use ironverbs_sys::mem::Mapping;

use crate::Outcome;

/// Bytes by which the destination is ahead of the source, modulo 4096.
const OFFSETS: [usize; 4] = [0, 16, 64, 2048];
const LENGTHS: [usize; 6] = [8, 256, 2_048, 16_384, 65_536, 1 << 20];
/// What is copied lies in so many bytes, more than the first cache holds.
const AREA: usize = 2 << 20;
const TIME: Duration = Duration::from_millis(40);

/// Prints a table: GB/s of ours, GB/s of memcpy, for each length and offset.
pub(crate) fn compare() -> Outcome {
    let (from, to) = (Mapping::anonymous(AREA + 8192)?, Mapping::anonymous(AREA + 8192)?);
    copy::arm()?;
    print!("| bytes |");
    OFFSETS.iter().for_each(|offset| print!(" ours at {offset} | memcpy |"));
    println!("\n|---|{}", "---|---|".repeat(OFFSETS.len()));
    for len in LENGTHS {
        print!("| {len} |");
        for offset in OFFSETS {
            let at = |index: usize| index * len % (AREA - len + 1) / 64 * 64;
            let ours = rate(len, |index| {
                let (src, dst) = (from.addr() + at(index) as u64, to.addr() + at(index) as u64);
                // SAFETY: both lie within the mappings.
                let done = unsafe { copy::copy(src, dst + offset as u64, len) };
                assert!(done.is_ok());
            });
            let memcpy = rate(len, |index| {
                let (src, dst) = (from.as_ptr(), to.as_ptr());
                // SAFETY: both lie within the mappings, which do not overlap.
                unsafe {
                    std::ptr::copy_nonoverlapping(
                        std::hint::black_box(src.add(at(index))),
                        dst.add(at(index) + offset),
                        std::hint::black_box(len),
                    );
                }
            });
            print!(" {ours:.2} | {memcpy:.2} |");
        }
        println!();
    }
    Ok(())
}

fn rate(len: usize, mut copy: impl FnMut(usize)) -> f64 {
    (0..AREA / len.max(4096)).for_each(&mut copy);
    let (start, mut copies) = (Instant::now(), 0usize);
    while start.elapsed() < TIME {
        for _ in 0..(1 << 20) / len.max(1024) {
            copy(copies);
            copies += 1;
        }
    }
    (copies * len) as f64 / start.elapsed().as_secs_f64() / 1e9
}
