//! Names that libibverbs got after version 44, as far as this device has what they are about.

use std::ffi::{c_int, c_void};
use std::os::fd::BorrowedFd;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use ironverbs::raw as soft;

use crate::abi::*;
use crate::fail::{self, Failure, Outcome};
use crate::mr;
use crate::objects::{self, MrExtra, View, find};
use crate::pool::{Object, Pool};

/// `struct ibv_buf`, which programs do not look into.
#[repr(C)]
pub(crate) struct ibv_buf {
    context: *mut ibv_context,
    handle: u32,
}

/// What keeps the domain of a buffer.
#[derive(Default)]
pub(crate) struct BufExtra {
    _domain: Option<soft::Hold>,
    /// The program's pointer to it. An address to compare, never read through.
    pd: usize,
}

objects::object!(ibv_buf, ibv_buf, View<soft::Memory, BufExtra>, "buffer");

const MASK_IOVA: u64 = 1;
const MASK_ADDR: u64 = 1 << 1;
const MASK_FD: u64 = 1 << 2;
const MASK_FD_OFFSET: u64 = 1 << 3;
const MASK_BUF: u64 = 1 << 5;

/// `struct ibv_mr_init_attr`; `buf` is there for who sets its bit.
#[repr(C)]
pub(crate) struct ibv_mr_init_attr {
    length: usize,
    access: c_int,
    comp_mask: u64,
    iova: u64,
    addr: *mut c_void,
    fd: c_int,
    fd_offset: u64,
    dmah: *mut c_void,
    buf: *mut ibv_buf,
}

/// ibv_alloc_buf(3): memory that peers on this host can map, if it becomes a region.
///
/// # Safety
/// As for [`objects::find`]; `buf` is null or has room for a pointer.
pub(crate) unsafe extern "C" fn alloc_buf(
    pd: *mut ibv_pd,
    size: usize,
    buf: *mut *mut ibv_buf,
) -> *mut c_void {
    fail::object("ibv_alloc_buf", || {
        if buf.is_null() {
            return Err(Failure::Null { what: "buf" });
        }
        // SAFETY: the caller's promise.
        let (domain, id) = unsafe { mr::domain(pd)? };
        if size == 0 {
            return Err(Failure::Argument { what: "size", value: 0 });
        }
        let memory = Arc::new(soft::Memory::allocate(size, true)?);
        let addr = memory.addr();
        let view = View {
            inner: memory,
            context: id,
            unacknowledged: AtomicU32::new(0),
            extra: BufExtra { _domain: Some(domain.hold()?), pd: pd.addr() },
        };
        let object = ibv_buf::pool().insert(view, |object, handle| {
            // SAFETY: nobody else sees the place yet.
            unsafe { object.write(ibv_buf { context: id.pointer(), handle }) };
        })?;
        // SAFETY: the caller's promise.
        unsafe { *buf = object.as_ptr() };
        Ok(ptr::with_exposed_provenance_mut(addr as usize))
    })
}

/// ibv_free_buf(3). A region on it keeps its memory until it is deregistered.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn free_buf(buf: *mut ibv_buf) {
    // SAFETY: the caller's promise.
    fail::silent("ibv_free_buf", || unsafe {
        objects::destroy::<ibv_buf, _, _>(buf, |_: &soft::Memory| Ok(()))
    });
}

/// ibv_reg_buf_mr(3).
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn reg_buf_mr(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's promise.
    fail::object("ibv_reg_buf_mr", || unsafe {
        buffer_region(pd, buf, addr, length, addr as u64, access)
    })
}

/// # Safety
/// As for [`objects::find`].
unsafe fn buffer_region(
    pd: *mut ibv_pd,
    buf: *mut ibv_buf,
    addr: *mut c_void,
    length: usize,
    iova: u64,
    access: c_int,
) -> Outcome<*mut ibv_mr> {
    // SAFETY: the caller's promise.
    let (memory, made_in) = unsafe {
        let found = find::<ibv_buf>(buf)?;
        (found.inner.clone(), found.extra.pd)
    };
    // SAFETY: the caller's promise.
    let (domain, id) = unsafe { mr::domain(pd)? };
    if made_in != pd.addr() {
        return Err(Failure::Argument { what: "pd, which is not the buffer's:", value: 0 });
    }
    let inside = (addr as u64)
        .checked_sub(memory.addr())
        .and_then(|offset| offset.checked_add(length as u64))
        .is_some_and(|end| end <= memory.len() as u64);
    if !inside {
        return Err(Failure::Argument { what: "range, outside the buffer:", value: addr as u64 });
    }
    // SAFETY: the buffer's memory stays for as long as the region, see below.
    let region =
        unsafe { domain.reg_mr(addr as u64, length as u64, iova, mr::access(access as u32)?)? };
    let extra = MrExtra { _memory: Some(memory) };
    mr::present_with(region, id, pd, extra, |mr| (mr.addr, mr.length) = (addr, length))
}

