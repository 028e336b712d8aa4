//! Whether the librdmacm.so.1 in this process is the one that belongs to this library.

use std::ffi::CStr;
use std::io::Write;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

static OURS: AtomicBool = AtomicBool::new(false);

/// Called by our librdmacm.so.1 when it is loaded.
pub(crate) extern "C" fn announce() {
    OURS.store(true, Ordering::Release);
}

/// Says once, on stderr, that another librdmacm is loaded: it looks for the kernel's devices.
pub(crate) fn warn_of_foreign() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if OURS.load(Ordering::Acquire) {
            return;
        }
        if let Some(path) = loaded() {
            // Nobody is to be told when stderr is closed.
            let _ = writeln!(
                std::io::stderr(),
                "ironverbs: {path} is not the librdmacm of this libibverbs and does not know its \
                 devices: put both libraries of ironverbs on LD_LIBRARY_PATH, as `ironverbs run` does"
            );
        }
    });
}

/// The path of the librdmacm.so.1 that this process has loaded.
fn loaded() -> Option<String> {
    // SAFETY: RTLD_NOLOAD runs no code of a library, it only finds one that is there.
    let library =
        unsafe { libc::dlopen(c"librdmacm.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if library.is_null() {
        return None;
    }
    // SAFETY: the library is loaded; `info` is filled where dladdr says so, with strings that live
    // as long as the library, which the count taken by dlopen keeps until after the copy.
    unsafe {
        let symbol = libc::dlsym(library, c"rdma_create_id".as_ptr());
        let mut info: libc::Dl_info = std::mem::zeroed();
        let found = !symbol.is_null()
            && libc::dladdr(symbol, &raw mut info) != 0
            && !info.dli_fname.is_null();
        let path = found.then(|| CStr::from_ptr(info.dli_fname).to_string_lossy().into_owned());
        libc::dlclose(library);
        path
    }
}
