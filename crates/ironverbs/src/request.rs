//! Requests of the send queue before they are posted, one by one or in a batch.

use std::marker::PhantomData;
use std::sync::Arc;

use ironverbs_soft::{Payload, PostError, SendFlags, SendWr, UdDest, WrOpcode};
use thiserror::Error;

use crate::buffer::sealed::Buffer;
use crate::buffer::{Held, Returned, SgeList};
use crate::completion::Kind;
use crate::error::{CompletionError, Rejected, RequestError};
use crate::qp::QpShared;
use crate::queue::{Aftermath, Asked, Ticket};
use crate::{Op, RemoteRegion};

/// A request that has not been posted yet. It goes out with [`post`](Request::post), or with others in a
/// [`Batch`].
#[must_use = "a request does nothing until it is posted"]
#[derive(Debug)]
pub struct Request<'q, B: Buffer, K: Kind> {
    qp: &'q QpShared,
    buffer: B,
    plan: Plan,
    kind: PhantomData<fn() -> K>,
}

/// A request but for its buffers.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Plan {
    wr: SendWr,
    /// Bytes of the remote region.
    remote_len: Option<u64>,
    silent: bool,
    /// Why it cannot be posted, where that is known already.
    refused: Option<RequestError>,
}

impl Plan {
    pub(crate) fn new(opcode: WrOpcode) -> Plan {
        let wr = SendWr::new(0, opcode, SendFlags::empty());
        Plan::of(wr)
    }

    pub(crate) fn of(wr: SendWr) -> Plan {
        Plan { wr, remote_len: None, silent: false, refused: None }
    }

    /// It cannot be posted, if there is a reason.
    pub(crate) fn refused(mut self, why: Option<RequestError>) -> Plan {
        self.refused = self.refused.or(why);
        self
    }

    pub(crate) fn remote(mut self, remote: &RemoteRegion) -> Plan {
        (self.wr.remote_addr, self.wr.rkey) = (remote.addr, remote.rkey);
        self.remote_len = Some(remote.len);
        self
    }

    pub(crate) fn immediate(mut self, immediate: [u8; 4]) -> Plan {
        self.wr.imm = immediate;
        self
    }

    pub(crate) fn invalidate(mut self, rkey: u32) -> Plan {
        self.wr.invalidate_rkey = rkey;
        self
    }

    pub(crate) fn atomic(mut self, compare_add: u64, swap: u64) -> Plan {
        (self.wr.compare_add, self.wr.swap) = (compare_add, swap);
        self
    }

    pub(crate) fn to(mut self, destination: UdDest, ours: bool) -> Plan {
        self.wr.ud = Some(destination);
        self.refused((!ours).then_some(RequestError::OtherDomainAddress))
    }

    fn is_atomic(&self) -> bool {
        matches!(self.wr.opcode, WrOpcode::CompareSwap | WrOpcode::FetchAdd)
    }

    /// Bytes of its buffers that it uses at most.
    fn limit(&self) -> u64 {
        if self.is_atomic() { 8 } else { u64::MAX }
    }

    /// Checks what can be known before posting.
    fn check(&self, held: &Held, inline: Option<&[u8]>, qp: &QpShared) -> Result<(), RequestError> {
        let write = self.is_atomic() || self.wr.opcode == WrOpcode::Read;
        held.check(qp.pd(), write)?;
        if let Some(why) = self.refused {
            return Err(why);
        }
        let len = inline.map_or(held.len(), |bytes| bytes.len() as u64).min(self.limit());
        if self.is_atomic() && len < 8 {
            return Err(RequestError::AtomicBuffer { asked: len as usize });
        }
        match self.remote_len {
            Some(remote) if len > remote => {
                Err(RequestError::BeyondRemote { asked: len, len: remote })
            }
            _ => Ok(()),
        }
    }

    fn asked(&self, len: u64) -> Asked {
        let SendWr { opcode, remote_addr, rkey, .. } = self.wr;
        Asked { opcode: Some(opcode), len: len.min(self.limit()), remote_addr, rkey }
    }
}

