//! An interface is deleted while its device is in use.

use ironverbs_soft::cm::*;
use ironverbs_soft::config::{DataPath, Setting, Source};
use ironverbs_sys::errno::EIO;

use super::common::{ALL, attr, connect, pair, to_init, wr};
use super::*;

type Side = common::Side;

/// Two cables: `va` and `vc` have addresses, and one goes without the other.
fn two_cables() {
    ip("link set lo up");
    for (name, peer, address) in [("va", "vb", "10.9.0.1/24"), ("vc", "vd", "10.9.2.1/24")] {
        ip(&format!("link add {name} type veth peer name {peer}"));
        ip(&format!("address add {address} dev {name}"));
        ip(&format!("link set {name} up"));
        ip(&format!("link set {peer} up"));
    }
}

fn side(interface: &str, path: DataPath) -> Side {
    let path = Setting { value: path, source: Source::Default };
    let host = Host::start(Config { path, ..Config::default() }).unwrap();
    let device = device(&host, interface);
    let side = Side::on(host, &device, 1 << 16);
    nonblocking(&side.context);
    until("its address", || side.context.gid(1, 0).ok().map(drop));
    side
}

fn kinds(context: &Context) -> Vec<EventKind> {
    let next = || context.next_async_event().ok();
    std::iter::from_fn(next).inspect(AsyncEvent::ack).map(|event| event.kind).collect()
}

fn completions(cq: &Cq, n: usize) -> Vec<Wc> {
    let mut found = Vec::new();
    until("completions", || {
        cq.poll(64, |wc| found.push(*wc)).unwrap();
        (found.len() >= n).then_some(())
    });
    found
}

fn errno<T>(result: Result<T, Error>) -> i32 {
    result.err().expect("the device is gone").errno()
}

