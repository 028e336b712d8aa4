//! Devices: one for each network interface, with a port and a table of GIDs that follow it.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use ironverbs_sys::copy;
use ironverbs_sys::netlink::Interface;
use ironverbs_sys::process;
use ironverbs_wire::{Gid, Mtu};
use parking_lot::{Mutex, RwLock};

use crate::context::limits;
use crate::event::{AsyncEvent, EventKind, EventSource};
use crate::host::Inner;
use crate::raw::Steering;
use crate::subnet::{self, Place, Subnet};
use crate::{Context, Error, Host};

/// A software device.
#[derive(Debug)]
pub struct Device {
    name: String,
    index: u32,
    ifindex: u32,
    guid: u64,
    host: Weak<Inner>,
    /// What its port is on, if that is an InfiniBand link.
    subnet: Option<Arc<Subnet>>,
    port: RwLock<Port>,
    present: AtomicBool,
    is_loopback: bool,
    /// Who receives its raw packets.
    pub(crate) steering: Steering,
    contexts: Mutex<Vec<Weak<Context>>>,
}

/// What is known of the interface.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Port {
    interface: String,
    up: bool,
    mtu: u32,
    /// Entries keep their places; those of addresses that went away are empty.
    gids: Vec<Option<Gid>>,
    /// On InfiniBand links.
    place: Option<Place>,
}

/// Bytes that an InfiniBand packet in UDP has around its BTH and payload and a RoCEv2 packet has not, to be on the
/// safe side: encapsulation, LRH, GRH, XRCETH and VCRC.
const SURPLUS: u32 = 66;

impl Device {
    /// Its name, as `ibv_devices` shows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether its Host is the parent's of this process, a fork, in which it can do nothing.
    pub fn is_of_parent(&self) -> bool {
        self.host.upgrade().is_some_and(|host| host.check().is_err())
    }

    /// Its number among the devices of this Host, from 0.
    pub fn index(&self) -> u32 {
        self.index
    }

    /// Node GUID (EUI-64), host order; unique and not 0.
    pub fn guid(&self) -> u64 {
        self.guid
    }

    /// Name of its network interface.
    pub fn interface(&self) -> String {
        self.port.read().interface.clone()
    }

    /// Number of its network interface.
    pub fn ifindex(&self) -> u32 {
        self.ifindex
    }

    /// MTU of its network interface, in bytes.
    pub(crate) fn interface_mtu(&self) -> u32 {
        self.port.read().mtu
    }

    /// Whether what leaves its interface comes in again.
    pub(crate) fn is_loopback(&self) -> bool {
        self.is_loopback
    }

    /// Whether the interface still exists.
    pub fn is_present(&self) -> bool {
        self.present.load(Ordering::Acquire)
    }

    /// Opens the device (ibv_open_device(3)); valid until closed, whatever becomes of the interface.
    pub fn open(self: &Arc<Self>) -> Result<Arc<Context>, Error> {
        let host =
            self.host.upgrade().map(Host).ok_or(Error::Gone { device: self.name.clone() })?;
        host.0.check()?;
        if !self.is_present() {
            return Err(Error::Gone { device: self.name.clone() });
        }
        host.join()?;
        // Before anything is copied. Where it may not be done, only memory taken away under a region is not survived.
        let _ = copy::arm();
        let context = Context::new(host, self)?;
        let mut contexts = self.contexts.lock();
        // Looked at again under the lock under which a removal is told.
        if !self.is_present() {
            return Err(Error::Gone { device: self.name.clone() });
        }
        contexts.push(Arc::downgrade(&context));
        drop(contexts);
        context.inner().announce();
        Ok(context)
    }

    /// Opens the device to look at it: nothing is joined or started, and its port is down.
    pub fn inspect(self: &Arc<Self>) -> Result<Arc<Context>, Error> {
        let host =
            self.host.upgrade().map(Host).ok_or(Error::Gone { device: self.name.clone() })?;
        host.0.check()?;
        Context::new(host, self)
    }

    fn is_open(&self) -> bool {
        self.contexts.lock().iter().any(|context| context.strong_count() > 0)
    }

