//! RoCEv2 and InfiniBand packet formats: bytes to values and back, no I/O.
//!
//! A RoCEv2 packet is an IP and UDP header, the InfiniBand base transport header (BTH), extended
//! headers that the opcode calls for, the payload padded to a multiple of four bytes, and a
//! four-byte invariant CRC. Here the UDP payload without the CRC is a [`Packet`], what the IP
//! header adds is a [`Path`], and [`icrc`] ties the two together. What arrives from a network is
//! parsed in this crate and nowhere else; nothing here allocates. [`mad`] has what the payload of
//! a packet to QP1 is, [`ib`] what surrounds a packet on an InfiniBand link in place of IP and UDP.
//!
//! Clauses cited as "IBA" are those of the InfiniBand Architecture Specification, volume 1,
//! release 1.4, and its annex A17 (RoCEv2).
#![forbid(unsafe_code)]

mod gid;
pub mod grh;
mod headers;
pub mod ib;
pub mod icrc;
pub mod mad;
mod mtu;
pub mod opcode;
mod packet;
pub mod psn;

pub use gid::{Gid, IbRoute, ParseGidError, Path};
pub use headers::{Aeth, AtomicAck, AtomicEth, Bth, Deth, Ieth, NakCode, Reth, Syndrome, XrcEth};
pub use mtu::{InvalidMtu, Mtu};
pub use opcode::{Op, Opcode, Service};
pub use packet::{Packet, ParseError, peek_dest_qpn};

/// UDP destination port of RoCEv2 (IBA A17.3.1.3, registered with IANA).
pub const ROCE_PORT: u16 = 4791;

/// Bytes of the invariant CRC that ends every packet.
pub const ICRC_LEN: usize = 4;
