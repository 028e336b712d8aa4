//! Whether a GID can be reached.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use ironverbs_sys::errno::{EINTR, EINVAL, EIO, ENOMEM, ENXIO};
use ironverbs_sys::event::{EventFd, EventMode};
use ironverbs_sys::netlink;
use ironverbs_transport::verbs::AhAttr;
use ironverbs_wire::{Gid, Path};

use crate::cm::{self, PathRecord};
use crate::host::Inner;
use crate::{Context, Error};

/// How long a port may take to answer where the caller does not say.
const PATIENCE: Duration = Duration::from_secs(2);

/// How much later than it should the device's thread may be.
const MARGIN: Duration = Duration::from_secs(1);

/// Hop limit of questions.
const HOP_LIMIT: u8 = 64;

/// Why a GID was not found to be reachable (ibv_gid_reachable(3)).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReachError {
    /// An argument has no meaning. EINVAL.
    #[error("{what} {value:#x}: {why}")]
    Invalid {
        /// The argument.
        what: &'static str,
        /// Its value; of a GID the upper half.
        value: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is no path: ENXIO.
    #[error("no path to {gid}: {why}")]
    NoPath {
        /// To whom.
        gid: Gid,
        /// What is missing.
        why: &'static str,
    },
    /// A signal came before the answer: EINTR.
    #[error("a signal came before the answer")]
    Interrupted,
    /// Memory or descriptors ran out: ENOMEM.
    #[error("no room for the question")]
    NoMemory,
    /// The device cannot ask, or the system refused something: EIO.
    #[error("cannot ask: {0}")]
    Io(String),
}

impl ReachError {
    /// The errno of ibv_gid_reachable(3).
    pub fn errno(&self) -> i32 {
        match self {
            ReachError::Invalid { .. } => EINVAL,
            ReachError::NoPath { .. } => ENXIO,
            ReachError::Interrupted => EINTR,
            ReachError::NoMemory => ENOMEM,
            ReachError::Io(_) => EIO,
        }
    }
}

/// A caller that waits.
#[derive(Debug)]
pub(super) struct Ask {
    done: EventFd,
    /// [`OPEN`], [`YES`] or [`NO`].
    answer: AtomicU8,
}

const OPEN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

impl Ask {
    pub(super) fn answered(&self, answers: bool) {
        self.answer.store(if answers { YES } else { NO }, Ordering::Release);
        let _ = self.done.signal();
    }
}

impl Context {
    /// Finds out whether `gid` can be reached from a port of this device, 0 for any; waits at most for `timeout`, two
    /// seconds where there is none.
    ///
    /// # Errors
    /// See [`ReachError`].
    pub fn gid_reachable(
        &self,
        port: u32,
        gid: &Gid,
        timeout: Option<Duration>,
    ) -> Result<(), ReachError> {
        if port > 1 {
            let value = port.into();
            return Err(ReachError::Invalid { what: "port", value, why: "there is no such port" });
        }
        if *gid == Gid::UNSPECIFIED {
            return Err(ReachError::Invalid { what: "gid", value: 0, why: "it is all zeros" });
        }
        let refused = |e: Error| ReachError::Io(e.to_string());
        self.inner().check().map_err(refused)?;
        let no_path = |why| ReachError::NoPath { gid: *gid, why };
        // Addresses may have changed since they were last looked at.
        self.host().0.follow_interfaces().map_err(refused)?;
        if !self.device().is_present() {
            return Err(no_path("the device's interface is gone"));
        }
        if !self.device().link().0 {
            return Err(no_path("the port is down"));
        }
        let host = self.inner();
        if host.is_local(gid) {
            return match host.holds(gid) {
                true => Ok(()),
                false => Err(no_path("no device of this host that is up has it")),
            };
        }
        let path = self.path_to(gid).map_err(|e| match e.kind() {
            io::ErrorKind::OutOfMemory => ReachError::NoMemory,
            _ => no_path("there is no route"),
        })?;
        if gid.is_multicast() {
            return Ok(());
        }
        if let Some(why) = host.wire_problem() {
            return Err(ReachError::Io(why));
        }
        self.ask(&path, timeout.unwrap_or(PATIENCE))
    }

