//! The path to peers on this host: the transport's packets through shared-memory lanes instead of UDP.
//!
//! A queue pair decides when it learns its peer: it is local if the peer's address is one of this host's and its
//! number belongs to a living process of the group that takes lanes. The peer, by the same facts, decides alike. All
//! checks, errors and ordering are the transport's; what differs is the size of packets and that silence means nothing
//! while the peer's process lives, unless it says that it does not take our packets.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ironverbs_sys::{cancel, moment};
use ironverbs_transport::device::{ByReference, Device, Piece, Sink};
use ironverbs_transport::qp::{Candidate, Short};
use ironverbs_wire::{Gid, IbRoute, Packet, Path};
use parking_lot::{Mutex, MutexGuard};

use crate::Qp;
use crate::config::DataPath;
use crate::direct::Thing;
use crate::host::Inner;
use crate::link::Sender;
use crate::local::{Inbound, Lanes, Outbound, Producer};
use crate::progress::Now;
use crate::reference::{self, Cookie, Source};
use crate::registry::{self, Registry};
use crate::status::{Board, Wait, Waiting};
use crate::surroundings::Surroundings;

/// Payload bytes of a packet on a lane.
pub(crate) const LOCAL_PACKET: usize = 16 * 1024;

/// Records taken from one lane before the next has its turn.
const TURN: usize = 64;

/// A packet of a connected QP, from the BTH on.
const PACKET: u8 = 1;
/// A datagram: [`Envelope`], then the packet.
const DATAGRAM: u8 = 2;
/// A packet of a connected QP by reference: [`Source`], then the packet's headers.
const REFERENCE: u8 = 4;
/// A small SEND: [`ShortHead`], then the data.
const SHORT: u8 = 5;
/// An acknowledgement by itself: [`ShortHead`].
const SHORT_ACK: u8 = 6;
/// Packets to that QPN (4 bytes) are not taken.
const ABSENT: u8 = 3;

/// Bytes of the largest datagram in its envelope, headers included.
const LARGEST_DATAGRAM: usize = Envelope::LEN + 64 + 4096;

/// Bytes of a record that are looked at in private memory: all headers, and small packets whole.
pub(crate) const HEAD: usize = 128;

/// What the IP header would say, before a datagram.
struct Envelope(Path);

impl Envelope {
    const LEN: usize = 48;

    fn emit(&self, out: &mut [u8; Envelope::LEN]) {
        let Path { src, dst, traffic_class, hop_limit, flow_label, ib } = self.0;
        out[..16].copy_from_slice(&src.0);
        out[16..32].copy_from_slice(&dst.0);
        out[32..36].copy_from_slice(&flow_label.to_le_bytes());
        let IbRoute { slid, dlid, sl, grh } = ib.unwrap_or_default();
        let kind = u8::from(ib.is_some()) | u8::from(grh) << 1;
        out[36..40].copy_from_slice(&[traffic_class, hop_limit, kind, sl]);
        out[40..42].copy_from_slice(&slid.to_le_bytes());
        out[42..44].copy_from_slice(&dlid.to_le_bytes());
        out[44..].fill(0);
    }

    fn parse(bytes: &[u8]) -> Option<Envelope> {
        let (src, rest) = bytes.split_first_chunk()?;
        let (dst, rest) = rest.split_first_chunk()?;
        let (flow_label, rest) = rest.split_first_chunk()?;
        let [traffic_class, hop_limit, kind, sl, s0, s1, d0, d1, _, _, _, _, ..] = *rest else {
            return None;
        };
        let flow_label = u32::from_le_bytes(*flow_label) & 0xf_ffff;
        let ib = (kind & 1 != 0).then(|| IbRoute {
            slid: u16::from_le_bytes([s0, s1]),
            dlid: u16::from_le_bytes([d0, d1]),
            sl: sl & 0x0f,
            grh: kind & 2 != 0,
        });
        Some(Envelope(Path {
            src: Gid(*src),
            dst: Gid(*dst),
            traffic_class,
            hop_limit,
            flow_label,
            ib,
        }))
    }
}

