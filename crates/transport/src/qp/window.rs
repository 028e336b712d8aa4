//! How many packets may be under way.
//!
//! The IBA leaves this to the link's own flow control, which UDP does not have: a receiver's socket
//! holds some fifty packets of 4 KiB. So each QP starts small, doubles while nothing is lost, then
//! grows by one packet per window, and halves on loss.

/// Packets on the way, READ responses asked for included, at most.
#[derive(Copy, Clone, Debug)]
pub(super) struct Window {
    size: u32,
    /// Where doubling ends.
    threshold: u32,
    /// Packets acknowledged since the last growth by one.
    credit: u32,
}

impl Window {
    const START: u32 = 16;
    const MAX: u32 = 128;
    /// A single loss does not say more than that 16 are too many.
    const FLOOR: u32 = 16;
    /// After silence even that many may be.
    const FLOOR_AFTER_TIMEOUT: u32 = 4;

    pub(super) fn size(&self) -> u32 {
        self.size
    }

    /// `packets` were acknowledged, out of a window that was in use by half or more.
    pub(super) fn acked(&mut self, packets: u32) {
        if self.size < self.threshold {
            self.size = (self.size + packets).min(self.threshold);
        } else {
            self.credit += packets;
            if self.credit >= self.size {
                self.credit -= self.size;
                self.size = (self.size + 1).min(Self::MAX);
            }
        }
    }

    /// A packet was lost on the way, the ones after it probably not.
    pub(super) fn lost(&mut self) {
        self.shrink(Self::FLOOR);
    }

    /// Nothing was heard for a local ACK timeout.
    pub(super) fn timed_out(&mut self) {
        self.shrink(Self::FLOOR_AFTER_TIMEOUT);
    }

    fn shrink(&mut self, floor: u32) {
        self.size = (self.size / 2).max(floor.min(self.size));
        self.threshold = self.size;
        self.credit = 0;
    }
}

impl Default for Window {
    fn default() -> Self {
        Window { size: Self::START, threshold: Self::MAX, credit: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_then_grows_by_one_and_halves_on_loss() {
        let mut window = Window::default();
        window.acked(16);
        assert_eq!(window.size(), 32);
        window.acked(500);
        assert_eq!(window.size(), Window::MAX);
        window.lost();
        assert_eq!(window.size(), 64);
        window.acked(63);
        assert_eq!(window.size(), 64);
        window.acked(1);
        assert_eq!(window.size(), 65);
        for _ in 0..10 {
            window.lost();
        }
        assert_eq!(window.size(), Window::FLOOR);
        for _ in 0..10 {
            window.timed_out();
        }
        assert_eq!(window.size(), Window::FLOOR_AFTER_TIMEOUT);
    }
}
