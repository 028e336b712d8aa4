//! Posting requests.

use super::error::PostError;
use super::send_queue::Payload;
use super::{Qp, sg};
use crate::verbs::{QpState, QpType, SendWr, Sge, WrOpcode};

impl Qp {
    /// `ibv_post_send(3)` for one request. In ERR and SQE it is taken, and flushed when the device
    /// calls [`transmit`](Qp::transmit) next. Faults of memory show in the completion.
    pub fn post_send(&mut self, wr: &SendWr, data: Payload<'_>) -> Result<(), PostError> {
        match self.attr.state {
            QpState::Reset | QpState::Init | QpState::Rtr => {
                return Err(PostError::State(self.attr.state));
            }
            QpState::Rts | QpState::Sqd | QpState::Sqe | QpState::Err => {}
        }
        let qp_type = self.config.qp_type;
        if !allows(qp_type, wr.opcode) {
            return Err(PostError::OpNotAllowed { opcode: wr.opcode, qp_type });
        }
        if qp_type == QpType::Ud && wr.ud.is_none() {
            return Err(PostError::NoDestination);
        }
        let answered =
            matches!(wr.opcode, WrOpcode::Read | WrOpcode::CompareSwap | WrOpcode::FetchAdd);
        match &data {
            Payload::Inline { len, .. } if wr.opcode == WrOpcode::AtomicWrite && *len != 8 => {
                return Err(PostError::AtomicLength { asked: *len as u64 });
            }
            Payload::Sges(sges) if wr.opcode == WrOpcode::AtomicWrite => {
                let asked = sg::length(sges);
                if asked != 8 {
                    return Err(PostError::AtomicLength { asked });
                }
            }
            Payload::Inline { .. } if answered => Err(PostError::ReadInline(wr.opcode))?,
            Payload::Sges(sges) if answered && wr.opcode != WrOpcode::Read => {
                let asked = sg::length(sges);
                if asked != 8 {
                    return Err(PostError::AtomicLength { asked });
                }
            }
            _ => {}
        }
        if wr.opcode.is_local() {
            self.uses_locals = true;
        }
        self.sends.post(wr, data)
    }

    /// How many send requests can be posted now.
    pub fn send_room(&self) -> usize {
        self.sends.room()
    }

    /// `ibv_post_recv(3)` for one request. In ERR it is taken, and flushed when the device calls
    /// [`transmit`](Qp::transmit) next.
    pub fn post_recv(&mut self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        if self.attr.state == QpState::Reset {
            return Err(PostError::State(self.attr.state));
        }
        if !self.config.qp_type.has_responder() {
            return Err(PostError::NoReceives);
        }
        self.receives.post(wr_id, sges)
    }
}

/// The table of operations in ibv_post_send(3).
fn allows(qp_type: QpType, opcode: WrOpcode) -> bool {
    match opcode {
        _ if !qp_type.has_requester() => false,
        WrOpcode::Send | WrOpcode::SendWithImm => true,
        WrOpcode::Write | WrOpcode::WriteWithImm | WrOpcode::LocalInv | WrOpcode::BindMw => {
            qp_type != QpType::Ud
        }
        WrOpcode::Read | WrOpcode::CompareSwap | WrOpcode::FetchAdd | WrOpcode::SendWithInv => {
            qp_type.is_reliable()
        }
        WrOpcode::AtomicWrite => qp_type == QpType::Rc,
    }
}
