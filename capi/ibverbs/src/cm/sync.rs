//! Ids without a channel of the program's: each call waits for its event.

use std::io;

use ironverbs::raw::cm::CmEventKind;

use super::objects::{Handle, field};
use super::worlds::Any;
use crate::fail::{Failure, Outcome};

impl Handle {
    /// Acknowledges the event that the last call of a synchronous id left in `id->event`.
    pub(super) fn drop_event(&self) {
        if !self.get(field!(event)).is_null()
            // SAFETY: the id is alive.
            && let Ok(any) = unsafe { Any::find(self.c) }
        {
            any.drop_event();
        }
    }

    /// For a synchronous id, waits for what a call led to, and leaves it in `id->event`.
    pub(super) fn complete(&self) -> Outcome<()> {
        if !self.is_sync() {
            return Ok(());
        }
        // SAFETY: the id is alive.
        unsafe { Any::find(self.c)? }.complete()
    }
}

impl Any {
    /// Waits for what a call led to, and leaves it in `id->event`.
    pub(super) fn complete(&self) -> Outcome<()> {
        let (event, status) = self.await_event()?;
        match status {
            0 => Ok(()),
            _ if event == CmEventKind::Rejected as u32 => Err(refusal(libc::ECONNREFUSED)),
            status => Err(refusal(status.saturating_abs())),
        }
    }
}

fn refusal(errno: i32) -> Failure {
    Failure::Io(io::Error::from_raw_os_error(errno))
}
