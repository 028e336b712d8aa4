//! Address handles.
//!
//! Pointers are the program's and the library's: to objects of this driver.

use std::ffi::c_int;
use std::ptr;

use ironverbs_kernel::command::Response;
use ironverbs_kernel::rxe::{self, send};

use super::super::gids;
use super::super::objects::path;
use super::{free_if, zeroed};
use crate::abi::*;
use crate::driver::{cmd_create_ah, cmd_destroy_ah};

/// An address handle. The public part starts it.
#[repr(C)]
pub(super) struct Ah {
    public: ibv_ah,
    /// The number by which requests name it; 0 from kernels that want `address` in each of them.
    pub(super) number: u32,
    pub(super) address: Option<send::Address>,
}

pub(super) unsafe extern "C" fn create_ah(
    pd: *mut ibv_pd,
    attr: *const ibv_ah_attr,
) -> *mut ibv_ah {
    // SAFETY: the verb's promise.
    unsafe {
        let ah = zeroed::<Ah>();
        if ah.is_null() {
            return ptr::null_mut();
        }
        let mut response = [0_u8; 4 + 4 + rxe::AH_RESPONSE];
        // The driver's part follows the fixed one of 4 bytes.
        let (out, len) = (response.as_mut_ptr().cast(), 4 + rxe::AH_RESPONSE);
        let mut errno = cmd_create_ah(pd, ah.cast(), attr, out, len);
        if errno == 0 {
            (*ah).number = Response(&response).u32(4);
            (*ah).address = None;
            if (*ah).number == 0 {
                let path = path(&*attr);
                match gids::whole((*pd).context, path.port_num.into(), path.sgid_index.into()) {
                    Ok(entry) => (*ah).address = Some(send::Address::new(&path, entry.gid)),
                    Err(wrong) => {
                        cmd_destroy_ah(ah.cast());
                        errno = wrong;
                    }
                }
            }
        }
        if errno != 0 {
            libc::free(ah.cast());
            crate::fail::set_errno(errno);
            return ptr::null_mut();
        }
        ah.cast()
    }
}

pub(super) unsafe extern "C" fn destroy_ah(ah: *mut ibv_ah) -> c_int {
    // SAFETY: the verb's promise.
    unsafe { free_if(cmd_destroy_ah(ah), ah) }
}
