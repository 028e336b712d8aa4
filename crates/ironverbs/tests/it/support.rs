//! What the tests share. Every wait is bounded; nothing asserts that something is fast.

use std::future::Future;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use ironverbs::{
    Access, Config, ConnectOptions, Connected, Context, Cq, Devices, Error, Event, EventKind,
    EventSource, Kind, Op, Output, Pd, Qp, QpBuilder, Rc, Region, Slice, connect_pair,
};

/// After this something hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// All rights.
pub(crate) fn all() -> Access {
    Access::LOCAL_WRITE | Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC
}

/// The devices that most tests share.
pub(crate) fn devices() -> &'static Devices {
    static DEVICES: OnceLock<Devices> = OnceLock::new();
    DEVICES.get_or_init(|| Devices::with(Config::default()).unwrap())
}

/// A context of its own.
pub(crate) fn context() -> Context {
    let context = devices().first().unwrap().open().unwrap();
    let port = context.port(1).unwrap();
    assert_eq!(port.state, ironverbs::PortState::Active, "the tests need UDP port 4791");
    context
}

/// One end of a connection, with a CQ and a domain of its own.
pub(crate) struct Side<T: Connected> {
    pub(crate) context: Context,
    pub(crate) pd: Pd,
    pub(crate) cq: Cq,
    pub(crate) qp: Qp<T>,
}

impl<T: Connected> Side<T> {
    pub(crate) fn region(&self, len: usize) -> Region {
        self.pd.region(len, all()).unwrap()
    }

    /// A slice of a new region.
    pub(crate) fn slice(&self, len: usize) -> Slice {
        self.region(len).slice(..).unwrap()
    }

    /// A slice of a new region, with these bytes.
    pub(crate) fn filled(&self, bytes: &[u8]) -> Slice {
        let mut slice = self.slice(bytes.len());
        slice.assign(bytes).unwrap();
        slice
    }
}

/// Two connected queue pairs, made as `build` says.
pub(crate) fn pair_with<T: Connected>(
    contexts: [Context; 2],
    build: impl Fn(QpBuilder<T>) -> QpBuilder<T>,
    options: &ConnectOptions,
) -> (Side<T>, Side<T>) {
    let [a, b] = contexts.map(|context| {
        let (pd, cq) = (Pd::new(&context).unwrap(), Cq::new(&context, 1).unwrap());
        let qp = build(Qp::<T>::builder(&pd, &cq)).build().unwrap();
        (context, pd, cq, qp)
    });
    let (qp_a, qp_b) = connect_pair(a.3, b.3, options).unwrap();
    (
        Side { context: a.0, pd: a.1, cq: a.2, qp: qp_a },
        Side { context: b.0, pd: b.1, cq: b.2, qp: qp_b },
    )
}

/// Two connected queue pairs of one context.
pub(crate) fn pair<T: Connected>() -> (Side<T>, Side<T>) {
    let context = context();
    let build = |builder: QpBuilder<T>| builder.slices(4, 4).inline(256);
    pair_with([context.clone(), context], build, &ConnectOptions::default())
}

/// Options that give up soon.
pub(crate) fn impatient() -> ConnectOptions {
    ConnectOptions {
        timeout: 8,
        retry_count: 1,
        rnr_retry: 1,
        min_rnr_timer: 1,
        ..ConnectOptions::default()
    }
}

pub(crate) fn impatient_pair() -> (Side<Rc>, Side<Rc>) {
    let context = context();
    pair_with([context.clone(), context], |builder| builder, &impatient())
}

/// Waits for an operation, not for ever.
pub(crate) fn done<R: Kept, K: Kind>(op: Op<R, K>) -> Output<R, K> {
    op.wait_for(LIMIT).expect("the operation hangs")
}

/// Waits for an operation that succeeds.
pub(crate) fn ok<R: Kept, K: Kind>(op: Op<R, K>) -> (Value<K>, R)
where
    Value<K>: std::fmt::Debug,
{
    let (result, buffers) = done(op);
    (result.expect("the operation fails"), buffers)
}

pub(crate) use ironverbs::{Returned as Kept, Value};

/// The next event of that kind for the queue pair; others are passed over.
pub(crate) fn event(context: &Context, kind: EventKind, source: EventSource) {
    let end = Instant::now() + LIMIT;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        match context.next_event().wait_for(left) {
            Some(Event { kind: k, source: s }) if (k, s) == (kind, source) => return,
            Some(_) => {}
            None => panic!("no event {kind:?} of {source:?}"),
        }
    }
}

/// Polls until a condition holds.
pub(crate) fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + LIMIT;
    while !holds() {
        assert!(Instant::now() < end, "it never came that {what}");
        std::thread::yield_now();
    }
}

/// Runs a future on this thread, as a foreign executor would; not for ever.
pub(crate) fn block_on<F: Future>(future: F) -> F::Output {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Poll, Wake};

    struct Unpark(std::thread::Thread);
    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let mut future = pin!(future);
    let waker = Arc::new(Unpark(std::thread::current())).into();
    let mut cx = Context::from_waker(&waker);
    let end = Instant::now() + LIMIT;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
        assert!(Instant::now() < end, "the future hangs");
        std::thread::park_timeout(LIMIT);
    }
}

/// The message of an error.
pub(crate) fn text(error: impl Into<Error>) -> String {
    error.into().to_string()
}
