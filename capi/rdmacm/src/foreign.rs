//! What happens beside a libibverbs.so.1 that is not ours.

use std::ffi::c_int;
use std::io::Write;
use std::sync::Once;

unsafe extern "C" {
    /// Defined by our libibverbs.so.1 alone. See `build.rs`; the reference is made weak below.
    fn ironverbs_rdmacm_announce();
}

std::arch::global_asm!(".weak ironverbs_rdmacm_announce");

/// Runs when the library is loaded, and tells libibverbs.so.1 that this is its librdmacm.
#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

extern "C" fn loaded() {
    match announcer() {
        // SAFETY: a function of our libibverbs.so.1 that takes nothing and returns nothing.
        Some(announce) => unsafe { announce() },
        None => complain(),
    }
}

/// None where libibverbs.so.1 is another's.
fn announcer() -> Option<unsafe extern "C" fn()> {
    let address: usize;
    // SAFETY: reads the address that the dynamic linker found, 0 for none. Rust takes the address of a
    // function to be never null, so that it may not ask itself.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        std::arch::asm!(
            "mov {0}, qword ptr [rip + {1}@GOTPCREL]",
            out(reg) address,
            sym ironverbs_rdmacm_announce,
            options(nostack, preserves_flags, readonly, pure),
        );
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        std::arch::asm!(
            "adrp {0}, :got:{1}",
            "ldr {0}, [{0}, :got_lo12:{1}]",
            out(reg) address,
            sym ironverbs_rdmacm_announce,
            options(nostack, preserves_flags, readonly, pure),
        );
    }
    // SAFETY: null becomes None; anything else is the address of that function.
    unsafe { std::mem::transmute::<usize, Option<unsafe extern "C" fn()>>(address) }
}

fn complain() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // Nobody is to be told when stderr is closed.
        let _ = writeln!(
            std::io::stderr(),
            "ironverbs: librdmacm.so.1 is ironverbs', libibverbs.so.1 is not, so that no call of \
             librdmacm can work: put both libraries of ironverbs on LD_LIBRARY_PATH, as \
             `ironverbs run` does"
        );
    });
}

/// In place of a function that returns a number: -1 and ENOSYS.
pub(crate) extern "C" fn missing_number() -> isize {
    complain();
    refused()
}

/// In place of a function that returns a pointer or a port: 0 and ENOSYS.
pub(crate) extern "C" fn missing_zero() -> usize {
    complain();
    refused();
    0
}

/// A function that is not there yet: -1 and ENOSYS, in whatever signed type is returned.
pub(crate) extern "C" fn refused() -> isize {
    const ENOSYS: c_int = libc::ENOSYS;
    // SAFETY: errno is a thread-local int that always exists.
    unsafe { *libc::__errno_location() = ENOSYS };
    -1
}
