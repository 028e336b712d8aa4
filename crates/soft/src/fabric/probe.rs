//! How questions leave, and what comes back for those that did not arrive.

use std::io;

use ironverbs_mad::Prober;
use ironverbs_wire::mad::gmp;

use crate::host::Inner;
use crate::reporting::Reporting;

/// The prober with sockets of its own.
#[derive(Debug)]
pub(super) struct Probes {
    pub(super) prober: Prober,
    reporting: Reporting,
    psn: u32,
}

impl Probes {
    pub(super) fn open(host: &Inner, prober: Prober, slot: u16) -> io::Result<Probes> {
        let reporting = Reporting::open(host, slot.wrapping_add(0x2000))?;
        Ok(Probes { prober, reporting, psn: 0 })
    }

    /// Takes what has come back, lets time pass, sends.
    pub(super) fn turn(&mut self, host: &Inner, now: ironverbs_mad::Instant) {
        self.take_unreached(now);
        self.prober.handle_timeout(now);
        self.send(host, now);
    }

    /// Sends what is to be sent.
    pub(super) fn send(&mut self, host: &Inner, now: ironverbs_mad::Instant) {
        let mut sent = false;
        while let Some(transmit) = self.prober.poll_transmit() {
            self.psn = self.psn.wrapping_add(1) & 0xff_ffff;
            let packet = gmp(transmit.pkey, self.psn, &transmit.mad);
            self.reporting.send(host, &transmit.path, &packet);
            sent = true;
        }
        if sent {
            // On a short way the answer is there already.
            self.take_unreached(now);
        }
    }

    fn take_unreached(&mut self, now: ironverbs_mad::Instant) {
        for (gid, _) in self.reporting.unreached() {
            self.prober.unreachable(now, &gid);
        }
    }
}
