//! What must not compile. Each example stands beside one that does, and that differs only in what is wrong, so
//! that it fails for no other reason. Run by `cargo test --doc`.

/// The operations of a service exist on its queue pairs only. UC has WRITE:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(qp: &Qp<Uc>, slice: Slice, remote: &RemoteRegion) { let _ = qp.write(slice, remote); }
/// ```
///
/// but no READ:
///
/// ```compile_fail,E0599
/// # use ironverbs::*;
/// fn f(qp: &Qp<Uc>, slice: Slice, remote: &RemoteRegion) { let _ = qp.read(slice, remote); }
/// ```
///
/// RC has both, and atomics:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, slice: Slice, remote: &RemoteRegion) { let _ = qp.read(slice, remote); }
/// fn g(qp: &Qp<Rc>, slice: Slice, remote: &RemoteRegion) { let _ = qp.fetch_add(slice, remote, 1); }
/// ```
///
/// UC and UD have no atomics:
///
/// ```compile_fail,E0599
/// # use ironverbs::*;
/// fn g(qp: &Qp<Uc>, slice: Slice, remote: &RemoteRegion) { let _ = qp.fetch_add(slice, remote, 1); }
/// ```
/// ```compile_fail,E0599
/// # use ironverbs::*;
/// fn g(qp: &Qp<Ud>, slice: Slice, remote: &RemoteRegion) { let _ = qp.fetch_add(slice, remote, 1); }
/// ```
///
/// UD has no WRITE, and no SEND without a destination:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(qp: &Qp<Ud>, slice: Slice, to: &Destination) { let _ = qp.send(slice, to); }
/// ```
/// ```compile_fail,E0599
/// # use ironverbs::*;
/// fn f(qp: &Qp<Ud>, slice: Slice, remote: &RemoteRegion) { let _ = qp.write(slice, remote); }
/// ```
/// ```compile_fail,E0061
/// # use ironverbs::*;
/// fn f(qp: &Qp<Ud>, slice: Slice) { let _ = qp.send(slice); }
/// ```
mod services {}

