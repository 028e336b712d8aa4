//! The device, as this command uses it: the one place that names the crate it comes from.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

pub(crate) use ironverbs_soft::*;

/// The channel's descriptor, to wait for.
pub(crate) fn channel_fd(channel: &Channel) -> BorrowedFd<'_> {
    // SAFETY: the channel owns the descriptor and keeps it open for its life, which is borrowed.
    unsafe { BorrowedFd::borrow_raw(channel.fd()) }
}

/// As sysfs spells it.
pub(crate) fn kind_name(kind: GidKind) -> &'static str {
    match kind {
        GidKind::Ib => "IB",
        GidKind::RoceV1 => "IB/RoCE v1",
        GidKind::RoceV2 => "RoCE v2",
    }
}

/// Memory of this process that peers may reach, registered for as long as it lives.
///
/// It is made of atomics: the device, and through it a peer, changes it at any time.
pub(crate) struct Region {
    mr: Arc<Mr>,
    words: Box<[AtomicU64]>,
}

impl Region {
    /// `bytes` zeros, rounded up to whole words.
    pub(crate) fn new(pd: &Arc<Pd>, bytes: usize, access: Access) -> Result<Region, Error> {
        let count = bytes.div_ceil(8).max(1);
        let mut words = Vec::new();
        words.try_reserve_exact(count).map_err(|_| Error::NoMemory { what: "buffer" })?;
        words.resize_with(count, AtomicU64::default);
        let words = words.into_boxed_slice();
        let addr = words.as_ptr() as u64;
        let len = size_of_val(&*words) as u64;
        // SAFETY: `words` is freed only after `drop` has deregistered it, and is only ever read and
        // written as atomics.
        let mr = unsafe { pd.reg_mr(addr, len, addr, access) }?;
        Ok(Region { mr, words })
    }

    /// The memory.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        &self.words
    }

    /// Its address, here and for peers.
    pub(crate) fn addr(&self) -> u64 {
        self.mr.addr()
    }

    /// The key for peers.
    pub(crate) fn rkey(&self) -> u32 {
        self.mr.rkey()
    }

    /// `len` bytes from `offset` on, for a work request.
    pub(crate) fn sge(&self, offset: u64, len: u32) -> Sge {
        Sge { addr: self.mr.addr() + offset, len, lkey: self.mr.lkey() }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if self.mr.destroy().is_err() {
            // Still reachable by the device: better lost than freed under it.
            std::mem::forget(std::mem::take(&mut self.words));
        }
    }
}