/// ibv_reg_mr_ex(3): one call for what the others register. DMA handles are refused, as none can be had.
///
/// # Safety
/// As for [`objects::find`]; `attr` is null or points to the structure, as far as its mask says that it goes.
pub(crate) unsafe extern "C" fn reg_mr_ex(
    pd: *mut ibv_pd,
    attr: *mut ibv_mr_init_attr,
) -> *mut ibv_mr {
    fail::object("ibv_reg_mr_ex", || {
        if attr.is_null() {
            return Err(Failure::Null { what: "mr_init_attr" });
        }
        // SAFETY: the caller's promise: every field before `buf` is there.
        let (length, access, mask) = unsafe { ((*attr).length, (*attr).access, (*attr).comp_mask) };
        let known = MASK_IOVA | MASK_ADDR | MASK_FD | MASK_FD_OFFSET | MASK_BUF;
        if mask & !known != 0 {
            return Err(Failure::Unsupported {
                what: "a DMA handle, or another attribute of the region,",
            });
        }
        let has = |bit: u64| mask & bit != 0;
        // SAFETY: as above.
        let (iova, addr, fd, offset) =
            unsafe { ((*attr).iova, (*attr).addr, (*attr).fd, (*attr).fd_offset) };
        let iova = if has(MASK_IOVA) { iova } else { addr as u64 };
        // SAFETY: the caller's promise.
        unsafe {
            match (has(MASK_FD), has(MASK_ADDR)) {
                (true, _) if has(MASK_BUF) || !has(MASK_IOVA) => {
                    Err(Failure::Argument { what: "comp_mask", value: mask })
                }
                (true, _) => {
                    let (domain, id) = mr::domain(pd)?;
                    if fd < 0 {
                        return Err(std::io::Error::from_raw_os_error(libc::EBADF).into());
                    }
                    let offset = if has(MASK_FD_OFFSET) { offset } else { 0 };
                    let (file, flags) = (BorrowedFd::borrow_raw(fd), mr::access(access as u32)?);
                    let region = domain.reg_file_mr(file, offset, length as u64, iova, flags)?;
                    mr::present(region, id, pd, |mr| {
                        (mr.addr, mr.length) = (iova as *mut c_void, length);
                    })
                }
                (false, true) if has(MASK_BUF) => {
                    buffer_region(pd, (*attr).buf, addr, length, iova, access)
                }
                (false, true) if !has(MASK_FD_OFFSET) => {
                    let (domain, id) = mr::domain(pd)?;
                    let flags = mr::access(access as u32)?;
                    let region = domain.reg_mr(addr as u64, length as u64, iova, flags)?;
                    mr::present(region, id, pd, |mr| (mr.addr, mr.length) = (addr, length))
                }
                _ => Err(Failure::Argument { what: "comp_mask", value: mask }),
            }
        }
    })
}

/// ibv_query_port_speed(3), in units of 100 Mbit/s: four lanes of what the port says of one.
///
/// # Safety
/// As for [`objects::find`]; `speed` is null or has room for the number.
pub(crate) unsafe extern "C" fn query_port_speed(
    context: *mut ibv_context,
    port: u32,
    speed: *mut u64,
) -> c_int {
    fail::status("ibv_query_port_speed", || {
        if speed.is_null() {
            return Err(Failure::Null { what: "port_speed" });
        }
        // SAFETY: the caller's promise.
        let soft = unsafe { objects::context(context)? }.context.clone();
        let port = u8::try_from(port)
            .map_err(|_| Failure::Argument { what: "port_num", value: port.into() })?;
        soft.port(port)?;
        // SAFETY: the caller's promise.
        unsafe { *speed = 4 * EDR };
        Ok(())
    })
}

/// One lane of EDR, in units of 100 Mbit/s.
const EDR: u64 = 250;

/// ibv_alloc_dmah(3): hints for PCI transactions, of which there are none.
pub(crate) extern "C" fn alloc_dmah(_: *mut ibv_context, _: *mut c_void) -> *mut c_void {
    fail::object("ibv_alloc_dmah", || Err(Failure::Unsupported { what: "a DMA handle" }))
}

/// ibv_dealloc_dmah(3).
pub(crate) extern "C" fn dealloc_dmah(_: *mut c_void) -> c_int {
    fail::status("ibv_dealloc_dmah", || Err(Failure::Unsupported { what: "a DMA handle" }))
}

/// ibv_export_buf_dmabuf_fd(3): the memory of our buffers is no dma-buf.
///
/// # Safety
/// As for [`objects::find`].
pub(crate) unsafe extern "C" fn export_buf_dmabuf_fd(buf: *mut ibv_buf) -> c_int {
    fail::number("ibv_export_buf_dmabuf_fd", || {
        // SAFETY: the caller's promise.
        let found = unsafe { find::<ibv_buf>(buf)? };
        Err(Failure::NoEntry {
            what: "the dma-buf of a buffer, number",
            index: found.number().into(),
        })
    })
}

/// ibv_dm_export_dmabuf_fd(3): device memory of ours is no dma-buf.
pub(crate) extern "C" fn dm_export_dmabuf_fd(_: *mut ibv_dm) -> c_int {
    fail::number("ibv_dm_export_dmabuf_fd", || {
        Err(Failure::Unsupported { what: "device memory as a dma-buf" })
    })
}