    pub(crate) fn forget(&self, context: &Context) {
        self.contexts.lock().retain(|c| !std::ptr::eq(c.as_ptr(), context) && c.strong_count() > 0);
    }

    /// Whether the interface is up, and the largest MTU that fits it.
    pub fn link(&self) -> (bool, Mtu) {
        let port = self.port.read();
        let mtu = port.mtu.saturating_sub(if self.subnet.is_some() { SURPLUS } else { 0 });
        (port.up, Mtu::from_interface(mtu).unwrap_or(Mtu::M256))
    }

    /// The subnet of its port, if that has an InfiniBand link.
    pub(crate) fn subnet(&self) -> Option<&Arc<Subnet>> {
        self.subnet.as_ref()
    }

    /// The place of its port on that subnet; None while the interface does not have the address.
    pub(crate) fn place(&self) -> Option<Place> {
        self.port.read().place
    }

    pub(crate) fn gid(&self, index: u32) -> Option<Gid> {
        self.port.read().gids.get(index as usize).copied().flatten()
    }

    /// The GIDs in its table, with their places.
    pub fn gids(&self) -> Vec<(u32, Gid)> {
        let port = self.port.read();
        port.gids.iter().enumerate().filter_map(|(i, gid)| Some((i as u32, (*gid)?))).collect()
    }

    pub(crate) fn has_gid(&self, gid: &Gid) -> bool {
        self.port.read().gids.contains(&Some(*gid))
    }

    /// Tells all contexts of an event of the port.
    pub(crate) fn raise(&self, kind: EventKind) {
        self.tell(kind, &EventSource::Port(1));
    }

    fn tell(&self, kind: EventKind, source: &EventSource) {
        for context in self.contexts.lock().iter().filter_map(Weak::upgrade) {
            context.events.push(AsyncEvent { kind, source: source.clone() });
        }
    }

    /// Takes over what the interface has become; None when it is gone, and with it the device, for good: an interface
    /// that comes back, even with the same number (from another network namespace), is a new device.
    fn follow(&self, interface: Option<&Interface>) {
        let gone = Interface {
            index: self.ifindex,
            name: self.interface(),
            mtu: self.port.read().mtu,
            up: false,
            loopback: false,
            mac: [0; 6],
            addresses: Vec::new(),
        };
        if interface.is_none() {
            self.present.store(false, Ordering::Release);
        }
        let mut port = self.port.write();
        let mut now = port.clone();
        now.update(interface.unwrap_or(&gone), self.subnet.as_deref());
        let before = std::mem::replace(&mut *port, now);
        let (up, gids) = (port.up, port.gids.clone());
        drop(port);
        if gids != before.gids {
            self.raise(EventKind::GidChange);
        }
        match (before.up, up) {
            (false, true) => self.raise(EventKind::PortActive),
            (true, false) => self.raise(EventKind::PortErr),
            _ => {}
        }
        if interface.is_none() {
            self.steering.flush();
            self.tell(EventKind::DeviceFatal, &EventSource::Device);
        }
    }
}

impl Port {
    fn update(&mut self, interface: &Interface, subnet: Option<&Subnet>) {
        self.interface.clone_from(&interface.name);
        self.up = interface.up;
        self.mtu = interface.mtu;
        let mut wanted = gids(interface);
        if let Some(subnet) = subnet {
            self.place = subnet.place(interface, wanted.first().map(Gid::to_ip));
            self.up &= self.place.is_some();
            wanted = self.place.map(|place| place.gid).into_iter().collect();
        }
        for entry in &mut self.gids {
            if entry.is_some_and(|gid| !wanted.contains(&gid)) {
                *entry = None;
            }
        }
        for gid in wanted {
            if self.gids.contains(&Some(gid)) {
                continue;
            }
            match self.gids.iter().position(Option::is_none) {
                Some(empty) => self.gids[empty] = Some(gid),
                None if self.gids.len() < limits::GIDS as usize => self.gids.push(Some(gid)),
                None => {}
            }
        }
    }
}