/// Data of the longest [`Short`], which a line or a few hold.
pub(crate) const SHORTEST: usize = 256;

/// All of a [`Short`] but its data. In the byte order of the host, since both ends are on it.
struct ShortHead;

impl ShortHead {
    const LEN: usize = 20;

    const IMM: u32 = 1 << 24;
    const ACK: u32 = 1 << 25;
    const SOLICITED: u32 = 1 << 26;

    #[inline]
    fn emit(short: &Short<'_>) -> [u8; ShortHead::LEN] {
        let flag = |set: bool, flag| if set { flag } else { 0 };
        let flags = flag(short.imm.is_some(), ShortHead::IMM)
            | flag(short.ack.is_some(), ShortHead::ACK)
            | flag(short.solicited, ShortHead::SOLICITED);
        let mut out = [0; ShortHead::LEN];
        out[..4].copy_from_slice(&(short.dest_qpn | flags).to_ne_bytes());
        out[4..8].copy_from_slice(&short.psn.to_ne_bytes());
        out[8..12].copy_from_slice(&short.ack.unwrap_or_default().to_ne_bytes());
        out[12..16].copy_from_slice(&u32::from(short.pkey).to_ne_bytes());
        out[16..].copy_from_slice(&short.imm.unwrap_or_default());
        out
    }

    #[inline]
    fn parse<'a>(head: &[u8; ShortHead::LEN], payload: &'a [u8]) -> Short<'a> {
        let word = |at: usize| {
            let mut word = [0; 4];
            word.copy_from_slice(&head[at..at + 4]);
            u32::from_ne_bytes(word)
        };
        let first = word(0);
        Short {
            dest_qpn: first & 0xff_ffff,
            psn: word(4) & 0xff_ffff,
            ack: (first & ShortHead::ACK != 0).then(|| word(8) & 0xff_ffff),
            pkey: word(12) as u16,
            imm: (first & ShortHead::IMM != 0).then(|| word(16).to_ne_bytes()),
            solicited: first & ShortHead::SOLICITED != 0,
            payload,
        }
    }
}

/// Sends a small SEND, with its data from the list where there is one. False: nothing was sent, as the lane is full or
/// closed, or the memory may not be read.
pub(crate) fn send_short(
    lane: &Outbound,
    candidate: &Candidate<'_>,
    surroundings: &mut Surroundings<'_>,
) -> bool {
    let mut producer = lane.producer.lock();
    if producer.is_closed() {
        return false;
    }
    let Some(room) = producer.reserve(ShortHead::LEN + candidate.len) else { return false };
    let Some((head, mut rest)) = room.split_first_chunk_mut() else { return false };
    *head = ShortHead::emit(&candidate.short);
    if candidate.sges.is_empty() {
        if rest.len() != candidate.short.payload.len() {
            return false;
        }
        rest.copy_from_slice(candidate.short.payload);
    }
    for sge in candidate.sges {
        let Some((piece, after)) = rest.split_at_mut_checked(sge.len as usize) else {
            return false;
        };
        if sge.len > 0 && surroundings.gather(sge, 0, piece).is_err() {
            return false;
        }
        rest = after;
    }
    producer.commit(SHORT);
    wake(lane, producer);
    true
}

/// Sends an acknowledgement by itself. False: nothing was sent, as the lane is full or closed.
pub(crate) fn send_short_ack(lane: &Outbound, short: &Short<'_>) -> bool {
    let mut producer = lane.producer.lock();
    let sent = !producer.is_closed() && producer.push(SHORT_ACK, &ShortHead::emit(short));
    if sent {
        wake(lane, producer);
    }
    sent
}

/// QPs that found a lane full, to be sent for again when there is room.
#[derive(Debug, Default)]
pub(crate) struct Blocked {
    any: AtomicBool,
    qps: Mutex<Vec<Arc<Qp>>>,
}

