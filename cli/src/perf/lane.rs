//! One queue pair with its memory, made for one test and taken down after it.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::net::{IpAddr, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use ironverbs_sys::event::{Epoll, Event, Interest};

use super::pattern;
use super::protocol::{Checked, Endpoint, Operation, Test, Transport};
use crate::explain;
use crate::verbs::*;

/// The port and address that a session uses.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) context: Arc<Context>,
    pub(crate) gid: Gid,
    pub(crate) gid_index: u8,
    pub(crate) mtu: Mtu,
    /// How to reach the other side, for messages.
    pub(crate) peer: String,
}

impl Place {
    /// Finds the device and GID that belong to `local`, the address of our end of the TCP
    /// connection, unless the caller names them.
    pub(crate) fn find(
        host: &Host,
        local: IpAddr,
        peer: IpAddr,
        device: Option<&str>,
        gid_index: Option<u32>,
    ) -> Result<Place, String> {
        let devices = host.devices().map_err(|e| e.to_string())?;
        let names = devices.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ");
        if devices.is_empty() {
            return Err("there is no device: no network interface is up and has an address \
                        (or IRONVERBS_INTERFACES names none)"
                .to_owned());
        }
        let local = local.to_canonical();
        let wanted = Gid::from_ip(local);
        let mut chosen = None;
        for candidate in devices {
            if device.is_some_and(|name| name != candidate.name()) {
                continue;
            }
            let context = candidate.open().map_err(|e| format!("{}: {e}", candidate.name()))?;
            let table = context.gid_table(1);
            let entry = match gid_index {
                Some(index) => table.iter().find(|e| e.index == index),
                None => table.iter().find(|e| e.gid == wanted).or_else(|| {
                    // Loopback addresses are in no table: any GID of this host will do.
                    let any = local.is_loopback() || device.is_some();
                    let family = |e: &&GidEntry| e.gid.is_ipv4() == local.is_ipv4();
                    table.iter().filter(|_| any).find(family).or(table.iter().find(|_| any))
                }),
            };
            if let Some(entry) = entry {
                chosen = Some((context, *entry));
                break;
            }
            if let (Some(name), Some(index)) = (device, gid_index) {
                return Err(format!("{name} has no GID {index} (see ironverbs info)"));
            }
            if let Some(name) = device {
                return Err(format!("{name} has no GID: its interface has no address"));
            }
        }
        let Some((context, entry)) = chosen else {
            return Err(match (device, gid_index) {
                (Some(name), _) => format!("there is no device {name}; there are: {names}"),
                (None, Some(index)) => format!("no device has a GID {index}; devices: {names}"),
                (None, None) => format!(
                    "no device has the address {local}; devices: {names} (choose with --device and --gid-index)"
                ),
            });
        };
        let port = context.port(1).map_err(|e| e.to_string())?;
        if port.state != PortState::Active {
            let name = context.device().name();
            let why = context.wire_problem().unwrap_or_else(|| "its interface is down".to_owned());
            return Err(format!("port 1 of {name} is down: {why}"));
        }
        let gid_index =
            u8::try_from(entry.index).map_err(|_| "the GID index is above 255".to_owned())?;
        let peer = peer.to_canonical().to_string();
        Ok(Place { context, gid: entry.gid, gid_index, mtu: port.active_mtu, peer })
    }

    /// The GID of the same device that can talk to `peer`.
    pub(crate) fn facing(mut self, peer: &Gid) -> Result<Place, String> {
        if self.gid.is_ipv4() == peer.is_ipv4() {
            return Ok(self);
        }
        let table = self.context.gid_table(1);
        let entry = table.iter().find(|e| e.gid.is_ipv4() == peer.is_ipv4()).ok_or_else(|| {
            let family = if peer.is_ipv4() { "IPv4" } else { "IPv6" };
            let name = self.context.device().name();
            format!("the peer uses {family} ({}), and {name} has no such address", peer.to_ip())
        })?;
        self.gid = entry.gid;
        self.gid_index = u8::try_from(entry.index).map_err(|e| e.to_string())?;
        Ok(self)
    }

    fn udp_port(&self) -> u16 {
        self.context.host().config().udp_port.value
    }
}

/// Room in front of a datagram's payload for its GRH; whole cache lines keep the payload aligned.
const GRH_ROOM: u64 = 64;
const GRH: u64 = 40;

/// Memory is bounded by this many bytes a side, but for a single message that is larger.
const MAX_MEMORY: u64 = 256 << 20;

/// Requests outstanding for messages of `size` bytes when the caller wants `depth`.
pub(crate) fn window(depth: u32, size: u32) -> u32 {
    let slots = MAX_MEMORY / stride(size).max(1) / 2;
    depth.min(u32::try_from(slots).unwrap_or(u32::MAX)).max(1)
}

