//! The registry itself: a table in shared memory, of the group's slots and who has them.
//!
//! Any process of the user may write it, so it is not trusted further than the user: a value is
//! loaded once, checked, and used from the copy.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use ironverbs_sys::clock::monotonic_ns;
use ironverbs_sys::lock::{self, Guard, Locked};
use ironverbs_sys::shm::{Memfd, Shared};
use ironverbs_sys::{lock as robust, process};

use ironverbs_wire::Gid;

use super::ports::{Claim, Entry};
use super::{BLOCKS_PER_SLOT, JoinError, SLOTS};

/// Changes with every change of the table, the vault or a message between members.
pub(super) const VERSION: u32 = 7;

const MAGIC: u64 = u64::from_le_bytes(*b"ironverb");

/// Byte offsets of the header's words.
mod header {
    pub(super) const MAGIC: usize = 0;
    pub(super) const VERSION: usize = 8;
    pub(super) const LOCK_LAYOUT: usize = 12;
    pub(super) const PORT: usize = 16;
    pub(super) const ONLY_V4: usize = 20;
    pub(super) const SOCKETS: usize = 24;
    pub(super) const CREATING: usize = 28;
    pub(super) const VAULT: [usize; 2] = [32, 40];
    pub(super) const LOCK: usize = 64;
    /// LID of the subnet manager, and above it its service level.
    pub(super) const MANAGER: usize = 4088;
}

/// Byte offsets of a port's words, from the start of its entry.
mod port {
    /// Tenure, slot, flags; 0: a free entry.
    pub(super) const OWNER: usize = 0;
    pub(super) const SERVICE: usize = 8;
    pub(super) const ID: usize = 12;
    pub(super) const ADDRESS: [usize; 2] = [16, 24];
}

/// Flags of a port.
const TAKEN: u64 = 1;
const REUSE: u64 = 2;
const FAMILY_ONLY: u64 = 4;
const LISTENS: u64 = 8;
/// Instead of TAKEN: the entry is free, but says who listened last.
const FORMER: u64 = 16;

/// Byte offsets of a slot's words, from the start of the slot.
mod slot {
    pub(super) const STATE: usize = 0;
    pub(super) const PID: usize = 4;
    pub(super) const START: usize = 8;
    pub(super) const NAMESPACES: usize = 16;
    pub(super) const FREED: usize = 24;
    pub(super) const BLOCKS: usize = 32;
    pub(super) const TENURE: usize = 36;
    pub(super) const LANES: usize = 40;
    pub(super) const PRESENCE: usize = 44;
    pub(super) const RESTING: usize = 64;
    pub(super) const OPEN: usize = 96;
}

/// Flags of a slot's presence.
const WATCHES: u32 = 1;
const ONLY_WATCHES: u32 = 2;
const ALL_OPEN: u32 = 4;

/// Interfaces that a slot has room to name.
const OPEN: usize = 8;

const FIRST_SLOT: usize = 4096;
const SLOT_SIZE: usize = 128;
/// Multicast groups a slot can have joined: as many as `net.ipv4.igmp_max_memberships` allows by
/// default. An entry is the interface, 0 for none, and behind 8 bytes the group.
pub(super) const GROUPS_PER_SLOT: usize = 20;
const FIRST_GROUP: usize = FIRST_SLOT + SLOTS as usize * SLOT_SIZE;
const GROUP_SIZE: usize = 24;
/// Ports of the connection manager that can be taken at a time; memory is used by those that are.
pub(super) const PORTS: usize = 1 << 16;
const FIRST_PORT: usize = FIRST_GROUP + SLOTS as usize * GROUPS_PER_SLOT * GROUP_SIZE;
const PORT_SIZE: usize = 40;
/// Bytes of a page, or a divisor of them.
const PAGE: usize = 4096;
const SIZE: usize = FIRST_PORT + PORTS * PORT_SIZE;
const _: () = assert!(header::LOCK + robust::SIZE <= header::MANAGER);
const _: () = assert!(slot::RESTING + 8 * BLOCKS_PER_SLOT as usize <= slot::OPEN);
const _: () = assert!(slot::OPEN + 4 * OPEN <= SLOT_SIZE);

