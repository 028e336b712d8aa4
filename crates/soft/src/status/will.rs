//! Last wills: what is to be done for a queue pair when its process is dead.
//!
//! The one kind there is: a connection to another host, made by the connection manager. Whoever buries the process has
//! its peer told that it is over, by the request to disconnect that the process could not send. What another process
//! wrote is taken for nothing more than a wish: [`Will::parting`] says what may be done of it.

use std::sync::atomic::Ordering;

use ironverbs_mad::{Parting, slot_of};
use ironverbs_wire::{Gid, Path};

use super::layout::{ENTRIES, ENTRY, HEADER, WINDOW, entry};
use super::view::View;
use super::{Board, place};
use crate::cm::SLOT_BITS;

/// Kind: a connection that is to be ended. Its words are those of [`Will`].
const DISCONNECT: u64 = 1;

/// Words of a will, and which of them has the communication IDs.
const WORDS: usize = 8;
const IDS: usize = 4;

/// A will as it stands in an entry, unchecked.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Will([u64; WORDS]);

impl Will {
    fn of(parting: &Parting) -> Option<Will> {
        let Parting { path, pkey, tid, comm_id, remote_comm_id, remote_qpn } = *parting;
        // Of an InfiniBand link there is no room for the local route.
        if path.ib.is_some() {
            return None;
        }
        let [s0, s1] = halves(&path.src);
        let [d0, d1] = halves(&path.dst);
        let ids = u64::from(comm_id) | u64::from(remote_comm_id) << 32;
        let [class, hops] = [path.traffic_class, path.hop_limit].map(u64::from);
        let rest = u64::from(remote_qpn) | u64::from(pkey) << 32 | class << 48 | hops << 56;
        Some(Will([s0, s1, d0, d1, ids, tid, rest, path.flow_label.into()]))
    }

    /// What may be said for the process that had this slot: in the name of its own communication IDs, from an address of
    /// this host to one that is not.
    pub(crate) fn parting(&self, slot: u16, is_local: impl Fn(&Gid) -> bool) -> Option<Parting> {
        let [s0, s1, d0, d1, ids, tid, rest, flow_label] = self.0;
        let (src, dst) = (whole(s0, s1), whole(d0, d1));
        let (comm_id, remote_comm_id) = (ids as u32, (ids >> 32) as u32);
        let remote_qpn = rest as u32;
        let well_formed = comm_id != 0
            && remote_comm_id != 0
            && (2..1 << 24).contains(&remote_qpn)
            && flow_label < 1 << 20
            && src.is_ipv4() == dst.is_ipv4()
            && !dst.to_ip().is_multicast()
            && !dst.to_ip().is_unspecified();
        let its_own = slot_of(comm_id, SLOT_BITS) == u32::from(slot);
        let abroad = is_local(&src) && !is_local(&dst);
        (well_formed && its_own && abroad).then(|| Parting {
            path: Path {
                src,
                dst,
                traffic_class: (rest >> 48) as u8,
                hop_limit: ((rest >> 56) as u8).max(1),
                flow_label: flow_label as u32,
                ..Path::default()
            },
            pkey: (rest >> 32) as u16,
            tid,
            comm_id,
            remote_comm_id,
            remote_qpn,
        })
    }
}

fn halves(gid: &Gid) -> [u64; 2] {
    [&gid.0[..8], &gid.0[8..]].map(|half| half.try_into().map_or(0, u64::from_ne_bytes))
}

fn whole(high: u64, low: u64) -> Gid {
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&high.to_ne_bytes());
    gid[8..].copy_from_slice(&low.to_ne_bytes());
    Gid(gid)
}

impl Board {
    /// Leaves a will for a QP of this process.
    pub(crate) fn bequeath(&self, qpn: u32, parting: &Parting) {
        let Some(Will(words)) = Will::of(parting).filter(|_| self.has(qpn)) else { return };
        let at = place(qpn) + entry::WILL;
        self.store(at, 0, Ordering::Release);
        for (n, word) in words.into_iter().enumerate() {
            self.store(at + 8 + 8 * n, word, Ordering::Release);
        }
        self.store(at, DISCONNECT, Ordering::Release);
    }

    /// Takes back what was left for this connection of it.
    pub(crate) fn disinherit(&self, qpn: u32, comm_id: u32) {
        let at = place(qpn) + entry::WILL;
        let Some(ids) = self.word(at + 8 + 8 * IDS).filter(|_| self.has(qpn)) else { return };
        // The number may be another connection's by now.
        if ids.load(Ordering::Relaxed) as u32 == comm_id {
            self.store(at, 0, Ordering::Release);
        }
    }
}

impl View<'_> {
    /// The wills that the tenant of a slot has left; it is dead, and the slot not yet another's.
    pub(crate) fn wills(&self, slot: u16, tenure: u32) -> Vec<Will> {
        if self.header(slot, tenure).is_none() {
            return Vec::new();
        }
        let mut wills = Vec::new();
        self.written_pages(slot, |page| {
            for n in 0..page.len() / ENTRY {
                let at = n * ENTRY + entry::WILL;
                if page.word(at) == DISCONNECT {
                    wills.push(Will(std::array::from_fn(|word| page.word(at + 8 + 8 * word))));
                }
            }
        });
        wills
    }
}

const _: () = assert!(HEADER + ENTRIES * ENTRY == WINDOW);

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    fn address(n: u8) -> Gid {
        Gid::from_ip(Ipv4Addr::new(10, 1, 0, n).into())
    }

    fn parting() -> Parting {
        Parting {
            path: Path {
                src: address(1),
                dst: address(2),
                traffic_class: 3,
                hop_limit: 64,
                flow_label: 0xf_ffff,
                ..Path::default()
            },
            pkey: 0xffff,
            tid: u64::MAX - 1,
            comm_id: 5 << 22 | 77,
            remote_comm_id: u32::MAX,
            remote_qpn: 0xff_ffff,
        }
    }

    fn is_local(gid: &Gid) -> bool {
        *gid == address(1) || *gid == address(9)
    }

    #[test]
    fn what_was_left_is_found() {
        let will = Will::of(&parting()).unwrap();
        assert_eq!(will.parting(5, is_local), Some(parting()));
    }

    #[test]
    fn nothing_is_said_in_the_name_of_others_or_to_others() {
        let refused = |change: fn(&mut Parting)| {
            let mut wrong = parting();
            change(&mut wrong);
            let will = Will::of(&wrong).unwrap();
            assert_eq!(will.parting(5, is_local), None, "{wrong:?}");
        };
        refused(|wrong| wrong.comm_id = 6 << 22 | 77);
        refused(|wrong| wrong.comm_id = 0);
        refused(|wrong| wrong.remote_comm_id = 0);
        refused(|wrong| wrong.path.src = address(3));
        refused(|wrong| wrong.path.dst = address(9));
        refused(|wrong| wrong.path.dst = Gid::from_ip(Ipv4Addr::new(224, 0, 0, 1).into()));
        refused(|wrong| wrong.path.dst = Gid::from_ip(Ipv4Addr::UNSPECIFIED.into()));
        refused(|wrong| wrong.path.dst = Gid([0xfe; 16]));
        refused(|wrong| wrong.remote_qpn = 1);
        refused(|wrong| wrong.remote_qpn = 1 << 24);
        refused(|wrong| wrong.path.flow_label = 1 << 20);
        // Whatever is written there.
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..10_000 {
            let will = Will(std::array::from_fn(|_| random.u64(..)));
            assert_eq!(will.parting(5, is_local), None);
        }
    }
}
