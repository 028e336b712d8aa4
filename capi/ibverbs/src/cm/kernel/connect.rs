//! Connections of the kernel's ids: asking, accepting, refusing, ending.

use std::ffi::{c_int, c_void};
use std::slice;

use ironverbs_kernel::cm::{self, Conn, Ece, Reason};

use super::objects::{self, Handle, field, given};
use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::{dispatch, kern};

/// `RDMA_MAX_RESP_RES` and `RDMA_MAX_INIT_DEPTH`: as many as the device allows.
const MOST: u8 = 0xff;
const RETRIES: u8 = 7;

pub(super) const INIT: u32 = 1;
const RTR: u32 = 2;
const RTS: u32 = 3;
const ERROR: u32 = 6;
const STATE: c_int = 1;
const SQ_PSN: c_int = 1 << 16;
const RD_ATOMIC: (c_int, c_int) = (1 << 17, 1 << 13);

impl Handle {
    /// The attributes of a queue pair for a transition, as the kernel knows them.
    fn attributes(&self, state: u32) -> Outcome<(ibv_qp_attr, c_int)> {
        let response = self.id.issue(&cm::init_qp_attr(self.id.number(), state))?;
        let mut attr = ibv_qp_attr::default();
        if response.len() < size_of::<ib_uverbs_qp_attr>() {
            return Err(Failure::Io(std::io::Error::from_raw_os_error(libc::EIO)));
        }
        // SAFETY: as long as the structure, which is numbers; a vector of bytes may be misaligned for it.
        let kernels = unsafe { response.as_ptr().cast::<ib_uverbs_qp_attr>().read_unaligned() };
        // SAFETY: both are there.
        unsafe { kern::copy_qp_attr_from_kern(&raw mut attr, &raw const kernels) };
        let mask = ironverbs_kernel::command::Response(&response).u32(0);
        Ok((attr, mask as c_int))
    }

    /// Moves the id's queue pair; nothing without one.
    fn modify(&self, attr: &mut ibv_qp_attr, mask: c_int) -> Outcome<()> {
        let qp = self.get(field!(qp));
        if qp.is_null() {
            return Ok(());
        }
        // SAFETY: a queue pair that the program put there, or that was made for it.
        match unsafe { dispatch::modify_qp(qp, attr, mask) } {
            0 => Ok(()),
            errno => Err(Failure::Io(std::io::Error::from_raw_os_error(errno))),
        }
    }

    /// To INIT; a datagram service's on to RTS.
    pub(super) fn begin(&self) -> Outcome<()> {
        let (mut attr, mask) = self.attributes(INIT)?;
        self.modify(&mut attr, mask)?;
        if self.is_datagram() {
            attr.qp_state = RTR;
            self.modify(&mut attr, STATE)?;
            (attr.qp_state, attr.sq_psn) = (RTS, 0);
            self.modify(&mut attr, STATE | SQ_PSN)?;
        }
        Ok(())
    }

    /// To RTS by what the peer told: with so many READs and atomics as responder and as initiator, where given.
    pub(super) fn establish(&self, responder: Option<u8>, initiator: Option<u8>) -> Outcome<()> {
        if self.get(field!(qp)).is_null() {
            return Ok(());
        }
        // What is known of the path may have changed.
        let (mut attr, mask) = self.attributes(INIT)?;
        self.modify(&mut attr, mask)?;
        self.agree()?;
        let (mut attr, mask) = self.attributes(RTR)?;
        if let Some(n) = responder.filter(|_| mask & RD_ATOMIC.0 != 0) {
            attr.max_dest_rd_atomic = n;
        }
        self.modify(&mut attr, mask)?;
        let (mut attr, mask) = self.attributes(RTS)?;
        if let Some(n) = initiator.filter(|_| mask & RD_ATOMIC.1 != 0) {
            attr.max_rd_atomic = n;
        }
        self.modify(&mut attr, mask)
    }

    /// Options are the program's affair where the queue pair is, too; else they are the device's.
    fn without_qp(&self) -> Outcome<()> {
        if self.get(field!(qp)).is_null() {
            return Ok(());
        }
        Err(Failure::Argument { what: "queue pair of the id, not null but", value: 1 })
    }

