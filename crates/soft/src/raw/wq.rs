//! Work queues, tables of them, and how frames are spread over them (ibv_create_wq(3), ibv_create_rwq_ind_table(3),
//! receive side scaling).

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;

use super::headers::{Headers, TCP, UDP, Version, bytes};
use super::queue::{RecvQueue, WqState};
use crate::context::limits;
use crate::object::{self, Identity};
use crate::{Context, Cq, Error, Pd, PostError, QpState, Sge};

/// A work queue of receives.
#[derive(Debug)]
pub struct Wq {
    pub(crate) identity: Identity,
    pub(crate) users: AtomicUsize,
    number: u32,
    max_wr: u32,
    max_sge: u32,
    pub(crate) queue: RecvQueue,
}

impl Wq {
    /// In state RESET.
    pub fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, max_wr: u32, max_sge: u32) -> Result<Arc<Wq>, Error> {
        let context = pd.context();
        context.check()?;
        pd.identity.check()?;
        cq.identity.check()?;
        if !Arc::ptr_eq(cq.context(), context) {
            return Err(Error::Foreign { what: "completion queue" });
        }
        if max_wr == 0 {
            let why = "a queue holds at least one request";
            return Err(Error::Invalid { what: "max_wr", value: 0, why });
        }
        for (what, asked, max) in
            [("max_wr", max_wr, limits::WR), ("max_sge", max_sge, limits::SGE)]
        {
            if asked > max {
                return Err(Error::Limit { what, asked: asked.into(), max: max.into() });
            }
        }
        let host = context.inner();
        let identity = host.counted(&host.quotas.wq)?;
        let number = super::number(host)?;
        object::take(&pd.users);
        object::take(&cq.users);
        let wq = Arc::new(Wq {
            identity,
            users: AtomicUsize::new(0),
            number,
            max_wr,
            max_sge: max_sge.max(1),
            queue: RecvQueue::new(number, pd, cq, max_wr, max_sge),
        });
        context.device().steering.note_wq(&wq);
        Ok(wq)
    }

    /// Its number, which completions name.
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Receives it holds.
    pub fn max_wr(&self) -> u32 {
        self.max_wr
    }

    /// Elements of a receive's list.
    pub fn max_sge(&self) -> u32 {
        self.max_sge
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        self.queue.pd().context()
    }

    /// State now.
    pub fn state(&self) -> WqState {
        self.queue.state()
    }

    /// Moves it to another state, from `current` if that is given (ibv_modify_wq(3)).
    pub fn modify(&self, state: WqState, current: Option<WqState>) -> Result<(), Error> {
        self.context().check()?;
        self.identity.check()?;
        let now = self.queue.state();
        if let Some(other) = current.filter(|current| *current != now) {
            let why = "it is in another state";
            return Err(Error::Invalid { what: "curr_wq_state", value: other as u64, why });
        }
        let allowed = matches!(
            (now, state),
            (WqState::Reset, WqState::Ready | WqState::Reset)
                | (WqState::Ready, _)
                | (WqState::Error, WqState::Reset | WqState::Error)
        );
        if !allowed {
            let why = "there is no way there from its state";
            return Err(Error::Invalid { what: "wq_state", value: state as u64, why });
        }
        self.queue.set_state(state, false);
        Ok(())
    }

    /// Posts a receive (ibv_post_wq_recv(3)).
    pub fn post_recv(&self, wr_id: u64, sges: &[Sge]) -> Result<(), PostError> {
        self.context().inner().check().map_err(|_| PostError::State(QpState::Reset))?;
        if !self.context().device().is_present() {
            return Err(PostError::DeviceGone);
        }
        self.queue.post(wr_id, sges)
    }

    /// Destroys it; Busy while a table has it (ibv_destroy_wq(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.context().inner().check()?;
        self.identity.retire_unless_used(&self.users)?;
        self.end();
        Ok(())
    }

    /// Flushes if its device is gone.
    pub(crate) fn follow_device(&self) {
        if !self.context().device().is_present() && self.queue.state() != WqState::Reset {
            self.queue.set_state(WqState::Error, false);
        }
    }

    fn end(&self) {
        self.queue.set_state(WqState::Reset, false);
        object::give_back(&self.queue.pd().users);
        object::give_back(&self.queue.cq().users);
        super::give_back(self.context().inner(), self.number);
    }
}

