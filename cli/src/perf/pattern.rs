//! Data that can be checked where it arrives, made from a seed and the number of the message.

use std::sync::atomic::{AtomicU64, Ordering};

/// SplitMix64's finaliser: every bit of the input changes about half of the output.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn words_of(seed: u64, message: u64) -> impl Iterator<Item = u64> {
    let start = mix(seed ^ message.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    (0_u64..).map(move |k| mix(start.wrapping_add(k.wrapping_mul(0x9e37_79b9_7f4a_7c15))).to_le())
}

/// Writes message number `message`.
pub(crate) fn fill(words: &[AtomicU64], seed: u64, message: u64) {
    for (word, value) in words.iter().zip(words_of(seed, message)) {
        word.store(value, Ordering::Relaxed);
    }
}

/// Whether the first `bytes` of `words` are those of message number `message`.
pub(crate) fn matches(words: &[AtomicU64], bytes: usize, seed: u64, message: u64) -> bool {
    let mut left = bytes;
    for (word, value) in words.iter().zip(words_of(seed, message)) {
        if left == 0 {
            break;
        }
        let word = word.load(Ordering::Relaxed);
        let n = left.min(8);
        if word.to_ne_bytes().get(..n) != value.to_ne_bytes().get(..n) {
            return false;
        }
        left -= n;
    }
    left == 0
}

/// Overwrites what an earlier message left.
pub(crate) fn clear(words: &[AtomicU64]) {
    for word in words {
        word.store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory(n: usize) -> Vec<AtomicU64> {
        std::iter::repeat_with(AtomicU64::default).take(n).collect()
    }

    #[test]
    fn right_data_matches_and_nothing_else() {
        let words = memory(16);
        fill(&words, 7, 3);
        for bytes in [0, 1, 7, 8, 9, 127, 128] {
            assert!(matches(&words, bytes, 7, 3));
        }
        for bytes in [1, 8, 100] {
            assert!(!matches(&words, bytes, 7, 4) || bytes == 1);
            assert!(!matches(&words, bytes, 8, 3) || bytes == 1);
        }
        assert!(!matches(&words, 129, 7, 3), "there is no such byte");
        clear(&words);
        assert!(!matches(&words, 8, 7, 3));
    }

    #[test]
    fn every_byte_counts() {
        let words = memory(3);
        for at in 0..20 {
            fill(&words, 1, 1);
            words[at / 8].fetch_xor(1 << (at % 8 * 8), Ordering::Relaxed);
            assert!(!matches(&words, 20, 1, 1), "byte {at}");
        }
        fill(&words, 1, 1);
        words[2].fetch_xor(1 << 40, Ordering::Relaxed);
        assert!(matches(&words, 20, 1, 1), "byte 21 is beyond the message");
    }
}
