//! A process forks while it transfers: it is not disturbed, and what the child has of it fails at once.

use std::collections::VecDeque;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;
use std::thread;

use ironverbs_soft::config::DataPath;
use ironverbs_sys::process;

use super::*;

/// Bytes of a message at most.
const LONGEST: u32 = 1 << 16;

/// Messages under way.
const DEPTH: u64 = 4;

/// Not a test: sends back what comes, until it is killed.
pub(super) fn echo(side: &Side, joined: &Joined) {
    let place = |slot: u64| side.sge(slot * u64::from(LONGEST), LONGEST);
    let slots = 2 * DEPTH;
    (0..slots).for_each(|slot| joined.qp.post_recv(slot, &[place(slot)]).unwrap());
    say("echoes");
    loop {
        for wc in side.poll() {
            assert_eq!(wc.status, WcStatus::Success);
            if wc.wr_id < slots {
                let back = wr(slots + wc.wr_id, WrOpcode::Send);
                let sge = Sge { len: wc.byte_len, ..place(wc.wr_id) };
                joined.qp.post_send(&back, Payload::Sges(&[sge])).unwrap();
            } else {
                let slot = wc.wr_id - slots;
                joined.qp.post_recv(slot, &[place(slot)]).unwrap();
            }
        }
    }
}

/// Messages to an echo, each compared with what comes back.
struct Echoed<'a> {
    side: &'a Side,
    qp: &'a Qp,
    random: fastrand::Rng,
    next: u64,
    /// Under way: which byte, how often.
    sent: VecDeque<(u8, usize)>,
    back: u64,
}

impl<'a> Echoed<'a> {
    fn new(side: &'a Side, qp: &'a Qp) -> Echoed<'a> {
        let echoed = Echoed {
            side,
            qp,
            random: fastrand::Rng::with_seed(1),
            next: 0,
            sent: VecDeque::new(),
            back: 0,
        };
        (0..DEPTH).for_each(|slot| echoed.post_recv(slot));
        echoed
    }

    fn place(&self, slot: u64, len: u32) -> Sge {
        self.side.sge(slot * u64::from(LONGEST), len)
    }

    fn post_recv(&self, slot: u64) {
        self.qp.post_recv(slot, &[self.place(slot, LONGEST)]).unwrap();
    }

    fn round(&mut self) {
        while self.sent.len() < DEPTH as usize {
            let (byte, slot) = (self.next as u8, DEPTH + self.next % DEPTH);
            let len = match self.random.u8(..4) {
                0 => LONGEST,
                _ => self.random.u32(1..2000),
            };
            self.side.fill(slot as usize * LONGEST as usize, &vec![byte; len as usize]);
            let request = wr(slot, WrOpcode::Send);
            self.qp.post_send(&request, Payload::Sges(&[self.place(slot, len)])).unwrap();
            self.sent.push_back((byte, len as usize));
            self.next += 1;
        }
        for wc in self.side.poll() {
            assert_eq!(wc.status, WcStatus::Success, "{wc:?}");
            if wc.wr_id < DEPTH {
                let (byte, len) = self.sent.pop_front().unwrap();
                let got = self.side.read(wc.wr_id as usize * LONGEST as usize, len);
                assert_eq!(wc.byte_len as usize, len);
                assert!(got.iter().all(|b| *b == byte), "message {}", self.back);
                self.post_recv(wc.wr_id);
                self.back += 1;
            }
        }
    }
}

/// What a child has of its parent, to be tried.
struct Inherited {
    host: Host,
    context: Arc<Context>,
    channel: Arc<Channel>,
    pd: Arc<Pd>,
    mr: Arc<Mr>,
    cq: Arc<Cq>,
    srq: Arc<Srq>,
    qp: Arc<Qp>,
    init: QpInit,
    sge: Sge,
}

