//! The extended way to poll: `ibv_start_poll`, `ibv_next_poll`, `ibv_end_poll`, and one call for
//! each field (ibv_create_cq_ex(3)).

use std::ffi::{c_int, c_void};
use std::mem::{self, ManuallyDrop};

use ironverbs::raw as soft;
use ironverbs_sys::biased::Mutex;

use crate::abi::*;
use crate::convert;
use crate::cq;
use crate::fail::{self, Failure, Outcome, swift};
use crate::objects::{CqExtra, find};
use crate::pool::{Object, Ref};

/// The completion between start and end. Locked in between, unless the CQ is for one thread.
#[derive(Default)]
pub(crate) struct Cursor {
    /// What `ibv_start_poll` found, as the device has it: each reader makes of it what it is asked for.
    first: Option<(soft::Wc, soft::Stamp)>,
    /// What `ibv_next_poll` reads from.
    lent: soft::Lent,
}

impl Cursor {
    /// The completion that it is at.
    #[inline]
    fn current(&self) -> Option<(&soft::Wc, &soft::Stamp)> {
        self.lent.current().or(self.first.as_ref().map(|(wc, stamp)| (wc, stamp)))
    }
}

/// ibv_create_cq_ex(3).
///
/// # Safety
/// As for [`crate::objects::find`]; `init` is null or points to the structure.
pub(crate) unsafe extern "C" fn create_cq_ex(
    context: *mut ibv_context,
    init: *mut ibv_cq_init_attr_ex,
) -> *mut ibv_cq_ex {
    fail::object("ibv_create_cq_ex", || {
        if init.is_null() {
            return Err(Failure::Null { what: "cq_attr" });
        }
        // SAFETY: the caller's promise.
        let init = unsafe { *init };
        if init.wc_flags & !(ALL & !TM_INFO) != 0 {
            return Err(Failure::Unsupported { what: "a completion field asked for" });
        }
        let known = IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD;
        if init.comp_mask & !known != 0 {
            return Err(Failure::Unsupported { what: "an attribute of the completion queue" });
        }
        let flags = match init.comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS {
            0 => 0,
            _ => init.flags,
        };
        if flags & !(IBV_CREATE_CQ_ATTR_SINGLE_THREADED | IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN) != 0 {
            return Err(Failure::Unsupported { what: "a creation flag" });
        }
        let domain = match init.comp_mask & IBV_CQ_INIT_ATTR_MASK_PD {
            0 => None,
            // SAFETY: the caller's promise.
            _ => Some(unsafe { parent_domain(init.parent_domain)? }),
        };
        let options = soft::CqOptions {
            stamps: init.wc_flags & (COMPLETION_TIMESTAMP | COMPLETION_TIMESTAMP_WALLCLOCK) != 0,
            ignore_overrun: flags & IBV_CREATE_CQ_ATTR_IGNORE_OVERRUN != 0,
        };
        let cursor = Some(Mutex::new(Cursor::default()));
        let extra = CqExtra { cursor, domain, ..Default::default() };
        // SAFETY: the caller's promise.
        unsafe {
            cq::create(
                context,
                init.cqe,
                init.cq_context,
                init.channel,
                init.comp_vector,
                options,
                extra,
                |object| install(object, init.wc_flags),
            )
        }
    })
}

/// # Safety
/// As for [`find`].
unsafe fn parent_domain(pd: *const ibv_pd) -> Outcome<soft::Hold> {
    // SAFETY: the caller's promise.
    let found = unsafe { find::<ibv_pd>(pd)? };
    if !found.inner.is_parent() {
        return Err(Failure::Argument { what: "parent_domain: a plain domain", value: 0 });
    }
    Ok(found.inner.hold()?)
}

const BYTE_LEN: u64 = 1;
const IMM: u64 = 1 << 1;
const QP_NUM: u64 = 1 << 2;
const SRC_QP: u64 = 1 << 3;
const SLID: u64 = 1 << 4;
const SL: u64 = 1 << 5;
const DLID_PATH_BITS: u64 = 1 << 6;
const COMPLETION_TIMESTAMP: u64 = 1 << 7;
const CVLAN: u64 = 1 << 8;
const FLOW_TAG: u64 = 1 << 9;
const TM_INFO: u64 = 1 << 10;
const COMPLETION_TIMESTAMP_WALLCLOCK: u64 = 1 << 11;
const ALL: u64 = (1 << 12) - 1;