/// A slice in flight belongs to its operation:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, slice: Slice) -> Result<(), Error> {
///     let (result, mut slice) = qp.send(slice).post()?.wait();
///     slice.write_at(0, b"mine again")?;
///     Ok(result?)
/// }
/// ```
/// ```compile_fail,E0382
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, mut slice: Slice) -> Result<(), Error> {
///     let op = qp.send(slice).post()?;
///     slice.write_at(0, b"not mine")?;
///     Ok(op.wait().0?)
/// }
/// ```
///
/// and cannot be posted twice; what is to be sent twice is shared:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, slice: Slice) -> Result<(), Error> {
///     let slice = slice.share();
///     let (one, two) = (qp.send(slice.clone()).post()?, qp.send(slice).post()?);
///     one.wait().0?;
///     Ok(two.wait().0?)
/// }
/// ```
/// ```compile_fail,E0382
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, slice: Slice) -> Result<(), Error> {
///     let (one, two) = (qp.send(slice).post()?, qp.send(slice).post()?);
///     one.wait().0?;
///     Ok(two.wait().0?)
/// }
/// ```
///
/// Nothing is received into a shared slice:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, slice: SharedSlice) { let _ = qp.send(slice); }
/// ```
/// ```compile_fail,E0277
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, slice: SharedSlice) { let _ = qp.recv(slice); }
/// ```
///
/// nor into bytes of the program's own, registered or not:
///
/// ```compile_fail,E0277
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, bytes: &mut [u8]) { let _ = qp.recv(bytes); }
/// ```
///
/// The result is taken once:
///
/// ```compile_fail,E0382
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, slice: Slice) -> Result<(), Error> {
///     let op = qp.send(slice).post()?;
///     op.wait().0?;
///     Ok(op.wait().0?)
/// }
/// ```
mod in_flight {}

/// Registered memory is never seen as bytes in place, only copied:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(slice: &Slice) -> Vec<u8> { slice.to_vec() }
/// ```
/// ```compile_fail
/// # use ironverbs::*;
/// fn f(slice: &Slice) -> &[u8] { slice }
/// ```
/// ```compile_fail
/// # use ironverbs::*;
/// fn f(region: &Region) -> &[u8] { region.as_ref() }
/// ```
///
/// Writing through a slice needs it for oneself:
///
/// ```compile_fail,E0596
/// # use ironverbs::*;
/// fn f(slice: &Slice) { let _ = slice.write_at(0, b"shared"); }
/// ```
mod memory {}

/// A window gives rights to peers, and this program no other way to the memory:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(window: &Window<TypeOne>) -> Option<RemoteRegion> { window.remote() }
/// ```
/// ```compile_fail,E0308
/// # use ironverbs::*;
/// fn f(window: &Window<TypeOne>) -> &[u8] { window }
/// ```
/// ```compile_fail,E0599
/// # use ironverbs::*;
/// fn f(window: &Window<TypeOne>) -> &[u8] { window.as_ref() }
/// ```
/// ```compile_fail,E0608
/// # use ironverbs::*;
/// fn f(window: &Window<TypeOne>) -> u8 { window[0] }
/// ```
///
/// It carries no data:
///
/// ```compile_fail,E0277
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, window: Window<TypeOne>) { let _ = qp.send(window); }
/// ```
/// ```compile_fail,E0277
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, window: Window<TypeOne>) { let _ = qp.recv(window); }
/// ```
///
/// While a request binds it, it belongs to that:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, window: Window<TypeTwo>, region: &Region) -> Result<(), Error> {
///     let (bound, window) = qp.bind(window, region, .., Access::REMOTE_READ).post()?.wait();
///     bound?;
///     let (ended, _window) = qp.invalidate(window).post()?.wait();
///     Ok(ended?)
/// }
/// ```
/// ```compile_fail,E0382
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, window: Window<TypeTwo>, region: &Region) -> Result<(), Error> {
///     let _bound = qp.bind(window, region, .., Access::REMOTE_READ).post()?;
///     qp.invalidate(window).post()?.wait().0?;
///     Ok(())
/// }
/// ```
///
/// Windows of type 1 are not invalidated, those of type 2 are not bound to nothing, and datagrams have none:
///
/// ```compile_fail,E0308
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, window: Window<TypeOne>) { let _ = qp.invalidate(window); }
/// ```
/// ```compile_fail,E0308
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, window: Window<TypeTwo>) { let _ = qp.unbind(window); }
/// ```
/// ```no_run
/// # use ironverbs::*;
/// fn f(qp: &Qp<Uc>, window: Window<TypeOne>) { let _ = qp.unbind(window); }
/// ```
/// ```compile_fail,E0599
/// # use ironverbs::*;
/// fn f(qp: &Qp<Ud>, window: Window<TypeOne>) { let _ = qp.unbind(window); }
/// ```
mod windows {}

/// What is not connected does not send:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>, slice: Slice) { let _ = qp.send(slice); }
/// ```
/// ```compile_fail,E0599
/// # use ironverbs::*;
/// fn f(qp: &Unconnected<Rc>, slice: Slice) { let _ = qp.send(slice); }
/// ```
///
/// Datagrams have no connection:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(builder: QpBuilder<Uc>) -> Result<Unconnected<Uc>, Error> { builder.build() }
/// ```
/// ```compile_fail,E0277
/// # use ironverbs::*;
/// fn f(builder: QpBuilder<Ud>) -> Result<Unconnected<Ud>, Error> { builder.build() }
/// ```
///
/// A connected queue pair is connected once:
///
/// ```compile_fail,E0382
/// # use ironverbs::*;
/// fn f(qp: Unconnected<Rc>, peer: &Endpoint, options: &ConnectOptions) {
///     let _ = qp.connect(peer, options);
///     let _ = qp.connect(peer, options);
/// }
/// ```
mod connections {}

