//! Robust locks in shared memory.
