//! Work queues and tables of them (ibv_create_wq(3), ibv_create_rwq_ind_table(3)).

use std::ffi::c_int;
use std::sync::atomic::AtomicU32;

use ironverbs::raw as soft;
use soft::raw::{RwqTable, Wq, WqState};

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::objects::{self, ContextId, View, find};
use crate::pool::Object;
use crate::post;

/// ibv_create_wq(3); `max_wr` and `max_sge` then hold what was granted.
///
/// # Safety
/// As for [`objects::find`], for the context and the objects in `init`, which is null or points to the structure.
pub(crate) unsafe extern "C" fn create_wq(
    context: *mut ibv_context,
    init: *mut ibv_wq_init_attr,
) -> *mut ibv_wq {
    fail::object("ibv_create_wq", || {
        if init.is_null() {
            return Err(Failure::Null { what: "wq_init_attr" });
        }
        // SAFETY: the caller's promise.
        let init = unsafe {
            objects::context(context)?;
            &mut *init
        };
        if init.wq_type != IBV_WQT_RQ {
            return Err(Failure::Argument { what: "wq_type", value: init.wq_type.into() });
        }
        if init.comp_mask & !IBV_WQ_INIT_ATTR_FLAGS != 0 {
            return Err(Failure::Unsupported { what: "an attribute of the work queue" });
        }
        if init.comp_mask & IBV_WQ_INIT_ATTR_FLAGS != 0 && init.create_flags != 0 {
            return Err(Failure::Unsupported { what: "a creation flag" });
        }
        // SAFETY: the caller's promise.
        let (pd, cq) = unsafe { (find::<ibv_pd>(init.pd)?, find::<ibv_cq_ex>(init.cq)?) };
        let id = ContextId::of(context);
        if pd.context != id || cq.context != id {
            return Err(Failure::OtherContext { what: "domain or completion queue" });
        }
        let wq = Wq::new(&pd.inner, &cq.inner, init.max_wr, init.max_sge)?;
        let view = View::new(wq.clone(), id);
        let object = ibv_wq::pool().insert(view, |object, handle| {
            // SAFETY: nobody else sees the place yet; it starts zeroed.
            let object = unsafe { &mut *object };
            (object.context, object.wq_context) = (context, init.wq_context);
            (object.pd, object.cq) = (init.pd, init.cq);
            (object.handle, object.wq_num, object.wq_type) = (handle, wq.number(), IBV_WQT_RQ);
            object.state = WqState::Reset as u32;
            object.post_recv = Some(post_wq_recv);
        })?;
        (init.max_wr, init.max_sge) = (wq.max_wr(), wq.max_sge());
        Ok(object.as_ptr())
    })
}

fn state(what: &'static str, value: u32) -> Outcome<WqState> {
    match value {
        0 => Ok(WqState::Reset),
        1 => Ok(WqState::Ready),
        2 => Ok(WqState::Error),
        other => Err(Failure::Argument { what, value: other.into() }),
    }
}

/// ibv_modify_wq(3).
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or points to the structure.
pub(crate) unsafe extern "C" fn modify_wq(wq: *mut ibv_wq, attr: *mut ibv_wq_attr) -> c_int {
    fail::status("ibv_modify_wq", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "wq_attr" });
        }
        // SAFETY: the caller's promise.
        let (found, attr) = unsafe { (find::<ibv_wq>(wq)?, *attr) };
        let asked = |bit: u32| attr.attr_mask & bit != 0;
        if attr.attr_mask & !(IBV_WQ_ATTR_STATE | IBV_WQ_ATTR_CURR_STATE | IBV_WQ_ATTR_FLAGS) != 0 {
            return Err(Failure::Argument { what: "attr_mask", value: attr.attr_mask.into() });
        }
        if asked(IBV_WQ_ATTR_FLAGS) && attr.flags_mask != 0 {
            return Err(Failure::Unsupported { what: "a flag of the work queue" });
        }
        let current = match asked(IBV_WQ_ATTR_CURR_STATE) {
            true => Some(state("curr_wq_state", attr.curr_wq_state)?),
            false => None,
        };
        let to = match asked(IBV_WQ_ATTR_STATE) {
            true => state("wq_state", attr.wq_state)?,
            false => found.inner.state(),
        };
        found.inner.modify(to, current)?;
        // SAFETY: the place is alive; the field is ours to write.
        unsafe { (&raw mut (*found.object()).state).write(to as u32) };
        Ok(())
    })
}