fn removal(path: DataPath) {
    two_cables();
    let (a, b) = (side("va", path), side("vc", path));
    let device = a.context.device().clone();
    let second = open(&device);
    let (x, y) = pair(&a, &b, QpType::Rc);
    assert_eq!(x.is_local(), path != DataPath::Wire);
    // A queue pair that a thread sleeps for.
    let channel = a.context.create_channel().unwrap();
    let cq = a.context.create_cq(16, Some(&channel), 0).unwrap();
    let init = QpInit { send_cq: cq.clone(), recv_cq: cq.clone(), ..a.init(QpType::Ud) };
    let datagrams = a.pd.create_qp(&init).unwrap();
    connect(&datagrams, &attr(b.gid(), y.qpn()));
    datagrams.post_recv(7, &[a.sge(0, 100)]).unwrap();
    cq.request_notify(false).unwrap();
    // Some that have not got far.
    let (reset, begun) = (a.qp(QpType::Rc), a.qp(QpType::Uc));
    to_init(&begun, &attr(b.gid(), y.qpn()));
    begun.post_recv(8, &[a.sge(0, 100)]).unwrap();
    let srq = a.pd.create_srq(SrqInit { max_wr: 4, max_sge: 1 }).unwrap();
    // All of it works.
    (0..3).for_each(|id| x.post_recv(id, &[a.sge(0, 100)]).unwrap());
    y.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[b.sge(0, 100)])).unwrap();
    assert_eq!(completions(&a.cq, 1)[0].status, WcStatus::Success);
    let write = SendWr { remote_addr: a.mr.addr(), rkey: a.mr.rkey(), ..wr(2, WrOpcode::Write) };
    y.post_send(&write, Payload::Sges(&[b.sge(0, 100)])).unwrap();
    assert!(completions(&b.cq, 2).iter().all(|wc| wc.status == WcStatus::Success));

    let woken = std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| channel.next_event().unwrap());
        ip("link del va");
        sleeper.join().unwrap()
    });
    assert!(Arc::ptr_eq(&woken, &cq));
    cq.ack_events(1);
    let (mut first, mut other) = (Vec::new(), Vec::new());
    until("DEVICE_FATAL", || {
        first.extend(kinds(&a.context));
        other.extend(kinds(&second));
        let has = |kinds: &[EventKind]| kinds.contains(&EventKind::DeviceFatal);
        (has(&first) && has(&other)).then_some(())
    });
    // Everything that was posted is flushed, in order.
    let flushed = completions(&a.cq, 3);
    assert!(flushed.iter().all(|wc| wc.status == WcStatus::WrFlushErr), "{flushed:?}");
    let of = |qp: &Qp| -> Vec<u64> {
        flushed.iter().filter(|wc| wc.qpn == qp.qpn()).map(|wc| wc.wr_id).collect()
    };
    assert_eq!((of(&x), of(&begun)), (vec![1, 2], vec![8]));
    assert_eq!(completions(&cq, 1)[0].status, WcStatus::WrFlushErr);
    for qp in [&x, &datagrams, &reset, &begun] {
        until("ERR", || (qp.query().state == QpState::Err).then_some(()));
        // Nothing new is taken.
        let error = qp.post_send(&wr(1, WrOpcode::Send), Payload::Sges(&[])).unwrap_err();
        assert_eq!((error, post_errno(&error)), (PostError::DeviceGone, EIO));
        assert_eq!(qp.post_recv(1, &[]), Err(PostError::DeviceGone));
        for state in [QpState::Reset, QpState::Err] {
            let attr = QpAttr { state, ..QpAttr::default() };
            assert_eq!(errno(qp.modify(&attr, AttrMask::STATE)), EIO);
        }
    }
    assert_eq!(srq.post_recv(1, &[]), Err(PostError::DeviceGone));
    let context = &a.context;
    assert_eq!(errno(context.alloc_pd()), EIO);
    assert_eq!(errno(context.create_cq(1, None, 0)), EIO);
    assert_eq!(errno(context.create_channel()), EIO);
    assert_eq!(errno(context.open_xrcd(None, true, false)), EIO);
    assert_eq!(errno(a.pd.create_qp(&init)), EIO);
    assert_eq!(errno(a.pd.create_srq(SrqInit { max_wr: 4, max_sge: 1 })), EIO);
    assert_eq!(errno(a.pd.create_ah(&attr(b.gid(), 1).ah)), EIO);
    let memory = (a.memory.addr(), 4096);
    // SAFETY: the mapping outlives the call, which is refused.
    assert_eq!(errno(unsafe { a.pd.reg_mr(memory.0, memory.1, memory.0, ALL) }), EIO);
    assert_eq!((errno(cq.resize(8)), errno(srq.modify(Some(8), None))), (EIO, EIO));
    assert_eq!(errno(device.open()), ENODEV);
    // What it was can be looked at; what has come can be read, and there is no more.
    assert_eq!(context.port(1).unwrap().state, PortState::Down);
    assert_eq!((context.attr().node_guid, context.gid_table(1)), (device.guid(), Vec::new()));
    assert_eq!((cq.poll(1, |_| ()).unwrap(), a.cq.poll(1, |_| ()).unwrap()), (0, 0));
    cq.request_notify(false).unwrap();

    // To the peer it is as if the cable were cut.
    y.post_send(&write, Payload::Sges(&[b.sge(0, 100)])).unwrap();
    assert_eq!(completions(&b.cq, 1)[0].status, WcStatus::RetryExcErr);
    assert!(!kinds(&b.context).contains(&EventKind::DeviceFatal), "its own device is there");

    // An interface of that name, and even of that number, is another device.
    let hosts = [&a.host, &b.host];
    ip(&format!("link add va index {} type veth peer name vb", device.ifindex()));
    ip("address add 10.9.0.1/24 dev va");
    ip("link set va up");
    ip("link set vb up");
    for host in hosts {
        let again = super::device(host, "va");
        assert!(!Arc::ptr_eq(&again, &device) && !device.is_present());
        assert_eq!(again.ifindex(), device.ifindex());
        let fresh = open(&again);
        until("up", || (fresh.port(1).ok()?.state == PortState::Active).then_some(()));
        fresh.alloc_pd().unwrap().destroy().unwrap();
        fresh.destroy().unwrap();
    }
    assert_eq!(errno(context.alloc_pd()), EIO);
    assert_eq!(context.port(1).unwrap().state, PortState::Down);
    first.extend(kinds(&a.context));
    other.extend(kinds(&second));
    for kinds in [first, other] {
        let fatal = kinds.iter().filter(|kind| **kind == EventKind::DeviceFatal).count();
        assert_eq!((fatal, kinds.last()), (1, Some(&EventKind::DeviceFatal)), "{kinds:?}");
    }

    // Everything is released in order.
    for qp in [x, datagrams, reset, begun] {
        qp.destroy().unwrap();
    }
    drop(init);
    srq.destroy().unwrap();
    cq.destroy().unwrap();
    channel.destroy().unwrap();
    a.mr.destroy().unwrap();
    a.cq.destroy().unwrap();
    a.pd.destroy().unwrap();
    a.context.destroy().unwrap();
    second.destroy().unwrap();
    assert_eq!(y.state(), QpState::Err);
}

#[test]
fn who_uses_a_removed_device_is_told_and_flushed_local() {
    alone("removal::who_uses_a_removed_device_is_told_and_flushed_local", || {
        removal(DataPath::Auto);
    });
}

#[test]
fn who_uses_a_removed_device_is_told_and_flushed_wire() {
    alone("removal::who_uses_a_removed_device_is_told_and_flushed_wire", || {
        removal(DataPath::Wire);
    });
}

