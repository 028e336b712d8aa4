//! One queue pair with its memory, made for one test and taken down after it.

use std::collections::VecDeque;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::Duration;

use ironverbs::{
    Access, Ah, Before, CompletionError, ConnectOptions, Cq, Destination, Done, Endpoint, Error,
    Gid, Message, Mtu, Op, Output, Pd, Qp, Rc, Received, Region, RemoteRegion, Slice, Uc, Ud,
    Unconnected,
};

use super::pattern;
use super::place::Place;
use super::protocol::{Checked, Operation, Peer, Test, Transport};
use crate::explain;

/// Room in front of a datagram's payload for its header; whole cache lines keep the payload
/// aligned.
const HEADER_ROOM: usize = 64;

/// Memory is bounded by this many bytes a side, but for a single message that is larger.
const MAX_MEMORY: usize = 256 << 20;

/// Receives posted for each request in the window, so that a sender rarely finds none.
const SPARE: u32 = 2;

/// Where a message that finds none is lost, as many as a burst takes.
const BURST: u32 = 2048;

/// Requests outstanding for messages of `size` bytes when the caller wants `depth`.
pub(crate) fn window(depth: u32, size: u32) -> u32 {
    let slots = MAX_MEMORY / stride(size) / 2;
    depth.min(u32::try_from(slots).unwrap_or(u32::MAX)).max(1)
}

fn stride(size: u32) -> usize {
    HEADER_ROOM + (size as usize).next_multiple_of(64)
}

/// Receives that a test posts at once.
fn receives(test: &Test) -> u32 {
    let least = test.window * SPARE;
    match (test.operation, test.transport) {
        (Operation::Send, Transport::Rc) => least,
        (Operation::Send, _) => {
            let room = u32::try_from(MAX_MEMORY / 4 / stride(test.size)).unwrap_or(u32::MAX);
            least.max(room.min(BURST))
        }
        _ => 0,
    }
}

/// Where message number `message` stands among the slots of the side that posts it, and in the
/// memory that it is written to or read from.
fn offset(test: &Test, message: u64) -> usize {
    (message % u64::from(test.window)) as usize * stride(test.size) + HEADER_ROOM
}

/// A queue pair that posts, its completion queue and memory, with what is in flight.
pub(crate) struct Lane {
    pub(crate) test: Test,
    place: Place,
    pd: Pd,
    cq: Cq,
    link: Link,
    qkey: u32,
    region: Region,
    /// What messages are sent from, read into, or bring their old value to; None while in flight.
    slots: Vec<Option<Slice>>,
    /// In the order in which they were posted, in which they complete.
    sends: VecDeque<(u64, Sent)>,
    receives: VecDeque<Op<Slice, Message>>,
    /// The receive that ended a sleep.
    woken_by: Option<Output<Slice, Message>>,
    /// A message as it should be, or was.
    scratch: Vec<u8>,
    target: Option<RemoteRegion>,
}

enum Link {
    RcAlone(Unconnected<Rc>),
    UcAlone(Unconnected<Uc>),
    UdAlone(Qp<Ud>),
    Rc(Qp<Rc>),
    Uc(Qp<Uc>),
    Ud(Qp<Ud>, Destination),
    /// Connecting failed.
    Nothing,
}

enum Sent {
    Done(Op<Slice, Done>),
    Before(Op<Slice, Before>),
}

/// A message that arrived.
pub(crate) struct Arrival {
    /// Its number.
    pub(crate) number: u64,
    /// Whether it is what was sent, where that is checked.
    pub(crate) right: bool,
    slice: Slice,
}

