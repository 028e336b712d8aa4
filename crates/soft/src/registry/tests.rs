//! Deaths at the worst moments: while the lock is held, with half a socket created. The process
//! that dies is this test binary, executed again.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read};
use std::net::{Ipv4Addr, UdpSocket};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use ironverbs_sys::udp::RxBatch;
use ironverbs_sys::unix::wait_readable;

use super::*;

const SIGSTOP: i32 = 19;
const STAGE: &str = "IRONVERBS_TEST_STAGE";
const LONG: Duration = Duration::from_secs(30);

fn options(test: u16) -> JoinOptions {
    JoinOptions {
        port: 47_890 + test,
        namespace: format!("ironverbs-unit-{}", std::process::id()),
        ..JoinOptions::default()
    }
}

/// Joins, takes the lock, goes so far in adding a slot as the stage says, and waits for its death.
#[test]
fn dying_process() {
    let Ok(stage) = std::env::var(STAGE) else { return };
    let mut words = stage.split(' ');
    let stage = words.next().unwrap();
    let port = words.next().unwrap().parse().unwrap();
    let namespace = words.next().unwrap().to_owned();
    let registry =
        Registry::join(&JoinOptions { port, namespace, ..JoinOptions::default() }).unwrap();
    if stage == "listening" {
        assert!(registry.claim_port(&claim(1)).unwrap());
        assert!(registry.listen_on_port(&Claim { listens: true, ..claim(1) }).unwrap());
    }
    let group = &registry.member.group;
    let (lock, _) = group.table.lock(LONG).unwrap();
    let slot = group.table.sockets();
    let mut socket = None;
    if matches!(stage, "bound" | "stored") {
        group.table.set_creating(true);
        socket = Some(RxSocket::bind(port, true).unwrap());
    }
    if stage == "stored" {
        group.vault.store(&lock, slot, std::os::fd::AsFd::as_fd(socket.as_ref().unwrap())).unwrap();
    }
    println!("@holding");
    // Until the parent kills us, or is dead itself.
    let _ = io::stdin().read(&mut [0]);
}

fn claim(id: u32) -> Claim {
    let ip = Ipv4Addr::LOCALHOST.into();
    Claim { id, service: 0x0106_1234, ip, reuse: false, family_only: false, listens: false }
}

#[test]
fn a_port_is_free_when_its_process_is_dead_noticed_or_not() {
    let options = options(9);
    let registry = Registry::join(&options).unwrap();
    let mut dying = None;
    served(&registry, || dying = Some(Dying::at("listening", &options)));
    // Nobody serves any more, so nobody hears of the death.
    dying.unwrap().kill();
    assert!(registry.claim_port(&claim(2)).unwrap());
    assert!(registry.listen_on_port(&Claim { listens: true, ..claim(2) }).unwrap());
}

struct Dying(Child);

impl Dying {
    fn at(stage: &str, options: &JoinOptions) -> Dying {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["registry::tests::dying_process", "--exact", "--nocapture"])
            .env(STAGE, format!("{stage} {} {}", options.port, options.namespace))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut lines = stdout.lines().map_while(Result::ok);
        assert!(lines.any(|line| line.ends_with("@holding")), "the process failed early");
        Dying(child)
    }

    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Dying {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Runs `test` while a thread serves the group.
fn served(registry: &Registry, test: impl FnOnce()) {
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Relaxed);
        }
    }
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let _ = wait_readable(&[registry.service_fd()], Duration::from_millis(5));
                registry.service(&mut |_, _, _| {});
            }
        });
        let _stop = Stop(&stop);
        test();
    });
}

/// Sends a packet to every member's blocks: it arrives there and nowhere else.
fn assert_steered(members: &[&Registry], port: u16) {
    let mut batch = RxBatch::new(1);
    for target in members {
        let mut packet = [0; 12];
        let qpn = u32::from(target.slot()) << 12 | 5;
        packet[5..8].copy_from_slice(&qpn.to_be_bytes()[1..]);
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        sender.send_to(&packet, ("127.0.0.1", port)).unwrap();
        let start = Instant::now();
        while target.socket().recv(&mut batch).unwrap() == 0 {
            assert!(start.elapsed() < LONG, "slot {}'s packet went elsewhere", target.slot());
            thread::yield_now();
        }
    }
    for member in members {
        assert_eq!(member.socket().recv(&mut batch).unwrap(), 0, "slot {}", member.slot());
    }
}

