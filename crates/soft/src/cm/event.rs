//! Events, and the count of those unacknowledged.

use std::io::Write;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

use super::{CmId, ConnParam, Ece, UdParam};

/// What happened (`enum rdma_cm_event_type`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u32)]
pub enum CmEventKind {
    /// The address was resolved; the id has a device.
    AddrResolved = 0,
    /// It was not: the status is a negative errno.
    AddrError = 1,
    /// The route was resolved.
    RouteResolved = 2,
    /// It was not.
    RouteError = 3,
    /// A peer wants to connect; the event's id is a new one.
    ConnectRequest = 4,
    /// The peer accepted, and no queue pair is attached: see [`CmId::establish`].
    ConnectResponse = 5,
    /// The connection could not be made, for a reason on this side: a negative errno.
    ConnectError = 6,
    /// The peer does not answer (-ETIMEDOUT), or a UD peer has no such service.
    Unreachable = 7,
    /// The peer refused: the status is the IBA's reason (IBA 12.6.7.2), 28 for its program's.
    Rejected = 8,
    /// The connection stands.
    Established = 9,
    /// The connection has ended.
    Disconnected = 10,
    /// The device is gone; the id must be destroyed.
    DeviceRemoval = 11,
    /// The multicast group is joined.
    MulticastJoin = 12,
    /// It is not, or no longer: a negative errno.
    MulticastError = 13,
    /// The address moved to another interface.
    AddrChange = 14,
    /// The queue pair may be used for a new connection.
    TimewaitExit = 15,
}

impl CmEventKind {
    /// Its name in `<rdma/rdma_cma.h>`, as rdma_event_str(3) gives it.
    pub const fn name(self) -> &'static str {
        match self {
            CmEventKind::AddrResolved => "RDMA_CM_EVENT_ADDR_RESOLVED",
            CmEventKind::AddrError => "RDMA_CM_EVENT_ADDR_ERROR",
            CmEventKind::RouteResolved => "RDMA_CM_EVENT_ROUTE_RESOLVED",
            CmEventKind::RouteError => "RDMA_CM_EVENT_ROUTE_ERROR",
            CmEventKind::ConnectRequest => "RDMA_CM_EVENT_CONNECT_REQUEST",
            CmEventKind::ConnectResponse => "RDMA_CM_EVENT_CONNECT_RESPONSE",
            CmEventKind::ConnectError => "RDMA_CM_EVENT_CONNECT_ERROR",
            CmEventKind::Unreachable => "RDMA_CM_EVENT_UNREACHABLE",
            CmEventKind::Rejected => "RDMA_CM_EVENT_REJECTED",
            CmEventKind::Established => "RDMA_CM_EVENT_ESTABLISHED",
            CmEventKind::Disconnected => "RDMA_CM_EVENT_DISCONNECTED",
            CmEventKind::DeviceRemoval => "RDMA_CM_EVENT_DEVICE_REMOVAL",
            CmEventKind::MulticastJoin => "RDMA_CM_EVENT_MULTICAST_JOIN",
            CmEventKind::MulticastError => "RDMA_CM_EVENT_MULTICAST_ERROR",
            CmEventKind::AddrChange => "RDMA_CM_EVENT_ADDR_CHANGE",
            CmEventKind::TimewaitExit => "RDMA_CM_EVENT_TIMEWAIT_EXIT",
        }
    }
}

/// What an event says besides.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub enum EventParam {
    /// Nothing.
    #[default]
    None,
    /// Of the connection: CONNECT_REQUEST, CONNECT_RESPONSE, ESTABLISHED, REJECTED, DISCONNECTED.
    Conn(ConnParam),
    /// Of a UD peer or a multicast group: CONNECT_REQUEST and ESTABLISHED of UD ids, MULTICAST_*.
    Ud(UdParam),
}

/// An event of the connection manager (`struct rdma_cm_event`).
///
/// Dropping it acknowledges it; until then its id (for [`CmEventKind::ConnectRequest`] the listening id) cannot be
/// destroyed.
#[derive(Debug)]
pub struct CmEvent {
    id: Arc<CmId>,
    listen_id: Option<Arc<CmId>>,
    kind: CmEventKind,
    status: i32,
    param: EventParam,
    ece: Ece,
    tag: u64,
    /// What it counts as until it is acknowledged.
    counts_as: CmEventKind,
}

impl CmEvent {
    /// Hands an event out: from here on it counts as not acknowledged.
    pub(super) fn hand_out(queued: Queued, id: Arc<CmId>, listen_id: Option<Arc<CmId>>) -> CmEvent {
        let Queued { kind, status, param, ece, tag, .. } = queued;
        let event = CmEvent { id, listen_id, kind, status, param, ece, tag, counts_as: kind };
        event.counted().outstanding.hand_out(kind, tag);
        event
    }

