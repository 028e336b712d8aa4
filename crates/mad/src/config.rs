//! What a connection manager is set up with.

/// Identity and limits of a [`Cm`](crate::Cm).
#[derive(Copy, Clone, Debug)]
pub struct Config {
    /// The upper bits of every communication ID given out: whose it is among the processes of one
    /// QP1.
    pub slot: u32,
    /// How many bits of a communication ID are the slot, at most 16. The rest must be enough for
    /// the connections there are and those that rest.
    pub slot_bits: u8,
    /// Decides communication and transaction IDs. From a source of randomness, or strangers may
    /// guess them.
    pub seed: u128,
    /// Connections, made or in the making or resting, and resolutions. Above it `connect` fails
    /// and requests are dropped, so that the peer asks again.
    pub max_connections: usize,
    /// Requests that the program has not answered, of all listeners together; more are dropped. As many again are taken
    /// from senders that have proven to have the address they send from, an eighth of them from each.
    pub max_pending: usize,
    /// Those, and connections that peers have asked for and that are answered and not established; as above.
    pub max_half_open: usize,
    /// Refused connections and answered resolutions that are kept to answer a repetition alike.
    /// Beyond it a repetition counts as a new request.
    pub max_lingering: usize,
    /// How long those are kept, in nanoseconds.
    pub linger: u64,
    /// MADs that wait for [`poll_transmit`](crate::Cm::poll_transmit). More are dropped, as if the
    /// network had lost them.
    pub max_transmits: usize,
    /// Time that a peer is told to wait for a slow program when it asks again,
    /// 4.096 us * 2^n.
    pub mra_service_timeout: u8,
}

impl Config {
    /// The kernel's times and generous limits.
    pub fn new(slot: u32, slot_bits: u8, seed: u128) -> Self {
        Self {
            slot,
            slot_bits,
            seed,
            max_connections: 1 << 17,
            max_pending: 1 << 12,
            max_half_open: 1 << 13,
            max_lingering: 1 << 10,
            linger: 10_000_000_000,
            max_transmits: 1 << 12,
            mra_service_timeout: 24,
        }
    }
}
