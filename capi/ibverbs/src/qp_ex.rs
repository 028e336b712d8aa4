//! The extended way to post sends: `ibv_wr_start`, one call for each request, `ibv_wr_complete`
//! (ibv_wr_post(3)).
//!
//! Requests are gathered beside the QP and posted by `ibv_wr_complete`, all or none. Between start
//! and complete the QP's batch is locked, as the manual says.

use std::ffi::{c_int, c_void};
use std::mem::{self, ManuallyDrop};

use ironverbs::raw as soft;
use ironverbs_sys::biased::Mutex;
use soft::{MwType, Payload, PostError, QpCap, QpType, SendFlags, SendWr, Sge, WrOpcode};

use crate::abi::*;
use crate::fail::{self, Failure, Outcome, swift};
use crate::objects::{QpExtra, find};
use crate::pool::{Object, Ref};
use crate::post::Element;
use crate::{convert, mw, post};

/// The requests between start and complete.
#[derive(Default)]
pub(crate) struct Batch {
    requests: Vec<Request>,
    /// Elements of all requests, one after another.
    sges: Vec<Sge>,
    /// Inline data of all requests, one after another.
    inline: Vec<u8>,
    failed: Option<Failure>,
}

struct Request {
    wr: SendWr,
    data: Data,
}

enum Data {
    Sges { first: usize, count: usize },
    Inline { first: usize, len: usize },
}

impl Batch {
    fn clear(&mut self) {
        self.requests.clear();
        self.sges.clear();
        self.inline.clear();
        if self.failed.is_some() {
            self.failed = None;
        }
    }

    /// Finds what would be refused when it is posted, before the first request is.
    fn check(&self, request: &Request, qp_type: QpType) -> Result<(), PostError> {
        let wr = &request.wr;
        if qp_type == QpType::Ud && wr.ud.is_none() {
            return Err(PostError::NoDestination);
        }
        let is_atomic = matches!(wr.opcode, WrOpcode::CompareSwap | WrOpcode::FetchAdd);
        match request.data {
            Data::Inline { .. } if is_atomic || wr.opcode == WrOpcode::Read => {
                Err(PostError::ReadInline(wr.opcode))
            }
            Data::Sges { first, count } if is_atomic => {
                let list = self.sges.get(first..first + count).unwrap_or_default();
                match list.iter().map(|sge| u64::from(sge.len)).sum() {
                    8 => Ok(()),
                    asked => Err(PostError::AtomicLength { asked }),
                }
            }
            _ => Ok(()),
        }
    }

    /// Hands each request and its data to `push`.
    #[inline]
    fn each(
        &self,
        mut push: impl FnMut(&SendWr, Payload<'_>) -> Result<(), PostError>,
    ) -> Outcome<()> {
        for Request { wr, data } in &self.requests {
            match *data {
                Data::Sges { first, count } => {
                    let list = self.sges.get(first..first + count).unwrap_or_default();
                    push(wr, Payload::Sges(list))?;
                }
                Data::Inline { first, len } => {
                    let data = self.inline.get(first..first + len).unwrap_or_default();
                    let mut copy = |to: &mut [u8]| to.copy_from_slice(data);
                    push(wr, Payload::Inline { len, copy: &mut copy })?;
                }
            }
        }
        Ok(())
    }

    /// The request that the setters are about.
    #[inline]
    fn last(&mut self) -> Outcome<&mut Request> {
        match self.requests.last_mut() {
            Some(request) => Ok(request),
            None => Err(Failure::Argument { what: "order of ibv_wr calls", value: 0 }),
        }
    }
}

const OF_RC: u64 = IBV_QP_EX_WITH_RDMA_READ
    | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
    | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD
    | IBV_QP_EX_WITH_SEND_WITH_INV;
const OF_UC: u64 = IBV_QP_EX_WITH_RDMA_WRITE
    | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM
    | IBV_QP_EX_WITH_LOCAL_INV
    | IBV_QP_EX_WITH_BIND_MW;
const OF_ALL: u64 = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM;

/// The private part of a QP with these operations, if the type has them all.
pub(crate) fn extra(qp_type: QpType, ops: u64) -> Outcome<QpExtra> {
    let possible = match qp_type {
        QpType::Rc => IBV_QP_EX_WITH_ATOMIC_WRITE | OF_RC | OF_UC | OF_ALL,
        QpType::XrcSend => OF_RC | OF_UC | OF_ALL,
        QpType::Uc => OF_UC | OF_ALL,
        _ => OF_ALL,
    };
    if ops & !possible != 0 {
        return Err(Failure::Unsupported { what: "one of the send operations asked for" });
    }
    Ok(with_batch())
}

/// The private part of a QP with send operations.
pub(crate) fn with_batch() -> QpExtra {
    QpExtra { batch: Some(Mutex::new(Batch::default())) }
}

/// A kind of QP whose sends can be posted this way.
trait Poster: Object<Public = ibv_qp> {
    fn batch(view: &Self::View) -> Option<&Mutex<Batch>>;
    fn cap(view: &Self::View) -> QpCap;
    /// Posts the requests of a batch, all or none.
    fn post(view: &Self::View, batch: &Batch) -> Outcome<()>;
}

impl Poster for ibv_qp_ex {
    fn batch(view: &Self::View) -> Option<&Mutex<Batch>> {
        view.extra.batch.as_ref()
    }

