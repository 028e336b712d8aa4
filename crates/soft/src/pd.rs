//! Protection domains: what regions, queue pairs and address handles belong to.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use ironverbs_slots::{Block, Giver, Refused};
use ironverbs_sys::mem;
use ironverbs_transport::qp::QpMemory;
use ironverbs_transport::verbs::{Access, AhAttr, Fault, QpCap, QpType};
use parking_lot::Mutex;

use crate::host::Inner;
use crate::mr;
use crate::object::{self, Identity};
use crate::{Ah, Context, Cq, Dm, Error, Mr, Mw, MwType, Qp, Sge, Srq, Xrcd};

/// A protection domain (ibv_alloc_pd(3)).
#[derive(Debug)]
pub struct Pd {
    pub(crate) identity: Identity,
    pub(crate) users: AtomicUsize,
    context: Arc<Context>,
    is_parent: bool,
    /// Whose memory the queues are made of.
    giver: Option<Arc<dyn Giver>>,
    /// The domain that this one is another view of, until it is destroyed: what was made in it may outlive that by a moment.
    base: Mutex<Option<Hold>>,
}

/// What keeps a domain from being freed.
#[derive(Debug)]
pub struct Hold(Arc<Pd>);

impl Hold {
    /// The domain.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.0
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        object::give_back(&self.0.users);
    }
}

/// What memory is asked for, of who gives it to a parent domain.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The send requests of a queue pair.
    Sends = 1,
    /// The receive requests of a queue pair.
    Receives = 2,
    /// A shared receive queue.
    SharedReceives = 3,
    /// A completion queue.
    Completions = 4,
}