impl Drop for Wq {
    fn drop(&mut self) {
        if self.context().inner().check().is_ok() && self.identity.retire().is_ok() {
            self.end();
        }
    }
}

object::accessors!(Wq);

/// A table of work queues, one of which each frame goes to.
#[derive(Debug)]
pub struct RwqTable {
    pub(crate) identity: Identity,
    pub(crate) users: AtomicUsize,
    context: Arc<Context>,
    wqs: Vec<Arc<Wq>>,
}

impl RwqTable {
    /// Of so many queues as a power of two says; one may be there several times.
    pub fn new(context: &Arc<Context>, wqs: Vec<Arc<Wq>>) -> Result<Arc<RwqTable>, Error> {
        context.check()?;
        if !wqs.len().is_power_of_two() || wqs.len() > limits::RWQ_TABLE as usize {
            let (asked, max) = (wqs.len() as u64, limits::RWQ_TABLE.into());
            return Err(Error::Limit { what: "size of the table", asked, max });
        }
        for wq in &wqs {
            wq.identity.check()?;
            if !Arc::ptr_eq(wq.context(), context) {
                return Err(Error::Foreign { what: "work queue" });
            }
        }
        let identity = context.inner().counted(&context.inner().quotas.rwq_table)?;
        wqs.iter().for_each(|wq| object::take(&wq.users));
        let users = AtomicUsize::new(0);
        Ok(Arc::new(RwqTable { identity, users, context: context.clone(), wqs }))
    }

    /// The context it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Its queues.
    pub fn wqs(&self) -> &[Arc<Wq>] {
        &self.wqs
    }

    /// The queue of a hash.
    pub(crate) fn of(&self, hash: u32) -> Option<&Arc<Wq>> {
        self.wqs.get(hash as usize & self.wqs.len().wrapping_sub(1))
    }

    /// Destroys it; Busy while a queue pair has it (ibv_destroy_rwq_ind_table(3)).
    pub fn destroy(&self) -> Result<(), Error> {
        self.context.inner().check()?;
        self.identity.retire_unless_used(&self.users)?;
        self.end();
        Ok(())
    }

    fn end(&self) {
        self.wqs.iter().for_each(|wq| object::give_back(&wq.users));
    }
}

impl Drop for RwqTable {
    fn drop(&mut self) {
        if self.identity.retire().is_ok() {
            self.end();
        }
    }
}

object::accessors!(RwqTable);

/// Bytes of the key of a [`RxHash`].
pub const HASH_KEY: usize = 40;

/// What frames are spread by: the hash of Toeplitz over some of their fields (`struct ibv_rx_hash_conf`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RxHash {
    key: [u8; HASH_KEY],
    fields: u64,
}

/// Bits of `enum ibv_rx_hash_fields`.
pub mod hash_fields {
    /// Source and destination of IPv4.
    pub const IPV4: [u64; 2] = [1, 1 << 1];
    /// Source and destination of IPv6.
    pub const IPV6: [u64; 2] = [1 << 2, 1 << 3];
    /// Source and destination port of TCP.
    pub const TCP: [u64; 2] = [1 << 4, 1 << 5];
    /// Source and destination port of UDP.
    pub const UDP: [u64; 2] = [1 << 6, 1 << 7];
    /// Of the frame inside a tunnel.
    pub const INNER: u64 = 1 << 31;
    /// All that this device knows.
    pub const ALL: u64 = 0xff | INNER;
}

impl RxHash {
    /// # Errors
    /// NotSupported for fields that this device does not know; Invalid for a key of another length, and where fields of
    /// both IP versions or of both transports are named.
    pub fn new(key: &[u8], fields: u64) -> Result<RxHash, Error> {
        use hash_fields::{ALL, IPV4, IPV6, TCP, UDP};
        let Ok(key) = key.try_into() else {
            let why = "a key has 40 bytes";
            return Err(Error::Invalid { what: "rx_hash_key_len", value: key.len() as u64, why });
        };
        if fields & !ALL != 0 {
            return Err(Error::NotSupported { what: "a field of the hash" });
        }
        let any = |of: [u64; 2]| fields & (of[0] | of[1]) != 0;
        if (any(IPV4) && any(IPV6)) || (any(TCP) && any(UDP)) {
            let why = "of two versions, or of two transports, one can be chosen";
            return Err(Error::Invalid { what: "rx_hash_fields_mask", value: fields, why });
        }
        Ok(RxHash { key, fields })
    }