/// GIDs of an interface: global IPv4, global IPv6, link-local, so that index 0 works for programs that never ask.
fn gids(interface: &Interface) -> Vec<Gid> {
    let rank = |gid: &Gid| match gid {
        gid if gid.is_ipv4() => 0,
        gid if gid.is_link_local() => 2,
        _ => 1,
    };
    let usable = interface.addresses.iter().filter(|a| !a.tentative);
    let mut gids: Vec<Gid> = usable.map(|a| Gid::from_ip(a.ip)).collect();
    gids.sort_by_key(rank);
    gids
}

/// All devices of a Host, in the order in which they were found.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    list: Vec<Arc<Device>>,
}

impl Devices {
    pub(crate) fn present(&self) -> Vec<Arc<Device>> {
        self.list.iter().filter(|device| device.is_present()).cloned().collect()
    }

    /// The interfaces of the devices that are open.
    pub(crate) fn open(&self) -> Vec<u32> {
        self.list.iter().filter(|device| device.is_open()).map(|device| device.ifindex).collect()
    }

    /// Brings the devices up to date with the interfaces. Whether one was removed.
    pub(crate) fn refresh(&mut self, host: &Arc<Inner>, interfaces: &[Interface]) -> bool {
        let mut any_removed = false;
        for device in self.list.iter().filter(|device| device.is_present()) {
            device.follow(interfaces.iter().find(|i| i.index == device.ifindex));
            any_removed |= !device.is_present();
        }
        let allowed = &host.config.interfaces.value;
        let listed = host.subnet.as_deref().filter(|subnet| subnet.is_listed());
        let eligible = |i: &&Interface| match allowed.as_slice() {
            [] if listed.is_some() => i.up && listed.is_some_and(|subnet| subnet.has(i)),
            [] => i.up && !i.loopback && !i.addresses.is_empty(),
            names => names.contains(&i.name),
        };
        let mut chosen: Vec<_> = interfaces.iter().filter(eligible).collect();
        // A container with nothing but `lo` still gets a device.
        if chosen.is_empty() && allowed.is_empty() && listed.is_none() && self.present().is_empty()
        {
            chosen.extend(interfaces.iter().find(|i| i.loopback && i.up));
        }
        for interface in chosen {
            if !self.list.iter().any(|d| d.ifindex == interface.index && d.is_present()) {
                self.add(host, interface);
            }
        }
        any_removed
    }

    fn add(&mut self, host: &Arc<Inner>, interface: &Interface) {
        let index = self.list.len() as u32;
        let mut port = Port::default();
        port.update(interface, host.subnet.as_deref());
        let mut guid = match port.place {
            Some(place) => subnet::node_guid(place.address),
            None => guid_of(interface),
        };
        if self.list.iter().any(|d| d.guid == guid && d.is_present()) {
            guid = hashed_guid(interface);
        }
        self.list.push(Arc::new(Device {
            name: format!("{}{index}", host.config.name_prefix.value),
            index,
            ifindex: interface.index,
            guid,
            host: Arc::downgrade(host),
            subnet: host.subnet.clone(),
            port: RwLock::new(port),
            present: AtomicBool::new(true),
            is_loopback: interface.loopback,
            steering: Steering::default(),
            contexts: Mutex::new(Vec::new()),
        }));
    }
}

/// The interface's Ethernet address as EUI-64 has it for a MAC (ff:ff in its middle), or one made up where it has none.
/// Not ff:fe as for an EUI-48: that is what the kernel's soft-RoCE and many adapters have on the same interface, and
/// programs tell devices apart by their GUIDs.
fn guid_of(interface: &Interface) -> u64 {
    match interface.mac {
        [0, 0, 0, 0, 0, 0] => hashed_guid(interface),
        [a, b, c, d, e, f] => u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xff, d, e, f]),
    }
}

/// A GUID that every process of this network namespace computes alike, and others do not.
fn hashed_guid(interface: &Interface) -> u64 {
    let mut hash = DefaultHasher::new();
    std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default().hash(&mut hash);
    process::namespace("net").unwrap_or_default().hash(&mut hash);
    (interface.index, &interface.name).hash(&mut hash);
    // Locally administered, not a group; never 0.
    hash.finish() & !(0x03 << 56) | 0x02 << 56
}
