//! An open device: limits, port, GIDs, and the makers of everything else.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32};

use ironverbs_transport::verbs::AhAttr;
use ironverbs_wire::{Gid, Mtu, Path};

use crate::config::MAX_PKEYS;
use crate::event::{AsyncEvent, AsyncQueue};
use crate::host::Inner;
use crate::object::Identity;
use crate::{Channel, Cq, CqOptions, Device, Dm, Error, Host, Pd, Xrcd};

/// What a device of ours can do; [`DeviceAttr`] reports the same numbers.
pub(crate) mod limits {
    /// Three blocks of numbers: the first process of a group has no more, as the one with QPN 0 is not given out.
    pub(crate) const QP: u32 = 3 * crate::qpn::BLOCK as u32;
    pub(crate) const WR: u32 = 16_384;
    pub(crate) const SGE: u32 = 32;
    pub(crate) const INLINE: u32 = 1_024;
    pub(crate) const CQ: u32 = 65_536;
    pub(crate) const CQE: u32 = 4_194_303;
    pub(crate) const MR: u32 = 1 << 20;
    pub(crate) const MW: u32 = 1 << 20;
    pub(crate) const PD: u32 = 65_536;
    pub(crate) const AH: u32 = 1 << 20;
    pub(crate) const SRQ: u32 = 16_384;
    pub(crate) const RD_ATOMIC: u32 = 128;
    pub(crate) const RAW_QP: u32 = 1_024;
    /// Work queues, and tables of them.
    pub(crate) const WQ: u32 = 4_096;
    /// Entries of a table of work queues.
    pub(crate) const RWQ_TABLE: u32 = 1_024;
    pub(crate) const FLOW: u32 = 65_536;
    pub(crate) const FLOW_SPECS: usize = 16;
    /// Objects of counters, and values of one.
    pub(crate) const COUNTERS: u32 = 256;
    /// Counters of completions.
    pub(crate) const COMP_CNTR: u32 = 65_536;
    /// Bytes of device memory in a process.
    pub(crate) const DM: u64 = 16 << 20;
    /// As many groups as a socket can join by default (`net.ipv4.igmp_max_memberships`).
    pub(crate) const MCAST_GROUPS: u32 = 20;
    pub(crate) const MCAST_QPS: u32 = 256;
    pub(crate) const COMP_VECTORS: u32 = 2;
    pub(crate) const GIDS: u32 = 128;
    /// Entries of the GID table of a port with an InfiniBand link.
    pub(crate) const GUIDS: u32 = 8;
    /// CapabilityMask of PortInfo on an InfiniBand link (IBA 14.2.5.6): IsSystemImageGUIDsupported,
    /// IsExtendedSpeedsSupported, IsCommunicationManagementSupported, IsClientReregistrationSupported.
    pub(crate) const IB_PORT_CAPABILITIES: u32 = 1 << 11 | 1 << 14 | 1 << 16 | 1 << 25;
    /// 4.096 us * 2^18: about a second.
    pub(crate) const SUBNET_TIMEOUT: u8 = 18;
    /// How long the answer to a MAD may take: 4.096 us * 2^16, a quarter of a second.
    pub(crate) const RESPONSE_TIME: u8 = 16;
    pub(crate) const MESSAGE: u32 = 1 << 31;
    /// The one partition: the default, full membership.
    pub(crate) const PKEY: u16 = 0xffff;
}

