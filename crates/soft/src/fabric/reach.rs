//! Whether a GID can be reached.

use std::io;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use ironverbs_mad::subnet::{SaError, SaPath};
use ironverbs_sys::errno::{EINTR, EINVAL, EIO, ENOMEM, ENXIO};
use ironverbs_sys::event::{EventFd, EventMode};
use ironverbs_sys::netlink;
use ironverbs_transport::verbs::AhAttr;
use ironverbs_wire::{Gid, Mtu, Path};
use parking_lot::Mutex;

use crate::cm::{self, PathRecord};
use crate::host::Inner;
use crate::{Context, Error};

/// How long a port may take to answer where the caller does not say.
const PATIENCE: Duration = Duration::from_secs(2);

/// How much later than it should the device's thread may be.
const MARGIN: Duration = Duration::from_secs(1);

/// How long a subnet manager may take to come.
const MANAGER: Duration = Duration::from_secs(1);

/// How often it is looked whether it has.
const GLANCE: Duration = Duration::from_micros(500);

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
    /// What the administrator said, where it was asked.
    path: Mutex<Option<Result<SaPath, SaError>>>,
}

const OPEN: u8 = 0;
const YES: u8 = 1;
const NO: u8 = 2;

impl Ask {
    pub(super) fn answered(&self, answers: bool) {
        self.answer.store(if answers { YES } else { NO }, Ordering::Release);
        let _ = self.done.signal();
    }

    pub(super) fn told(&self, path: Result<SaPath, SaError>) {
        let found = path.is_ok();
        *self.path.lock() = Some(path);
        self.answered(found);
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
        if host.subnet.is_some() {
            return self.ask_administrator(&path, None, timeout.unwrap_or(PATIENCE)).map(drop);
        }
        self.ask(&path, timeout.unwrap_or(PATIENCE))
    }