/// A request names its queue pair, and does not outlive it; an operation may:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(qp: Qp<Rc>, slice: Slice) -> Result<Op<Slice, Done>, Error> { Ok(qp.send(slice).post()?) }
/// ```
/// ```compile_fail
/// # use ironverbs::*;
/// fn f<'a>(qp: Qp<Rc>, slice: Slice) -> Request<'a, Slice, Done> { qp.send(slice) }
/// ```
///
/// An operation goes to another thread, inline data or not:
///
/// ```no_run
/// # use ironverbs::*;
/// fn f(qp: &Qp<Rc>) -> Result<(), Error> {
///     let bytes = vec![1, 2, 3];
///     let op = qp.send(Inline(&bytes)).post()?;
///     std::thread::spawn(move || op.wait());
///     Ok(())
/// }
/// ```
///
/// a request with borrowed data does not:
///
/// ```compile_fail
/// # use ironverbs::*;
/// fn f(qp: &'static Qp<Rc>) {
///     let bytes = vec![1, 2, 3];
///     let request = qp.send(Inline(&bytes));
///     std::thread::spawn(move || request.post());
/// }
/// ```
mod requests {}

/// Who looks for a datagram service is answered once:
///
/// ```no_run
/// # use ironverbs::{*, cm::*};
/// fn f(lookup: Lookup, qp: &Qp<Ud>) { let _ = lookup.answer(qp, b""); }
/// ```
/// ```compile_fail,E0382
/// # use ironverbs::{*, cm::*};
/// fn f(lookup: Lookup, qp: &Qp<Ud>) { let _ = lookup.answer(qp, b""); let _ = lookup.reject(b""); }
/// ```
///
/// with a queue pair for datagrams:
///
/// ```compile_fail,E0308
/// # use ironverbs::{*, cm::*};
/// fn f(lookup: Lookup, qp: &Qp<Rc>) { let _ = lookup.answer(qp, b""); }
/// ```
///
/// and is not asked for twice:
///
/// ```no_run
/// # use ironverbs::{*, cm::*};
/// fn f(way: Way, pd: &Pd) { let _ = way.look_up(pd, b"first"); }
/// ```
/// ```compile_fail,E0382
/// # use ironverbs::{*, cm::*};
/// fn f(way: Way, pd: &Pd) { let _ = way.look_up(pd, b"first"); let _ = way.look_up(pd, b"second"); }
/// ```
///
/// A service for connections takes none for datagrams:
///
/// ```no_run
/// # use ironverbs::{*, cm::*};
/// fn f(request: cm::Request<Rc>, qp: Unconnected<Rc>) { let _ = request.accept(qp, &Offer::default()); }
/// ```
/// ```compile_fail,E0277
/// # use ironverbs::{*, cm::*};
/// fn f(request: cm::Request<Ud>) {}
/// ```
///
/// A queue pair stays while it is in a group:
///
/// ```no_run
/// # use ironverbs::{*, cm::*};
/// # fn f(multicast: Multicast, qp: Qp<Ud>) -> Result<(), cm::Error> {
/// let group = multicast.join(&qp, "239.1.1.1".parse().unwrap())?.wait()?;
/// drop(group);
/// drop(qp);
/// # Ok(())
/// # }
/// ```
/// ```compile_fail,E0505
/// # use ironverbs::{*, cm::*};
/// # fn f(multicast: Multicast, qp: Qp<Ud>) -> Result<(), cm::Error> {
/// let group = multicast.join(&qp, "239.1.1.1".parse().unwrap())?.wait()?;
/// drop(qp);
/// drop(group);
/// # Ok(())
/// # }
/// ```
///
/// also while it is about to join, in a task of its own:
///
/// ```compile_fail,E0505
/// # use ironverbs::{*, cm::*};
/// # fn f(multicast: Multicast, qp: Qp<Ud>) -> Result<(), cm::Error> {
/// let joining = multicast.join(&qp, "239.1.1.1".parse().unwrap())?;
/// drop(qp);
/// joining.wait()?;
/// # Ok(())
/// # }
/// ```
mod datagram_services {}

/// Services, kinds and buffers are this crate's: nobody adds one with rules of its own.
///
/// ```compile_fail
/// # use ironverbs::*;
/// struct Mine;
/// impl Transport for Mine {}
/// ```
/// ```compile_fail
/// # use ironverbs::*;
/// struct Mine;
/// impl Source for Mine {}
/// ```
/// ```compile_fail
/// # use ironverbs::*;
/// struct Mine;
/// impl WindowType for Mine {}
/// ```
mod sealed {}