/// Limits of a device (`struct ibv_device_attr`); see ibv_query_device(3).
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct DeviceAttr {
    pub fw_ver: String,
    /// Host order.
    pub node_guid: u64,
    /// Host order.
    pub sys_image_guid: u64,
    pub max_mr_size: u64,
    pub page_size_cap: u64,
    pub vendor_id: u32,
    pub vendor_part_id: u32,
    pub hw_ver: u32,
    pub max_qp: u32,
    pub max_qp_wr: u32,
    /// `enum ibv_device_cap_flags`.
    pub device_cap_flags: u32,
    pub max_sge: u32,
    pub max_sge_rd: u32,
    pub max_inline_data: u32,
    pub max_cq: u32,
    pub max_cqe: u32,
    pub max_mr: u32,
    pub max_mw: u32,
    pub max_pd: u32,
    pub max_qp_rd_atom: u32,
    pub max_res_rd_atom: u32,
    pub max_qp_init_rd_atom: u32,
    /// `enum ibv_atomic_cap`: 1, atomic among the operations of this device and the CPU's own.
    pub atomic_cap: u32,
    pub max_ah: u32,
    /// Bytes of device memory.
    pub max_dm_size: u64,
    /// Raw packet queue pairs; 0, as the next three, on InfiniBand links.
    pub max_raw_qp: u32,
    /// Work queues.
    pub max_wq: u32,
    /// Tables of work queues.
    pub max_rwq_tables: u32,
    /// Entries of one.
    pub max_rwq_table_size: u32,
    pub max_srq: u32,
    pub max_srq_wr: u32,
    pub max_srq_sge: u32,
    /// Multicast groups that queue pairs can be attached to.
    pub max_mcast_grp: u32,
    /// Queue pairs of one group.
    pub max_mcast_qp_attach: u32,
    pub max_total_mcast_qp_attach: u32,
    pub max_pkeys: u16,
    pub local_ca_ack_delay: u8,
    pub phys_port_cnt: u8,
    pub num_comp_vectors: u32,
}

/// State of a port (`enum ibv_port_state`).
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum PortState {
    /// No packets pass.
    Down = 1,
    /// Packets pass.
    Active = 4,
}

/// Link layer of a port.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum LinkLayer {
    InfiniBand = 1,
    Ethernet = 2,
}

/// Attributes of a port (`struct ibv_port_attr`); see ibv_query_port(3).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct PortAttr {
    pub state: PortState,
    pub max_mtu: Mtu,
    pub active_mtu: Mtu,
    pub gid_tbl_len: u32,
    pub port_cap_flags: u32,
    pub max_msg_sz: u32,
    pub bad_pkey_cntr: u32,
    pub qkey_viol_cntr: u32,
    pub pkey_tbl_len: u16,
    pub lid: u16,
    pub sm_lid: u16,
    pub lmc: u8,
    pub max_vl_num: u8,
    pub sm_sl: u8,
    pub subnet_timeout: u8,
    pub init_type_reply: u8,
    /// 2: 4X.
    pub active_width: u8,
    /// 32: EDR.
    pub active_speed: u32,
    pub phys_state: u8,
    pub link_layer: LinkLayer,
    /// 1: a GRH is required.
    pub flags: u8,
    pub port_cap_flags2: u16,
}

/// Kind of a GID.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)]
pub enum GidKind {
    Ib = 0,
    RoceV1 = 1,
    RoceV2 = 2,
}

/// An entry of the GID table (`struct ibv_gid_entry`).
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Gid,
    /// Its place in the table.
    pub index: u32,
    /// Port, from 1.
    pub port: u8,
    /// Kind.
    pub kind: GidKind,
    /// Interface that has the address.
    pub ifindex: u32,
}

/// An open device (ibv_open_device(3)).
#[derive(Debug)]
pub struct Context {
    pub(crate) identity: Identity,
    pub(crate) events: AsyncQueue,
    /// Nobody managed the subnet when that was waited for.
    pub(crate) unmanaged: AtomicBool,
    device: Arc<Device>,
    host: Host,
}

impl Context {
    pub(crate) fn new(host: Host, device: &Arc<Device>) -> Result<Arc<Context>, Error> {
        Ok(Arc::new(Context {
            identity: host.0.identity("context"),
            events: AsyncQueue::new()?,
            unmanaged: AtomicBool::new(false),
            device: device.clone(),
            host,
        }))
    }

    /// The device.
    pub fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The Host it lives on.
    pub fn host(&self) -> &Host {
        &self.host
    }

    /// Why no packets pass, where the UDP port could not be opened.
    pub fn wire_problem(&self) -> Option<String> {
        self.inner().wire_problem()
    }

    pub(crate) fn inner(&self) -> &Inner {
        &self.host.0
    }

