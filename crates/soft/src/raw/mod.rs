//! Raw packets: queue pairs that send and receive whole Ethernet frames (IBV_QPT_RAW_PACKET), and the rules that say
//! which frames come to whom. They need no peer and have no part in the rest of the device; what carries them are packet
//! sockets.

mod checksum;
mod counters;
mod flow;
mod headers;
mod qp;
mod queue;
mod steering;
mod wq;

pub use counters::{Counted, FlowCounters};
pub use flow::{Flow, FlowInit, FlowKind, Layer, Spec};
pub use qp::{RawInit, RawPost, RawQp};
pub use queue::WqState;
pub use wq::{HASH_KEY, RwqTable, RxHash, Wq, hash_fields};

pub(crate) use steering::Steering;

use crate::Error;
use crate::host::Inner;

/// A number for completions to name, of those that queue pairs have.
fn number(host: &Inner) -> Result<u32, Error> {
    host.take_qpn(host.now()).ok_or(Error::NoMemory { what: "queue pair number" })
}

/// Lets a number rest that nobody has any more.
fn give_back(host: &Inner, number: u32) {
    host.qps.write().rest(number, host.now());
}
