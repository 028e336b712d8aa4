//! Connections: asking, accepting, refusing, ending.

use std::ffi::{c_int, c_void};

use ironverbs::raw as soft;
use soft::EventKind;
use soft::cm::{CmError, ConnParam, Ece, PortSpace};

use super::objects::{self, Handle, field, given};
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};

/// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`: as many as the device allows.
const MOST: u8 = 0xff;

/// Retries where the program does not say: 7, and for ever where the peer is not ready.
const RETRIES: u8 = 7;

/// rdma_connect(3).
///
/// # Safety
/// As for [`objects::find`]; `param` is null or points to the structure, its private data to as
/// many bytes as it says.
pub(crate) unsafe extern "C" fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    fail::number("rdma_connect", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        handle.adopt_qp()?;
        let most = handle.most()?;
        let mut asked = match param.is_null() {
            // SAFETY: the caller's promise.
            false => unsafe { handle.param(&*param, most, most)? },
            true => ConnParam {
                responder_resources: most,
                initiator_depth: most,
                retry_count: RETRIES,
                rnr_retry_count: RETRIES,
                srq: !handle.get(field!(srq)).is_null(),
                ..ConnParam::default()
            },
        };
        let preface = handle.id.parts.lock().preface.clone();
        if !preface.is_empty() {
            asked.private_data = [preface, asked.private_data].concat();
        }
        handle.id.soft.connect(&asked)?;
        handle.complete()?;
        Ok(0)
    })
}

/// rdma_accept(3).
///
/// # Safety
/// As for [`connect`].
pub(crate) unsafe extern "C" fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    fail::number("rdma_accept", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        handle.adopt_qp()?;
        let given = match param.is_null() {
            true => None,
            false => {
                let most = handle.most()?;
                let (responder, initiator) = handle.id.parts.lock().asked.unwrap_or((most, most));
                let (responder, initiator) = (responder.min(most), initiator.min(most));
                // SAFETY: the caller's promise.
                Some(unsafe { handle.param(&*param, responder, initiator)? })
            }
        };
        handle.id.soft.accept(given.as_ref())?;
        handle.refresh_qp();
        // A datagram service is looked up and that is all: no event follows.
        if !is_datagram(&handle) {
            handle.complete()?;
        }
        Ok(0)
    })
}

fn is_datagram(handle: &Handle) -> bool {
    handle.id.soft.qp_type() == soft::QpType::Ud
}

impl Handle {
    /// READs and atomics that the device allows a queue pair.
    fn most(&self) -> Outcome<u8> {
        let context = self.get(field!(verbs));
        if context.is_null() {
            return Ok(MOST);
        }
        // SAFETY: a context of ours, or what the program made of the field; checked.
        let context = unsafe { crate::objects::context(context)? }.context.clone();
        let attr = context.attr();
        Ok(u8::try_from(attr.max_qp_rd_atom.min(attr.max_qp_init_rd_atom)).unwrap_or(MOST))
    }

    /// What a program asks for, the numbers of its queue pair where it has one.
    ///
    /// # Safety
    /// As for [`connect`].
    unsafe fn param(
        &self,
        param: &rdma_conn_param,
        responder: u8,
        initiator: u8,
    ) -> Outcome<ConnParam> {
        let connected = self.id.soft.port_space() == PortSpace::Tcp;
        let most = self.most()?;
        let number = |what, asked: u8, default: u8| match asked {
            MOST => Ok(default),
            asked if asked > most && connected => {
                Err(Failure::Argument { what, value: asked.into() })
            }
            asked => Ok(asked),
        };
        // SAFETY: the caller's promise.
        let data = unsafe { bytes(param.private_data, param.private_data_len) };
        let has_qp = !self.get(field!(qp)).is_null();
        let has_srq = !self.get(field!(srq)).is_null();
        Ok(ConnParam {
            private_data: data.to_vec(),
            responder_resources: number(
                "responder_resources",
                param.responder_resources,
                responder,
            )?,
            initiator_depth: number("initiator_depth", param.initiator_depth, initiator)?,
            flow_control: param.flow_control != 0,
            retry_count: param.retry_count,
            rnr_retry_count: param.rnr_retry_count,
            srq: if has_qp { has_srq } else { param.srq != 0 },
            qp_num: param.qp_num,
        })
    }
}

