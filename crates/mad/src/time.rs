//! Time as the owner's clock gives it and as messages write it.

/// Nanoseconds since any moment that the owner's clock has chosen.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug, Default)]
pub struct Instant(pub u64);

impl Instant {
    /// This instant, `nanoseconds` later; saturates.
    pub const fn after(self, nanoseconds: u64) -> Self {
        Self(self.0.saturating_add(nanoseconds))
    }
}

/// Nanoseconds of a time that a message gives as an exponent: 4.096 us * 2^n, of which 5 bits
/// count (IBA 12.7.4 and others).
pub const fn exponential(exponent: u8) -> u64 {
    4_096 << (exponent & 0x1f)
}

/// The least time between two sendings of a message. A peer may name an exponent of zero, and is
/// then not to be answered every four microseconds.
pub(crate) const MIN_TIMEOUT: u64 = 1_000_000;

/// The largest exponent of a peer that is followed, 8.6 s: what the kernel allows, too. A larger
/// one would hold memory for hours.
pub(crate) const MAX_PEER_EXPONENT: u8 = 21;

/// A time that a peer names, within bounds.
pub(crate) const fn of_peer(exponent: u8) -> u64 {
    let exponent = if exponent > MAX_PEER_EXPONENT { MAX_PEER_EXPONENT } else { exponent };
    let time = exponential(exponent);
    if time < MIN_TIMEOUT { MIN_TIMEOUT } else { time }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents() {
        assert_eq!(exponential(0), 4_096);
        assert_eq!(exponential(20), 4_294_967_296);
        assert_eq!(exponential(31), 4_096 << 31);
        assert_eq!(exponential(32 + 14), exponential(14));
        assert_eq!(of_peer(0), MIN_TIMEOUT);
        assert_eq!(of_peer(8), 1_048_576);
        assert_eq!(of_peer(31), exponential(21));
    }
}
