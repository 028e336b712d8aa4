//! The steward: the one process of a host that sees to the host's part in the subnet, for all of the user's processes.
//!
//! The seat is a port of the registry's table. Whoever finds it free takes it, so that somebody has it from the first
//! device that is opened on; when its holder dies, the process that buries it takes it at once, any other at its
//! next look.
//! - It runs the embedded subnet manager and administrator ([`SubnetManager`]): of those of all hosts one is the master.
//!   While another program of this host takes subnet management's requests (opensm), that is the host's manager
//!   and ours rests.
//! - Where the subnet is managed from this host it keeps the other hosts under watch, and has the manager look when one
//!   comes or goes: ours directly, another's by trap 128 of the switch. Where ours stands by it watches the master's host.
//! - It subscribes, for all processes of the host, to the administrator's notices of GIDs and groups, acknowledges
//!   them and passes them on.
//!
//! Its state's lock is only ever tried: whoever holds it does what others would have, when they have left word in
//! the inbox or a flag. So what it sends may be answered within the call.

use std::collections::VecDeque;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use ironverbs_mad::subnet::{Origin, Outgoing, Role, SmConfig, SubnetManager, Way, notice};
use ironverbs_transport::device::Instant;
use ironverbs_transport::verbs::AhAttr;
use ironverbs_wire::mad::{BASE_VERSION, Mad, MadHeader};
use ironverbs_wire::{Gid, IbRoute, Path};
use parking_lot::Mutex;

use super::agent::{MANAGER, SA_CLIENT, number, service};
use super::{RESPONSE, SMI_QPN, SUBN_DIRECTED, SUBN_LID, TRAP_REPRESS, Target, header};
use crate::fabric::sa::{Word, word};
use crate::host::Inner;
use crate::registry::{Claim, Registry};
use crate::subnet::{Place, Subnet};

/// The number that the Host's timers know it by; no QP has it.
pub(crate) const TIMER: u32 = 3;

/// What the registry knows the seat by; no port space and no agent has such a number.
const SEAT: u32 = 0xfe00_0001;

/// How often it is looked for what nothing tells of, in nanoseconds.
const LOOK: u64 = 250_000_000;

/// How long the first look of a manager waits for what the first questions to other hosts come to, in nanoseconds.
const MOMENT: u64 = 5_000_000;

/// How long a manager stands by before the master may hand over to it, in nanoseconds: longer than most diagnostics run,
/// whose questions a change of managers would lose.
const YOUTH: u64 = 2_000_000_000;

/// How often another program of this host is told that a port came or went, until it says that it has heard.
const TRAPS: u32 = 40;

/// MADs that may wait for it.
const MOST_WAITING: usize = 8192;

/// Methods and attributes that are told apart here.
const SUBN_ADM: u8 = 0x03;
const TRAP: u8 = 0x05;
const REPORT: u8 = 0x06;
const NOTICE: u16 = 0x02;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Steward {
    inbox: Mutex<VecDeque<(Origin, Mad)>>,
    /// A host came or went; who manages the subnet was told; somebody died.
    moved: AtomicBool,
    told: AtomicBool,
    looks: AtomicBool,
    /// How often somebody wanted to change a port without its key, and when that was told last, in ticks.
    violations: AtomicU16,
    told_of_one: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    seated: bool,
    manager: Option<SubnetManager>,
    place: Option<Place>,
    /// Another program of this host is its manager.
    taken: bool,
    /// How often it is still to be told that a port came or went.
    traps: u32,
    next_look: Option<Instant>,
    /// The deadline that the timers know of.
    timer: Option<Instant>,
}

/// The claim to the seat.
fn seat() -> Claim {
    Claim {
        id: 0,
        service: SEAT,
        ip: IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        reuse: false,
        family_only: false,
        listens: true,
    }
}

/// The process that has the seat.
pub(crate) fn slot(registry: &Registry) -> Option<u16> {
    registry.listener(SEAT.into(), &Gid::UNSPECIFIED)
}

/// The port that a host takes part at.
fn place(host: &Inner) -> Option<Place> {
    let devices = host.present_devices();
    devices.iter().filter(|device| device.link().0).find_map(|device| device.place())
}

