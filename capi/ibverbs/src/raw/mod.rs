//! Raw packets: queue pairs of whole Ethernet frames, what receives them, and flow steering.

pub(crate) mod counters;
pub(crate) mod flow;
pub(crate) mod qp;
pub(crate) mod wq;

use std::sync::Arc;

use ironverbs::raw as soft;

use crate::abi::*;
use crate::objects::{QpExtra, View, child, object};
use crate::pool::{Object, Pool};

object!(raw_qp, ibv_qp, View<soft::raw::RawQp, QpExtra>, "queue pair");
object!(ibv_wq, ibv_wq, View<soft::raw::Wq>, "work queue");
object!(ibv_flow, ibv_flow, View<soft::raw::Flow>, "flow");

impl Object for ibv_rwq_ind_table {
    type View = View<soft::raw::RwqTable>;
    type Public = ibv_rwq_ind_table;
    const NAME: &'static str = "table of work queues";

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<ibv_rwq_ind_table> = Pool::new();
        &POOL
    }

    unsafe fn handle(object: *const ibv_rwq_ind_table) -> Option<u32> {
        // SAFETY: the caller's promise.
        Some(unsafe { (&raw const (*object).ind_tbl_handle).read_unaligned() })
    }
}

child!(ibv_rwq_ind_table, ibv_rwq_ind_table);

impl Object for ibv_counters {
    type View = View<soft::raw::FlowCounters>;
    type Public = ibv_counters;
    const NAME: &'static str = "counters object";

    fn pool() -> &'static Pool<Self> {
        static POOL: Pool<ibv_counters> = Pool::new();
        &POOL
    }

    unsafe fn handle(_: *const ibv_counters) -> Option<u32> {
        None
    }
}

child!(ibv_counters, ibv_counters);

/// The raw packet queue pair behind a program's pointer, where it is one.
///
/// # Safety
/// As for [`crate::objects::find`].
pub(crate) unsafe fn of(qp: *const ibv_qp) -> Option<Arc<soft::raw::RawQp>> {
    // SAFETY: the caller's promise.
    let found = unsafe { crate::objects::find::<raw_qp>(qp) };
    found.ok().map(|found| found.inner.clone())
}