    /// The hash of a frame; 0 where it has not the headers.
    pub(crate) fn of(&self, frame: &[u8], headers: &Headers) -> u32 {
        let inner = headers.vxlan(frame).and_then(|(_, at)| Headers::of(frame, at));
        let headers = match self.fields & hash_fields::INNER {
            0 => Some(*headers),
            _ => inner,
        };
        headers.and_then(|headers| self.input(frame, &headers)).unwrap_or(0)
    }

    fn input(&self, frame: &[u8], headers: &Headers) -> Option<u32> {
        let mut input = [0; 36];
        let mut len = 0;
        let mut put = |from: &[u8]| {
            if let Some(to) = input.get_mut(len..len + from.len()) {
                to.copy_from_slice(from);
                len += from.len();
            }
        };
        let wanted = |bit: u64| self.fields & bit != 0;
        let ip = headers.ip?;
        let ([source, destination], at, size) = match ip.version {
            Version::V4 => (hash_fields::IPV4, ip.at + 12, 4),
            Version::V6 => (hash_fields::IPV6, ip.at + 8, 16),
        };
        for (bit, at) in [(source, at), (destination, at + size)] {
            if wanted(bit) {
                put(frame.get(at..at + size)?);
            }
        }
        for (protocol, [source, destination]) in [(TCP, hash_fields::TCP), (UDP, hash_fields::UDP)]
        {
            let Some(at) = headers.transport(protocol).filter(|_| !ip.is_fragment) else {
                continue;
            };
            for (bit, at) in [(source, at), (destination, at + 2)] {
                if wanted(bit) {
                    put(&bytes::<2>(frame, at)?);
                }
            }
        }
        Some(toeplitz(&self.key, &input[..len]))
    }
}

/// For every bit of the input that is one, the 32 bits of the key from there on, added without carry.
fn toeplitz(key: &[u8; HASH_KEY], input: &[u8]) -> u32 {
    let mut window = u64::from_be_bytes(bytes(key, 0).unwrap_or_default());
    let mut hash = 0;
    for (i, byte) in input.iter().enumerate() {
        for bit in 0..8 {
            if byte & (0x80 >> bit) != 0 {
                hash ^= (window >> 32) as u32;
            }
            window <<= 1;
        }
        window |= u64::from(key.get(i + 8).copied().unwrap_or(0));
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The key and the results that Microsoft publishes to verify an implementation with.
    const KEY: [u8; HASH_KEY] = [
        0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f,
        0xb0, 0xd0, 0xca, 0x2b, 0xcb, 0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30,
        0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
    ];

    #[test]
    fn published_results() {
        for (source, source_port, destination, port, of_addresses, of_all) in [
            ([66, 9, 149, 187], 2794u16, [161, 142, 100, 80], 1766u16, 0x323e_8fc2, 0x51cc_c178),
            ([199, 92, 111, 2], 14230, [65, 69, 140, 83], 4739, 0xd718_262a, 0xc626_b0ea),
            ([24, 19, 198, 95], 12898, [12, 22, 207, 184], 38024, 0xd2d0_a5de, 0x5c2b_394a),
        ] {
            let mut input = [source, destination].concat();
            assert_eq!(toeplitz(&KEY, &input), of_addresses);
            input.extend(source_port.to_be_bytes());
            input.extend(port.to_be_bytes());
            assert_eq!(toeplitz(&KEY, &input), of_all);
        }
    }

    #[test]
    fn fields_that_exclude_each_other() {
        assert!(RxHash::new(&KEY, 3).is_ok());
        assert!(RxHash::new(&KEY[1..], 3).is_err());
        assert!(RxHash::new(&KEY, 5).is_err());
        assert!(RxHash::new(&KEY, 0x50).is_err());
        assert!(RxHash::new(&KEY, 0x100).is_err());
    }
}
