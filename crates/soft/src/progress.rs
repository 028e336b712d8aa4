//! Progress: packets in, timers, and the thread that works when nobody polls.

use std::cell::RefCell;
use std::io::{self, Write};
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use ironverbs_sys::cancel;
use ironverbs_sys::event::{Epoll, Event, EventFd, EventMode, Interest, spawn_thread};
use ironverbs_sys::netlink::Monitor;
use ironverbs_sys::udp::{Datagram, RxBatch};
use ironverbs_transport::device::Instant;
use ironverbs_transport::qp::Short;
use ironverbs_transport::verbs::QpType;
use ironverbs_wire::icrc::{self, Verdict};
use ironverbs_wire::mad::{GSI_QPN, mad_of};
use ironverbs_wire::{Gid, ICRC_LEN, Packet, Path, ib, peek_dest_qpn};

use crate::cm::{self, Came};
use crate::cq::moderation;
use crate::fabric;
use crate::host::{AT_EXIT, Clock, Inner};
use crate::link::max_ident;
use crate::management::{self, SMI_QPN, steward};
use crate::multicast;
use crate::neighbours::{Arrival, Content, HEAD, Record};
use crate::qp::Left;
use crate::registry::Registry;
use crate::surroundings::Pull;
use crate::{Device, Host, Qp};

/// Datagrams taken in one round; each may hold many packets.
const DATAGRAMS: usize = 8;

const UDP_HEADER: usize = 8;

/// Rounds for which the socket is looked at in each after packets came by it.
const WARM: u32 = 256;

/// Rounds that may pass without a look at the socket while lanes are all there is: a look costs a system call.
const SKIP: u32 = 32;

/// What polls that found nothing may cost before the core is offered to others: one that looked at the socket counts
/// as `SKIP`. On a machine whose cores are all busy the peer may be waiting for this very core.
const IDLE_COST: u32 = 64;

/// Rounds in which what came before a queue pair fails is looked for.
const LAST_ROUNDS: u32 = 64;

/// How long the background thread leaves a polling program alone before it looks again.
const NAP: u64 = 500_000;

/// How long the background thread looks for more before it sleeps.
const LINGER: u64 = 20_000;

/// How long after a failure to open the wire it is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// What came from the network.
#[derive(Debug, Default)]
pub(crate) struct ReceiveCounters {
    pub(crate) packets: AtomicU64,
    /// Shorter than a packet can be, or cut by the kernel.
    pub(crate) truncated: AtomicU64,
    pub(crate) bad_icrc: AtomicU64,
    pub(crate) malformed: AtomicU64,
    /// For a queue pair that does not exist.
    pub(crate) unknown_qp: AtomicU64,
    /// UD packets to an address that the queue pair's device does not have.
    pub(crate) wrong_address: AtomicU64,
    /// For another process of this host, and handed on.
    pub(crate) forwarded: AtomicU64,
}

impl ReceiveCounters {
    pub(crate) fn unknown_qp(&self) {
        count(&self.unknown_qp);
    }
}

/// The receiving side. Whoever holds its lock makes progress.
#[derive(Debug)]
pub(crate) struct Engine {
    batch: RxBatch,
    /// QPs that owe acknowledgements from the round before.
    owing: Vec<Arc<Qp>>,
    /// Rounds for which the socket is looked at in each: packets came by it lately.
    warm: u32,
    /// Rounds since the socket was looked at.
    skipped: u32,
    idle: u32,
    /// Room for the beginning of a record.
    head: [u8; HEAD],
    /// The QP that was looked up last.
    last: Weak<Qp>,
}

impl Engine {
    pub(crate) fn new() -> Engine {
        Engine {
            batch: RxBatch::new(DATAGRAMS),
            owing: Vec::new(),
            warm: 0,
            skipped: 0,
            idle: 0,
            head: [0; HEAD],
            last: Weak::new(),
        }
    }
}

impl Engine {
    fn looks_at_socket(&mut self) -> bool {
        self.warm = self.warm.saturating_sub(1);
        self.skipped += 1;
        let looks = self.warm > 0 || self.skipped >= SKIP;
        if looks {
            self.skipped = 0;
        }
        looks
    }
}

