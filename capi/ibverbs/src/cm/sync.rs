//! Ids without a channel of the program's: each call waits for its event.

use std::io;

use ironverbs::raw::cm::CmEventKind;

use super::event;
use super::objects::{Handle, field};
use crate::fail::{Failure, Outcome};

impl Handle {
    /// Acknowledges the event that the last call of a synchronous id left in `id->event`.
    pub(super) fn drop_event(&self) {
        let last = self.get(field!(event));
        if !last.is_null() {
            self.set(field!(event), std::ptr::null_mut());
            // The program may have acknowledged it itself.
            let _ = event::acknowledge(last);
        }
    }

    /// For a synchronous id, waits for what a call led to, and leaves it in `id->event`.
    pub(super) fn complete(&self) -> Outcome<()> {
        if !self.is_sync() {
            return Ok(());
        }
        let (kind, status) = self.await_event()?;
        match status {
            0 => Ok(()),
            _ if kind == CmEventKind::Rejected => Err(refusal(libc::ECONNREFUSED)),
            status => Err(refusal(status.saturating_abs())),
        }
    }

    /// Waits for the next event of a synchronous id, and leaves it in `id->event`.
    pub(super) fn await_event(&self) -> Outcome<(CmEventKind, i32)> {
        self.drop_event();
        let channel = self.id.soft.channel();
        let next = loop {
            match event::next(&channel) {
                // The call cannot be resumed, so that it goes on as after SA_RESTART.
                Err(Failure::Io(e)) if e.kind() == io::ErrorKind::Interrupted => {}
                other => break other?,
            }
        };
        self.set(field!(event), next.c);
        Ok((next.kind, next.status))
    }
}

fn refusal(errno: i32) -> Failure {
    Failure::Io(io::Error::from_raw_os_error(errno))
}
