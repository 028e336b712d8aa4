//! Connections by address and port, in a simulated network and on this machine.

use std::future::Future;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use ironverbs::cm::{
    self, Connection, Error as CmError, Found, Listener, Multicast, Offer, Operation, Pending,
    QKEY, Request, Service,
};
use ironverbs::sim::Network;
use ironverbs::{
    Access, Config, Connected, Context, Cq, Devices, Error, Kind, Op, Output, Pd, Qp, Rc, Region,
    Returned, Uc, Ud, Unconnected,
};

const SECOND: Duration = Duration::from_secs(1);

struct Side {
    devices: Devices,
    context: Context,
    pd: Pd,
    cq: Cq,
    region: Region,
}

impl Side {
    fn new(devices: Devices) -> Side {
        let context = devices.first().unwrap().open().unwrap();
        let (pd, cq) = (Pd::new(&context).unwrap(), Cq::new(&context, 64).unwrap());
        let region = pd.region(8192, Access::LOCAL_WRITE | Access::REMOTE_READ).unwrap();
        Side { devices, context, pd, cq, region }
    }

    fn qp<T: Connected>(&self) -> Unconnected<T> {
        Qp::<T>::builder(&self.pd, &self.cq).depth(4, 4).build().unwrap()
    }
}

struct World(Network);

impl World {
    /// Lets virtual time pass until it is done.
    fn wait<O: Operation>(&self, mut pending: Pending<O>) -> Result<O::Output, CmError> {
        let mut cx = TaskContext::from_waker(Waker::noop());
        for _ in 0..100_000 {
            if let Poll::Ready(output) = Pin::new(&mut pending).poll(&mut cx) {
                return output;
            }
            if !self.0.step() {
                break;
            }
        }
        panic!("nothing happens any more")
    }

    fn run<R: Returned, K: Kind>(&self, cqs: [&Cq; 2], mut op: Op<R, K>) -> Output<R, K> {
        for _ in 0..1_000_000 {
            match op.try_take() {
                Ok(output) => return output,
                Err(again) => op = again,
            }
            self.0.step();
            for cq in cqs {
                cq.poll().unwrap();
            }
        }
        panic!("the operation hangs")
    }
}

fn world() -> (World, Side, Side, SocketAddr) {
    let network = Network::new(7);
    let host = |n: u8| network.host(&[[10, 0, 0, n].into()]).unwrap();
    let (a, b) = (Side::new(host(1).into()), Side::new(host(2).into()));
    (World(network), a, b, "10.0.0.2:4000".parse().unwrap())
}

fn meet<T: Connected>(w: &World, a: &Side, b: &Side, to: SocketAddr) -> [Connection<T>; 2] {
    let mut listener = Listener::<T>::bind(&b.devices, to, 0).unwrap();
    let route = w.wait(cm::resolve(&a.devices, None, to, SECOND).unwrap()).unwrap();
    assert_eq!(route.device().name(), a.context.device().name());
    let connecting = route.connect(a.qp(), &Offer::default().private_data(b"hi")).unwrap();
    let request: Request<T> = w.wait(listener.next().unwrap()).unwrap();
    assert_eq!(request.private_data().len(), 56);
    assert!(request.private_data().starts_with(b"hi\0"));
    let offer = Offer::default().private_data(b"welcome");
    let accepting = request.accept(b.qp(), &offer).unwrap();
    let client = w.wait(connecting).unwrap();
    assert!(client.private_data().starts_with(b"welcome\0"));
    assert_eq!((client.private_data().len(), client.peer_addr()), (196, to));
    [client, w.wait(accepting).unwrap()]
}

