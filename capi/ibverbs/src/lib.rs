//! libibverbs.so.1: the C ABI over ironverbs.