    fn cap(view: &Self::View) -> QpCap {
        view.inner.cap()
    }

    fn post(view: &Self::View, batch: &Batch) -> Outcome<()> {
        // Of a single one what posting it finds is enough.
        let several = batch.requests.len() > 1;
        if several {
            for request in &batch.requests {
                batch.check(request, view.inner.qp_type())?;
            }
        }
        let mut guard = view.inner.post_batch();
        if several && batch.requests.len() > guard.room() {
            return Err(PostError::QueueFull { max: view.inner.cap().max_send_wr }.into());
        }
        batch.each(|wr, data| guard.push(wr, data))
    }
}

impl Poster for raw_qp {
    fn batch(view: &Self::View) -> Option<&Mutex<Batch>> {
        view.extra.batch.as_ref()
    }

    fn cap(view: &Self::View) -> QpCap {
        view.inner.cap()
    }

    fn post(view: &Self::View, batch: &Batch) -> Outcome<()> {
        let mut guard = view.inner.post_batch();
        if batch.requests.len() > guard.room() {
            return Err(PostError::QueueFull { max: view.inner.cap().max_send_wr }.into());
        }
        batch.each(|wr, data| guard.push(wr, data))
    }
}

/// As [`install`], for a raw packet queue pair.
///
/// # Safety
/// As for [`install`].
pub(crate) unsafe fn install_raw(qp: *mut ibv_qp_ex, ops: u64) {
    // SAFETY: the caller's promise.
    unsafe { install_common::<raw_qp>(qp, ops) }
}

/// # Safety
/// As for [`install`].
unsafe fn install_common<C: Poster>(qp: *mut ibv_qp_ex, ops: u64) {
    // SAFETY: the caller's promise.
    let qp = unsafe { &mut *qp };
    qp.wr_send = (ops & IBV_QP_EX_WITH_SEND != 0).then_some(send::<C> as _);
    qp.wr_set_inline_data = Some(set_inline_data::<C>);
    qp.wr_set_inline_data_list = Some(set_inline_data_list::<C>);
    qp.wr_set_sge = Some(set_sge::<C>);
    qp.wr_set_sge_list = Some(set_sge_list::<C>);
    qp.wr_start = Some(start::<C>);
    qp.wr_complete = Some(complete::<C>);
    qp.wr_abort = Some(abort::<C>);
}

/// Fills the table of a QP. Operations that were not asked for stay empty.
///
/// # Safety
/// `qp` points to a structure that nobody else sees yet.
pub(crate) unsafe fn install(qp: *mut ibv_qp_ex, ops: u64) {
    // SAFETY: the caller's promise.
    unsafe { install_common::<ibv_qp_ex>(qp, ops) };
    // SAFETY: the caller's promise.
    let qp = unsafe { &mut *qp };
    let asked = |bit: u64| ops & bit != 0;
    qp.wr_atomic_cmp_swp = asked(IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP).then_some(atomic_cmp_swp as _);
    qp.wr_atomic_fetch_add =
        asked(IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD).then_some(atomic_fetch_add as _);
    qp.wr_atomic_write = asked(IBV_QP_EX_WITH_ATOMIC_WRITE).then_some(atomic_write as _);
    qp.wr_rdma_read = asked(IBV_QP_EX_WITH_RDMA_READ).then_some(rdma_read as _);
    qp.wr_rdma_write = asked(IBV_QP_EX_WITH_RDMA_WRITE).then_some(rdma_write as _);
    qp.wr_rdma_write_imm = asked(IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM).then_some(rdma_write_imm as _);
    qp.wr_send_imm = asked(IBV_QP_EX_WITH_SEND_WITH_IMM).then_some(send_imm as _);
    qp.wr_send_inv = asked(IBV_QP_EX_WITH_SEND_WITH_INV).then_some(send_inv as _);
    qp.wr_local_inv = asked(IBV_QP_EX_WITH_LOCAL_INV).then_some(local_inv as _);
    qp.wr_bind_mw = asked(IBV_QP_EX_WITH_BIND_MW).then_some(bind_mw as _);
    qp.wr_set_ud_addr = Some(set_ud_addr);
    qp.wr_set_xrc_srqn = Some(set_xrc_srqn);
}

/// ibv_qp_to_qp_ex: null for a QP without send operations.
///
/// # Safety
/// As for [`find`].
pub(crate) unsafe extern "C" fn qp_to_qp_ex(qp: *mut ibv_qp) -> *mut ibv_qp_ex {
    fail::object("ibv_qp_to_qp_ex", || {
        // SAFETY: the caller's promise.
        let has_batch = match unsafe { find::<ibv_qp_ex>(qp) } {
            Ok(found) => found.extra.batch.is_some(),
            // SAFETY: the caller's promise.
            Err(failure) => match unsafe { find::<raw_qp>(qp) } {
                Ok(found) => found.extra.batch.is_some(),
                Err(_) => return Err(failure),
            },
        };
        match has_batch {
            true => Ok(qp.cast()),
            false => Err(Failure::Unsupported { what: "ibv_wr on a QP without send_ops_flags" }),
        }
    })
}

/// The QP of a call and its batch.
///
/// # Safety
/// As for [`find`].
#[inline]
unsafe fn opened<'a, C: Poster>(
    qp: *mut ibv_qp_ex,
) -> Outcome<(ManuallyDrop<Ref<'a, C>>, &'a Mutex<Batch>)> {
    // SAFETY: the caller's promise; the manual has nobody destroy the QP from start to complete.
    let found = unsafe { C::pool().peek(qp.cast())? };
    let Some(batch) = C::batch(&found).map(std::ptr::from_ref) else {
        return Err(Failure::Unsupported { what: "ibv_wr on this queue pair" });
    };
    // SAFETY: the view stays for as long as `found`, which every caller keeps beside the batch.
    Ok((found, unsafe { &*batch }))
}