const FREE: u32 = 0;
const LIVE: u32 = 1;

/// Names a process for good, to those of the same PID and time namespaces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Identity {
    pub(super) pid: u32,
    pub(super) start: u64,
    pub(super) namespaces: u64,
}

impl Identity {
    pub(super) fn own() -> Identity {
        let pid = process::pid();
        Identity {
            pid,
            // Without /proc the pid alone has to do.
            start: process::start_time(pid).unwrap_or(0),
            namespaces: namespaces(),
        }
    }
}

/// Both namespaces' inode numbers, which have 32 bits.
fn namespaces() -> u64 {
    let inode = |kind| process::namespace(kind).unwrap_or(0) & 0xffff_ffff;
    inode("pid") << 32 | inode("time")
}

/// Who has a slot.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct Tenant {
    pub(super) identity: Identity,
    /// Counts the slot's tenants.
    pub(super) tenure: u32,
    /// A bit per claimed block.
    pub(super) blocks: u32,
    /// Whether it takes lanes.
    pub(super) lanes: bool,
}

/// What a process has open, and whether it wants to hear of the others.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Presence {
    /// The interfaces of the devices it has open, sorted.
    pub(crate) open: Vec<u32>,
    /// More of them than can be told.
    pub(crate) all: bool,
    /// It wants to be woken when others come and go.
    pub(crate) watches: bool,
    /// It does that alone: there is nothing that peers could talk to.
    pub(crate) only_watches: bool,
}

impl Presence {
    /// Whether peers may be served by it on that interface.
    pub(crate) fn serves(&self, ifindex: u32) -> bool {
        !self.only_watches && (self.all || self.open.contains(&ifindex))
    }
}

#[derive(Debug)]
pub(super) struct Table {
    memory: Shared,
}

impl Table {
    pub(super) fn create(port: u16, only_v4: bool, vault: [u64; 2]) -> io::Result<(Memfd, Table)> {
        let memfd = Memfd::create(NAME, SIZE)?;
        let table = Table { memory: Shared::map(&memfd, SIZE, true)? };
        robust::init(&table.memory, header::LOCK)?;
        table.word(header::VERSION).store(VERSION, Ordering::Relaxed);
        table.word(header::LOCK_LAYOUT).store(robust::layout(), Ordering::Relaxed);
        table.word(header::PORT).store(port.into(), Ordering::Relaxed);
        table.word(header::ONLY_V4).store(only_v4.into(), Ordering::Relaxed);
        for (offset, inode) in header::VAULT.into_iter().zip(vault) {
            table.long(offset).store(inode, Ordering::Relaxed);
        }
        // SYNC POINT: with the load in `open`.
        table.long(header::MAGIC).store(MAGIC, Ordering::Release);
        Ok((memfd, table))
    }

    /// Maps and checks a table that another process made.
    pub(super) fn open(memfd: &Memfd, port: u16) -> Result<Table, JoinError> {
        let io = |source| JoinError::Io { doing: "mapping the registry", source };
        let memory = Shared::map(memfd, SIZE, true).map_err(io)?;
        let table = Table { memory };
        // SYNC POINT: with the store in `create`.
        if table.long(header::MAGIC).load(Ordering::Acquire) != MAGIC {
            return Err(io(io::ErrorKind::InvalidData.into()));
        }
        let theirs = table.word(header::VERSION).load(Ordering::Relaxed);
        if theirs != VERSION {
            return Err(JoinError::Version { theirs, ours: VERSION });
        }
        let same_lock = table.word(header::LOCK_LAYOUT).load(Ordering::Relaxed) == lock::layout();
        let same_port = table.word(header::PORT).load(Ordering::Relaxed) == port.into();
        if !same_lock || !same_port {
            return Err(io(io::ErrorKind::InvalidData.into()));
        }
        Ok(table)
    }

