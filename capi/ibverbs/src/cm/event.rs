//! Events.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::io;
use std::ptr;

use ironverbs::raw as soft;
use soft::cm::{CmEvent, CmEventKind, ConnParam, EventParam, UdParam};

use super::channel::Read;
use super::objects::{self, EventView, Handle, field};
use super::{channel, id};
use crate::abi::*;
use crate::convert;
use crate::fail::{self, Failure, Outcome};
use crate::pool::Object;

/// rdma_ack_cm_event(3).
pub(crate) extern "C" fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    fail::number("rdma_ack_cm_event", || acknowledge(event).map(|()| 0))
}

/// Frees an event. Its address is all that is looked at.
pub(super) fn acknowledge(event: *mut rdma_cm_event) -> Outcome<()> {
    // SAFETY: events have no handle to be read; the address is compared.
    let number = unsafe { rdma_cm_event::pool().find(event)? }.number();
    rdma_cm_event::pool().remove(number);
    Ok(())
}

/// rdma_event_str(3): the names that the header has for them.
pub(crate) extern "C" fn event_str(event: c_int) -> *const c_char {
    const NAMES: &[&CStr] = &[
        c"RDMA_CM_EVENT_ADDR_RESOLVED",
        c"RDMA_CM_EVENT_ADDR_ERROR",
        c"RDMA_CM_EVENT_ROUTE_RESOLVED",
        c"RDMA_CM_EVENT_ROUTE_ERROR",
        c"RDMA_CM_EVENT_CONNECT_REQUEST",
        c"RDMA_CM_EVENT_CONNECT_RESPONSE",
        c"RDMA_CM_EVENT_CONNECT_ERROR",
        c"RDMA_CM_EVENT_UNREACHABLE",
        c"RDMA_CM_EVENT_REJECTED",
        c"RDMA_CM_EVENT_ESTABLISHED",
        c"RDMA_CM_EVENT_DISCONNECTED",
        c"RDMA_CM_EVENT_DEVICE_REMOVAL",
        c"RDMA_CM_EVENT_MULTICAST_JOIN",
        c"RDMA_CM_EVENT_MULTICAST_ERROR",
        c"RDMA_CM_EVENT_ADDR_CHANGE",
        c"RDMA_CM_EVENT_TIMEWAIT_EXIT",
    ];
    let name = usize::try_from(event).ok().and_then(|event| NAMES.get(event).copied());
    name.unwrap_or(c"UNKNOWN EVENT").as_ptr()
}

/// The next event that `take` finds, in its C structure, the structure of its id up to date.
pub(super) fn next(take: impl Fn() -> io::Result<Option<CmEvent>>) -> Outcome<Option<Read>> {
    loop {
        let Some(event) = take()? else { return Ok(None) };
        let (id, listen) = match event.listen_id() {
            None => (objects::known(event.id()), None),
            Some(listener) => {
                let Some(listener) = objects::known(listener) else { continue };
                (Some(requested(&event, &listener)?), Some(listener))
            }
        };
        // Its id was destroyed meanwhile, or moved to the kernel.
        let Some(id) = id else { continue };
        id.refresh()?;
        id.refresh_qp();
        id.note(event.kind());
        return hand_out(event, &id, listen.as_ref()).map(Some);
    }
}

/// The id of a request: it has the context of the one that listens, and works as that does.
fn requested(event: &CmEvent, listener: &Handle) -> Outcome<Handle> {
    let sync = listener.is_sync();
    // SAFETY: the listener is alive.
    let mut shown =
        (listener.get(field!(channel)), unsafe { objects::halves(listener.c)? }.channel);
    if sync {
        shown = channel::create()?;
        let own = shown.1.soft().ok_or(Failure::Null { what: "channel of an id" })?;
        event.id().migrate(own)?;
    }
    let (context, c) = (listener.get(field!(context)), shown.0);
    let new = objects::insert(event.id().clone(), shown, context, sync);
    if new.is_err() && sync {
        let _ = channel::destroy(c);
    }
    let new = new?;
    if let EventParam::Conn(param) = event.param() {
        new.id.parts.lock().asked = Some((param.responder_resources, param.initiator_depth));
    }
    Ok(new)
}

fn hand_out(event: CmEvent, id: &Handle, listen: Option<&Handle>) -> Outcome<Read> {
    let (kind, status) = (event.kind(), event.status());
    let (c_id, listen_id) = (id.c, listen.map_or(ptr::null_mut(), |listen| listen.c));
    // The bytes do not move with the vector that owns them.
    let param = match event.param() {
        EventParam::None => None,
        EventParam::Conn(conn) => Some(rdma_cm_event_param { conn: c_conn(conn) }),
        EventParam::Ud(ud) => Some(rdma_cm_event_param { ud: c_ud(kind, ud) }),
    };
    let object = rdma_cm_event::pool().insert(EventView { _event: event }, |object, _| {
        // SAFETY: nobody else sees the place yet; it starts zeroed.
        let object = unsafe { &mut *object };
        (object.id, object.listen_id) = (c_id, listen_id);
        (object.event, object.status) = (kind as u32, status);
        if let Some(param) = param {
            object.param = param;
        }
    });
    if object.is_err() && listen.is_some() {
        id::abandon(id);
    }
    Ok(Read { c: object?.as_ptr(), event: kind as u32, status })
}

fn bytes(data: &[u8]) -> (*const c_void, u8) {
    match u8::try_from(data.len()) {
        Ok(len) if len > 0 => (data.as_ptr().cast(), len),
        _ => (ptr::null(), 0),
    }
}

fn c_conn(param: &ConnParam) -> rdma_conn_param {
    let (private_data, private_data_len) = bytes(&param.private_data);
    rdma_conn_param {
        private_data,
        private_data_len,
        responder_resources: param.responder_resources,
        initiator_depth: param.initiator_depth,
        flow_control: param.flow_control.into(),
        retry_count: param.retry_count,
        rnr_retry_count: param.rnr_retry_count,
        srq: param.srq.into(),
        qp_num: param.qp_num,
    }
}

fn c_ud(kind: CmEventKind, param: &UdParam) -> rdma_ud_param {
    let (private_data, private_data_len) = match kind {
        // The word that the program gave when it joined stands in place of private data.
        CmEventKind::MulticastJoin | CmEventKind::MulticastError => {
            (ptr::without_provenance(param.cookie), 0)
        }
        _ => bytes(&param.private_data),
    };
    rdma_ud_param {
        private_data,
        private_data_len,
        ah_attr: convert::c_ah_attr(&param.ah_attr),
        qp_num: param.qp_num,
        qkey: param.qkey,
    }
}