fn stride(size: u32) -> u64 {
    GRH_ROOM + u64::from(size).next_multiple_of(64)
}

/// A QP, its CQ and memory: `window` slots to send from, then as many to receive into.
pub(crate) struct Lane {
    pub(crate) test: Test,
    place: Place,
    qp: Arc<Qp>,
    cq: Arc<Cq>,
    channel: Arc<Channel>,
    region: Region,
    psn: u32,
    qkey: u32,
    dest: Option<UdDest>,
}

/// Token of the channel's descriptor.
const CHANNEL: u64 = 0;

/// Receives beyond those in the window, so that a sender rarely finds none.
const SPARE: u32 = 2;

fn receives(test: &Test) -> u32 {
    if test.operation == Operation::Send { test.window * SPARE } else { 0 }
}

impl Lane {
    pub(crate) fn new(place: Place, test: Test) -> Result<Lane, Error> {
        let pd = place.context.alloc_pd()?;
        let receives = receives(&test);
        let channel = place.context.create_channel()?;
        let cq = place.context.create_cq(test.window + receives, Some(&channel), 0)?;
        let cap = QpCap {
            max_send_wr: test.window,
            max_recv_wr: receives,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        let qp_type = match test.transport {
            Transport::Rc => QpType::Rc,
            Transport::Uc => QpType::Uc,
            Transport::Ud => QpType::Ud,
        };
        let (send_cq, recv_cq) = (cq.clone(), cq.clone());
        let qp =
            pd.create_qp(&QpInit { qp_type, send_cq, recv_cq, srq: None, cap, sq_sig_all: true })?;
        let slots = u64::from(test.window) + u64::from(receives);
        let access = Access::LOCAL_WRITE
            | Access::REMOTE_WRITE
            | Access::REMOTE_READ
            | Access::REMOTE_ATOMIC;
        let bytes = usize::try_from(stride(test.size) * slots).unwrap_or(usize::MAX);
        let region = Region::new(&pd, bytes, access)?;
        let random = RandomState::new().build_hasher().finish();
        let (psn, qkey) = (random as u32 & 0xff_ffff, (random >> 32) as u32 & 0x7fff_ffff);
        let lane = Lane { test, place, qp, cq, channel, region, psn, qkey, dest: None };
        lane.initialise()?;
        Ok(lane)
    }

    fn initialise(&self) -> Result<(), Error> {
        let access = Access::REMOTE_WRITE | Access::REMOTE_READ | Access::REMOTE_ATOMIC;
        let (access, identity) = match self.test.transport {
            Transport::Rc => (access, AttrMask::ACCESS_FLAGS),
            Transport::Uc => (Access::REMOTE_WRITE, AttrMask::ACCESS_FLAGS),
            Transport::Ud => (Access::empty(), AttrMask::QKEY),
        };
        let attr = QpAttr {
            state: QpState::Init,
            port_num: 1,
            qkey: self.qkey,
            access,
            ..QpAttr::default()
        };
        self.qp.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | identity)
    }

    /// What the other side must know.
    pub(crate) fn endpoint(&self) -> Endpoint {
        Endpoint {
            qpn: self.qp.qpn(),
            psn: self.psn,
            qkey: self.qkey,
            gid: self.place.gid.to_string(),
            addr: self.region.addr(),
            rkey: self.region.rkey(),
        }
    }

    /// Connects to the other side's QP, ready to receive and to send.
    pub(crate) fn connect(&mut self, peer: &Endpoint) -> Result<(), String> {
        let dgid: Gid = peer.gid.parse().map_err(|e| format!("the peer's GID: {e}"))?;
        if peer.qpn == 0 || peer.qpn > 0xff_ffff || peer.psn > 0xff_ffff {
            return Err(format!(
                "the peer's QPN {:#x} or PSN {} has more than 24 bits",
                peer.qpn, peer.psn
            ));
        }
        let mtu = Mtu::try_from(self.test.mtu).map_err(|e| e.to_string())?;
        let ah = AhAttr {
            dgid,
            sgid_index: self.place.gid_index,
            hop_limit: 64,
            is_global: true,
            port_num: 1,
            ..AhAttr::default()
        };
        self.move_up(peer, ah, mtu).map_err(|e| e.to_string())
    }

