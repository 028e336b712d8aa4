//! Finding the group, or founding it.

use std::io;
use std::os::fd::AsFd;
use std::thread;
use std::time::{Duration, Instant};

use ironverbs_sys::bpf;
use ironverbs_sys::diag::Owner;
use ironverbs_sys::udp::{BindOptions, RxSocket};
use ironverbs_sys::unix::{Connection, Listener, wait_readable};

use super::group::{Group, taken};
use super::life::Coroner;
use super::seat::{self, Seat};
use super::{JoinError, JoinOptions, SLOTS};

/// How long a newcomer tries.
const PATIENCE: Duration = Duration::from_secs(5);

/// A member that has not answered for so long is passed over.
const SILENCE: Duration = Duration::from_millis(100);

/// How long a member may think before another is asked as well.
const PAUSE: Duration = Duration::from_millis(10);

/// How long the port may seem to be taken by our own user: by a group whose last member just died,
/// or whose first is just coming.
const GRACE: Duration = Duration::from_millis(500);

/// Slots looked at before trying to found a group: slots are added in order and used again, so here
/// is a member if there are any, nearly always. The port says whether there are others.
const FIRST_LOOK: u16 = 8;

/// Names for founders; more than one only because another user may hold some.
const TURNS: u16 = 8;

/// Joins the group that there is, or starts one.
///
/// The port is the arbiter. Whoever can bind it alone, without SO_REUSEPORT, knows that there is no
/// group: its sockets live as long as any member does. Between that probe and the group's first
/// socket the founder's name keeps out a second founder of the same user.
pub(super) fn join(options: &JoinOptions, coroner: &Coroner) -> Result<(Group, Seat), JoinError> {
    let start = Instant::now();
    let mut search = Search::new(options.port, coroner);
    let mut taken_since = None;
    loop {
        let late = start.elapsed() > PATIENCE;
        let silent = match search.step()? {
            Found::Group(group) => {
                let seat = seat::take(&group, coroner)?;
                return Ok((group, seat));
            }
            Found::Silent { passed_over: false } => continue,
            Found::Silent { passed_over: true } => true,
            Found::Nobody => false,
        };
        let pause = match found(options.port, coroner, silent) {
            Ok(founded) => return Ok(founded),
            Err(Obstacle::Founder(pid)) if late => {
                return Err(JoinError::Unresponsive { pids: vec![pid] });
            }
            Err(Obstacle::Founder(_)) => Duration::from_millis(2),
            Err(Obstacle::Failed(JoinError::PortTaken { port, owner })) => {
                search.reach = SLOTS;
                let ours = perhaps_ours(owner.as_ref(), coroner.uid);
                // Not from our start: on a busy machine that may be long ago, and the group founded
                // since we looked.
                let since = taken_since.get_or_insert_with(Instant::now);
                match silent {
                    true if ours && late => {
                        return Err(JoinError::Unresponsive { pids: search.pids() });
                    }
                    true if ours => Duration::ZERO,
                    false if ours && since.elapsed() < GRACE => Duration::from_millis(5),
                    _ => return Err(JoinError::PortTaken { port, owner }),
                }
            }
            Err(Obstacle::Failed(error)) => return Err(error),
        };
        thread::sleep(pause);
    }
}

/// A socket in the vault has no process that shows it.
fn perhaps_ours(owner: Option<&Owner>, uid: u32) -> bool {
    owner.is_none_or(|owner| owner.uid == uid && !owner.rxe)
}

enum Obstacle {
    /// This process is founding the group.
    Founder(u32),
    Failed(JoinError),
}

/// `silent`: there are names of members, but those who hold them do not answer.
fn found(port: u16, coroner: &Coroner, silent: bool) -> Result<(Group, Seat), Obstacle> {
    let founder = founder(coroner)?;
    // Somebody may have founded it since we looked.
    if !silent && !matches!(Search::new(port, coroner).step(), Ok(Found::Nobody)) {
        return Err(Obstacle::Founder(0));
    }
    let failed = |doing| move |source| Obstacle::Failed(JoinError::Io { doing, source });
    let probe = BindOptions { port, reuseport: false, ..BindOptions::default() };
    let probe =
        RxSocket::bind_with(&probe).map_err(|error| Obstacle::Failed(taken(error, port)))?;
    let only_v4 = bpf::is_ipv4(probe.as_fd()).map_err(failed("probing the port"))?;
    drop(probe);
    let group = Group::create(port, only_v4).map_err(failed("creating the registry"))?;
    let seat = seat::take(&group, coroner).map_err(Obstacle::Failed)?;
    drop(founder);
    Ok((group, seat))
}