    /// Takes the lock. True: its holder died, and what it was doing is to be repaired.
    pub(super) fn lock(&self, timeout: Duration) -> io::Result<(Guard<'_>, bool)> {
        Ok(match lock::lock(&self.memory, header::LOCK, timeout)? {
            Locked::Clean(guard) => (guard, false),
            Locked::OwnerDied(guard) => (guard, true),
        })
    }

    pub(super) fn only_v4(&self) -> bool {
        self.word(header::ONLY_V4).load(Ordering::Relaxed) != 0
    }

    /// LID and service level of the subnet manager, of InfiniBand links; 0: none is known.
    pub(super) fn subnet_manager(&self) -> (u16, u8) {
        let word = self.word(header::MANAGER).load(Ordering::Relaxed);
        (word as u16, (word >> 16) as u8 & 0x0f)
    }

    pub(super) fn set_subnet_manager(&self, lid: u16, sl: u8) {
        let word = u32::from(sl & 0x0f) << 16 | u32::from(lid);
        self.word(header::MANAGER).store(word, Ordering::Relaxed);
    }

    /// The inodes of the vault's two ends.
    pub(super) fn vault(&self) -> [u64; 2] {
        header::VAULT.map(|offset| self.long(offset).load(Ordering::Relaxed))
    }

    /// How many slots have a socket: the slots 0 to this, without it.
    pub(super) fn sockets(&self) -> u16 {
        let count = self.word(header::SOCKETS).load(Ordering::Acquire);
        u16::try_from(count).unwrap_or(SLOTS).min(SLOTS)
    }

    /// Only under the lock.
    pub(super) fn set_sockets(&self, count: u16) {
        self.word(header::SOCKETS).store(count.into(), Ordering::Release);
    }

    /// Whether a socket is being added to the group. Only under the lock.
    pub(super) fn creating(&self) -> bool {
        self.word(header::CREATING).load(Ordering::Acquire) != 0
    }

    /// Only under the lock.
    pub(super) fn set_creating(&self, creating: bool) {
        self.word(header::CREATING).store(creating.into(), Ordering::Release);
    }

    /// Who has the slot; None: nobody.
    pub(super) fn tenant(&self, slot: u16) -> Option<Tenant> {
        let at = place(slot)?;
        // SYNC POINT: with the store in `occupy`.
        if self.word(at + slot::STATE).load(Ordering::Acquire) != LIVE {
            return None;
        }
        self.last_tenant(slot)
    }

    /// Who has the slot, or had it last.
    pub(super) fn last_tenant(&self, slot: u16) -> Option<Tenant> {
        let at = place(slot)?;
        Some(Tenant {
            identity: Identity {
                pid: self.word(at + slot::PID).load(Ordering::Relaxed),
                start: self.long(at + slot::START).load(Ordering::Relaxed),
                namespaces: self.long(at + slot::NAMESPACES).load(Ordering::Relaxed),
            },
            tenure: self.word(at + slot::TENURE).load(Ordering::Relaxed),
            blocks: self.word(at + slot::BLOCKS).load(Ordering::Relaxed),
            lanes: self.word(at + slot::LANES).load(Ordering::Relaxed) != 0,
        })
    }

    /// When the slot was given up, in monotonic nanoseconds; 0: never used.
    pub(super) fn freed_at(&self, slot: u16) -> u64 {
        place(slot).map_or(0, |at| self.long(at + slot::FREED).load(Ordering::Relaxed))
    }

    /// Gives a free slot to a process. Only under the lock.
    pub(super) fn occupy(&self, slot: u16, identity: Identity) {
        let Some(at) = place(slot) else { return };
        self.word(at + slot::PID).store(identity.pid, Ordering::Relaxed);
        self.long(at + slot::START).store(identity.start, Ordering::Relaxed);
        self.long(at + slot::NAMESPACES).store(identity.namespaces, Ordering::Relaxed);
        self.word(at + slot::TENURE).fetch_add(1, Ordering::Relaxed);
        self.word(at + slot::LANES).store(0, Ordering::Relaxed);
        self.set_presence(slot, &Presence::default());
        // SYNC POINT: with the load in `tenant`.
        self.word(at + slot::STATE).store(LIVE, Ordering::Release);
    }

