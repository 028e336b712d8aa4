//! The queue pair.
//!
//! A [`Qp`] is a requester, which turns send requests into packets and completes them as they are
//! acknowledged, and a responder, which carries out the packets of the peer's requester. The two
//! share the address of the peer and the state of IBA 10.3.1, and nothing else.

mod acks;
mod completion;
mod counters;
mod direct;
mod emit;
mod error;
mod local;
mod memory;
mod message;
mod modify;
mod post;
mod recv_queue;
mod reference;
mod requester;
mod requests;
mod resources;
mod responder;
mod responses;
mod send_queue;
mod seq;
mod sg;
mod short;
mod timers;
mod transition;
mod ud;
mod watch;
mod window;

use ironverbs_wire::{Mtu, Packet, Path, Service};

pub use self::counters::{Carried, Counters, Direct, Dropped};
pub use self::direct::Accepts;
pub use self::error::{ModifyError, PostError};
pub use self::memory::{QpMemory, Queues};
pub use self::send_queue::Payload;
pub use self::short::{Candidate, Short};

use self::recv_queue::RecvQueue;
use self::reference::Body;
use self::requester::Requester;
use self::responder::Responder;
use self::send_queue::SendQueue;
use self::watch::Watch;
use crate::device::{Device, Instant, QpEvent, Sink};
use crate::verbs::{QpAttr, QpCap, QpState, QpType, VendorErr, WcStatus};

/// What a queue pair is created with and keeps.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct QpConfig {
    /// Number of the QP, 24 bits.
    pub qpn: u32,
    /// Transport service.
    pub qp_type: QpType,
    /// Sizes of the queues. Kept as given: the device has rounded and limited them.
    pub cap: QpCap,
    /// Every send completes visibly, signaled or not.
    pub sq_sig_all: bool,
    /// Receives come from a shared receive queue. Of no account on XRC.
    pub srq: bool,
}

/// What [`Qp::transmit`] would do.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Nothing.
    None,
    /// Acknowledge. May wait a moment: a later acknowledgement covers this one.
    AcksOnly,
    /// Send requests, responses or NAKs, or flush requests that were posted after an error.
    Data,
}

/// Payload bytes of a full packet: the path MTU, for UD that of the port, or what the device chose.
#[derive(Copy, Clone, Debug)]
struct PacketSize {
    bytes: usize,
    /// The path MTU does not change it.
    fixed: bool,
}

impl PacketSize {
    fn bytes(self) -> usize {
        self.bytes
    }
}

impl From<Mtu> for PacketSize {
    fn from(mtu: Mtu) -> Self {
        PacketSize { bytes: mtu.bytes(), fixed: false }
    }
}

impl Default for PacketSize {
    fn default() -> Self {
        Mtu::M1024.into()
    }
}

/// A queue pair of any type.
#[derive(Debug)]
pub struct Qp {
    config: QpConfig,
    /// What was set by modify; `attr.state` is the state.
    attr: QpAttr,
    /// To the peer. Not of UD.
    path: Path,
    pkey: u16,
    mtu: PacketSize,
    /// The peer's process is known to live, see [`Qp::hold_timeouts`].
    held: bool,
    /// See [`Qp::uses_locals`].
    uses_locals: bool,
    watch: Watch,
    sends: SendQueue,
    receives: RecvQueue,
    requester: Requester,
    responder: Responder,
    counters: Counters,
}

impl Qp {
    /// A queue pair in the state RESET.
    pub fn new(config: QpConfig) -> Qp {
        Qp::of(config, Queues::of_library(&config))
    }

    fn of(config: QpConfig, queues: Queues) -> Qp {
        Qp {
            config,
            attr: QpAttr { cap: config.cap, ..QpAttr::default() },
            path: Path::default(),
            pkey: 0,
            mtu: PacketSize::default(),
            held: false,
            uses_locals: false,
            watch: Watch::default(),
            sends: queues.sends,
            receives: queues.receives,
            requester: Requester::default(),
            responder: Responder::default(),
            counters: Counters::default(),
        }
    }

    /// Number of the QP.
    pub fn qpn(&self) -> u32 {
        self.config.qpn
    }