/// # Safety
/// `data` is null or points to `len` bytes, which do not change during the call.
unsafe fn bytes<'a>(data: *const c_void, len: u8) -> &'a [u8] {
    match data.is_null() {
        true => &[],
        // SAFETY: the caller's promise.
        false => unsafe { std::slice::from_raw_parts(data.cast(), len.into()) },
    }
}

/// rdma_reject(3).
///
/// # Safety
/// As for [`objects::find`]; `data` is null or points to `len` bytes.
pub(crate) unsafe extern "C" fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    fail::number("rdma_reject", || {
        // SAFETY: the caller's promise.
        unsafe { objects::find(id)?.id.soft.reject(bytes(data, len))? };
        Ok(0)
    })
}

/// rdma_reject_ece: because of the peer's options.
///
/// # Safety
/// As for [`reject`].
pub(crate) unsafe extern "C" fn reject_ece(
    id: *mut rdma_cm_id,
    data: *const c_void,
    len: u8,
) -> c_int {
    fail::number("rdma_reject_ece", || {
        // SAFETY: the caller's promise.
        unsafe { objects::find(id)?.id.soft.reject_ece(bytes(data, len))? };
        Ok(0)
    })
}

/// rdma_establish(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn establish(id: *mut rdma_cm_id) -> c_int {
    fail::number("rdma_establish", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        if !handle.get(field!(qp)).is_null() {
            let (what, state) = ("be established by hand", "with a queue pair");
            return Err(CmError::State { what, state }.into());
        }
        handle.id.soft.establish()?;
        Ok(0)
    })
}

/// rdma_disconnect(3). A synchronous id waits for the end unless it came already.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn disconnect(id: *mut rdma_cm_id) -> c_int {
    fail::number("rdma_disconnect", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        let ended = handle.id.parts.lock().ended;
        let done = handle.id.soft.disconnect();
        handle.refresh_qp();
        done?;
        if !ended {
            handle.complete()?;
        }
        Ok(0)
    })
}

/// rdma_notify(3): EISCONN when the connection was established already.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn notify(id: *mut rdma_cm_id, event: u32) -> c_int {
    const COMM_EST: u32 = EventKind::CommEst as u32;
    fail::number("rdma_notify", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        if event != COMM_EST {
            return Err(Failure::Argument { what: "event", value: event.into() });
        }
        handle.id.soft.notify(EventKind::CommEst)?;
        Ok(0)
    })
}

/// rdma_set_local_ece(3).
///
/// # Safety
/// As for [`objects::find`]; `ece` is null or points to the structure.
pub(crate) unsafe extern "C" fn set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    fail::number("rdma_set_local_ece", || {
        // SAFETY: the caller's promise.
        let (handle, ece) = unsafe { (objects::find(id)?, &*given("ece", ece)?) };
        handle.id.soft.set_ece(Ece { vendor_id: ece.vendor_id, options: ece.options });
        Ok(0)
    })
}

/// rdma_get_remote_ece(3).
///
/// # Safety
/// As for [`objects::find`]; `ece` is null or has room for the structure.
pub(crate) unsafe extern "C" fn get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    fail::number("rdma_get_remote_ece", || {
        // SAFETY: the caller's promise.
        let (handle, ece) = unsafe { (objects::find(id)?, given("ece", ece)?) };
        let Ece { vendor_id, options } = handle.id.soft.peer_ece();
        // SAFETY: the caller's promise.
        unsafe { ece.write(ibv_ece { vendor_id, options, comp_mask: 0 }) };
        Ok(0)
    })
}