    /// Says that the slot's tenant, the caller, takes lanes.
    pub(super) fn take_lanes(&self, slot: u16) {
        let Some(at) = place(slot) else { return };
        self.word(at + slot::LANES).store(1, Ordering::Relaxed);
    }

    /// What the slot's tenant has open, as it told last; it may be telling at this moment.
    pub(super) fn presence(&self, slot: u16) -> Presence {
        let Some(at) = place(slot) else { return Presence::default() };
        // SYNC POINT: with the store in `set_presence`.
        let flags = self.word(at + slot::PRESENCE).load(Ordering::Acquire);
        let open = (0..OPEN).map(|n| self.word(open(at, n)).load(Ordering::Relaxed));
        Presence {
            open: open.filter(|ifindex| *ifindex != 0).collect(),
            all: flags & ALL_OPEN != 0,
            watches: flags & WATCHES != 0,
            only_watches: flags & ONLY_WATCHES != 0,
        }
    }

    /// Only by the slot's tenant.
    pub(super) fn set_presence(&self, slot: u16, presence: &Presence) {
        let Some(at) = place(slot) else { return };
        let all = presence.all || presence.open.len() > OPEN;
        for n in 0..OPEN {
            let ifindex = presence.open.get(n).copied().unwrap_or_default();
            self.word(open(at, n)).store(ifindex, Ordering::Relaxed);
        }
        let flag = |set: bool, flag| if set { flag } else { 0 };
        let flags = flag(presence.watches, WATCHES)
            | flag(presence.only_watches, ONLY_WATCHES)
            | flag(all, ALL_OPEN);
        // SYNC POINT: with the load in `presence`.
        self.word(at + slot::PRESENCE).store(flags, Ordering::Release);
    }

    /// Frees a slot and its blocks. By its tenant, or under the lock after the tenant's death.
    pub(super) fn vacate(&self, slot: u16) {
        let Some(at) = place(slot) else { return };
        let now = monotonic_ns();
        let blocks = self.word(at + slot::BLOCKS).swap(0, Ordering::Relaxed);
        for block in (0..BLOCKS_PER_SLOT).filter(|block| blocks & 1 << block != 0) {
            self.long(resting(at, block)).store(now, Ordering::Relaxed);
        }
        self.long(at + slot::FREED).store(now, Ordering::Relaxed);
        // SYNC POINT: with the load in `tenant`; the next tenant finds the blocks released.
        self.word(at + slot::STATE).store(FREE, Ordering::Release);
    }

    /// Claims the block of the slot that has rested longest, of those that `allowed` has a bit for.
    /// Only by the slot's tenant, one thread at a time.
    pub(super) fn claim(&self, slot: u16, allowed: u32, first: u16) -> Option<u16> {
        let at = place(slot)?;
        let word = self.word(at + slot::BLOCKS);
        let free = allowed & !word.load(Ordering::Relaxed);
        let block = (0..BLOCKS_PER_SLOT)
            .map(|step| (first.wrapping_add(step)) % BLOCKS_PER_SLOT)
            .filter(|block| free & 1 << block != 0)
            .min_by_key(|&block| self.long(resting(at, block)).load(Ordering::Relaxed))?;
        word.fetch_or(1 << block, Ordering::Relaxed);
        Some(block)
    }

    /// Gives a block back, as [`Table::claim`].
    pub(super) fn release(&self, slot: u16, block: u16) {
        let Some(at) = place(slot).filter(|_| block < BLOCKS_PER_SLOT) else { return };
        self.long(resting(at, block)).store(monotonic_ns(), Ordering::Relaxed);
        self.word(at + slot::BLOCKS).fetch_and(!(1 << block), Ordering::Relaxed);
    }

