//! Unreliable datagrams (IBA 9.8.3): one packet per message, from and to anyone.

use ironverbs_wire::{Bth, Deth, Packet, Path, grh};

use super::completion::local;
use super::send_queue::Data;
use super::{Qp, emit, sg};
use crate::device::{Device, Sink};
use crate::verbs::{QpState, SendFlags, VendorErr, Wc, WcFlags, WcStatus};

/// A Q_Key with this bit set in a request stands for the QP's own (IBA 10.2.5).
const QKEY_OWN: u32 = 0x8000_0000;

impl Qp {
    pub(super) fn transmit_datagrams<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        dev: &mut D,
        sink: &mut S,
    ) {
        while self.attr.state == QpState::Rts && !self.sends.is_empty() {
            let head = self.sends.head();
            let checked = self.check_datagram(head, dev);
            let sent = checked.and_then(|()| self.emit_datagram(head, dev, sink));
            match sent {
                Ok(true) => {
                    self.requester.next = self.requester.next.plus(1);
                    self.requester.sent = self.requester.next;
                    self.complete_send(dev);
                }
                Ok(false) => return,
                Err((status, why)) => self.fail_send(status, why, dev),
            }
        }
    }

    fn check_datagram<D: Device + ?Sized>(
        &self,
        index: u64,
        dev: &mut D,
    ) -> Result<(), (WcStatus, VendorErr)> {
        // IBA 9.8.3.1: the message is one packet.
        if self.sends.wqe(index).len > self.mtu.bytes() as u64 {
            return Err((WcStatus::LocLenErr, VendorErr::TooLong));
        }
        self.check_request(index, dev)
    }

    fn emit_datagram<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        index: u64,
        dev: &mut D,
        sink: &mut S,
    ) -> Result<bool, (WcStatus, VendorErr)> {
        let wqe = self.sends.wqe(index);
        let Some(dest) = wqe.wr.ud else {
            return Err((WcStatus::LocQpOpErr, VendorErr::OpNotAllowed));
        };
        let len = wqe.len as usize;
        let op = emit::request_op(wqe.wr.opcode, true, true);
        let bth = Bth {
            solicited: wqe.wr.flags.contains(SendFlags::SOLICITED),
            pkey: self.pkey,
            dest_qpn: dest.qpn,
            psn: self.requester.next.psn(),
            ..Bth::default()
        };
        let own = dest.qkey & QKEY_OWN != 0;
        let mut header = emit::header(self.service(), op, bth);
        header.deth = Some(Deth {
            qkey: if own { self.attr.qkey } else { dest.qkey },
            src_qpn: self.config.qpn,
        });
        header.imm = op.has_imm().then_some(wqe.wr.imm);
        let Some(room) = emit::begin(sink, &dest.path, header, len) else { return Ok(false) };
        match self.sends.data(index) {
            Data::Sges(sges) => sg::gather(dev, sges, 0, room)
                .map_err(|fault| (WcStatus::LocProtErr, local(fault)))?,
            Data::Inline(data) => room.copy_from_slice(data),
        }
        sink.commit();
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += len as u64;
        Ok(true)
    }

    /// A datagram goes into the next receive, after 40 bytes that tell where it came from.
    ///
    /// IBA 9.8.3 leaves the QP running whatever arrives: what is not meant for it, or finds no
    /// receive, is dropped without a trace; a receive that is too small completes with LOC_LEN_ERR
    /// and is the only one lost. Memory of the receive that is not accessible is this side's own
    /// fault, and moves the QP to ERR.
    pub(super) fn receive_datagram<D: Device + ?Sized>(
        &mut self,
        packet: &Packet<'_>,
        path: &Path,
        udp_len: u16,
        dev: &mut D,
    ) {
        let dropped = &mut self.counters.dropped;
        let Some(deth) = packet.deth else {
            dropped.service += 1;
            return;
        };
        match self.attr.state {
            QpState::Reset | QpState::Init | QpState::Err => {
                dropped.state += 1;
                return;
            }
            QpState::Rtr | QpState::Rts | QpState::Sqd | QpState::Sqe => {}
        }
        // IBA 9.6.1
        if deth.qkey != self.attr.qkey {
            dropped.qkey += 1;
            return;
        }
        if packet.payload.len() > self.mtu.bytes() {
            dropped.message += 1;
            return;
        }
        if !self.receives.acquire(dev) {
            dropped.no_receive += 1;
            return;
        }
        let Some((_, sges)) = self.receives.current() else { return };
        self.counters.rx_packets += 1;
        self.counters.rx_bytes += packet.payload.len() as u64;
        let byte_len = grh::LEN + packet.payload.len();
        if byte_len as u64 > sg::length(sges) {
            self.fail_receive(WcStatus::LocLenErr, VendorErr::RecvTooSmall, dev);
            return;
        }
        // An InfiniBand packet without a GRH leaves the first 40 bytes as they were (IBA 11.4.1.2).
        let headed = path.ib.is_none_or(|route| route.grh);
        let header = if headed { &grh::ud_header(path, udp_len)[..] } else { &[] };
        let placed = sg::scatter(dev, sges, 0, header)
            .and_then(|()| sg::scatter(dev, sges, grh::LEN as u64, packet.payload));
        if let Err(fault) = placed {
            self.fail_receive(WcStatus::LocProtErr, local(fault), dev);
            self.enter_error(dev);
            return;
        }
        self.counters.rx_messages += 1;
        let mut flags = WcFlags::empty();
        flags.set(WcFlags::GRH, headed);
        flags.set(WcFlags::WITH_IMM, packet.imm.is_some());
        let wc = Wc {
            byte_len: byte_len as u32,
            imm: packet.imm.unwrap_or_default(),
            src_qpn: deth.src_qpn,
            flags,
            sl: path.ib.map_or_else(|| grh::packet_type(path), |route| route.sl),
            slid: path.ib.map_or(0, |route| route.slid),
            dlid_path_bits: path.ib.map_or(0, |route| route.dlid as u8 & 0x7f),
            solicited: packet.bth.solicited,
            ..self.receive_wc()
        };
        self.complete_receive(wc, dev);
    }
}