    fn ask(&self, path: &Path, timeout: Duration) -> Result<(), ReachError> {
        let host = self.inner();
        let failed = |e: io::Error| match e.kind() {
            io::ErrorKind::OutOfMemory => ReachError::NoMemory,
            _ => ReachError::Io(e.to_string()),
        };
        let ask = Ask::new()?;
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
        let result = match ask.wait(timeout) {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.silent(&path.dst)),
            Err(e) => Err(e),
        };
        let mut state = host.fabric.state.lock();
        if state.asks.remove(&id).is_some()
            && let Some(probes) = &mut state.probes
        {
            probes.prober.forget(id);
        }
        result
    }

    /// The path to a port, as the administrator of the subnet says.
    fn ask_administrator(
        &self,
        path: &Path,
        lid: Option<u16>,
        timeout: Duration,
    ) -> Result<SaPath, ReachError> {
        let host = self.inner();
        let ask = Ask::new()?;
        let time = u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX);
        let id = host.fabric.sa.ask(host, path, lid, time, &ask);
        let result = ask.wait(timeout);
        host.fabric.sa.cancel(id);
        result?;
        let gid = path.dst;
        match ask.path.lock().take() {
            Some(Ok(path)) => Ok(path),
            Some(Err(e)) if e.is_absent() => {
                Err(ReachError::NoPath { gid, why: "the subnet administrator knows none" })
            }
            Some(Err(SaError::Status(status))) => {
                Err(ReachError::Io(format!("the subnet administrator says {status:#06x}")))
            }
            Some(Err(SaError::Aborted)) => {
                Err(ReachError::Io("the subnet administrator broke off".to_owned()))
            }
            Some(Err(SaError::Silent)) | None => {
                Err(ReachError::Io("no subnet administrator answers".to_owned()))
            }
        }
    }

    /// Waits until a subnet manager has said who it is, at most for a second: a port that was just opened is not known
    /// to one yet. Nothing on an Ethernet link, or where this host runs no manager. Where none came it is not waited for
    /// again.
    pub fn await_subnet_manager(&self) {
        let host = self.inner();
        let start = Instant::now();
        let waits = || {
            host.subnet.is_some()
                && host.has_wire()
                && host.config.subnet_manager.value.is_some()
                && host.subnet_manager().0 == 0
        };
        if !waits() || self.unmanaged.load(Ordering::Relaxed) {
            return;
        }
        while start.elapsed() < MANAGER {
            std::thread::sleep(GLANCE);
            if !waits() {
                return;
            }
        }
        self.unmanaged.store(true, Ordering::Relaxed);
    }

    fn silent(&self, gid: &Gid) -> ReachError {
        ReachError::NoPath { gid: *gid, why: "nobody answers there" }
    }

    /// The path from this device to a GID: as address, interface and configuration say; on an InfiniBand link as the
    /// subnet's administrator says, who is asked unless it is known.
    ///
    /// # Errors
    /// NoPath, or Invalid for no GID; Io where no administrator answers.
    pub fn path_record(&self, gid: &Gid) -> Result<PathRecord, ReachError> {
        self.path_record_by(gid, None)
    }

    /// As [`Context::path_record`], to one of the LIDs of a port on the subnet.
    ///
    /// # Errors
    /// As there; NoPath on an Ethernet link and for a LID that is nobody's.
    pub fn path_record_to_lid(&self, lid: u16) -> Result<PathRecord, ReachError> {
        let gid = self.gid_of_lid(lid);
        let why = "nobody on the subnet has that LID";
        let gid = gid.ok_or(ReachError::NoPath { gid: Gid::UNSPECIFIED, why })?;
        self.path_record_by(&gid, Some(lid))
    }

    fn path_record_by(&self, gid: &Gid, lid: Option<u16>) -> Result<PathRecord, ReachError> {
        if *gid == Gid::UNSPECIFIED {
            return Err(ReachError::Invalid { what: "gid", value: 0, why: "it is all zeros" });
        }
        let no_path = |why| ReachError::NoPath { gid: *gid, why };
        let path = if self.device().has_gid(gid) {
            Path { src: *gid, dst: *gid, hop_limit: HOP_LIMIT, ..Path::default() }
        } else {
            self.path_to(gid).map_err(|_| no_path("there is no route"))?
        };
        let host = self.inner();
        if host.subnet.is_some() && host.has_wire() && !gid.is_multicast() {
            let own = self.gid(1, 0).map_err(|_| no_path("the port has no GID"))?.gid;
            let path = Path { src: own, ..path };
            let known = host.fabric.sa.known(host, &path.src, &path.dst);
            let found = match known.filter(|found| lid.is_none_or(|lid| found.dlid == lid)) {
                Some(found) => found,
                None => self.ask_administrator(&path, lid, PATIENCE)?,
            };
            return Ok(record(&found));
        }
        let pkey = self.pkey(1, 0).map_err(|_| no_path("there is no partition"))?;
        Ok(PathRecord {
            dgid: path.dst,
            sgid: path.src,
            dlid: path.ib.map_or(0, |route| route.dlid),
            slid: path.ib.map_or(0, |route| route.slid),
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

    /// The GID by which the port with an IP address is reached from here: the address itself; on an InfiniBand link that
    /// of the port whose interface has it, if one on the subnet has.
    pub fn gid_of_address(&self, address: IpAddr) -> Gid {
        let place = self.device().subnet().and_then(|subnet| subnet.of_address(address));
        place.map_or(Gid::from_ip(address), |place| place.gid)
    }

    /// The GID of the port on the subnet that has a LID; None: nobody has, or this is an Ethernet link.
    pub fn gid_of_lid(&self, lid: u16) -> Option<Gid> {
        self.device().subnet().and_then(|subnet| subnet.of_lid(lid)).map(|place| place.gid)
    }

    /// The GIDs that ports of this subnet may have, whether they are there or not; none on an Ethernet link.
    pub fn subnet_gids(&self) -> Vec<Gid> {
        let Some(subnet) = self.device().subnet() else { return Vec::new() };
        let places = subnet.addresses().into_iter().filter_map(|ip| subnet.of_address(ip));
        places.map(|place| place.gid).collect()
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

impl Ask {
    fn new() -> Result<Arc<Ask>, ReachError> {
        let done = EventFd::new(EventMode::Counter, true).map_err(|_| ReachError::NoMemory)?;
        Ok(Arc::new(Ask { done, answer: AtomicU8::new(OPEN), path: Mutex::default() }))
    }

    /// Waits for the answer.
    fn wait(&self, timeout: Duration) -> Result<bool, ReachError> {
        let start = Instant::now();
        let latest = timeout.saturating_add(MARGIN);
        loop {
            match self.answer.load(Ordering::Acquire) {
                YES => return Ok(true),
                NO => return Ok(false),
                _ => {}
            }
            let left = latest.saturating_sub(start.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            match self.done.wait_for(left) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {
                    return Err(ReachError::Interrupted);
                }
                Err(e) if e.kind() == io::ErrorKind::OutOfMemory => {
                    return Err(ReachError::NoMemory);
                }
                Err(e) => return Err(ReachError::Io(e.to_string())),
            }
        }
    }
}

/// A path of the administrator's.
pub(crate) fn record(path: &SaPath) -> PathRecord {
    PathRecord {
        dgid: path.dgid,
        sgid: path.sgid,
        dlid: path.dlid,
        slid: path.slid,
        flow_label: path.flow_label,
        hop_limit: path.hop_limit,
        traffic_class: path.traffic_class,
        pkey: path.pkey,
        sl: path.sl,
        mtu: Mtu::from_bytes_floor(128 << path.mtu.min(5)).unwrap_or(Mtu::M256),
        rate: path.rate,
        packet_life_time: path.life_time,
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
