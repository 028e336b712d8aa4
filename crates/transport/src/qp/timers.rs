//! When a requester stops waiting.
//!
//! Three clocks: the local ACK timeout of IBA 9.7.6.1, which costs a retry; the pause that an RNR
//! NAK asks for; and a probe. The first is 67 ms at the usual setting of 14, a thousand round
//! trips: were it the only cure for a lost last packet, one loss in a hundred would stop the
//! transfer most of the time. The probe repeats the oldest packet after a few round trips of
//! silence, costs no retry, and backs off up to the timeout.

use super::seq::Seq;
use crate::device::Instant;

const MICROSECOND: u64 = 1_000;
const MILLISECOND: u64 = 1_000_000;

/// Shortest local ACK timeout kept, code 10. An adapter may round the timeout up (IBA 9.7.6.1
/// allows four times); a peer that is a process needs that long to be scheduled.
const TIMEOUT_FLOOR_CODE: u8 = 10;

/// Shortest silence before a probe.
const PROBE_FLOOR: u64 = 300 * MICROSECOND;
/// Silence before a probe while no round trip was measured.
const PROBE_UNMEASURED: u64 = 2 * MILLISECOND;
/// Longest silence before a probe of a QP whose local ACK timeout is infinite.
const PROBE_CEILING: u64 = 500 * MILLISECOND;

/// IBA table 45: the pause that each RNR timer code stands for, in microseconds.
const RNR_PAUSE: [u32; 32] = [
    655_360, 10, 20, 30, 40, 60, 80, 120, 160, 240, 320, 480, 640, 960, 1_280, 1_920, 2_560, 3_840,
    5_120, 7_680, 10_240, 15_360, 20_480, 30_720, 40_960, 61_440, 81_920, 122_880, 163_840,
    245_760, 327_680, 491_520,
];

/// The clocks of one requester.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Timers {
    /// Local ACK timeout in nanoseconds; None: infinite.
    timeout: Option<u64>,
    /// When the local ACK timeout began to run: with the first packet under way, again with
    /// progress.
    waiting_since: Instant,
    /// When something was last sent or acknowledged.
    active: Instant,
    /// Smoothed round trip time in nanoseconds.
    round_trip: Option<u64>,
    /// The packet whose round trip is being measured, and when it left.
    measured: Option<(Seq, Instant)>,
    /// Probes since the last progress.
    probes: u32,
    /// Until when an RNR NAK silences the requester.
    rnr_until: Option<Instant>,
}

impl Timers {
    /// Sets the local ACK timeout by its code: 4.096 us * 2^code, 0 for infinite.
    pub(super) fn set_timeout(&mut self, code: u8) {
        self.timeout = (code != 0).then(|| 4_096 << code.clamp(TIMEOUT_FLOOR_CODE, 31));
    }

    /// The local ACK timeout in nanoseconds; None: infinite.
    pub(super) fn timeout(&self) -> Option<u64> {
        self.timeout
    }

    /// A packet was sent; `first` if none was under way. `measure`: it is new and its answer may
    /// be timed.
    pub(super) fn sent(&mut self, seq: Seq, now: Instant, first: bool, measure: bool) {
        self.active = now;
        if first {
            self.waiting_since = now;
        }
        if measure && self.measured.is_none() {
            self.measured = Some((seq, now));
        }
    }

    /// Everything from `seq` on is sent again, so that an answer would be ambiguous.
    pub(super) fn rewound(&mut self, seq: Seq) {
        if self.measured.is_some_and(|(measured, _)| measured >= seq) {
            self.measured = None;
        }
    }

    /// Everything before `una` is now acknowledged.
    pub(super) fn progress(&mut self, una: Seq, now: Instant) {
        self.waiting_since = now;
        self.active = now;
        self.probes = 0;
        if let Some((seq, sent)) = self.measured
            && seq < una
        {
            self.measured = None;
            let sample = now.since(sent);
            let smoothed = self.round_trip.map_or(sample, |rtt| rtt - rtt / 8 + sample / 8);
            self.round_trip = Some(smoothed);
        }
    }

