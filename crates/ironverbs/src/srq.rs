//! Shared receive queues.

use std::sync::Arc;

use ironverbs_soft::{self as soft, SrqAttr};

use crate::buffer::Target;
use crate::completion::Message;
use crate::error::{CompletionError, Dropped};
use crate::pd::PdInner;
use crate::queue::{Aftermath, Queue};
use crate::request;
use crate::{Error, Op, Pd, Rejected};

/// A shared receive queue (ibv_create_srq(3)): receives for whichever of its queue pairs a message comes to. Clones
/// are the same queue.
#[derive(Clone, Debug)]
pub struct Srq(pub(crate) Arc<SrqInner>);

#[derive(Debug)]
pub(crate) struct SrqInner {
    pub(crate) raw: Arc<soft::Srq>,
    pub(crate) queue: Arc<Queue>,
    pd: Arc<PdInner>,
}

impl Srq {
    /// A queue of `depth` receives of at most `slices` slices each.
    ///
    /// # Errors
    /// Object (Limit, Invalid): what was asked and what is allowed.
    pub fn new(pd: &Pd, depth: u32, slices: u32) -> Result<Srq, Error> {
        let raw = pd.0.raw.create_srq(soft::SrqInit { max_wr: depth, max_sge: slices })?;
        let queue = Arc::new(Queue::shared(raw.query().max_wr, pd.0.context.fork().clone()));
        Ok(Srq(Arc::new(SrqInner { raw, queue, pd: pd.0.clone() })))
    }

    /// Posts a receive (ibv_post_srq_recv(3)). [`Received::qpn`](crate::Received::qpn) says where a message came.
    ///
    /// # Errors
    /// Why it cannot be posted, with its buffers.
    pub fn recv<B: Target>(
        &self,
        buffer: B,
    ) -> Result<Op<B::Returned, Message>, Rejected<B::Returned>> {
        let SrqInner { raw, queue, pd } = &*self.0;
        request::post_receive(queue, pd, buffer, |wr_id, sges| raw.post_recv(wr_id, sges))
    }

    /// Arms the limit event: it comes once, when fewer than `limit` receives are left; 0 disarms it
    /// (ibv_modify_srq(3)).
    ///
    /// # Errors
    /// Object (Limit): more than the queue can hold.
    pub fn set_limit(&self, limit: u32) -> Result<(), Error> {
        Ok(self.0.raw.modify(None, Some(limit))?)
    }

    /// Its attributes; the limit is 0 when it is not armed (ibv_query_srq(3)).
    pub fn attr(&self) -> SrqAttr {
        self.0.raw.query()
    }

    /// Its number; events name it.
    pub fn id(&self) -> u32 {
        self.0.raw.handle()
    }
}

impl Drop for SrqInner {
    fn drop(&mut self) {
        // No queue pair uses it any more.
        self.pd.context.end(&self.raw, |raw| drop(raw.destroy()));
        let mut after = Aftermath::default();
        self.queue.lose(CompletionError::Dropped { how: Dropped::Destroyed }, &mut after);
        after.run();
    }
}
