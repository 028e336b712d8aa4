//! The other process of a case: this test binary, executed again, with a Host of its own.

use std::sync::Arc;

use ironverbs_soft::*;

use crate::child::Child;
pub(crate) use crate::child::{WATCHDOG, eventually, say, told};
use crate::common::{Side, attr, connect};

/// Bytes of each side's memory.
pub(crate) const MEMORY: usize = 4 << 20;

const ROLE: &str = "IRONVERBS_TEST_ONESIDED";

pub(crate) fn host(port: u16) -> Host {
    let mut config = Config::default();
    config.udp_port.value = port;
    config.interfaces.value = vec!["lo".into()];
    Host::start(config).unwrap()
}

/// What one end tells the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Address {
    pub(crate) gid: Gid,
    pub(crate) qpn: u32,
    pub(crate) addr: u64,
    pub(crate) rkey: u32,
}

impl Address {
    fn of(side: &Side, qp: &Qp) -> Address {
        let (addr, rkey) = (side.memory.addr(), side.mr.rkey());
        Address { gid: side.gid(), qpn: qp.qpn(), addr, rkey }
    }

    fn say(&self) -> String {
        let gid = u128::from_be_bytes(self.gid.0);
        format!("{gid:x} {:x} {:x} {:x}", self.qpn, self.addr, self.rkey)
    }

    fn parse(line: &str) -> Address {
        let mut words = line.split(' ');
        let mut next = || u128::from_str_radix(words.next().unwrap(), 16).unwrap();
        let gid = Gid(next().to_be_bytes());
        Address { gid, qpn: next() as u32, addr: next() as u64, rkey: next() as u32 }
    }

    pub(crate) fn remote(&self, wr_id: u64, opcode: WrOpcode, offset: u64) -> SendWr {
        SendWr {
            remote_addr: self.addr + offset,
            rkey: self.rkey,
            ..crate::common::wr(wr_id, opcode)
        }
    }
}

/// The other process. Killed when dropped.
pub(crate) struct Peer(Child);

impl std::ops::Deref for Peer {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl std::ops::DerefMut for Peer {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

impl Peer {
    /// Starts one that does what `role` says.
    pub(crate) fn start(port: u16, role: &str) -> Peer {
        Peer(Child::start("peer_process", (ROLE, format!("{port} {role}"))))
    }

    /// Connects a QP of `side` to the one of the peer, and tells it of `mr`.
    pub(crate) fn connect(&mut self, side: &Side, mr: &Mr) -> (Arc<Qp>, Address) {
        let there = Address::parse(&self.line());
        let qp = side.qp(QpType::Rc);
        connect(&qp, &QpAttr { timeout: 10, retry_cnt: 2, ..attr(there.gid, there.qpn) });
        let here = Address { rkey: mr.rkey(), ..Address::of(side, &qp) };
        self.tell(&here.say());
        // Before that it would not take requests, and these retries are soon used up.
        assert_eq!(self.line(), "met");
        (qp, there)
    }
}

/// In the other process: its part. None in the test runner's own.
pub(crate) fn role() -> Option<(u16, String)> {
    let role = std::env::var(ROLE).ok()?;
    let (port, role) = role.split_once(' ')?;
    Some((port.parse().ok()?, role.to_owned()))
}

/// In the other process: connects a QP to the test's.
pub(crate) fn meet(side: &Side, addr: u64, rkey: u32) -> (Arc<Qp>, Address) {
    let qp = side.qp(QpType::Rc);
    say(&Address { addr, rkey, ..Address::of(side, &qp) }.say());
    let there = Address::parse(&told());
    connect(&qp, &attr(there.gid, there.qpn));
    say("met");
    (qp, there)
}

/// Posts a request and gives its completion.
#[track_caller]
pub(crate) fn run(side: &Side, qp: &Qp, request: &SendWr, sges: &[Sge]) -> Wc {
    qp.post_send(request, Payload::Sges(sges)).unwrap();
    let mut found = Vec::new();
    eventually("a completion", || {
        found.extend(side.poll());
        !found.is_empty()
    });
    found[0]
}

/// Waits until requests go without packets.
#[track_caller]
pub(crate) fn warm(side: &Side, qp: &Qp, there: &Address) {
    eventually("a request without packets", || {
        let request = there.remote(0, WrOpcode::Write, MEMORY as u64 - 8);
        let wc = run(side, qp, &request, &[side.sge(MEMORY as u64 - 8, 8)]);
        assert_eq!(wc.status, WcStatus::Success);
        qp.counters().direct.total().messages > 0
    });
}
