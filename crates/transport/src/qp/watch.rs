//! Telling the device which operations end, where somebody counts them (ibv_qp_attach_comp_cntr(3)).

use ironverbs_wire::Op;

use super::Qp;
use super::message::Refusal;
use super::resources::{Answer, Resource};
use crate::device::{Device, Operation};
use crate::verbs::{SendFlags, Wc, WcStatus, WrOpcode};

/// Whether anybody counts.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Watch {
    on: bool,
    /// Send requests up to the last that completed visibly, since RESET.
    visible: u64,
}

impl Watch {
    #[inline]
    pub(super) fn is_on(&self) -> bool {
        self.on
    }

    /// At RESET requests are numbered from the start again.
    pub(super) fn reset(&mut self) {
        self.visible = 0;
    }
}

impl Qp {
    /// From now on the device is told of each operation that ends ([`Device::ended`]).
    pub fn watch(&mut self) {
        self.watch.on = true;
    }

    /// Send requests that have ended since RESET, if the program has read the completions of `read` of them and none
    /// that it could read has come since; only of a QP that is watched. Who counts needs no completions to know that
    /// they ended, so their places in the queue are the program's again.
    pub fn ended_unseen(&self, read: u64) -> Option<u64> {
        (self.watch.on && read >= self.watch.visible).then(|| self.sends.head())
    }

    /// The oldest send is about to be completed. It is looked up here, so that those whom nobody watches need not keep it.
    #[cold]
    pub(super) fn tell_sent<D: Device + ?Sized>(&mut self, success: bool, dev: &mut D) {
        if self.sends.is_empty() {
            return;
        }
        let head = self.sends.head();
        let wqe = *self.sends.wqe(head);
        if !success || self.config.sq_sig_all || wqe.wr.flags.contains(SendFlags::SIGNALED) {
            self.watch.visible = head + 1;
        }
        let operation = match wqe.wr.opcode {
            WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::SendWithInv => Operation::Send,
            WrOpcode::Write | WrOpcode::WriteWithImm => Operation::Write,
            WrOpcode::Read => Operation::Read,
            WrOpcode::CompareSwap
            | WrOpcode::FetchAdd
            | WrOpcode::AtomicWrite
            | WrOpcode::LocalInv
            | WrOpcode::BindMw => return,
        };
        dev.ended(operation, success.then_some(wqe.len));
    }

    #[cold]
    pub(super) fn tell_received<D: Device + ?Sized>(&self, wc: &Wc, dev: &mut D) {
        let success = wc.status == WcStatus::Success;
        dev.ended(Operation::Recv, success.then_some(wc.byte_len.into()));
    }

    /// A READ of the peer is answered with the packet that was sent last, if that is its last one and was for the
    /// first time.
    #[cold]
    pub(super) fn tell_answered<D: Device + ?Sized>(&self, resource: &Resource, dev: &mut D) {
        if let Answer::Read { len, .. } = resource.answer
            && resource.ends()
        {
            dev.ended(Operation::RemoteRead, Some(len.into()));
        }
    }

    /// A request of the peer is refused for good.
    #[cold]
    pub(super) fn tell_refused<D: Device + ?Sized>(&self, op: Op, refusal: Refusal, dev: &mut D) {
        let operation = match refusal {
            Refusal::NotReady | Refusal::Elsewhere => return,
            _ if op == Op::ReadRequest => Operation::RemoteRead,
            _ if op.is_write() => Operation::RemoteWrite,
            _ => return,
        };
        dev.ended(operation, None);
    }
}
