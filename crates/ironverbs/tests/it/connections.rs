//! Connections by address and port, in a simulated network and on this machine.

use std::future::Future;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::pin::Pin;
use std::task::{Context as TaskContext, Poll, Waker};
use std::time::Duration;

use ironverbs::cm::{
    self, Connection, Error as CmError, Listener, Offer, Operation, Pending, Request,
};
use ironverbs::sim::Network;
use ironverbs::{
    Access, Config, Connected, Context, Cq, Devices, Error, Kind, Op, Output, Pd, Qp, Rc, Region,
    Returned, Uc, Unconnected,
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
