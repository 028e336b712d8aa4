//! Devices and contexts.

use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ironverbs_soft::{
    self as soft, Config, DeviceAttr, GidEntry, PortAttr, ReachError, SmEvents, SmRegistration,
};
use ironverbs_sys::process::ForkGuard;

use crate::events::{EventQueue, NextEvent};
use crate::reactor::Reactor;
use crate::{Error, Gid};

/// The devices of this machine. Clones are the same; two that are made separately are as two processes.
#[derive(Clone, Debug)]
pub struct Devices(soft::Host);

impl From<soft::Host> for Devices {
    fn from(host: soft::Host) -> Self {
        Devices(host)
    }
}

impl Devices {
    /// The devices as the environment and the configuration files ask for.
    ///
    /// # Errors
    /// Config, naming file, key and value; Host, when the system refuses a descriptor.
    pub fn new() -> Result<Devices, Error> {
        Devices::with(Config::load()?)
    }

    /// The devices of a configuration of the program's own.
    ///
    /// # Errors
    /// Host, when the system refuses a descriptor.
    pub fn with(config: Config) -> Result<Devices, Error> {
        Ok(Devices(soft::Host::start(config)?))
    }

    /// The devices present now (ibv_get_device_list(3)).
    ///
    /// # Errors
    /// Object, when the interfaces cannot be listed.
    pub fn list(&self) -> Result<Vec<Device>, Error> {
        Ok(self.0.devices()?.into_iter().map(Device).collect())
    }

    /// The device of that name.
    ///
    /// # Errors
    /// NoDevice, which names those that are present.
    pub fn named(&self, name: &str) -> Result<Device, Error> {
        self.find(name, |device| device.name() == name)
    }

    /// The device that has a local address.
    ///
    /// # Errors
    /// NoDevice, which names those that are present.
    pub fn with_address(&self, address: IpAddr) -> Result<Device, Error> {
        let gid = Gid::from_ip(address);
        let wanted = format!("with address {address}");
        self.find(&wanted, |device| device.gids().contains(&gid))
    }

    /// The first device.
    ///
    /// # Errors
    /// NoDevice.
    pub fn first(&self) -> Result<Device, Error> {
        self.find("at all", |_| true)
    }

    pub(crate) fn host(&self) -> &soft::Host {
        &self.0
    }

    fn find(&self, wanted: &str, is: impl Fn(&Device) -> bool) -> Result<Device, Error> {
        let devices = self.list()?;
        let present = devices.iter().map(|device| device.name().to_owned()).collect();
        let found = devices.into_iter().find(is);
        found.ok_or(Error::NoDevice { name: wanted.to_owned(), present })
    }
}

/// A device. It stays valid whatever becomes of its interface.
#[derive(Clone, Debug)]
pub struct Device(Arc<soft::Device>);

impl Device {
    pub(crate) fn raw(&self) -> &Arc<soft::Device> {
        &self.0
    }

    pub(crate) fn from_raw(raw: Arc<soft::Device>) -> Device {
        Device(raw)
    }

    /// Its name, as in `iron0`.
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Node GUID (EUI-64), host order; unique and not 0.
    pub fn guid(&self) -> u64 {
        self.0.guid()
    }

    /// Name of its network interface.
    pub fn interface(&self) -> String {
        self.0.interface()
    }

    /// Whether the interface still exists.
    pub fn is_present(&self) -> bool {
        self.0.is_present()
    }

    /// Opens it (ibv_open_device(3)).
    ///
    /// # Errors
    /// Object: the interface is gone, descriptors ran out, this process is a fork.
    pub fn open(&self) -> Result<Context, Error> {
        let raw = self.0.open()?;
        let events = Arc::new(EventQueue::default());
        let reactor = Reactor::new(&raw, events.clone())?;
        let fork = Arc::new(ForkGuard::new().map_err(soft::Error::from)?);
        Ok(Context(Arc::new(ContextInner { reactor, events, fork, raw })))
    }