impl Kind {
    pub(crate) fn refused(self) -> Error {
        let what = match self {
            Kind::Sends | Kind::Receives => "queue pair in memory of the domain's allocator",
            Kind::SharedReceives => "shared receive queue in memory of the domain's allocator",
            Kind::Completions => "completion queue in memory of the domain's allocator",
        };
        Error::NoMemory { what }
    }
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
            is_parent: false,
            giver: None,
            base: Mutex::new(None),
        }))
    }

    /// Makes a parent domain: interchangeable with this one, which it keeps from being freed, and with a count of users of
    /// its own (ibv_alloc_parent_domain(3)). The queues of queue pairs, shared receive queues and completion queues that are
    /// made in it are in memory that `giver` gives for each [`Kind`]; it is called by the thread that makes, resizes or
    /// destroys one, with nothing locked.
    pub fn parent_domain(
        self: &Arc<Self>,
        giver: Option<Arc<dyn Giver>>,
    ) -> Result<Arc<Pd>, Error> {
        self.context.check()?;
        let base = self.hold()?;
        Ok(Arc::new(Pd {
            identity: Identity::again("parent domain", &self.identity),
            users: AtomicUsize::new(0),
            context: self.context.clone(),
            is_parent: true,
            giver,
            base: Mutex::new(Some(base)),
        }))
    }

    /// Whether it was made by [`parent_domain`](Pd::parent_domain).
    pub fn is_parent(&self) -> bool {
        self.is_parent
    }

    /// Memory for a queue, of so many bytes.
    pub(crate) fn memory(&self, kind: Kind, bytes: usize) -> Result<Block, Error> {
        Block::ask(self.giver.as_ref(), bytes, kind as u64).map_err(|Refused| kind.refused())
    }

    /// The same for those of a queue pair.
    pub(crate) fn qp_memory(&self) -> Option<QpMemory> {
        self.giver.as_ref().map(|giver| QpMemory {
            giver: giver.clone(),
            sends: Kind::Sends as u64,
            receives: Kind::Receives as u64,
        })
    }

    /// Whether memory of the one may be used with queue pairs of the other.
    pub fn is_same(&self, other: &Pd) -> bool {
        Arc::ptr_eq(&self.context, &other.context) && self.handle() == other.handle()
    }

    /// Counts a user of another kind.
    pub fn hold(self: &Arc<Self>) -> Result<Hold, Error> {
        self.identity.check()?;
        object::take(&self.users);
        Ok(Hold(self.clone()))
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(crate) fn host(&self) -> &Inner {
        self.context.inner()
    }

    /// Whether anything can be made in it.
    fn check(&self) -> Result<(), Error> {
        self.context.check()?;
        self.identity.check()
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
        self.check()?;
        // SAFETY: the caller promises what `register` asks for.
        unsafe { Mr::register(self, addr, len, iova, access) }
    }

    /// Makes a memory window, bound to nothing yet (ibv_alloc_mw(3)).
    pub fn alloc_mw(self: &Arc<Self>, kind: MwType) -> Result<Arc<Mw>, Error> {
        self.check()?;
        Mw::allocate(self, kind)
    }

    /// Makes a region that is nowhere: it reads as zeros, and what is written to it is forgotten
    /// (ibv_alloc_null_mr(3)). It has no use by its rkey.
    pub fn alloc_null_mr(self: &Arc<Self>) -> Result<Arc<Mr>, Error> {
        self.check()?;
        Mr::null(self)
    }

    /// Registers `len` bytes of device memory from `offset` on; `access` has ZERO_BASED (ibv_reg_dm_mr(3)).
    pub fn reg_dm_mr(
        self: &Arc<Self>,
        dm: &Arc<Dm>,
        offset: u64,
        len: u64,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        self.check()?;
        Mr::of_dm(self, dm, offset, len, access)
    }

    /// Registers `len` bytes of a file, such as a dma-buf, from `offset` on (ibv_reg_dmabuf_mr(3)). It is mapped until
    /// the region is deregistered.
    ///
    /// # Errors
    /// As for [`reg_mr`](Pd::reg_mr); Limit for a range beyond the file's end; Io as mmap(2) for a file that cannot be mapped.
    pub fn reg_file_mr(
        self: &Arc<Self>,
        file: BorrowedFd<'_>,
        offset: u64,
        len: u64,
        iova: u64,
        access: Access,
    ) -> Result<Arc<Mr>, Error> {
        self.check()?;
        Mr::of_file(self, file, offset, len, iova, access)
    }

    /// Brings memory in, as far as the system does that ahead of its use (ibv_advise_mr(3)): for being read, or for
    /// `write`. `populate` demands it, and that the memory is there at all.
    ///
    /// # Errors
    /// Fault for a key that is none of this domain, a range beyond its region, or memory that is not there.
    /// Denied where the region may not be written.
    pub fn prefetch(&self, range: &Sge, write: bool, populate: bool) -> Result<(), Error> {
        self.check()?;
        let len = u64::from(range.len);
        let regions = self.host().regions.read();
        let found = regions.local(self.handle(), range.lkey, range.addr, len, write);
        let addr = found.map_err(|fault| match fault {
            Fault::Access => Error::Denied { what: "the region may not be written" },
            fault => Error::Fault { addr: range.addr, len, why: format!("{fault:?}") },
        })?;
        if populate {
            mr::accessible(addr, len, write)?;
        }
        // It is advice: where the system does not take it, the pages come when they are used.
        mem::will_need(addr, len, write && populate);
        Ok(())
    }

    /// Makes an address handle (ibv_create_ah(3)).
    pub fn create_ah(self: &Arc<Self>, attr: &AhAttr) -> Result<Arc<Ah>, Error> {
        self.check()?;
        Ah::new(self, attr)
    }

    /// Makes a shared receive queue (ibv_create_srq(3)).
    pub fn create_srq(self: &Arc<Self>, init: SrqInit) -> Result<Arc<Srq>, Error> {
        self.check()?;
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
        self.check()?;
        Srq::new_xrc(self, init, xrcd, cq)
    }

    /// Makes a queue pair in state RESET (ibv_create_qp(3)); those of type XRC_RECV are made by their XRC domain.
    pub fn create_qp(self: &Arc<Self>, init: &QpInit) -> Result<Arc<Qp>, Error> {
        self.check()?;
        Qp::new(self, init)
    }

    /// Frees the domain; Busy while anything belongs to it (ibv_dealloc_pd(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.host().check()?;
        self.identity.retire_unless_used(&self.users)?;
        drop(self.base.lock().take());
        Ok(())
    }
}

object::accessors!(Pd);
