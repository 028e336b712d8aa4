//! Subscriptions, and what subscribers are told (IBA 13.4.8.3, 13.4.11, 14.2.5.1).

use std::collections::HashMap;

use ironverbs_wire::Gid;
use ironverbs_wire::mad::{BASE_VERSION, Mad, MadHeader};

use super::admin::{Answer, Own, status};
use super::{Outgoing, SUBN_ADM, Way, attribute, be16, gid, method};
use crate::Instant;

/// Subscriptions, and reports that wait to be acknowledged, at most.
const MOST_INFORMS: usize = 65_536;
const MOST_REPORTS: usize = 65_536;

/// A report that is not acknowledged is sent again after this, in nanoseconds, doubled each time, and so often.
const PAUSE: u64 = 50_000_000;
const RETRIES: u32 = 4;

/// Kinds of generic notices (IBA 13.4.8.2).
const URGENT: u8 = 1;
const INFORMATIONAL: u8 = 4;

/// Bytes of InformInfo.
const INFORM: usize = 36;

/// Where data starts in a MAD of the class.
const DATA: usize = 56;

/// Who wants to hear of what.
#[derive(Copy, Clone, Debug)]
struct Inform {
    lid: u16,
    qpn: u32,
    /// 0xffff: any.
    trap: u16,
    /// As it was asked for.
    info: [u8; INFORM],
}

#[derive(Debug)]
struct Report {
    outgoing: Outgoing,
    deadline: Instant,
    pause: u64,
    left: u32,
}

/// Who has subscribed, and what is on its way to them.
#[derive(Debug, Default)]
pub(super) struct Reports {
    informs: Vec<Inform>,
    open: HashMap<u32, Report>,
    tid: u32,
}

impl Reports {
    /// InformInfo: subscribes, or takes it back.
    pub(super) fn subscribe(&mut self, lid: u16, query: &[u8]) -> Answer {
        let info: [u8; INFORM] = *query.first_chunk().ok_or(status::INVALID)?;
        let trap = be16(&info, 26);
        let qpn = match u32::from_be_bytes([0, info[28], info[29], info[30]]) {
            0 => 1,
            qpn => qpn,
        };
        let (generic, subscribe) = (info[22], info[23]);
        if generic != 1 || subscribe > 1 {
            return Err(status::INVALID);
        }
        let same = |i: &Inform| (i.lid, i.qpn, i.trap) == (lid, qpn, trap);
        let known = self.informs.iter().position(same);
        match (subscribe, known) {
            (1, None) if self.informs.len() >= MOST_INFORMS => return Err(status::NO_RESOURCES),
            (1, None) => self.informs.push(Inform { lid, qpn, trap, info }),
            (0, Some(at)) => drop(self.informs.swap_remove(at)),
            (0, None) => return Err(status::INVALID),
            _ => {}
        }
        Ok(vec![info.to_vec()])
    }

    /// InformInfoRecords; `gid_of` tells whose a LID is.
    pub(super) fn records(&self, gid_of: impl Fn(u16) -> Gid) -> Vec<Vec<u8>> {
        let record = |(at, inform): (usize, &Inform)| {
            let mut record = gid_of(inform.lid).0.to_vec();
            record.extend_from_slice(&(at as u16).to_be_bytes());
            record.extend_from_slice(&[0; 6]);
            record.extend_from_slice(&inform.info);
            record
        };
        self.informs.iter().enumerate().map(record).collect()
    }

    /// Tells subscribers of a GID: trap 64 in service, 65 out of it, 66 group created, 67 deleted.
    pub(super) fn report(
        &mut self,
        now: Instant,
        own: &Own,
        trap: u16,
        subject: Gid,
    ) -> Vec<Outgoing> {
        // The producer is the class manager.
        let mut notice = generic(INFORMATIONAL, 4, trap, own.lid);
        // Behind the count and six bytes that mean nothing.
        notice[16..32].copy_from_slice(&subject.0);
        self.relay(now, &notice, &own.gid)
    }

