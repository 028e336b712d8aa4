//! Which lanes there are: how they come, and what becomes of them when a process dies.
//!
//! A lane belongs to a process, which is a slot and which of the slot's tenants it is; a newcomer in
//! the slot never meets the lanes of the one before. Each process at the other end of a lane is
//! watched by its pidfd, in an epoll instance within that of the registry.
//!
//! What the registry's service finds out is put down as news, which the thread that next goes
//! through the inbound lanes takes up: so the service never waits for one that consumes.
//!
//! With a lane comes where the sender's table is (see [`crate::direct`]); it is kept for the lane in the other
//! direction.
//!
//! A departure, whatever its cause, is one thing: the process is no longer watched, our lane to it is
//! closed, its lane to us stays until it is empty; then it is reported.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use ironverbs_sys::cancel;
use ironverbs_sys::event::{Epoll, Event, Interest};
use ironverbs_sys::moment;
use ironverbs_sys::process::PidFd;
use ironverbs_sys::unix::Datagrams;
use parking_lot::{Mutex, RwLock};

use super::lanes::{Inbound, Outbound};
use super::ring::{Consumer, Producer};
use crate::direct::{Initiator, Remote, Watch as Hazards};
use crate::registry::{self, Membership, Peer};

/// How long the end of a program waits for a thread that is at a lane.
const LEAVING: Duration = Duration::from_millis(20);

/// Lanes from one process at a time; it needs one, or two when it has just lost one.
const LANES_OF_ONE: u32 = 4;

/// Locks are taken in this order: `making`, `inbound`, `watches`, `outbound`, a producer, `news`,
/// `deaths`; `remotes` and those of the hazards are taken for a moment, and none under them; the caller's own may be taken under `inbound` (in the call-back) and above a producer.
#[derive(Debug)]
pub(crate) struct LaneTable {
    epoll: Epoll,
    post: Arc<Datagrams>,
    making: Mutex<()>,
    inbound: moment::Mutex<Vec<Inbound>>,
    watches: Mutex<HashMap<u64, Watch>>,
    /// By slot.
    outbound: RwLock<Vec<Option<Arc<Outbound>>>>,
    news: Mutex<News>,
    is_news: AtomicBool,
    deaths: Mutex<Vec<Departure>>,
    /// Whether a lane may owe something.
    owing: Arc<AtomicBool>,
    is_death: AtomicBool,
    /// Where this process's table is: its descriptor's number and its name.
    own_table: OnceLock<(u32, u64)>,
    /// The tables of those who have a lane to us.
    remotes: Mutex<HashMap<u64, Arc<Remote>>>,
    /// What they touch by themselves.
    pub(crate) hazards: Hazards,
}

#[derive(Debug)]
struct Watch {
    peer: Peer,
    /// None for ourselves.
    pidfd: Option<PidFd>,
    accepted: u32,
}

#[derive(Debug, Default)]
struct News {
    arrived: Vec<Inbound>,
    departed: Vec<Departure>,
}

/// A process that is no end of a lane any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Departure {
    pub(crate) peer: Peer,
    /// It is dead and had not said that it would end.
    pub(crate) killed: bool,
}

/// Names a process in the epoll instance.
fn token(peer: &Peer) -> u64 {
    u64::from(peer.tenure) << 16 | u64::from(peer.slot)
}

impl LaneTable {
    pub(crate) fn new() -> io::Result<LaneTable> {
        Ok(LaneTable {
            epoll: Epoll::new()?,
            // In a child of fork(2) it is harmless: it has no name.
            post: Arc::new(Datagrams::unbound()?),
            making: Mutex::default(),
            inbound: moment::Mutex::default(),
            watches: Mutex::default(),
            outbound: RwLock::default(),
            news: Mutex::default(),
            is_news: AtomicBool::new(false),
            deaths: Mutex::default(),
            is_death: AtomicBool::new(false),
            owing: Arc::default(),
            own_table: OnceLock::new(),
            remotes: Mutex::default(),
            hazards: Hazards::default(),
        })
    }

    /// From now on peers are told where this process's table is, and theirs are looked at.
    pub(crate) fn announce(&self, table: (u32, u64)) {
        let _ = self.own_table.set(table);
    }

    pub(crate) fn announcement(&self) -> Option<(u32, u64)> {
        self.own_table.get().copied()
    }

