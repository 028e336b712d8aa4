//! Communication management of InfiniBand as sans-I/O state machines.
//!
//! A [`Cm`] makes and ends connections and resolves datagram services, with MADs on QP1 (IBA
//! chapter 12). It has no clock, socket or thread; whoever owns it supplies those:
//!
//! - [`connect`](Cm::connect), [`listen`](Cm::listen), [`accept`](Cm::accept),
//!   [`disconnect`](Cm::disconnect) and their like: what the program wants;
//! - [`handle_mad`](Cm::handle_mad): what QP1 receives;
//! - [`poll_transmit`](Cm::poll_transmit), until it gives nothing: what QP1 is to send;
//! - [`poll_event`](Cm::poll_event), until it gives nothing: what the program is to hear of;
//! - [`handle_timeout`](Cm::handle_timeout), at [`next_timeout`](Cm::next_timeout).
//!
//! # The life of a connection
//! ```text
//! active                                    passive
//! connect()            -- REQ -->           Event::Request
//! Event::Reply         <-- REP --           accept()
//! establish()          -- RTU -->           Event::Established
//! disconnect()         -- DREQ ->           Event::Disconnected
//! Event::Disconnected  <- DREP --
//! Event::TimewaitExit                       Event::TimewaitExit
//! ```
//! What was connected ends in one `Disconnected`, what never was in one `Rejected` or `Failed`,
//! and of what the program has [released](Cm::release) it hears no more. A passive side whose RTU
//! was lost hears `Established` by the first sign that it was sent: data
//! ([`communication_established`](Cm::communication_established)) or a DREQ.
//!
//! # Several processes behind one QP1
//! The communication IDs that a `Cm` gives out carry its [slot](Config::slot) in their upper bits.
//! Whoever receives a MAD asks [`destination`] for whom it is, and for a communication ID
//! [`slot_of`]. A MAD without destination may be given to every process: those that it does not
//! concern ignore it.
//!
//! Clauses cited as "IBA" are those of the InfiniBand Architecture Specification, volume 1,
//! release 1.4.
#![forbid(unsafe_code)]

mod cm;
mod config;
mod counters;
mod error;
mod event;
mod ids;
mod params;
mod probe;
pub mod rmpp;
pub mod subnet;
mod time;

pub use cm::{Bequest, Cm, ConnId, ListenerId, Parting, SidrId, Transmit};
pub use config::Config;
pub use counters::Counters;
pub use error::{AnswerError, ConnectError, ListenError, PrivateDataError};
pub use event::{Disconnect, Event, Failure, Reply, Request, SidrReply, SidrRequest};
pub use ids::slot_of;
pub use ironverbs_wire::mad::cm::{Destination, destination};
pub use params::{Accept, Connect, LocalAddr, Resolve, SidrAnswer};
pub use probe::{
    PERIOD as PROBE_PERIOD, ProbeEvent, ProbeId, Prober, SERVICE as PROBE_SERVICE,
    SILENCE as PROBE_SILENCE,
};
pub use time::{Instant, exponential};