impl<'q, B: Buffer, K: Kind> Request<'q, B, K> {
    pub(crate) fn new(qp: &'q QpShared, buffer: B, plan: Plan) -> Request<'q, B, K> {
        Request { qp, buffer, plan, kind: PhantomData }
    }

    /// Waits for READs and atomics posted before (IBV_SEND_FENCE).
    pub fn fence(mut self) -> Self {
        self.plan.wr.flags |= SendFlags::FENCE;
        self
    }

    /// Raises an event at a receiver that waits for solicited ones only (IBV_SEND_SOLICITED).
    pub fn solicited(mut self) -> Self {
        self.plan.wr.flags |= SendFlags::SOLICITED;
        self
    }

    /// Asks for no completion of its own: success shows with the next request after it that has one. The queue gives
    /// some of them one all the same, so that it does not fill up; a failure always has one.
    pub fn unsignaled(mut self) -> Self {
        self.plan.silent = true;
        self
    }

    /// Posts it (ibv_post_send(3)).
    ///
    /// # Errors
    /// Why it cannot be posted, with its buffers.
    pub fn post(self) -> Result<Op<B::Returned, K>, Rejected<B::Returned>> {
        let (held, inline) = self.buffer.hold();
        match self.qp.post_send(&self.plan, held, inline) {
            Ok(ticket) => Ok(Op::new(self.qp.sends(), ticket)),
            Err((error, held)) => Err(reject(error, held)),
        }
    }

    /// Adds it to a batch.
    ///
    /// # Errors
    /// Why it cannot be posted, with its buffers: among others, that the batch is another queue pair's.
    pub fn add_to(
        self,
        batch: &mut Batch<'q>,
    ) -> Result<Op<B::Returned, K>, Rejected<B::Returned>> {
        let (held, inline) = self.buffer.hold();
        if !std::ptr::eq(self.qp, batch.qp) {
            return Err(reject(RequestError::OtherQueuePair, held));
        }
        match batch.add(self.plan, held, inline) {
            Ok(ticket) => Ok(Op::new(self.qp.sends(), ticket)),
            Err((error, held)) => Err(reject(error, held)),
        }
    }
}

fn reject<R: Returned>(error: RequestError, held: Held) -> Rejected<R> {
    match R::give_back(held) {
        Some(buffer) => Rejected { error, buffer },
        // `held` is what the buffer of this type just gave.
        None => unreachable!("a buffer came back as another"),
    }
}

impl QpShared {
    /// Posts a send; what it would have held comes back if that is refused.
    fn post_send(
        &self,
        plan: &Plan,
        held: Held,
        inline: Option<&[u8]>,
    ) -> Result<Ticket, (RequestError, Held)> {
        if let Err(error) = plan.check(&held, inline, self) {
            return Err((error, held));
        }
        let queue = self.sends();
        let sges = SgeList::new(&held, plan.limit());
        // Held until it is posted, so that the table knows the order of the queue.
        let mut table = match queue.table_with_room() {
            Ok(table) => table,
            Err(error) => return Err((error, held)),
        };
        let mut wr = plan.wr;
        if table.must_signal(plan.silent) {
            wr.flags |= SendFlags::SIGNALED;
        }
        let len = inline.map_or(held.len(), |bytes| bytes.len() as u64);
        let ticket = table.insert(held, plan.asked(len));
        wr.wr_id = queue.wr_id(ticket);
        let posted = with_payload(&sges, inline, |payload| self.raw().post_send(&wr, payload));
        match posted {
            Ok(()) => {
                table.posted(ticket);
                Ok(ticket)
            }
            Err(error) => Err((error.into(), table.withdraw(ticket).unwrap_or_default())),
        }
    }
}

fn with_payload(
    sges: &SgeList,
    inline: Option<&[u8]>,
    post: impl FnOnce(Payload<'_>) -> Result<(), PostError>,
) -> Result<(), PostError> {
    let Some(bytes) = inline else { return post(Payload::Sges(sges.as_slice())) };
    let mut copy = |room: &mut [u8]| {
        for (to, from) in room.iter_mut().zip(bytes) {
            *to = *from;
        }
    };
    post(Payload::Inline { len: bytes.len(), copy: &mut copy })
}

/// Requests of one queue pair that are posted together: one lock, and packets in one go.
#[derive(Debug)]
pub struct Batch<'q> {
    qp: &'q QpShared,
    queued: Vec<Queued>,
}

#[derive(Debug)]
struct Queued {
    ticket: Ticket,
    plan: Plan,
    inline: Option<Vec<u8>>,
}

/// A batch that was posted in part: the operations of the rest end with
/// [`NotPosted`](CompletionError::NotPosted).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
#[error("only the first {posted} requests were posted: {error}")]
pub struct BatchError {
    /// Requests that were posted.
    pub posted: usize,
    /// Why the next one was not.
    pub error: RequestError,
}

impl<'q> Batch<'q> {
    pub(crate) fn new(qp: &'q QpShared) -> Batch<'q> {
        Batch { qp, queued: Vec::new() }
    }

    /// Requests in it.
    pub fn len(&self) -> usize {
        self.queued.len()
    }

    /// Whether nothing is in it.
    pub fn is_empty(&self) -> bool {
        self.queued.is_empty()
    }

    fn add(
        &mut self,
        plan: Plan,
        held: Held,
        inline: Option<&[u8]>,
    ) -> Result<Ticket, (RequestError, Held)> {
        if let Err(error) = plan.check(&held, inline, self.qp) {
            return Err((error, held));
        }
        let mut table = match self.qp.sends().table_with_room() {
            Ok(table) => table,
            Err(error) => return Err((error, held)),
        };
        let len = inline.map_or(held.len(), |bytes| bytes.len() as u64);
        let ticket = table.insert(held, plan.asked(len));
        drop(table);
        self.queued.push(Queued { ticket, plan, inline: inline.map(<[u8]>::to_vec) });
        Ok(ticket)
    }

    /// Posts what is in it, in order.
    ///
    /// # Errors
    /// The first refusal; what came before it is posted, nothing after it is.
    pub fn submit(mut self) -> Result<(), BatchError> {
        let queued = std::mem::take(&mut self.queued);
        let queue = self.qp.sends();
        let mut table = queue.table();
        let mut guard = self.qp.raw().post_batch();
        let mut refused = None;
        for (posted, Queued { ticket, plan, inline }) in queued.iter().enumerate() {
            let Some(held) = table.held(*ticket) else { continue };
            let sges = SgeList::new(held, plan.limit());
            let mut wr = plan.wr;
            wr.wr_id = queue.wr_id(*ticket);
            if table.must_signal(plan.silent) {
                wr.flags |= SendFlags::SIGNALED;
            }
            let result = with_payload(&sges, inline.as_deref(), |payload| guard.push(&wr, payload));
            if let Err(error) = result {
                refused = Some(BatchError { posted, error: error.into() });
                break;
            }
            table.posted(*ticket);
        }
        // Sends; the lock must be free before requests are ended.
        drop(guard);
        drop(table);
        let Some(refused) = refused else { return Ok(()) };
        self.lose(queued.get(refused.posted..).unwrap_or_default(), refused.error);
        Err(refused)
    }

    fn lose(&self, queued: &[Queued], error: RequestError) {
        let mut after = Aftermath::default();
        for Queued { ticket, .. } in queued {
            self.qp.sends().lose_one(*ticket, CompletionError::NotPosted(error), &mut after);
        }
        after.run();
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        let queued = std::mem::take(&mut self.queued);
        self.lose(&queued, RequestError::NotSubmitted);
    }
}

/// A receive that is about to be posted to `queue` by `post`.
pub(crate) fn post_receive<B: Buffer>(
    queue: &Arc<crate::queue::Queue>,
    pd: &Arc<crate::pd::PdInner>,
    buffer: B,
    post: impl FnOnce(u64, &[ironverbs_soft::Sge]) -> Result<(), PostError>,
) -> Result<Op<B::Returned, crate::completion::Message>, Rejected<B::Returned>> {
    let (held, _) = buffer.hold();
    if let Err(error) = held.check(pd, true) {
        return Err(reject(error, held));
    }
    let sges = SgeList::new(&held, u64::MAX);
    let mut table = match queue.table_with_room() {
        Ok(table) => table,
        Err(error) => return Err(reject(error, held)),
    };
    let asked = Asked { len: held.len(), ..Asked::default() };
    let ticket = table.insert(held, asked);
    match post(queue.wr_id(ticket), sges.as_slice()) {
        Ok(()) => Ok(Op::new(queue, ticket)),
        Err(error) => {
            let held = table.withdraw(ticket).unwrap_or_default();
            drop(table);
            Err(reject(error.into(), held))
        }
    }
}

/// A refusal of a receive by a queue that takes none of its own.
pub(crate) fn refuse_receive<B: Buffer>(buffer: B) -> Rejected<B::Returned> {
    reject(PostError::SharedReceives.into(), buffer.hold().0)
}
