//! Devices follow the network interfaces. Each case runs in a network namespace of its own: the test makes it and
//! runs itself in it. That needs root and iproute2; without them these tests fail and say so.

#[path = "../common/mod.rs"]
mod common;
mod removal;

use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ironverbs_soft::*;
use ironverbs_sys::errno::{EINVAL, ENODEV};

/// Tells a run of this program that it is inside already.
const INSIDE: &str = "IN_NAMESPACE_OF_ITS_OWN";

/// Runs `body` in a network namespace that has nothing but `lo`, up.
fn alone(test: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        return body();
    }
    struct Namespace(String);
    impl Drop for Namespace {
        fn drop(&mut self) {
            let _ = Command::new("ip").args(["netns", "del", &self.0]).output();
        }
    }
    let namespace = Namespace(format!("ironverbs-soft-{}-{test}", std::process::id()));
    let made = Command::new("ip").args(["netns", "add", &namespace.0]).output();
    let made = made.expect("needs `ip` of iproute2");
    let why = String::from_utf8_lossy(&made.stderr);
    assert!(made.status.success(), "needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN): {why}");
    let me = std::env::current_exe().unwrap();
    let output = Command::new("ip")
        .args(["netns", "exec", &namespace.0])
        .arg(me)
        .args(["--exact", test, "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&text);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split_whitespace()).output().unwrap();
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "ip {arguments}: {why}");
}

/// Two interfaces with an address each, `va` and `vb`.
fn cable() {
    ip("link set lo up");
    ip("link add va type veth peer name vb");
    for (name, address) in [("va", "10.9.0.1/24"), ("vb", "10.9.1.1/24")] {
        ip(&format!("address add {address} dev {name}"));
        ip(&format!("link set {name} up"));
    }
    // It passes packets a moment later; until then there may be no device but that of `lo`, which stays.
    for name in ["va", "vb"] {
        let state = format!("/sys/class/net/{name}/operstate");
        until(name, || (std::fs::read_to_string(&state).ok()?.trim() == "up").then_some(()));
    }
}

fn host() -> Host {
    Host::start(Config::default()).unwrap()
}

fn until<T>(what: &str, mut attempt: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(done) = attempt() {
            return done;
        }
        assert!(start.elapsed() < Duration::from_secs(30), "{what}: did not happen");
        std::thread::sleep(Duration::from_millis(2));
    }
}

fn device(host: &Host, interface: &str) -> Arc<Device> {
    // An interface that was just set up passes packets a moment later.
    until(interface, || {
        let mut devices = host.devices().unwrap().into_iter();
        devices.find(|device| device.interface() == interface)
    })
}

fn open(device: &Arc<Device>) -> Arc<Context> {
    let context = device.open().unwrap();
    nonblocking(&context);
    while context.next_async_event().is_ok() {}
    context
}

fn nonblocking(context: &Context) {
    // SAFETY: the context holds the descriptor for the length of the call.
    let fd = unsafe { BorrowedFd::borrow_raw(context.async_fd()) };
    UnixStream::from(fd.try_clone_to_owned().unwrap()).set_nonblocking(true).unwrap();
}

/// Waits for an event of the port, whatever comes before it.
fn event(context: &Context, kind: EventKind) {
    until(&format!("{kind:?}"), || {
        let event = context.next_async_event().ok()?;
        event.ack();
        assert!(matches!(event.source, EventSource::Port(1)), "{event:?}");
        (event.kind == kind).then_some(())
    });
}

fn names(host: &Host) -> Vec<(String, String)> {
    let devices = host.devices().unwrap();
    devices.iter().map(|device| (device.name().to_owned(), device.interface())).collect()
}

fn gids(context: &Context) -> Vec<String> {
    context.gid_table(1).iter().map(|entry| entry.gid.to_ip().to_string()).collect()
}

#[test]
fn a_machine_with_nothing_but_lo_has_a_device() {
    alone("a_machine_with_nothing_but_lo_has_a_device", || {
        assert!(host().devices().unwrap().is_empty(), "not even that is up");
        ip("link set lo up");
        let host = host();
        assert_eq!(names(&host), [("iron0".to_owned(), "lo".to_owned())]);
        let context = open(&host.devices().unwrap()[0]);
        assert_eq!(gids(&context)[0], "127.0.0.1");
        assert_eq!(context.port(1).unwrap().state, PortState::Active);
    });
}

#[test]
fn every_interface_that_is_up_and_has_an_address_is_a_device() {
    alone("every_interface_that_is_up_and_has_an_address_is_a_device", || {
        cable();
        ip("link add idle type veth peer name down");
        // Without an address of its own making.
        ip("link set idle addrgenmode none");
        ip("link set idle up");
        ip("address add 10.9.2.1/24 dev down");
        let host = host();
        device(&host, "va");
        device(&host, "vb");
        let found = names(&host);
        let interfaces: Vec<_> = found.iter().map(|(_, interface)| &interface[..]).collect();
        assert!(interfaces.contains(&"va") && interfaces.contains(&"vb"), "{found:?}");
        assert!(!interfaces.contains(&"lo") && !interfaces.contains(&"down"), "{found:?}");
        assert!(!interfaces.contains(&"idle"), "{found:?}");
        for (n, (name, _)) in found.iter().enumerate() {
            assert_eq!(*name, format!("iron{n}"));
        }
        let guids: std::collections::HashSet<_> =
            host.devices().unwrap().iter().map(|device| device.guid()).collect();
        assert!(guids.len() == found.len() && !guids.contains(&0));
    });
}