impl Lane {
    pub(crate) fn new(place: Place, test: Test) -> Result<Lane, Error> {
        let receives = receives(&test);
        let pd = Pd::new(&place.context)?;
        let cq = Cq::new(&place.context, test.window + receives)?;
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let slots = (test.window + receives) as usize;
        let region = pd.region(stride(test.size) * slots, access)?;
        let qkey = RandomState::new().build_hasher().finish() as u32 & 0x7fff_ffff;
        let (depth, gid) = ((test.window, receives), place.gid_index);
        let link = match test.transport {
            Transport::Rc => {
                let builder = Qp::<Rc>::builder(&pd, &cq).depth(depth.0, depth.1);
                Link::RcAlone(builder.gid_index(gid).build()?)
            }
            Transport::Uc => {
                let builder = Qp::<Uc>::builder(&pd, &cq).access(Access::REMOTE_WRITE);
                Link::UcAlone(builder.depth(depth.0, depth.1).gid_index(gid).build()?)
            }
            Transport::Ud => {
                let builder = Qp::<Ud>::builder(&pd, &cq).depth(depth.0, depth.1);
                Link::UdAlone(builder.gid_index(gid).qkey(qkey).build()?)
            }
        };
        let mut lane = Lane {
            test,
            place,
            pd,
            cq,
            link,
            qkey,
            region,
            slots: Vec::new(),
            sends: VecDeque::with_capacity(test.window as usize),
            receives: VecDeque::with_capacity(receives as usize),
            woken_by: None,
            scratch: vec![0; test.size as usize],
            target: None,
        };
        for slot in 0..receives as usize {
            let start = (test.window as usize + slot) * stride(test.size);
            let (start, end) = match test.transport {
                // The header ends where the payload's cache line begins.
                Transport::Ud => (start + HEADER_ROOM - ironverbs::GRH_LEN, start + HEADER_ROOM),
                _ => (start + HEADER_ROOM, start + HEADER_ROOM),
            };
            let slice = lane.region.slice(start..end + test.size as usize)?;
            lane.post_recv(slice)?;
        }
        Ok(lane)
    }

    /// What the other side must know.
    pub(crate) fn endpoint(&self) -> Result<Peer, Error> {
        let endpoint = match &self.link {
            Link::RcAlone(qp) => qp.endpoint()?,
            Link::UcAlone(qp) => qp.endpoint()?,
            Link::Rc(qp) => qp.endpoint()?,
            Link::Uc(qp) => qp.endpoint()?,
            Link::UdAlone(qp) | Link::Ud(qp, _) => qp.endpoint()?,
            Link::Nothing => Endpoint { gid: self.place.gid, qpn: 0, psn: 0 },
        };
        let RemoteRegion { addr, rkey, len } = self.region.remote();
        let gid = endpoint.gid.to_string();
        Ok(Peer { qpn: endpoint.qpn, psn: endpoint.psn, qkey: self.qkey, gid, addr, rkey, len })
    }

    /// Connects to the other side's QP, ready to receive and to send.
    pub(crate) fn connect(&mut self, peer: &Peer) -> Result<(), String> {
        let gid: Gid = peer.gid.parse().map_err(|e| format!("the peer's GID: {e}"))?;
        if peer.qpn == 0 || peer.qpn > 0xff_ffff || peer.psn > 0xff_ffff {
            let (qpn, psn) = (peer.qpn, peer.psn);
            return Err(format!("the peer's QPN {qpn:#x} or PSN {psn} is not one of 24 bits"));
        }
        self.target = Some(RemoteRegion { addr: peer.addr, rkey: peer.rkey, len: peer.len });
        self.establish(gid, peer).map_err(|e| e.to_string())
    }

    fn establish(&mut self, gid: Gid, peer: &Peer) -> Result<(), Error> {
        let mtu = Mtu::try_from(self.test.mtu).ok();
        let options = ConnectOptions { mtu, ..ConnectOptions::default() };
        let endpoint = Endpoint { gid, qpn: peer.qpn, psn: peer.psn };
        self.link = match std::mem::replace(&mut self.link, Link::Nothing) {
            Link::RcAlone(qp) => Link::Rc(qp.connect(&endpoint, &options)?),
            Link::UcAlone(qp) => Link::Uc(qp.connect(&endpoint, &options)?),
            Link::UdAlone(qp) => {
                let ah = Ah::new(&self.pd, gid, self.place.gid_index)?;
                Link::Ud(qp, Destination { ah, qpn: peer.qpn, qkey: peer.qkey })
            }
            connected => connected,
        };
        Ok(())
    }