#[test]
fn who_waits_for_events_is_woken() {
    alone("removal::who_waits_for_events_is_woken", || {
        two_cables();
        let host = host();
        let context = device(&host, "va").open().unwrap();
        let fatal = std::thread::scope(|scope| {
            let waits = scope.spawn(|| {
                let next = || context.next_async_event().unwrap();
                std::iter::repeat_with(next).find(|event| event.kind == EventKind::DeviceFatal)
            });
            ip("link del va");
            waits.join().unwrap().unwrap()
        });
        assert!(matches!(fatal.source, EventSource::Device));
        fatal.ack();
        context.destroy().unwrap();
    });
}

#[test]
fn ids_of_the_connection_manager_are_told() {
    alone("removal::ids_of_the_connection_manager_are_told", || {
        two_cables();
        let (a, b) = (side("va", DataPath::Auto), side("vc", DataPath::Auto));
        let channels = [&a, &b].map(|side| EventChannel::new(&side.host).unwrap());
        let expect = |channel: &Arc<EventChannel>, kind: CmEventKind| {
            let event = until(kind.name(), || channel.try_next_event().unwrap());
            assert_eq!((event.kind(), event.status()), (kind, 0));
            event.id().clone()
        };
        let [ours, theirs] = &channels;
        let new = |channel: &Arc<EventChannel>| CmId::new(channel, PortSpace::Tcp, None).unwrap();
        let anywhere = new(ours);
        anywhere.bind("0.0.0.0:0".parse().unwrap()).unwrap();
        anywhere.listen(1).unwrap();
        let listener = new(theirs);
        listener.bind("10.9.2.1:0".parse().unwrap()).unwrap();
        listener.listen(1).unwrap();
        let id = new(ours);
        let from = "10.9.0.1:0".parse().unwrap();
        let wait = Duration::from_secs(30);
        id.resolve_addr(Some(from), listener.local_addr().unwrap(), wait).unwrap();
        expect(ours, CmEventKind::AddrResolved);
        id.resolve_route(wait).unwrap();
        expect(ours, CmEventKind::RouteResolved);
        let (x, y) = (a.qp(QpType::Rc), b.qp(QpType::Rc));
        id.attach_qp(Some(&x)).unwrap();
        id.connect(&ConnParam::default()).unwrap();
        let accepted = expect(theirs, CmEventKind::ConnectRequest);
        accepted.attach_qp(Some(&y)).unwrap();
        accepted.accept(None).unwrap();
        expect(ours, CmEventKind::Established);
        expect(theirs, CmEventKind::Established);
        x.post_recv(1, &[a.sge(0, 100)]).unwrap();

        ip("link del va");
        let told = expect(ours, CmEventKind::DeviceRemoval);
        assert!(Arc::ptr_eq(&told, &id));
        drop(told);
        assert_eq!(completions(&a.cq, 1)[0].status, WcStatus::WrFlushErr);
        // Once, and nobody else: not who listens everywhere, nor who has another device.
        std::thread::sleep(Duration::from_millis(50));
        for channel in &channels {
            assert!(channel.try_next_event().unwrap().is_none());
        }
        id.attach_qp(None).unwrap();
        x.destroy().unwrap();
        id.destroy().unwrap();
        expect(theirs, CmEventKind::Disconnected);
        drop((accepted, listener, anywhere));
    });
}

#[test]
fn ids_are_told_when_their_address_moves() {
    alone("removal::ids_are_told_when_their_address_moves", || {
        two_cables();
        let (a, _b) = (side("va", DataPath::Auto), side("vc", DataPath::Auto));
        let channel = EventChannel::new(&a.host).unwrap();
        let new = |address: &str| {
            let id = CmId::new(&channel, PortSpace::Tcp, None).unwrap();
            id.bind(address.parse().unwrap()).unwrap();
            id
        };
        let (moved, stays, _anywhere) = (new("10.9.0.1:0"), new("10.9.2.1:0"), new("0.0.0.0:0"));
        for (from, to) in [("va", "vc"), ("vc", "va"), ("va", "vc")] {
            ip(&format!("address del 10.9.0.1/24 dev {from}"));
            ip(&format!("address add 10.9.0.1/24 dev {to}"));
            if to == "va" {
                let again = Gid::from_ip([10, 9, 0, 1].into());
                let has = || a.context.gid_table(1).iter().any(|entry| entry.gid == again);
                until("its address again", || has().then_some(()));
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
            let event = until("ADDR_CHANGE", || channel.try_next_event().unwrap());
            assert_eq!((event.kind(), event.status()), (CmEventKind::AddrChange, 0));
            assert!(Arc::ptr_eq(event.id(), &moved));
        }
        std::thread::sleep(Duration::from_millis(50));
        assert!(channel.try_next_event().unwrap().is_none());
        drop(stays);
    });
}
