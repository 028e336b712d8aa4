//! SENDs and WRITEs as they arrive in sequence, on RC, XRC and UC (IBA 9.7.4.1, 9.8.2).

use ironverbs_wire::{Op, Packet};

use super::completion::local;
use super::reference::Body;
use super::requester::MAX_MESSAGE;
use super::{Qp, sg};
use crate::device::{Device, Operation};
use crate::verbs::{Access, Fault, VendorErr, Wc, WcFlags, WcOpcode, WcStatus};

/// The message in progress.
#[derive(Copy, Clone, Debug, Default)]
pub(super) enum Message {
    /// None: a first or only packet is next.
    #[default]
    None,
    /// A SEND into the receive in hand.
    Send { received: u64 },
    /// A WRITE of `len` bytes at `va`.
    Write { va: u64, rkey: u32, len: u32, received: u32 },
}

/// Why a packet is not carried out.
#[derive(Copy, Clone, Debug)]
pub(super) enum Refusal {
    /// It needs a receive request and there is none. Nothing was changed.
    NotReady,
    /// It makes no sense here: sequence of operations, length, or an operation not enabled.
    Invalid,
    /// An operation that this queue pair does not allow.
    Denied,
    /// An atomic whose address is no multiple of 8.
    Alignment,
    /// More READs and atomics than agreed.
    Resources,
    /// It may not access that memory.
    Access(Fault),
    /// The XRC domain has no SRQ of that number (IBA A14).
    Queue,
    /// The message is too long for the receive in hand.
    TooLong,
    /// The memory of the receive in hand is not accessible.
    Local(Fault),
    /// Its payload, named by reference, could not be fetched. Nothing was completed.
    Elsewhere,
    /// The rkey that the message asks to invalidate may not be.
    Invalidate,
}

impl Refusal {
    /// What a requester of this host is told.
    pub(super) fn reason(self) -> VendorErr {
        match self {
            Refusal::Denied => VendorErr::PeerQpAccess,
            Refusal::Alignment | Refusal::Access(Fault::Alignment) => VendorErr::PeerAlignment,
            Refusal::Resources => VendorErr::PeerResources,
            Refusal::Access(Fault::Key) => VendorErr::PeerKey,
            Refusal::Access(Fault::Pd) => VendorErr::PeerPd,
            Refusal::Access(Fault::Range) => VendorErr::PeerRange,
            Refusal::Access(Fault::Access) => VendorErr::PeerRegionAccess,
            Refusal::Access(Fault::Memory) => VendorErr::PeerMemory,
            Refusal::Queue => VendorErr::PeerQueue,
            Refusal::TooLong => VendorErr::PeerRecvTooSmall,
            Refusal::Local(_) => VendorErr::PeerRecvMemory,
            Refusal::Invalidate => VendorErr::PeerInvalidate,
            Refusal::NotReady | Refusal::Invalid | Refusal::Elsewhere => VendorErr::None,
        }
    }
}

impl Message {
    /// Whether `op` may be the next packet (IBA 9.7.4.1).
    pub(super) fn admits(self, op: Op) -> bool {
        let starts = op.is_first() || op.is_only();
        match self {
            Message::None => starts,
            Message::Send { .. } => op.is_send() && !starts,
            Message::Write { .. } => op.is_write() && !starts,
        }
    }
}

