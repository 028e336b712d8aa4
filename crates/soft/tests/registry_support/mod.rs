//! Members of a group in processes of their own: this test binary, executed again.

use std::io::Read;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ironverbs_soft::registry::{JoinError, JoinOptions, Registry, slot_of};
use ironverbs_sys::process;
use ironverbs_sys::udp::RxBatch;
use ironverbs_sys::unix::wait_readable;

pub(crate) use crate::child::WATCHDOG;
use crate::child::{Child, say};

const ROLE: &str = "IRONVERBS_TEST_MEMBER";

/// A group of its own for each test: the tests run side by side.
pub(crate) fn options(test: u16) -> JoinOptions {
    JoinOptions {
        port: 47_910 + test,
        namespace: format!("ironverbs-test-{}", std::process::id()),
        ..JoinOptions::default()
    }
}

/// A member in another process. Killed when dropped.
pub(crate) struct Member {
    child: Child,
    pub(crate) slot: u16,
}

impl Member {
    /// Starts one without waiting for it to join; as another user, if a uid is given.
    pub(crate) fn start(options: &JoinOptions, uid: Option<u32>) -> Member {
        let uid = uid.map_or(String::new(), |uid| uid.to_string());
        let role = format!("{} {} {uid}", options.port, options.namespace);
        Member { child: Child::start("member_process", (ROLE, role)), slot: u16::MAX }
    }

    /// Starts one and waits until it has joined.
    pub(crate) fn join(options: &JoinOptions) -> Member {
        let mut member = Member::start(options, None);
        member.joined();
        member
    }

    pub(crate) fn joined(&mut self) -> u16 {
        let line = self.line();
        self.slot = line.strip_prefix("joined ").expect(&line).parse().unwrap();
        self.slot
    }

    /// The next thing it says.
    pub(crate) fn line(&self) -> String {
        match self.child.line_within(WATCHDOG) {
            Ok(line) => line,
            Err(error) => panic!("member {} in slot {}: {error}", self.pid(), self.slot),
        }
    }

    /// The next thing it says, if it has said something.
    pub(crate) fn try_line(&self) -> Option<String> {
        self.child.try_line()
    }

    pub(crate) fn ask(&mut self, command: &str) -> String {
        self.child.tell(command);
        self.line()
    }

    pub(crate) fn block(&mut self) -> u16 {
        self.ask("claim").strip_prefix("block ").unwrap().parse().unwrap()
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.pid()
    }

    pub(crate) fn signal(&self, signal: i32) {
        self.child.signal(signal);
    }

    pub(crate) fn stop(&self) {
        self.child.stop();
    }

    pub(crate) fn kill(mut self) {
        self.die();
    }

    /// Kills it, but keeps its standard input open for children of it.
    pub(crate) fn die(&mut self) {
        self.child.kill();
        self.child.wait();
    }
}

/// A packet as far as steering looks at it, with a number to know it by.
pub(crate) fn packet(qpn: u32, number: u32) -> [u8; 16] {
    let mut packet = [0; 16];
    packet[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
    packet[12..].copy_from_slice(&number.to_be_bytes());
    packet
}

/// Sends a packet from a port of its own, so that GRO merges it with no other.
pub(crate) fn send(options: &JoinOptions, qpn: u32, number: u32) {
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    socket.send_to(&packet(qpn, number), ("127.0.0.1", options.port)).unwrap();
}

pub(crate) fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < WATCHDOG, "never: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// The whole life of a member process; returns at once in the test runner's own process.
pub(crate) fn member_process() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let mut words = role.split(' ');
    let port = words.next().unwrap().parse().unwrap();
    let namespace = words.next().unwrap().to_owned();
    if let Ok(uid) = words.next().unwrap_or_default().parse() {
        process::become_user(uid, uid).unwrap();
    }
    let options = JoinOptions { port, namespace, ..JoinOptions::default() };
    match Registry::join(&options) {
        Ok(registry) => {
            say(&format!("joined {}", registry.slot()));
            live(registry, &options);
        }
        Err(error) => {
            let kind = match &error {
                JoinError::PortTaken { .. } => "taken",
                JoinError::Unresponsive { .. } => "unresponsive",
                _ => "failed",
            };
            say(&format!("{kind} {error:?}"));
        }
    }
    std::process::exit(0);
}

/// Serves the group, says what packets come, and obeys, until the parent is gone.
fn live(registry: Registry, options: &JoinOptions) {
    let mut stdin = std::io::stdin();
    let mut batch = RxBatch::new(8);
    let mut pending = Vec::new();
    loop {
        let fds = [registry.service_fd(), registry.socket().as_fd(), stdin.as_fd()];
        let _ = wait_readable(&fds, Duration::from_secs(1));
        registry.service(&mut |_, _, bytes| report("forwarded", bytes));
        let _ = registry.socket().recv(&mut batch);
        for datagram in batch.messages() {
            for bytes in datagram.segments() {
                let Some(qpn) = ironverbs_wire::peek_dest_qpn(bytes) else { continue };
                if slot_of(qpn) == registry.slot() {
                    report("packet", bytes);
                } else {
                    registry.forward(qpn, &datagram.path, datagram.src_port, bytes);
                }
            }
        }
        if !wait_readable(&[stdin.as_fd()], Duration::ZERO).unwrap_or(false) {
            continue;
        }
        let mut bytes = [0; 256];
        match stdin.read(&mut bytes) {
            Ok(0) | Err(_) => return,
            Ok(n) => pending.extend_from_slice(&bytes[..n]),
        }
        while let Some(end) = pending.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = pending.drain(..=end).collect();
            match String::from_utf8_lossy(&line).trim() {
                "claim" => match registry.claim_block() {
                    Ok(block) => say(&format!("block {}", block.number())),
                    Err(error) => say(&format!("{error}")),
                },
                "members" => {
                    let slots: Vec<_> =
                        registry.members().iter().map(|member| member.slot).collect();
                    say(&format!("members {slots:?}"));
                }
                "fork" => {
                    let parent = process::pid();
                    std::thread::spawn(move || {
                        // SAFETY: the child allocates, which glibc allows there, and takes no lock but that of
                        // the standard output, which nobody else uses now.
                        let _ = unsafe { process::exit_code_of_fork(|| outlive(parent)) };
                    });
                }
                "churn" => {
                    drop(registry);
                    churn(options);
                }
                "leave" => {
                    drop(registry);
                    say("left");
                    let _ = stdin.read(&mut bytes);
                    return;
                }
                other => panic!("{other}"),
            }
        }
    }
}

/// Comes and goes until killed, or for as long as the watchdog lets it.
fn churn(options: &JoinOptions) -> ! {
    say("churning");
    let start = Instant::now();
    while start.elapsed() < WATCHDOG {
        if let Ok(registry) = Registry::join(options) {
            let _ = registry.claim_block();
        }
    }
    std::process::exit(0)
}

/// What a forked child does: nothing, until its parent is dead and the test's end of standard input
/// closed. While the parent lives, the input is the parent's.
fn outlive(parent: u32) -> i32 {
    // Here what it must not hold is closed: before, it would keep its parent's names.
    say("forked");
    while std::os::unix::process::parent_id() == parent {
        std::thread::sleep(Duration::from_millis(1));
    }
    let stdin = std::fs::File::open("/dev/stdin");
    stdin.is_ok_and(|mut stdin| stdin.read_to_end(&mut Vec::new()).is_ok()).into()
}

fn report(how: &str, bytes: &[u8]) {
    let number = bytes.last_chunk().map_or(0, |last| u32::from_be_bytes(*last));
    say(&format!("{how} {number}"));
}
