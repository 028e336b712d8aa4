//! The IBA transport of RC, UC and UD queue pairs as sans-I/O state machines.
