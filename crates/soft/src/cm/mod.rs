//! The connection manager of a Host: rdma_cm(7) in Rust form.
//!
//! A [`CmId`] is what a socket is to TCP: it is bound, resolved, connected, listens. What becomes of it is told by
//! [`CmEvent`]s on its [`EventChannel`]. The C library and the safe API are thin layers above.
//!
//! Addresses are IP addresses; a device is found by the kernel's routes, and every GID is an address. Calls return at
//! once, save [`CmId::destroy`] and [`CmId::migrate`], which wait for acknowledgements, and reading a channel.

mod address;
mod attach;
mod channel;
mod connect;
mod error;
mod event;
mod grace;
mod happen;
mod ib;
mod id;
mod last_words;
mod manager;
mod multicast;
mod params;
mod ports;
mod resolve;
#[cfg(test)]
mod tests;
mod wire;

pub use channel::{EventChannel, Prepared};
pub use connect::UD_QKEY;
pub use error::CmError;
pub use event::{CmEvent, CmEventKind, EventParam};
pub use ib::IbAddr;
pub use id::{CmId, Options};
pub(crate) use manager::{Manager, SLOT_BITS, TIMER};
pub use params::{ConnParam, Ece, McJoin, PathRecord, PortSpace, Route, UdParam, private_data};
pub(crate) use resolve::{PACKET_LIFE_TIME, RATE};
pub(crate) use wire::{Came, is_ours, pass};
