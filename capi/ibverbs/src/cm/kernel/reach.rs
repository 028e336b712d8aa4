//! Whether a GID can be reached from a port of a device of the kernel.

use std::ffi::c_uint;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use ironverbs::raw as soft;
use ironverbs_kernel::cm::{self, CmRecord, Conn, Ece, Place};
use ironverbs_sys::event;
use soft::{Gid, ReachError};

use super::ids::{bytes_of, number};
use super::objects::Channel;
use crate::abi::*;
use crate::driver;
use crate::fail::{Failure, Outcome};

/// Where the program does not say.
const PATIENCE: Duration = Duration::from_secs(2);

const PS_UDP: u16 = 0x111;
const IBV_LINK_LAYER_ETHERNET: u8 = 2;
const UD: u8 = 4;

fn refused(errno: i32) -> Failure {
    Failure::Io(io::Error::from_raw_os_error(errno))
}

/// On RoCE, by the kernel's connection manager: the route, the neighbour, and then, as on software devices, whether the
/// QP1 there answers: it is asked for a service that nobody offers.
pub(crate) fn gid_reachable(
    context: *mut ibv_context,
    port: c_uint,
    gid: [u8; 16],
    timeout: Option<Duration>,
) -> Outcome<()> {
    let ip = match Ipv6Addr::from(gid) {
        Ipv6Addr::UNSPECIFIED => return Err(Failure::Argument { what: "GID", value: 0 }),
        ip => ip.to_canonical(),
    };
    let number = u8::try_from(port.max(1)).ok();
    // SAFETY: a structure of numbers.
    let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
    // SAFETY: the caller's context, which is a driver's.
    let known = number.is_some_and(|number| unsafe {
        crate::dispatch::query_port(context, number, (&raw mut attr).cast()) == 0
    });
    if !known {
        return Err(Failure::Argument { what: "port", value: port.into() });
    }
    if attr.link_layer != IBV_LINK_LAYER_ETHERNET {
        let what = "asking the administrator of an InfiniBand subnet, from a device of the kernel,";
        return Err(Failure::Missing { what });
    }
    // SAFETY: the context's device stays, a driver's or not.
    let guid = driver::get_device_guid(unsafe { (*context).device });
    let asked = Question::new(timeout.unwrap_or(PATIENCE))?;
    let result = asked.answer(ip, guid, port);
    asked.end();
    result
}

/// An id, on a connection manager of its own.
struct Question {
    channel: std::sync::Arc<Channel>,
    id: u32,
    deadline: Instant,
}

impl Question {
    fn new(timeout: Duration) -> Outcome<Question> {
        // The device could not ask.
        let channel = Channel::open().map_err(|_| refused(libc::EIO))?;
        channel.share()?;
        // Of an id that has no name the kernel tells nothing.
        const NAME: u64 = 1;
        let id = number(&channel.issue(&cm::create_id(NAME, PS_UDP, UD))?);
        Ok(Question { channel, id, deadline: Instant::now() + timeout })
    }

    fn end(&self) {
        let _ = self.channel.issue(&cm::destroy_id(self.id));
    }

    fn answer(&self, ip: IpAddr, guid: u64, port: c_uint) -> Outcome<()> {
        const ADDR_RESOLVED: u32 = 0;
        const ROUTE_RESOLVED: u32 = 2;
        const UNREACHABLE: u32 = 7;
        const ESTABLISHED: u32 = 9;
        let gid = Gid::from_ip(ip);
        let no_path = |why| Failure::Reach(ReachError::NoPath { gid, why });
        let (to, len) = bytes_of(SocketAddr::new(ip, 0));
        let ms = u32::try_from(self.left().as_millis()).unwrap_or(u32::MAX);
        let resolve = cm::resolve_addr(self.id, ms.max(1), None, (&to, len));
        self.channel.issue(&resolve).map_err(|_| no_path("no route"))?;
        if self.next()?.event != ADDR_RESOLVED {
            return Err(no_path("no route, or nobody on the link has the address"));
        }
        let place = Place::read(&self.channel.issue(&cm::query_addr(self.id))?);
        if place.node_guid != guid || (port != 0 && c_uint::from(place.port) != port) {
            return Err(no_path("the route leaves from another port"));
        }
        if ip.is_multicast() {
            return Ok(());
        }
        self.channel.issue(&cm::resolve_route(self.id, ms.max(1)))?;
        if self.next()?.event != ROUTE_RESOLVED {
            return Err(no_path("the port is down"));
        }
        self.channel
            .issue(&cm::connect(self.id, &Conn::default(), Ece::default()))
            .map_err(|_| no_path("the port is down"))?;
        let told = self.next()?;
        // A status above 0 is the peer's, who is there.
        match told.event {
            UNREACHABLE if told.status > 0 => Ok(()),
            ESTABLISHED => Ok(()),
            _ => Err(no_path("nobody answers")),
        }
    }

    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }

    /// The next event; ENXIO when the time is over.
    fn next(&self) -> Outcome<CmRecord> {
        loop {
            match self.channel.issue(&cm::get_event()) {
                Err(Failure::Io(e)) if e.kind() == io::ErrorKind::WouldBlock => {}
                other => return other.map(CmRecord::read),
            }
            if !event::wait_readable_for(self.channel.fd.as_fd(), self.left())? {
                return Err(refused(libc::ENXIO));
            }
        }
    }
}