fn a_death_at(stage: &str, test: u16) {
    let options = options(test);
    let first = Registry::join(&options).unwrap();
    served(&first, || {
        let mut dying = Dying::at(stage, &options);
        // They wait for the lock while its holder dies.
        let (second, third) = thread::scope(|scope| {
            let join = || Registry::join(&options).unwrap();
            let (second, third) = (scope.spawn(join), scope.spawn(join));
            thread::sleep(Duration::from_millis(20));
            dying.kill();
            (second.join().unwrap(), third.join().unwrap())
        });
        // The lock is free before its holder is quite dead: the two may or may not have found its
        // slot free. The next one does.
        let fourth = Registry::join(&options).unwrap();
        let fifth = Registry::join(&options).unwrap();
        let members = [&first, &second, &third, &fourth, &fifth];
        let slots: BTreeSet<u16> = members.iter().map(|member| member.slot()).collect();
        assert_eq!(slots, (1..6).collect());
        // One is QP1's.
        assert_eq!(first.member.group.table.sockets(), 6);
        // The kernel's list can miss a socket while others of the machine come and go.
        let start = Instant::now();
        while fds::wildcard_sockets(options.port) != Some(6) {
            assert!(start.elapsed() < LONG, "{:?}", fds::wildcard_sockets(options.port));
            thread::yield_now();
        }
        assert_steered(&members, options.port);
    });
}

#[test]
fn a_death_with_the_lock_held_changes_nothing() {
    a_death_at("locked", 0);
}

#[test]
fn a_death_with_a_socket_bound_but_not_stored_undoes_it() {
    for _ in 0..5 {
        a_death_at("bound", 1);
    }
}

#[test]
fn a_death_with_a_socket_stored_but_not_counted_completes_it() {
    a_death_at("stored", 2);
}

#[test]
fn a_stopped_holder_of_the_lock_is_an_error_until_it_is_dead() {
    let options = options(3);
    let first = Registry::join(&options).unwrap();
    served(&first, || {
        let mut dying = Dying::at("locked", &options);
        process::signal(dying.0.id(), SIGSTOP).unwrap();
        match Registry::join(&options) {
            Err(JoinError::Io { source, .. }) => {
                assert_eq!(source.kind(), io::ErrorKind::TimedOut);
            }
            other => panic!("{other:?}"),
        }
        // What the living have goes on meanwhile.
        assert!(first.claim_block().is_ok());
        dying.kill();
        assert_eq!(Registry::join(&options).unwrap().slot(), 2);
    });
}

#[test]
fn a_forked_child_touches_nothing() {
    let options = options(4);
    let first = Registry::join(&options).unwrap();
    let registry = Registry::join(&options).unwrap();
    let slot = registry.slot();
    let child = || {
        let closed = std::fs::read_link(format!(
            "/proc/self/fd/{}",
            std::os::fd::AsRawFd::as_raw_fd(&registry.service_fd())
        ))
        .is_err();
        let idle = registry.claim_block().is_err() && registry.members().is_empty();
        registry.service(&mut |_, _, _| {});
        // SAFETY: only the child drops its copy here; the parent's is dropped by its own thread.
        drop(unsafe { std::ptr::read(&registry) });
        i32::from(closed && idle)
    };
    // SAFETY: the child allocates, which glibc allows there, and takes no lock but the registry's.
    let code = unsafe { process::exit_code_of_fork(child) }.unwrap();
    assert_eq!(code, 1);
    assert_eq!(first.members().len(), 2);
    // The child's copy is gone, the parent's is a member still.
    assert_eq!(first.members()[1].slot, slot);
}