/// Whether a subnet manager is at a port of this host.
pub(super) fn is_at(host: &Inner, port: &Place) -> bool {
    let Some(registry) = host.registry() else { return false };
    let any = slot(registry).is_some() || is_taken(registry);
    any && place(host) == Some(*port) || host.subnet_manager().0 == port.lid
}

/// Whether another program of this host takes what subnet managers are asked.
fn is_taken(registry: &Registry) -> bool {
    registry.listener(service(SMI_QPN, SUBN_LID).into(), &Gid::UNSPECIFIED).is_some()
}

impl Steward {
    /// The process has joined its host's group.
    pub(crate) fn start(&self, host: &Inner) {
        if host.subnet.is_some() && host.config.subnet_manager.value.is_some() {
            host.fabric.sa.begin(host);
            host.add_timer(host.now(), TIMER);
        }
    }

    /// A timer is due.
    pub(crate) fn timeout(&self, host: &Inner) {
        self.run(host);
    }

    /// Processes of this host have died, or addresses have changed.
    pub(crate) fn look(&self, host: &Inner) {
        if host.subnet.is_some() && host.config.subnet_manager.value.is_some() {
            self.looks.store(true, Ordering::Release);
            self.run(host);
        }
    }

    /// Another host came or went.
    pub(crate) fn moved(&self, host: &Inner) {
        self.moved.store(true, Ordering::Release);
        self.run(host);
    }

    /// A subnet manager has said who it is.
    pub(crate) fn told(&self, host: &Inner) {
        self.told.store(true, Ordering::Release);
        self.run(host);
    }

    /// A MAD for the subnet manager, the administrator or a subscriber.
    pub(super) fn receive(&self, host: &Inner, path: &Path, qpn: u32, pkey: u16, mad: &Mad) {
        let asked = header(mad);
        if (asked.class, asked.method) == (SUBN_ADM, REPORT) {
            return report(host, path, qpn, pkey, mad);
        }
        let mut inbox = self.inbox.lock();
        if inbox.len() < MOST_WAITING {
            // Who asks by directed route has a LID, too: the answer goes straight to it.
            let lid = match super::is_response(&asked) {
                true => super::told_lid(path, &asked),
                false => path.ib.map_or(0, |route| route.slid),
            };
            inbox.push_back((Origin { lid, qpn }, *mad));
        }
        drop(inbox);
        self.run(host);
    }

    /// How often somebody wanted to change a port without its key.
    pub(super) fn violations(&self) -> u16 {
        self.violations.load(Ordering::Relaxed)
    }

    fn has_word(&self) -> bool {
        let flag = |flag: &AtomicBool| flag.load(Ordering::Acquire);
        flag(&self.moved) || flag(&self.told) || flag(&self.looks) || !self.inbox.lock().is_empty()
    }

    /// Does what there is to do, unless somebody is at it, who then does it.
    fn run(&self, host: &Inner) {
        loop {
            let Some(mut state) = self.state.try_lock() else { return };
            state.turn(host, self);
            drop(state);
            // SYNC POINT: who found the lock taken has left word before.
            if !self.has_word() {
                return;
            }
        }
    }
}

