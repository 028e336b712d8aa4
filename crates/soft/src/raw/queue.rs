//! Receive queues of frames: those of raw packet queue pairs, and work queues.

use std::sync::Arc;
use std::time::Duration;

use ironverbs_transport::device::RecvWqe;
use ironverbs_transport::qp::PostError;
use ironverbs_transport::verbs::{Fault, QpState, Sge, VendorErr, Wc, WcFlags, WcOpcode, WcStatus};
use parking_lot::{Condvar, Mutex, MutexGuard};

use crate::srq::Ring;
use crate::{Cq, Pd};
use ironverbs_slots::Block;

/// How long a frame waits for a receive, as in the memory of an adapter: a program that posts receives as it takes frames
/// out is a little late now and then. Those behind it wait in the socket meanwhile.
const PATIENCE: Duration = Duration::from_millis(20);

/// What a queue does (`enum ibv_wq_state`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum WqState {
    /// Nothing may be posted.
    Reset = 0,
    /// Receives may be posted, and frames come.
    Ready = 1,
    /// Receives are flushed.
    Error = 2,
}

/// A receive queue.
#[derive(Debug)]
pub(crate) struct RecvQueue {
    /// What completions say they are of.
    number: u32,
    pd: Arc<Pd>,
    cq: Arc<Cq>,
    inner: Mutex<Inner>,
    posted: Condvar,
}

#[derive(Debug)]
struct Inner {
    state: WqState,
    /// Receives wait, and frames do not come yet.
    quiet: bool,
    /// A frame has waited in vain since the last receive was posted: none waits any more.
    starved: bool,
    ring: Ring,
    wqe: RecvWqe,
}

/// A completion of a receive.
pub(crate) fn received(number: u32, wr_id: u64) -> Wc {
    Wc::new(wr_id, WcOpcode::Recv, number)
}

/// The code of a refused access to memory of this side.
pub(crate) fn vendor_err(fault: Fault) -> VendorErr {
    match fault {
        Fault::Key => VendorErr::LkeyUnknown,
        Fault::Pd => VendorErr::LkeyPd,
        Fault::Range | Fault::Alignment => VendorErr::LkeyRange,
        Fault::Access => VendorErr::LkeyAccess,
        Fault::Memory => VendorErr::MemoryFault,
    }
}

/// Puts a frame where a receive says, and tells how that went.
pub(crate) fn place(
    pd: &Pd,
    number: u32,
    wqe: &RecvWqe,
    frame: &[u8],
    flags: WcFlags,
    tag: u32,
) -> Wc {
    let mut wc = received(number, wqe.wr_id);
    let room: u64 = wqe.sges.iter().map(|sge| u64::from(sge.len)).sum();
    if room < frame.len() as u64 {
        wc.status = WcStatus::LocLenErr;
        wc.vendor_err = VendorErr::RecvTooSmall as u32;
        return wc;
    }
    let regions = pd.host().regions.read();
    let mut rest = frame;
    for sge in &wqe.sges {
        let (part, more) = rest.split_at(rest.len().min(sge.len as usize));
        if part.is_empty() {
            continue;
        }
        if let Err(fault) = regions.scatter(pd.handle(), sge.lkey, sge.addr, part) {
            wc.status = WcStatus::LocProtErr;
            wc.vendor_err = vendor_err(fault) as u32;
            return wc;
        }
        rest = more;
    }
    wc.byte_len = frame.len() as u32;
    wc.flags = flags;
    wc.imm = tag.to_ne_bytes();
    wc
}

impl RecvQueue {
    pub(crate) fn new(
        number: u32,
        pd: &Arc<Pd>,
        cq: &Arc<Cq>,
        max_wr: u32,
        max_sge: u32,
    ) -> RecvQueue {
        let inner = Inner {
            state: WqState::Reset,
            quiet: false,
            starved: true,
            ring: Ring::new(max_wr as usize, max_sge.max(1) as usize, Block::default()),
            wqe: RecvWqe::default(),
        };
        RecvQueue {
            number,
            pd: pd.clone(),
            cq: cq.clone(),
            inner: Mutex::new(inner),
            posted: Condvar::new(),
        }
    }

    pub(crate) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    pub(crate) fn cq(&self) -> &Arc<Cq> {
        &self.cq
    }

    pub(crate) fn state(&self) -> WqState {
        self.inner.lock().state
    }

    /// Moves it. With `quiet` receives may be posted and frames do not come yet.
    pub(crate) fn set_state(&self, state: WqState, quiet: bool) {
        let mut inner = self.inner.lock();
        (inner.state, inner.quiet) = (state, quiet);
        self.posted.notify_all();
        match state {
            WqState::Reset => {
                let inner = &mut *inner;
                while inner.ring.pop(&mut inner.wqe) {}
                self.cq.purge(self.number);
            }
            WqState::Ready => {}
            WqState::Error => self.flush(&mut inner),
        }
    }

    fn flush(&self, inner: &mut Inner) {
        while inner.ring.pop(&mut inner.wqe) {
            let mut wc = received(self.number, inner.wqe.wr_id);
            (wc.status, wc.vendor_err) = (WcStatus::WrFlushErr, VendorErr::Flushed as u32);
            self.cq.complete(wc, None);
        }
    }

    pub(crate) fn post(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        let mut inner = self.inner.lock();
        if inner.state == WqState::Reset {
            return Err(PostError::State(QpState::Reset));
        }
        inner.ring.push(wr_id, sges)?;
        if std::mem::take(&mut inner.starved) {
            self.posted.notify_all();
        }
        if inner.state == WqState::Error {
            self.flush(&mut inner);
        }
        Ok(())
    }

    /// Gives it a frame. One for which no receive is posted is dropped; one that does not fit into its receive ends the
    /// queue, and that is the answer.
    pub(crate) fn take(&self, frame: &[u8], flags: WcFlags, tag: u32) -> bool {
        let mut inner = self.inner.lock();
        if !self.pop(&mut inner) {
            return false;
        }
        let wc = place(&self.pd, self.number, &inner.wqe, frame, flags, tag);
        let failed = wc.status != WcStatus::Success;
        self.cq.complete(wc, None);
        if failed {
            inner.state = WqState::Error;
            self.flush(&mut inner);
        }
        failed
    }

    /// Takes the next receive, if there is one, or soon.
    fn pop(&self, inner: &mut MutexGuard<'_, Inner>) -> bool {
        let pop = |inner: &mut Inner| {
            inner.state == WqState::Ready && !inner.quiet && inner.ring.pop(&mut inner.wqe)
        };
        if pop(inner) {
            return true;
        }
        if inner.state != WqState::Ready || inner.quiet || inner.starved {
            return false;
        }
        inner.starved = true;
        self.posted.wait_while_for(inner, |inner| inner.starved, PATIENCE);
        pop(inner)
    }
}
