//! Counters of flows (ibv_create_counters(3)).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use parking_lot::Mutex;

use super::flow::{Flow, Rule};
use crate::context::limits;
use crate::object::{self, Identity};
use crate::{Context, Error};

/// What is counted (`enum ibv_counter_description`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Counted {
    /// Frames.
    Packets = 0,
    /// Their bytes, from the Ethernet header on.
    Bytes = 1,
}

/// A value that is read.
#[derive(Debug)]
struct Point {
    counted: Counted,
    index: u32,
    /// The flow, and what it had counted when it was attached; None: of all flows that name the object as their counter.
    of: Option<(Arc<Rule>, [u64; 2])>,
}

/// An object of counters.
#[derive(Debug)]
pub struct FlowCounters {
    pub(crate) identity: Identity,
    pub(crate) users: AtomicUsize,
    context: Arc<Context>,
    packets: AtomicU64,
    bytes: AtomicU64,
    points: Mutex<Vec<Point>>,
}

impl FlowCounters {
    /// With no points attached.
    pub fn new(context: &Arc<Context>) -> Result<Arc<FlowCounters>, Error> {
        context.check()?;
        Ok(Arc::new(FlowCounters {
            identity: context.inner().counted(&context.inner().quotas.counters)?,
            users: AtomicUsize::new(0),
            context: context.clone(),
            packets: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            points: Mutex::default(),
        }))
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Has value `index` tell what is counted of `flow` from now on, or, with none, of the flows that were made with
    /// these counters (ibv_attach_counters_point_flow(3)). Several of one index add up.
    pub fn attach(&self, counted: Counted, index: u32, flow: Option<&Flow>) -> Result<(), Error> {
        self.context.check()?;
        self.identity.check()?;
        if index >= limits::COUNTERS {
            let max = u64::from(limits::COUNTERS) - 1;
            return Err(Error::Limit { what: "index", asked: index.into(), max });
        }
        if let Some(flow) = flow {
            flow.identity.check()?;
            if !Arc::ptr_eq(flow.context(), &self.context) {
                return Err(Error::Foreign { what: "flow" });
            }
        }
        let mut points = self.points.lock();
        if points.len() >= limits::COUNTERS as usize {
            return Err(Error::NoMemory { what: "counter" });
        }
        let of = flow.map(|flow| (flow.rule().clone(), flow.rule().counted()));
        points.push(Point { counted, index, of });
        Ok(())
    }

    /// The first values, as many as there is room for (ibv_read_counters(3)).
    ///
    /// # Errors
    /// Invalid where nothing is attached.
    pub fn read(&self, values: &mut [u64]) -> Result<(), Error> {
        self.context.inner().check()?;
        self.identity.check()?;
        let points = self.points.lock();
        if points.is_empty() {
            let why = "no counter is attached";
            return Err(Error::Invalid { what: "counters", value: 0, why });
        }
        values.fill(0);
        for point in points.iter() {
            let own = || [self.packets.load(Ordering::Relaxed), self.bytes.load(Ordering::Relaxed)];
            let now = point.of.as_ref().map_or_else(own, |(rule, before)| {
                let [packets, bytes] = rule.counted();
                [packets.wrapping_sub(before[0]), bytes.wrapping_sub(before[1])]
            });
            if let Some(value) = values.get_mut(point.index as usize) {
                *value = value.wrapping_add(now[point.counted as usize]);
            }
        }
        Ok(())
    }

    pub(crate) fn count(&self, bytes: u64) {
        self.packets.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Frees it; Busy while a flow counts with it (ibv_destroy_counters(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.context.inner().check()?;
        self.identity.retire_unless_used(&self.users)?;
        self.points.lock().clear();
        Ok(())
    }
}

object::accessors!(FlowCounters);