impl State {
    fn turn(&mut self, host: &Inner, steward: &Steward) {
        let (Some(registry), Some(subnet)) = (host.registry(), &host.subnet) else { return };
        if host.check().is_err() {
            return;
        }
        let now = host.now();
        let looks = steward.looks.swap(false, Ordering::AcqRel);
        if looks || self.next_look.is_none_or(|at| at <= now) {
            self.next_look = Some(now.after(host.clock.ticks(LOOK)));
            self.look(host, registry);
            self.trap(host, registry.slot(), subnet);
        }
        if steward.told.swap(false, Ordering::AcqRel) && self.seated {
            host.fabric.sa.told(host);
            tell_all(host, registry, Word::Manager);
        }
        let moved = steward.moved.swap(false, Ordering::AcqRel);
        if moved && self.seated {
            self.moved(host, registry.slot(), subnet);
        }
        let mut role = None;
        while let Some(manager) = &mut self.manager {
            let time = ironverbs_mad::Instant(host.now().0);
            let came = steward.inbox.lock().pop_front();
            if let Some((origin, mad)) = &came {
                manager.handle_mad(time, origin, mad);
            }
            if manager.next_timeout().is_some_and(|at| at <= time) {
                manager.handle_timeout(time);
            }
            let mut sent = false;
            while let Some(outgoing) = manager.poll_transmit() {
                if let Some(place) = &self.place {
                    send(host, registry, subnet, place, outgoing);
                }
                sent = true;
            }
            let is = (manager.role(), manager.master_lid());
            if *role.get_or_insert(is) != is {
                role = Some(is);
                watch(host, subnet, Some(is), self.place);
            }
            if came.is_none() && !sent {
                break;
            }
        }
        let Some(manager) = &self.manager else {
            let waiting = std::mem::take(&mut *steward.inbox.lock());
            let represses = |(_, mad): &(Origin, Mad)| header(mad).method == TRAP_REPRESS;
            if waiting.iter().any(represses) {
                self.traps = 0;
            }
            return self.arm(host);
        };
        // The master tells a port that is new to it who it is. Where a process has come so soon after this host's last one that
        // the master knew nothing of it, that takes until its next walk.
        if let Some(lid) = manager.master_lid()
            && host.subnet_manager().0 == 0
        {
            host.set_subnet_manager(lid, 0, true);
        }
        self.arm(host);
    }

    fn arm(&mut self, host: &Inner) {
        let now = host.now();
        let manager = self.manager.as_ref().and_then(SubnetManager::next_timeout);
        let next = manager.map(|at| Instant(at.0)).into_iter().chain(self.next_look).min();
        if let Some(next) = next
            && self.timer.is_none_or(|known| next < known || known <= now)
        {
            self.timer = Some(next);
            host.add_timer(next, TIMER);
        }
    }

    /// Sees who has the seat, and who the host's manager is.
    fn look(&mut self, host: &Inner, registry: &Registry) {
        let Some(subnet) = &host.subnet else { return };
        let own = registry.slot();
        let seated = match slot(registry) {
            Some(slot) => slot == own,
            None => registry.claim_port(&seat()).unwrap_or(false),
        };
        if self.seated != seated {
            self.seated = seated;
            host.fabric.sa.seated(host, seated);
        }
        let place = place(host);
        let taken = is_taken(registry);
        if seated && self.taken != taken {
            // Who manages from here begins anew, or ends.
            host.steward.told.store(true, Ordering::Release);
        }
        self.taken = taken;
        let manages = seated && !taken && place.is_some();
        let now = ironverbs_mad::Instant(host.now().0);
        match (manages, &self.manager) {
            (false, Some(_)) => self.manager = None,
            (true, None) => self.manage(host, place, now),
            (true, Some(_)) if self.place != place => self.manage(host, place, now),
            _ => {}
        }
        self.place = place;
        let role = self.manager.as_ref().map(|m| (m.role(), m.master_lid()));
        if seated {
            host.fabric.sa.look(host);
            watch(host, subnet, role, place);
        } else {
            host.fabric.monitor(host, &[]);
        }
    }

    fn manage(&mut self, host: &Inner, place: Option<Place>, now: ironverbs_mad::Instant) {
        let Some(place) = place else { return };
        let [.., a, b, c, d, e, f, g, h] = place.gid.0;
        let mut config = SmConfig::new(u64::from_be_bytes([a, b, c, d, e, f, g, h]));
        config.priority = host.config.subnet_manager.value.unwrap_or(0);
        config.m_key = host.config.m_key.value;
        config.youth = host.clock.ticks(YOUTH);
        let alone = host.subnet.as_ref().is_none_or(|subnet| !subnet.is_listed());
        let moment = if alone { 0 } else { host.clock.ticks(MOMENT) };
        self.manager = Some(SubnetManager::new(config, now.after(moment)));
    }

