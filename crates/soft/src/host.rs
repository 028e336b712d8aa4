//! The Host: everything that one process has of the software device.

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::Write;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Once, OnceLock, Weak};
use std::time::Duration;

use ironverbs_sys::copy;
use ironverbs_sys::diag::Owner;
use ironverbs_sys::netlink::{self, Interface};
use ironverbs_sys::process::{self, ForkGuard};
use ironverbs_sys::{marks, moment};
use ironverbs_transport::device::Instant;
use ironverbs_wire::Gid;
use parking_lot::{Mutex, MutexGuard, RwLock};

use crate::cm;
use crate::config::{DataPath, OneSided};
use crate::context::first_handle;
use crate::cq::moderation;
use crate::device::Devices;
use crate::direct::Table;
use crate::error::HostError;
use crate::event::EventKind;
use crate::fabric::Fabric;
use crate::link::{LinkCounters, Outlet, Sender, Sockets};
use crate::management::{self, steward::Steward};
use crate::memory::Regions;
use crate::multicast::Groups;
use crate::neighbours::Blocked;
use crate::object::{Identity, Quota, Quotas};
use crate::progress::{Background, Engine, Kick, ReceiveCounters};
use crate::qp::Unpublished;
use crate::qpn::QpTable;
use crate::reference::{Cookie, Gauge};
use crate::registry::{JoinError, JoinOptions, Member, Presence, Registry};
use crate::status::Board;
use crate::subnet::Subnet;
use crate::timers::Timers;
use crate::xrcd::Domains;
use crate::{AttrMask, Config, Cq, Device, Error, QpAttr, QpState};

/// Every Host that was started in this process, or in the one that this is a fork of.
static STARTED: Mutex<Vec<Weak<Inner>>> = Mutex::new(Vec::new());

/// How long the end of a program waits for a lock that another thread holds.
pub(crate) const AT_EXIT: Duration = Duration::from_millis(20);

/// How often, and how far apart, the end of a program tries to send through a full lane what a peer is still owed: a peer
/// that takes what is in the lane makes room within that time, and one that is stopped does not keep the program.
const LAST_TRIES: u32 = 1000;
const LAST_PAUSE: Duration = Duration::from_micros(100);

/// Programs end right after their last completion, and their peers wait for what acknowledges it.
fn farewell() {
    // In a fork the lock may be held for ever.
    let Some(started) = STARTED.try_lock_for(AT_EXIT) else { return };
    for host in started.iter().filter_map(Weak::upgrade) {
        Host(host).farewell();
    }
}

/// All of the software device that one process has: devices, objects, sockets and the thread that works when
/// nobody polls. Clones are the same Host.
#[derive(Clone)]
pub struct Host(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    pub(crate) config: Config,
    pub(crate) clock: Clock,
    pub(crate) cookie: Cookie,
    pub(crate) gauge: Gauge,
    pub(crate) regions: marks::Lock<Regions>,
    pub(crate) qps: RwLock<QpTable>,
    pub(crate) xrc: Domains,
    pub(crate) groups: Groups,
    pub(crate) timers: Timers,
    pub(crate) cm: cm::Manager,
    pub(crate) fabric: Fabric,
    pub(crate) management: management::Manager,
    pub(crate) steward: Steward,
    pub(crate) engine: moment::Mutex<Engine>,
    pub(crate) wire: OnceLock<Wire>,
    /// What peers on this host may do by themselves.
    pub(crate) table: OnceLock<Arc<Table>>,
    /// Polls so far: the background thread keeps out while they rise.
    pub(crate) polls: AtomicU64,
    /// CQs that will wake a sleeper.
    pub(crate) armed: AtomicUsize,
    pub(crate) kick: Arc<Kick>,
    pub(crate) received: ReceiveCounters,
    pub(crate) sent: Arc<LinkCounters>,
    /// CQs that overran and whose QPs are to follow.
    overrun: Mutex<Vec<Weak<Cq>>>,
    any_overrun: AtomicBool,
    pub(crate) moderated: moderation::Waiting,
    /// A device was removed whose QPs are to follow.
    any_removed: AtomicBool,
    /// QPs that wait for room in a lane.
    pub(crate) blocked: Blocked,
    pub(crate) unpublished: Unpublished,
    /// Every address of this host.
    addresses: RwLock<HashSet<Gid>>,
    /// Where the links are InfiniBand.
    pub(crate) subnet: Option<Arc<Subnet>>,
    interfaces: Interfaces,
    devices: Mutex<Devices>,
    handles: AtomicU32,
    pub(crate) quotas: Quotas,
    joining: Mutex<Joining>,
    fork: ForkGuard,
}