    /// Learns the options of the queue pair's device, which the peer is told, unless the program has set its own.
    pub(super) fn know_options(&self) -> Outcome<()> {
        let mut ece = ibv_ece { vendor_id: 0, options: 0, comp_mask: 0 };
        // SAFETY: the id's queue pair; the structure is there.
        match unsafe { dispatch::query_ece(self.get(field!(qp)), &raw mut ece) } {
            0 => {
                let mut parts = self.id.parts.lock();
                if parts.ece == Ece::default() {
                    parts.ece = Ece { vendor_id: ece.vendor_id, options: ece.options };
                }
                Ok(())
            }
            libc::EOPNOTSUPP => Ok(()),
            errno => Err(Failure::Io(std::io::Error::from_raw_os_error(errno))),
        }
    }

    /// Tells the device the options that are to be used; one that knows none needs not be told.
    fn agree(&self) -> Outcome<()> {
        let Ece { vendor_id, options } = self.id.parts.lock().ece;
        let mut ece = ibv_ece { vendor_id, options, comp_mask: 0 };
        if vendor_id == 0 {
            return Ok(());
        }
        // SAFETY: the id's queue pair; the structure is there.
        match unsafe { dispatch::set_ece(self.get(field!(qp)), &raw mut ece) } {
            0 | libc::EOPNOTSUPP => Ok(()),
            errno => Err(Failure::Io(std::io::Error::from_raw_os_error(errno))),
        }
    }

    /// Flushes the id's queue pair.
    pub(super) fn fail(&self) {
        let mut attr = ibv_qp_attr { qp_state: ERROR, ..ibv_qp_attr::default() };
        let _ = self.modify(&mut attr, STATE);
    }

    /// What a program asks for; its queue pair's numbers where it has one.
    ///
    /// # Safety
    /// `param` is null or points to the structure, its private data to as many bytes as it says.
    unsafe fn told(
        &self,
        param: *const rdma_conn_param,
        (responder, initiator): (u8, u8),
    ) -> Outcome<Conn> {
        // SAFETY: the caller's promise; the queue pair is the id's.
        unsafe {
            let qp = self.get(field!(qp)).as_ref();
            let default = |asked: u8, most: u8| if asked == MOST { most } else { asked };
            let mut conn = Conn {
                responder_resources: responder,
                initiator_depth: initiator,
                retry_count: RETRIES,
                rnr_retry_count: RETRIES,
                ..Conn::default()
            };
            if let Some(param) = param.as_ref() {
                conn.responder_resources = default(param.responder_resources, responder);
                conn.initiator_depth = default(param.initiator_depth, initiator);
                conn.flow_control = param.flow_control;
                conn.retry_count = param.retry_count;
                conn.rnr_retry_count = param.rnr_retry_count;
                (conn.qpn, conn.srq) = (param.qp_num, param.srq);
                if !param.private_data.is_null() {
                    let len = param.private_data_len.into();
                    conn.data =
                        slice::from_raw_parts(param.private_data.cast::<u8>(), len).to_vec();
                }
            }
            if let Some(qp) = qp {
                (conn.qpn, conn.srq) = (qp.qp_num, (!qp.srq.is_null()).into());
            }
            Ok(conn)
        }
    }
}