fn message<T: Connected>(w: &World, a: &Side, b: &Side, x: &Qp<T>, y: &Qp<T>) {
    let recv = y.recv(b.region.slice(..64).unwrap()).unwrap();
    let mut slice = a.region.slice(64..128).unwrap();
    slice.write_at(0, b"across").unwrap();
    let send = x.send(slice).post().unwrap();
    let (received, slice) = w.run([&a.cq, &b.cq], recv);
    assert!(received.unwrap().data(&slice).starts_with(b"across"));
    w.run([&a.cq, &b.cq], send).0.unwrap();
}

#[test]
fn two_sides_connect_talk_and_part() {
    let (w, a, b, to) = world();
    let [client, mut server] = meet::<Rc>(&w, &a, &b, to);
    message(&w, &a, &b, client.qp(), server.qp());
    client.disconnect().unwrap();
    client.disconnect().unwrap();
    w.wait(server.closed()).unwrap();
    // What is only dropped disconnects, too.
    let [mut client, server] = meet::<Rc>(&w, &a, &b, to);
    drop(server);
    w.wait(client.closed()).unwrap();
}

#[test]
fn unreliable_connections_are_made_alike() {
    let (w, a, b, to) = world();
    let [client, server] = meet::<Uc>(&w, &a, &b, to);
    message(&w, &a, &b, client.qp(), server.qp());
}

#[test]
fn refusals_say_why() {
    let (w, a, b, to) = world();
    let resolve = || w.wait(cm::resolve::<Rc>(&a.devices, None, to, SECOND).unwrap()).unwrap();
    let rejected = |result: Result<Connection<Rc>, CmError>| match result {
        Err(CmError::Rejected { reason, private_data }) => (reason, private_data),
        other => panic!("{other:?}"),
    };
    let nobody = w.wait(resolve().connect(a.qp(), &Offer::default()).unwrap());
    assert_eq!(rejected(nobody).0, 8);

    let mut listener = Listener::<Rc>::bind(&b.devices, to, 0).unwrap();
    let connecting = resolve().connect(a.qp(), &Offer::default()).unwrap();
    w.wait(listener.next().unwrap()).unwrap().reject(b"busy").unwrap();
    let (reason, private_data) = rejected(w.wait(connecting));
    assert_eq!(reason, 28);
    assert!(private_data.starts_with(b"busy\0"));
    // A request that is dropped, and one that nobody reads before its listener goes.
    let connecting = resolve().connect(a.qp(), &Offer::default()).unwrap();
    drop(w.wait(listener.next().unwrap()).unwrap());
    assert_eq!(rejected(w.wait(connecting)).0, 28);
    let connecting = resolve().connect(a.qp(), &Offer::default()).unwrap();
    w.0.run_until(1_000_000_000, || false);
    drop(listener);
    assert_eq!(rejected(w.wait(connecting)).0, 28);
}

#[test]
fn what_is_not_possible_is_refused_at_once() {
    let (w, a, b, to) = world();
    let _listener = Listener::<Rc>::bind(&b.devices, to, 0).unwrap();
    let again = Listener::<Rc>::bind(&b.devices, to, 0).unwrap_err();
    assert!(matches!(again, CmError::Refused(ironverbs::raw::cm::CmError::AddrInUse { .. })));
    let route = w.wait(cm::resolve::<Rc>(&a.devices, None, to, SECOND).unwrap()).unwrap();
    let long = Offer::default().private_data(&[1; 57]);
    let error: Error = route.connect(a.qp(), &long).unwrap_err().into();
    assert!(error.to_string().contains("57 bytes"), "{error}");
    let route = w.wait(cm::resolve::<Rc>(&a.devices, None, to, SECOND).unwrap()).unwrap();
    assert!(route.connect(b.qp(), &Offer::default()).is_err(), "a queue pair of another device");
}

