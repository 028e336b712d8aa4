//! Requests that concern this side's device alone: binding a memory window, and invalidating one (IBA 10.6.6).
//!
//! They wait until all before them are complete and hold up those behind them, which is more than the ordering rules
//! of IBA 10.8.3.3 ask for.

use super::Qp;
use super::send_queue::LOCAL;
use crate::device::Device;
use crate::verbs::{Fault, VendorErr, WcStatus};

impl Qp {
    /// Whether requests of this kind have ever been posted.
    #[inline]
    pub fn uses_locals(&self) -> bool {
        self.uses_locals
    }

    /// Carries out those that are next. To be called where nothing is being sent: the device may wait for others who use
    /// the memory. True if there were any; then there may be more to [send](Qp::transmit).
    pub fn carry_out_locals<D: Device + ?Sized>(&mut self, dev: &mut D) -> bool {
        let mut any = false;
        while self.local_is_next() {
            any = true;
            let index = self.requester.cursor;
            let wr = self.sends.wqe(index).wr;
            let done = match wr.binding() {
                Some(bind) => dev.bind(&bind).map_err(refused),
                None => dev
                    .invalidate_local(wr.invalidate_rkey)
                    .map_err(|_| VendorErr::InvalidateRefused),
            };
            match done {
                Ok(()) => {
                    self.requester.cursor = index + 1;
                    self.requester.started = index + 1;
                    self.complete_send(dev);
                }
                Err(why) => self.fail_send(WcStatus::MwBindErr, why, dev),
            }
        }
        any
    }

    fn local_is_next(&self) -> bool {
        let cursor = self.requester.cursor;
        self.uses_locals
            && self.has_next()
            && cursor == self.requester.started
            && cursor == self.sends.head()
            && self.sends.wqe(cursor).len == LOCAL
    }
}

fn refused(fault: Fault) -> VendorErr {
    match fault {
        Fault::Key => VendorErr::BindKey,
        Fault::Pd => VendorErr::BindPd,
        Fault::Range | Fault::Alignment | Fault::Memory => VendorErr::BindRange,
        Fault::Access => VendorErr::BindAccess,
    }
}
