//! What became of what arrived.

/// Counts since the [`Cm`](crate::Cm) was made. Each MAD that has no effect counts under one of
/// the reasons below.
#[derive(Copy, Clone, Eq, PartialEq, Debug, Default)]
pub struct Counters {
    /// MADs given to [`handle_mad`](crate::Cm::handle_mad).
    pub received: u64,
    /// MADs taken by [`poll_transmit`](crate::Cm::poll_transmit).
    pub sent: u64,
    /// Messages repeated because no answer came in time.
    pub retries: u64,
    /// No message of communication management, or one with impossible content.
    pub malformed: u64,
    /// About a connection that does not exist here.
    pub unknown_id: u64,
    /// About a connection of another peer: addresses, IDs, transaction or QPN do not match.
    pub wrong_peer: u64,
    /// Repetitions of what had its effect already.
    pub duplicates: u64,
    /// No business of the connection's present state.
    pub unexpected: u64,
    /// Requests refused without asking a program.
    pub refused: u64,
    /// Requests dropped because a backlog or another limit was reached.
    pub over_limit: u64,
    /// Senders of those that were asked to prove their address.
    pub challenged: u64,
    /// Proofs that came.
    pub proven: u64,
    /// Requests that made room for those of senders with a proof.
    pub displaced: u64,
    /// MADs dropped because too many waited to be sent.
    pub transmits_dropped: u64,
}