/// Takes the founder's name.
fn founder(coroner: &Coroner) -> Result<Listener, Obstacle> {
    let failed = |source| Obstacle::Failed(JoinError::Io { doing: "founding the group", source });
    for turn in 0..TURNS {
        let name = coroner.names.founder(turn).map_err(failed)?;
        match Listener::bind(&name, 1) {
            Ok(listener) => return Ok(listener),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
            Err(error) => return Err(failed(error)),
        }
        let peer = Connection::connect(&name).and_then(|connection| connection.peer());
        match peer {
            // Another user's claim to our name is nothing to us.
            Ok(peer) if peer.uid != coroner.uid => {}
            Ok(peer) => return Err(Obstacle::Founder(peer.pid)),
            Err(_) => return Err(Obstacle::Founder(0)),
        }
    }
    Err(failed(io::ErrorKind::AddrInUse.into()))
}

pub(super) enum Found {
    Group(Group),
    /// No process of this user answers to any name of the group.
    Nobody,
    /// There are some, which have not answered so far; `passed_over`: for a while now.
    Silent {
        passed_over: bool,
    },
}

/// Asks the members for the group: the first, and as long as there is no answer ever more of them.
pub(super) struct Search<'a> {
    port: u16,
    coroner: &'a Coroner,
    asked: Vec<Asked>,
    next: u16,
    /// Slots beyond are not asked.
    pub(super) reach: u16,
    burst: usize,
    pass_over: Instant,
}

struct Asked {
    slot: u16,
    /// None: it has more newcomers waiting than it can take.
    connection: Option<Connection>,
    pid: u32,
}

impl<'a> Search<'a> {
    pub(super) fn new(port: u16, coroner: &'a Coroner) -> Search<'a> {
        let pass_over = Instant::now() + SILENCE;
        Search { port, coroner, asked: Vec::new(), next: 0, reach: FIRST_LOOK, burst: 1, pass_over }
    }

    pub(super) fn pids(&self) -> Vec<u32> {
        self.asked.iter().map(|asked| asked.pid).collect()
    }

    pub(super) fn step(&mut self) -> Result<Found, JoinError> {
        self.ask();
        if self.asked.is_empty() {
            self.next = 0;
            self.burst = 1;
            self.pass_over = Instant::now() + SILENCE;
            return Ok(Found::Nobody);
        }
        let waiting: Vec<_> = self
            .asked
            .iter()
            .filter_map(|asked| Some(asked.connection.as_ref()?.as_fd()))
            .collect();
        wait_readable(&waiting, PAUSE)
            .map_err(|source| JoinError::Io { doing: "waiting for an answer", source })?;
        drop(waiting);
        if let Some(group) = self.answers()? {
            return Ok(Found::Group(group));
        }
        let passed_over = Instant::now() >= self.pass_over;
        if passed_over {
            if let Some(group) = self.help_ourselves() {
                return Ok(Found::Group(group));
            }
            self.pass_over = Instant::now() + SILENCE;
            // Others may have come in the meantime.
            self.next = 0;
            self.asked.retain(|asked| asked.connection.is_some());
        }
        Ok(Found::Silent { passed_over })
    }

    /// Connects to the next `burst` members.
    fn ask(&mut self) {
        let enough = self.asked.len() + self.burst;
        self.burst = (self.burst * 2).min(usize::from(SLOTS));
        while self.next < self.reach && self.asked.len() < enough {
            let slot = self.next;
            self.next += 1;
            if self.asked.iter().any(|asked| asked.slot == slot) {
                continue;
            }
            let Ok(name) = self.coroner.names.entry(slot) else { continue };
            match Connection::connect(&name) {
                Ok(connection) => {
                    let Ok(peer) = connection.peer() else { continue };
                    if peer.uid == self.coroner.uid {
                        let connection = Some(connection);
                        self.asked.push(Asked { slot, connection, pid: peer.pid });
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.asked.push(Asked { slot, connection: None, pid: 0 });
                }
                Err(_) => {}
            }
        }
    }

    fn answers(&mut self) -> Result<Option<Group>, JoinError> {
        let mut index = 0;
        while let Some(asked) = self.asked.get(index) {
            let Some(connection) = &asked.connection else {
                index += 1;
                continue;
            };
            match Group::take_over(connection, self.port) {
                Ok(Some(group)) => return Ok(Some(group)),
                Ok(None) => index += 1,
                Err(error @ JoinError::Version { .. }) => return Err(error),
                // It died or left, or is no member.
                Err(_) => drop(self.asked.swap_remove(index)),
            }
        }
        Ok(None)
    }

    /// All are silent: stopped, it may be. What they hold can be had without them.
    fn help_ourselves(&self) -> Option<Group> {
        self.asked.iter().find_map(|asked| {
            let process = asked.connection.as_ref()?.peer_pidfd().ok()?;
            Group::take_from(process, asked.pid, self.port).ok()
        })
    }
}