impl Inner {
    /// Progress on the thread of a program that polls.
    pub(crate) fn poll_inline(&self) {
        // Polls are counted to be seen to rise: two threads that overwrite each other's count do no harm.
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Relaxed);
        self.progress_inline();
    }

    /// Sends what was put off.
    pub(crate) fn flush(&self) {
        let Some(qps) = self.qps.try_read_for(AT_EXIT) else { return };
        let qps: Vec<_> = qps.all().collect();
        let now = self.clock.now();
        for qp in qps {
            qp.settle_at_exit(now);
        }
    }

    pub(crate) fn progress_inline(&self) -> bool {
        let Some(mut engine) = self.engine.try_lock() else {
            // Somebody else is at it.
            std::hint::spin_loop();
            return false;
        };
        let did = self.round(&mut engine, true);
        let cost = if engine.skipped == 0 { SKIP } else { 1 };
        engine.idle = if did { 0 } else { engine.idle + cost };
        let spare = engine.idle >= IDLE_COST;
        if spare {
            engine.idle = 0;
        }
        drop(engine);
        if spare {
            thread::yield_now();
        }
        did
    }

    /// Takes all that has come by now, for who is about to forget what it is for.
    pub(crate) fn take_what_came(&self) {
        if self.registry().is_none() {
            return;
        }
        // Somebody who sends without end must not keep us.
        for _ in 0..LAST_ROUNDS {
            // A thread that is at it has what came before, or leaves it to us.
            let Some(mut engine) = self.engine.try_lock_for(AT_EXIT) else { return };
            engine.warm = engine.warm.max(2);
            if !self.round(&mut engine, false) {
                return;
            }
            drop(engine);
            // Who has the lanes meanwhile may need this very core.
            thread::yield_now();
        }
    }

    /// One round: acknowledgements owed, packets, timers. Whether anything was done.
    ///
    /// A program that polls gets its completions before acknowledgements are sent: those wait for its next
    /// request, to leave with it in one call, or for the next round.
    fn round(&self, engine: &mut Engine, defer: bool) -> bool {
        let registry = self.wire.get().and_then(|wire| wire.registry.as_ref());
        let Some(registry) = registry else { return self.run_timers(self.clock.now()) };
        let mut did = false;
        let mut now = Now::of(&self.clock);
        if !engine.owing.is_empty() {
            // Most have left with a request meanwhile.
            for qp in engine.owing.drain(..).filter(|qp| qp.owes()) {
                qp.settle(false, &mut now);
            }
            did = true;
        }
        did |= self.fail_overrun() | self.fail_removed() | self.blocked.retry(&mut now);
        did |= self.lanes().is_some_and(|lanes| lanes.pay());
        let looks = engine.looks_at_socket();
        // What comes by the network may lead to anything, as timers may.
        let _held = looks.then(cancel::held);
        let Engine { batch, owing, head, last, .. } = engine;
        let mut receiver = Receiver {
            host: self,
            group: Some(registry),
            ifindex: 0,
            now,
            current: None,
            left: Left::Nothing,
            last,
            owing,
            defer,
        };
        did |= self.take_records(head, |arrival| match arrival {
            Arrival::Short(slot, Some(short), has_message) => {
                receiver.short(slot, short, has_message);
            }
            Arrival::Short(_, None, _) => count(&self.received.malformed),
            Arrival::Record(record) => receiver.record(record),
        });
        self.mourn();
        // Silence counts only up to a moment before which everything that came has been taken: a thread that was off the
        // processor finds the answers it waited for in the socket.
        let mut heard = None;
        if looks {
            let before = self.clock.now();
            // An error is the network's (ICMP) or the descriptor's; the retries of the transport deal with both.
            let received = registry.socket().recv_some(batch, DATAGRAMS).unwrap_or(0);
            if received > 0 {
                receiver.now = Now::of(&self.clock);
                batch.messages().for_each(|datagram| receiver.datagram(&datagram));
                engine.warm = WARM;
                did = true;
            }
            heard = (received < DATAGRAMS).then_some(before);
        }
        receiver.finish();
        if !engine.owing.is_empty() {
            // SYNC POINT: the background thread says that it is about to sleep, then looks under this lock whether
            // anything is owed. One of the two sees the other: a program that polls may stop to.
            self.kick.wake_sleeper();
        }
        heard.is_some_and(|heard| self.run_timers(heard)) || did
    }

    /// Takes what has come to QP1's socket, which all processes of the group read.
    pub(crate) fn take_management(&self, batch: &mut RxBatch) {
        let Some(registry) = self.registry() else { return };
        let mut owing = Vec::new();
        let mut receiver = Receiver {
            host: self,
            group: Some(registry),
            ifindex: 0,
            now: Now::of(&self.clock),
            current: None,
            left: Left::Nothing,
            last: &mut Weak::new(),
            owing: &mut owing,
            defer: false,
        };
        // Whoever sends without end must not keep us: what is left makes the descriptor readable again.
        for _ in 0..DATAGRAMS {
            let received = registry.management_socket().recv_some(batch, DATAGRAMS).unwrap_or(0);
            batch.messages().for_each(|datagram| receiver.datagram(&datagram));
            if received < DATAGRAMS {
                break;
            }
        }
        receiver.finish();
    }

    /// Does what the dead have left to be done.
    fn inherit(self: &Arc<Self>, registry: &Registry) {
        let estates = registry.take_estates();
        if !estates.is_empty() {
            // Which addresses are this host's decides what is done; one that only stays has not looked yet.
            let _ = self.follow_interfaces();
        }
        for (slot, wills) in estates {
            self.cm.execute(self, slot, &wills);
        }
    }

    /// Takes a packet that did not come from the socket.
    pub(crate) fn take_packet(&self, path: &Path, src_port: u16, packet: &[u8]) {
        let mut owing = Vec::new();
        let mut receiver = Receiver {
            host: self,
            group: None,
            ifindex: 0,
            now: Now::of(&self.clock),
            current: None,
            left: Left::Nothing,
            last: &mut Weak::new(),
            owing: &mut owing,
            defer: false,
        };
        receiver.packet(path, src_port, packet);
        receiver.finish();
    }

    pub(crate) fn run_timers(&self, now: Instant) -> bool {
        let mut did = self.fail_overrun() | self.fail_removed();
        while let Some((deadline, qpn)) = self.timers.pop(now) {
            if qpn == cm::TIMER {
                self.cm.timeout(self, now);
                continue;
            }
            if qpn == fabric::TIMER {
                self.fabric.timeout(self, now);
                continue;
            }
            if qpn == management::TIMER {
                management::timeout(self, now);
                continue;
            }
            if qpn == steward::TIMER {
                self.steward.timeout(self);
                continue;
            }
            if qpn == fabric::sa::TIMER {
                self.fabric.sa.timeout(self, now);
                continue;
            }
            if qpn == moderation::TIMER {
                self.moderated.timeout(self, now);
                continue;
            }
            let qp = self.qps.read().get(qpn);
            if let Some(qp) = qp {
                qp.timer(deadline, now);
                did = true;
            }
        }
        did
    }

    /// Sets a timer for a QP, and sees that somebody is awake when it is due.
    pub(crate) fn add_timer(&self, deadline: Instant, qpn: u32) {
        self.timers.add(deadline, qpn);
        self.kick.wake_before(deadline);
    }

    /// A CQ was armed: a program is about to sleep, and only the background thread can wake it.
    pub(crate) fn armed(&self) {
        if self.armed.fetch_add(1, Ordering::SeqCst) == 0 {
            self.kick.wake_if_napping();
        }
    }

    /// An armed CQ fired or went.
    pub(crate) fn disarmed(&self) {
        self.armed.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The time, read when it is first asked for.
pub(crate) struct Now<'a> {
    clock: &'a Clock,
    read: Option<Instant>,
}