    /// A host came or went.
    fn moved(&mut self, host: &Inner, slot: u16, subnet: &Subnet) {
        let now = ironverbs_mad::Instant(host.now().0);
        match &mut self.manager {
            Some(manager) => match manager.master_lid().map(|lid| subnet.of_lid(lid)) {
                Some(Some(master)) if host.fabric.is_silent(&master.gid) => {
                    manager.master_lost(now);
                }
                _ => manager.topology_changed(now),
            },
            None => {
                self.traps = TRAPS;
                self.trap(host, slot, subnet);
            }
        }
    }

    /// A manager that has only begun to look does not say that it has heard of a trap, and has not.
    fn trap(&mut self, host: &Inner, slot: u16, subnet: &Subnet) {
        if self.traps > 0 && self.taken {
            self.traps -= 1;
            trap(host, slot, subnet, self.place);
        }
    }
}

/// Keeps those hosts under watch that concern whoever manages from here.
fn watch(host: &Inner, subnet: &Subnet, role: Option<(Role, Option<u16>)>, place: Option<Place>) {
    let (true, Some(own)) = (subnet.is_listed(), place) else { return };
    let all = || {
        let places = subnet.addresses().into_iter().filter_map(|ip| subnet.of_address(ip));
        places.filter(|place| !host.is_local(&place.gid)).collect::<Vec<_>>()
    };
    let whom = match role {
        Some((Role::Standby, Some(master))) => {
            let master = subnet.of_lid(master);
            master.filter(|place| !host.is_local(&place.gid)).into_iter().collect()
        }
        Some(_) => all(),
        None if host.has_manager() => all(),
        None => Vec::new(),
    };
    let path = |to: &Place| {
        let attr = AhAttr { dlid: to.lid, port_num: 1, ..AhAttr::default() };
        subnet.resolve(&own, &attr).ok()
    };
    host.fabric.monitor(host, &whom.iter().filter_map(path).collect::<Vec<_>>());
}

/// Sends what the manager has to send.
fn send(host: &Inner, registry: &Registry, subnet: &Subnet, own: &Place, outgoing: Outgoing) {
    let Outgoing { way, mut mad, .. } = outgoing;
    let (lid, qpn) = match way {
        Way::Directed(_) => (own.lid, SMI_QPN),
        Way::Lid { lid, qpn } => (lid, qpn),
    };
    if !super::is_response(&header(&mad)) {
        // The answer finds its way by the upper half.
        mad[8..12].copy_from_slice(&number(registry.slot(), MANAGER).to_be_bytes());
    }
    let attr = AhAttr { dlid: lid, port_num: 1, ..AhAttr::default() };
    // What leads nowhere is lost, as on a cable.
    if let Ok(path) = subnet.resolve(own, &attr) {
        super::send(host, &path, qpn, crate::context::limits::PKEY, &mad);
    }
}

/// A report of the administrator's: acknowledged, and passed on. Others say what they like.
fn report(host: &Inner, path: &Path, qpn: u32, pkey: u16, mad: &Mad) {
    let (Some(subnet), Some(registry)) = (&host.subnet, host.registry()) else { return };
    let of = |lid| subnet.of_lid(lid);
    let from = path.ib.and_then(|route| of(route.slid));
    if from.is_none() || from != of(host.subnet_manager().0) {
        return;
    }
    let mut heard = *mad;
    heard[3] = REPORT | RESPONSE;
    super::send(host, &path.reversed(), qpn, pkey, &heard);
    if let Some((trap, gid)) = notice(mad) {
        tell_all(host, registry, Word::Notice { trap, gid });
    }
}

/// Tells all processes of this host.
pub(crate) fn tell_all(host: &Inner, registry: &Registry, what: Word) {
    registry.tenants().into_iter().for_each(|slot| tell(host, slot, what));
}

/// Tells one process of this host.
pub(crate) fn tell(host: &Inner, slot: u16, what: Word) {
    let Some(own) = place(host) else { return };
    let route = IbRoute { slid: own.lid, dlid: own.lid, sl: 0, grh: false };
    let path = Path { src: own.gid, dst: own.gid, ib: Some(route), ..Path::default() };
    let mut mad = word(what);
    mad[8..12].copy_from_slice(&number(slot, SA_CLIENT).to_be_bytes());
    super::send(host, &path, ironverbs_wire::mad::GSI_QPN, crate::context::limits::PKEY, &mad);
}

