//! Every system call and OS-level unsafe of ironverbs.
