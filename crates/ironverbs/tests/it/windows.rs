//! Memory windows: what peers reach by them, and until when.

use ironverbs::{
    Access, CompletionError, Done, Op, RangeError, Rc, RemoteRegion, RequestError, TypeOne,
    TypeTwo, Uc, Window, WindowType,
};

use crate::support::{Side, all, context, done, ok, pair, pair_with};

const WRITES: Access = Access::REMOTE_WRITE;

/// A region that windows are bound to, and that peers cannot reach otherwise.
fn bindable(side: &Side<Rc>, len: usize) -> ironverbs::Region {
    side.pd.region(len, Access::LOCAL_WRITE | Access::MW_BIND).unwrap()
}

fn window<W: WindowType>(side: &Side<Rc>) -> Window<W> {
    Window::new(&side.pd).unwrap()
}

/// Has the peer write `bytes`.
fn write(from: &Side<Rc>, bytes: &[u8], to: &RemoteRegion) -> Op<ironverbs::Slice, Done> {
    from.qp.write(from.filled(bytes), to).post().unwrap()
}

fn refused(from: &Side<Rc>, to: &RemoteRegion) {
    let (result, _) = done(write(from, b"refused", to));
    assert!(matches!(result, Err(CompletionError::RemoteAccess { .. })), "{result:?}");
}

#[test]
fn a_window_gives_its_part_with_its_rights() {
    fn check<W: WindowType>() {
        let (a, b) = pair::<Rc>();
        let region = bindable(&b, 8192);
        let (remote, window) =
            ok(b.qp.bind(window::<W>(&b), &region, 4096..4106, WRITES).post().unwrap());
        assert_eq!((remote.len, window.remote()), (10, Some(remote)));
        assert_ne!(remote.rkey, region.remote().rkey);
        ok(write(&a, b"through it", &remote));
        let mut found = [0; 12];
        region.read_at(4096, &mut found).unwrap();
        assert_eq!(&found, b"through it\0\0");
        // Not read, and not beyond.
        let (result, _) = done(a.qp.read(a.slice(4), &remote).post().unwrap());
        assert!(matches!(result, Err(CompletionError::RemoteAccess { .. })), "{result:?}");
        let (a, b) = pair::<Rc>();
        let region = bindable(&b, 8192);
        let bind =
            b.qp.bind(Window::<W>::new(&b.pd).unwrap(), &region, ..4, all() - Access::LOCAL_WRITE);
        let (remote, _window) = ok(bind.post().unwrap());
        refused(&a, &RemoteRegion { len: 7, ..remote });
    }
    check::<TypeOne>();
    check::<TypeTwo>();
}

#[test]
fn a_window_of_type_1_moves_from_part_to_part() {
    let (a, b) = pair::<Rc>();
    let (one, other) = (bindable(&b, 64), bindable(&b, 64));
    let (first, window) = ok(b.qp.bind(window::<TypeOne>(&b), &one, 8..16, WRITES).post().unwrap());
    let zero_based = WRITES | Access::ZERO_BASED;
    let (second, window) = ok(b.qp.bind(window, &other, 8..16, zero_based).post().unwrap());
    assert_ne!(first.rkey, second.rkey);
    assert_eq!(second.addr, 0);
    ok(write(&a, b"second", &second));
    assert_eq!(other.slice(8..14).unwrap().to_vec(), b"second");
    let ((), window) = ok(b.qp.unbind(window).post().unwrap());
    assert_eq!(window.remote(), None);
    refused(&a, &second);
    let (a, b) = pair::<Rc>();
    let region = bindable(&b, 64);
    let new = Window::<TypeOne>::new(&b.pd).unwrap();
    let (first, window) = ok(b.qp.bind(new, &region, .., WRITES).post().unwrap());
    let (_, _window) = ok(b.qp.bind(window, &region, .., WRITES).post().unwrap());
    refused(&a, &first);
}

#[test]
fn a_window_of_type_2_ends_by_either_side() {
    let (a, b) = pair::<Rc>();
    let region = bindable(&b, 64);
    let (remote, window) =
        ok(b.qp.bind(window::<TypeTwo>(&b), &region, .., WRITES).post().unwrap());
    // The peer has done, and says so.
    let recv = b.qp.recv(b.slice(8)).unwrap();
    ok(write(&a, b"first", &remote));
    ok(a.qp.send_with_inv(a.filled(b"done"), remote.rkey).post().unwrap());
    let (received, _) = ok(recv);
    assert_eq!(received.invalidated_rkey, Some(remote.rkey));
    assert_eq!(window.remote(), None);
    // Bound again it has another key, and ends by ours.
    let (again, window) = ok(b.qp.bind(window, &region, .., WRITES).post().unwrap());
    assert_ne!(again.rkey, remote.rkey);
    ok(write(&a, b"again", &again));
    let ((), window) = ok(b.qp.invalidate(window).post().unwrap());
    assert_eq!(window.remote(), None);
    refused(&a, &again);
    assert_eq!(region.slice(..5).unwrap().to_vec(), b"again");
}

#[test]
fn what_is_bound_stays_and_what_is_dropped_ends() {
    let (a, b) = pair::<Rc>();
    let region = bindable(&b, 64);
    let (remote, window) = ok(b
        .qp
        .bind(window::<TypeOne>(&b), &region, .., all() - Access::LOCAL_WRITE)
        .post()
        .unwrap());
    drop(region);
    ok(write(&a, b"still there", &remote));
    let ((), read) = ok(a.qp.read(a.slice(11), &remote).post().unwrap());
    assert_eq!(read.to_vec(), b"still there");
    drop(window);
    refused(&a, &remote);
}

