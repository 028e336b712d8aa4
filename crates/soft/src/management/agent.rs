//! Agents: programs' ends of QP0 and QP1, as umad(7) has them.

use std::collections::{HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::sync::{Arc, Weak};

use ironverbs_mad::rmpp::{self, Part, Receiver, Sender};
use ironverbs_sys::event::{EventFd, EventMode};
use ironverbs_transport::device::Instant;
use ironverbs_transport::verbs::AhAttr;
use ironverbs_wire::Path;
use ironverbs_wire::mad::{GSI_QPN, MAD_LEN, Mad, MadHeader};
use parking_lot::Mutex;

use super::{header, is_response, told_lid};
use crate::host::Inner;
use crate::registry::Claim;
use crate::{Context, Error};

/// The number that the Host's timers know agents by; no QP has it.
pub(crate) const TIMER: u32 = 2;

/// Bits of an agent's number that count within its process; those above are the slot.
const BITS: u32 = 22;

/// Bytes of the header, all that comes back of a request that was not answered.
const HEADER: usize = MadHeader::LEN;

/// Agents of one process.
const MOST_AGENTS: usize = 256;
/// MADs that may wait to be read; what comes then is lost, as in a full receive queue.
const MOST_WAITING: usize = 4096;
/// Requests of one port that may wait for an answer.
const MOST_PENDING: usize = 4096;

/// Agents that are no program's: the subnet manager with the administrator, and their client.
pub(super) const MANAGER: u32 = 0;
pub(crate) const SA_CLIENT: u32 = (1 << BITS) - 1;

/// The number of an agent of the process in a slot.
pub(crate) fn number(slot: u16, agent: u32) -> u32 {
    u32::from(slot) << BITS | agent & SA_CLIENT
}

/// The slot of an agent's process.
pub(super) fn slot_of(number: u32) -> u16 {
    (number >> BITS) as u16
}

/// What the registry knows the takers of a class by; no port space has such numbers.
pub(super) fn service(qpn: u32, class: u8) -> u32 {
    0xff00 << 16 | qpn << 8 | u32::from(class)
}

/// All agents of a Host.
#[derive(Debug, Default)]
pub(crate) struct Manager {
    agents: Mutex<HashMap<u32, Agent>>,
    next: std::sync::atomic::AtomicU32,
}

#[derive(Clone, Debug)]
struct Agent {
    port: Weak<MadPort>,
    /// What the program knows it by.
    id: u32,
    qpn: u32,
    class: u8,
    version: u8,
    methods: u128,
    /// Long messages are put together and taken apart for it.
    rmpp: bool,
}

/// Where a MAD goes (`ib_mad_addr_t`).
#[derive(Copy, Clone, Debug, Default)]
pub struct MadAddress {
    /// Address vector.
    pub ah: AhAttr,
    /// Destination QPN: 0 or 1.
    pub qpn: u32,
    /// Index of the P_Key.
    pub pkey_index: u16,
}

/// A MAD that has come for an agent.
#[derive(Clone, Debug)]
pub struct ReceivedMad {
    /// The agent, as [`MadPort::register`] named it.
    pub agent: u32,
    /// 0, or the errno of a request that was not answered: then the MAD is the request (ETIMEDOUT).
    pub status: i32,
    /// LID of the sender; 0xffff on a directed route.
    pub lid: u16,
    /// Service level and low bits of the LID that it was sent to.
    pub sl: u8,
    /// Low bits of the LID that it was sent to.
    pub path_bits: u8,
    /// QPN of the sender.
    pub qpn: u32,
    /// Index of the P_Key.
    pub pkey_index: u16,
    /// GIDs of sender and receiver, traffic class, hop limit and flow label, if it had a GRH.
    pub grh: Option<Path>,
    /// The MAD, or of an agent with RMPP a longer message: the headers of its first MAD and all data.
    pub mad: Vec<u8>,
}

/// A long message that comes or goes.
#[derive(Debug)]
struct Long<T> {
    agent: u32,
    tid: u64,
    path: Path,
    pkey: u16,
    state: T,
    /// Of one that comes, when it is forgotten.
    deadline: Instant,
}

/// Long messages of one port that may be under way in either direction.
const MOST_LONG: usize = 64;
/// How long the next part of a long message may take, in nanoseconds (IBA 13.6.2.3).
const LONG_PAUSE: u64 = 2_000_000_000;

#[derive(Debug)]
struct Pending {
    agent: u32,
    tid: u64,
    path: Path,
    qpn: u32,
    pkey: u16,
    mad: Mad,
    deadline: Instant,
    timeout: u64,
    retries: u32,
}

/// A program's way to the management QPs of a port (umad_open_port(3)).
#[derive(Debug)]
pub struct MadPort {
    context: Arc<Context>,
    me: Weak<MadPort>,
    /// Readable while something waits.
    event: EventFd,
    received: Mutex<VecDeque<ReceivedMad>>,
    pending: Mutex<Vec<Pending>>,
    incoming: Mutex<Vec<Long<Receiver>>>,
    outgoing: Mutex<Vec<Long<Sender>>>,
    /// Numbers of its agents by the ids that the program knows.
    agents: Mutex<Vec<Option<u32>>>,
}

impl Context {
    /// Opens the management QPs of the port (umad_open_port(3)).
    ///
    /// # Errors
    /// NotSupported on an Ethernet link, whose QP1 is the connection manager's alone.
    pub fn open_mads(self: &Arc<Self>) -> Result<Arc<MadPort>, Error> {
        self.inner().check()?;
        if self.device().subnet().is_none() {
            return Err(Error::NotSupported { what: "management datagrams on an Ethernet link" });
        }
        let event = EventFd::new(EventMode::Counter, true)?;
        Ok(Arc::new_cyclic(|me| MadPort {
            context: self.clone(),
            me: me.clone(),
            event,
            received: Mutex::default(),
            pending: Mutex::default(),
            incoming: Mutex::default(),
            outgoing: Mutex::default(),
            agents: Mutex::default(),
        }))
    }
}

impl MadPort {
    /// The context it was opened by.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Registers an agent for answers of a class, and for requests of the `methods` (a bit each) that it names
    /// (umad_register(3)). With `rmpp` long messages are put together and taken apart for it. Returns the number that the
    /// program knows it by.
    ///
    /// # Errors
    /// Busy: a process of this user takes requests of that class. NoMemory beyond 32 agents of a port or 256 of a
    /// process.
    pub fn register(
        &self,
        qpn: u32,
        class: u8,
        version: u8,
        methods: u128,
        rmpp: bool,
    ) -> Result<u32, Error> {
        let host = self.context.inner();
        host.check()?;
        if qpn > 1 {
            return Err(Error::Limit { what: "QPN", asked: qpn.into(), max: 1 });
        }
        let no_memory = Error::NoMemory { what: "management agent" };
        let mut ids = self.agents.lock();
        let id = ids.iter().position(Option::is_none).unwrap_or(ids.len());
        if id >= 32 {
            return Err(no_memory);
        }
        let mut agents = host.management.agents.lock();
        if agents.len() >= MOST_AGENTS {
            return Err(no_memory);
        }
        let slot = host.registry().map_or(0, |registry| registry.slot());
        let count = host.management.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let number = number(slot, count % (SA_CLIENT - 1) + 1);
        if methods != 0 {
            let busy = Error::Busy { what: "management class", users: 1 };
            if agents.values().any(|a| (a.qpn, a.class) == (qpn, class) && a.methods & methods != 0)
            {
                return Err(busy);
            }
            let known = agents.values().any(|a| (a.qpn, a.class) == (qpn, class) && a.methods != 0);
            let claim = Claim {
                id: 0,
                service: service(qpn, class),
                ip: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
                reuse: false,
                family_only: false,
                listens: true,
            };
            if let (false, Some(registry)) = (known, host.registry())
                && !registry.claim_port(&claim)?
            {
                return Err(busy);
            }
        }
        let port = self.me.clone();
        let agent = Agent { port, id: id as u32, qpn, class, version, methods, rmpp };
        agents.insert(number, agent);
        drop(agents);
        match ids.get_mut(id) {
            Some(free) => *free = Some(number),
            None => ids.push(Some(number)),
        }
        Ok(id as u32)
    }

    /// Ends an agent; what it waits for is forgotten.
    ///
    /// # Errors
    /// Invalid: there is no such agent.
    pub fn unregister(&self, id: u32) -> Result<(), Error> {
        let number = self.agents.lock().get_mut(id as usize).and_then(Option::take);
        let why = "there is no such agent";
        let number = number.ok_or(Error::Invalid { what: "agent", value: id.into(), why })?;
        self.forget(number);
        Ok(())
    }

    fn forget(&self, number: u32) {
        let host = self.context.inner();
        if host.check().is_err() {
            return;
        }
        self.pending.lock().retain(|pending| pending.agent != number);
        self.incoming.lock().retain(|long| long.agent != number);
        self.outgoing.lock().retain(|long| long.agent != number);
        let mut agents = host.management.agents.lock();
        let Some(gone) = agents.remove(&number).filter(|gone| gone.methods != 0) else { return };
        let same = |a: &Agent| (a.qpn, a.class) == (gone.qpn, gone.class) && a.methods != 0;
        if let (false, Some(registry)) = (agents.values().any(same), host.registry()) {
            registry.release_port(service(gone.qpn, gone.class), 0);
        }
    }

    /// Sends a MAD. A request that has no answer after `timeout` milliseconds is sent again `retries` times, then
    /// comes back by [`MadPort::next`] with ETIMEDOUT; with a timeout of 0 nothing is waited for.
    ///
    /// # Errors
    /// Invalid: no such agent, an address that cannot be, a length that cannot be; NoMemory: too much is under way.
    pub fn send(
        &self,
        id: u32,
        to: &MadAddress,
        message: &[u8],
        timeout: u32,
        retries: u32,
    ) -> Result<(), Error> {
        let host = self.context.inner();
        host.check()?;
        let why = "there is no such agent";
        let number = self.agents.lock().get(id as usize).copied().flatten();
        let number = number.ok_or(Error::Invalid { what: "agent", value: id.into(), why })?;
        let agent = host.management.agents.lock().get(&number).cloned();
        let (qpn, rmpp) = agent.map_or((1, false), |agent| (agent.qpn, agent.rmpp));
        let long = rmpp && rmpp::is_long(message);
        let mut mad = [0; MAD_LEN];
        let (len, max) = (message.len() as u64, MAD_LEN as u64);
        match mad.get_mut(..message.len()) {
            Some(room) => room.copy_from_slice(message),
            None if !long => return Err(Error::Limit { what: "MAD length", asked: len, max }),
            None => mad.iter_mut().zip(message).for_each(|(to, from)| *to = *from),
        }
        let asked = header(&mad);
        let path = self.path(to, &asked, super::smp::begins_by_lid(&mad))?;
        let pkey = self.context.pkey(1, to.pkey_index.into())?;
        if !is_response(&asked) {
            // As umad(7): the upper half is the system's.
            let tid = u64::from(number) << 32 | asked.tid & 0xffff_ffff;
            if let Some(room) = mad.get_mut(8..16) {
                room.copy_from_slice(&tid.to_be_bytes());
            }
            // A transaction that begins anew has nothing to do with one of the same name that is over.
            self.incoming.lock().retain(|l| (l.agent, l.tid as u32) != (number, tid as u32));
            if timeout > 0 {
                let now = host.now();
                // What is sent in parts is repeated part by part; its answer is waited for as long as that of another.
                let (times, retries) = match long {
                    true => (u64::from(retries) + 1, 0),
                    false => (1, retries),
                };
                let timeout = host.clock.ticks(u64::from(timeout) * 1_000_000 * times).max(1);
                let deadline = now.after(timeout);
                let mut pending = self.pending.lock();
                if pending.len() >= MOST_PENDING {
                    return Err(Error::NoMemory { what: "pending request" });
                }
                let agent = number;
                pending.push(Pending {
                    agent,
                    tid,
                    path,
                    qpn,
                    pkey,
                    mad,
                    deadline,
                    timeout,
                    retries,
                });
                drop(pending);
                host.add_timer(deadline, TIMER);
            }
        }
        if long {
            let mut message = message.to_vec();
            message.iter_mut().zip(mad).take(HEADER).for_each(|(to, from)| *to = from);
            return self.send_long(host, number, header(&mad).tid, path, pkey, message);
        }
        super::send(host, &path, qpn, pkey, &mad);
        Ok(())
    }

    fn send_long(
        &self,
        host: &Inner,
        agent: u32,
        tid: u64,
        path: Path,
        pkey: u16,
        message: Vec<u8>,
    ) -> Result<(), Error> {
        let value = message.len() as u64;
        let why = "it cannot be cut into segments";
        let invalid = Error::Invalid { what: "message of a length that", value, why };
        let at = rmpp::data_offset(message.get(1).copied().unwrap_or(0));
        let (head, data) = message.split_at_checked(at).ok_or(invalid)?;
        let mut whole = [0; MAD_LEN];
        whole.iter_mut().zip(head).for_each(|(to, from)| *to = *from);
        let state = Sender::new(&whole, data.to_vec());
        let mut outgoing = self.outgoing.lock();
        if outgoing.len() >= MOST_LONG {
            return Err(Error::NoMemory { what: "long message" });
        }
        let deadline = host.now();
        outgoing.push(Long { agent, tid, path, pkey, state, deadline });
        drop(outgoing);
        self.send_parts(host);
        Ok(())
    }

    /// Part of a long message of an agent: what it calls for is sent. The whole message, with its last part.
    fn take_part(
        &self,
        host: &Inner,
        agent: u32,
        path: &Path,
        pkey: u16,
        mad: &Mad,
    ) -> Option<Vec<u8>> {
        let now = host.now();
        let deadline = now.after(host.clock.ticks(LONG_PAUSE).max(1));
        let tid = header(mad).tid;
        let back = path.reversed();
        // Who it is with: acknowledgements come with the peer's own idea of the upper half.
        let same = |of: u32, with: u64, way: &Path| {
            of == agent && with as u32 == tid as u32 && way.src == path.src
        };
        match rmpp::part(mad) {
            Part::Data => {
                let mut incoming = self.incoming.lock();
                let at = match incoming.iter().position(|l| same(l.agent, l.tid, &l.path)) {
                    Some(at) => at,
                    None if incoming.len() >= MOST_LONG => return None,
                    None => {
                        let (state, path) = (Receiver::new(), *path);
                        incoming.push(Long { agent, tid, path, pkey, state, deadline });
                        host.add_timer(deadline, TIMER);
                        incoming.len() - 1
                    }
                };
                let long = incoming.get_mut(at)?;
                long.deadline = deadline;
                let step = long.state.handle(mad);
                // What is complete stays until it is forgotten: the last acknowledgement may be lost.
                if step.failed {
                    incoming.swap_remove(at);
                }
                drop(incoming);
                if let Some(reply) = step.reply {
                    super::send(host, &back, GSI_QPN, pkey, &reply);
                }
                step.done
            }
            Part::Ack | Part::End => {
                let to_them = |l: &Long<Sender>| {
                    l.agent == agent && l.tid as u32 == tid as u32 && l.path.dst == path.src
                };
                let time = ironverbs_mad::Instant(now.0);
                for long in self.outgoing.lock().iter_mut().filter(|long| to_them(long)) {
                    long.state.handle(time, mad);
                }
                if rmpp::part(mad) == Part::End {
                    self.incoming.lock().retain(|l| !same(l.agent, l.tid, &l.path));
                }
                self.send_parts(host);
                None
            }
            Part::None => None,
        }
    }

    /// The way to an address; that of a directed route is in the MAD, but for a part `by_lid` before it.
    fn path(&self, to: &MadAddress, header: &MadHeader, by_lid: bool) -> Result<Path, Error> {
        let mut ah = AhAttr { port_num: 1, ..to.ah };
        if header.class == super::SUBN_DIRECTED && !by_lid {
            ah = AhAttr { dlid: self.context.port(1)?.lid, port_num: 1, ..AhAttr::default() };
        }
        self.context.resolve(&ah)
    }

    /// The next MAD that has come, if any. One that is longer than `room` stays: `Err` has its length.
    pub fn next(&self, room: usize) -> Result<Option<ReceivedMad>, usize> {
        let mut received = self.received.lock();
        if let Some(next) = received.front().filter(|next| next.mad.len() > room) {
            return Err(next.mad.len());
        }
        let next = received.pop_front();
        if received.is_empty() {
            let _ = self.event.try_read();
        }
        Ok(next)
    }

    /// Readable while something waits.
    pub fn fd(&self) -> RawFd {
        self.event.as_fd().as_raw_fd()
    }

    /// Sends what there is to send of long messages, and forgets those that are over.
    fn send_parts(&self, host: &Inner) {
        let now = ironverbs_mad::Instant(host.now().0);
        let mut parts = Vec::new();
        self.outgoing.lock().retain_mut(|long| {
            let abort = long.state.handle_timeout(now);
            let next = std::iter::from_fn(|| long.state.poll_transmit(now));
            parts.extend(abort.into_iter().chain(next).map(|part| (long.path, long.pkey, part)));
            if let Some(at) = long.state.next_timeout() {
                host.add_timer(Instant(at.0), TIMER);
            }
            !(long.state.is_done() || long.state.has_failed())
        });
        for (path, pkey, part) in parts {
            super::send(host, &path, GSI_QPN, pkey, &part);
        }
    }

    /// Sends parts of long messages again of which nothing was heard, and forgets messages that came to no end.
    fn repeat_long(&self, host: &Inner, now: Instant) {
        self.incoming.lock().retain(|long| long.deadline > now);
        self.send_parts(host);
    }

    fn push(&self, mad: ReceivedMad) {
        let mut received = self.received.lock();
        if received.len() < MOST_WAITING {
            received.push_back(mad);
            let _ = self.event.signal();
        }
    }
}

impl Drop for MadPort {
    fn drop(&mut self) {
        let numbers: Vec<u32> = self.agents.lock().iter().copied().flatten().collect();
        numbers.into_iter().for_each(|number| self.forget(number));
    }
}

impl Manager {
    /// The agent of this process that takes such requests.
    pub(super) fn taker(&self, qpn: u32, header: &MadHeader) -> Option<u32> {
        let agents = self.agents.lock();
        let takes = |agent: &Agent| {
            (agent.qpn, agent.class, agent.version) == (qpn, header.class, header.class_version)
                && agent.methods & 1 << (header.method & 0x7f) != 0
        };
        agents.iter().find(|(_, agent)| takes(agent)).map(|(number, _)| *number)
    }

    /// Gives an agent a MAD.
    pub(super) fn deliver(
        &self,
        host: &Inner,
        number: u32,
        path: &Path,
        qpn: u32,
        pkey: u16,
        mad: &Mad,
    ) {
        let agent = self.agents.lock().get(&number).cloned();
        let Some(port) = agent.as_ref().and_then(|agent| agent.port.upgrade()) else { return };
        let (id, rmpp) = agent.map_or((0, false), |agent| (agent.id, agent.rmpp));
        let header = header(mad);
        let mut message = mad.to_vec();
        if rmpp && rmpp::part(mad) != Part::None {
            // A request that is answered in parts is answered.
            let mut pending = port.pending.lock();
            let now = host.now();
            for pending in pending.iter_mut().filter(|p| (p.agent, p.tid) == (number, header.tid)) {
                pending.deadline = pending.deadline.max(now.after(pending.timeout));
                host.add_timer(pending.deadline, TIMER);
            }
            drop(pending);
            match port.take_part(host, number, path, pkey, mad) {
                Some(whole) => message = whole,
                None => return,
            }
        }
        if is_response(&header) {
            let mut pending = port.pending.lock();
            // Of an answer that comes twice, or too late, nobody wants to know.
            let Some(at) = pending.iter().position(|p| (p.agent, p.tid) == (number, header.tid))
            else {
                return;
            };
            pending.swap_remove(at);
        }
        let index = host.subnet.as_ref().and_then(|subnet| subnet.pkey_index(pkey)).unwrap_or(0);
        let route = path.ib.unwrap_or_default();
        port.push(ReceivedMad {
            agent: id,
            status: 0,
            lid: told_lid(path, &header),
            sl: route.sl,
            path_bits: route.dlid as u8 & 0x7f,
            qpn,
            pkey_index: index,
            grh: route.grh.then_some(*path),
            mad: message,
        });
    }

    /// Repeats requests whose time is over, or gives them up.
    pub(super) fn timeout(&self, host: &Inner, now: Instant) {
        let agents = self.agents.lock();
        let ports: Vec<_> = agents.values().filter_map(|agent| agent.port.upgrade()).collect();
        let ids: HashMap<u32, u32> = agents.iter().map(|(n, agent)| (*n, agent.id)).collect();
        drop(agents);
        for port in ports {
            let mut again = Vec::new();
            let mut over = Vec::new();
            port.pending.lock().retain_mut(|pending| {
                if pending.deadline > now {
                    return true;
                }
                if pending.retries == 0 {
                    over.push((pending.agent, pending.pkey, pending.path, pending.mad));
                    return false;
                }
                pending.retries -= 1;
                pending.deadline = now.after(pending.timeout);
                again.push((pending.path, pending.qpn, pending.pkey, pending.mad));
                host.add_timer(pending.deadline, TIMER);
                true
            });
            for (agent, _, path, mad) in over {
                port.push(ReceivedMad {
                    agent: ids.get(&agent).copied().unwrap_or(0),
                    status: ironverbs_sys::errno::ETIMEDOUT,
                    lid: path.ib.map_or(0, |route| route.dlid),
                    sl: 0,
                    path_bits: 0,
                    qpn: 0,
                    pkey_index: 0,
                    grh: None,
                    // As umad(7): only the header.
                    mad: mad.iter().copied().take(HEADER).collect(),
                });
            }
            for (path, qpn, pkey, mad) in again {
                super::send(host, &path, qpn, pkey, &mad);
            }
            port.repeat_long(host, now);
        }
    }
}