/// ibv_destroy_wq(3): EBUSY while a table has it.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_wq(wq: *mut ibv_wq) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_destroy_wq", || unsafe {
        objects::destroy::<ibv_wq, _, _>(wq, |wq: &Wq| wq.destroy())
    })
}

/// ibv_post_wq_recv(3).
///
/// # Safety
/// As for [`objects::find`]; `wr` is null or leads to a list of requests.
unsafe extern "C" fn post_wq_recv(
    wq: *mut ibv_wq,
    wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    fail::status("ibv_post_wq_recv", || {
        // SAFETY: the caller's promise.
        unsafe {
            let found = ibv_wq::pool().find(wq).inspect_err(|_| post::blame(bad, wr))?;
            post::receives(wr, bad, |wr_id, sges| found.inner.post_recv(wr_id, sges))
        }
    })
}

/// ibv_create_rwq_ind_table(3).
///
/// # Safety
/// As for [`objects::find`], for the context and the queues in `init`, which is null or points to the structure.
pub(crate) unsafe extern "C" fn create_rwq_ind_table(
    context: *mut ibv_context,
    init: *mut ibv_rwq_ind_table_init_attr,
) -> *mut ibv_rwq_ind_table {
    fail::object("ibv_create_rwq_ind_table", || {
        if init.is_null() {
            return Err(Failure::Null { what: "init_attr" });
        }
        // SAFETY: the caller's promise.
        let (soft, init) = unsafe { (objects::context(context)?.context.clone(), *init) };
        if init.comp_mask != 0 {
            return Err(Failure::Unsupported { what: "an attribute of the table" });
        }
        let size = 1_usize.checked_shl(init.log_ind_tbl_size).unwrap_or(usize::MAX);
        if size > LARGEST_TABLE {
            let value = init.log_ind_tbl_size.into();
            return Err(Failure::Argument { what: "log_ind_tbl_size", value });
        }
        if init.ind_tbl.is_null() {
            return Err(Failure::Null { what: "ind_tbl" });
        }
        // SAFETY: the caller's promise: as many as the size says.
        let queues = unsafe { std::slice::from_raw_parts(init.ind_tbl, size) };
        // SAFETY: the caller's promise.
        let found = |wq: &*mut ibv_wq| Ok(unsafe { find::<ibv_wq>(*wq)? }.inner.clone());
        let queues = queues.iter().map(found).collect::<Outcome<Vec<_>>>()?;
        let table = RwqTable::new(&soft, queues)?;
        let number = table.handle();
        let view = View {
            inner: table,
            context: ContextId::of(context),
            unacknowledged: AtomicU32::new(0),
            extra: (),
        };
        let object = ibv_rwq_ind_table::pool().insert(view, |object, handle| {
            let table = ibv_rwq_ind_table {
                context,
                ind_tbl_handle: handle,
                ind_tbl_num: number,
                comp_mask: 0,
            };
            // SAFETY: nobody else sees the place yet.
            unsafe { object.write(table) };
        })?;
        Ok(object.as_ptr())
    })
}

/// Entries that a table is looked at for.
const LARGEST_TABLE: usize = 1 << 16;

/// ibv_destroy_rwq_ind_table(3): EBUSY while a queue pair has it.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn destroy_rwq_ind_table(table: *mut ibv_rwq_ind_table) -> c_int {
    // SAFETY: the caller's promise.
    fail::status("ibv_destroy_rwq_ind_table", || unsafe {
        objects::destroy::<ibv_rwq_ind_table, _, _>(table, |table: &RwqTable| table.destroy())
    })
}