    fn move_up(&mut self, peer: &Endpoint, ah: AhAttr, path_mtu: Mtu) -> Result<(), Error> {
        let attr = QpAttr {
            path_mtu,
            ah,
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            sq_psn: self.psn,
            max_rd_atomic: 16,
            max_dest_rd_atomic: 16,
            // 0.64 ms.
            min_rnr_timer: 12,
            // 67 ms; with 7 retries a dead peer is noticed within seconds.
            timeout: 14,
            retry_cnt: 7,
            rnr_retry: 7,
            ..QpAttr::default()
        };
        let connected = AttrMask::AV | AttrMask::PATH_MTU | AttrMask::DEST_QPN | AttrMask::RQ_PSN;
        let (to_rtr, to_rts) = match self.test.transport {
            Transport::Ud => (AttrMask::empty(), AttrMask::SQ_PSN),
            Transport::Uc => (connected, AttrMask::SQ_PSN),
            Transport::Rc => (
                connected | AttrMask::MAX_DEST_RD_ATOMIC | AttrMask::MIN_RNR_TIMER,
                AttrMask::SQ_PSN
                    | AttrMask::TIMEOUT
                    | AttrMask::RETRY_CNT
                    | AttrMask::RNR_RETRY
                    | AttrMask::MAX_QP_RD_ATOMIC,
            ),
        };
        self.qp.modify(&QpAttr { state: QpState::Rtr, ..attr }, to_rtr | AttrMask::STATE)?;
        self.qp.modify(&QpAttr { state: QpState::Rts, ..attr }, to_rts | AttrMask::STATE)?;
        if self.test.transport == Transport::Ud {
            let path = self.qp.pd().create_ah(&ah)?.path();
            self.dest = Some(UdDest { path, qpn: peer.qpn, qkey: peer.qkey });
        }
        Ok(())
    }

    /// Receives posted at once at most.
    pub(crate) fn receives(&self) -> u32 {
        receives(&self.test)
    }

    fn send_offset(&self, message: u64) -> u64 {
        message % u64::from(self.test.window) * stride(self.test.size) + GRH_ROOM
    }

    fn receive_offset(&self, slot: u64) -> u64 {
        (u64::from(self.test.window) + slot % u64::from(self.receives().max(1)))
            * stride(self.test.size)
            + GRH_ROOM
    }

    fn words(&self, offset: u64) -> &[AtomicU64] {
        let start = (offset / 8) as usize;
        let end = start + (self.test.size as usize).div_ceil(8);
        self.region.words().get(start..end).unwrap_or_default()
    }

    /// The slot that message number `message` is sent from, read into or written to by the peer.
    pub(crate) fn slot(&self, message: u64) -> &[AtomicU64] {
        self.words(self.send_offset(message))
    }

    /// The slot of a receive.
    pub(crate) fn received(&self, slot: u64) -> &[AtomicU64] {
        self.words(self.receive_offset(slot))
    }

    /// Posts the receive `slot`.
    pub(crate) fn post_recv(&self, slot: u64) -> Result<(), PostError> {
        let offset = self.receive_offset(slot);
        let sge = match self.test.transport {
            Transport::Ud => self.region.sge(offset - GRH, self.test.size + GRH as u32),
            _ => self.region.sge(offset, self.test.size),
        };
        let sges = [sge];
        let empty = self.test.size == 0 && self.test.transport != Transport::Ud;
        self.qp.post_recv(slot, if empty { &[] } else { &sges })
    }

    /// Posts messages `first` to `first + count - 1` together. For atomics, message `n` adds one or
    /// swaps `n` for `n + 1`.
    pub(crate) fn post(&self, peer: &Endpoint, first: u64, count: u64) -> Result<(), PostError> {
        let mut batch = self.qp.post_batch();
        for message in first..first + count {
            let (offset, len) = (self.send_offset(message), self.test.size);
            let sges = [self.region.sge(offset, len)];
            let data = Payload::Sges(if len == 0 { &[] } else { &sges });
            batch.push(&self.request(peer, message), data)?;
        }
        Ok(())
    }

    fn request(&self, peer: &Endpoint, message: u64) -> SendWr {
        let test = &self.test;
        // Where messages can be lost, the number of one that arrives must be known.
        let numbered = test.transport != Transport::Rc;
        let (opcode, remote) = match test.operation {
            Operation::Send if numbered => (WrOpcode::SendWithImm, 0),
            Operation::Send => (WrOpcode::Send, 0),
            Operation::Write => (WrOpcode::Write, self.send_offset(message)),
            Operation::Read => (WrOpcode::Read, self.send_offset(message)),
            Operation::FetchAdd => (WrOpcode::FetchAdd, 0),
            Operation::CompareSwap => (WrOpcode::CompareSwap, 0),
        };
        SendWr {
            wr_id: message,
            opcode,
            flags: SendFlags::SIGNALED,
            imm: (message as u32).to_be_bytes(),
            invalidate_rkey: 0,
            remote_addr: peer.addr.wrapping_add(remote),
            rkey: peer.rkey,
            compare_add: if test.operation == Operation::FetchAdd { 1 } else { message },
            swap: message + 1,
            ud: self.dest,
        }
    }

