//! Every system call and OS-level unsafe of ironverbs.
//!
//! The modules are independent of each other; what they offer is safe wherever it can be. Errors
//! are [`std::io::Error`], carrying the kernel's errno, unless an item says otherwise.

pub mod barrier;
pub mod biased;
pub mod bpf;
pub mod cancel;
pub mod clock;
pub mod copy;
pub mod diag;
pub mod errno;
pub mod event;
pub mod lock;
pub mod marks;
pub mod mem;
pub mod moment;
pub mod netlink;
pub mod packet;
pub mod peer;
pub mod process;
pub mod pull;
pub mod shm;
pub mod udp;
pub mod umad;
pub mod unix;
pub mod uverbs;