#[test]
fn what_is_dropped_is_taken_back() {
    let (w, a, b, to) = world();
    let mut listener = Listener::<Rc>::bind(&b.devices, to, 0).unwrap();
    let route = w.wait(cm::resolve::<Rc>(&a.devices, None, to, SECOND).unwrap()).unwrap();
    let connecting = route.connect(a.qp(), &Offer::default()).unwrap();
    let request = w.wait(listener.next().unwrap()).unwrap();
    drop(connecting);
    let accepted = request.accept(b.qp(), &Offer::default());
    assert!(accepted.and_then(|accepting| w.wait(accepting)).is_err());
}

fn datagram_qp(side: &Side, qkey: u32) -> Qp<Ud> {
    Qp::<Ud>::builder(&side.pd, &side.cq).depth(4, 4).qkey(qkey).build().unwrap()
}

#[test]
fn a_datagram_service_is_found_and_sent_to() {
    let (w, a, b, to) = world();
    let mut service = Service::bind(&b.devices, to, 0).unwrap();
    let find = || w.wait(cm::find(&a.devices, None, to, SECOND).unwrap()).unwrap();
    let (x, y) = (datagram_qp(&a, QKEY), datagram_qp(&b, QKEY));
    let looking = find().look_up(&a.pd, b"who").unwrap();
    let lookup = w.wait(service.next().unwrap()).unwrap();
    assert_eq!((lookup.private_data().len(), lookup.local_addr()), (180, to));
    assert!(lookup.private_data().starts_with(b"who\0"));
    lookup.answer(&y, b"me").unwrap();
    let found = w.wait(looking).unwrap();
    assert_eq!(found.private_data().len(), 136);
    assert!(found.private_data().starts_with(b"me\0"));
    assert_eq!((found.destination().qpn, found.destination().qkey), (y.qpn(), QKEY));
    let recv = y.recv(b.region.slice(..64).unwrap()).unwrap();
    let mut slice = a.region.slice(..6).unwrap();
    slice.write_at(0, b"across").unwrap();
    let send = x.send(slice, found.destination()).post().unwrap();
    let (received, slice) = w.run([&a.cq, &b.cq], recv);
    assert_eq!(received.unwrap().data(&slice), b"across");
    w.run([&a.cq, &b.cq], send).0.unwrap();

    // Refusals: of its program, by being dropped, and of nobody there.
    let refused = |result: Result<Found, CmError>| match result {
        Err(CmError::NoService { status, private_data }) => (status, private_data),
        other => panic!("{other:?}"),
    };
    let looking = find().look_up(&a.pd, b"").unwrap();
    w.wait(service.next().unwrap()).unwrap().reject(b"busy").unwrap();
    assert!(refused(w.wait(looking)).1.starts_with(b"busy\0"));
    let looking = find().look_up(&a.pd, b"").unwrap();
    drop(w.wait(service.next().unwrap()).unwrap());
    assert_ne!(refused(w.wait(looking)).0, 0);
    drop(service);
    let looking = find().look_up(&a.pd, b"").unwrap();
    assert_ne!(refused(w.wait(looking)).0, 0);
}

#[test]
fn what_does_not_fit_a_datagram_service_is_refused_at_once() {
    let (w, a, b, to) = world();
    let mut service = Service::bind(&b.devices, to, 0).unwrap();
    assert!(Service::bind(&b.devices, to, 0).is_err(), "the port is in use");
    let find = || w.wait(cm::find(&a.devices, None, to, SECOND).unwrap()).unwrap();
    assert!(find().look_up(&a.pd, &[1; 181]).is_err(), "private data");
    assert!(find().look_up(&b.pd, b"").is_err(), "a domain of another device");
    let next = |service: &mut Service| {
        let looking = find().look_up(&a.pd, b"").unwrap();
        (looking, w.wait(service.next().unwrap()).unwrap())
    };
    let (_looking, lookup) = next(&mut service);
    assert!(lookup.answer(&datagram_qp(&b, 7), b"").is_err(), "another Q_Key");
    let (_looking, lookup) = next(&mut service);
    assert!(lookup.answer(&datagram_qp(&a, QKEY), b"").is_err(), "of another device");
    let (_looking, lookup) = next(&mut service);
    assert!(lookup.answer(&datagram_qp(&b, QKEY), &[1; 137]).is_err(), "private data");
    // Nobody reads what the client took back.
    drop(find().look_up(&a.pd, b"").unwrap());
}