impl Blocked {
    pub(crate) fn add(&self, qp: Option<Arc<Qp>>) {
        let mut qps = self.qps.lock();
        qps.extend(qp);
        self.any.store(true, Ordering::Release);
    }

    /// Whether there are any.
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Acquire)
    }

    /// Lets them try again. Whether any of them found all the room it needs: one that still waits must not keep its
    /// process from yielding or sleeping, or the receiver may never run.
    pub(crate) fn retry(&self, now: &mut Now<'_>) -> bool {
        if !self.any.load(Ordering::Relaxed) || !self.any.swap(false, Ordering::AcqRel) {
            return false;
        }
        let mut qps = std::mem::take(&mut *self.qps.lock());
        let tried = qps.len();
        for qp in qps.drain(..) {
            qp.settle(false, now);
        }
        let mut again = self.qps.lock();
        let done = again.len() < tried;
        // The list's room is kept for the next time.
        if again.is_empty() {
            *again = qps;
        }
        done
    }
}

impl Inner {
    pub(crate) fn registry(&self) -> Option<&Registry> {
        self.wire.get()?.registry.as_ref()
    }

    pub(crate) fn board(&self) -> Option<&Board> {
        self.wire.get()?.board.as_ref()
    }

    /// Tells others that a verb waits.
    pub(crate) fn waiting(&self, kind: Waiting, object: u32) -> Option<Wait<'_>> {
        self.board().map(|board| board.wait(kind, object))
    }

    pub(crate) fn lanes(&self) -> Option<Lanes<'_>> {
        self.registry().map(Registry::lanes)
    }

    /// The lane to the process that has `qpn`, if `dst` is this host and the process takes lanes.
    pub(crate) fn lane_to(&self, dst: &Gid, qpn: u32) -> Option<io::Result<Arc<Outbound>>> {
        if self.config.path.value == DataPath::Wire || !self.is_local(dst) {
            return None;
        }
        let (lanes, slot) = (self.lanes()?, registry::slot_of(qpn));
        lanes.capable(slot).then(|| lanes.to(slot))
    }

    /// Waits until no peer uses by itself what it was told of and is told of no more. Others are told what waits: the
    /// verb, and the number of its object.
    pub(crate) fn wait_for_peers(&self, thing: Thing, (verb, object): (Waiting, u32)) {
        if let Some(lanes) = self.lanes() {
            let tell = |pid| Some(self.waiting(verb, object)?.of(pid));
            lanes.wait_for_initiators(thing, None, &tell);
        }
    }

    /// The same, but at most for `limit`.
    pub(crate) fn wait_briefly(&self, thing: Thing, limit: Duration) {
        if let Some(lanes) = self.lanes() {
            lanes.wait_for_initiators(thing, Some(limit), &|_| None);
        }
    }

    /// Takes what has come by lanes, the beginnings of records by way of `head`. Whether there was anything,
    /// or may have been: another thread has the lanes for a moment, as it looks whether it may sleep.
    pub(crate) fn take_records(
        &self,
        head: &mut [u8; HEAD],
        mut take: impl FnMut(Arrival<'_>),
    ) -> bool {
        let Some(lanes) = self.lanes() else { return false };
        let mut any = false;
        let looked = lanes.for_each_inbound(&mut |inbound: &mut Inbound| {
            for _ in 0..TURN {
                // A lane that broke is taken away by its keeper.
                let Ok(Some(record)) = inbound.consumer.next() else { break };
                any = true;
                if matches!(record.kind, SHORT | SHORT_ACK) {
                    let has_message = record.kind == SHORT;
                    let short = record.array().map(|head| {
                        let payload = record.bytes().get(ShortHead::LEN..).unwrap_or_default();
                        ShortHead::parse(&head, payload)
                    });
                    take(Arrival::Short(inbound.slot, short, has_message));
                    inbound.consumer.release();
                    continue;
                }
                let copied = record.copy_prefix(head);
                let (slot, pid, kind) = (inbound.slot, inbound.pid, record.kind);
                let record =
                    Record { slot, pid, kind, head: &head[..copied], bytes: record.bytes() };
                take(Arrival::Record(&record));
                inbound.consumer.release();
            }
        });
        any || !looked
    }

    /// Tells a process that packets to `qpn` are not taken here.
    pub(crate) fn refuse(&self, slot: u16, qpn: u32) {
        let Some(Ok(lane)) = self.lanes().map(|lanes| lanes.to(slot)) else { return };
        let mut producer = lane.producer.lock();
        lane.send_surely(&mut producer, ABSENT, &qpn.to_le_bytes());
        wake(&lane, producer);
        self.see_to(&lane);
    }

    /// Gives the process in a slot a datagram that must arrive, while that process lives. False: there is no lane to it.
    pub(crate) fn post_datagram(&self, slot: u16, path: &Path, packet: &Packet<'_>) -> bool {
        let Some(lanes) = self.lanes().filter(|lanes| lanes.capable(slot)) else { return false };
        let Ok(lane) = lanes.to(slot) else { return false };
        let mut buffer = [0; LARGEST_DATAGRAM];
        let Some((envelope, room)) = buffer.split_first_chunk_mut() else { return false };
        Envelope(*path).emit(envelope);
        let headers = packet.emit_header(room);
        let end = headers + packet.payload.len();
        let Some(payload) = room.get_mut(headers..end) else { return false };
        payload.copy_from_slice(packet.payload);
        let mut producer = lane.producer.lock();
        if producer.is_closed() {
            return false;
        }
        lane.send_surely(&mut producer, DATAGRAM, &buffer[..Envelope::LEN + end]);
        wake(&lane, producer);
        self.see_to(&lane);
        true
    }

    /// Sees that somebody is awake when a full lane has room for what was left with it.
    pub(crate) fn see_to(&self, lane: &Outbound) {
        if lane.owes() {
            // A sleeper has told the receivers of the lanes that were full when it went to sleep, not of this one.
            self.kick.wake_sleeper();
        }
    }

    /// A process does not take packets to `qpn`: its QP is not there, or not ready. As on a network, silence then
    /// counts.
    pub(crate) fn refused(&self, slot: u16, qpn: u32) {
        // Not under the lock of the table: this may be the last that holds a QP, which then leaves the table.
        let qps: Vec<_> = self.qps.read().all().collect();
        for qp in qps {
            qp.refused(slot, qpn);
        }
    }

    /// Tells the QPs of processes that are gone.
    pub(crate) fn mourn(&self) {
        let Some(lanes) = self.lanes() else { return };
        for departure in lanes.departures() {
            let _held = cancel::held();
            let qps: Vec<_> = self.qps.read().all().collect();
            let now = self.now();
            for qp in qps {
                qp.lose_peer(&departure, now);
            }
        }
    }
}