/// Trap 128 of the switch to a manager at this host: the state of a port has changed (IBA 14.2.5.1, 14.4.7).
fn trap(host: &Inner, slot: u16, subnet: &Subnet, own: Option<Place>) {
    let manager = subnet.of_lid(host.subnet_manager().0).filter(|place| host.is_local(&place.gid));
    let (Some(own), Some(manager)) = (own, manager) else { return };
    let switch = subnet.switch_lid();
    let head = MadHeader {
        base_version: BASE_VERSION,
        class: SUBN_LID,
        class_version: 1,
        method: TRAP,
        tid: u64::from(number(slot, MANAGER)) << 32 | 1,
        attribute: NOTICE,
        ..MadHeader::default()
    };
    let mut mad: Mad = [0; 256];
    mad[..24].copy_from_slice(&head.emit());
    let notice = &mut mad[64..128];
    // Generic, urgent, of a switch.
    notice[..6].copy_from_slice(&[0x81, 0, 0, 2, 0, 128]);
    notice[6..8].copy_from_slice(&switch.to_be_bytes());
    notice[10..12].copy_from_slice(&switch.to_be_bytes());
    let route = IbRoute { slid: switch, dlid: manager.lid, sl: 0, grh: false };
    let path = Path { src: own.gid, dst: manager.gid, ib: Some(route), ..Path::default() };
    super::send(host, &path, SMI_QPN, crate::context::limits::PKEY, &mad);
}

/// Somebody wanted to change a port or the switch without its key: counted, and told the manager by trap 256 (IBA 14.2.4.2,
/// 14.2.5.1).
pub(super) fn violated(host: &Inner, subnet: &Subnet, target: &Target, path: &Path, mad: &Mad) {
    let steward = &host.steward;
    let more = |count: u16| count.checked_add(1);
    let _ = steward.violations.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    let (now, last) = (host.now().0, steward.told_of_one.load(Ordering::Relaxed));
    let (manager, _) = host.subnet_manager();
    let (Some(registry), Some(own)) = (host.registry(), place(host)) else { return };
    if manager == 0 || last != 0 && now.saturating_sub(last) < host.clock.ticks(LOOK) {
        return;
    }
    steward.told_of_one.store(now, Ordering::Relaxed);
    let (producer, issuer) = match target {
        Target::Switch => (2, subnet.switch_lid()),
        Target::Port(place) => (1, place.lid),
    };
    let head = MadHeader {
        base_version: BASE_VERSION,
        class: SUBN_LID,
        class_version: 1,
        method: TRAP,
        tid: u64::from(number(registry.slot(), MANAGER)) << 32 | 2,
        attribute: NOTICE,
        ..MadHeader::default()
    };
    let mut trap: Mad = [0; 256];
    trap[..24].copy_from_slice(&head.emit());
    let notice = &mut trap[64..128];
    // Generic, of security.
    notice[..6].copy_from_slice(&[0x82, 0, 0, producer, 1, 0]);
    notice[6..8].copy_from_slice(&issuer.to_be_bytes());
    // Who it was: LID, DrSLID; what: method, attribute, modifier, key; a directed route back is left out.
    notice[12..14].copy_from_slice(&path.ib.map_or(0, |route| route.slid).to_be_bytes());
    notice[14..16].copy_from_slice(&mad[32..34]);
    notice[16] = mad[3];
    notice[18..20].copy_from_slice(&mad[16..18]);
    notice[20..24].copy_from_slice(&mad[20..24]);
    notice[24..32].copy_from_slice(&mad[24..32]);
    notice[33] = if mad[1] == SUBN_DIRECTED { 0xc0 } else { 0 };
    let attr = AhAttr { dlid: manager, port_num: 1, ..AhAttr::default() };
    if let Ok(path) = subnet.resolve(&own, &attr) {
        super::send(host, &path, SMI_QPN, crate::context::limits::PKEY, &trap);
    }
}

const _: () = assert!(SUBN_DIRECTED != SUBN_LID);
