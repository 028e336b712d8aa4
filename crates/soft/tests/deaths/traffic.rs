//! Traffic that goes on until it fails, and what a process holds.

use std::fmt;
use std::fs;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Instant;

use ironverbs_soft::*;

use crate::common::*;
use crate::peer::{Address, Joined, MEMORY, WATCHDOG};

pub(crate) const SIGCONT: i32 = 18;

/// What one side does of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    Send,
    Write,
    Read,
    /// It only answers and receives.
    Wait,
}

impl Work {
    const ALL: [(Work, &'static str); 4] =
        [(Work::Send, "send"), (Work::Write, "write"), (Work::Read, "read"), (Work::Wait, "wait")];

    pub(crate) fn parse(word: &str) -> Work {
        Work::ALL.into_iter().find(|(_, name)| *name == word).unwrap().0
    }

    pub(crate) fn random(random: &mut fastrand::Rng) -> Work {
        Work::ALL[random.usize(..4)].0
    }
}

impl fmt::Display for Work {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Work::ALL.iter().find(|(work, _)| work == self).unwrap().1)
    }
}

impl Joined {
    /// A request that names the start of the peer's memory as remote.
    pub(crate) fn request(&self, wr_id: u64, opcode: WrOpcode) -> SendWr {
        let Address { va, rkey, .. } = self.remote;
        SendWr { remote_addr: va, rkey, ..wr(wr_id, opcode) }
    }
}

/// Sends under way at once; as many receives are kept posted twice over.
const DEPTH: usize = 8;

/// Requests and receives of one QP that are kept going.
pub(crate) struct Traffic<'a> {
    side: &'a Side,
    joined: &'a Joined,
    work: Work,
    random: fastrand::Rng,
    under_way: usize,
    pub(crate) sent: u64,
    pub(crate) received: u64,
}

impl fmt::Debug for Traffic<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Traffic { work, under_way, sent, received, .. } = self;
        write!(f, "{work}: {sent} sent, {under_way} under way, {received} received")
    }
}

impl<'a> Traffic<'a> {
    pub(crate) fn new(side: &'a Side, joined: &'a Joined, work: Work) -> Traffic<'a> {
        let random = fastrand::Rng::with_seed(1);
        Traffic { side, joined, work, random, under_way: 0, sent: 0, received: 0 }
    }

    /// Posts the receives.
    pub(crate) fn ready(&self) {
        for _ in 0..2 * DEPTH {
            self.post_recv();
        }
    }

    fn post_recv(&self) {
        let sge = [self.side.sge(MEMORY as u64 / 2, MEMORY as u32 / 2)];
        let qp = &self.joined.qp;
        // After an error a post is flushed, or no longer possible.
        let _ = match qp.srq() {
            Some(srq) => srq.post_recv(0, &sge),
            None => qp.post_recv(0, &sge),
        };
    }

    /// Keeps it going; the completions that failed.
    pub(crate) fn round(&mut self) -> Vec<Wc> {
        let opcode = match self.work {
            Work::Send => Some(WrOpcode::Send),
            Work::Write => Some(WrOpcode::Write),
            Work::Read => Some(WrOpcode::Read),
            Work::Wait => None,
        };
        while let Some(opcode) = opcode.filter(|_| self.under_way < DEPTH) {
            // Mostly small, now and then of several packets.
            let len = if self.random.u8(..8) == 0 { 100_000 } else { self.random.u32(..300) };
            let request = self.joined.request(1, opcode);
            let sges = [self.side.sge(0, len)];
            if self.joined.qp.post_send(&request, Payload::Sges(&sges)).is_err() {
                break;
            }
            self.under_way += 1;
        }
        let mut failed = Vec::new();
        for wc in self.side.poll() {
            let receive = wc.wr_id == 0;
            match wc.status {
                WcStatus::Success if receive => {
                    self.received += 1;
                    self.post_recv();
                }
                WcStatus::Success => {
                    self.sent += 1;
                    self.under_way -= 1;
                }
                _ => failed.push(wc),
            }
        }
        failed
    }
}

/// Another region over all of the memory.
pub(crate) fn unsafe_region(side: &Side) -> Arc<Mr> {
    let (addr, len) = (side.memory.addr(), side.memory.len() as u64);
    // SAFETY: the mapping lives as long as the side.
    unsafe { side.pd.reg_mr(addr, len, addr, ALL) }.unwrap()
}

/// Makes the descriptor of asynchronous events O_NONBLOCK.
pub(crate) fn nonblocking(side: &Side) {
    // SAFETY: the context holds the descriptor for the length of the call.
    let fd = unsafe { BorrowedFd::borrow_raw(side.context.async_fd()) };
    // A duplicate shares the status flags; FIONBIO sets them of any descriptor.
    UnixStream::from(fd.try_clone_to_owned().unwrap()).set_nonblocking(true).unwrap();
    while side.context.next_async_event().is_ok() {}
}

/// What this process holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holdings {
    pub(crate) files: usize,
    /// Mapped lanes.
    pub(crate) lanes: usize,
    /// Resident memory.
    pub(crate) kib: u64,
}

impl Holdings {
    pub(crate) fn now() -> Holdings {
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let status = fs::read_to_string("/proc/self/status").unwrap();
        let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        Holdings {
            files: fs::read_dir("/proc/self/fd").unwrap().count(),
            lanes: maps.matches("ironverbs-lane").count(),
            kib: rss.split_whitespace().next().unwrap().parse().unwrap(),
        }
    }

    /// When what is given up in its own time is given up, if ever.
    pub(crate) fn settled(before: Option<Holdings>) -> Holdings {
        let start = Instant::now();
        loop {
            let now = Holdings::now();
            let done = before.is_none_or(|before| now.files <= before.files) && now.lanes == 0;
            if done || start.elapsed() > WATCHDOG / 3 {
                return now;
            }
            std::thread::yield_now();
        }
    }
}