/// What comes by a lane.
pub(crate) enum Arrival<'a> {
    /// From the process in a slot, and whether there is a SEND besides the acknowledgement; None: not well formed.
    Short(u16, Option<Short<'a>>, bool),
    Record(&'a Record<'a>),
}

/// A record that came by a lane.
pub(crate) struct Record<'a> {
    /// The sender's slot.
    pub(crate) slot: u16,
    /// The sender's process id.
    pub(crate) pid: u32,
    kind: u8,
    /// A private copy of its beginning.
    head: &'a [u8],
    /// All of it, where the sender may still write.
    bytes: &'a [u8],
}

/// What a record is.
pub(crate) enum Content<'a> {
    /// A packet of a connected QP.
    Packet(Packet<'a>),
    /// A packet of a connected QP whose payload is elsewhere.
    Reference(Source, Packet<'a>),
    /// A datagram and what its IP header would have said.
    Datagram(Path, Packet<'a>),
    /// Packets to that QPN are not taken by the sender of this.
    Absent(u32),
    /// Nothing that this version knows, or nothing well formed.
    Nonsense,
}

impl Record<'_> {
    #[inline(always)]
    pub(crate) fn content(&self) -> Content<'_> {
        match self.kind {
            PACKET => self.packet(0).map_or(Content::Nonsense, Content::Packet),
            DATAGRAM => {
                let envelope = Envelope::parse(self.head);
                match (envelope, self.packet(Envelope::LEN)) {
                    (Some(Envelope(path)), Some(packet)) => Content::Datagram(path, packet),
                    _ => Content::Nonsense,
                }
            }
            REFERENCE => match (Source::parse(self.head), self.packet(Source::LEN)) {
                (Some(source), Some(packet)) if packet.payload.is_empty() => {
                    Content::Reference(source, packet)
                }
                _ => Content::Nonsense,
            },
            ABSENT => match self.head.first_chunk() {
                Some(qpn) => Content::Absent(u32::from_le_bytes(*qpn)),
                None => Content::Nonsense,
            },
            _ => Content::Nonsense,
        }
    }

    /// The packet from byte `at` on. Its headers are parsed from the private copy; of a long one only the payload,
    /// which nothing depends on, stays where it is.
    #[inline(always)]
    fn packet(&self, at: usize) -> Option<Packet<'_>> {
        if !self.bytes.len().is_multiple_of(4) {
            return None;
        }
        let Ok(mut packet) = Packet::parse(self.head.get(at..)?) else { return None };
        if self.bytes.len() > self.head.len() {
            let start = at + Packet::header_len(packet.service, packet.op);
            packet.payload =
                self.bytes.get(start..self.bytes.len() - usize::from(packet.bth.pad))?;
        }
        Some(packet)
    }
}