    /// An RNR NAK came with this code.
    pub(super) fn pause(&mut self, code: u8, now: Instant) {
        let micros = RNR_PAUSE.get(usize::from(code)).copied().unwrap_or(RNR_PAUSE[0]);
        self.rnr_until = Some(now.after(u64::from(micros) * MICROSECOND));
        self.probes = 0;
    }

    pub(super) fn is_paused(&self) -> bool {
        self.rnr_until.is_some()
    }

    /// Ends the pause if it is over; true while it lasts.
    pub(super) fn still_paused(&mut self, now: Instant) -> bool {
        if self.rnr_until.is_some_and(|until| until <= now) {
            self.rnr_until = None;
            self.restart(now);
        }
        self.is_paused()
    }

    /// The local ACK timeout runs anew, and no answer is timed of what was sent before.
    pub(super) fn restart(&mut self, now: Instant) {
        self.measured = None;
        self.waiting_since = now;
        self.active = now;
    }

    pub(super) fn timed_out(&self, now: Instant) -> bool {
        self.timeout_at().is_some_and(|at| at <= now)
    }

    pub(super) fn wants_probe(&self, now: Instant) -> bool {
        self.probe_at() <= now
    }

    /// A probe goes out, the next one waits longer.
    pub(super) fn probe(&mut self, now: Instant) {
        self.probes += 1;
        self.active = now;
    }

    /// The smoothed round trip time, 0 if none was measured.
    pub(super) fn round_trip(&self) -> u64 {
        self.round_trip.unwrap_or(0)
    }

    /// The next of the clocks; `waiting` if packets are under way, `held` if silence means nothing.
    pub(super) fn deadline(&self, waiting: bool, held: bool) -> Option<Instant> {
        if self.rnr_until.is_some() {
            return self.rnr_until;
        }
        if !waiting || held {
            return None;
        }
        let probe = self.probe_at();
        Some(self.timeout_at().map_or(probe, |timeout| timeout.min(probe)))
    }

    fn timeout_at(&self) -> Option<Instant> {
        self.timeout.map(|timeout| self.waiting_since.after(timeout))
    }

    fn probe_at(&self) -> Instant {
        let ceiling = self.timeout.unwrap_or(PROBE_CEILING).max(PROBE_FLOOR);
        let first = self
            .round_trip
            .map_or(PROBE_UNMEASURED, |rtt| rtt.saturating_mul(4))
            .clamp(PROBE_FLOOR, (ceiling / 4).max(PROBE_FLOOR));
        let wait = first.saturating_mul(1 << self.probes.min(20)).min(ceiling);
        self.active.after(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rnr_code_zero_is_the_longest_pause() {
        let mut timers = Timers::default();
        timers.pause(0, Instant(0));
        assert_eq!(timers.deadline(false, false), Some(Instant(655_360_000)));
        timers.pause(1, Instant(0));
        assert_eq!(timers.deadline(false, false), Some(Instant(10_000)));
        assert!(timers.still_paused(Instant(9_999)));
        assert!(!timers.still_paused(Instant(10_000)));
    }

    #[test]
    fn probes_back_off_up_to_the_timeout() {
        let mut timers = Timers::default();
        timers.set_timeout(14);
        timers.sent(Seq::start(0), Instant(0), true, true);
        timers.progress(Seq::start(1), Instant(10_000));
        let mut now = Instant(10_000);
        let mut waits = Vec::new();
        for _ in 0..6 {
            let at = timers.deadline(true, false).unwrap();
            assert!(timers.wants_probe(at));
            waits.push(at.since(now));
            now = at;
            timers.probe(now);
        }
        assert_eq!(waits, [300_000, 600_000, 1_200_000, 2_400_000, 4_800_000, 9_600_000]);
        assert!(!timers.timed_out(now));
        assert!(timers.timed_out(Instant(10_000 + (4_096 << 14))));
    }
}
