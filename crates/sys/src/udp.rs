//! UDP sockets for RoCEv2: batches, GSO, GRO, and the path of every packet.
//!
//! An [`RxSocket`] receives both address families of one port; a [`TxSocket`] per family sends.
//! They are separate because a received packet is steered by its destination port, and a sent one
//! by its source port.
//!
//! The ICRC covers the IPv4 Identification field, which a socket can neither set nor see. An
//! unconnected socket with `IP_MTU_DISCOVER=DO` always sends 0, and the segments of a `UDP_SEGMENT`
//! send are numbered 0, 1, 2, … wherever the kernel splits them; so a [`TxSocket`] is never
//! connected, and segment `i` of a send carries Identification `i`.
//!
//! One system call costs as much as copying several packets of 4 KiB: send segments of one size in
//! one call, and receive them by [`Datagram::segments`].

mod address;
mod control;
mod rx;
mod sockopt;
mod tx;
mod unreached;

pub use rx::{Backlog, BindOptions, Datagram, RxBatch, RxSocket};
pub use tx::{Family, Transmit, TxSocket};
pub use unreached::Unreached;

/// Segments that one send may be split into (`UDP_MAX_SEGMENTS` of the oldest kernels with GSO).
pub const MAX_SEGMENTS: usize = 64;

/// Bytes that one send may carry: with its Ethernet, IPv6 and UDP headers it stays below 64 KiB,
/// from where on devices, loopback among them, have the kernel split it (`gso_max_size`).
pub const MAX_BATCH: usize = 65_535 - 14 - 40 - 8;

/// IPv4 TTL and IPv6 hop limit of packets whose path says 0, and of kernel rxe.
pub const DEFAULT_HOP_LIMIT: u8 = 64;
