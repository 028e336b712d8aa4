//! Counters of completions (ibv_create_comp_cntr(3)).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use ironverbs_transport::device::Operation;
use ironverbs_transport::verbs::QpState;

use crate::context::limits;
use crate::object::{self, Identity};
use crate::{Context, Error, Qp};

/// What a counter adds up of operations that end with success (`enum ibv_comp_cntr_type`).
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum CompCntrUnit {
    /// Their number.
    #[default]
    Operations,
    /// Their bytes: of a receive what its completion would tell.
    Bytes,
}

/// What counters of completions can do (ibv_query_comp_cntr_caps(3)).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CompCntrCaps {
    /// Behind this value comes 0.
    pub max_value: u64,
    /// How many there can be.
    pub max_counters: u32,
    /// Operations that can be counted, `1 << operation` each.
    pub operations: u32,
}

/// A counter of completions: of operations that ended with success, and of those that ended with an error.
#[derive(Debug)]
pub struct CompCntr {
    pub(crate) identity: Identity,
    /// Operations of queue pairs that it counts.
    users: AtomicUsize,
    context: Arc<Context>,
    unit: CompCntrUnit,
    completed: AtomicU64,
    failed: AtomicU64,
}

impl CompCntr {
    /// Both counts are 0.
    ///
    /// # Errors
    /// NoMemory when there are as many as there can be.
    pub fn new(context: &Arc<Context>, unit: CompCntrUnit) -> Result<Arc<CompCntr>, Error> {
        context.check()?;
        Ok(Arc::new(CompCntr {
            identity: context.inner().counted(&context.inner().quotas.comp_cntr)?,
            users: AtomicUsize::new(0),
            context: context.clone(),
            unit,
            completed: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        }))
    }

    /// What there can be of them, on any device.
    pub fn caps() -> CompCntrCaps {
        CompCntrCaps {
            max_value: u64::MAX,
            max_counters: limits::COMP_CNTR,
            operations: (1 << Operation::ALL.len()) - 1,
        }
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Operations that ended with success, or their bytes. Drives the device, as polling a CQ does: who waits for a
    /// counter need not poll.
    pub fn completed(&self) -> Result<u64, Error> {
        self.driven().map(|()| self.completed.load(Ordering::Acquire))
    }

    /// Operations that ended with an error, also where bytes are counted. Drives the device.
    pub fn failed(&self) -> Result<u64, Error> {
        self.driven().map(|()| self.failed.load(Ordering::Acquire))
    }

    /// Sets the count of successes; what ends meanwhile may be lost.
    pub fn set_completed(&self, value: u64) -> Result<(), Error> {
        self.alive().map(|()| self.completed.store(value, Ordering::Release))
    }

    /// Sets the count of errors.
    pub fn set_failed(&self, value: u64) -> Result<(), Error> {
        self.alive().map(|()| self.failed.store(value, Ordering::Release))
    }

    /// Adds to the count of successes, from the largest value on from 0 again.
    pub fn add_completed(&self, amount: u64) -> Result<(), Error> {
        self.alive()?;
        self.completed.fetch_add(amount, Ordering::AcqRel);
        Ok(())
    }

    /// Adds to the count of errors.
    pub fn add_failed(&self, amount: u64) -> Result<(), Error> {
        self.alive()?;
        self.failed.fetch_add(amount, Ordering::AcqRel);
        Ok(())
    }

    fn alive(&self) -> Result<(), Error> {
        self.context.inner().check()?;
        self.identity.check()
    }

    fn driven(&self) -> Result<(), Error> {
        self.alive()?;
        self.context.inner().poll_inline();
        Ok(())
    }

    fn count(&self, bytes: Option<u64>) {
        let (count, more) = match (bytes, self.unit) {
            (None, _) => (&self.failed, 1),
            (Some(_), CompCntrUnit::Operations) => (&self.completed, 1),
            (Some(bytes), CompCntrUnit::Bytes) => (&self.completed, bytes),
        };
        count.fetch_add(more, Ordering::AcqRel);
    }

    /// Ends it; Busy while a queue pair is counted by it, which it is until that is destroyed (ibv_destroy_comp_cntr(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.context.inner().check()?;
        self.identity.retire_unless_used(&self.users)
    }
}

object::accessors!(CompCntr);

/// Who counts which operations of a QP.
#[derive(Debug, Default)]
pub(crate) struct Counting([OnceLock<Arc<CompCntr>>; Operation::ALL.len()]);

impl Counting {
    /// Whether what the peer does is counted: then its requests must come as packets.
    pub(crate) fn needs_packets(&self) -> bool {
        let [_, _, _, reads, _, writes] = &self.0;
        reads.get().is_some() || writes.get().is_some()
    }

    pub(crate) fn ended(&self, operation: Operation, bytes: Option<u64>) {
        if let Some(counter) = self.0.get(operation as usize).and_then(OnceLock::get) {
            counter.count(bytes);
        }
    }

    /// The QP ends: it is counted no more.
    pub(crate) fn end(&self) {
        self.0.iter().filter_map(OnceLock::get).for_each(|counter| {
            object::give_back(&counter.users);
        });
    }
}

impl Qp {
    /// Has `counter` count these operations, `1 << operation` each, until the queue pair is destroyed
    /// (ibv_qp_attach_comp_cntr(3)). Visible or not, each that ends is counted, before its completion can be polled.
    /// WRITEs and READs of the peer are counted once their data is in place or on its way; so that they are, the peer
    /// sends them as packets where it would otherwise have reached into this process's memory. On a queue pair with a
    /// counter, sends without completions need none after them for their places in the send queue to be free again.
    ///
    /// # Errors
    /// NotSupported for other bits, Invalid for none and in states other than RESET and INIT; Busy, with nothing changed,
    /// where another counter, or this one, counts one of them.
    pub fn attach_comp_cntr(&self, counter: &Arc<CompCntr>, operations: u32) -> Result<(), Error> {
        self.context().check()?;
        self.identity.check()?;
        counter.identity.check()?;
        if !Arc::ptr_eq(counter.context(), self.context()) {
            return Err(Error::Foreign { what: "completion counter" });
        }
        if operations & !CompCntr::caps().operations != 0 {
            return Err(Error::NotSupported { what: "counting such an operation" });
        }
        if operations == 0 {
            let why = "it names no operation";
            return Err(Error::Invalid { what: "op_mask", value: 0, why });
        }
        self.begin_counting(|counting| {
            let wanted = |operation: &Operation| operations & 1 << *operation as u32 != 0;
            let places: Vec<_> = Operation::ALL
                .into_iter()
                .filter(wanted)
                .filter_map(|operation| counting.0.get(operation as usize))
                .collect();
            let taken = places.iter().filter(|place| place.get().is_some()).count();
            if taken > 0 {
                let what = "counted operation of the queue pair";
                return Err(Error::Busy { what, users: taken });
            }
            for place in places {
                object::take(&counter.users);
                if place.set(counter.clone()).is_err() {
                    object::give_back(&counter.users);
                }
            }
            Ok(())
        })
    }
}

/// Whether a queue pair in that state can be attached.
pub(crate) fn check_state(state: QpState) -> Result<(), Error> {
    match state {
        QpState::Reset | QpState::Init => Ok(()),
        other => Err(Error::Invalid {
            what: "qp_state",
            value: other as u64,
            why: "completion counters are attached in RESET or INIT",
        }),
    }
}