    /// Transport service.
    pub fn qp_type(&self) -> QpType {
        self.config.qp_type
    }

    /// State, as of the last call.
    pub fn state(&self) -> QpState {
        self.attr.state
    }

    /// The attributes, as `ibv_query_qp(3)` tells them.
    pub fn query(&self) -> QpAttr {
        QpAttr { sq_draining: self.is_draining(), ..self.attr }
    }

    /// The path to the peer and its QPN, once the transition to RTR has given them; None on UD.
    pub fn peer(&self) -> Option<(&Path, u32)> {
        let connected = self.config.qp_type != QpType::Ud
            && !matches!(self.attr.state, QpState::Reset | QpState::Init);
        connected.then_some((&self.path, self.attr.dest_qpn))
    }

    /// What the QP counted since it was created.
    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Sets the MTU of the port, which limits UD messages (IBA 9.8.3.1). Other types take theirs
    /// from the path MTU attribute.
    pub fn set_ud_mtu(&mut self, mtu: Mtu) {
        if self.config.qp_type == QpType::Ud {
            self.mtu = PacketSize { bytes: mtu.bytes(), fixed: true };
        }
    }

    /// Cuts messages into packets of `bytes` bytes from now to RESET, whatever the path MTU, which
    /// is still what queries tell: for a path to the peer that is no network. Both ends must do so
    /// before the first packet. Not of UD; no effect while requests are under way, nor for 0 bytes.
    pub fn set_packet_size(&mut self, bytes: usize) {
        if self.config.qp_type != QpType::Ud && bytes > 0 && !self.requester.is_busy(&self.sends) {
            self.mtu = PacketSize { bytes, fixed: true };
        }
    }

    /// From now on, to RESET at the latest, silence says nothing of the peer: its process is known
    /// to live, and a process in a debugger is slow, not dead. The local ACK timeout does not run, no
    /// probes are sent, and nobody needs to know the time but for the pause after an RNR NAK.
    pub fn hold_timeouts(&mut self) {
        self.held = true;
    }

    /// Ends [`hold_timeouts`](Qp::hold_timeouts): what is under way is waited for from `now` on.
    pub fn release_timeouts(&mut self, now: Instant) {
        if std::mem::take(&mut self.held) {
            self.requester.timers.restart(now);
        }
    }

    /// The oldest packet that waits for an acknowledgement, by a number that no other has before RESET; None if none waits.
    pub fn unacknowledged(&self) -> Option<u64> {
        self.requester.is_waiting().then(|| self.requester.una.number())
    }

    /// The local ACK timeout in nanoseconds; None if it is infinite.
    pub fn ack_timeout(&self) -> Option<u64> {
        self.requester.timers.timeout()
    }

    /// The peer's process is gone for good, without a farewell: what was asked of it fails, the QP
    /// moves to ERR and flushes, and says so ([`QpEvent::Fatal`]). No effect on UD and on a QP that
    /// has no peer.
    pub fn lose_peer<D: Device + ?Sized>(&mut self, dev: &mut D) {
        if self.peer().is_none() || self.attr.state == QpState::Err {
            return;
        }
        if self.config.qp_type.is_reliable() && !self.sends.is_empty() {
            // As when the retries are used up (IBA 9.9.2), only that nobody has to wait for it.
            self.fail_send(WcStatus::RetryExcErr, VendorErr::PeerKilled, dev);
        } else {
            self.responder.forget();
            self.enter_error(dev);
        }
        dev.event(QpEvent::Fatal);
    }

    /// The responder is known to have carried out every request before the one with this PSN, as if
    /// an acknowledgement had said so. What does not fit what was sent is ignored.
    pub fn presume_received<D: Device + ?Sized>(&mut self, psn: u32, now: Instant, dev: &mut D) {
        if self.config.qp_type.is_reliable() && self.sends_requests() {
            let bound = self.requester.una.near(psn);
            if bound > self.requester.una && bound <= self.requester.sent {
                self.acknowledge(bound, now, dev);
            }
        }
    }

    /// The PSN of the request that the responder waits for: all before it have been carried out.
    pub fn expected_psn(&self) -> u32 {
        self.responder.expected.psn()
    }

