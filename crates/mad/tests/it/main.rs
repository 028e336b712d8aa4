//! Two connection managers, a network between them, and peers of every kind.

mod captures;
mod chaos;
mod client;
mod connections;
mod decoders;
mod endings;
mod fabric;
mod hostile;
mod messages;
mod probe;
mod refusals;
mod resolution;
mod rmpp;
mod subnet;
mod support;
