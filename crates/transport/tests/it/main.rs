//! Queue pairs on a simulated network, by topic.

mod datagrams;
mod direct;
mod errors;
mod faults;
mod local;
mod loss;
mod model;
mod rc;
mod reference;
mod replay;
mod requester;
mod responder;
mod short;
mod states;
mod support;
mod watched;
mod xrc;
