//! The monotonic clock.
