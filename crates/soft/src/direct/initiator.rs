//! The initiator's side: what may be done to a peer's memory, and doing it.

use std::io;
use std::sync::atomic::{AtomicU32, Ordering, fence};
use std::sync::{Arc, OnceLock};

use ironverbs_sys::copy;
use ironverbs_sys::peer::{self, Range};
use ironverbs_transport::device::{Action, Atomic, Carrier, OneSided};
use ironverbs_transport::verbs::{Access, Sge};

use super::protocol::{self, Entry, Memory, Word};
use super::remote::Remote;
use super::slots::{self, Slots};
use super::table;
use crate::config;
use crate::context::limits;
use crate::memory::slot_of_key;
use crate::surroundings::Held;

/// Bytes touched under one naming in a slot: whoever waits for it waits so long, and no longer.
const CHUNK: usize = 256 * 1024;

/// This process as the initiator towards one other.
#[derive(Debug)]
pub(crate) struct Initiator {
    /// This process, as the target knows it: its slot in the group, and which of the slot's tenants it is.
    own: (u16, u32),
    slots: Slots,
    count: AtomicU32,
    remote: OnceLock<Arc<Remote>>,
}

/// What a request needs of this side.
pub(crate) struct Local<'a, 'h> {
    pub(crate) regions: &'a Held<'h>,
    pub(crate) pd: u32,
    pub(crate) qpn: u32,
    pub(crate) mode: config::OneSided,
}

/// What the peer's table said for the last request of a queue pair: the next is mostly for the same region, and needs no
/// more of the lines than their sequence numbers. Good for one lane.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Aim {
    dest_qpn: u32,
    rkey: u32,
    qp: (u32, usize),
    region: (u32, usize),
    /// What both allow.
    access: Access,
    addr: u64,
    len: u64,
    iova: u64,
    place: Option<u64>,
}

impl Aim {
    fn is_for(&self, request: &OneSided<'_>) -> bool {
        self.dest_qpn == request.dest_qpn && self.rkey == request.rkey
    }

    /// Whether the lines have not changed. That is asked once more when they are named.
    fn stands(&self, remote: &Remote) -> bool {
        remote.number(self.qp.1, Ordering::Acquire) == self.qp.0
            && remote.number(self.region.1, Ordering::Acquire) == self.region.0
    }
}

/// What is to be touched, and how.
struct Target<'a> {
    remote: &'a Remote,
    /// Of both lines the sequence number, and where it is.
    region: (u32, usize),
    qp: (u32, usize),
    name: u64,
    carrier: Carrier,
    /// In this process, or, for the kernel, in the target's.
    addr: u64,
}

impl Initiator {
    pub(crate) fn new(own: (u16, u32), slots: Slots) -> Initiator {
        Initiator { own, slots, count: AtomicU32::new(0), remote: OnceLock::new() }
    }

    /// The target's table has come.
    pub(crate) fn meet(&self, remote: Arc<Remote>) {
        // The first stays: it is of the same process.
        let _ = self.remote.set(remote);
    }

    /// The target's table, where it can be looked at.
    pub(crate) fn remote(&self) -> Option<&Remote> {
        self.remote.get().map(|remote| &**remote)
    }

    /// Carries out a request, if that is possible; see [`ironverbs_transport::device::Device::carry_out`].
    #[inline]
    pub(crate) fn carry_out(
        &self,
        local: &Local<'_, '_>,
        request: &OneSided<'_>,
        aim: &mut Option<Aim>,
    ) -> Option<Carrier> {
        let remote = self.remote.get()?;
        let (target, psn) = self.target(remote, local, request, aim)?;
        if psn != request.psn {
            return None;
        }
        let (sges, writes) = match request.action {
            Action::Write(sges) => (sges, false),
            Action::WriteInline(_) => (&[][..], false),
            Action::Read(sges) | Action::Atomic(_, sges) => (sges, true),
        };
        if sges.len() > limits::SGE as usize || !local.allows(sges, writes) {
            return None;
        }
        let carrier = target.carrier;
        let touch = Touch { slots: &self.slots, target };
        let done = match request.action {
            Action::WriteInline(bytes) => touch.write_bytes(bytes),
            Action::Write(sges) => touch.transfer(local, sges, request.len, false),
            Action::Read(sges) => touch.transfer(local, sges, request.len, true),
            Action::Atomic(op, sges) => touch.atomic(local, op, sges),
        };
        done.map(|()| carrier)
    }