    /// An error where nothing new can be asked of the device: in a fork, and once its interface is gone.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.inner().check()?;
        match self.device.is_present() {
            true => Ok(()),
            false => Err(Error::Removed { device: self.device.name().to_owned() }),
        }
    }

    /// Limits of the device (ibv_query_device(3)).
    pub fn attr(&self) -> DeviceAttr {
        // CURR_QP_STATE_MOD, PORT_ACTIVE_EVENT, SYS_IMAGE_GUID, RC_RNR_NAK_GEN, SRQ_RESIZE, MEM_WINDOW, XRC,
        // MEM_MGT_EXTENSIONS (local invalidate, SEND with invalidate), MEM_WINDOW_TYPE_2B, each with a test.
        const WINDOWS: u32 = 1 << 17 | 1 << 21 | 1 << 24;
        // RAW_IP_CSUM, MANAGED_FLOW_STEERING.
        const RAW: u32 = 1 << 26 | 1 << 29;
        let is_raw = self.device.subnet().is_none();
        let raw = if is_raw { RAW } else { 0 };
        let device_cap_flags =
            raw | 1 << 7 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | WINDOWS | 1 << 20;
        let config = self.host.config();
        DeviceAttr {
            fw_ver: env!("CARGO_PKG_VERSION").to_owned(),
            node_guid: self.device.guid(),
            sys_image_guid: self.device.guid(),
            max_mr_size: i64::MAX as u64,
            page_size_cap: 0xffff_ffff_ffff_f000,
            vendor_id: config.vendor_id.value,
            vendor_part_id: config.vendor_part_id.value,
            hw_ver: 0,
            max_qp: limits::QP,
            max_qp_wr: limits::WR,
            device_cap_flags,
            max_sge: limits::SGE,
            max_sge_rd: limits::SGE,
            max_inline_data: limits::INLINE,
            max_cq: limits::CQ,
            max_cqe: limits::CQE,
            max_mr: limits::MR,
            max_mw: limits::MW,
            max_pd: limits::PD,
            max_qp_rd_atom: limits::RD_ATOMIC,
            max_res_rd_atom: limits::RD_ATOMIC * limits::QP,
            max_qp_init_rd_atom: limits::RD_ATOMIC,
            atomic_cap: 1,
            max_ah: limits::AH,
            max_dm_size: limits::DM,
            max_raw_qp: if is_raw { limits::RAW_QP } else { 0 },
            max_wq: if is_raw { limits::WQ } else { 0 },
            max_rwq_tables: if is_raw { limits::WQ } else { 0 },
            max_rwq_table_size: if is_raw { limits::RWQ_TABLE } else { 0 },
            max_srq: limits::SRQ,
            max_srq_wr: limits::WR,
            max_srq_sge: limits::SGE,
            max_mcast_grp: limits::MCAST_GROUPS,
            max_mcast_qp_attach: limits::MCAST_QPS,
            max_total_mcast_qp_attach: limits::MCAST_GROUPS * limits::MCAST_QPS,
            max_pkeys: if self.device.subnet().is_some() { MAX_PKEYS as u16 } else { 1 },
            local_ca_ack_delay: 15,
            phys_port_cnt: 1,
            num_comp_vectors: limits::COMP_VECTORS,
        }
    }

    /// Attributes of a port (ibv_query_port(3)).
    pub fn port(&self, port: u8) -> Result<PortAttr, Error> {
        check_port(port)?;
        let (up, active_mtu) = self.device.link();
        let active = up && self.inner().has_wire();
        let subnet = self.device.subnet();
        let attr = PortAttr {
            state: if active { PortState::Active } else { PortState::Down },
            max_mtu: Mtu::M4096,
            active_mtu,
            gid_tbl_len: limits::GIDS,
            // IBV_PORT_CM_SUP, IBV_PORT_IP_BASED_GIDS.
            port_cap_flags: 1 << 16 | 1 << 26,
            max_msg_sz: limits::MESSAGE,
            bad_pkey_cntr: 0,
            qkey_viol_cntr: 0,
            pkey_tbl_len: 1,
            lid: 0,
            sm_lid: 0,
            lmc: 0,
            max_vl_num: 1,
            sm_sl: 0,
            subnet_timeout: 0,
            init_type_reply: 0,
            active_width: 2,
            active_speed: 32,
            phys_state: if active { 5 } else { 3 },
            link_layer: LinkLayer::Ethernet,
            flags: 1,
            port_cap_flags2: 0,
        };
        let Some(subnet) = subnet else { return Ok(attr) };
        Ok(PortAttr {
            gid_tbl_len: limits::GUIDS,
            port_cap_flags: limits::IB_PORT_CAPABILITIES,
            pkey_tbl_len: MAX_PKEYS as u16,
            lid: self.device.place().map_or(0, |place| place.lid),
            lmc: subnet.lmc(),
            sm_lid: self.inner().subnet_manager().0,
            sm_sl: self.inner().subnet_manager().1,
            subnet_timeout: limits::SUBNET_TIMEOUT,
            link_layer: LinkLayer::InfiniBand,
            flags: 0,
            ..attr
        })
    }

    fn gid_table_len(&self) -> u32 {
        if self.device.subnet().is_some() { limits::GUIDS } else { limits::GIDS }
    }

    /// An entry of the GID table; Invalid when the entry is empty (ibv_query_gid_ex(3)).
    pub fn gid(&self, port: u8, index: u32) -> Result<GidEntry, Error> {
        check_port(port)?;
        let len = self.gid_table_len();
        if index >= len {
            let max = u64::from(len) - 1;
            return Err(Error::Limit { what: "GID index", asked: index.into(), max });
        }
        let gid = self.device.gid(index).ok_or(Error::Invalid {
            what: "GID index",
            value: index.into(),
            why: "the entry is empty",
        })?;
        Ok(self.entry(index, gid))
    }

    /// The entries of the GID table that are in use (ibv_query_gid_table(3)).
    pub fn gid_table(&self, port: u8) -> Vec<GidEntry> {
        if check_port(port).is_err() {
            return Vec::new();
        }
        self.device.gids().into_iter().map(|(index, gid)| self.entry(index, gid)).collect()
    }

    fn entry(&self, index: u32, gid: Gid) -> GidEntry {
        let kind = if self.device.subnet().is_some() { GidKind::Ib } else { GidKind::RoceV2 };
        GidEntry { gid, index, port: 1, kind, ifindex: self.device.ifindex() }
    }

    /// An entry of the P_Key table, in host order (ibv_query_pkey(3)); 0 where it is empty.
    pub fn pkey(&self, port: u8, index: u32) -> Result<u16, Error> {
        check_port(port)?;
        if let Some(subnet) = self.device.subnet() {
            let max = MAX_PKEYS as u64 - 1;
            return match u64::from(index) <= max {
                true => Ok(subnet.pkey(index as usize)),
                false => Err(Error::Limit { what: "P_Key index", asked: index.into(), max }),
            };
        }
        if index != 0 {
            return Err(Error::Limit { what: "P_Key index", asked: index.into(), max: 0 });
        }
        Ok(limits::PKEY)
    }

    /// Where an address vector leads.
    ///
    /// # Errors
    /// Invalid: no GRH (RoCE requires one), a source GID that is not there, a destination of the other family.
    pub(crate) fn resolve(&self, attr: &AhAttr) -> Result<Path, Error> {
        check_port(attr.port_num)?;
        if let Some(subnet) = self.device.subnet() {
            if attr.is_global {
                self.gid(attr.port_num, attr.sgid_index.into())?;
            }
            let gone = || Error::Gone { device: self.device.name().to_owned() };
            return subnet.resolve(&self.device.place().ok_or_else(gone)?, attr);
        }
        if !attr.is_global {
            return Err(Error::Invalid { what: "is_global", value: 0, why: "RoCE requires a GRH" });
        }
        let src = self.gid(attr.port_num, attr.sgid_index.into())?.gid;
        if attr.dgid == Gid::UNSPECIFIED {
            return Err(Error::Invalid { what: "dgid", value: 0, why: "it is all zeros" });
        }
        if src.is_ipv4() != attr.dgid.is_ipv4() {
            return Err(Error::Invalid {
                what: "sgid_index",
                value: attr.sgid_index.into(),
                why: "source and destination GID are of different IP versions",
            });
        }
        Ok(Path {
            src,
            dst: attr.dgid,
            traffic_class: attr.traffic_class,
            hop_limit: if attr.hop_limit == 0 { 64 } else { attr.hop_limit },
            flow_label: attr.flow_label & 0xf_ffff,
            ib: None,
        })
    }

    /// Readable while an asynchronous event waits; the caller may poll it and set O_NONBLOCK.
    pub fn async_fd(&self) -> RawFd {
        self.events.fd()
    }

    /// The next asynchronous event (ibv_get_async_event(3)). Blocks unless the descriptor is O_NONBLOCK (then
    /// EAGAIN); EINTR when a signal came; EPERM in a fork, which must not take its parent's events.
    pub fn next_async_event(&self) -> io::Result<AsyncEvent> {
        self.inner().check()?;
        self.events.next_event()
    }

    /// The descriptor of asynchronous events, for who reads the eight bytes of one from it by himself, and then calls
    /// [`Context::signalled_async_event`].
    ///
    /// # Errors
    /// EPERM in a fork, which must not take its parent's events.
    pub fn async_event_fd(&self) -> io::Result<RawFd> {
        self.inner().check()?;
        Ok(self.async_fd())
    }

    /// The event whose eight bytes the caller has read from the descriptor; None: its object has gone meanwhile.
    ///
    /// # Errors
    /// As [`Context::async_event_fd`].
    pub fn signalled_async_event(&self) -> io::Result<Option<AsyncEvent>> {
        self.inner().check()?;
        Ok(self.events.signalled())
    }

    /// Makes a protection domain (ibv_alloc_pd(3)).
    pub fn alloc_pd(self: &Arc<Self>) -> Result<Arc<Pd>, Error> {
        self.check()?;
        Pd::new(self)
    }

    /// Allocates device memory that begins at a multiple of 2^`log_align` (ibv_alloc_dm(3)). A child of fork(2) may, too.
    pub fn alloc_dm(&self, len: u64, log_align: u32) -> Result<Arc<Dm>, Error> {
        Dm::allocate(self.inner().identity("device memory"), len, log_align)
    }

    /// Makes a completion channel (ibv_create_comp_channel(3)).
    pub fn create_channel(self: &Arc<Self>) -> Result<Arc<Channel>, Error> {
        self.check()?;
        Channel::new(self)
    }

    /// Makes a completion queue of `cqe` entries (ibv_create_cq(3)).
    pub fn create_cq(
        self: &Arc<Self>,
        cqe: u32,
        channel: Option<&Arc<Channel>>,
        comp_vector: u32,
    ) -> Result<Arc<Cq>, Error> {
        self.create_cq_with(cqe, channel, comp_vector, CqOptions::default(), None)
    }

    /// The same, with more to say (ibv_create_cq_ex(3)): among that a parent domain, in whose memory it is then.
    pub fn create_cq_with(
        self: &Arc<Self>,
        cqe: u32,
        channel: Option<&Arc<Channel>>,
        comp_vector: u32,
        options: CqOptions,
        domain: Option<&Arc<Pd>>,
    ) -> Result<Arc<Cq>, Error> {
        self.check()?;
        Cq::new(self, cqe, channel, comp_vector, options, domain)
    }

    /// Opens the XRC domain of a file, or one that no file names (ibv_open_xrcd(3)). `create` and `exclusive` are
    /// O_CREAT and O_EXCL. The domain of a file is shared within this process.
    ///
    /// # Errors
    /// EAGAIN when the file has no domain and `create` is not set; Invalid when it has one and `exclusive` is.
    pub fn open_xrcd(
        self: &Arc<Self>,
        file: Option<BorrowedFd<'_>>,
        create: bool,
        exclusive: bool,
    ) -> Result<Arc<Xrcd>, Error> {
        self.check()?;
        Xrcd::open(self, file, create, exclusive)
    }

    /// Closes the device (ibv_close_device(3)): no events come any more. Objects made from it stay usable until
    /// they are destroyed.
    pub fn destroy(&self) -> Result<(), Error> {
        self.inner().check()?;
        self.identity.retire()?;
        self.inner().flush();
        self.device.forget(self);
        self.inner().fabric.forget(self);
        self.inner().announce();
        Ok(())
    }
}

crate::object::accessors!(Context);

pub(crate) fn check_port(port: u8) -> Result<(), Error> {
    match port {
        1 => Ok(()),
        0 => Err(Error::Invalid { what: "port", value: 0, why: "ports count from 1" }),
        n => Err(Error::Limit { what: "port", asked: n.into(), max: 1 }),
    }
}

/// Handles of objects count up from here, so that 0 is none.
pub(crate) fn first_handle() -> AtomicU32 {
    AtomicU32::new(1)
}
