//! Packet sequence numbers without their wrap.

use std::fmt;

use ironverbs_wire::psn;

/// A PSN counted on in 64 bits, so that order and distance are those of integers. The lower 24
/// bits are what the wire carries (IBA 9.7.1).
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Seq(u64);

impl Seq {
    /// Where a connection that starts at `psn` starts counting: one round ahead, so that packets
    /// from before the start have a number too.
    pub(super) fn start(psn: u32) -> Seq {
        Seq(u64::from(psn::MASK) + 1 + u64::from(psn & psn::MASK))
    }

    /// The 24 bits on the wire.
    pub(super) fn psn(self) -> u32 {
        self.0 as u32 & psn::MASK
    }

    /// All of it.
    pub(super) fn number(self) -> u64 {
        self.0
    }

    /// The number nearest to this one that has these 24 bits.
    pub(super) fn near(self, psn: u32) -> Seq {
        Seq(self.0.saturating_add_signed(psn::diff(psn, self.psn()).into()))
    }

    /// The number `packets` later.
    pub(super) fn plus(self, packets: u32) -> Seq {
        Seq(self.0 + u64::from(packets))
    }

    /// The number before.
    pub(super) fn previous(self) -> Seq {
        Seq(self.0.saturating_sub(1))
    }

    /// Packets from `earlier` to this one, 0 if that is later.
    pub(super) fn since(self, earlier: Seq) -> u32 {
        self.0.saturating_sub(earlier.0).min(u32::MAX.into()) as u32
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.psn())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_on_over_the_wrap() {
        let start = Seq::start(0xff_fffe);
        let later = start.plus(5);
        assert_eq!(later.psn(), 3);
        assert!(later > start);
        assert_eq!(later.since(start), 5);
        assert_eq!(start.since(later), 0);
        assert_eq!(start.near(3), later);
        assert_eq!(later.near(0xff_fffe), start);
        assert_eq!(Seq::start(0).near(0xff_ffff).plus(1), Seq::start(0));
    }
}