impl Qp {
    /// Carries out the next packet of a SEND or WRITE. True if it ends the message.
    pub(super) fn place<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        body: Body<'_>,
        dev: &mut D,
    ) -> Result<bool, Refusal> {
        let op = packet.op;
        let mtu = self.mtu.bytes();
        let fits = match (body, body.len()) {
            (Body::Elsewhere(_), 0) => false,
            (Body::Elsewhere(_), len) => op.is_last() || len.is_multiple_of(mtu),
            (Body::Here(_), len) if !op.is_last() => len == mtu,
            (Body::Here(_), 0) => op.is_only(),
            (Body::Here(_), len) => len <= mtu,
        };
        if !self.responder.message.admits(op) || !fits {
            return Err(Refusal::Invalid);
        }
        if op.is_send() {
            self.place_send(packet, body, dev)
        } else if op.is_write() {
            self.place_write(packet, body, dev)
        } else {
            Err(Refusal::Invalid)
        }
    }

    fn place_send<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        body: Body<'_>,
        dev: &mut D,
    ) -> Result<bool, Refusal> {
        let before = match self.responder.message {
            Message::Send { received } => received,
            _ => 0,
        };
        if !self.receives.acquire(dev) {
            return Err(Refusal::NotReady);
        }
        let Some((_, sges)) = self.receives.current() else { return Err(Refusal::NotReady) };
        let received = before + body.len() as u64;
        if received > sg::length(sges).min(MAX_MESSAGE) {
            return Err(Refusal::TooLong);
        }
        body.scatter(dev, sges, before)?;
        if !packet.op.is_last() {
            self.responder.message = Message::Send { received };
            return Ok(false);
        }
        if let Some(rkey) = packet.ieth {
            dev.invalidate(rkey).map_err(|_| Refusal::Invalidate)?;
        }
        self.responder.message = Message::None;
        let wc = self.received_wc(packet, WcOpcode::Recv, received as u32);
        self.complete_receive(wc, dev);
        Ok(true)
    }

    fn place_write<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        body: Body<'_>,
        dev: &mut D,
    ) -> Result<bool, Refusal> {
        let (va, rkey, len, before) = match (self.responder.message, packet.reth) {
            (Message::Write { va, rkey, len, received }, _) => (va, rkey, len, received),
            (_, Some(reth)) => {
                self.check_reth(Access::REMOTE_WRITE, reth.rkey, reth.va, reth.len, dev)?;
                (reth.va, reth.rkey, reth.len, 0)
            }
            (_, None) => return Err(Refusal::Invalid),
        };
        let received = u64::from(before) + body.len() as u64;
        let ends = packet.op.is_last();
        // IBA 9.7.4.1: all that was announced, and no more.
        if received > len.into() || (ends && received != u64::from(len)) {
            return Err(Refusal::Invalid);
        }
        if packet.op.has_imm() && !self.receives.acquire(dev) {
            return Err(Refusal::NotReady);
        }
        body.write(dev, rkey, va.wrapping_add(before.into()))?;
        if !ends {
            self.responder.message = Message::Write { va, rkey, len, received: received as u32 };
            return Ok(false);
        }
        self.responder.message = Message::None;
        if self.watch.is_on() {
            dev.ended(Operation::RemoteWrite, Some(len.into()));
        }
        if packet.op.has_imm() {
            let wc = self.received_wc(packet, WcOpcode::RecvWriteWithImm, len);
            self.complete_receive(wc, dev);
        }
        Ok(true)
    }

    /// Checks a request against what the QP and the region grant. Of zero bytes the rkey does not
    /// count (IBA 9.7.4.1).
    pub(super) fn check_reth<D: Device + ?Sized>(
        &self,
        need: Access,
        rkey: u32,
        va: u64,
        len: u32,
        dev: &mut D,
    ) -> Result<(), Refusal> {
        // IBA 9.7.4.1: operations not enabled are invalid requests.
        if !self.attr.access.contains(need) {
            return Err(Refusal::Denied);
        }
        if u64::from(len) > MAX_MESSAGE {
            return Err(Refusal::Invalid);
        }
        if len == 0 {
            return Ok(());
        }
        dev.check_remote(rkey, va, len.into(), need).map_err(Refusal::Access)
    }

    fn received_wc(&self, packet: &Packet<'_>, opcode: WcOpcode, byte_len: u32) -> Wc {
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::WITH_IMM, packet.imm.is_some());
        flags.set(WcFlags::WITH_INV, packet.ieth.is_some());
        Wc {
            opcode,
            byte_len,
            flags,
            imm: packet.imm.unwrap_or_default(),
            invalidated_rkey: packet.ieth.unwrap_or_default(),
            solicited: packet.bth.solicited,
            ..self.receive_wc()
        }
    }

    /// How the receive in hand ends when a packet for it is refused; None: it stays.
    pub(super) fn receive_error(refusal: Refusal) -> Option<(WcStatus, VendorErr)> {
        match refusal {
            Refusal::NotReady
            | Refusal::Invalid
            | Refusal::Denied
            | Refusal::Alignment
            | Refusal::Resources
            | Refusal::Access(_)
            | Refusal::Queue
            | Refusal::Elsewhere => None,
            Refusal::TooLong => Some((WcStatus::LocLenErr, VendorErr::RecvTooSmall)),
            Refusal::Local(fault) => Some((WcStatus::LocProtErr, local(fault))),
            Refusal::Invalidate => Some((WcStatus::LocAccessErr, VendorErr::InvalidateRefused)),
        }
    }
}
