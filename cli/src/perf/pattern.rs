//! Data that can be checked where it arrives, made from a seed and the number of the message.

/// SplitMix64's finaliser: every bit of the input changes about half of the output.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn words_of(seed: u64, message: u64) -> impl Iterator<Item = [u8; 8]> {
    let start = mix(seed ^ message.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let word = move |k: u64| mix(start.wrapping_add(k.wrapping_mul(0x9e37_79b9_7f4a_7c15)));
    (0_u64..).map(move |k| word(k).to_le_bytes())
}

/// Writes message number `message`.
pub(crate) fn fill(bytes: &mut [u8], seed: u64, message: u64) {
    for (chunk, word) in bytes.chunks_mut(8).zip(words_of(seed, message)) {
        for (to, from) in chunk.iter_mut().zip(word) {
            *to = from;
        }
    }
}

/// Whether `bytes` are those of message number `message`.
pub(crate) fn matches(bytes: &[u8], seed: u64, message: u64) -> bool {
    bytes.chunks(8).zip(words_of(seed, message)).all(|(chunk, word)| word.starts_with(chunk))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn right_data_matches_and_nothing_else() {
        for len in [0, 7, 8, 9, 127, 128] {
            let mut bytes = vec![0; len];
            fill(&mut bytes, 7, 3);
            assert!(matches(&bytes, 7, 3));
            assert!(len == 0 || !matches(&bytes, 7, 4));
            assert!(len == 0 || !matches(&bytes, 8, 3));
        }
        assert!(!matches(&[0; 8], 7, 3));
    }

    #[test]
    fn every_byte_counts() {
        for at in 0..20 {
            let mut bytes = [0; 20];
            fill(&mut bytes, 1, 1);
            bytes[at] ^= 1;
            assert!(!matches(&bytes, 1, 1), "byte {at}");
        }
    }
}