    /// Whether it would be, if the target had carried out what is under way.
    pub(crate) fn could_carry_out(&self, local: &Local<'_, '_>, request: &OneSided<'_>) -> bool {
        self.remote
            .get()
            .is_some_and(|remote| self.target(remote, local, request, &mut None).is_some())
    }

    /// What the peer's table says that may be done, and the PSN that it expects. SYNC POINT: what `Watch::add` said is seen before the lines are.
    #[inline]
    fn target<'a>(
        &self,
        remote: &'a Remote,
        local: &Local<'_, '_>,
        request: &OneSided<'_>,
        aim: &mut Option<Aim>,
    ) -> Option<(Target<'a>, u32)> {
        if !self.slots.watched(Ordering::Acquire) || !remote.is_alive() {
            return None;
        }
        let need = match request.action {
            Action::Write(_) | Action::WriteInline(_) => Access::REMOTE_WRITE,
            Action::Read(_) => Access::REMOTE_READ,
            Action::Atomic(..) => Access::REMOTE_ATOMIC,
        };
        let Aim { qp, region, access, addr, len, iova, place, .. } = match aim {
            Some(aim) if aim.is_for(request) && aim.stands(remote) => *aim,
            _ => *aim.insert(self.aim(remote, local, request)?),
        };
        if !access.contains(need) {
            return None;
        }
        let psn = remote.psn(qp.1);
        let offset = request.va.checked_sub(iova)?;
        if offset.checked_add(request.len).is_none_or(|end| end > len) {
            return None;
        }
        let theirs = addr.checked_add(offset)?;
        let mapped = || remote.mapped(place?.checked_add(offset)?, request.len);
        let kernel = || (remote.has_kernel() && need != Access::REMOTE_ATOMIC).then_some(theirs);
        let (carrier, addr) = match local.mode {
            config::OneSided::Off => return None,
            config::OneSided::Auto if remote.is_ours() => (Carrier::Process, theirs),
            config::OneSided::Auto => match mapped() {
                Some(addr) => (Carrier::Mapped, addr),
                None => (Carrier::Kernel, kernel()?),
            },
            config::OneSided::Kernel => (Carrier::Kernel, kernel()?),
        };
        if need == Access::REMOTE_ATOMIC
            && !(request.va.is_multiple_of(8) && addr.is_multiple_of(8))
        {
            return None;
        }
        // Threads that overwrite each other's count do no harm.
        let count = self.count.load(Ordering::Relaxed).wrapping_add(1);
        self.count.store(count, Ordering::Relaxed);
        let (index, line) = (slot_of_key(request.rkey), table::line_of_qp(request.dest_qpn));
        let name = slots::name(index, line, count);
        Some((Target { remote, region, qp, name, carrier, addr }, psn))
    }

    /// What the lines that a request names say, if they may be named together.
    fn aim(&self, remote: &Remote, local: &Local<'_, '_>, request: &OneSided<'_>) -> Option<Aim> {
        let qp = remote.qp(request.dest_qpn)?;
        let region = remote.region(slot_of_key(request.rkey))?;
        let line = &region.what.line;
        let connected =
            qp.what.peer_qpn == local.qpn && (qp.what.peer_slot, qp.what.peer_tenure) == self.own;
        let together = line.rkey == request.rkey
            && line.pd == qp.what.pd
            && (line.qpn == 0 || line.qpn == request.dest_qpn);
        (connected && together).then_some(Aim {
            dest_qpn: request.dest_qpn,
            rkey: request.rkey,
            qp: (qp.number, qp.at),
            region: (region.number, region.at),
            access: line.access & qp.what.access,
            addr: line.addr,
            len: line.len,
            iova: line.iova,
            place: region.what.place,
        })
    }
}

impl Local<'_, '_> {
    /// Whether all of a list may be used: nothing is begun that would fail half-way.
    fn allows(&self, sges: &[Sge], write: bool) -> bool {
        sges.iter().filter(|sge| sge.len > 0).all(|sge| {
            self.regions.local(self.pd, sge.lkey, sge.addr, sge.len.into(), write).is_ok()
        })
    }
}