/// Runs `work` on the batch between start and complete; what fails is reported by complete.
///
/// # Safety
/// As for [`find`]; the caller is between start and complete, as the manual demands.
#[inline]
unsafe fn within<C: Poster>(
    qp: *mut ibv_qp_ex,
    work: impl FnOnce(&mut Batch, &Ref<'_, C>) -> Outcome<()>,
) {
    swift::silent("ibv_wr", || {
        // SAFETY: the caller's promise.
        let (found, mutex) = unsafe { opened::<C>(qp)? };
        if !mutex.is_locked() {
            return Err(Failure::Argument { what: "order of ibv_wr calls", value: 0 });
        }
        // SAFETY: it was locked by `start`, by the thread that is between start and complete: this.
        let batch = unsafe { &mut *mutex.data_ptr() };
        if batch.failed.is_none()
            && let Err(failure) = work(batch, &found)
        {
            batch.failed = Some(failure);
        }
        Ok(())
    });
}

unsafe extern "C" fn start<C: Poster>(qp: *mut ibv_qp_ex) {
    swift::silent("ibv_wr_start", || {
        // SAFETY: the caller's promise.
        let (_found, mutex) = unsafe { opened::<C>(qp)? };
        let mut batch = mutex.lock();
        batch.clear();
        // `complete` or `abort` unlocks.
        mem::forget(batch);
        Ok(())
    });
}

unsafe extern "C" fn abort<C: Poster>(qp: *mut ibv_qp_ex) {
    swift::silent("ibv_wr_abort", || {
        // SAFETY: the caller's promise.
        let (_found, mutex) = unsafe { opened::<C>(qp)? };
        // SAFETY: the caller started the batch.
        unsafe { unlock(mutex) }
    });
}

/// # Safety
/// The caller has started the batch.
unsafe fn unlock(mutex: &Mutex<Batch>) -> Outcome<()> {
    if !mutex.is_locked() {
        return Err(Failure::Argument { what: "order of ibv_wr calls", value: 0 });
    }
    // SAFETY: locked by `start`, whose guard was forgotten.
    unsafe { mutex.force_unlock() };
    Ok(())
}

unsafe extern "C" fn complete<C: Poster>(qp: *mut ibv_qp_ex) -> c_int {
    swift::status("ibv_wr_complete", || {
        // SAFETY: the caller's promise.
        let (found, mutex) = unsafe { opened::<C>(qp)? };
        if !mutex.is_locked() {
            return Err(Failure::Argument { what: "order of ibv_wr calls", value: 0 });
        }
        // SAFETY: as in `within`.
        let done = post(&found, unsafe { &mut *mutex.data_ptr() });
        // SAFETY: as above.
        unsafe { unlock(mutex)? };
        done
    })
}

#[inline]
fn post<C: Poster>(found: &Ref<'_, C>, batch: &mut Batch) -> Outcome<()> {
    match batch.failed.take() {
        Some(failure) => Err(failure),
        None => C::post(found, batch),
    }
}

/// Adds a request that takes `wr_id` and `wr_flags` from the structure, as the manual says.
///
/// # Safety
/// As for [`within`].
#[inline]
unsafe fn add<C: Poster>(qp: *mut ibv_qp_ex, opcode: WrOpcode, set: impl FnOnce(&mut SendWr)) {
    // SAFETY: the caller's promise; the fields are the program's to write, between its calls.
    unsafe {
        within::<C>(qp, |batch, _| {
            let object = qp;
            let mut wr = SendWr::new(
                (*object).wr_id,
                opcode,
                SendFlags::from_bits_truncate((*object).wr_flags),
            );
            // Only the setters of inline data make a request inline.
            wr.flags.remove(SendFlags::INLINE);
            set(&mut wr);
            let first = batch.sges.len();
            batch.requests.push(Request { wr, data: Data::Sges { first, count: 0 } });
            Ok(())
        });
    }
}

unsafe extern "C" fn send<C: Poster>(qp: *mut ibv_qp_ex) {
    // SAFETY: the caller's promise.
    unsafe { add::<C>(qp, WrOpcode::Send, |_| ()) }
}

unsafe extern "C" fn send_imm(qp: *mut ibv_qp_ex, imm: u32) {
    // SAFETY: the caller's promise.
    unsafe { add::<ibv_qp_ex>(qp, WrOpcode::SendWithImm, |wr| wr.imm = imm.to_ne_bytes()) }
}

unsafe extern "C" fn send_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the caller's promise.
    unsafe { add::<ibv_qp_ex>(qp, WrOpcode::SendWithInv, |wr| wr.invalidate_rkey = rkey) }
}

