//! Windows as others read them: without mapping them, and without trust.

use std::net::SocketAddr;
use std::time::Duration;

use ironverbs_sys::clock::monotonic_ns;
use ironverbs_sys::shm::Memfd;
use ironverbs_transport::qp::{Carried, Counters, Direct, Dropped};
use ironverbs_transport::verbs::{QpState, QpType};
use ironverbs_wire::Gid;
use ironverbs_wire::mad::cm::PortSpace;

use super::layout::{
    COUNTERS, ENDED, ENTRIES, ENTRY, HEADER, LIVE, LOCAL, SRQ, WAIT, WAITS, WINDOW, entry, header,
    wait,
};
use super::{Waiting, place, window};

/// A process that has the stack open, as it tells of itself; what it tells may be a moment old.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProcessStatus {
    /// Its slot in the group.
    pub slot: u16,
    /// Its process id, in its own PID namespace.
    pub pid: u32,
    /// Whether that is ours, so that the process id means the same here.
    pub same_pid_namespace: bool,
    /// Name of its program when it opened the stack, at most 15 bytes.
    pub command: String,
    /// When it opened the stack: seconds since 1970.
    pub since: u64,
    /// Its queue pairs, by number.
    pub qps: Vec<QpStatus>,
    /// Its verbs that wait for something.
    pub waits: Vec<WaitStatus>,
    /// The ports that its ids of the connection manager have (rdma_bind_addr(3)), by port space and address.
    pub services: Vec<ServiceStatus>,
}

/// A port of the connection manager that a process has.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ServiceStatus {
    /// Its port space.
    pub space: PortSpace,
    /// Where: the address may be a wildcard.
    pub address: SocketAddr,
    /// Whether requests are taken there (rdma_listen(3)).
    pub listens: bool,
}

/// A queue pair of a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QpStatus {
    /// Its number.
    pub qpn: u32,
    /// Its type.
    pub qp_type: QpType,
    /// Its state.
    pub state: QpState,
    /// Whether its receives are those of a shared receive queue.
    pub srq: bool,
    /// Address and number of the peer, if it is connected.
    pub peer: Option<(Gid, u32)>,
    /// Slot of the peer's process, if packets go through shared memory.
    pub peer_slot: Option<u16>,
    /// What it counted. Besides packets, bytes and messages it may be older.
    pub counters: Counters,
}

/// A verb that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitStatus {
    /// The verb, by its name in C.
    pub verb: &'static str,
    /// Its object: "QP", "CQ", "SRQ".
    pub object: &'static str,
    /// Number of the QP, or handle of another object.
    pub number: u32,
    /// What is missing.
    pub missing: &'static str,
    /// How many of them.
    pub count: u64,
    /// The process that it waits for, in its own PID namespace: a peer that is stopped, say, while it copies.
    pub pid: Option<u32>,
    /// Since when it waits.
    pub waited: Duration,
}

/// What a queue pair of a process that is gone has left.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Testament {
    /// The PSN of the next request: all before it were carried out.
    pub(crate) expected_psn: u32,
    /// The program had destroyed it.
    pub(crate) ended: bool,
}

/// The windows of a group.
#[derive(Debug)]
pub(crate) struct View<'a> {
    memfd: &'a Memfd,
}

/// A piece of a window, read at once.
pub(super) struct Piece<const LEN: usize>(Box<[u8; LEN]>);

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;

impl<const LEN: usize> Piece<LEN> {
    fn read(memfd: &Memfd, at: u64) -> Option<Piece<LEN>> {
        let mut bytes = Box::new([0; LEN]);
        (memfd.read_at(at, &mut bytes[..]).ok()? == LEN).then_some(Piece(bytes))
    }

    pub(super) fn len(&self) -> usize {
        LEN
    }

    pub(super) fn word(&self, at: usize) -> u64 {
        let bytes = self.0.get(at..).and_then(|rest| rest.first_chunk());
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }
}