impl Now<'_> {
    pub(crate) fn of(clock: &Clock) -> Now<'_> {
        Now { clock, read: None }
    }

    pub(crate) fn get(&mut self) -> Instant {
        *self.read.get_or_insert_with(|| self.clock.now())
    }
}

/// Takes the packets of a round to their queue pairs.
struct Receiver<'a> {
    host: &'a Inner,
    /// None for packets that another process handed on: they are not handed on again.
    group: Option<&'a Registry>,
    /// The interface that packets arrived on; 0: not known.
    ifindex: u32,
    now: Now<'a>,
    /// The QP of the last packet, to be settled when one for another comes.
    current: Option<Arc<Qp>>,
    /// What is left to do for it.
    left: Left,
    /// The QP that was looked up last.
    last: &'a mut Weak<Qp>,
    owing: &'a mut Vec<Arc<Qp>>,
    defer: bool,
}

impl Receiver<'_> {
    fn datagram(&mut self, datagram: &Datagram<'_>) {
        if datagram.truncated {
            count(&self.host.received.truncated);
            return;
        }
        self.ifindex = datagram.ifindex;
        for packet in datagram.segments() {
            self.packet(&datagram.path, datagram.src_port, packet);
        }
    }

    fn packet(&mut self, path: &Path, src_port: u16, bytes: &[u8]) {
        let counters = &self.host.received;
        count(&counters.packets);
        if ib::is_datagram(bytes) {
            return self.infiniband(path, src_port, bytes);
        }
        // Hosts of a subnet hear each other only in its own format.
        if self.host.subnet.is_some() {
            return count(&counters.malformed);
        }
        let Some(qpn) = peek_dest_qpn(bytes) else { return count(&counters.truncated) };
        if qpn == GSI_QPN {
            return self.management(path, src_port, bytes);
        }
        if qpn == multicast::QPN {
            return self.multicast(path, src_port, bytes);
        }
        if !self.select(qpn) {
            return self.stranger(qpn, path, src_port, bytes);
        }
        if let Some(packet) = self.verify(path, src_port, bytes) {
            self.deliver(path, &packet);
        }
    }

    /// An InfiniBand packet, which came by the way of `from`.
    fn infiniband(&mut self, from: &Path, src_port: u16, bytes: &[u8]) {
        let counters = &self.host.received;
        let Some(subnet) = &self.host.subnet else { return count(&counters.malformed) };
        let Some(qpn) = peek_dest_qpn(bytes) else { return count(&counters.truncated) };
        let known = qpn <= GSI_QPN || qpn == multicast::QPN || self.select(qpn);
        if !known {
            return self.stranger(qpn, from, src_port, bytes);
        }
        let (path, body) = match ib::open(bytes) {
            Ok(opened) => opened,
            Err(ib::OpenError::Malformed) => return count(&counters.malformed),
            Err(ib::OpenError::Vcrc | ib::OpenError::Icrc) => return count(&counters.bad_icrc),
        };
        let Some(path) = subnet.arrived(from.src.to_ip(), from.dst.to_ip(), &path) else {
            return count(&counters.wrong_address);
        };
        let Ok(packet) = Packet::parse(body) else { return count(&counters.malformed) };
        match qpn {
            SMI_QPN | GSI_QPN => match management::mad_in(&packet) {
                Some(mad) if qpn == GSI_QPN && management::is_cm(mad) => {
                    self.gmp(&path, from, src_port, bytes, &packet);
                }
                Some(mad) => {
                    let came = Came { path: from, src_port, bytes };
                    management::take(self.host, &path, &packet, mad, Some(&came));
                }
                None => count(&counters.malformed),
            },
            multicast::QPN => self.group_packet(&path, from, src_port, bytes, &packet),
            _ => self.deliver(&path, &packet),
        }
    }

    /// The packet, if it is intact.
    fn verify<'b>(&self, path: &Path, src_port: u16, bytes: &'b [u8]) -> Option<Packet<'b>> {
        let counters = &self.host.received;
        let port = self.host.config.udp_port.value;
        if icrc::verify(path, src_port, port, bytes, max_ident(src_port)) == Verdict::Bad {
            count(&counters.bad_icrc);
            return None;
        }
        // `verify` finds packets without room for the ICRC bad.
        let body = bytes.len().checked_sub(ICRC_LEN).and_then(|len| bytes.get(..len))?;
        let packet = Packet::parse(body).ok();
        if packet.is_none() {
            count(&counters.malformed);
        }
        packet
    }

    /// A packet for QP1: the connection manager's, of this process or another.
    fn management(&mut self, path: &Path, src_port: u16, bytes: &[u8]) {
        let Some(packet) = self.verify(path, src_port, bytes) else { return };
        self.gmp(path, path, src_port, bytes, &packet);
    }

    /// The packet that `bytes` are and that came by the way of `from`.
    fn gmp(&mut self, path: &Path, from: &Path, src_port: u16, bytes: &[u8], packet: &Packet<'_>) {
        let Ok(mad) = mad_of(packet) else { return count(&self.host.received.malformed) };
        let came = Came { path: from, src_port, bytes };
        let ours =
            self.group.is_none_or(|group| cm::is_ours(self.host, group, path, &came, packet, mad));
        match ours {
            true => self.host.cm.receive(self.host, path, packet.bth.pkey, mad),
            false => count(&self.host.received.forwarded),
        }
    }

    /// A packet for every QP that is attached to the group.
    fn multicast(&mut self, path: &Path, src_port: u16, bytes: &[u8]) {
        let members = self.host.groups.members(&path.dst, self.ifindex);
        if members.is_empty() {
            let joined =
                |group: &Registry| group.forward_group(path, self.ifindex, src_port, bytes);
            let counters = &self.host.received;
            return match self.group.map_or(0, joined) {
                0 => count(&counters.unknown_qp),
                _ => count(&counters.forwarded),
            };
        }
        let Some(packet) = self.verify(path, src_port, bytes) else { return };
        for qp in members.iter().filter(|qp| qp.hears(path, &packet)) {
            qp.handle_packet(&packet, path, udp_len(&packet), self.now.get());
        }
    }

    /// A packet of an InfiniBand multicast group. The host got it once, whatever processes have members.
    fn group_packet(
        &mut self,
        path: &Path,
        from: &Path,
        src_port: u16,
        bytes: &[u8],
        packet: &Packet<'_>,
    ) {
        let devices = self.host.present_devices();
        let place = |device: &Arc<Device>| device.place().map(|place| Gid::from_ip(place.address));
        let device = devices.iter().find(|device| place(device) == Some(from.dst));
        let Some(ifindex) = device.map(|device| device.ifindex()) else {
            return count(&self.host.received.unknown_qp);
        };
        let members = self.host.groups.members(&path.dst, ifindex);
        let elsewhere = |group: &Registry| {
            group.forward_subnet_group(&path.dst, ifindex, from, src_port, bytes)
        };
        if self.group.map_or(0, elsewhere) == 0 && members.is_empty() {
            return count(&self.host.received.unknown_qp);
        }
        for qp in members.iter().filter(|qp| qp.hears(path, packet)) {
            qp.handle_packet(packet, path, udp_len(packet), self.now.get());
        }
    }

    /// Gives the current QP a packet.
    fn deliver(&mut self, path: &Path, packet: &Packet<'_>) {
        let Some(qp) = &self.current else { return };
        if qp.qp_type() == QpType::Ud && !qp.context().device().has_gid(&path.dst) {
            return count(&self.host.received.wrong_address);
        }
        qp.handle_packet(packet, path, udp_len(packet), self.now.get());
    }

    /// A record that came by a lane.
    fn record(&mut self, record: &Record<'_>) {
        match record.content() {
            Content::Packet(packet) => self.connected(record.slot, &packet, None),
            Content::Reference(source, packet) => {
                self.connected(record.slot, &packet, Some(Pull { pid: record.pid, source }));
            }
            Content::Datagram(path, packet)
                if path.ib.is_some() && packet.bth.dest_qpn <= GSI_QPN =>
            {
                match management::mad_in(&packet).copied() {
                    Some(mad) if packet.bth.dest_qpn == GSI_QPN && management::is_cm(&mad) => {
                        self.host.cm.receive(self.host, &path, packet.bth.pkey, &mad);
                    }
                    Some(mad) => management::take(self.host, &path, &packet, &mad, None),
                    None => count(&self.host.received.malformed),
                }
            }
            Content::Datagram(path, packet) if packet.bth.dest_qpn == GSI_QPN => {
                // A copy: the sender may still write where this is.
                match mad_of(&packet).copied() {
                    Ok(mad) => self.host.cm.receive(self.host, &path, packet.bth.pkey, &mad),
                    Err(_) => count(&self.host.received.malformed),
                }
            }
            Content::Datagram(path, packet) => {
                if self.select(packet.bth.dest_qpn) {
                    self.deliver(&path, &packet);
                }
            }
            Content::Absent(qpn) => self.host.refused(record.slot, qpn),
            Content::Nonsense => count(&self.host.received.malformed),
        }
    }

    /// A packet of a connected QP of the process in `slot`, its payload to be fetched where there is a `pull`.
    fn connected(&mut self, slot: u16, packet: &Packet<'_>, pull: Option<Pull>) {
        let qpn = packet.bth.dest_qpn;
        let taken = self.select(qpn)
            && self
                .current
                .as_ref()
                .is_some_and(|qp| qp.handle_record(slot, packet, pull, &mut self.now));
        if !taken {
            self.host.refuse(slot, qpn);
        }
    }

    /// A short message from the process in `slot`.
    fn short(&mut self, slot: u16, mut short: Short<'_>, has_message: bool) {
        if let Some(qp) = self.choose(short.dest_qpn)
            && let Some(left) = qp.handle_short(slot, &mut short, has_message)
        {
            self.left = self.left.max(left);
            return;
        }
        if let Some(packet) = short.acknowledgement() {
            self.connected(slot, &packet, None);
        }
        if has_message {
            self.connected(slot, &short.request(), None);
        }
    }

    /// Makes the QP of that number the current one, of which everything may have changed; false when there is none.
    fn select(&mut self, qpn: u32) -> bool {
        let found = self.choose(qpn).is_some();
        self.left = Left::Unknown;
        found
    }

    /// Makes the QP of that number the current one.
    fn choose(&mut self, qpn: u32) -> Option<&Arc<Qp>> {
        if self.current.as_ref().is_none_or(|qp| qp.qpn() != qpn) {
            self.finish();
            self.current = self.last.upgrade().filter(|qp| qp.is(qpn));
            if self.current.is_none() {
                self.current = self.host.qps.read().get(qpn);
                *self.last = self.current.as_ref().map(Arc::downgrade).unwrap_or_default();
            }
        }
        self.current.as_ref()
    }

    /// A packet that is for nobody here: GRO may have merged it with packets of ours.
    #[cold]
    fn stranger(&mut self, qpn: u32, path: &Path, src_port: u16, bytes: &[u8]) {
        match self.group {
            Some(registry) if !self.host.qps.read().is_ours(qpn) => {
                count(&self.host.received.forwarded);
                registry.forward(qpn, path, src_port, bytes);
            }
            _ => count(&self.host.received.unknown_qp),
        }
    }

    fn finish(&mut self) {
        let Some(qp) = self.current.take() else { return };
        let left = match std::mem::replace(&mut self.left, Left::Nothing) {
            Left::Nothing => return,
            Left::Acks if self.defer => Left::Acks,
            Left::Acks | Left::Unknown => qp.settle(self.defer, &mut self.now),
        };
        if left == Left::Acks && !self.owing.iter().any(|other| Arc::ptr_eq(other, &qp)) {
            self.owing.push(qp);
        }
    }
}