    /// Whether what message `message` brought is right, if that is checked and can be here.
    pub(crate) fn check_result(&self, message: u64) -> Checked {
        let test = &self.test;
        let words = self.slot(message);
        match test.operation {
            _ if !test.verify => Checked::default(),
            Operation::Send | Operation::Write => Checked::default(),
            Operation::Read => {
                let slot = message % u64::from(test.window);
                Checked::one(pattern::matches(words, test.size as usize, test.seed, slot))
            }
            // They run in order, so each finds what the one before left.
            Operation::FetchAdd | Operation::CompareSwap => {
                Checked::one(words.first().is_some_and(|w| w.load(Ordering::Relaxed) == message))
            }
        }
    }

    /// The word that atomics of the peer work on.
    pub(crate) fn counter(&self) -> Option<&AtomicU64> {
        self.region.words().first()
    }

    /// Takes completions that are there, at most as many as fit `into`, and drives the device when
    /// there are none. A failed one becomes the error.
    pub(crate) fn poll<'a>(&self, into: &'a mut Completions) -> Result<&'a [Wc], String> {
        // The queue is locked meanwhile: nothing may be posted before it returns.
        into.0.clear();
        self.cq.poll(Completions::BATCH, |wc| into.0.push(*wc)).map_err(|e| e.to_string())?;
        match into.0.iter().find(|wc| wc.status != WcStatus::Success) {
            None => Ok(&into.0),
            Some(wc) => Err(self.explain(wc)),
        }
    }

    /// Sleeps until something completes or `stream` has something to read, at most `limit`.
    pub(crate) fn sleep(&self, stream: &TcpStream, limit: Duration) -> Result<(), String> {
        let failed = |e: io::Error| format!("cannot sleep: {e}");
        self.cq.request_notify(false).map_err(|e| e.to_string())?;
        let epoll = Epoll::new().map_err(failed)?;
        epoll.add(channel_fd(&self.channel), CHANNEL, Interest::READ).map_err(failed)?;
        epoll.add(stream.as_fd(), CHANNEL + 1, Interest::READ).map_err(failed)?;
        let mut events = [Event::EMPTY; 2];
        let n = epoll.wait(&mut events, Some(limit)).map_err(failed)?;
        if events.iter().take(n).any(|e| e.token() == CHANNEL) {
            self.channel.next_event().map_err(failed)?;
            self.cq.ack_events(1);
        }
        Ok(())
    }

    /// The number of a message that arrived, when `expected` is the number of the next one.
    pub(crate) fn number(&self, wc: &Wc, expected: u64) -> u64 {
        match self.test.transport {
            Transport::Rc => expected,
            _ => nearest(u32::from_be_bytes(wc.imm), expected),
        }
    }

    /// Whether the message that arrived is number `number`, whole.
    pub(crate) fn arrived_right(&self, wc: &Wc, number: u64) -> bool {
        let header = if self.test.transport == Transport::Ud { GRH as u32 } else { 0 };
        wc.byte_len == self.test.size + header
            && pattern::matches(
                self.received(wc.wr_id),
                self.test.size as usize,
                self.test.seed,
                number,
            )
    }

    fn explain(&self, wc: &Wc) -> String {
        let what = match wc.opcode {
            WcOpcode::Recv | WcOpcode::RecvWriteWithImm => "a receive".to_owned(),
            _ => format!(
                "{} {} of {} bytes to {}",
                self.test.transport.name(),
                self.test.operation.name(),
                self.test.size,
                self.place.peer
            ),
        };
        explain::failure(&what, wc, &self.place.peer, self.place.udp_port())
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        // Before the memory goes: nothing may arrive in it any more.
        let _ = self.qp.destroy();
        let _ = self.cq.destroy();
        let _ = self.channel.destroy();
    }
}

/// Room for completions, taken once.
pub(crate) struct Completions(Vec<Wc>);

impl Completions {
    const BATCH: usize = 32;

    pub(crate) fn new() -> Completions {
        Completions(Vec::with_capacity(Completions::BATCH))
    }
}

/// The number with these lower 32 bits that is nearest to `expected`: no test is 2^31 messages
/// behind.
fn nearest(low: u32, expected: u64) -> u64 {
    expected.wrapping_add_signed(i64::from(low.wrapping_sub(expected as u32) as i32))
}

/// Whether a completion is that of a receive.
pub(crate) fn is_receive(wc: &Wc) -> bool {
    matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvWriteWithImm)
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