    /// A group that the slot's socket has joined, with the interface.
    pub(super) fn joined(&self, slot: u16, at: usize) -> Option<(Gid, u32)> {
        let entry = group(slot, at)?;
        // SYNC POINT: with the store in `set_joined`.
        let ifindex = self.word(entry).load(Ordering::Acquire);
        let [high, low] = [8, 16].map(|half| self.long(entry + half).load(Ordering::Relaxed));
        let gid = Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes());
        (ifindex != 0).then_some((gid, ifindex))
    }

    /// Only by the slot's tenant.
    pub(super) fn set_joined(&self, slot: u16, at: usize, joined: Option<(Gid, u32)>) {
        let Some(entry) = group(slot, at) else { return };
        let (gid, ifindex) = joined.unwrap_or_default();
        let bits = u128::from_be_bytes(gid.0);
        self.word(entry).store(0, Ordering::Relaxed);
        self.long(entry + 8).store((bits >> 64) as u64, Ordering::Relaxed);
        self.long(entry + 16).store(bits as u64, Ordering::Relaxed);
        // SYNC POINT: with the load in `joined`.
        self.word(entry).store(ifindex, Ordering::Release);
    }

    /// A port that somebody has taken.
    pub(super) fn port(&self, at: usize) -> Option<Entry> {
        self.port_marked(at, TAKEN)
    }

    /// All ports that somebody has, in no order. `memfd` is the table's, whose empty pages stay empty.
    pub(super) fn ports(&self, memfd: &Memfd) -> Vec<Entry> {
        let mut entries = Vec::new();
        let mut at = 0;
        while let Some(place) = port_place(at)
            && let Ok(Some(written)) = memfd.next_written(place as u64)
        {
            let written = usize::try_from(written).unwrap_or(SIZE).max(place);
            // The first that has bytes in this page, and the first that lies behind it.
            at = at.max((written - FIRST_PORT) / PORT_SIZE);
            let behind = ((written / PAGE + 1) * PAGE - FIRST_PORT).div_ceil(PORT_SIZE);
            entries.extend((at..behind).filter_map(|at| self.port(at)));
            at = behind;
        }
        entries
    }

    /// A port that nobody has, but somebody had and listened on.
    pub(super) fn former_port(&self, at: usize) -> Option<Entry> {
        self.port_marked(at, FORMER)
    }

    fn port_marked(&self, at: usize, mark: u64) -> Option<Entry> {
        let at = port_place(at)?;
        // SYNC POINT: with the stores in `set_port` and `leave_port`.
        let owner = self.long(at + port::OWNER).load(Ordering::Acquire);
        if owner & mark == 0 {
            return None;
        }
        let [high, low] = port::ADDRESS.map(|half| self.long(at + half).load(Ordering::Relaxed));
        let gid = Gid((u128::from(high) << 64 | u128::from(low)).to_be_bytes());
        let claim = Claim {
            id: self.word(at + port::ID).load(Ordering::Relaxed),
            service: self.word(at + port::SERVICE).load(Ordering::Relaxed),
            ip: gid.to_ip(),
            reuse: owner & REUSE != 0,
            family_only: owner & FAMILY_ONLY != 0,
            listens: owner & LISTENS != 0,
        };
        Some(Entry { slot: (owner >> 16) as u16, tenure: (owner >> 32) as u32, claim })
    }

    /// By the process that takes or has it; taking it only under the lock.
    pub(super) fn set_port(&self, at: usize, entry: Option<&Entry>) {
        let Some(at) = port_place(at) else { return };
        self.long(at + port::OWNER).store(0, Ordering::Relaxed);
        let Some(Entry { slot, tenure, claim }) = entry else { return };
        let bits = u128::from_be_bytes(Gid::from_ip(claim.ip).0);
        self.word(at + port::ID).store(claim.id, Ordering::Relaxed);
        self.word(at + port::SERVICE).store(claim.service, Ordering::Relaxed);
        self.long(at + port::ADDRESS[0]).store((bits >> 64) as u64, Ordering::Relaxed);
        self.long(at + port::ADDRESS[1]).store(bits as u64, Ordering::Relaxed);
        let flag = |set: bool, flag| if set { flag } else { 0 };
        let flags = flag(claim.reuse, REUSE)
            | flag(claim.family_only, FAMILY_ONLY)
            | flag(claim.listens, LISTENS);
        let owner = u64::from(*tenure) << 32 | u64::from(*slot) << 16 | flags | TAKEN;
        // SYNC POINT: with the load in `port`.
        self.long(at + port::OWNER).store(owner, Ordering::Release);
    }

    /// By the process that has it: frees it, and keeps who listened.
    pub(super) fn leave_port(&self, at: usize) {
        let Some(at) = port_place(at) else { return };
        let owner = self.long(at + port::OWNER).load(Ordering::Relaxed);
        // SYNC POINT: with the load in `port_marked`.
        self.long(at + port::OWNER).store(owner & !(TAKEN | LISTENS) | FORMER, Ordering::Release);
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        self.memory.u32(offset).expect("offsets are constants, slots checked by `place`")
    }

    fn long(&self, offset: usize) -> &AtomicU64 {
        self.memory.u64(offset).expect("offsets are constants, slots checked by `place`")
    }
}