/// The UDP length field of the packet's datagram.
fn udp_len(packet: &Packet<'_>) -> u16 {
    let body = Packet::header_len(packet.service, packet.op) + packet.payload.len();
    let len = UDP_HEADER + body + usize::from(packet.bth.pad) + ICRC_LEN;
    u16::try_from(len).unwrap_or(u16::MAX)
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// Wakes the background thread.
#[derive(Debug)]
pub(crate) struct Kick {
    fd: EventFd,
    /// When the thread wakes by itself: 0 while it is awake.
    wakes_at: AtomicU64,
    napping: AtomicBool,
    stop: AtomicBool,
}

impl Kick {
    pub(crate) fn new() -> io::Result<Kick> {
        let fd = EventFd::new(EventMode::Counter, true)?;
        Ok(Kick {
            fd,
            wakes_at: AtomicU64::new(0),
            napping: AtomicBool::new(false),
            stop: AtomicBool::new(false),
        })
    }

    pub(crate) fn wake(&self) {
        let _ = self.fd.signal();
    }

    /// Wakes the thread if it would sleep beyond `deadline`.
    fn wake_before(&self, deadline: Instant) {
        // SYNC POINT: the thread publishes when it will wake, then looks at the timers once more; we add the timer,
        // then look when it will wake. One of the two sees the other.
        if self.wakes_at.load(Ordering::SeqCst) > deadline.0 {
            self.wakes_at.store(0, Ordering::SeqCst);
            self.wake();
        }
    }

    /// Wakes the thread if it sleeps, not from a nap.
    pub(crate) fn wake_sleeper(&self) {
        // A look first: this is asked far more often than anybody sleeps.
        if self.wakes_at.load(Ordering::SeqCst) != 0 && self.wakes_at.swap(0, Ordering::SeqCst) != 0
        {
            self.wake();
        }
    }

    fn wake_if_napping(&self) {
        if self.napping.swap(false, Ordering::SeqCst) {
            self.wake();
        }
    }
}

const TOKEN_KICK: u64 = 0;
const TOKEN_MONITOR: u64 = 1;
const TOKEN_REGISTRY: u64 = 2;
const TOKEN_CONTROL: u64 = 3;
const TOKEN_SOCKET: u64 = 4;
const TOKEN_MANAGEMENT: u64 = 5;

/// The background thread, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Background {
    kick: Arc<Kick>,
}