    /// Takes a packet addressed to this QP whose ICRC was right. `path` is the packet's own: its
    /// source is the sender. `udp_len` is the UDP length field, which a UD receiver is told.
    ///
    /// What does not belong here is dropped and counted.
    pub fn handle_packet<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        path: &Path,
        udp_len: u16,
        now: Instant,
        dev: &mut D,
    ) {
        self.take_packet(packet, Body::Here(packet.payload), path, udp_len, now, dev);
    }

    /// As [`handle_packet`](Qp::handle_packet), of a packet that has its headers only, and whose payload of `len`
    /// bytes `dev` can fetch ([`Device::pull`]). It stands for as many packets as it takes to send that by value.
    pub fn handle_reference<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        len: u32,
        path: &Path,
        now: Instant,
        dev: &mut D,
    ) {
        if !self.config.qp_type.is_reliable() || packet.op.is_response() {
            self.counters.dropped.service += 1;
            return;
        }
        self.take_packet(packet, Body::Elsewhere(len), path, 0, now, dev);
    }

    fn take_packet<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        body: Body<'_>,
        path: &Path,
        udp_len: u16,
        now: Instant,
        dev: &mut D,
    ) {
        if packet.service != self.service() {
            self.counters.dropped.service += 1;
            return;
        }
        // IBA 9.6.1: the 15 bits of the key agree, and one of the two is a full member.
        let pkey = packet.bth.pkey;
        if (pkey ^ self.pkey) & 0x7fff != 0 || (pkey | self.pkey) & 0x8000 == 0 {
            self.counters.dropped.pkey += 1;
            return;
        }
        if self.config.qp_type == QpType::Ud {
            return self.receive_datagram(packet, path, udp_len, dev);
        }
        // IBA 9.6.1: a connected QP hears its peer only.
        if path.src != self.path.dst || path.dst != self.path.src {
            self.counters.dropped.peer += 1;
            return;
        }
        let qp_type = self.config.qp_type;
        match packet.op.is_response() {
            true if qp_type.has_requester() => self.handle_response(packet, now, dev),
            false if qp_type.has_responder() => self.handle_request(packet, body, dev),
            _ => self.counters.dropped.service += 1,
        }
    }

    /// Sends what there is to send, as far as the window and `sink` allow: what the responder owes
    /// first, in PSN order, then requests; a lone acknowledgement behind them.
    pub fn transmit<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        now: Instant,
        dev: &mut D,
        sink: &mut S,
    ) {
        self.flush_posted(dev);
        if self.owes_response() {
            if self.transmit_responses(dev, sink) {
                self.transmit_requests(now, dev, sink);
            }
        } else {
            // A lone acknowledgement is shorter than any request: behind them it fits their batch.
            self.transmit_requests(now, dev, sink);
            self.transmit_responses(dev, sink);
        }
    }

    /// Sends what the responder owes and no request: for the end of a QP. False if the sink is full.
    pub fn transmit_owed<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        dev: &mut D,
        sink: &mut S,
    ) -> bool {
        self.transmit_responses(dev, sink) && !self.owes_ack()
    }

    /// What [`transmit`](Qp::transmit) would do.
    pub fn output(&self) -> Output {
        if self.has_flushable() || self.owes_response() || self.can_send() {
            Output::Data
        } else if self.owes_ack() {
            Output::AcksOnly
        } else {
            Output::None
        }
    }

    /// When [`handle_timeout`](Qp::handle_timeout) wants to be called, unless a packet arrives
    /// before. Changes with every other call.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.request_deadline()
    }

    /// Does what is due at `now`; harmless if nothing is.
    pub fn handle_timeout<D: Device + ?Sized>(&mut self, now: Instant, dev: &mut D) {
        self.handle_request_timeout(now, dev);
    }

    fn service(&self) -> Service {
        match self.config.qp_type {
            QpType::Rc => Service::Rc,
            QpType::Uc => Service::Uc,
            QpType::Ud => Service::Ud,
            QpType::XrcSend | QpType::XrcRecv => Service::Xrc,
        }
    }
}
