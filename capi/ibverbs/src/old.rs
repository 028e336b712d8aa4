//! Version 1.0, the interface of before 2007.
//!
//! Its objects are laid out differently: a device of 1.0 has no name in it, a context carries other
//! operations at other places, work requests begin with `next`. A program linked to it cannot be
//! served with objects of today, so that every call refuses: ENOSYS, and one line on stderr.

use std::ffi::{c_int, c_void};
use std::sync::Once;

use crate::fail::{self, Failure};

fn refusal<T>(verb: &'static str) -> Result<T, Failure> {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        eprintln!("ironverbs: {verb}@IBVERBS_1.0: that interface is not provided: link anew");
    });
    Err(Failure::OldInterface { verb })
}

macro_rules! refused {
    ($($way:ident -> $type:ty { $($name:ident $verb:literal,)* })*) => {$($(
        pub(crate) extern "C" fn $name() -> $type {
            fail::$way($verb, || refusal($verb))
        }
    )*)*};
}

refused! {
    object -> *mut c_void {
    get_device_list "ibv_get_device_list",
    get_device_name "ibv_get_device_name",
    open_device "ibv_open_device",
    alloc_pd "ibv_alloc_pd",
    reg_mr "ibv_reg_mr",
    create_cq "ibv_create_cq",
    create_srq "ibv_create_srq",
    create_qp "ibv_create_qp",
    create_ah "ibv_create_ah",

    }
    number -> c_int {
    get_async_event "ibv_get_async_event",
    get_cq_event "ibv_get_cq_event",
    query_gid "ibv_query_gid",
    query_pkey "ibv_query_pkey",

    }
    status -> c_int {
    close_device "ibv_close_device",
    query_device "ibv_query_device",
    query_port "ibv_query_port",
    dealloc_pd "ibv_dealloc_pd",
    dereg_mr "ibv_dereg_mr",
    resize_cq "ibv_resize_cq",
    destroy_cq "ibv_destroy_cq",
    modify_srq "ibv_modify_srq",
    query_srq "ibv_query_srq",
    destroy_srq "ibv_destroy_srq",
    modify_qp "ibv_modify_qp",
    query_qp "ibv_query_qp",
    destroy_qp "ibv_destroy_qp",
    destroy_ah "ibv_destroy_ah",
    attach_mcast "ibv_attach_mcast",
    detach_mcast "ibv_detach_mcast",

    }
    silent -> () {
    free_device_list "ibv_free_device_list",
    ack_async_event "ibv_ack_async_event",
    ack_cq_events "ibv_ack_cq_events",
    }
}

/// A GUID of 0 is no device's.
pub(crate) extern "C" fn get_device_guid() -> u64 {
    fail::returned("ibv_get_device_guid", || refusal("ibv_get_device_guid")).unwrap_or(0)
}
