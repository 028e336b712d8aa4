//! The classic BPF program that steers packets inside a SO_REUSEPORT group.
