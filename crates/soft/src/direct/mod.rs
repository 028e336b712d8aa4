//! One-sided operations that the initiator carries out by itself: a WRITE, READ or atomic to a process of
//! this host touches the target's memory without the target taking part, so that one that never calls us
//! still sees the data.
//!
//! - The target tells in a [`table`] what its peers may do: a line per queue pair and per region, in a memfd
//!   that it alone can write. [`remote`] is a peer's table, mapped here.
//! - The initiator says in a [hazard slot](slots) what it is about to touch, looks whether the lines are still
//!   as they were, copies, and clears the slot. Who takes something away from its peers changes the line,
//!   then [waits](watch) for the slots that name it. The rules of that are in [`protocol`].
//! - [`initiator`] does it: in the same process, in memory that both have mapped ([`arena`]), or by the kernel
//!   (process_vm_writev(2)). Wherever there is a doubt the request goes as packets, whose responder finds
//!   what is wrong with it.

pub(crate) mod arena;
pub(crate) mod initiator;
pub mod protocol;
pub(crate) mod remote;
pub(crate) mod slots;
pub(crate) mod table;
pub(crate) mod watch;

pub use arena::Memory;
pub(crate) use initiator::{Aim, Initiator, Local};
pub(crate) use remote::Remote;
pub(crate) use table::Table;
pub(crate) use watch::Watch;

/// What a hazard slot names, and what is waited for.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Thing {
    /// The region in this line of the table.
    Region(usize),
    /// The queue pair in this line.
    Qp(usize),
}
