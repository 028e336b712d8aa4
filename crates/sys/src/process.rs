//! Processes: pidfds, identity, fork.