unsafe extern "C" fn local_inv(qp: *mut ibv_qp_ex, rkey: u32) {
    // SAFETY: the caller's promise.
    unsafe { add::<ibv_qp_ex>(qp, WrOpcode::LocalInv, |wr| wr.invalidate_rkey = rkey) }
}

unsafe extern "C" fn bind_mw(
    qp: *mut ibv_qp_ex,
    mw: *mut ibv_mw,
    rkey: u32,
    info: *const ibv_mw_bind_info,
) {
    // SAFETY: the caller's promise.
    unsafe {
        add::<ibv_qp_ex>(qp, WrOpcode::BindMw, |_| ());
        within::<ibv_qp_ex>(qp, |batch, _| {
            if info.is_null() {
                return Err(Failure::Null { what: "bind_info" });
            }
            let bind = mw::binding(MwType::Two, mw, rkey, &*info)?;
            let request = batch.last()?;
            request.wr = SendWr::bind(request.wr.wr_id, request.wr.flags, &bind);
            Ok(())
        });
    }
}

unsafe extern "C" fn rdma_read(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the caller's promise.
    unsafe { add::<ibv_qp_ex>(qp, WrOpcode::Read, |wr| (wr.rkey, wr.remote_addr) = (rkey, addr)) }
}

unsafe extern "C" fn rdma_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64) {
    // SAFETY: the caller's promise.
    unsafe { add::<ibv_qp_ex>(qp, WrOpcode::Write, |wr| (wr.rkey, wr.remote_addr) = (rkey, addr)) }
}

unsafe extern "C" fn rdma_write_imm(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, imm: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        add::<ibv_qp_ex>(qp, WrOpcode::WriteWithImm, |wr| {
            (wr.rkey, wr.remote_addr, wr.imm) = (rkey, addr, imm.to_ne_bytes());
        })
    }
}

unsafe extern "C" fn atomic_cmp_swp(
    qp: *mut ibv_qp_ex,
    rkey: u32,
    addr: u64,
    compare: u64,
    swap: u64,
) {
    // SAFETY: the caller's promise.
    unsafe {
        add::<ibv_qp_ex>(qp, WrOpcode::CompareSwap, |wr| {
            (wr.rkey, wr.remote_addr, wr.compare_add, wr.swap) = (rkey, addr, compare, swap);
        })
    }
}

unsafe extern "C" fn atomic_fetch_add(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, add_: u64) {
    // SAFETY: the caller's promise.
    unsafe {
        add::<ibv_qp_ex>(qp, WrOpcode::FetchAdd, |wr| {
            (wr.rkey, wr.remote_addr, wr.compare_add) = (rkey, addr, add_);
        })
    }
}