impl Background {
    pub(crate) fn start(host: &Arc<Inner>) -> io::Result<Background> {
        let kick = host.kick.clone();
        let worker = Worker::new(host)?;
        spawn_thread("ironverbs", move || worker.run())?;
        Ok(Background { kick })
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.kick.stop.store(true, Ordering::Release);
        self.kick.wake();
    }
}

struct Worker {
    /// Held only while there is something to do: a Host that nobody uses any more goes.
    host: Weak<Inner>,
    kick: Arc<Kick>,
    monitor: Monitor,
    /// Kick, interfaces, registry.
    control: Epoll,
    /// All of `control`, and the socket.
    everything: Epoll,
    has_wire: bool,
    batch: RefCell<RxBatch>,
    /// When the wire was last tried to be opened.
    tried: std::time::Instant,
    polls: u64,
}

impl Worker {
    fn new(host: &Arc<Inner>) -> io::Result<Worker> {
        let (control, everything) = (Epoll::new()?, Epoll::new()?);
        let (monitor, kick) = (Monitor::new()?, host.kick.clone());
        control.add(kick.fd.as_fd(), TOKEN_KICK, Interest::READ)?;
        control.add(monitor.as_fd(), TOKEN_MONITOR, Interest::READ)?;
        everything.add(control.as_fd(), TOKEN_CONTROL, Interest::READ)?;
        let host = Arc::downgrade(host);
        let tried = std::time::Instant::now();
        let batch = RefCell::new(RxBatch::new(DATAGRAMS));
        let (has_wire, polls) = (false, 0);
        Ok(Worker { host, kick, monitor, control, everything, has_wire, batch, tried, polls })
    }

