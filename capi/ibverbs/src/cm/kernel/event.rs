//! Events of the kernel's connection manager.

use std::ffi::{c_int, c_void};
use std::ptr;
use std::sync::Arc;

use ironverbs_kernel::cm::{self, CmRecord, Ece};

use super::objects::{self, Channel, Counter, EventView, Handle, KernelEvent, Shown, field};
use super::{devices, multicast};
use crate::abi::*;
use crate::cm::channel::Read;
use crate::fail::{self, Failure, Outcome};
use crate::kern;
use crate::pool::Object;

const ADDR_RESOLVED: u32 = 0;
const ROUTE_RESOLVED: u32 = 2;
const CONNECT_REQUEST: u32 = 4;
const CONNECT_RESPONSE: u32 = 5;
const CONNECT_ERROR: u32 = 6;
const REJECTED: u32 = 8;
const ESTABLISHED: u32 = 9;
const DEVICE_REMOVAL: u32 = 11;

pub(in crate::cm) unsafe fn ack_cm_event(event: *mut rdma_cm_event) -> c_int {
    fail::number("rdma_ack_cm_event", || acknowledge(event).map(|()| 0))
}

/// Frees an event. Its address is all that is looked at.
pub(super) fn acknowledge(event: *mut rdma_cm_event) -> Outcome<()> {
    // SAFETY: events have no handle to be read; the address is compared.
    let number = unsafe { KernelEvent::pool().find(event)? }.number();
    KernelEvent::pool().remove(number);
    Ok(())
}

/// The next event if there is one, of a channel that is shared.
pub(in crate::cm) fn try_next(channel: &Arc<Channel>) -> Outcome<Option<Read>> {
    match next(channel) {
        Err(Failure::Io(e)) if e.kind() == std::io::ErrorKind::WouldBlock => Ok(None),
        other => other.map(Some),
    }
}

/// The next event of a channel, in its C structure, the structure of its id up to date.
pub(in crate::cm) fn next(channel: &Arc<Channel>) -> Outcome<Read> {
    loop {
        let record = CmRecord::read(channel.issue(&cm::get_event())?);
        if let Some(member) = multicast::named(record.name) {
            // Without its id nobody waits for either count.
            let Ok((id, word)) = member.told(&record) else { continue };
            let counted = (id.id.events.clone(), Some(member.events.clone()));
            let what = (record.event, record.status);
            return hand_out(&id, ptr::null_mut(), counted, &record, what, Some(word));
        }
        let Some(named) = objects::named(record.name) else {
            // Its id was destroyed meanwhile: a request to it has nobody.
            if record.event == CONNECT_REQUEST {
                let _ = channel.issue(&cm::destroy_id(record.id));
            }
            continue;
        };
        let counted = named.id.events.clone();
        let handled = handle(channel, &named, &record);
        let Ok((id, listen, event, status)) = handled else {
            counted.acknowledge();
            continue;
        };
        return hand_out(&id, listen, (counted, None), &record, (event, status), None);
    }
}

/// What an event means for its id, and as what the program sees it: the id, who listens, the event, its status.
fn handle(
    channel: &Arc<Channel>,
    named: &Handle,
    record: &CmRecord,
) -> Outcome<(Handle, *mut rdma_cm_id, u32, c_int)> {
    let as_it_is = |event, status| Ok((named.clone(), ptr::null_mut(), event, status));
    if record.event == CONNECT_RESPONSE {
        named.id.parts.lock().peer_ece = record.ece();
    }
    match record.event {
        ADDR_RESOLVED => {
            named.refresh()?;
            as_it_is(ADDR_RESOLVED, record.status)
        }
        ROUTE_RESOLVED => {
            named.refresh_path()?;
            as_it_is(ROUTE_RESOLVED, record.status)
        }
        CONNECT_REQUEST => {
            let new = requested(channel, named, record)?;
            Ok((new, named.c, CONNECT_REQUEST, record.status))
        }
        CONNECT_RESPONSE if !named.get(field!(qp)).is_null() => {
            let done = named.establish(None, None).and_then(|()| {
                let ready = cm::accept(named.id.number(), 0, None, Ece::default());
                named.id.issue(&ready).map(drop)
            });
            match done {
                Ok(()) => as_it_is(ESTABLISHED, record.status),
                Err(refused) => {
                    named.fail();
                    as_it_is(CONNECT_ERROR, -refused.errno())
                }
            }
        }
        DEVICE_REMOVAL => {
            if let Ok(device) = named.device() {
                devices::removed(&device);
            }
            as_it_is(DEVICE_REMOVAL, record.status)
        }
        REJECTED => {
            named.fail();
            as_it_is(REJECTED, record.status)
        }
        other => as_it_is(other, record.status),
    }
}