/// The way to other hosts and processes.
pub(crate) struct Wire {
    senders: [Mutex<Sender>; 2],
    /// Membership in the group of this user's processes; none in a simulation.
    pub(crate) registry: Option<Registry>,
    /// What this process tells the others of itself.
    pub(crate) board: Option<Board>,
}

impl Wire {
    fn new(
        outlet: Arc<dyn Outlet>,
        counters: &Arc<LinkCounters>,
        registry: Option<Registry>,
    ) -> Wire {
        let sender = || Mutex::new(Sender::new(outlet.clone(), counters.clone()));
        // Without it others see less, and what was done when this process ends may count as lost.
        let board = registry.as_ref().and_then(|registry| registry.board().ok());
        Wire { senders: [sender(), sender()], registry, board }
    }
}

/// Where the list of network interfaces comes from.
#[derive(Debug)]
pub(crate) enum Interfaces {
    /// The system.
    System,
    /// A simulation.
    Fixed(Vec<Interface>),
}

#[derive(Default)]
struct Joining {
    background: Option<Background>,
    /// The failure that was told last, so that it is told once.
    told: Option<String>,
}

/// Time: the system's, or a simulation's.
#[derive(Clone, Debug)]
pub(crate) enum Clock {
    /// Monotonic, divided by the configured scale: transport timers stretch with it.
    System { scale: u64 },
    /// Set by the simulation.
    Virtual(Arc<AtomicU64>),
}

impl Clock {
    pub(crate) fn now(&self) -> Instant {
        match self {
            Clock::System { scale: 1 } => Instant(ironverbs_sys::clock::monotonic_ns()),
            Clock::System { scale } => Instant(ironverbs_sys::clock::monotonic_ns() / scale),
            Clock::Virtual(now) => Instant(now.load(Ordering::Acquire)),
        }
    }

    /// What `ns` nanoseconds on the wall are on this clock.
    pub(crate) fn ticks(&self, ns: u64) -> u64 {
        match self {
            Clock::System { scale } => ns / scale,
            Clock::Virtual(_) => ns,
        }
    }

    /// Nanoseconds on the wall that `ns` of this clock take.
    pub(crate) fn real(&self, ns: u64) -> u64 {
        match self {
            Clock::System { scale } => ns.saturating_mul(*scale),
            Clock::Virtual(_) => ns,
        }
    }
}

impl Host {
    /// A Host on this machine. Sockets and thread come with the first device that is opened.
    pub fn start(config: Config) -> Result<Host, HostError> {
        let scale = u64::from(config.timeout_scale.value).max(1);
        if config.safe_copy.value {
            copy::use_kernel().map_err(HostError::SafeCopy)?;
        }
        let inner = Inner::new(config, Clock::System { scale }, Interfaces::System)?;
        let host = Host(Arc::new(inner));
        let mut started = STARTED.lock();
        started.retain(|host| host.strong_count() > 0);
        started.push(Arc::downgrade(&host.0));
        static REGISTERED: Once = Once::new();
        // Where it fails the process ends without a farewell, as one does that is killed.
        REGISTERED.call_once(|| drop(process::at_exit(farewell)));
        drop(started);
        Ok(host)
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.0.config
    }

    /// The devices present now; a device is the same object for as long as it is present.
    pub fn devices(&self) -> Result<Vec<Arc<Device>>, Error> {
        self.0.check()?;
        self.0.follow_interfaces()?;
        Ok(self.0.devices.lock().present())
    }

    /// The processes of this user on this host that have a device open, this one included.
    pub fn members(&self) -> Vec<Member> {
        let registry = self.0.wire.get().and_then(|wire| wire.registry.as_ref());
        registry.map(Registry::members).unwrap_or_default()
    }

    /// Joins the processes of this user that have a device open, without opening one: for a process that only stays so
    /// that their group does. Where it fails, [`Host::wire_problem`] tells why.
    pub fn enroll(&self) -> Result<(), Error> {
        self.0.check()?;
        // On an InfiniBand link its ports are asked for by others.
        self.0.follow_interfaces()?;
        self.join()
    }

    /// Why packets can be neither sent nor received, if that was tried and failed.
    pub fn wire_problem(&self) -> Option<String> {
        self.0.wire_problem()
    }