/// # Safety
/// `cq` points to a structure that nobody else sees yet.
unsafe fn install(cq: *mut ibv_cq_ex, wc_flags: u64) {
    // SAFETY: the caller's promise.
    let cq = unsafe { &mut *cq };
    let asked = |bit: u64| wc_flags & bit != 0;
    cq.start_poll = Some(start_poll);
    cq.next_poll = Some(next_poll);
    cq.end_poll = Some(end_poll);
    cq.read_opcode = Some(read_opcode);
    cq.read_vendor_err = Some(read_vendor_err);
    cq.read_wc_flags = Some(read_wc_flags);
    cq.read_byte_len = asked(BYTE_LEN).then_some(read_byte_len as _);
    cq.read_imm_data = asked(IMM).then_some(read_imm_data as _);
    cq.read_qp_num = asked(QP_NUM).then_some(read_qp_num as _);
    cq.read_src_qp = asked(SRC_QP).then_some(read_src_qp as _);
    cq.read_slid = asked(SLID).then_some(read_slid as _);
    cq.read_sl = asked(SL).then_some(read_sl as _);
    cq.read_dlid_path_bits = asked(DLID_PATH_BITS).then_some(read_dlid_path_bits as _);
    cq.read_completion_ts = asked(COMPLETION_TIMESTAMP).then_some(read_completion_ts as _);
    cq.read_cvlan = asked(CVLAN).then_some(read_cvlan as _);
    cq.read_flow_tag = asked(FLOW_TAG).then_some(read_flow_tag as _);
    cq.read_completion_wallclock_ns =
        asked(COMPLETION_TIMESTAMP_WALLCLOCK).then_some(read_completion_wallclock_ns as _);
}

/// The CQ of a call that is, or begins, between start and end.
///
/// # Safety
/// As for [`crate::objects::find`], and nobody destroys the CQ meanwhile, as the manual demands.
#[inline]
unsafe fn opened<'a>(
    cq: *mut ibv_cq_ex,
) -> Outcome<(ManuallyDrop<Ref<'a, ibv_cq_ex>>, &'a Mutex<Cursor>)> {
    // SAFETY: the caller's promise.
    let found = unsafe { ibv_cq_ex::pool().peek(cq.cast())? };
    let Some(cursor) = found.extra.cursor.as_ref().map(std::ptr::from_ref) else {
        return Err(Failure::Unsupported { what: "ibv_start_poll on this CQ" });
    };
    // SAFETY: the view stays for as long as nobody destroys the CQ.
    Ok((found, unsafe { &*cursor }))
}

/// The same between start and end, with the cursor, which the caller holds locked.
///
/// # Safety
/// As for [`opened`].
#[inline]
unsafe fn reading<'a>(
    cq: *mut ibv_cq_ex,
) -> Outcome<(ManuallyDrop<Ref<'a, ibv_cq_ex>>, &'a mut Cursor)> {
    // SAFETY: the caller's promise.
    let (found, mutex) = unsafe { opened(cq)? };
    if !mutex.is_locked() {
        return Err(Failure::Argument { what: "order of polling calls", value: 0 });
    }
    // SAFETY: the caller is between start and end, hence holds the lock.
    Ok((found, unsafe { &mut *mutex.data_ptr() }))
}

/// Shows the completion that was just read.
///
/// # Safety
/// `cq` is an object of ours.
#[inline]
unsafe fn show(cq: *mut ibv_cq_ex, wc: &soft::Wc) {
    // SAFETY: the place is alive; the fields are ours to write.
    unsafe { ((*cq).status, (*cq).wr_id) = (wc.status as u32, wc.wr_id) };
}

/// For calls that return 0, ENOENT, or the value of errno. ENOENT where there was no completion is how they say that there
/// is nothing: no failure.
#[inline]
fn answer(verb: &'static str, work: impl FnOnce() -> Outcome<c_int>) -> c_int {
    swift::returned(verb, work).unwrap_or_else(|errno| errno)
}

unsafe extern "C" fn start_poll(cq: *mut ibv_cq_ex, attr: *mut c_void) -> c_int {
    // SAFETY: the caller's promise: `attr` is null or starts with its comp_mask.
    let unknown_attr = !attr.is_null() && unsafe { *attr.cast::<u32>() } != 0;
    answer("ibv_start_poll", || {
        // SAFETY: the caller's promise.
        let (found, mutex) = unsafe { opened(cq)? };
        if unknown_attr {
            return Err(Failure::Argument { what: "comp_mask", value: 1 });
        }
        let mut cursor = mutex.lock();
        let first = &mut cursor.first;
        let taken = found.inner.poll_stamped(1, |wc, stamp| {
            *first = Some((*wc, *stamp));
            // SAFETY: it was found.
            unsafe { show(cq, wc) };
        })?;
        if taken == 0 {
            *first = None;
            return Ok(libc::ENOENT);
        }
        // `end_poll` unlocks; a start that fails is not followed by an end.
        mem::forget(cursor);
        Ok(0)
    })
}