    fn gids(&self) -> Vec<Gid> {
        let table = self.0.inspect().map(|context| context.gid_table(1)).unwrap_or_default();
        table.iter().map(|entry| entry.gid).collect()
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An open device. Clones are the same; it stays open while any object made from it exists.
#[derive(Clone, Debug)]
pub struct Context(pub(crate) Arc<ContextInner>);

#[derive(Debug)]
pub(crate) struct ContextInner {
    reactor: Reactor,
    events: Arc<EventQueue>,
    fork: Arc<ForkGuard>,
    pub(crate) raw: Arc<soft::Context>,
}

impl Context {
    /// The device.
    pub fn device(&self) -> Device {
        Device(self.0.raw.device().clone())
    }

    /// Limits of the device (ibv_query_device(3)).
    pub fn attr(&self) -> DeviceAttr {
        self.0.raw.attr()
    }

    /// Attributes of a port, counted from 1 (ibv_query_port(3)).
    ///
    /// # Errors
    /// Object (Limit, Invalid): there is no such port.
    pub fn port(&self, port: u8) -> Result<PortAttr, Error> {
        self.0.raw.await_subnet_manager();
        Ok(self.0.raw.port(port)?)
    }

    /// The entries of port 1's GID table that are in use.
    pub fn gids(&self) -> Vec<GidEntry> {
        self.0.raw.gid_table(1)
    }

    /// An entry of port 1's GID table.
    ///
    /// # Errors
    /// Object (Limit, Invalid): there is no such entry, or it is empty.
    pub fn gid(&self, index: u32) -> Result<Gid, Error> {
        Ok(self.0.raw.gid(1, index)?.gid)
    }

    /// Whether `gid` can be reached from this device (ibv_gid_reachable(3)): its own QP1 is asked, for at most `timeout`,
    /// two seconds where there is none. A GID of this host answers at once.
    ///
    /// # Errors
    /// See [`ReachError`].
    pub fn gid_reachable(&self, gid: Gid, timeout: Option<Duration>) -> Result<(), ReachError> {
        self.0.raw.gid_reachable(0, &gid, timeout)
    }

    /// Has [`next_event`](Context::next_event) tell when GIDs and multicast groups come and go, until what is returned is
    /// dropped (ibv_register_sm_events(3)). `gids` are those that MGID and UGID are for.
    ///
    /// # Errors
    /// Object: Invalid as of [`SmRegistration::new`]; Io when the device has no wire.
    pub fn sm_events(&self, events: SmEvents, gids: &[Gid]) -> Result<SmWatch, Error> {
        let registration = SmRegistration::new(events, gids)?;
        self.0.raw.register_sm_events(registration.clone())?;
        Ok(SmWatch { context: self.0.clone(), registration })
    }

    /// The next asynchronous event of the device or one of its objects.
    pub fn next_event(&self) -> NextEvent {
        NextEvent::new(self.0.clone())
    }
}

/// A registration for events of the fabric; see [`Context::sm_events`].
#[derive(Debug)]
pub struct SmWatch {
    context: Arc<ContextInner>,
    registration: SmRegistration,
}

impl Drop for SmWatch {
    fn drop(&mut self) {
        // In a fork it is the parent's.
        let _ = self.context.raw.unregister_sm_events(&self.registration);
    }
}

impl ContextInner {
    pub(crate) fn reactor(&self) -> &Reactor {
        &self.reactor
    }

    pub(crate) fn events(&self) -> &EventQueue {
        &self.events
    }

    /// Tells the process that opened the device from its forks.
    pub(crate) fn fork(&self) -> &Arc<ForkGuard> {
        &self.fork
    }

    /// Destroys an object of the device, or in a fork leaves it alone: it is the parent's, and a lock may be held by
    /// a thread that is not there.
    pub(crate) fn end<T>(&self, object: &Arc<T>, destroy: impl FnOnce(&T)) {
        match self.fork.is_child() {
            true => std::mem::forget(object.clone()),
            // No event of it is being read meanwhile.
            false => self.reactor.quietly(|| destroy(object)),
        }
    }
}

impl Drop for ContextInner {
    fn drop(&mut self) {
        // Nothing made from it exists any more.
        self.end(&self.raw, |raw| drop(raw.destroy()));
    }
}