    /// Readable when a process at the other end of a lane has died.
    pub(crate) fn epoll(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    pub(super) fn to(&self, member: &Membership, slot: u16) -> io::Result<Arc<Outbound>> {
        let peer = member.peer(slot).ok_or(io::ErrorKind::NotConnected)?;
        if let Some(lane) = self.existing(&peer) {
            return Ok(lane);
        }
        let _held = cancel::held();
        let _making = self.making.lock();
        if let Some(lane) = self.existing(&peer) {
            return Ok(lane);
        }
        let (producer, fd) = Producer::create()?;
        let own = member.peer(member.slot()).ok_or(io::ErrorKind::NotConnected)?;
        let initiator = Initiator::new((own.slot, own.tenure), producer.slots());
        let lane = Outbound::new(
            peer,
            producer,
            initiator,
            member.mailbox(slot)?,
            self.post.clone(),
            self.owing.clone(),
        );
        let lane = Arc::new(lane);
        if slot == member.slot() {
            let consumer = Consumer::map(fd).map_err(io::Error::other)?;
            let watch = Watch { peer, pidfd: None, accepted: 0 };
            self.watches.lock().insert(token(&peer), watch);
            self.hazards.add(&peer, consumer.slots());
            self.arrive(peer, consumer, None);
            self.meet(&peer, self.announcement());
            self.enter(lane.clone());
            return Ok(lane);
        }
        self.watch(member, &peer, 0)?;
        member.offer(&peer, fd.as_fd())?;
        self.enter(lane.clone());
        // It may have died while it was not yet known that we have a lane to it.
        if !self.watches.lock().contains_key(&token(&peer)) {
            self.withdraw(&peer);
            return Err(io::ErrorKind::NotConnected.into());
        }
        Ok(lane)
    }

    fn existing(&self, peer: &Peer) -> Option<Arc<Outbound>> {
        let lanes = self.outbound.read();
        let lane = lanes.get(usize::from(peer.slot))?.as_ref()?;
        (lane.peer == *peer && lane.is_alive()).then(|| lane.clone())
    }

    fn enter(&self, lane: Arc<Outbound>) {
        let mut lanes = self.outbound.write();
        let index = usize::from(lane.peer.slot);
        if lanes.len() <= index {
            lanes.resize_with(index + 1, || None);
        }
        if let Some(place) = lanes.get_mut(index) {
            *place = Some(lane.clone());
        }
        drop(lanes);
        // The table may have come before; or it comes later and finds the lane.
        let remote = self.remotes.lock().get(&token(&lane.peer)).cloned();
        if let Some(remote) = remote {
            lane.initiator.meet(remote);
        }
    }

    /// Looks at the peer's table, if it has one and we have one.
    fn meet(&self, peer: &Peer, table: Option<(u32, u64)>) {
        let Some((fd, id)) = table.filter(|_| self.announcement().is_some()) else { return };
        // Where the kernel does not let us look, packets do.
        let Ok(remote) = Remote::open(peer.pid, fd, id) else { return };
        let remote = Arc::new(remote);
        self.remotes.lock().insert(token(peer), remote.clone());
        if let Some(lane) = self.existing(peer) {
            lane.initiator.meet(remote);
        }
    }

    /// Takes a lane that the peer offers. False: it could not be taken.
    pub(crate) fn accept(
        &self,
        member: &Membership,
        peer: &Peer,
        fd: OwnedFd,
        table: Option<(u32, u64)>,
    ) -> bool {
        let Ok(consumer) = Consumer::map(fd) else { return false };
        match self.watch(member, peer, 1) {
            Ok(()) => {
                self.hazards.add(peer, consumer.slots());
                self.arrive(*peer, consumer, None);
                self.meet(peer, table);
            }
            // Dead already: what it sent before counts.
            Err(error) if error.kind() == io::ErrorKind::NotConnected => {
                let killed = !consumer.peer_is_leaving();
                self.arrive(*peer, consumer, Some(killed));
            }
            Err(_) => return false,
        }
        true
    }

    fn arrive(&self, peer: Peer, consumer: Consumer, departed: Option<bool>) {
        let lane = Inbound { slot: peer.slot, pid: peer.pid, consumer, peer, departed };
        self.news.lock().arrived.push(lane);
        self.is_news.store(true, Ordering::Release);
    }

    /// Has the process's death noticed; counts the lanes `accepted` from it.
    fn watch(&self, member: &Membership, peer: &Peer, accepted: u32) -> io::Result<()> {
        let mut watches = self.watches.lock();
        if let Some(watch) = watches.get_mut(&token(peer)) {
            if watch.accepted + accepted > LANES_OF_ONE {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            watch.accepted += accepted;
            return Ok(());
        }
        let pidfd = member.pidfd(peer)?;
        self.epoll.add(pidfd.as_fd(), token(peer), Interest::READ)?;
        watches.insert(token(peer), Watch { peer: *peer, pidfd: Some(pidfd), accepted });
        Ok(())
    }

    /// Finds the dead among those at the other ends.
    pub(crate) fn look_for_deaths(&self) {
        let mut events = [Event::EMPTY; 16];
        while let Ok(found @ 1..) = self.epoll.wait(&mut events, Some(Duration::ZERO)) {
            for event in events.iter().take(found) {
                let peer = self.watches.lock().get(&event.token()).map(|watch| watch.peer);
                if let Some(peer) = peer {
                    self.hazards.bury(&peer);
                    self.end(&peer, true);
                }
            }
            if found < events.len() {
                break;
            }
        }
    }

    /// Looks whether a process that is silent has become another program, which its pidfd does not tell.
    pub(crate) fn doubt(&self, member: &Membership, peer: &Peer) {
        if member.is_gone(peer) {
            self.hazards.bury(peer);
            self.end(peer, true);
        }
    }

    /// Finds the lanes that the other end closed, or broke.
    pub(crate) fn look_for_closed(&self) {
        let lanes: Vec<_> = self.outbound.read().iter().flatten().cloned().collect();
        for lane in lanes {
            if lane.producer.lock().is_closed() {
                self.depart(&lane.peer);
            }
        }
    }

    /// Has done with a process; at most once until there is a new lane to it or from it.
    pub(crate) fn depart(&self, peer: &Peer) {
        self.end(peer, false);
    }

    fn end(&self, peer: &Peer, dead: bool) {
        let Some(watch) = self.watches.lock().remove(&token(peer)) else { return };
        self.hazards.revoke(peer);
        self.remotes.lock().remove(&token(peer));
        if let Some(pidfd) = watch.pidfd {
            // A child by a raw clone(2) may hold a duplicate: closing alone would not end it.
            let _ = self.epoll.remove(pidfd.as_fd());
        }
        let leaving = self.withdraw(peer);
        let departure = Departure { peer: *peer, killed: dead && !leaving };
        self.news.lock().departed.push(departure);
        self.is_news.store(true, Ordering::Release);
    }

    /// Gives up the lane to the process. Whether that had said in it that it would end.
    fn withdraw(&self, peer: &Peer) -> bool {
        let lane = match self.outbound.write().get_mut(usize::from(peer.slot)) {
            Some(place) if place.as_ref().is_some_and(|lane| lane.peer == *peer) => place.take(),
            _ => None,
        };
        let Some(lane) = lane else { return false };
        let mut producer = lane.producer.lock();
        let leaving = producer.peer_is_leaving();
        producer.close();
        drop(producer);
        // It may be alive, and is to learn that we are done with it.
        lane.wake();
        lane.alive.store(false, Ordering::Release);
        leaving
    }

    pub(super) fn for_each_inbound(
        &self,
        member: &Membership,
        f: &mut dyn FnMut(&mut Inbound),
    ) -> bool {
        let Some(mut lanes) = self.inbound.try_lock() else { return false };
        if self.is_news.load(Ordering::Relaxed) {
            self.take_news(&mut lanes);
        }
        let mut index = 0;
        while let Some(lane) = lanes.get_mut(index) {
            f(lane);
            if lane.consumer.producer_waits() {
                self.wake(member, lane.slot);
            }
            let over = match lane.departed {
                Some(_) => lane.consumer.is_empty(),
                None => lane.consumer.is_over(),
            };
            if !over {
                index += 1;
                continue;
            }
            let _held = cancel::held();
            let mut lane = lanes.swap_remove(index);
            lane.consumer.close();
            match lane.departed {
                None => self.depart(&lane.peer),
                Some(killed) if lanes.iter().all(|other| other.peer != lane.peer) => {
                    self.report(Departure { peer: lane.peer, killed });
                }
                Some(_) => {}
            }
        }
        true
    }

    fn take_news(&self, lanes: &mut Vec<Inbound>) {
        let mut news = self.news.lock();
        self.is_news.store(false, Ordering::Relaxed);
        lanes.append(&mut news.arrived);
        let departed = std::mem::take(&mut news.departed);
        drop(news);
        for Departure { peer, killed } in departed {
            let of_peer = || lanes.iter().filter(|lane| lane.peer == peer);
            let killed = killed && !of_peer().any(|lane| lane.consumer.peer_is_leaving());
            if of_peer().next().is_none() {
                self.report(Departure { peer, killed });
            }
            for lane in lanes.iter_mut().filter(|lane| lane.peer == peer) {
                lane.departed = Some(killed);
            }
        }
    }

    fn report(&self, departure: Departure) {
        self.deaths.lock().push(departure);
        self.is_death.store(true, Ordering::Release);
    }

    pub(super) fn departures(&self) -> Vec<Departure> {
        if !self.is_death.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut deaths = self.deaths.lock();
        self.is_death.store(false, Ordering::Relaxed);
        std::mem::take(&mut deaths)
    }

    pub(super) fn wake(&self, member: &Membership, slot: u16) {
        if let Ok(name) = member.mailbox(slot) {
            registry::ding(&self.post, &name);
        }
    }

    pub(super) fn prepare_sleep(&self) -> bool {
        let quiet = self.all_quiet();
        if !quiet {
            self.awake();
        }
        quiet
    }

    fn all_quiet(&self) -> bool {
        let Some(mut lanes) = self.inbound.try_lock() else { return false };
        let news = || self.is_news.load(Ordering::Acquire) || self.is_death.load(Ordering::Acquire);
        if news() {
            return false;
        }
        for lane in lanes.iter_mut() {
            if !lane.consumer.prepare_sleep() || lane.departed.is_some() || lane.consumer.is_over()
            {
                return false;
            }
        }
        let mut broken = Vec::new();
        for lane in self.outbound.read().iter().flatten() {
            let Some(mut producer) = lane.producer.try_lock() else { return false };
            if producer.is_closed() {
                // The other end wrote nonsense, of which nobody tells us.
                broken.push(lane.peer);
                continue;
            }
            // With what is owed it is the same: no room, or it would be in the lane.
            if lane.owes() && !producer.is_waiting() || !producer.prepare_sleep() {
                return false;
            }
        }
        for peer in &broken {
            self.depart(peer);
        }
        broken.is_empty() && !news()
    }

    pub(super) fn waits_are_told(&self) -> bool {
        self.outbound
            .read()
            .iter()
            .flatten()
            .all(|lane| lane.producer.try_lock().is_some_and(|producer| !producer.waits_awake()))
    }

    pub(super) fn awake(&self) {
        for lane in self.inbound.lock().iter_mut() {
            lane.consumer.awake();
        }
        for lane in self.outbound.read().iter().flatten() {
            lane.producer.lock().awake();
        }
    }

    /// Tells all other ends that this process is about to end in good order. The lanes work on.
    pub(super) fn leave(&self) {
        // A thread that holds one of the locks holds it for a moment, unless it is stopped.
        for lane in self.outbound.read().iter().flatten() {
            if let Some(mut producer) = lane.producer.try_lock_for(LEAVING) {
                producer.leave();
            }
        }
        let Some(mut lanes) = self.inbound.try_lock_for(LEAVING) else { return };
        for lane in lanes.iter_mut() {
            lane.consumer.leave();
        }
        for lane in &mut self.news.lock().arrived {
            lane.consumer.leave();
        }
    }

    /// Whether something still waits for room that nobody else sends.
    pub(super) fn owes(&self) -> bool {
        self.owing.load(Ordering::Acquire)
    }

    /// Sends what found no room in lanes before. Whether any of it found some now.
    pub(super) fn pay(&self) -> bool {
        if !self.owing.load(Ordering::Relaxed) || !self.owing.swap(false, Ordering::AcqRel) {
            return false;
        }
        let mut any = false;
        for lane in self.outbound.read().iter().flatten().filter(|lane| lane.owes()) {
            any |= lane.pay();
            if lane.owes() {
                self.owing.store(true, Ordering::Release);
            }
        }
        any
    }

    /// Closes all lanes, for good. Gives the slots whose processes may want to know.
    pub(crate) fn close(&self) -> Vec<u16> {
        let mut slots = Vec::new();
        for lane in std::mem::take(&mut *self.outbound.write()).into_iter().flatten() {
            lane.alive.store(false, Ordering::Release);
            lane.producer.lock().close();
            slots.push(lane.peer.slot);
        }
        let arrived = std::mem::take(&mut self.news.lock().arrived);
        let lanes = std::mem::take(&mut *self.inbound.lock());
        for mut lane in lanes.into_iter().chain(arrived) {
            lane.consumer.close();
            slots.push(lane.slot);
        }
        slots.sort_unstable();
        slots.dedup();
        slots
    }
}