/// How the memfd shows in /proc/PID/fd.
pub(super) const NAME: &std::ffi::CStr = c"ironverbs-registry";

fn place(slot: u16) -> Option<usize> {
    (slot < SLOTS).then(|| FIRST_SLOT + usize::from(slot) * SLOT_SIZE)
}

fn port_place(at: usize) -> Option<usize> {
    (at < PORTS).then(|| FIRST_PORT + at * PORT_SIZE)
}

fn group(slot: u16, at: usize) -> Option<usize> {
    let entry = usize::from(slot) * GROUPS_PER_SLOT + at;
    (slot < SLOTS && at < GROUPS_PER_SLOT).then(|| FIRST_GROUP + entry * GROUP_SIZE)
}

/// Where the slot names the interface of an open device.
fn open(slot_at: usize, n: usize) -> usize {
    slot_at + slot::OPEN + 4 * n
}

/// Where it stands when a block was released.
fn resting(slot_at: usize, block: u16) -> usize {
    slot_at + slot::RESTING + 8 * usize::from(block)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table() -> (Memfd, Table) {
        Table::create(4800, false, [11, 12]).unwrap()
    }

    const ME: Identity = Identity { pid: 9, start: 8, namespaces: 7 };

    #[test]
    fn a_second_mapping_sees_what_the_first_wrote() {
        let (memfd, table) = table();
        let other = Table::open(&memfd, 4800).unwrap();
        table.set_sockets(3);
        table.occupy(2, ME);
        assert_eq!((other.sockets(), other.vault(), other.only_v4()), (3, [11, 12], false));
        assert_eq!(
            other.tenant(2),
            Some(Tenant { identity: ME, tenure: 1, blocks: 0, lanes: false })
        );
        table.take_lanes(2);
        assert!(other.tenant(2).unwrap().lanes);
        assert_eq!(other.tenant(1), None);
        other.vacate(2);
        assert_eq!(table.tenant(2), None);
        assert_ne!(table.freed_at(2), 0);
        table.occupy(2, ME);
        assert!(!other.tenant(2).unwrap().lanes);
    }

    #[test]
    fn a_foreign_table_is_refused() {
        let (memfd, table) = table();
        assert!(matches!(Table::open(&memfd, 4801), Err(JoinError::Io { .. })));
        table.word(header::VERSION).store(99, Ordering::Relaxed);
        let error = Table::open(&memfd, 4800).unwrap_err();
        assert!(matches!(error, JoinError::Version { theirs: 99, ours: VERSION }));
        let empty = Memfd::create(c"empty", SIZE).unwrap();
        assert!(Table::open(&empty, 4800).is_err());
        let small = Memfd::create(c"small", 64).unwrap();
        assert!(Table::open(&small, 4800).is_err());
    }

    #[test]
    fn garbage_in_the_table_is_clamped() {
        let (_memfd, table) = table();
        table.word(header::SOCKETS).store(u32::MAX, Ordering::Relaxed);
        assert_eq!(table.sockets(), SLOTS);
        assert_eq!(table.tenant(SLOTS), None);
        assert_eq!(table.claim(SLOTS, 0xf, 0), None);
        table.occupy(u16::MAX, ME);
        table.take_lanes(SLOTS);
        table.vacate(SLOTS);
        table.release(0, 77);
    }

    #[test]
    fn blocks_are_reused_in_the_order_of_their_release() {
        let (_memfd, table) = table();
        table.occupy(5, ME);
        let claimed: Vec<_> = (0..4).filter_map(|_| table.claim(5, 0xf, 2)).collect();
        assert_eq!(claimed, [2, 3, 0, 1]);
        assert_eq!(table.claim(5, 0xf, 2), None);
        for block in [3, 1, 0] {
            table.release(5, block);
        }
        assert_eq!(table.claim(5, 0b1011, 0), Some(3));
        assert_eq!(table.claim(5, 0b1001, 0), Some(0));
        // A successor in the slot continues the rotation: block 1 has rested longest.
        table.vacate(5);
        table.occupy(5, ME);
        assert_eq!(table.claim(5, 0xf, 3), Some(1));
    }

    #[test]
    fn groups_are_kept_by_slot() {
        let (memfd, table) = table();
        let other = Table::open(&memfd, 4800).unwrap();
        let gid: Gid = "ff15::1".parse().unwrap();
        table.set_joined(7, 19, Some((gid, 3)));
        table.set_joined(7, 20, Some((gid, 4)));
        assert_eq!(other.joined(7, 19), Some((gid, 3)));
        assert_eq!((other.joined(7, 18), other.joined(8, 0)), (None, None));
        assert_eq!(other.joined(SLOTS, 0), None);
        table.set_joined(7, 19, None);
        assert_eq!(other.joined(7, 19), None);
    }

    #[test]
    fn ports_are_seen_by_all() {
        let (memfd, table) = table();
        let other = Table::open(&memfd, 4800).unwrap();
        let claim = Claim {
            id: 77,
            service: 0x106_1234,
            ip: "fd00::5".parse().unwrap(),
            reuse: true,
            family_only: false,
            listens: true,
        };
        let entry = Entry { slot: 1023, tenure: 9, claim };
        table.set_port(PORTS - 1, Some(&entry));
        assert_eq!(other.port(PORTS - 1), Some(entry));
        assert_eq!((other.port(0), other.port(PORTS)), (None, None));
        let v4 = Claim { ip: "0.0.0.0".parse().unwrap(), family_only: true, ..claim };
        table.set_port(3, Some(&Entry { claim: v4, ..entry }));
        assert_eq!(other.port(3).unwrap().claim, v4);
        table.set_port(3, None);
        assert_eq!((other.port(3), other.former_port(3)), (None, None));
        table.leave_port(PORTS - 1);
        assert_eq!(other.port(PORTS - 1), None);
        let left = Entry { claim: Claim { listens: false, ..claim }, ..entry };
        assert_eq!(other.former_port(PORTS - 1), Some(left));
    }

    #[test]
    fn ports_are_listed_wherever_they_stand() {
        let (memfd, table) = table();
        assert_eq!(table.ports(&memfd), []);
        let ip = "10.0.0.1".parse().unwrap();
        let claim =
            Claim { id: 1, service: 7, ip, reuse: false, family_only: false, listens: true };
        let entry =
            |at: usize| Entry { slot: 3, tenure: 9, claim: Claim { service: at as u32, ..claim } };
        // Those beside the borders of pages, too, which an entry may straddle.
        let places = (0..PORTS).filter(|at| at % 101 == 0 || *at > PORTS - 300 || *at < 300);
        let places: Vec<_> = places.collect();
        for &at in &places {
            table.set_port(at, Some(&entry(at)));
        }
        table.set_port(0, None);
        table.leave_port(PORTS - 1);
        let inner = &places[1..places.len() - 1];
        assert_eq!(table.ports(&memfd), inner.iter().copied().map(entry).collect::<Vec<_>>());
    }

    #[test]
    fn a_death_under_the_lock_is_told() {
        let (_memfd, table) = table();
        let long = Duration::from_secs(20);
        std::thread::scope(|scope| {
            scope.spawn(|| std::mem::forget(table.lock(long).unwrap()));
        });
        assert!(table.lock(long).unwrap().1);
        assert!(!table.lock(long).unwrap().1);
    }
}