    /// The id it happened to; a new one for [`CmEventKind::ConnectRequest`].
    pub fn id(&self) -> &Arc<CmId> {
        &self.id
    }

    /// The id that listens, for [`CmEventKind::ConnectRequest`].
    pub fn listen_id(&self) -> Option<&Arc<CmId>> {
        self.listen_id.as_ref()
    }

    /// What happened.
    pub fn kind(&self) -> CmEventKind {
        self.kind
    }

    /// 0, a negative errno, or the positive reason of a refusal.
    pub fn status(&self) -> i32 {
        self.status
    }

    /// What it says besides.
    pub fn param(&self) -> &EventParam {
        &self.param
    }

    /// The peer's options, in a request or response.
    pub fn ece(&self) -> Ece {
        self.ece
    }

    /// Acknowledges the event (rdma_ack_cm_event(3)), as dropping it does.
    pub fn ack(self) {}

    /// Does what is to be done before the program sees it.
    pub(super) fn prepare(&mut self) {
        match self.kind {
            CmEventKind::ConnectRequest => self.id.claim(),
            CmEventKind::ConnectResponse => {
                let Some(qp) = self.id.waits_for_qp() else { return };
                self.kind = match self.id.complete(&qp) {
                    Ok(()) => CmEventKind::Established,
                    Err(error) => {
                        self.status = -error.errno();
                        CmEventKind::ConnectError
                    }
                };
            }
            CmEventKind::MulticastJoin => {
                if let Err(status) = self.id.enter_group(self.tag) {
                    (self.kind, self.status) = (CmEventKind::MulticastError, status);
                }
            }
            _ => {}
        }
    }

    fn counted(&self) -> &CmId {
        self.listen_id.as_ref().unwrap_or(&self.id)
    }
}

impl Drop for CmEvent {
    fn drop(&mut self) {
        self.counted().outstanding.acknowledge(self.counts_as, self.tag);
    }
}

/// An event that nobody has read.
#[derive(Debug)]
pub(super) struct Queued {
    pub(super) id: Subject,
    /// The id that listens, of a request.
    pub(super) listen_id: Option<Weak<CmId>>,
    pub(super) kind: CmEventKind,
    pub(super) status: i32,
    pub(super) param: EventParam,
    pub(super) ece: Ece,
    /// Which join of a multicast group it is about; 0: none.
    pub(super) tag: u64,
}

/// Whom a queued event is about. It does not keep ids that the program has, and keeps those it has yet to get.
#[derive(Debug)]
pub(super) enum Subject {
    Known(Weak<CmId>),
    New(Arc<CmId>),
}

impl Subject {
    pub(super) fn is(&self, id: &CmId) -> bool {
        let it = match self {
            Subject::Known(weak) => weak.as_ptr(),
            Subject::New(new) => Arc::as_ptr(new),
        };
        std::ptr::eq(it, id)
    }
}

/// Events handed out for an id and not yet acknowledged.
#[derive(Debug, Default)]
pub(super) struct Outstanding {
    /// With the join they are about.
    events: Mutex<Vec<(CmEventKind, u64)>>,
    acknowledged: Condvar,
}

/// How long a wait for acknowledgements lasts before it is explained.
const SUSPICIOUS: Duration = Duration::from_secs(1);

impl Outstanding {
    fn hand_out(&self, kind: CmEventKind, tag: u64) {
        self.events.lock().push((kind, tag));
    }

    fn acknowledge(&self, kind: CmEventKind, tag: u64) {
        let mut events = self.events.lock();
        if let Some(at) = events.iter().position(|other| *other == (kind, tag)) {
            events.swap_remove(at);
        }
        self.acknowledged.notify_all();
    }

    /// Blocks until every event handed out, or those of one join, are acknowledged, as the man pages ask. `explain`:
    /// says on stderr, after a second, what is missing; `who` names the id.
    pub(super) fn wait(
        &self,
        of: Option<u64>,
        explain: bool,
        call: &str,
        who: &dyn std::fmt::Display,
    ) {
        let counts = |(_, tag): &&(CmEventKind, u64)| of.is_none_or(|of| of == *tag);
        let mut events = self.events.lock();
        let mut told = !explain;
        while events.iter().any(|event| counts(&event)) {
            if told {
                self.acknowledged.wait(&mut events);
            } else if self.acknowledged.wait_for(&mut events, SUSPICIOUS).timed_out() {
                told = true;
                let missing: Vec<_> =
                    events.iter().filter(counts).map(|(kind, _)| kind.name()).collect();
                let _ = writeln!(
                    std::io::stderr(),
                    "ironverbs: {call} of {who} waits until these events are acknowledged: {}",
                    missing.join(", ")
                );
            }
        }
    }
}