    fn run(mut self) {
        // Peers see by it that the process lives; no others are carried out by themselves.
        let table = self.host.upgrade().and_then(|host| host.table.get().cloned());
        let _life = table.and_then(|table| table.keep_alive().ok());
        while !self.kick.stop.load(Ordering::Acquire) {
            let Some(host) = self.host.upgrade() else { return };
            // A defect that shows here must not leave the device dead without a word.
            let turn = std::panic::AssertUnwindSafe(|| self.turn(host));
            if std::panic::catch_unwind(turn).is_err() {
                let _ = writeln!(
                    io::stderr(),
                    "ironverbs: a defect in the background thread; it goes on"
                );
            }
        }
    }

    fn turn(&mut self, host: Arc<Inner>) {
        self.add_wire(&host);
        self.retry_wire(&host);
        host.unpublished.publish();
        let polls = host.polls.load(Ordering::Relaxed);
        // A round that takes long is one that is under way.
        let polled = std::mem::replace(&mut self.polls, polls) != polls || host.engine.is_locked();
        if polled && host.armed.load(Ordering::Acquire) == 0 {
            self.nap(host);
        } else if self.work(&host) {
            host.unpublished.publish();
            self.sleep(host);
        }
    }

    fn add_wire(&mut self, host: &Arc<Inner>) {
        if let (false, Some(wire)) = (self.has_wire, host.wire.get()) {
            let Some(registry) = &wire.registry else { return };
            let service = self.control.add(registry.service_fd(), TOKEN_REGISTRY, Interest::READ);
            let socket =
                self.everything.add(registry.socket().as_fd(), TOKEN_SOCKET, Interest::READ);
            // One process is woken for a MAD, not all of them, as far as the kernel can.
            let interest = Interest::READ | Interest::EXCLUSIVE;
            let management = registry.management_socket().as_fd();
            let management = self.control.add(management, TOKEN_MANAGEMENT, interest);
            self.has_wire = service.is_ok() && socket.is_ok() && management.is_ok();
            // Those whose slots were found to be free when we came.
            host.inherit(registry);
        }
    }