    /// Tells subscribers what the Notice of a node at a GID says (IBA 13.4.8.3).
    pub(super) fn relay(&mut self, now: Instant, notice: &[u8; 64], issuer: &Gid) -> Vec<Outgoing> {
        let trap = be16(notice, 4);
        let wants = |inform: &&Inform| inform.trap == trap || inform.trap == 0xffff;
        let to: Vec<Inform> = self.informs.iter().filter(wants).copied().collect();
        let mut sent = Vec::with_capacity(to.len());
        for inform in to {
            self.tid = self.tid.wrapping_add(1);
            let header = MadHeader {
                base_version: BASE_VERSION,
                class: SUBN_ADM,
                class_version: 2,
                method: method::REPORT,
                tid: self.tid.into(),
                attribute: attribute::NOTICE,
                ..MadHeader::default()
            };
            let mut mad: Mad = [0; 256];
            mad[..24].copy_from_slice(&header.emit());
            mad[DATA..DATA + 64].copy_from_slice(notice);
            mad[DATA + 64..DATA + 80].copy_from_slice(&issuer.0);
            let way = Way::Lid { lid: inform.lid, qpn: inform.qpn };
            let outgoing = Outgoing { way, asks: true, mad };
            sent.push(outgoing.clone());
            if self.open.len() < MOST_REPORTS {
                let deadline = now.after(PAUSE);
                let report = Report { outgoing, deadline, pause: PAUSE, left: RETRIES };
                self.open.insert(self.tid, report);
            }
        }
        sent
    }

    /// A subscriber at a LID has heard.
    pub(super) fn heard(&mut self, lid: u16, tid: u32) {
        let to =
            |report: &Report| matches!(report.outgoing.way, Way::Lid { lid: of, .. } if of == lid);
        if self.open.get(&tid).is_some_and(to) {
            self.open.remove(&tid);
        }
    }

    /// What is to be sent again.
    pub(super) fn handle_timeout(&mut self, now: Instant) -> Vec<Outgoing> {
        let mut again = Vec::new();
        self.open.retain(|_, report| {
            if report.deadline > now {
                return true;
            }
            if report.left == 0 {
                return false;
            }
            report.left -= 1;
            report.pause *= 2;
            report.deadline = now.after(report.pause);
            again.push(report.outgoing.clone());
            true
        });
        again
    }

    pub(super) fn next_timeout(&self) -> Option<Instant> {
        self.open.values().map(|report| report.deadline).min()
    }

    /// Who was at a LID is gone.
    pub(super) fn forget(&mut self, lid: u16) {
        self.informs.retain(|inform| inform.lid != lid);
        self.open.retain(|_, r| !matches!(r.outgoing.way, Way::Lid { lid: of, .. } if of == lid));
    }
}

/// The GID of a LID that nobody has.
pub(super) fn nobody() -> Gid {
    gid(0, 0)
}

/// A generic Notice (IBA 13.4.8.2) without details.
fn generic(kind: u8, producer: u8, trap: u16, issuer: u16) -> [u8; 64] {
    let mut notice = [0; 64];
    notice[0] = 0x80 | kind;
    notice[3] = producer;
    notice[4..6].copy_from_slice(&trap.to_be_bytes());
    notice[6..8].copy_from_slice(&issuer.to_be_bytes());
    notice
}

/// Trap 128: the state of a port of the switch with a LID has changed.
pub(super) fn link_state_changed(switch: u16) -> [u8; 64] {
    let mut notice = generic(URGENT, 2, 128, switch);
    notice[10..12].copy_from_slice(&switch.to_be_bytes());
    notice
}

/// Trap 144: the capability mask of the port with a LID has changed, or what its node is called.
pub(super) fn local_changes(lid: u16, switch: bool, capabilities: u32, name: bool) -> [u8; 64] {
    let mut notice = generic(INFORMATIONAL, if switch { 2 } else { 1 }, 144, lid);
    // Behind the count and 16 bits that mean nothing: LID, OtherLocalChanges, CapabilityMask, which of them.
    notice[12..14].copy_from_slice(&lid.to_be_bytes());
    notice[15] = u8::from(name);
    notice[16..20].copy_from_slice(&capabilities.to_be_bytes());
    notice[21] = u8::from(name);
    notice
}