    fn ask(&self, path: &Path, timeout: Duration) -> Result<(), ReachError> {
        let host = self.inner();
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::OutOfMemory => ReachError::NoMemory,
            _ => ReachError::Io(e.to_string()),
        };
        let done = EventFd::new(EventMode::Counter, true).map_err(|_| ReachError::NoMemory)?;
        let ask = Arc::new(Ask { done, answer: AtomicU8::new(OPEN) });
        let id = {
            let mut state = host.fabric.state.lock();
            let probes = state.probes(host).map_err(failed)?;
            let now = ironverbs_mad::Instant(host.now().0);
            let time = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
            let id = probes.prober.ask(now, path, host.clock.ticks(time));
            probes.send(host, now);
            state.asks.insert(id, ask.clone());
            state.happened();
            host.fabric.arm(&mut state, host);
            id
        };
        let start = Instant::now();
        let latest = timeout.saturating_add(MARGIN);
        let result = loop {
            match ask.answer.load(Ordering::Acquire) {
                YES => break Ok(()),
                NO => break Err(self.silent(&path.dst)),
                _ => {}
            }
            let left = latest.saturating_sub(start.elapsed());
            if left.is_zero() {
                break Err(self.silent(&path.dst));
            }
            match ask.done.wait_for(left) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                    break Err(ReachError::Interrupted);
                }
                Err(e) => break Err(failed(e)),
            }
        };
        let mut state = host.fabric.state.lock();
        if state.asks.remove(&id).is_some()
            && let Some(probes) = &mut state.probes
        {
            probes.prober.forget(id);
        }
        result
    }

    fn silent(&self, gid: &Gid) -> ReachError {
        ReachError::NoPath { gid: *gid, why: "nobody answers there" }
    }

    /// The path from this device to a GID, as address, interface and configuration say; nobody is asked.
    ///
    /// # Errors
    /// NoPath, or Invalid for no GID.
    pub fn path_record(&self, gid: &Gid) -> Result<PathRecord, ReachError> {
        if *gid == Gid::UNSPECIFIED {
            return Err(ReachError::Invalid { what: "gid", value: 0, why: "it is all zeros" });
        }
        let no_path = |why| ReachError::NoPath { gid: *gid, why };
        let path = if self.device().has_gid(gid) {
            Path { src: *gid, dst: *gid, hop_limit: HOP_LIMIT, ..Path::default() }
        } else {
            self.path_to(gid).map_err(|_| no_path("there is no route"))?
        };
        let pkey = self.pkey(1, 0).map_err(|_| no_path("there is no partition"))?;
        Ok(PathRecord {
            dgid: path.dst,
            sgid: path.src,
            flow_label: path.flow_label,
            hop_limit: path.hop_limit,
            traffic_class: path.traffic_class,
            pkey,
            sl: path.ib.map_or(0, |route| route.sl),
            mtu: self.device().link().1,
            rate: cm::RATE,
            packet_life_time: cm::PACKET_LIFE_TIME,
        })
    }

    /// How packets of this device would go there.
    pub(super) fn path_to(&self, gid: &Gid) -> io::Result<Path> {
        if let Some(subnet) = self.device().subnet() {
            let place = subnet.of_gid(gid).ok_or(io::ErrorKind::HostUnreachable)?;
            let attr = AhAttr {
                dgid: *gid,
                dlid: place.lid,
                is_global: true,
                port_num: 1,
                hop_limit: HOP_LIMIT,
                ..AhAttr::default()
            };
            return self.resolve(&attr).map_err(io::Error::other);
        }
        let near = gid.is_link_local();
        let fits = |own: &Gid| own.is_ipv4() == gid.is_ipv4();
        let own = self.device().gids().into_iter().map(|(_, own)| own).filter(fits);
        let mut own: Vec<Gid> = own.collect();
        own.sort_by_key(|own| own.is_link_local() != near);
        let src = own.first().copied().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let ifindex = if near || gid.is_multicast() { self.device().ifindex() } else { 0 };
        let source: Option<IpAddr> = Some(src.to_ip());
        netlink::route_through(gid.to_ip(), source, ifindex)?;
        Ok(Path { src, dst: *gid, hop_limit: HOP_LIMIT, ..Path::default() })
    }
}

impl Inner {
    /// Whether a device of this host that is up has the GID; a loopback address stands for any device.
    fn holds(&self, gid: &Gid) -> bool {
        let devices = self.present_devices();
        let mut up = devices.iter().filter(|device| device.link().0);
        up.any(|device| device.has_gid(gid) || gid.to_ip().is_loopback())
    }
}
