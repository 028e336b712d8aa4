//! Adapters of the kernel: what sysfs says of them, and /dev/infiniband/umadN.

use std::ffi::{CString, c_int, c_uint};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::Path;

use ironverbs::raw as soft;
use ironverbs_kernel::management::{self, Adapter};
use ironverbs_sys::umad::{self as files, Registration};
use ironverbs_sys::{event, uverbs};
use soft::config::Soft;

use super::abi::*;
use super::names::{copy_pkeys, put};
use crate::fail::{self, Failure};
use crate::host::host;

fn sysfs() -> &'static Path {
    crate::driver::sysfs()
}

/// The kernel's adapters, if they are wanted, but for those whose names are taken.
pub(super) fn adapters(taken: &[String]) -> Vec<Adapter> {
    if host().is_ok_and(|host| host.config().soft.value == Soft::Only) {
        return Vec::new();
    }
    let mut adapters = management::adapters(sysfs());
    adapters.retain(|adapter| !taken.contains(&adapter.name) && !adapter.ports.is_empty());
    adapters
}

/// Whether the port is on an InfiniBand link and active.
pub(super) fn is_managed(adapter: &Adapter) -> bool {
    const ACTIVE: u32 = 4;
    let port = |&number: &u8| management::port(sysfs(), &adapter.name, number);
    let active = |port: management::Port| port.state == ACTIVE && port.link_layer == "InfiniBand";
    adapter.ports.iter().filter_map(port).any(active)
}

/// The port that a program means; 0 is the first.
pub(super) fn number(adapter: &Adapter, port: c_int) -> Result<u8, c_int> {
    let found = match port {
        0 => adapter.ports.first().copied(),
        port => adapter.ports.iter().copied().find(|&known| c_int::from(known) == port),
    };
    found.ok_or(libc::EINVAL)
}

pub(super) fn ca(adapter: &Adapter) -> umad_ca_t {
    let mut out = umad_ca_t {
        ca_name: [0; CA_NAME_LEN],
        node_type: adapter.node_type,
        numports: adapter.ports.len() as c_int,
        fw_ver: [0; 20],
        ca_type: [0; 40],
        hw_ver: [0; 20],
        node_guid: adapter.node_guid.to_be(),
        system_guid: adapter.sys_image_guid.to_be(),
        ports: [std::ptr::null_mut(); CA_MAX_PORTS],
    };
    put(&mut out.ca_name, &adapter.name);
    put(&mut out.fw_ver, &adapter.fw_ver);
    put(&mut out.ca_type, &adapter.hca_type);
    put(&mut out.hw_ver, &adapter.hw_rev);
    out
}

/// GUID of a port, in network order.
pub(super) fn port_guid(adapter: &Adapter, number: u8) -> u64 {
    let gid = management::port(sysfs(), &adapter.name, number).map_or([0; 16], |port| port.gid);
    halves(&gid)[1]
}

fn halves(gid: &[u8; 16]) -> [u64; 2] {
    let gid = u128::from_be_bytes(*gid);
    [((gid >> 64) as u64).to_be(), (gid as u64).to_be()]
}

pub(super) fn port(adapter: &Adapter, number: u8) -> Result<umad_port_t, c_int> {
    let told = management::port(sysfs(), &adapter.name, number).ok_or(libc::ENODEV)?;
    let [gid_prefix, port_guid] = halves(&told.gid);
    let mut out = umad_port_t {
        ca_name: [0; CA_NAME_LEN],
        portnum: number.into(),
        base_lid: told.lid,
        lmc: told.lmc,
        sm_lid: told.sm_lid,
        sm_sl: told.sm_sl,
        state: told.state,
        phys_state: told.phys_state,
        rate: told.rate,
        capmask: told.capabilities.to_be(),
        gid_prefix,
        port_guid,
        pkeys_size: told.pkeys.len() as c_uint,
        pkeys: copy_pkeys(&told.pkeys)?,
        link_layer: [0; CA_NAME_LEN],
    };
    put(&mut out.ca_name, &adapter.name);
    put(&mut out.link_layer, &told.link_layer);
    Ok(out)
}

/// Where a port's subnet manager says that it is one.
pub(super) fn issm(adapter: &Adapter, number: u8) -> Result<String, c_int> {
    let file = management::file(sysfs(), &adapter.name, number).ok_or(libc::ENODEV)?;
    Ok(format!("/dev/infiniband/{}", file.replacen("umad", "issm", 1)))
}

/// An open file of a port's management datagrams.
pub(super) struct Port(OwnedFd);

fn errno(error: &std::io::Error) -> c_int {
    error.raw_os_error().unwrap_or(libc::EIO)
}

impl Port {
    /// ENOSYS where the kernel's interface is of another version than 5; EPERM where the file is not for this user;
    /// ENODEV without it (ib_umad is not loaded, or the port has no management).
    pub(super) fn open(adapter: &Adapter, number: u8) -> Result<Port, c_int> {
        let opened = || {
            if let Some(other) = management::version(sysfs()).filter(|&v| v != management::VERSION)
            {
                return Err(Failure::Version {
                    what: "management datagrams (ib_umad)",
                    other,
                    known: 5,
                });
            }
            let name = management::file(sysfs(), &adapter.name, number);
            let path = format!("/dev/infiniband/{}", name.as_deref().unwrap_or("umad?"));
            let file = CString::new(path.clone()).map_err(|_| Failure::Null { what: "path" })?;
            let fd = uverbs::open(&file, None).map_err(|error| {
                let errno = match errno(&error) {
                    libc::EACCES => libc::EPERM,
                    libc::ENOENT | libc::ENXIO => libc::ENODEV,
                    other => other,
                };
                Failure::Open { path, errno, error }
            })?;
            event::set_nonblocking(fd.as_fd())?;
            files::enable_pkey(fd.as_fd())?;
            Ok(Port(fd))
        };
        fail::returned("umad_open_port", opened)
    }

    pub(super) fn fd(&self) -> c_int {
        self.0.as_raw_fd()
    }

    pub(super) fn register(&self, asked: &Registration) -> Result<u32, c_int> {
        files::register(self.0.as_fd(), asked).map_err(|error| errno(&error))
    }

    pub(super) fn unregister(&self, agent: u32) -> Result<(), c_int> {
        files::unregister(self.0.as_fd(), agent).map_err(|error| errno(&error))
    }

    pub(super) fn send(&self, message: &[u8]) -> Result<(), c_int> {
        files::send(self.0.as_fd(), message).map_err(|error| errno(&error))
    }

    /// The next datagram, its header first: how long it is, or why there is none.
    pub(super) fn take(&self, room: &mut [u8]) -> Result<usize, c_int> {
        files::receive(self.0.as_fd(), room).map_err(|error| errno(&error))
    }
}
