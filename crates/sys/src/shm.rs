//! Shared memory: memfds and mappings.