    /// The port may have become free.
    fn retry_wire(&mut self, host: &Arc<Inner>) {
        if !self.has_wire && self.tried.elapsed() >= RETRY {
            self.tried = std::time::Instant::now();
            // A failure is told once, and not by this thread again.
            let _ = Host(host.clone()).join();
        }
    }

    /// Leaves a polling program alone for a while.
    fn nap(&self, host: Arc<Inner>) {
        self.kick.napping.store(true, Ordering::SeqCst);
        // SYNC POINT: whoever arms a CQ counts it, then looks whether we nap; we say that we nap, then look at the
        // count. One of the two sees the other.
        if host.armed.load(Ordering::SeqCst) == 0 {
            // Timers do not end a nap: the program that polls runs them, or we do when it is over.
            drop(host);
            self.wait_for_control(Some(Duration::from_nanos(NAP)));
        }
        self.kick.napping.store(false, Ordering::SeqCst);
    }

    /// Does what there is to do, until there has been nothing for a moment. False: the program polls by itself.
    fn work(&self, host: &Inner) -> bool {
        let mut last = host.clock.now();
        loop {
            let did = host.round(&mut host.engine.lock(), false);
            let now = host.clock.now();
            if did {
                last = now;
            } else if host.clock.real(now.since(last)) >= LINGER {
                return true;
            }
            if host.polls.load(Ordering::Relaxed) != self.polls
                && host.armed.load(Ordering::Acquire) == 0
            {
                return false;
            }
            std::hint::spin_loop();
        }
    }