pub(in crate::cm) unsafe fn connect(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    fail::number("rdma_connect", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        let most = handle.device()?.most;
        // SAFETY: the caller's promise.
        let mut conn = unsafe { handle.told(param, most)? };
        let preface = handle.id.parts.lock().preface.clone();
        conn.data.splice(0..0, preface);
        let ece = handle.id.parts.lock().ece;
        handle.id.issue(&cm::connect(handle.id.number(), &conn, ece))?;
        handle.complete()?;
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn accept(id: *mut rdma_cm_id, param: *mut rdma_conn_param) -> c_int {
    fail::number("rdma_accept", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        let most = handle.device()?.most;
        let asked = handle.id.parts.lock().asked.unwrap_or(most);
        let limits = (asked.0.min(most.0), asked.1.min(most.1));
        // SAFETY: the caller's promise.
        let conn = unsafe { handle.told(param, limits)? };
        if !handle.is_datagram() {
            handle.establish(Some(conn.responder_resources), Some(conn.initiator_depth))?;
        }
        let name = handle.c.expose_provenance() as u64;
        let ece = handle.id.parts.lock().ece;
        let accepted = handle.id.issue(&cm::accept(handle.id.number(), name, Some(&conn), ece));
        if accepted.is_err() {
            handle.fail();
        }
        accepted?;
        // A datagram service is looked up and that is all: no event follows.
        if !handle.is_datagram() {
            handle.complete()?;
        }
        Ok(0)
    })
}

/// # Safety
/// As for [`objects::find`]; `data` is null or points to `len` bytes.
unsafe fn refuse(
    id: *mut rdma_cm_id,
    data: *const c_void,
    len: u8,
    reason: Reason,
) -> Outcome<c_int> {
    // SAFETY: the caller's promise.
    let handle = unsafe { objects::find(id)? };
    let data = match data.is_null() {
        true => &[],
        // SAFETY: the caller's promise.
        false => unsafe { slice::from_raw_parts(data.cast::<u8>(), len.into()) },
    };
    handle.id.issue(&cm::reject(handle.id.number(), data, reason))?;
    Ok(0)
}

pub(in crate::cm) unsafe fn reject(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's promise.
    fail::number("rdma_reject", || unsafe { refuse(id, data, len, Reason::Consumer) })
}

pub(in crate::cm) unsafe fn reject_ece(id: *mut rdma_cm_id, data: *const c_void, len: u8) -> c_int {
    // SAFETY: the caller's promise.
    fail::number("rdma_reject_ece", || unsafe { refuse(id, data, len, Reason::VendorOption) })
}

pub(in crate::cm) unsafe fn set_local_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    fail::number("rdma_set_local_ece", || {
        // SAFETY: the caller's promise.
        let (handle, ece) = unsafe { (objects::find(id)?, &*given("ece", ece)?) };
        handle.without_qp()?;
        if ece.vendor_id == 0 || ece.comp_mask != 0 {
            let value = if ece.vendor_id == 0 { 0 } else { ece.comp_mask };
            return Err(Failure::Argument { what: "vendor_id or comp_mask", value: value.into() });
        }
        handle.id.parts.lock().ece = Ece { vendor_id: ece.vendor_id, options: ece.options };
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn get_remote_ece(id: *mut rdma_cm_id, ece: *mut ibv_ece) -> c_int {
    fail::number("rdma_get_remote_ece", || {
        // SAFETY: the caller's promise.
        let (handle, ece) = unsafe { (objects::find(id)?, given("ece", ece)?) };
        handle.without_qp()?;
        let Ece { vendor_id, options } = handle.id.parts.lock().peer_ece;
        // SAFETY: the caller's promise.
        unsafe { ece.write(ibv_ece { vendor_id, options, comp_mask: 0 }) };
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn disconnect(id: *mut rdma_cm_id) -> c_int {
    fail::number("rdma_disconnect", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        handle.fail();
        handle.id.issue(&cm::disconnect(handle.id.number()))?;
        handle.complete()?;
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn establish(id: *mut rdma_cm_id) -> c_int {
    fail::number("rdma_establish", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        if !handle.get(field!(qp)).is_null() {
            return Err(Failure::Argument { what: "queue pair of the id, not null but", value: 1 });
        }
        handle.id.issue(&cm::accept(handle.id.number(), 0, None, Ece::default()))?;
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn notify(id: *mut rdma_cm_id, event: u32) -> c_int {
    fail::number("rdma_notify", || {
        // SAFETY: the caller's promise.
        let handle = unsafe { objects::find(id)? };
        handle.id.issue(&cm::notify(handle.id.number(), event))?;
        Ok(0)
    })
}

pub(in crate::cm) unsafe fn init_qp_attr(
    id: *mut rdma_cm_id,
    attr: *mut ibv_qp_attr,
    mask: *mut c_int,
) -> c_int {
    fail::number("rdma_init_qp_attr", || {
        let (attr, mask) = (given("qp_attr", attr)?, given("qp_attr_mask", mask)?);
        // SAFETY: the caller's promise.
        unsafe {
            let handle = objects::find(id)?;
            let (found, named) = handle.attributes((&raw const (*attr).qp_state).read())?;
            found.write_without_rate_limit(attr);
            mask.write(named);
        }
        Ok(0)
    })
}
