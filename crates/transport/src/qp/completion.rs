//! Completions, and the flushing of what is posted.

use super::Qp;
use super::send_queue::SendWqe;
use crate::device::{Device, Queue};
use crate::verbs::{
    Fault, QpState, QpType, SendFlags, VendorErr, Wc, WcFlags, WcOpcode, WcStatus, WrOpcode,
};

impl Qp {
    /// Completes the oldest send with success.
    pub(super) fn complete_send<D: Device + ?Sized>(&mut self, dev: &mut D) {
        if self.watch.is_on() {
            self.tell_sent(true, dev);
        }
        let Some(wqe) = self.sends.pop() else { return };
        self.counters.tx_messages += 1;
        if self.config.sq_sig_all || wqe.wr.flags.contains(SendFlags::SIGNALED) {
            let byte_len = if wqe.fetches() { wqe.len as u32 } else { 0 };
            let wc = self.send_wc(&wqe, WcStatus::Success, VendorErr::None);
            dev.covers(self.sends.head());
            dev.complete(Queue::Send, Wc { byte_len, ..wc });
        }
    }

    /// Completes the oldest send with an error, which it does signaled or not, and stops sending:
    /// a reliable QP goes to ERR, another to SQE (IBA 10.3.1).
    pub(super) fn fail_send<D: Device + ?Sized>(
        &mut self,
        status: WcStatus,
        why: VendorErr,
        dev: &mut D,
    ) {
        self.revoke_references(dev);
        if self.watch.is_on() {
            self.tell_sent(false, dev);
        }
        let Some(wqe) = self.sends.pop() else { return };
        let wc = self.send_wc(&wqe, status, why);
        dev.covers(self.sends.head());
        dev.complete(Queue::Send, wc);
        if self.config.qp_type.is_reliable() {
            self.responder.forget();
            self.enter_error(dev);
        } else {
            self.attr.state = QpState::Sqe;
            self.attr.cur_state = QpState::Sqe;
            self.requester.stop();
            self.flush_posted(dev);
        }
    }

    /// Completes as flushed what the state says is to be flushed.
    pub(super) fn flush_posted<D: Device + ?Sized>(&mut self, dev: &mut D) {
        if !matches!(self.attr.state, QpState::Err | QpState::Sqe) {
            return;
        }
        loop {
            if self.watch.is_on() {
                self.tell_sent(false, dev);
            }
            let Some(wqe) = self.sends.pop() else { break };
            let wc = self.send_wc(&wqe, WcStatus::WrFlushErr, VendorErr::Flushed);
            dev.covers(self.sends.head());
            dev.complete(Queue::Send, wc);
        }
        self.requester.skip_to_tail(&self.sends);
        if self.attr.state == QpState::Err {
            if self.config.qp_type == QpType::XrcRecv && self.receives.current().is_some() {
                dev.select_srq(self.responder.srqn);
            }
            while self.receives.current().is_some() {
                self.fail_receive(WcStatus::WrFlushErr, VendorErr::Flushed, dev);
            }
        }
    }

    /// Completes the receive in hand; `wc` has what the message brought.
    pub(super) fn complete_receive<D: Device + ?Sized>(&mut self, wc: Wc, dev: &mut D) {
        if let Some(wr_id) = self.receives.finish() {
            if self.watch.is_on() {
                self.tell_received(&wc, dev);
            }
            dev.complete(Queue::Recv, Wc { wr_id, ..wc });
        }
    }

    /// Completes the receive in hand with an error. Errors count as solicited
    /// (ibv_req_notify_cq(3)).
    pub(super) fn fail_receive<D: Device + ?Sized>(
        &mut self,
        status: WcStatus,
        why: VendorErr,
        dev: &mut D,
    ) {
        let wc = Wc { status, vendor_err: why as u32, solicited: true, ..self.receive_wc() };
        self.complete_receive(wc, dev);
    }

    /// A successful receive of nothing.
    pub(super) fn receive_wc(&self) -> Wc {
        Wc {
            wr_id: 0,
            status: WcStatus::Success,
            opcode: WcOpcode::Recv,
            vendor_err: VendorErr::None as u32,
            byte_len: 0,
            imm: [0; 4],
            invalidated_rkey: 0,
            qpn: self.config.qpn,
            src_qpn: self.attr.dest_qpn,
            flags: WcFlags::empty(),
            pkey_index: self.attr.pkey_index,
            sl: self.attr.ah.sl,
            slid: 0,
            dlid_path_bits: 0,
            solicited: false,
        }
    }

    fn send_wc(&self, wqe: &SendWqe, status: WcStatus, why: VendorErr) -> Wc {
        Wc {
            wr_id: wqe.wr.wr_id,
            status,
            opcode: match wqe.wr.opcode {
                WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv => WcOpcode::Send,
                WrOpcode::Write | WrOpcode::WriteWithImm => WcOpcode::Write,
                WrOpcode::Read => WcOpcode::Read,
                WrOpcode::CompareSwap => WcOpcode::CompareSwap,
                WrOpcode::FetchAdd => WcOpcode::FetchAdd,
                WrOpcode::LocalInv => WcOpcode::LocalInv,
                WrOpcode::BindMw => WcOpcode::BindMw,
                WrOpcode::AtomicWrite => WcOpcode::AtomicWrite,
            },
            vendor_err: why as u32,
            ..self.receive_wc()
        }
    }
}

/// Why a local access failed, as a completion says it.
pub(super) fn local(fault: Fault) -> VendorErr {
    match fault {
        Fault::Key => VendorErr::LkeyUnknown,
        Fault::Pd => VendorErr::LkeyPd,
        Fault::Range => VendorErr::LkeyRange,
        Fault::Access => VendorErr::LkeyAccess,
        Fault::Alignment | Fault::Memory => VendorErr::MemoryFault,
    }
}