impl<'a> View<'a> {
    pub(crate) fn new(memfd: &'a Memfd) -> View<'a> {
        View { memfd }
    }

    /// The header of the slot's window, if this tenant wrote it.
    pub(super) fn header(&self, slot: u16, tenure: u32) -> Option<Piece<HEADER>> {
        let header: Piece<HEADER> = Piece::read(self.memfd, window(slot))?;
        (header.word(header::TENURE) == u64::from(tenure)).then_some(header)
    }

    /// What the QP `qpn` of a process left, if it was connected to our `peer`.
    pub(crate) fn testament(
        &self,
        (slot, tenure): (u16, u32),
        qpn: u32,
        peer: u32,
    ) -> Option<Testament> {
        let valid = || {
            let word: Piece<8> = Piece::read(self.memfd, window(slot) + header::TENURE as u64)?;
            (word.word(0) == u64::from(tenure)).then_some(())
        };
        valid()?;
        let at = window(slot) + place(qpn) as u64;
        let entry: Piece<64> = Piece::read(self.memfd, at)?;
        // A newcomer in the slot may have cleared it meanwhile.
        valid()?;
        let head = entry.word(entry::HEAD);
        let known = entry.word(entry::NUMBERS) == u64::from(qpn) | u64::from(peer) << 32;
        (known && head & (LIVE | ENDED) != 0).then(|| Testament {
            expected_psn: entry.word(entry::EXPECTED) as u32 & 0xff_ffff,
            ended: head & ENDED != 0,
        })
    }

    /// All that the tenant of a slot tells; None: nothing yet.
    pub(crate) fn process(&self, slot: u16, tenure: u32) -> Option<ProcessStatus> {
        let header = self.header(slot, tenure)?;
        let command: Vec<u8> = header.0[header::COMMAND..header::COMMAND + 16]
            .iter()
            .copied()
            .take_while(|byte| *byte != 0)
            .collect();
        let waits = (0..WAITS).filter_map(|n| wait_at(&header, header::WAITS + n * WAIT));
        let mut status = ProcessStatus {
            slot,
            pid: header.word(header::PID) as u32,
            same_pid_namespace: false,
            command: String::from_utf8_lossy(&command).into_owned(),
            since: header.word(header::SINCE),
            qps: self.qps(slot),
            waits: waits.collect(),
            services: Vec::new(),
        };
        self.header(slot, tenure)?;
        status.qps.sort_by_key(|qp| qp.qpn);
        Some(status)
    }

    fn qps(&self, slot: u16) -> Vec<QpStatus> {
        let mut qps = Vec::new();
        self.written_pages(slot, |page| {
            qps.extend((0..PAGE / ENTRY).filter_map(|n| qp_at(page, n * ENTRY)));
        });
        qps
    }

    /// The pages of a slot's entries that were written, one after the other.
    pub(super) fn written_pages(&self, slot: u16, mut take: impl FnMut(&Piece<PAGE>)) {
        let start = window(slot) + HEADER as u64;
        let end = window(slot) + WINDOW as u64;
        let mut at = start;
        while let Ok(Some(written)) = self.memfd.next_written(at) {
            const { assert!(PAGE.is_multiple_of(ENTRY) && (ENTRIES * ENTRY).is_multiple_of(PAGE)) };
            let written = written.max(at);
            if written >= end {
                break;
            }
            let Some(page) = Piece::<PAGE>::read(self.memfd, written - written % PAGE as u64)
            else {
                break;
            };
            take(&page);
            at = written - written % PAGE as u64 + PAGE as u64;
        }
    }
}

fn wait_at(header: &Piece<HEADER>, at: usize) -> Option<WaitStatus> {
    let kind = header.word(at + wait::KIND);
    const ASYNC: &str = "unacknowledged asynchronous event";
    const PROCESS: &str = "process that uses it";
    let known = [
        (Waiting::Qp, "ibv_destroy_qp", "QP", ASYNC),
        (Waiting::Completions, "ibv_destroy_cq", "CQ", "unacknowledged completion event"),
        (Waiting::Cq, "ibv_destroy_cq", "CQ", ASYNC),
        (Waiting::Srq, "ibv_destroy_srq", "SRQ", ASYNC),
        (Waiting::Deregister, "ibv_dereg_mr", "MR", PROCESS),
        (Waiting::Reregister, "ibv_rereg_mr", "MR", PROCESS),
        (Waiting::Deallocate, "ibv_dealloc_mw", "MW", PROCESS),
        (Waiting::DestroyQp, "ibv_destroy_qp", "QP", PROCESS),
        (Waiting::ModifyQp, "ibv_modify_qp", "QP", PROCESS),
    ];
    let (_, verb, object, missing) = known.into_iter().find(|(known, ..)| *known as u64 == kind)?;
    let count = header.word(at + wait::COUNT);
    let pid = (missing == PROCESS).then_some(count as u32);
    let since = header.word(at + wait::SINCE);
    Some(WaitStatus {
        verb,
        object,
        number: header.word(at + wait::OBJECT) as u32,
        missing,
        count: if pid.is_some() { 1 } else { count },
        pid,
        waited: Duration::from_nanos(monotonic_ns().saturating_sub(since)),
    })
}

fn qp_at<const LEN: usize>(page: &Piece<LEN>, at: usize) -> Option<QpStatus> {
    let head = page.word(at + entry::HEAD);
    if head & LIVE == 0 {
        return None;
    }
    let numbers = page.word(at + entry::NUMBERS);
    let mut gid = [0; 16];
    gid[..8].copy_from_slice(&page.word(at + entry::PEER).to_ne_bytes());
    gid[8..].copy_from_slice(&page.word(at + entry::PEER + 8).to_ne_bytes());
    let gid = Gid(gid);
    let mut counters = [0; COUNTERS];
    for (n, counter) in counters.iter_mut().enumerate() {
        *counter = page.word(at + entry::COUNTERS + 8 * n);
    }
    Some(QpStatus {
        qpn: numbers as u32 & 0xff_ffff,
        qp_type: qp_type((head >> 8) as u8)?,
        state: state(head as u8)?,
        srq: head & SRQ != 0,
        peer: (gid != Gid::UNSPECIFIED).then_some((gid, (numbers >> 32) as u32 & 0xff_ffff)),
        peer_slot: (head & LOCAL != 0).then_some(page.word(at + entry::PROCESS) as u16),
        counters: counted(&counters),
    })
}

fn state(value: u8) -> Option<QpState> {
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    [Reset, Init, Rtr, Rts, Sqd, Sqe, Err].into_iter().find(|state| *state as u8 == value)
}

fn qp_type(value: u8) -> Option<QpType> {
    use QpType::{Rc, Uc, Ud, XrcRecv, XrcSend};
    [Rc, Uc, Ud, XrcSend, XrcRecv].into_iter().find(|qp_type| *qp_type as u8 == value)
}

fn counted(words: &[u64; COUNTERS]) -> Counters {
    let [
        tx_packets,
        tx_bytes,
        tx_messages,
        rx_packets,
        rx_bytes,
        rx_messages,
        retransmits,
        timeouts,
        probes,
        rnr_naks_sent,
        rnr_naks_received,
        seq_naks_sent,
        seq_naks_received,
        recoveries,
        duplicates,
        state,
        service,
        peer,
        pkey,
        qkey,
        sequence,
        message,
        no_receive,
        stale,
        tx_references,
        process_messages,
        process_bytes,
        mapped_messages,
        mapped_bytes,
        kernel_messages,
        kernel_bytes,
    ] = *words;
    let carried = |messages, bytes| Carried { messages, bytes };
    Counters {
        tx_references,
        direct: Direct {
            process: carried(process_messages, process_bytes),
            mapped: carried(mapped_messages, mapped_bytes),
            kernel: carried(kernel_messages, kernel_bytes),
        },
        tx_packets,
        tx_bytes,
        tx_messages,
        rx_packets,
        rx_bytes,
        rx_messages,
        retransmits,
        timeouts,
        probes,
        rnr_naks_sent,
        rnr_naks_received,
        seq_naks_sent,
        seq_naks_received,
        recoveries,
        duplicates,
        dropped: Dropped { state, service, peer, pkey, qkey, sequence, message, no_receive, stale },
    }
}