fn wake(lane: &Outbound, producer: moment::MutexGuard<'_, Producer>) {
    let wake = producer.needs_wake();
    drop(producer);
    if wake {
        lane.wake();
    }
}

/// A lane as the sink of a connected QP.
pub(crate) struct LaneSink<'a> {
    lane: &'a Outbound,
    /// Taken with the first packet: what is done without packets does not keep others from the lane.
    producer: Option<moment::MutexGuard<'a, Producer>>,
    cookie: &'a Cookie,
    kind: u8,
    full: bool,
}

impl<'a> LaneSink<'a> {
    pub(crate) fn new(lane: &'a Outbound, cookie: &'a Cookie) -> LaneSink<'a> {
        LaneSink { lane, producer: None, cookie, kind: PACKET, full: false }
    }

    /// Wakes the receiver if it sleeps. Whether the lane was full.
    pub(crate) fn finish(self) -> bool {
        if let Some(producer) = self.producer {
            wake(self.lane, producer);
        }
        self.full
    }

    fn room(&mut self, len: usize) -> Option<&mut [u8]> {
        let producer = self.producer.get_or_insert_with(|| self.lane.producer.lock());
        // Of a closed lane the keeper tells, as of a death.
        let closed = producer.is_closed();
        let room = producer.reserve(len);
        self.full = room.is_none() && !closed;
        room
    }
}

impl Sink for LaneSink<'_> {
    fn reserve(&mut self, _: &Path, _: u32, len: usize) -> Option<&mut [u8]> {
        self.kind = PACKET;
        self.room(len)
    }

    fn commit(&mut self) {
        if let Some(producer) = &mut self.producer {
            producer.commit(self.kind);
        }
    }

    fn by_reference(&self) -> Option<ByReference> {
        Some(reference::LIMITS)
    }

    fn reserve_reference(
        &mut self,
        _: &Path,
        _: u32,
        len: usize,
        pieces: &[Piece],
    ) -> Option<&mut [u8]> {
        let cookie = self.cookie;
        // The headers of the longest packet with data are behind it in what is looked at privately.
        const { assert!(Source::LEN + 12 + 4 + 16 + 4 + 4 <= HEAD) };
        self.kind = REFERENCE;
        let room = self.room(Source::LEN + len)?;
        let (source, headers) = room.split_first_chunk_mut()?;
        Source::emit(cookie, pieces, source);
        Some(headers)
    }
}