    /// Makes ready to post: takes the memory that messages are sent from.
    pub(crate) fn take_slots(&mut self) -> Result<(), Error> {
        for message in 0..u64::from(self.test.window) {
            let start = offset(&self.test, message);
            let len = if self.test.operation.is_atomic() { 8 } else { self.test.size as usize };
            self.slots.push(Some(self.region.slice(start..start + len)?));
        }
        Ok(())
    }

    fn post_recv(&mut self, slice: Slice) -> Result<(), Error> {
        let op = match &self.link {
            Link::RcAlone(qp) => qp.recv(slice)?,
            Link::UcAlone(qp) => qp.recv(slice)?,
            Link::Rc(qp) => qp.recv(slice)?,
            Link::Uc(qp) => qp.recv(slice)?,
            Link::UdAlone(qp) | Link::Ud(qp, _) => qp.recv(slice)?,
            Link::Nothing => return Ok(()),
        };
        self.receives.push_back(op);
        Ok(())
    }

    /// Posts messages `first` to `first + count - 1` together. Atomic number `n` adds one to `n`, or
    /// swaps it for `n + 1`.
    pub(crate) fn post(&mut self, first: u64, count: u64) -> Result<(), String> {
        for message in first..first + count {
            self.prepare(message);
        }
        self.post_prepared(first, count).map_err(|e| e.to_string())
    }

    fn post_prepared(&mut self, first: u64, count: u64) -> Result<(), Error> {
        let Lane { link, slots, sends, test, target, .. } = self;
        let Some(target) = *target else { return Ok(()) };
        let window = u64::from(test.window);
        let messages = first..first + count;
        // A slot is free again before its number comes round.
        let mut taken = messages.filter_map(|message| {
            let slot = slots.get_mut((message % window) as usize)?;
            Some((message, slot.take()?))
        });
        let part = |message| target.part(offset(test, message) as u64, test.size.into());
        match link {
            Link::Rc(qp) => {
                let mut batch = qp.batch();
                for (message, slice) in &mut taken {
                    let sent = match test.operation {
                        Operation::Send => Sent::Done(qp.send(slice).add_to(&mut batch)?),
                        Operation::Write => {
                            Sent::Done(qp.write(slice, &part(message)?).add_to(&mut batch)?)
                        }
                        Operation::Read => {
                            Sent::Done(qp.read(slice, &part(message)?).add_to(&mut batch)?)
                        }
                        Operation::FetchAdd => {
                            Sent::Before(qp.fetch_add(slice, &target, 1).add_to(&mut batch)?)
                        }
                        Operation::CompareSwap => {
                            let swap = qp.compare_swap(slice, &target, message, message + 1);
                            Sent::Before(swap.add_to(&mut batch)?)
                        }
                    };
                    sends.push_back((message, sent));
                }
                submitted(batch.submit())
            }
            Link::Uc(qp) => {
                let mut batch = qp.batch();
                for (message, slice) in &mut taken {
                    let request = match test.operation {
                        Operation::Write => qp.write(slice, &part(message)?),
                        _ => qp.send_with_imm(slice, number_bytes(message)),
                    };
                    sends.push_back((message, Sent::Done(request.add_to(&mut batch)?)));
                }
                submitted(batch.submit())
            }
            Link::Ud(qp, to) => {
                let mut batch = qp.batch();
                for (message, slice) in &mut taken {
                    let request = qp.send_with_imm(slice, to, number_bytes(message));
                    sends.push_back((message, Sent::Done(request.add_to(&mut batch)?)));
                }
                submitted(batch.submit())
            }
            Link::RcAlone(_) | Link::UcAlone(_) | Link::UdAlone(_) | Link::Nothing => Ok(()),
        }
    }

