//! Packet sequence numbers: 24 bits that wrap (IBA 9.7.1).
//!
//! An order exists only within half of the space: a number up to 2^23 - 1 ahead is later, the
//! rest is earlier. Arguments above 24 bits are reduced first.

/// The 24 bits of a PSN.
pub const MASK: u32 = 0xff_ffff;

/// The PSN `n` packets after `a`.
pub const fn add(a: u32, n: u32) -> u32 {
    a.wrapping_add(n) & MASK
}

/// How many packets `a` is after `b`, 0 to 2^24 - 1; also the PSN `b` packets before `a`.
pub const fn sub(a: u32, b: u32) -> u32 {
    a.wrapping_sub(b) & MASK
}

/// Signed distance from `b` to `a`, -2^23 to 2^23 - 1: negative if `a` is earlier.
pub const fn diff(a: u32, b: u32) -> i32 {
    // Bit 23 of the difference is its sign.
    (a.wrapping_sub(b) << 8) as i32 >> 8
}

/// Whether `a` is earlier than `b`.
pub const fn lt(a: u32, b: u32) -> bool {
    diff(a, b) < 0
}

/// Whether `a` is `b` or earlier.
pub const fn le(a: u32, b: u32) -> bool {
    diff(a, b) <= 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arithmetic_wraps_at_24_bits() {
        assert_eq!(add(MASK, 1), 0);
        assert_eq!(add(0, u32::MAX), MASK);
        assert_eq!(sub(0, 1), MASK);
        assert_eq!(sub(5, MASK), 6);
    }

    #[test]
    fn order_holds_across_the_wrap() {
        assert_eq!(diff(0, MASK), 1);
        assert_eq!(diff(MASK, 0), -1);
        assert_eq!(diff(0x7f_ffff, 0), 0x7f_ffff);
        assert_eq!(diff(0x80_0000, 0), -0x80_0000);
        assert!(lt(MASK, 3) && !lt(3, MASK) && !lt(3, 3));
        assert!(le(MASK, 3) && !le(3, MASK) && le(3, 3));
        assert_eq!(diff(0xff00_0001, 0), 1, "bits above 24 do not count");
    }
}
