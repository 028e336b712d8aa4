//! The local path: packets between processes of one user on one host, through shared memory.
//!
//! A *lane* goes from one process to another: a ring in a memfd, made by the sender when it first has
//! something for that process, and handed over by the mail of the host registry. [`lanes`] has the
//! lanes of a Host, [`ring`] the ring in memory, [`protocol`] what the two sides say to each other.

pub mod lanes;
pub mod protocol;
pub mod ring;
mod table;

pub use lanes::{Inbound, Lanes, Outbound};
pub use ring::{Consumer, MAX_RECORD, Producer, Record, RingError};

pub(crate) use table::{Departure, LaneTable};
