//! The packets of a requester.

use ironverbs_wire::{AtomicEth, Bth, Packet, Reth, XrcEth};

use super::completion::local;
use super::send_queue::{Data, Progress, SendWqe};
use super::seq::Seq;
use super::{Qp, emit, sg};
use crate::device::{Device, Sink};
use crate::verbs::{QpType, SendFlags, WcStatus, WrOpcode};

impl Qp {
    /// Sends the packet `at` of a request that has begun; of a READ the request for `count`
    /// packets. False if the sink is full or the request's memory is gone, in which case the
    /// request fails.
    pub(super) fn emit_request<D: Device + ?Sized, S: Sink + ?Sized>(
        &mut self,
        index: u64,
        at: Seq,
        count: u32,
        ack_req: bool,
        dev: &mut D,
        sink: &mut S,
    ) -> bool {
        let wqe = self.sends.wqe(index);
        let Progress::Started { first, packets, .. } = wqe.progress else { return false };
        let wr = &wqe.wr;
        let mtu = self.mtu.bytes() as u64;
        let place = at.since(first);
        let offset = u64::from(place) * mtu;
        let left = wqe.len.saturating_sub(offset);
        let mut header = self.data_header(wqe, at, place == 0, place + 1 == packets, ack_req);
        let mut payload = 0;
        match wr.opcode {
            WrOpcode::Read => {
                let len = left.min(u64::from(count) * mtu) as u32;
                let va = wr.remote_addr.wrapping_add(offset);
                header.reth = Some(Reth { va, rkey: wr.rkey, len });
            }
            WrOpcode::CompareSwap | WrOpcode::FetchAdd => {
                let swap = wr.opcode == WrOpcode::CompareSwap;
                header.atomic = Some(AtomicEth {
                    va: wr.remote_addr,
                    rkey: wr.rkey,
                    swap_add: if swap { wr.swap } else { wr.compare_add },
                    compare: if swap { wr.compare_add } else { 0 },
                });
            }
            WrOpcode::AtomicWrite => {
                let len = wqe.len as u32;
                header.reth = Some(Reth { va: wr.remote_addr, rkey: wr.rkey, len });
                payload = wqe.len as usize;
            }
            _ => payload = left.min(mtu) as usize,
        }
        let Some(room) = emit::begin(sink, &self.path, header, payload) else { return false };
        let filled = match self.sends.data(index) {
            Data::Sges(sges) => sg::gather(dev, sges, offset, room),
            Data::Inline(data) => {
                // The part of the message lies within it, as offset and length were made so.
                room.copy_from_slice(&data[offset as usize..offset as usize + payload]);
                Ok(())
            }
        };
        if let Err(fault) = filled {
            // The region went away after the request had begun.
            self.fail_request(index, WcStatus::LocProtErr, local(fault), dev);
            return false;
        }
        sink.commit();
        self.counters.tx_packets += 1;
        self.counters.tx_bytes += payload as u64;
        true
    }

    /// The headers of the packet `at`, whether it is the request's first and last, without those of READs and atomics.
    pub(super) fn data_header(
        &self,
        wqe: &SendWqe,
        at: Seq,
        first: bool,
        last: bool,
        ack_req: bool,
    ) -> Packet<'static> {
        let wr = &wqe.wr;
        let op = emit::request_op(wr.opcode, first, last);
        let solicited = last && wr.flags.contains(SendFlags::SOLICITED);
        let bth = Bth {
            solicited: solicited && (op.is_send() || op.has_imm()),
            pkey: self.pkey,
            dest_qpn: self.attr.dest_qpn,
            ack_req,
            psn: at.psn(),
            ..Bth::default()
        };
        let mut header = emit::header(self.service(), op, bth);
        let xrc = self.config.qp_type == QpType::XrcSend;
        header.xrceth = xrc.then_some(XrcEth { srqn: wr.xrc_srqn });
        if !wqe.is_answered() {
            let len = wqe.len as u32;
            header.reth = op.has_reth().then_some(Reth { va: wr.remote_addr, rkey: wr.rkey, len });
            header.imm = op.has_imm().then_some(wr.imm);
            header.ieth = op.has_ieth().then_some(wr.invalidate_rkey);
        }
        header
    }
}