impl Inherited {
    /// The number of the first call that does not fail at once, from 1. In a copy of the process whose other threads were
    /// anywhere: nothing here may take a lock or memory.
    fn attempt(&self) -> i32 {
        let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
        let sges = [self.sge];
        self.cq.ack_events(1);
        self.host.farewell();
        let refused = [
            self.cq.poll(1, |_| {}).is_err(),
            self.qp.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&sges)).is_err(),
            self.qp.post_recv(1, &sges).is_err(),
            self.srq.post_recv(1, &sges).is_err(),
            self.qp.modify(&error, AttrMask::STATE).is_err(),
            self.cq.request_notify(false).is_err(),
            self.channel.next_event().is_err(),
            self.context.next_async_event().is_err(),
            self.context.alloc_pd().is_err(),
            self.pd.create_qp(&self.init).is_err(),
            self.mr.destroy().is_err(),
            self.qp.destroy().is_err(),
            self.cq.destroy().is_err(),
            self.srq.destroy().is_err(),
            self.context.destroy().is_err(),
            self.host.devices().is_err(),
            !self.host.progress(),
            self.host.members().is_empty(),
            self.qp.query() == QpAttr::default(),
            self.srq.query().max_wr == 0,
        ];
        refused.iter().position(|refused| !refused).map_or(0, |n| n as i32 + 1)
    }
}

/// Children of every kind, one after the other.
fn have_children(inherited: &Inherited, rounds: u32) {
    let none = |how: &str, code: std::io::Result<i32>| assert_eq!(code.unwrap(), 0, "{how}");
    for _ in 0..rounds {
        // SAFETY: these children end at once, or call what is meant to fail without locks and memory; that it does is
        // what is tested, and the last two only sleep and end.
        unsafe {
            none("fork, _exit", process::exit_code_of_fork(|| 0));
            none("fork, calls", process::exit_code_of_fork(|| inherited.attempt()));
            none("clone, calls", process::exit_code_of_clone(|| inherited.attempt()));
            let sleep = || {
                thread::sleep(Duration::from_millis(20));
                inherited.attempt()
            };
            none("clone, sleep, calls", process::exit_code_of_clone(sleep));
            none("fork, exit", process::exit_code_of_fork(|| std::process::exit(0)));
        }
        // fork(2) and execve(2).
        let mut command = Command::new("ls");
        // SAFETY: it does nothing.
        unsafe { command.pre_exec(|| Ok(())) };
        // No descriptor of ours gets through; ours are not of these kinds only.
        let seen = command.args(["-l", "/proc/self/fd"]).output().unwrap();
        let seen = String::from_utf8_lossy(&seen.stdout).into_owned();
        for kind in ["anon_inode", "memfd:", "socket:"] {
            assert!(!seen.is_empty() && !seen.contains(kind), "{seen}");
        }
        // posix_spawn(3), which is a vfork.
        assert!(Command::new("true").status().unwrap().success());
    }
}

fn undisturbed(port: u16, path: DataPath) {
    let _shared = COUNTING.read();
    let side = side_by(port, path);
    nonblocking(&side);
    let init = side.init(QpType::Rc);
    let (peer, joined) = Peer::connect(port, &side, &init, "echo");
    assert_eq!(peer.line(), "echoes");
    let channel = side.context.create_channel().unwrap();
    let inherited = Inherited {
        host: side.host.clone(),
        context: side.context.clone(),
        channel,
        pd: side.pd.clone(),
        mr: side.mr.clone(),
        cq: side.cq.clone(),
        srq: side.pd.create_srq(SrqInit { max_wr: 1, max_sge: 1 }).unwrap(),
        qp: joined.qp.clone(),
        init,
        sge: side.sge(0, 8),
    };
    let mut echoed = Echoed::new(&side, &joined.qp);
    eventually("traffic", || {
        echoed.round();
        echoed.back > 100
    });
    // Not in a scope: a child that hangs must not keep this from failing.
    let parent = thread::spawn(move || have_children(&inherited, 5));
    eventually("all children have ended", || {
        echoed.round();
        parent.is_finished()
    });
    parent.join().unwrap();
    let before = echoed.back;
    eventually("more traffic", || {
        echoed.round();
        echoed.back > before + 100
    });
    assert!(events(&side).iter().all(|kind| *kind == EventKind::CommEst));
}

#[test]
fn children_of_every_kind_disturb_no_transfer_local() {
    undisturbed(port(7), DataPath::Auto);
}

#[test]
fn children_of_every_kind_disturb_no_transfer_wire() {
    undisturbed(port(8), DataPath::Wire);
}