    /// For the end of a program, and called by itself where one ends by exit(3): sends what was put off, disconnects what
    /// is connected by the connection manager, and tells the processes at the other ends of lanes that this one ends in good order, so that they do not take its death for a
    /// crash. Everything works on afterwards.
    pub fn farewell(&self) {
        if self.0.check().is_err() {
            return;
        }
        self.0.flush();
        self.0.cm.farewell(&self.0);
        if let Some(lanes) = self.0.lanes() {
            for _ in 0..LAST_TRIES {
                lanes.pay();
                if !lanes.owes() {
                    break;
                }
                std::thread::sleep(LAST_PAUSE);
            }
            lanes.leave();
        }
    }

    /// Does what there is to do now: packets, timers. Whether there was anything. Polling a CQ does the same.
    pub fn progress(&self) -> bool {
        self.0.check().is_ok() && self.0.progress_inline()
    }

    /// Makes sure that the background thread runs, and tries to join the host registry if this process is not a
    /// member yet. Where that fails the device works without a wire: its port is down, and one line says why.
    pub(crate) fn join(&self) -> Result<(), Error> {
        if matches!(self.0.clock, Clock::Virtual(_)) {
            return Ok(());
        }
        let mut joining = self.0.joining.lock();
        self.0.make_table();
        if joining.background.is_none() {
            joining.background = Some(Background::start(&self.0)?);
        }
        if self.0.has_wire() {
            return Ok(());
        }
        match self.0.open_wire() {
            Ok(wire) => {
                let _ = self.0.wire.set(wire);
                if let Some(registry) = self.0.registry() {
                    self.0.groups.join_all(&self.0, registry);
                    self.0.cm.joined(registry);
                    self.0.announce();
                    self.0.steward.start(&self.0);
                }
                self.0.kick.wake();
                for device in self.0.devices.lock().present() {
                    device.raise(EventKind::PortActive);
                }
            }
            Err(e) => {
                let why = e.to_string();
                if joining.told.as_ref() != Some(&why) {
                    let _ = writeln!(std::io::stderr(), "ironverbs: {why}; the port is down");
                    joining.told = Some(why);
                }
            }
        }
        Ok(())
    }
}

impl Inner {
    pub(crate) fn new(
        config: Config,
        clock: Clock,
        interfaces: Interfaces,
    ) -> Result<Inner, HostError> {
        let subnet = Subnet::of(&config).map(Arc::new);
        Ok(Inner {
            config,
            clock,
            cookie: Cookie::new(),
            gauge: Gauge::default(),
            regions: marks::Lock::default(),
            qps: RwLock::default(),
            xrc: Domains::default(),
            groups: Groups::default(),
            timers: Timers::default(),
            cm: cm::Manager::default(),
            fabric: Fabric::default(),
            management: management::Manager::default(),
            steward: Steward::default(),
            engine: moment::Mutex::new(Engine::new()),
            wire: OnceLock::new(),
            table: OnceLock::new(),
            polls: AtomicU64::new(0),
            armed: AtomicUsize::new(0),
            kick: Arc::new(Kick::new()?),
            received: ReceiveCounters::default(),
            sent: Arc::default(),
            overrun: Mutex::default(),
            any_overrun: AtomicBool::new(false),
            moderated: moderation::Waiting::default(),
            any_removed: AtomicBool::new(false),
            blocked: Blocked::default(),
            unpublished: Unpublished::default(),
            addresses: RwLock::default(),
            subnet,
            interfaces,
            devices: Mutex::default(),
            handles: first_handle(),
            quotas: Quotas::default(),
            joining: Mutex::default(),
            fork: ForkGuard::new()?,
        })
    }

    /// Makes what peers on this host read to carry out one-sided operations by themselves. Without it packets carry
    /// them.
    fn make_table(&self) {
        let wanted =
            self.config.path.value != DataPath::Wire && self.config.onesided.value != OneSided::Off;
        if wanted
            && self.table.get().is_none()
            && let Ok(table) = Table::create(self.cookie.value())
        {
            let table = Arc::new(table);
            self.regions.write().tell(table.clone());
            let _ = self.table.set(table);
        }
    }

    /// Connects a Host of a simulation, whose QPNs come from `block`.
    pub(crate) fn simulate(&self, outlet: Arc<dyn Outlet>, block: u16) {
        self.qps.write().add_block(block, 0);
        let _ = self.wire.set(Wire::new(outlet, &self.sent, None));
    }

    /// Why the wire could not be opened, if it could not.
    pub(crate) fn wire_problem(&self) -> Option<String> {
        if self.has_wire() { None } else { self.joining.lock().told.clone() }
    }