/// A request under way, as the protocol sees it.
struct Touch<'a> {
    slots: &'a Slots,
    target: Target<'a>,
}

/// The same by one of the slots.
struct Named<'a, 't> {
    touch: &'a Touch<'t>,
    slot: usize,
}

impl Memory for Named<'_, '_> {
    #[inline]
    fn load(&self, word: Word, order: Ordering) -> u64 {
        let Touch { slots, target: Target { remote, region, qp, .. } } = self.touch;
        match word {
            Word::Slot => slots.load(self.slot, order),
            Word::Watched => slots.watched(order).into(),
            Word::Region => remote.number(region.1, order).into(),
            Word::Qp => remote.number(qp.1, order).into(),
        }
    }

    #[inline]
    fn store(&self, word: Word, value: u64, order: Ordering) {
        // The rest is not the initiator's.
        if word == Word::Slot {
            self.touch.slots.store(self.slot, value, order);
        }
    }

    #[inline]
    fn fence(&self, order: Ordering) {
        fence(order);
    }

    #[inline]
    fn claim(&self, value: u64) -> bool {
        self.touch.slots.claim(self.slot, value)
    }
}

impl Touch<'_> {
    /// Runs `f` while the owner waits for us. None, too, while all slots are taken.
    #[inline]
    fn under_name<T>(&self, f: impl FnOnce() -> Option<T>) -> Option<T> {
        let Target { name, region, qp, .. } = &self.target;
        for slot in 0..slots::COUNT {
            // Others of our queue pairs start elsewhere.
            let slot = slot.wrapping_add(qp.1 / table::LINE) % slots::COUNT;
            let named = Named { touch: self, slot };
            match protocol::enter(&named, *name, region.0.into(), qp.0.into()) {
                Entry::Taken => {}
                Entry::Changed => return None,
                Entry::Entered => {
                    let result = f();
                    protocol::leave(&named);
                    return result;
                }
            }
        }
        None
    }

    fn write_bytes(&self, bytes: &[u8]) -> Option<()> {
        let range = Range::new(bytes.as_ptr() as u64, bytes.len());
        self.under_name(|| match self.target.carrier {
            Carrier::Kernel => self.kernel_write(&[range], self.target.addr, bytes.len()),
            Carrier::Process | Carrier::Mapped => {
                // SAFETY: as in `copy`; `bytes` are private.
                unsafe { copy::put(bytes.as_ptr() as u64, self.target.addr, bytes.len()) }.ok()
            }
        })
    }

    /// Copies between a list, which was checked, and the target, in ascending order.
    fn transfer(&self, local: &Local<'_, '_>, sges: &[Sge], len: u64, reads: bool) -> Option<()> {
        let mut pieces = Pieces { sges, used: 0 };
        let mut at = self.target.addr;
        let mut left = usize::try_from(len).ok()?;
        while left > 0 {
            let chunk = left.min(CHUNK);
            self.under_name(|| match self.target.carrier {
                Carrier::Kernel => self.kernel(local, &mut pieces, at, chunk, reads),
                Carrier::Process | Carrier::Mapped => {
                    self.copy(local, &mut pieces, at, chunk, reads)
                }
            })?;
            at += chunk as u64;
            left -= chunk;
        }
        Some(())
    }

    fn copy(
        &self,
        local: &Local<'_, '_>,
        pieces: &mut Pieces<'_>,
        mut at: u64,
        len: usize,
        reads: bool,
    ) -> Option<()> {
        let mut left = len;
        while left > 0 {
            let (addr, len) = pieces.next(local, left, reads)?;
            let (src, dst) = if reads { (at, addr) } else { (addr, at) };
            // SAFETY: this side's range lies within a region of ours, which stays registered while `local` borrows the
            // table of regions; the target's lies within a region of a Host of this process, which waits for our slot
            // before it lets go of it, or in the mapping of the target's arena, which stays. Whoever registered them
            // vouched for them, with the rights checked.
            unsafe { copy::put(src, dst, len) }.ok()?;
            at += len as u64;
            left -= len;
        }
        Some(())
    }

    fn kernel(
        &self,
        local: &Local<'_, '_>,
        pieces: &mut Pieces<'_>,
        at: u64,
        len: usize,
        reads: bool,
    ) -> Option<()> {
        let mut ranges = [Range::EMPTY; limits::SGE as usize];
        let (mut left, mut used) = (len, 0);
        while left > 0 {
            let (addr, len) = pieces.next(local, left, reads)?;
            *ranges.get_mut(used)? = Range::new(addr, len);
            used += 1;
            left -= len;
        }
        let ranges = ranges.get(..used)?;
        if !reads {
            return self.kernel_write(ranges, at, len);
        }
        // SAFETY: the ranges lie within regions of ours with LOCAL_WRITE, see `copy`.
        self.whole(len, || unsafe { peer::read(self.target.remote.pid(), ranges, at, len) })
    }

    fn kernel_write(&self, ranges: &[Range], at: u64, len: usize) -> Option<()> {
        // SAFETY: if the process is this one, the target is within a region of one of its Hosts, see `copy`.
        self.whole(len, || unsafe { peer::write(self.target.remote.pid(), ranges, at, len) })
    }

    /// All or nothing: what is missing, packets will miss, too, and say so.
    fn whole(&self, len: usize, copy: impl FnOnce() -> io::Result<usize>) -> Option<()> {
        // The number may come to mean another process, or the process another program.
        if !self.target.remote.is_alive() {
            return None;
        }
        (copy().ok()? == len).then_some(())
    }

    fn atomic(&self, local: &Local<'_, '_>, op: Atomic, sges: &[Sge]) -> Option<()> {
        // Once it is done it cannot be done again by packets: so the result must find its place.
        scatter(local, sges, None)?;
        let addr = self.target.addr;
        let before = self.under_name(|| {
            // SAFETY: eight aligned bytes of a region with REMOTE_ATOMIC, hence meant to be written; see `copy`.
            unsafe {
                match op {
                    Atomic::CompareSwap { compare, swap } => {
                        copy::compare_swap(addr, compare, swap)
                    }
                    Atomic::FetchAdd { add } => copy::fetch_add(addr, add),
                }
            }
            .ok()
        })?;
        // What is taken away in between is lost, and the request done.
        let _ = scatter(local, sges, Some(before));
        Some(())
    }
}

