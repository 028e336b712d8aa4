//! The private version node: what Debian's libmlx5, libefa and other drivers import.
//!
//! Programs link those libraries for their direct verbs, so that they must load; their devices are
//! the kernel's, which this library does not drive. Their constructors register here, harmlessly;
//! every call that would reach a kernel device fails.

use std::ffi::{c_int, c_uint, c_void};

use parking_lot::Mutex;

use crate::abi::*;
use crate::fail::{self, Failure};

const DRIVERS: Failure = Failure::Unsupported { what: "a driver of a kernel device" };

/// Drivers that registered, for debuggers to see.
static REGISTERED: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// verbs_register_driver_34, called by constructors of driver libraries.
pub(crate) extern "C" fn register_driver(ops: *const c_void) {
    REGISTERED.lock().push(ops as usize);
}

/// Every private function that returns the value of errno. Its arguments do not matter.
pub(crate) extern "C" fn unsupported() -> c_int {
    fail::status("a driver's call", || Err(DRIVERS))
}

/// Those that return a count, for which a positive number would be success.
pub(crate) extern "C" fn unsupported_count() -> c_int {
    fail::number("a driver's call", || Err(DRIVERS))
}

/// Those that return a pointer.
pub(crate) extern "C" fn unsupported_object() -> *mut c_void {
    fail::object("a driver's call", || Err(DRIVERS))
}

/// Those that return nothing, and work only on what a driver allocated.
pub(crate) extern "C" fn unsupported_silent() {
    fail::silent("a driver's call", || Err(DRIVERS));
}

/// __ioctl_final_num_attrs: a sum over buffers of a command that is never issued.
pub(crate) extern "C" fn ioctl_final_num_attrs(num_attrs: c_uint, _link: *mut c_void) -> c_uint {
    num_attrs
}

/// verbs_open_device.
pub(crate) extern "C" fn open_device(_: *mut ibv_device, _: *mut c_void) -> *mut ibv_context {
    fail::object("verbs_open_device", || Err(DRIVERS))
}