    /// An error in a child of the process that made the Host.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.fork.is_child() { Err(Error::Forked) } else { Ok(()) }
    }

    pub(crate) fn now(&self) -> Instant {
        self.clock.now()
    }

    pub(crate) fn identity(&self, what: &'static str) -> Identity {
        Identity::new(what, &self.handles)
    }

    /// Of an object of which there may only be so many.
    pub(crate) fn counted(&self, quota: &Arc<Quota>) -> Result<Identity, Error> {
        Identity::counted(quota, &self.handles)
    }

    /// Whether packets can be sent and received.
    pub(crate) fn has_wire(&self) -> bool {
        self.wire.get().is_some()
    }

    /// Brings the devices up to date with the network interfaces.
    pub(crate) fn follow_interfaces(self: &Arc<Self>) -> Result<(), Error> {
        // Held while the system is asked: of two answers the older must not be the last that is taken over.
        let mut devices = self.devices.lock();
        let any_removed = match &self.interfaces {
            Interfaces::System => {
                let interfaces = netlink::interfaces()?;
                let any_removed = devices.refresh(self, &interfaces);
                let addresses = interfaces.iter().flat_map(|i| &i.addresses);
                let ports = addresses
                    .clone()
                    .filter_map(|a| self.subnet.as_ref()?.of_address(a.ip).map(|place| place.gid));
                let addresses = addresses.map(|a| Gid::from_ip(a.ip));
                *self.addresses.write() = addresses.chain(ports).collect();
                self.fabric.follow(&interfaces, self.subnet.as_deref());
                any_removed
            }
            Interfaces::Fixed(interfaces) => devices.refresh(self, interfaces),
        };
        drop(devices);
        if any_removed {
            self.any_removed.store(true, Ordering::Release);
            self.kick.wake_sleeper();
        }
        Ok(())
    }

    /// The devices present when the interfaces were last looked at.
    pub(crate) fn present_devices(&self) -> Vec<Arc<Device>> {
        self.devices.lock().present()
    }

    /// Tells the other processes of the host which devices are open here.
    pub(crate) fn announce(&self) {
        let Some(registry) = self.registry() else { return };
        let mut open = self.devices.lock().open();
        open.sort_unstable();
        let watches = self.fabric.is_watching();
        let only_watches = watches && self.qps.read().len() == 0;
        registry.announce(&Presence { open, all: false, watches, only_watches });
    }

    /// A number that nobody can guess; in a simulation the same in every run.
    pub(crate) fn random(&self) -> u128 {
        match self.clock {
            Clock::System { .. } => {
                let half = || u128::from(RandomState::new().build_hasher().finish());
                half() << 64 | half()
            }
            Clock::Virtual(_) => {
                self.present_devices().first().map_or(0, |device| device.guid()).into()
            }
        }
    }

    /// Whether it lives in a simulated network.
    pub(crate) fn is_simulated(&self) -> bool {
        matches!(self.interfaces, Interfaces::Fixed(_))
    }

    /// The IP address that a GID stands for: on InfiniBand that of the port's interface.
    pub(crate) fn ip_of(&self, gid: &Gid) -> IpAddr {
        let place = self.subnet.as_ref().and_then(|subnet| subnet.of_gid(gid));
        place.map_or(gid.to_ip(), |place| place.address)
    }

    /// The GID that an IP address stands for; on InfiniBand there may be none.
    pub(crate) fn gid_of(&self, ip: IpAddr) -> Option<Gid> {
        match &self.subnet {
            Some(subnet) => subnet.of_address(ip).map(|place| place.gid),
            None => Some(Gid::from_ip(ip)),
        }
    }

    /// LID and service level of the subnet manager, of InfiniBand links; 0: none is known.
    pub(crate) fn subnet_manager(&self) -> (u16, u8) {
        self.registry().map_or((0, 0), Registry::subnet_manager)
    }

    /// A subnet manager says who it is, and whether programs are to say `anew` what they told the one before.
    pub(crate) fn set_subnet_manager(&self, lid: u16, sl: u8, anew: bool) {
        let before = self.subnet_manager();
        if let Some(registry) = self.registry() {
            registry.set_subnet_manager(lid, sl);
        }
        if anew || before != (lid, sl) {
            self.steward.told(self);
        }
    }

    /// Whether the subnet manager is on this host.
    pub(crate) fn has_manager(&self) -> bool {
        let place = self.subnet.as_ref().and_then(|s| s.of_lid(self.subnet_manager().0));
        place.is_some_and(|place| self.is_local(&place.gid))
    }

    /// A CQ overran. Its QPs fail in the next round: here one of them may be locked.
    pub(crate) fn overran(&self, cq: Weak<Cq>) {
        self.overrun.lock().push(cq);
        self.any_overrun.store(true, Ordering::Release);
        self.kick.wake_sleeper();
    }

    /// Fails the QPs of CQs that overran. Whether there were any.
    pub(crate) fn fail_overrun(&self) -> bool {
        if !self.any_overrun.load(Ordering::Relaxed)
            || !self.any_overrun.swap(false, Ordering::AcqRel)
        {
            return false;
        }
        let cqs = std::mem::take(&mut *self.overrun.lock());
        let qps: Vec<_> = self.qps.read().all().collect();
        for cq in cqs.iter().filter_map(Weak::upgrade) {
            for qp in qps.iter().filter(|qp| qp.completes_to(&cq)) {
                let error = QpAttr { state: QpState::Err, ..QpAttr::default() };
                // From RESET there is nothing to fail.
                let _ = qp.change(&error, AttrMask::STATE);
            }
        }
        true
    }

    /// Fails the QPs of devices that were removed. Whether there were any.
    pub(crate) fn fail_removed(&self) -> bool {
        if !self.any_removed.load(Ordering::Relaxed)
            || !self.any_removed.swap(false, Ordering::AcqRel)
        {
            return false;
        }
        let (qps, now) = (self.qps.read().all().collect::<Vec<_>>(), self.now());
        for qp in qps {
            qp.follow_device(now);
        }
        true
    }

    /// Whether an address is this host's.
    pub(crate) fn is_local(&self, gid: &Gid) -> bool {
        let loopback = |gid: &Gid| gid.to_ip().is_loopback();
        self.addresses.read().contains(gid) || loopback(gid)
    }

    fn open_wire(&self) -> Result<Wire, OpenError> {
        let port = self.config.udp_port.value;
        let lanes = self.config.path.value != DataPath::Wire;
        let options = JoinOptions { port, lanes, ..JoinOptions::default() };
        let registry = Registry::join(&options)?;
        if let Some(table) = self.table.get() {
            registry.lanes().announce(table);
        }
        let sockets = Arc::new(Sockets::open(port, registry.slot(), self.subnet.clone())?);
        Ok(Wire::new(sockets, &self.sent, Some(registry)))
    }

    /// A free sender, or the first to become free.
    pub(crate) fn sender(&self) -> Option<MutexGuard<'_, Sender>> {
        let wire = self.wire.get()?;
        let free = wire.senders.iter().find_map(|sender| sender.try_lock());
        Some(free.unwrap_or_else(|| wire.senders[0].lock()))
    }

    /// A number for a new QP.
    pub(crate) fn take_qpn(&self, now: Instant) -> Option<u32> {
        let mut qps = self.qps.write();
        if let Some(qpn) = qps.take(now) {
            return Some(qpn);
        }
        let start = (ironverbs_sys::clock::monotonic_ns() ^ u64::from(process::pid()) << 7) as u16;
        match self.wire.get().and_then(|wire| wire.registry.as_ref()).map(Registry::claim_block) {
            Some(Ok(block)) => qps.add_block(block.number(), start),
            Some(Err(_)) => return qps.take_unrested(),
            // Without a wire no packet can come: any numbers do, from one block that is never claimed.
            None if qps.len() == 0 => qps.add_block(0xfff, start),
            None => return qps.take_unrested(),
        }
        qps.take(now)
    }
}

/// Why a process has no wire.
#[derive(Debug, thiserror::Error)]
enum OpenError {
    #[error("{}", describe(.0))]
    Join(#[from] JoinError),
    #[error("cannot open the sockets to send from: {0}")]
    Sockets(#[from] std::io::Error),
}

fn describe(error: &JoinError) -> String {
    let JoinError::PortTaken { port, owner } = error else { return error.to_string() };
    let owner = match owner {
        Some(Owner { pid: Some(pid), comm, uid, .. }) => {
            format!("process {pid} ({comm}) of user {uid}")
        }
        Some(Owner { kernel: true, rxe: true, .. }) => {
            "the kernel's soft-RoCE (module rdma_rxe)".into()
        }
        Some(Owner { kernel: true, .. }) => "the kernel".into(),
        Some(Owner { uid, .. }) => format!("a process of user {uid} that cannot be seen from here"),
        None => "a process that cannot be seen from here".into(),
    };
    format!("UDP port {port} is taken by {owner}: stop it, or set IRONVERBS_UDP_PORT on all peers")
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("wire", &self.0.has_wire()).finish_non_exhaustive()
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}
