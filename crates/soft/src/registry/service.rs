//! What a member does for the others: it answers newcomers, takes their mail, and notices the death
//! of the next one.
//!
//! The members form a ring by slot. Each watches the next one's pidfd, so that watching costs a
//! descriptor and not one per member; who comes or leaves tells the one before.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::thread;
use std::time::Duration;

use ironverbs_sys::event::{Epoll, Interest};
use ironverbs_sys::process::{ClosedOnFork, PidFd};
use ironverbs_sys::unix::Datagrams;
use ironverbs_wire::Path;
use parking_lot::Mutex;

use super::group::Group;
use super::life::{Coroner, Life};
use super::mail::{LONGEST, Mail};
use super::peers::Wake;
use super::seat::Seat;
use super::table::Tenant;
use super::{Member, QpnBlock, SLOTS};
use crate::local::LaneTable;

/// Newcomers answered and mail read in one go, lest one who sends without end keep us.
const BATCH: usize = 256;

/// Burying the dead can wait: newcomers do it too.
const LOCK: Duration = Duration::from_millis(20);

/// A place in the group, and what serving it takes.
#[derive(Debug)]
pub(crate) struct Membership {
    /// First, so that they are gone before the descriptors are closed.
    _closed_on_fork: Vec<ClosedOnFork>,
    pub(super) lanes: LaneTable,
    service: Mutex<Service>,
    claiming: Mutex<()>,
    epoll: Epoll,
    pub(super) wake: Wake,
    pub(super) seat: Seat,
    pub(super) group: Group,
    pub(super) coroner: Coroner,
}

#[derive(Debug)]
struct Service {
    watch: Option<Watch>,
    buffer: Vec<u8>,
}

#[derive(Debug)]
struct Watch {
    _closed_on_fork: ClosedOnFork,
    pidfd: PidFd,
}

impl Membership {
    pub(super) fn new(
        group: Group,
        seat: Seat,
        coroner: Coroner,
        lanes: bool,
    ) -> io::Result<Membership> {
        let vacate = |error| {
            group.table.vacate(seat.slot);
            error
        };
        let lane_table = LaneTable::new().map_err(vacate)?;
        let (epoll, closed_on_fork) = prepare(&group, &seat, lane_table.epoll()).map_err(vacate)?;
        if lanes {
            group.table.take_lanes(seat.slot);
        }
        let service = Service { watch: None, buffer: Vec::new() };
        let member = Membership {
            _closed_on_fork: closed_on_fork,
            lanes: lane_table,
            service: Mutex::new(service),
            claiming: Mutex::new(()),
            epoll,
            wake: Wake::default(),
            seat,
            group,
            coroner,
        };
        member.wake.leave_to_us(&member.seat.estates);
        member.watch_next(&mut member.service.lock());
        tell_previous(member.seat.slot, &member.group, &member.coroner);
        Ok(member)
    }

    pub(super) fn service_fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(super) fn serve(&self, on_forwarded: &mut dyn FnMut(&Path, u16, &[u8])) {
        let Some(mut service) = self.service.try_lock() else { return };
        if self.answer_newcomers().is_err() {
            // Out of descriptors, most likely: the newcomer waits, and so do we, not to spin.
            thread::sleep(Duration::from_millis(1));
        }
        let asked = self.read_mail(&mut service.buffer, on_forwarded);
        self.lanes.look_for_deaths();
        self.find_dead();
        let died = service.watch.as_ref().is_some_and(|watch| !watch.pidfd.alive());
        if asked || died {
            self.watch_next(&mut service);
        }
    }

    fn answer_newcomers(&self) -> io::Result<()> {
        for _ in 0..BATCH {
            let Some(newcomer) = self.seat.entry.accept()? else { break };
            if newcomer.peer().is_ok_and(|peer| peer.uid == self.coroner.uid) {
                // It may have gone elsewhere by now.
                let _ = self.group.hand_over(&newcomer);
            }
        }
        Ok(())
    }

    /// Returns whether somebody asked for [`Mail::Rewatch`].
    fn read_mail(
        &self,
        buffer: &mut Vec<u8>,
        on_forwarded: &mut dyn FnMut(&Path, u16, &[u8]),
    ) -> bool {
        buffer.resize(LONGEST, 0);
        let (mut rewatch, mut dinged) = (false, false);
        for _ in 0..BATCH {
            let Ok(Some(received)) = self.seat.mailbox.recv(buffer) else { break };
            let Some(sender) = received.sender.filter(|sender| sender.uid == self.coroner.uid)
            else {
                continue;
            };
            let mail = buffer.get(..received.len).and_then(Mail::parse);
            if received.truncated && !matches!(mail, Some(Mail::Offer(_))) {
                continue;
            }
            match mail {
                Some(Mail::Offer(offer)) => self.take_offer(sender.pid, &offer, received.fds),
                Some(Mail::Refusal { slot, tenure }) => self.refused(sender.pid, slot, tenure),
                Some(Mail::Ding) => dinged = true,
                Some(Mail::Rewatch) => rewatch = true,
                Some(Mail::Packet { path, src_port, bytes }) => {
                    on_forwarded(&path, src_port, bytes);
                }
                None => {}
            }
        }
        if dinged {
            self.lanes.look_for_closed();
        }
        rewatch
    }