#[test]
fn a_window_whose_operation_is_dropped_ends() {
    let (a, b) = pair::<Rc>();
    let region = bindable(&b, 64);
    let new = Window::<TypeTwo>::new(&b.pd).unwrap();
    drop(b.qp.bind(new, &region, .., WRITES).post().unwrap());
    // Behind it in the queue, so that it is over.
    let (kept, window) = ok(b.qp.bind(window::<TypeTwo>(&b), &region, .., WRITES).post().unwrap());
    ok(write(&a, b"kept", &kept));
    drop((region, window));
    refused(&a, &kept);
}

#[test]
fn windows_are_bound_with_others_in_a_batch_and_without_a_completion() {
    let (a, b) = pair::<Rc>();
    let region = bindable(&b, 64);
    let recv = a.qp.recv(a.slice(RemoteRegion::BYTES)).unwrap();
    let mut batch = b.qp.batch();
    let new = Window::<TypeTwo>::new(&b.pd).unwrap();
    let bind = b.qp.bind(new, &region, ..32, WRITES).unsignaled().add_to(&mut batch).unwrap();
    let told = b.qp.send(b.filled(b"bound")).add_to(&mut batch).unwrap();
    batch.submit().unwrap();
    ok(told);
    let (remote, _window) = ok(bind);
    assert_eq!(ok(recv).0.len, 5);
    ok(write(&a, b"batched", &remote));
}

#[test]
fn what_cannot_be_bound_is_refused_with_the_window() {
    let context = context();
    let (a, b) =
        pair_with::<Rc>([context.clone(), context], |builder| builder, &Default::default());
    let region = bindable(&b, 64);
    let mut window = window::<TypeTwo>(&b);
    let mut refuse = |region: &ironverbs::Region, range: std::ops::Range<usize>, access, error| {
        let fresh = Window::new(&b.pd).unwrap();
        let taken = std::mem::replace(&mut window, fresh);
        let rejected = b.qp.bind(taken, region, range, access).post().unwrap_err();
        assert_eq!(rejected.error, error);
        window = rejected.buffer;
        assert_eq!(window.remote(), None);
    };
    let (lkey, given) = (region.lkey(), region.access());
    let local = Access::LOCAL_WRITE;
    refuse(&region, 0..8, local, RequestError::NotBindable { lkey, region: given, window: local });
    let outside = RangeError::Outside { offset: 60, len: 5, size: 64 };
    refuse(&region, 60..65, WRITES, outside.into());
    refuse(&region, 8..8, WRITES, RequestError::EmptyWindow);
    let plain = b.region(64);
    let error = RequestError::NotBindable { lkey: plain.lkey(), region: all(), window: WRITES };
    refuse(&plain, 0..8, WRITES, error);
    let fixed = b.pd.region(64, Access::MW_BIND).unwrap();
    let error = RequestError::NotWritable { lkey: fixed.lkey(), access: Access::MW_BIND };
    refuse(&fixed, 0..8, WRITES, error);
    let foreign = bindable(&a, 64);
    refuse(&foreign, 0..8, WRITES, RequestError::OtherDomain { lkey: foreign.lkey() });

    let rejected = b.qp.invalidate(window).post().unwrap_err();
    assert_eq!(rejected.error, RequestError::WindowUnbound);
    let (remote, bound) = ok(b.qp.bind(rejected.buffer, &region, .., WRITES).post().unwrap());
    let rejected = b.qp.bind(bound, &region, .., WRITES).post().unwrap_err();
    assert_eq!(rejected.error, RequestError::WindowBound { rkey: remote.rkey });
    let rejected = a.qp.invalidate(rejected.buffer).post().unwrap_err();
    assert_eq!(rejected.error, RequestError::OtherDomainWindow);
    // All that was refused has changed nothing.
    assert_eq!(rejected.buffer.remote(), Some(remote));
    ok(write(&a, b"as before", &remote));
}

#[test]
fn a_window_is_bound_on_an_unreliable_connection_too() {
    let (a, b) = pair::<Uc>();
    let region = b.pd.region(64, Access::LOCAL_WRITE | Access::MW_BIND).unwrap();
    let new = Window::<TypeOne>::new(&b.pd).unwrap();
    let (remote, _window) = ok(b.qp.bind(new, &region, .., WRITES).post().unwrap());
    let recv = b.qp.recv(()).unwrap();
    ok(a.qp.write_with_imm(a.filled(b"unreliable"), &remote, [0; 4]).post().unwrap());
    ok(recv);
    assert_eq!(region.slice(..10).unwrap().to_vec(), b"unreliable");
}

#[test]
fn a_binding_that_fails_has_a_reason_and_leaves_the_old() {
    let (a, b) = pair::<Rc>();
    let region = bindable(&b, 64);
    let (remote, window) =
        ok(b.qp.bind(window::<TypeOne>(&b), &region, .., WRITES).post().unwrap());
    b.qp.flush().unwrap();
    let (result, window) = done(b.qp.bind(window, &region, ..8, WRITES).post().unwrap());
    assert_eq!(result, Err(CompletionError::Flushed));
    assert_eq!(window.remote(), Some(remote));
    drop(a);
}