unsafe extern "C" fn atomic_write(qp: *mut ibv_qp_ex, rkey: u32, addr: u64, value: *const c_void) {
    // SAFETY: the caller's promise: eight readable bytes, which the call copies.
    unsafe {
        add::<ibv_qp_ex>(qp, WrOpcode::AtomicWrite, |wr| {
            (wr.rkey, wr.remote_addr) = (rkey, addr);
        });
        within::<ibv_qp_ex>(qp, |batch, found| {
            inline(batch, found, &[ibv_data_buf { addr: value.cast_mut(), length: 8 }])
        });
    }
}

unsafe extern "C" fn set_ud_addr(qp: *mut ibv_qp_ex, ah: *mut ibv_ah, qpn: u32, qkey: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        within::<ibv_qp_ex>(qp, |batch, found| {
            batch.last()?.wr.ud = Some(post::destination(ah, qpn, qkey, &found.inner)?);
            Ok(())
        });
    }
}

unsafe extern "C" fn set_xrc_srqn(qp: *mut ibv_qp_ex, srqn: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        within::<ibv_qp_ex>(qp, |batch, _| {
            batch.last()?.wr.xrc_srqn = srqn;
            Ok(())
        });
    }
}

unsafe extern "C" fn set_sge<C: Poster>(qp: *mut ibv_qp_ex, lkey: u32, addr: u64, length: u32) {
    // SAFETY: the caller's promise.
    unsafe {
        within::<C>(qp, |batch, found| {
            if C::cap(found).max_send_sge == 0 {
                return Err(PostError::TooManySges { asked: 1, max: 0 }.into());
            }
            batch.last()?.data = Data::Sges { first: batch.sges.len(), count: 1 };
            batch.sges.push(Sge { addr, len: length, lkey });
            Ok(())
        })
    }
}

unsafe extern "C" fn set_sge_list<C: Poster>(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_sge,
) {
    // SAFETY: the caller's promise: the list has that many elements.
    unsafe {
        within::<C>(qp, |batch, found| {
            sges::<C>(batch, found, slice::<Element>(list.cast(), count, "list of elements")?)
        });
    }
}

/// # Safety
/// `list` points to `count` elements, unless that is 0.
unsafe fn slice<'a, T>(list: *const T, count: usize, what: &'static str) -> Outcome<&'a [T]> {
    match count {
        0 => Ok(&[]),
        _ if list.is_null() => Err(Failure::Null { what }),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(list, count) }),
    }
}

#[inline]
fn sges<C: Poster>(batch: &mut Batch, found: &Ref<'_, C>, list: &[Element]) -> Outcome<()> {
    let max = C::cap(found).max_send_sge;
    if list.len() > max as usize {
        return Err(PostError::TooManySges { asked: list.len(), max }.into());
    }
    let first = batch.sges.len();
    batch.sges.extend(list.iter().map(|sge| convert::sge(&sge.get())));
    batch.last()?.data = Data::Sges { first, count: list.len() };
    Ok(())
}

unsafe extern "C" fn set_inline_data<C: Poster>(
    qp: *mut ibv_qp_ex,
    addr: *mut c_void,
    length: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        within::<C>(qp, |batch, found| inline::<C>(batch, found, &[ibv_data_buf { addr, length }]));
    }
}

unsafe extern "C" fn set_inline_data_list<C: Poster>(
    qp: *mut ibv_qp_ex,
    count: usize,
    list: *const ibv_data_buf,
) {
    // SAFETY: the caller's promise: the list has that many elements, which name readable memory.
    unsafe {
        within::<C>(qp, |batch, found| inline::<C>(batch, found, slice(list, count, "buf_list")?))
    }
}

/// # Safety
/// The list names readable memory.
unsafe fn inline<C: Poster>(
    batch: &mut Batch,
    found: &Ref<'_, C>,
    list: &[ibv_data_buf],
) -> Outcome<()> {
    let max = C::cap(found).max_inline_data;
    let len = list.iter().fold(0_usize, |sum, buf| sum.saturating_add(buf.length));
    if len > max as usize {
        return Err(PostError::InlineTooLong { asked: len, max }.into());
    }
    let first = batch.inline.len();
    for buf in list {
        // SAFETY: the caller's promise.
        let data = unsafe { slice(buf.addr.cast::<u8>(), buf.length, "inline data")? };
        batch.inline.extend_from_slice(data);
    }
    let request = batch.last()?;
    request.wr.flags.insert(SendFlags::INLINE);
    request.data = Data::Inline { first, len };
    Ok(())
}
