//! Protection domains: what regions, queue pairs and address handles belong to.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ironverbs_transport::verbs::{Access, AhAttr, QpCap, QpType};

use crate::host::Inner;
use crate::object::{self, Identity};
use crate::{Ah, Context, Cq, Error, Mr, Qp, Srq, Xrcd};

/// A protection domain (ibv_alloc_pd(3)).
#[derive(Debug)]
pub struct Pd {
    pub(crate) identity: Identity,
    pub(crate) users: AtomicUsize,
    context: Arc<Context>,
}

/// How a queue pair is made (`struct ibv_qp_init_attr`).
#[derive(Clone, Debug)]
pub struct QpInit {
    /// Transport service.
    pub qp_type: QpType,
    /// CQ of sends.
    pub send_cq: Arc<Cq>,
    /// CQ of receives.
    pub recv_cq: Arc<Cq>,
    /// Shared receive queue; `cap`'s receive fields are then ignored.
    pub srq: Option<Arc<Srq>>,
    /// Capabilities asked for.
    pub cap: QpCap,
    /// Every send completes visibly.
    pub sq_sig_all: bool,
}

/// How a shared receive queue is made (`struct ibv_srq_attr`).
#[derive(Copy, Clone, Debug)]
pub struct SrqInit {
    /// Receives it holds.
    pub max_wr: u32,
    /// Elements of a receive's list.
    pub max_sge: u32,
}

impl Pd {
    pub(crate) fn new(context: &Arc<Context>) -> Result<Arc<Pd>, Error> {
        let host = context.inner();
        Ok(Arc::new(Pd {
            identity: host.counted(&host.quotas.pd)?,
            users: AtomicUsize::new(0),
            context: context.clone(),
        }))
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn host(&self) -> &Inner {
        self.context.inner()
    }

    /// Registers `len` bytes at `addr`, named `iova` onwards by users of the keys (ibv_reg_mr_iova(3)).
    ///
    /// # Errors
    /// Invalid for rights that contradict each other or an empty range; Fault when the memory is not mapped with
    /// the rights asked for.
    ///
    /// # Safety
    /// Until the region is deregistered peers write what is mapped there, at any time: nobody may hold Rust references
    /// into it that rely on it not changing. Where nothing is mapped any more, or without the rights asked for, accesses
    /// fail ([`VendorErr::MemoryFault`](crate::VendorErr)); what is mapped there instead is what peers then reach.
    pub unsafe fn reg_mr(
        self: &Arc<Self>,
        addr: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        self.context.check()?;
        self.identity.check()?;
        // SAFETY: the caller promises what `register` asks for.
        unsafe { Mr::register(self, addr, len, iova, access) }
    }

    /// Makes an address handle (ibv_create_ah(3)).
    pub fn create_ah(self: &Arc<Self>, attr: &AhAttr) -> Result<Arc<Ah>, Error> {
        self.context.check()?;
        self.identity.check()?;
        Ah::new(self, attr)
    }

    /// Makes a shared receive queue (ibv_create_srq(3)).
    pub fn create_srq(self: &Arc<Self>, init: SrqInit) -> Result<Arc<Srq>, Error> {
        self.context.check()?;
        self.identity.check()?;
        Srq::new(self, init)
    }

    /// Makes a shared receive queue for XRC (ibv_create_srq_ex(3)): peers name it by its number, and what they send
    /// completes on `cq`.
    pub fn create_xrc_srq(
        self: &Arc<Self>,
        init: SrqInit,
        xrcd: &Arc<Xrcd>,
        cq: &Arc<Cq>,
    ) -> Result<Arc<Srq>, Error> {
        self.context.check()?;
        self.identity.check()?;
        Srq::new_xrc(self, init, xrcd, cq)
    }

    /// Makes a queue pair in state RESET (ibv_create_qp(3)); those of type XRC_RECV are made by their XRC domain.
    pub fn create_qp(self: &Arc<Self>, init: &QpInit) -> Result<Arc<Qp>, Error> {
        self.context.check()?;
        self.identity.check()?;
        Qp::new(self, init)
    }

    /// Frees the domain; Busy while anything belongs to it (ibv_dealloc_pd(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.host().check()?;
        self.identity.retire_unless_used(&self.users)
    }
}

object::accessors!(Pd);