    /// Makes ready what a message sends, or where it brings data.
    fn prepare(&mut self, message: u64) {
        let (test, scratch) = (&self.test, &mut self.scratch);
        if !test.verify || test.operation.is_atomic() {
            return;
        }
        match test.operation {
            Operation::Send | Operation::Write => pattern::fill(scratch, test.seed, message),
            _ => scratch.fill(0),
        }
        let slot = (message % u64::from(test.window)) as usize;
        if let Some(Some(slice)) = self.slots.get_mut(slot) {
            // As long as the slice by construction.
            let _ = slice.write_at(0, scratch);
        }
    }

    /// Drives the device; returns whether anything completed.
    pub(crate) fn drive(&self) -> Result<bool, String> {
        self.cq.poll().map(|n| n > 0).map_err(|e| e.to_string())
    }

    /// The next message of ours that has completed: its number, and whether what it brought was
    /// right, if that is checked and can be seen here.
    pub(crate) fn next_sent(&mut self) -> Result<Option<(u64, Checked)>, String> {
        let Some((message, sent)) = self.sends.pop_front() else { return Ok(None) };
        let (result, slice) = match sent {
            Sent::Done(op) => match op.try_take() {
                Ok((result, slice)) => (result.map(|()| None), slice),
                Err(op) => {
                    self.sends.push_front((message, Sent::Done(op)));
                    return Ok(None);
                }
            },
            Sent::Before(op) => match op.try_take() {
                Ok((result, slice)) => (result.map(Some), slice),
                Err(op) => {
                    self.sends.push_front((message, Sent::Before(op)));
                    return Ok(None);
                }
            },
        };
        let before = result.map_err(|e| self.explain(&e, false))?;
        let checked = match (self.test.verify, before, self.test.operation) {
            (false, ..) => Checked::default(),
            // They run in order, so each finds what the one before left.
            (true, Some(before), _) => Checked::one(before == message),
            (true, None, Operation::Read) => {
                let slot = message % u64::from(self.test.window);
                let read = slice.read_at(0, &mut self.scratch).is_ok();
                Checked::one(read && pattern::matches(&self.scratch, self.test.seed, slot))
            }
            (true, None, _) => Checked::default(),
        };
        let slot = (message % u64::from(self.test.window)) as usize;
        if let Some(place) = self.slots.get_mut(slot) {
            *place = Some(slice);
        }
        Ok(Some((message, checked)))
    }

    /// The next message that has arrived; `expected` is its number where none can be lost.
    pub(crate) fn next_received(&mut self, expected: u64) -> Result<Option<Arrival>, String> {
        let (result, slice) = match self.woken_by.take() {
            Some(output) => output,
            None => {
                let Some(op) = self.receives.pop_front() else { return Ok(None) };
                match op.try_take() {
                    Ok(output) => output,
                    Err(op) => {
                        self.receives.push_front(op);
                        return Ok(None);
                    }
                }
            }
        };
        match result {
            Ok(received) => Ok(Some(self.arrival(&received, slice, expected))),
            Err(e) => Err(self.explain(&e, true)),
        }
    }

    fn arrival(&mut self, received: &Received, slice: Slice, expected: u64) -> Arrival {
        let number = match received.immediate {
            Some(low) => nearest(u32::from_be_bytes(low), expected),
            None => expected,
        };
        let payload = received.payload();
        let right = !self.test.verify
            || (payload.len() == self.scratch.len()
                && slice.read_at(payload.start, &mut self.scratch).is_ok()
                && pattern::matches(&self.scratch, self.test.seed, number));
        Arrival { number, right, slice }
    }