unsafe extern "C" fn next_poll(cq: *mut ibv_cq_ex) -> c_int {
    // SAFETY: the caller's promise.
    if let Ok((_, cursor)) = unsafe { reading(cq) }
        && let Some((wc, _)) = cursor.lent.next()
    {
        // SAFETY: it was found.
        unsafe { show(cq, wc) };
        return 0;
    }
    // SAFETY: the caller's promise.
    unsafe { next_of_queue(cq) }
}

/// `ibv_next_poll` where nothing is left of what was taken out of the queue.
///
/// # Safety
/// As for [`reading`].
#[inline(never)]
unsafe fn next_of_queue(cq: *mut ibv_cq_ex) -> c_int {
    answer("ibv_next_poll", || {
        // SAFETY: the caller's promise.
        let (found, Cursor { first, lent }) = unsafe { reading(cq)? };
        *first = None;
        match found.inner.lend(lent)?.then(|| lent.next()).flatten() {
            Some((wc, _)) => {
                // SAFETY: it was found.
                unsafe { show(cq, wc) };
                Ok(0)
            }
            None => Ok(libc::ENOENT),
        }
    })
}

unsafe extern "C" fn end_poll(cq: *mut ibv_cq_ex) {
    answer("ibv_end_poll", || {
        // SAFETY: the caller's promise.
        let (found, cursor) = unsafe { reading(cq)? };
        if cursor.lent.is_lent() {
            found.inner.take_back(&mut cursor.lent);
        }
        if let Some(mutex) = &found.extra.cursor {
            // SAFETY: the caller started the polling, hence holds the lock.
            unsafe { mutex.force_unlock() };
        }
        Ok(0)
    });
}

/// A field of the completion that the cursor is at; the default when it is at none.
///
/// # Safety
/// As for [`crate::objects::find`]; the caller is between start and end.
#[inline]
unsafe fn field<T: Default>(cq: *mut ibv_cq_ex, get: impl FnOnce(&ibv_wc) -> T) -> T {
    // SAFETY: the caller's promise.
    let Ok((_found, mutex)) = (unsafe { opened(cq) }) else { return T::default() };
    // SAFETY: between start and end the caller holds the lock.
    match unsafe { (*mutex.data_ptr()).current() } {
        Some((wc, _)) => get(&convert::c_wc(wc)),
        None => T::default(),
    }
}

/// The time of the completion that the cursor is at.
///
/// # Safety
/// As for [`field`].
unsafe fn stamp(cq: *mut ibv_cq_ex) -> soft::Stamp {
    // SAFETY: the caller's promise.
    let Ok((_found, mutex)) = (unsafe { opened(cq) }) else { return Default::default() };
    // SAFETY: between start and end the caller holds the lock.
    unsafe { (*mutex.data_ptr()).current().map(|(_, stamp)| *stamp).unwrap_or_default() }
}

unsafe extern "C" fn read_completion_ts(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { stamp(cq).raw }
}

unsafe extern "C" fn read_completion_wallclock_ns(cq: *mut ibv_cq_ex) -> u64 {
    // SAFETY: the caller's promise.
    unsafe { stamp(cq).wall }
}

/// No VLAN tag is ever taken off a packet.
unsafe extern "C" fn read_cvlan(_: *mut ibv_cq_ex) -> u16 {
    0
}

/// A frame's stands where other completions have immediate data.
unsafe extern "C" fn read_flow_tag(cq: *mut ibv_cq_ex) -> u32 {
    const IMMEDIATE: u32 = soft::WcFlags::WITH_IMM.union(soft::WcFlags::WITH_INV).bits();
    let is_frame = |wc: &ibv_wc| wc.wc_flags & IMMEDIATE == 0 && wc.opcode == RECV;
    // SAFETY: the caller's promise.
    unsafe { field(cq, |wc| if is_frame(wc) { wc.imm_data } else { 0 }) }
}

/// IBV_WC_RECV.
const RECV: u32 = 128;

macro_rules! readers {
    ($($name:ident: $type:ty = $field:ident;)*) => {$(
        unsafe extern "C" fn $name(cq: *mut ibv_cq_ex) -> $type {
            // SAFETY: the caller's promise.
            unsafe { field(cq, |wc| wc.$field.into()) }
        }
    )*};
}

readers! {
    read_opcode: u32 = opcode;
    read_vendor_err: u32 = vendor_err;
    read_byte_len: u32 = byte_len;
    read_imm_data: u32 = imm_data;
    read_qp_num: u32 = qp_num;
    read_src_qp: u32 = src_qp;
    read_wc_flags: u32 = wc_flags;
    read_slid: u32 = slid;
    read_sl: u8 = sl;
    read_dlid_path_bits: u8 = dlid_path_bits;
}
