//! Whether a member lives.

use std::io;

use ironverbs_sys::process::{self, PidFd};
use ironverbs_sys::unix::Connection;

use super::names::Names;
use super::table::{Identity, Tenant};

/// Whose death a member notices is a matter of the ring, see `service`; this says how one looks.
#[derive(Debug)]
pub(super) struct Coroner {
    pub(super) names: Names,
    pub(super) uid: u32,
    pub(super) own: Identity,
}

#[derive(Debug)]
pub(super) enum Life {
    Dead,
    /// With a descriptor that tells of the death to come, where one can be had. A member of which
    /// nothing can be learned counts as alive.
    Alive(Option<PidFd>),
}

impl Coroner {
    /// By its process id where that means the same here as there, and not ourselves; else by its
    /// name.
    ///
    /// That a member does not answer says nothing: it may be stopped. That its socket is open says
    /// nothing either: a child of it may hold it.
    pub(super) fn examine(&self, slot: u16, tenant: &Tenant) -> Life {
        let identity = tenant.identity;
        if identity.namespaces != self.own.namespaces || identity == self.own {
            // Ourselves: another membership, or one from before an execve(2).
            return self.by_entry(slot);
        }
        match PidFd::open(identity.pid) {
            // No process: or not its first thread, so the number has been reused.
            Err(error) if no_process(&error) => Life::Dead,
            Err(_) => Life::Alive(None),
            Ok(pidfd) if !pidfd.alive() => Life::Dead,
            Ok(pidfd) => match process::start_time(identity.pid) {
                Ok(start) if identity.start != 0 && start != identity.start => Life::Dead,
                _ => Life::Alive(Some(pidfd)),
            },
        }
    }

    /// Whether the member in a slot, whose process lives, is gone all the same: by execve(2). A member has its mailbox
    /// from before it has its slot, and gives up its lanes before both.
    pub(super) fn is_abandoned(&self, slot: u16) -> bool {
        self.names.mailbox(slot).and_then(|name| name.takes_datagrams()).is_ok_and(|taken| !taken)
    }

    fn by_entry(&self, slot: u16) -> Life {
        let connection = match self.names.entry(slot).and_then(|name| Connection::connect(&name)) {
            Ok(connection) => connection,
            Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => return Life::Dead,
            Err(_) => return Life::Alive(None),
        };
        if connection.peer().is_ok_and(|peer| peer.uid != self.uid) {
            return Life::Dead;
        }
        match connection.peer_pidfd() {
            Ok(pidfd) if pidfd.alive() => Life::Alive(Some(pidfd)),
            Ok(_) => Life::Dead,
            Err(error) if no_process(&error) => Life::Dead,
            Err(_) => Life::Alive(None),
        }
    }
}

fn no_process(error: &io::Error) -> bool {
    // ESRCH, ENODATA, EINVAL, ENOENT, as versions of the kernel have it.
    matches!(error.raw_os_error(), Some(3 | 61 | 22 | 2))
}
