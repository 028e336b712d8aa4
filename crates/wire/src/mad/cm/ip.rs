//! Connections by IP address and port (IBA annex A11): the service ID of a port, and the header
//! at the front of the private data of a REQ or SIDR_REQ that names the addresses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A service ID (IBA 12.6.5, A3).
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Default)]
pub struct ServiceId(pub u64);

impl ServiceId {
    /// The service ID of a port: the port space above 16 bits of port.
    pub const fn of_port(space: PortSpace, port: u16) -> Self {
        Self((space as u64) << 16 | port as u64)
    }

    /// The port that this is the service ID of; `None` if it is that of none.
    pub const fn port(self) -> Option<(PortSpace, u16)> {
        match PortSpace::from_number(self.0 >> 16) {
            Some(space) => Some((space, self.0 as u16)),
            None => None,
        }
    }
}

impl fmt::Debug for ServiceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServiceId({:#018x})", self.0)
    }
}

/// A space of port numbers. The discriminants are those of `enum rdma_port_space`, of which TCP
/// and UDP follow IBA A11.3.2 (0x01 and the protocol number).
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
#[repr(u16)]
pub enum PortSpace {
    /// Datagrams to the multicast groups of IP over InfiniBand.
    Ipoib = 0x0002,
    /// Connections.
    Tcp = 0x0106,
    /// Datagrams.
    Udp = 0x0111,
    /// Any service ID and QP type.
    Ib = 0x013f,
}

impl PortSpace {
    /// The space of this number.
    pub const fn from_number(number: u64) -> Option<Self> {
        match number {
            0x0002 => Some(Self::Ipoib),
            0x0106 => Some(Self::Tcp),
            0x0111 => Some(Self::Udp),
            0x013f => Some(Self::Ib),
            _ => None,
        }
    }

    /// Its name in C, without RDMA_PS_ (rdma_create_id(3)).
    pub const fn name(self) -> &'static str {
        match self {
            Self::Ipoib => "IPOIB",
            Self::Tcp => "TCP",
            Self::Udp => "UDP",
            Self::Ib => "IB",
        }
    }
}

/// The addresses of a connection, at the front of the private data (IBA A11.3.1).
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug)]
pub struct IpHeader {
    /// Port of the sender.
    pub src_port: u16,
    /// Address of the sender.
    pub src: IpAddr,
    /// Address of the receiver, of the same family.
    pub dst: IpAddr,
}

impl IpHeader {
    /// Bytes on the wire: so many less are left of the private data.
    pub const LEN: usize = 36;

    /// The header these bytes are. What lies before a 4-byte address is ignored.
    pub fn parse(b: &[u8; Self::LEN]) -> Result<Self, IpHeaderError> {
        let [version, ip_version, p0, p1, addresses @ ..] = *b;
        if version != 0 {
            return Err(IpHeaderError::Version { version });
        }
        let address = |at: usize| -> IpAddr {
            let mut octets = [0; 16];
            octets.copy_from_slice(&addresses[at..at + 16]);
            if ip_version >> 4 == 4 {
                let [.., a, b, c, d] = octets;
                Ipv4Addr::new(a, b, c, d).into()
            } else {
                Ipv6Addr::from(octets).into()
            }
        };
        match ip_version >> 4 {
            4 | 6 => Ok(Self {
                src_port: u16::from_be_bytes([p0, p1]),
                src: address(0),
                dst: address(16),
            }),
            version => Err(IpHeaderError::IpVersion { version }),
        }
    }

    /// The bytes of this header. With addresses of two families both are written as IPv6.
    pub fn emit(&self) -> [u8; Self::LEN] {
        let mut b = [0; Self::LEN];
        b[2..4].copy_from_slice(&self.src_port.to_be_bytes());
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.src, self.dst) {
            b[1] = 4 << 4;
            b[16..20].copy_from_slice(&src.octets());
            b[32..].copy_from_slice(&dst.octets());
        } else {
            b[1] = 6 << 4;
            b[4..20].copy_from_slice(&six(self.src));
            b[20..].copy_from_slice(&six(self.dst));
        }
        b
    }
}

fn six(addr: IpAddr) -> [u8; 16] {
    match addr {
        IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
        IpAddr::V6(v6) => v6.octets(),
    }
}

/// Why bytes are no header of addresses.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
pub enum IpHeaderError {
    /// Not version 0.0.
    #[error("version {:#04x} of the IP addressing header, not 0.0", version)]
    Version {
        /// Major and minor version, four bits each.
        version: u8,
    },
    /// Neither IPv4 nor IPv6.
    #[error("IP version {version}")]
    IpVersion {
        /// The version given.
        version: u8,
    },
}