    /// Makes room for another message where this one was.
    pub(crate) fn again(&mut self, arrival: Arrival) -> Result<(), String> {
        self.post_recv(arrival.slice).map_err(|e| e.to_string())
    }

    /// Sends a message back as it came.
    pub(crate) fn echo(&mut self, arrival: &Arrival) -> Result<(), String> {
        while self.next_sent()?.is_some() {}
        let header = if self.test.transport == Transport::Ud { ironverbs::GRH_LEN } else { 0 };
        let slot = (arrival.number % u64::from(self.test.window)) as usize;
        let Some(Some(slice)) = self.slots.get_mut(slot) else {
            return Err("a message came before the echoes ahead of it had left".to_owned());
        };
        let copied = arrival
            .slice
            .read_at(header, &mut self.scratch)
            .and_then(|()| slice.write_at(0, &self.scratch));
        copied.map_err(|e| e.to_string())?;
        self.post_prepared(arrival.number, 1).map_err(|e| e.to_string())
    }

    /// Sleeps until a message arrives, at most for `limit`. False when none is waited for.
    pub(crate) fn sleep(&mut self, limit: Duration) -> bool {
        if self.woken_by.is_some() {
            return true;
        }
        let Some(op) = self.receives.pop_front() else { return false };
        match op.wait_for(limit) {
            Ok(output) => self.woken_by = Some(output),
            Err(op) => self.receives.push_front(op),
        }
        true
    }

    /// Fills the memory that the peer reads: slot `n` holds message `n`.
    pub(crate) fn fill_target(&mut self) -> Result<(), Error> {
        for slot in 0..u64::from(self.test.window) {
            pattern::fill(&mut self.scratch, self.test.seed, slot);
            self.region.write_at(offset(&self.test, slot), &self.scratch)?;
        }
        Ok(())
    }

    /// Whether message number `message` of the peer stands where it was written to.
    pub(crate) fn holds(&mut self, message: u64) -> bool {
        let start = offset(&self.test, message);
        self.region.read_at(start, &mut self.scratch).is_ok()
            && pattern::matches(&self.scratch, self.test.seed, message)
    }

    /// The word that the peer's atomics work on.
    pub(crate) fn counter(&self) -> u64 {
        self.region.load_u64(0).unwrap_or(0)
    }

    fn explain(&self, error: &CompletionError, receive: bool) -> String {
        let what = match receive {
            true => "a receive".to_owned(),
            false => format!(
                "{} {} of {} bytes to {}",
                self.test.transport.name(),
                self.test.operation.name(),
                self.test.size,
                self.place.peer
            ),
        };
        explain::failure(&what, error, &self.place.peer, self.place.udp_port)
    }
}

fn submitted(result: Result<(), ironverbs::BatchError>) -> Result<(), Error> {
    result.map_err(|e| Error::Request(e.error))
}

fn number_bytes(message: u64) -> [u8; 4] {
    (message as u32).to_be_bytes()
}

/// The number with these lower 32 bits that is nearest to `expected`: no test is 2^31 messages
/// behind.
fn nearest(low: u32, expected: u64) -> u64 {
    expected.wrapping_add_signed(i64::from(low.wrapping_sub(expected as u32) as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_completed() {
        assert_eq!(nearest(5, 3), 5);
        assert_eq!(nearest(0, 0xffff_ffff), 0x1_0000_0000);
        assert_eq!(nearest(0xffff_fff0, 0x1_0000_0010), 0xffff_fff0);
    }

    #[test]
    fn windows_fit_the_memory() {
        assert_eq!(window(64, 0), 64);
        assert_eq!(window(64, 1 << 20), 64);
        assert_eq!(window(64, 1 << 30), 1);
        assert_eq!(window(0, 1), 1);
        for size in [1, 100, 4096, 1 << 22] {
            assert_eq!(window(window(64, size), size), window(64, size), "a server accepts it");
        }
    }
}
