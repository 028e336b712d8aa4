//! Queues in memory that somebody else gives.

use std::sync::Arc;

use ironverbs_slots::{Block, Giver, Refused};

use super::recv_queue::RecvQueue;
use super::requester::Requester;
use super::responder::Responder;
use super::send_queue::SendQueue;
use super::{Qp, QpConfig};
use crate::verbs::{QpCap, QpState, QpType};

/// Who gives memory for the queues of a QP, and what it is told that each is.
#[derive(Clone, Debug)]
pub struct QpMemory {
    /// Gives it.
    pub giver: Arc<dyn Giver>,
    /// What the queue of send requests is, with their lists and inline data.
    pub sends: u64,
    /// What the queue of receive requests is, with their lists.
    pub receives: u64,
}

/// The queues of a QP. Dropping them gives back memory that was given.
#[derive(Debug)]
pub struct Queues {
    pub(super) sends: SendQueue,
    pub(super) receives: RecvQueue,
}

impl Queues {
    fn new(config: &QpConfig, sends: Block, receives: Block) -> Queues {
        Queues {
            sends: SendQueue::new(&config.cap, sends),
            receives: RecvQueue::new(&config.cap, config.shares_receives(), receives),
        }
    }

    pub(super) fn of_library(config: &QpConfig) -> Queues {
        Queues::new(config, Block::default(), Block::default())
    }
}

impl QpConfig {
    fn shares_receives(&self) -> bool {
        self.srq || self.qp_type == QpType::XrcRecv
    }
}

impl Qp {
    /// As [`new`](Qp::new), with the memory of its queues asked of somebody.
    pub fn in_memory(config: QpConfig, memory: &QpMemory) -> Result<Qp, Refused> {
        let giver = Some(&memory.giver);
        let sends = Block::ask(giver, SendQueue::bytes(&config.cap), memory.sends)?;
        let receives = RecvQueue::bytes(&config.cap, config.shares_receives());
        let receives = Block::ask(giver, receives, memory.receives)?;
        Ok(Qp::of(config, Queues::new(&config, sends, receives)))
    }

    /// Parts with queues in memory that was given: for the end of a QP, whose requests are forgotten, as at RESET. None
    /// where the memory is the library's.
    pub fn give_back(&mut self) -> Option<Queues> {
        if !self.sends.is_given() && !self.receives.is_given() {
            return None;
        }
        self.config.cap = QpCap::default();
        self.attr.state = QpState::Reset;
        (self.requester, self.responder) = (Requester::default(), Responder::default());
        let Queues { sends, receives } = Queues::of_library(&self.config);
        Some(Queues {
            sends: std::mem::replace(&mut self.sends, sends),
            receives: std::mem::replace(&mut self.receives, receives),
        })
    }
}