    /// Buries the dead that follow us in the ring, and watches the first that lives.
    fn watch_next(&self, service: &mut Service) {
        if let Some(watch) = service.watch.take() {
            // A child by a raw clone(2) may hold a duplicate: closing alone would not end it.
            let _ = self.epoll.remove(watch.pidfd.as_fd());
        }
        for slot in ring(self.seat.slot, self.group.table.sockets()) {
            let Some(tenant) = self.group.table.tenant(slot) else { continue };
            match self.coroner.examine(slot, &tenant) {
                Life::Dead => self.bury(slot, &tenant),
                Life::Alive(None) => {}
                Life::Alive(Some(pidfd)) => {
                    service.watch = self.watch(pidfd).ok();
                    return;
                }
            }
        }
    }

    fn watch(&self, pidfd: PidFd) -> io::Result<Watch> {
        let closed_on_fork = ClosedOnFork::new(pidfd.as_fd())?;
        self.epoll.add(pidfd.as_fd(), 0, Interest::READ)?;
        Ok(Watch { _closed_on_fork: closed_on_fork, pidfd })
    }

    pub(super) fn watch_pidfd(&self, pidfd: &PidFd) -> io::Result<()> {
        self.epoll.add(pidfd.as_fd(), 0, Interest::READ)
    }

    pub(super) fn unwatch_pidfd(&self, pidfd: &PidFd) {
        // A child by a raw clone(2) may hold a duplicate: closing alone would not end it.
        let _ = self.epoll.remove(pidfd.as_fd());
    }

    fn bury(&self, slot: u16, tenant: &Tenant) {
        let table = &self.group.table;
        let Ok(_lock) = self.group.lock(LOCK) else {
            // Not to be left to the next death.
            if let Ok(own) = self.coroner.names.mailbox(self.seat.slot) {
                let _ = Mail::Rewatch.send(&self.seat.mailbox, &own);
            }
            return;
        };
        // Somebody may have been faster, and the slot have a new tenant.
        let now = table.tenant(slot);
        if now.is_some_and(|now| now.identity == tenant.identity && now.tenure == tenant.tenure) {
            self.wake.leave_to_us(self.group.inherit(slot, tenant).as_slice());
            table.vacate(slot);
        }
    }

    pub(super) fn claim_block(&self, first: u16) -> Option<QpnBlock> {
        let slot = self.seat.slot;
        let _claiming = self.claiming.lock();
        let block = self.group.table.claim(slot, 0b1111, first)?;
        Some(QpnBlock(block * SLOTS + slot))
    }

    pub(super) fn release_block(&self, block: QpnBlock) {
        if block.0 % SLOTS == self.seat.slot {
            let _claiming = self.claiming.lock();
            self.group.table.release(self.seat.slot, block.0 / SLOTS);
        }
    }

    pub(super) fn members(&self) -> Vec<Member> {
        let living = |slot| {
            let tenant = self.group.table.tenant(slot)?;
            if slot != self.seat.slot && matches!(self.coroner.examine(slot, &tenant), Life::Dead) {
                return None;
            }
            let blocks = tenant.blocks.count_ones() as u8;
            Some(Member { slot, pid: tenant.identity.pid, blocks })
        };
        (0..self.group.table.sockets()).filter_map(living).collect()
    }

    pub(super) fn leave(self) {
        self.leave_groups();
        self.close_lanes();
        let Membership {
            _closed_on_fork,
            lanes,
            service,
            epoll,
            wake,
            seat,
            group,
            coroner,
            claiming,
        } = self;
        let own = seat.slot;
        drop(lanes);
        drop((_closed_on_fork, service, claiming, wake, epoll));
        // The names first: who takes the slot binds them.
        drop(seat);
        group.table.vacate(own);
        tell_previous(own, &group, &coroner);
    }
}

/// Has the one before a slot look who is next to it now.
fn tell_previous(slot: u16, group: &Group, coroner: &Coroner) {
    let previous =
        ring(slot, group.table.sockets()).rev().find(|&slot| group.table.tenant(slot).is_some());
    let name = previous.and_then(|slot| coroner.names.mailbox(slot).ok());
    if let (Some(name), Ok(from)) = (name, Datagrams::unbound()) {
        // If its mailbox is full it watches the wrong one until the next newcomer comes.
        let _ = Mail::Rewatch.send(&from, &name);
    }
}

/// The slots after this one, round to the one before it.
fn ring(own: u16, sockets: u16) -> impl DoubleEndedIterator<Item = u16> {
    (own.saturating_add(1)..sockets).chain(0..own.min(sockets))
}

fn prepare(
    group: &Group,
    seat: &Seat,
    lanes: BorrowedFd<'_>,
) -> io::Result<(Epoll, Vec<ClosedOnFork>)> {
    let epoll = Epoll::new()?;
    epoll.add(seat.entry.as_fd(), 0, Interest::READ)?;
    epoll.add(seat.mailbox.as_fd(), 0, Interest::READ)?;
    epoll.add(lanes, 0, Interest::READ)?;
    let [tx, rx] = group.vault.ends();
    let fds = [
        tx,
        rx,
        group.memfd.as_fd(),
        group.status.as_fd(),
        seat.socket.as_fd(),
        seat.management.as_fd(),
        seat.entry.as_fd(),
        seat.mailbox.as_fd(),
        epoll.as_fd(),
        lanes,
    ];
    let closed_on_fork = fds.into_iter().map(ClosedOnFork::new).collect::<io::Result<_>>()?;
    Ok((epoll, closed_on_fork))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_ring_starts_after_us_and_ends_before() {
        assert_eq!(ring(1, 4).collect::<Vec<_>>(), [2, 3, 0]);
        assert_eq!(ring(3, 4).rev().collect::<Vec<_>>(), [2, 1, 0]);
        assert_eq!(ring(0, 1).count(), 0);
    }
}