#[test]
fn the_gid_table_follows_the_addresses() {
    alone("the_gid_table_follows_the_addresses", || {
        cable();
        let host = host();
        let device = device(&host, "va");
        let context = open(&device);
        until("the first GID", || (gids(&context).first()? == "10.9.0.1").then_some(()));
        let v4 = context.gid(1, 0).unwrap();

        ip("address add 10.9.0.2/24 dev va");
        event(&context, EventKind::GidChange);
        until("the second", || gids(&context).contains(&"10.9.0.2".to_owned()).then_some(()));
        ip("address add fd09::1/64 dev va nodad");
        event(&context, EventKind::GidChange);
        until("the third", || gids(&context).contains(&"fd09::1".to_owned()).then_some(()));
        // Those that were there keep their places.
        assert_eq!(context.gid(1, 0).unwrap(), v4);
        let second = context
            .gid_table(1)
            .into_iter()
            .find(|entry| entry.gid.to_ip().to_string() == "10.9.0.2")
            .unwrap();

        ip("address del 10.9.0.1/24 dev va");
        event(&context, EventKind::GidChange);
        until("its end", || (!gids(&context).contains(&"10.9.0.1".to_owned())).then_some(()));
        let left = gids(&context);
        assert!(left.contains(&"fd09::1".to_owned()), "{left:?}");
        // Taking the first address of a subnet takes its others; where one stays, it stays in place.
        if left.contains(&"10.9.0.2".to_owned()) {
            assert_eq!(context.gid(1, second.index).unwrap(), second);
        }
        assert_eq!(context.gid(1, 0).err().map(|e| e.errno()), Some(EINVAL), "the entry is empty");
    });
}

#[test]
fn the_port_follows_the_interface() {
    alone("the_port_follows_the_interface", || {
        cable();
        let host = host();
        let device = device(&host, "va");
        let context = open(&device);
        until("up", || (context.port(1).ok()?.state == PortState::Active).then_some(()));
        for _ in 0..3 {
            ip("link set va down");
            event(&context, EventKind::PortErr);
            assert_eq!(context.port(1).unwrap().state, PortState::Down);
            ip("link set va up");
            event(&context, EventKind::PortActive);
            assert_eq!(context.port(1).unwrap().state, PortState::Active);
        }
        ip("link set va mtu 1500");
        until("its MTU", || (context.port(1).ok()?.active_mtu == Mtu::M1024).then_some(()));
        ip("link set va mtu 9000");
        until("its MTU", || (context.port(1).ok()?.active_mtu == Mtu::M4096).then_some(()));
    });
}

#[test]
fn a_device_that_is_gone_can_still_be_looked_at() {
    alone("a_device_that_is_gone_can_still_be_looked_at", || {
        cable();
        let host = host();
        let device = device(&host, "va");
        let context = open(&device);
        let (name, guid, attr) = (device.name().to_owned(), device.guid(), context.attr());
        let pd = context.alloc_pd().unwrap();
        ip("link del va");
        event(&context, EventKind::PortErr);
        until("its end", || (!device.is_present()).then_some(()));
        assert_eq!((device.name(), device.guid(), context.attr()), (&name[..], guid, attr));
        assert_eq!(context.port(1).unwrap().state, PortState::Down);
        assert!(context.gid_table(1).is_empty());
        assert_eq!(device.open().unwrap_err().errno(), ENODEV);
        assert!(host.devices().unwrap().iter().all(|other| !Arc::ptr_eq(other, &device)));
        // What was made from it can be taken down in order.
        pd.destroy().unwrap();
        context.destroy().unwrap();
        // A new interface of the same name is another device.
        ip("link add va type veth peer name vb");
        ip("link set vb up");
        ip("address add 10.9.0.1/24 dev va");
        ip("link set va up");
        let again = until("a device", || {
            let devices = host.devices().ok()?;
            devices.into_iter().find(|other| other.interface() == "va")
        });
        assert!(!Arc::ptr_eq(&again, &device));
        assert_ne!(again.name(), name);
        open(&again);
    });
}

#[test]
fn the_same_device_is_the_same_object() {
    alone("the_same_device_is_the_same_object", || {
        cable();
        let host = host();
        device(&host, "va");
        device(&host, "vb");
        let before = host.devices().unwrap();
        ip("link set va down");
        ip("link set va up");
        ip("link add other type veth peer name another");
        let after = host.devices().unwrap();
        for device in &before {
            assert!(after.iter().any(|other| Arc::ptr_eq(other, device)));
        }
    });
}
