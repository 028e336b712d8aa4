//! Raw memory: copies, atomics and probes of address ranges.