#[test]
fn members_of_a_group_hear_what_is_sent_to_it_until_they_leave() {
    let (w, a, b, _) = world();
    let group: IpAddr = "239.1.2.3".parse().unwrap();
    let bind = |side: &Side, ip: &str| Multicast::bind(&side.devices, ip.parse().unwrap()).unwrap();
    let (x, y) = (datagram_qp(&a, QKEY), datagram_qp(&b, QKEY));
    let sender = w.wait(bind(&a, "10.0.0.1").send_to(&a.pd, group).unwrap()).unwrap();
    let member = w.wait(bind(&b, "10.0.0.2").join(&y, group).unwrap()).unwrap();
    assert_eq!((member.address(), sender.destination().qkey), (group, QKEY));
    let tell = |expected: bool| {
        let mut recv = y.recv(b.region.slice(..64).unwrap()).unwrap();
        let mut slice = a.region.slice(..3).unwrap();
        slice.write_at(0, b"all").unwrap();
        w.run([&a.cq, &b.cq], x.send(slice, sender.destination()).post().unwrap()).0.unwrap();
        w.0.run_until(1_000_000, || false);
        b.cq.poll().unwrap();
        match recv.try_take() {
            Ok((received, slice)) => {
                assert!(expected);
                assert_eq!(received.unwrap().data(&slice), b"all");
            }
            Err(again) => {
                assert!(!expected, "nothing came");
                recv = again;
                drop(recv);
            }
        }
    };
    tell(true);
    drop(member);
    tell(false);

    // What cannot be.
    assert!(bind(&b, "10.0.0.2").join(&y, "10.0.0.9".parse().unwrap()).is_err(), "no group");
    assert!(bind(&b, "10.0.0.2").join(&x, group).is_err(), "a queue pair of another device");
    assert!(bind(&b, "10.0.0.2").join(&datagram_qp(&b, 7), group).is_err(), "another Q_Key");
    assert!(Multicast::bind(&b.devices, "10.9.9.9".parse().unwrap()).is_err(), "no such address");
}

#[test]
fn on_this_machine_threads_wait_for_each_other() {
    let devices = Devices::with(Config::default()).unwrap();
    let server = Side::new(devices);
    let loopback = "127.0.0.1:0".parse().unwrap();
    let mut listener = Listener::<Rc>::bind(&server.devices, loopback, 0).unwrap();
    let to = listener.local_addr();
    let client = std::thread::spawn(move || {
        let side = Side::new(Devices::with(Config::default()).unwrap());
        let route = cm::resolve(&side.devices, None, to, SECOND).unwrap().wait().unwrap();
        let connecting = route.connect(side.qp::<Rc>(), &Offer::default()).unwrap();
        let connection = connecting.wait().unwrap();
        let slice = side.region.slice(..64).unwrap();
        connection.qp().send(slice).post().unwrap().wait().0.unwrap();
    });
    assert!(listener.as_fd().try_clone_to_owned().is_ok());
    let request = listener.next().unwrap().wait_for(60 * SECOND).unwrap().unwrap();
    let qp = server.qp::<Rc>();
    let recv = qp.recv(server.region.slice(..64).unwrap()).unwrap();
    let accepting = request.accept(qp, &Offer::default()).unwrap();
    let mut connection = accepting.wait_for(60 * SECOND).unwrap().unwrap();
    recv.wait().0.unwrap();
    connection.closed().wait_for(60 * SECOND).unwrap().unwrap();
    client.join().unwrap();
    // Nobody comes: what waits can be had back.
    assert!(listener.next().unwrap().wait_for(SECOND / 100).is_err());
}