/// A lane as the sink of a QP that ends: what finds no room there is left with the lane, which sends it later.
pub(crate) struct LastSink<'a> {
    lane: &'a Outbound,
    producer: moment::MutexGuard<'a, Producer>,
    /// The record that waits for room.
    late: Option<Vec<u8>>,
}

impl<'a> LastSink<'a> {
    /// What is longer, the data of READs that nobody may want any more, is dropped where there is no room.
    const LONGEST: usize = 64;

    pub(crate) fn new(lane: &'a Outbound) -> LastSink<'a> {
        LastSink { lane, producer: lane.producer.lock(), late: None }
    }

    /// Wakes the receiver if it sleeps.
    pub(crate) fn finish(self) {
        wake(self.lane, self.producer);
    }
}

impl Sink for LastSink<'_> {
    fn reserve(&mut self, _: &Path, _: u32, len: usize) -> Option<&mut [u8]> {
        if self.producer.is_closed() {
            return None;
        }
        self.late = None;
        if len > LastSink::LONGEST {
            return if self.lane.owes() { None } else { self.producer.reserve(len) };
        }
        Some(self.late.insert(vec![0; len]))
    }

    fn commit(&mut self) {
        match self.late.take() {
            Some(record) => self.lane.send_surely(&mut self.producer, PACKET, &record),
            None => self.producer.commit(PACKET),
        }
    }
}

/// The sink of a UD QP: each datagram goes by lane or by UDP.
pub(crate) struct DatagramSink<'a> {
    host: &'a Inner,
    sender: MutexGuard<'a, Sender>,
    /// The lane of the datagram at hand, and the datagram behind its envelope.
    lane: Option<Arc<Outbound>>,
    buffer: [u8; LARGEST_DATAGRAM],
    len: usize,
    full: bool,
}

impl<'a> DatagramSink<'a> {
    pub(crate) fn new(host: &'a Inner, sender: MutexGuard<'a, Sender>) -> DatagramSink<'a> {
        DatagramSink {
            host,
            sender,
            lane: None,
            buffer: [0; LARGEST_DATAGRAM],
            len: 0,
            full: false,
        }
    }

    /// Starts to send for a device on this interface.
    pub(crate) fn begin(&mut self, ifindex: u32) {
        self.sender.begin(ifindex);
    }

    /// Sends what is gathered. Whether a lane was full.
    pub(crate) fn finish(mut self) -> bool {
        self.sender.flush();
        self.full
    }
}

impl Sink for DatagramSink<'_> {
    fn reserve(&mut self, path: &Path, dest_qpn: u32, len: usize) -> Option<&mut [u8]> {
        let lane = self.host.lane_to(&path.dst, dest_qpn).and_then(Result::ok);
        self.lane = lane.filter(|lane| !lane.producer.lock().is_closed());
        let Some(lane) = &self.lane else { return self.sender.reserve(path, dest_qpn, len) };
        self.len = Envelope::LEN + len;
        if lane.producer.lock().reserve(self.len).is_none() {
            self.full = true;
            return None;
        }
        let (envelope, packet) = self.buffer.get_mut(..self.len)?.split_first_chunk_mut()?;
        Envelope(*path).emit(envelope);
        Some(packet)
    }

    fn commit(&mut self) {
        let Some(lane) = &self.lane else { return self.sender.commit() };
        let mut producer = lane.producer.lock();
        // Another thread may have taken the room meanwhile: a datagram may be lost.
        producer.push(DATAGRAM, &self.buffer[..self.len]);
        wake(lane, producer);
    }
}