    /// Sleeps until a packet, a timer or something else comes.
    fn sleep(&self, host: Arc<Inner>) {
        // SYNC POINT: see Kick::wake_before.
        let wakes_at = host.timers.next();
        self.kick.wakes_at.store(wakes_at.0, Ordering::SeqCst);
        let next = host.timers.next().min(wakes_at);
        let wait = next.since(host.clock.now());
        let timeout = (next.0 != u64::MAX).then(|| Duration::from_nanos(host.clock.real(wait)));
        let timeout =
            if self.has_wire { timeout } else { Some(timeout.unwrap_or(RETRY).min(RETRY)) };
        if self.may_sleep(&host) {
            drop(host);
            self.sleep_until(timeout);
        } else {
            self.kick.wakes_at.store(0, Ordering::SeqCst);
        }
        if let Some(host) = self.host.upgrade()
            && let Some(lanes) = host.lanes()
        {
            lanes.awake();
        }
    }

    /// Has everybody wake us from here on. False: there is something to do first.
    fn may_sleep(&self, host: &Inner) -> bool {
        let Some(lanes) = host.lanes() else { return true };
        // Those who send by lanes; what came before is taken first.
        if !lanes.prepare_sleep() {
            return false;
        }
        // SYNC POINT: see the end of a round.
        let engine = host.engine.lock();
        if !engine.owing.is_empty() {
            return false;
        }
        // The receivers of full lanes. Those who wait for room try once more: their lane may have been found full, told of
        // by another thread, and then found to have room for somebody else.
        !host.blocked.any()
            || !host.blocked.retry(&mut Now::of(&host.clock)) && lanes.waits_are_told()
    }

    fn sleep_until(&self, timeout: Option<Duration>) {
        let mut events = [Event::EMPTY; 2];
        let n = self.everything.wait(&mut events, timeout).unwrap_or(0);
        self.kick.wakes_at.store(0, Ordering::SeqCst);
        if events.iter().take(n).any(|event| event.token() == TOKEN_CONTROL) {
            self.wait_for_control(Some(Duration::ZERO));
        }
    }

    fn wait_for_control(&self, timeout: Option<Duration>) {
        let mut events = [Event::EMPTY; 4];
        let n = self.control.wait(&mut events, timeout).unwrap_or(0);
        self.kick.wakes_at.store(0, Ordering::SeqCst);
        if let Some(host) = self.host.upgrade() {
            self.control_events(&host, events.get(..n).unwrap_or_default());
        }
    }

    fn control_events(&self, host: &Arc<Inner>, events: &[Event]) {
        for event in events {
            match event.token() {
                TOKEN_KICK => {
                    let _ = host.kick.fd.try_read();
                }
                // A listing that fails is made up for by the next change, or the next look.
                TOKEN_MONITOR if self.monitor.drain().unwrap_or(true) => {
                    let _ = host.follow_interfaces();
                    host.cm.look_for_removals();
                    host.fabric.look(host);
                    host.steward.look(host);
                }
                TOKEN_REGISTRY => self.serve_registry(host),
                TOKEN_MANAGEMENT => host.take_management(&mut self.batch.borrow_mut()),
                _ => {}
            }
        }
    }

    fn serve_registry(&self, host: &Arc<Inner>) {
        let Some(registry) = host.wire.get().and_then(|wire| wire.registry.as_ref()) else {
            return;
        };
        registry.service(&mut |path, src_port, packet| host.take_packet(path, src_port, packet));
        let dead = registry.take_dead();
        let any_dead = !dead.is_empty();
        host.cm.mourn(host, &dead);
        host.fabric.look(host);
        if any_dead {
            host.steward.look(host);
        }
        host.inherit(registry);
    }
}
