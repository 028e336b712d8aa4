//! RoCEv2 packet formats: bytes to values and back, no I/O.