/// The id of a request: it has the context of the one that listens.
fn requested(channel: &Arc<Channel>, listener: &Handle, record: &CmRecord) -> Outcome<Handle> {
    // SAFETY: the listener is alive.
    let halves = unsafe { crate::cm::objects::halves(listener.c)? };
    let shown = Shown {
        channel: (listener.get(field!(channel)), halves.channel),
        context: listener.get(field!(context)),
        ps: listener.get(field!(ps)),
        qp_type: listener.get(field!(qp_type)),
    };
    let new = match objects::insert(shown, false, record.id) {
        Ok(new) => new,
        Err(refused) => {
            let _ = channel.issue(&cm::destroy_id(record.id));
            return Err(refused);
        }
    };
    if !new.is_datagram() {
        let conn = record.conn();
        let mut parts = new.id.parts.lock();
        parts.asked = Some((conn.responder_resources, conn.initiator_depth));
        parts.peer_ece = record.ece();
    }
    let placed = || {
        if listener.is_sync() {
            // SAFETY: no channel is given.
            unsafe { crate::cm::channel::migrate(new.c, ptr::null_mut())? };
        }
        new.refresh()?;
        new.refresh_path()
    };
    if let Err(refused) = placed() {
        let _ = new.id.issue(&cm::destroy_id(record.id));
        objects::remove(new.c);
        return Err(refused);
    }
    Ok(new)
}

fn hand_out(
    id: &Handle,
    listen: *mut rdma_cm_id,
    (events, member): (Arc<Counter>, Option<Arc<Counter>>),
    record: &CmRecord,
    (event, status): (u32, c_int),
    word: Option<usize>,
) -> Outcome<Read> {
    let (conn, ud) = (record.conn(), record.ud());
    let data = if id.is_datagram() { ud.data.clone() } else { conn.data.clone() };
    // The bytes do not move with the vector that owns them.
    let (private_data, private_data_len) = match u8::try_from(data.len()) {
        Ok(len) if len > 0 => (data.as_ptr().cast::<c_void>(), len),
        _ => (ptr::null(), 0),
    };
    // The word that the program gave when it joined stands in place of private data.
    let (private_data, private_data_len) = match word {
        Some(word) => (ptr::without_provenance(word), 0),
        None => (private_data, private_data_len),
    };
    let param = if id.is_datagram() {
        let mut ah_attr = ibv_ah_attr::default();
        // SAFETY: the bytes are as many as the structure's, which is numbers.
        let path = unsafe { ud.path.as_ptr().cast::<ib_uverbs_ah_attr>().read_unaligned() };
        // SAFETY: both are there.
        unsafe { kern::copy_ah_attr_from_kern(&raw mut ah_attr, &raw const path) };
        let ud = rdma_ud_param {
            private_data,
            private_data_len,
            ah_attr,
            qp_num: ud.qpn,
            qkey: ud.qkey,
        };
        rdma_cm_event_param { ud }
    } else {
        let conn = rdma_conn_param {
            private_data,
            private_data_len,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            flow_control: conn.flow_control,
            retry_count: conn.retry_count,
            rnr_retry_count: conn.rnr_retry_count,
            srq: conn.srq,
            qp_num: conn.qpn,
        };
        rdma_cm_event_param { conn }
    };
    let c_id = id.c;
    let view = EventView { events, member, _data: data };
    let object = KernelEvent::pool().insert(view, |object, _| {
        // SAFETY: nobody else sees the place yet; it starts zeroed.
        let object = unsafe { &mut *object.cast::<rdma_cm_event>() };
        (object.id, object.listen_id) = (c_id, listen);
        (object.event, object.status) = (event, status);
        object.param = param;
    })?;
    Ok(Read { c: object.as_ptr(), event, status })
}