/// Puts the result of an atomic into a list, or what is there already. None: it is not to be written.
fn scatter(local: &Local<'_, '_>, sges: &[Sge], result: Option<u64>) -> Option<()> {
    let mut pieces = Pieces { sges, used: 0 };
    let mut bytes = result.unwrap_or(0).to_ne_bytes();
    let mut done = 0;
    while let Some(rest) = bytes.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let (addr, len) = pieces.next(local, rest.len(), true)?;
        let piece = rest.as_mut_ptr() as u64;
        // SAFETY: `piece` is ours and at least as long; `addr` is within a region of ours with LOCAL_WRITE, which stays
        // while `local` borrows the table of regions.
        unsafe {
            if result.is_none() {
                copy::copy(addr, piece, len).ok()?;
            }
            copy::put(piece, addr, len).ok()?;
        }
        done += len;
    }
    Some(())
}

/// A list from its beginning to its end, in pieces of any length.
struct Pieces<'a> {
    sges: &'a [Sge],
    /// Bytes of the first element that are done with.
    used: u32,
}

impl Pieces<'_> {
    /// The address and length of the next piece, of `most` bytes at most; None at the end, or for 0 bytes.
    #[inline]
    fn next(&mut self, local: &Local<'_, '_>, most: usize, write: bool) -> Option<(u64, usize)> {
        loop {
            let (sge, rest) = self.sges.split_first()?;
            let left = sge.len - self.used;
            if left == 0 {
                (self.sges, self.used) = (rest, 0);
                continue;
            }
            let len = left.min(u32::try_from(most).unwrap_or(u32::MAX));
            if len == 0 {
                return None;
            }
            let va = sge.addr.wrapping_add(self.used.into());
            let addr = local.regions.local(local.pd, sge.lkey, va, len.into(), write).ok()?;
            self.used += len;
            return Some((addr, len as usize));
        }
    }
}
