//! Looking at a group without being of it: no slot is taken, nobody notices.

use std::fs;
use std::time::{Duration, Instant};

use ironverbs_sys::process;
use ironverbs_sys::unix::Connection;

use super::group::Group;
use super::join::{Found, Search};
use super::life::{Coroner, Life};
use super::names::Names;
use super::ports::Entry;
use super::table::Identity;
use super::{JoinError, JoinOptions, Registry, SLOTS};
use crate::status::{ProcessStatus, View};

/// How long members may take to answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// A user's group, to look at.
#[derive(Debug)]
pub struct Observer {
    group: Group,
    coroner: Coroner,
}

impl Observer {
    /// Finds the group of the caller's network namespace and of the user `uid`; None: there is none.
    /// That of another user takes the rights of ptrace(2) over its processes.
    ///
    /// # Errors
    /// [`JoinError::Unresponsive`]: there is one, but its processes do not answer and what they hold
    /// cannot be had otherwise; [`JoinError::Version`] and [`JoinError::Io`].
    pub fn find(options: &JoinOptions, uid: u32) -> Result<Option<Observer>, JoinError> {
        let coroner = Coroner { names: Names::new(options, uid), uid, own: Identity::own() };
        let group = match uid == process::uid() {
            true => ask(options.port, &coroner)?,
            false => take(options.port, &coroner)?,
        };
        Ok(group.map(|group| Observer { group, coroner }))
    }

    /// What the living members tell of themselves, by slot.
    pub fn processes(&self) -> Vec<ProcessStatus> {
        living(&self.group, &self.coroner)
    }
}

impl Registry {
    /// What the living members tell of themselves, by slot.
    pub(crate) fn processes(&self) -> Vec<ProcessStatus> {
        let members = self.member().map(|member| living(&member.group, &member.coroner));
        members.unwrap_or_default()
    }
}

fn living(group: &Group, coroner: &Coroner) -> Vec<ProcessStatus> {
    let (table, view) = (&group.table, View::new(&group.status));
    let ports = table.ports(&group.memfd);
    let living = |slot| {
        let tenant = table.tenant(slot)?;
        if matches!(coroner.examine(slot, &tenant), Life::Dead) {
            return None;
        }
        let same_pid_namespace = tenant.identity.namespaces == coroner.own.namespaces;
        let pid = tenant.identity.pid;
        let told = view.process(slot, tenant.tenure);
        // One that has just come, or could not open its window.
        let told = told.unwrap_or_else(|| ProcessStatus { slot, ..ProcessStatus::default() });
        let own = |entry: &&Entry| (entry.slot, entry.tenure) == (slot, tenant.tenure);
        let mut services: Vec<_> =
            ports.iter().filter(own).filter_map(|entry| entry.claim.told()).collect();
        services.sort_by_key(|service| (service.space.name(), service.address));
        Some(ProcessStatus { pid, same_pid_namespace, services, ..told })
    };
    (0..table.sockets()).filter_map(living).collect()
}

/// The users that have a group in this network namespace (proc_net(5): unix), as the names of their sockets
/// say; any of them may claim to be another.
pub fn users(options: &JoinOptions) -> Vec<u32> {
    let text = fs::read_to_string("/proc/self/net/unix").unwrap_or_default();
    let prefix = format!("@{}", Names::prefix(options));
    let uid = |line: &str| {
        let name = line.split_ascii_whitespace().nth(7)?;
        name.strip_prefix(&prefix)?.split('/').next()?.parse().ok()
    };
    let mut uids: Vec<u32> = text.lines().filter_map(uid).collect();
    uids.sort_unstable();
    uids.dedup();
    uids
}

fn ask(port: u16, coroner: &Coroner) -> Result<Option<Group>, JoinError> {
    let start = Instant::now();
    let mut search = Search::new(port, coroner);
    // Nothing else tells whether there are members in higher slots only.
    search.reach = SLOTS;
    loop {
        match search.step()? {
            Found::Group(group) => return Ok(Some(group)),
            Found::Nobody => return Ok(None),
            Found::Silent { .. } if start.elapsed() > PATIENCE => {
                return Err(JoinError::Unresponsive { pids: search.pids() });
            }
            Found::Silent { .. } => {}
        }
    }
}

/// From any of its processes, which do not answer strangers.
fn take(port: u16, coroner: &Coroner) -> Result<Option<Group>, JoinError> {
    let mut refused = None;
    for slot in 0..SLOTS {
        let Ok(name) = coroner.names.entry(slot) else { continue };
        let Ok(connection) = Connection::connect(&name) else { continue };
        let Ok(peer) = connection.peer() else { continue };
        if peer.uid != coroner.uid {
            continue;
        }
        let doing = "looking at another user's process";
        let io = |source| JoinError::Io { doing, source };
        let taken = connection.peer_pidfd().map_err(io);
        match taken.and_then(|process| Group::take_from(process, peer.pid, port)) {
            Ok(group) => return Ok(Some(group)),
            Err(error) => refused = Some(error),
        }
    }
    match refused {
        Some(error) => Err(error),
        None => Ok(None),
    }
}
