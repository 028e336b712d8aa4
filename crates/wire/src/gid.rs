//! Addresses: the GID and what of an IP header belongs to a packet.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::str::FromStr;

/// A port's global identifier: on RoCEv2 an IPv6 address, or an IPv4 address mapped into one
/// (`::ffff:a.b.c.d`, IBA A17.4.1.2). Network byte order, as in `union ibv_gid`.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Default)]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// All zeros: no GID, an empty entry of a GID table.
    pub const UNSPECIFIED: Self = Self([0; 16]);

    /// The IPv4-mapped GID of an address.
    pub const fn from_ipv4(addr: Ipv4Addr) -> Self {
        Self(addr.to_ipv6_mapped().octets())
    }

    /// The GID that is the address itself.
    pub const fn from_ipv6(addr: Ipv6Addr) -> Self {
        Self(addr.octets())
    }

    /// The GID of an address of either family.
    pub const fn from_ip(addr: IpAddr) -> Self {
        match addr {
            IpAddr::V4(v4) => Self::from_ipv4(v4),
            IpAddr::V6(v6) => Self::from_ipv6(v6),
        }
    }

    /// The address a packet to this GID is sent to; a mapped one comes back as IPv4.
    pub const fn to_ip(&self) -> IpAddr {
        if self.is_ipv4() { IpAddr::V4(self.low_ipv4()) } else { IpAddr::V6(self.as_ipv6()) }
    }

    /// Whether this is an IPv4-mapped GID, so that its packets have an IPv4 header.
    pub const fn is_ipv4(&self) -> bool {
        matches!(self.0, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, ..])
    }

    /// Whether this is a link-local IPv6 address, fe80::/10. An IPv4 address never is: programs
    /// ask in order to find the entry that needs a scope.
    pub const fn is_link_local(&self) -> bool {
        self.0[0] == 0xfe && self.0[1] & 0xc0 == 0x80
    }

    /// Whether this is a multicast address of its family: ff00::/8, or mapped 224.0.0.0/4.
    pub const fn is_multicast(&self) -> bool {
        self.0[0] == 0xff || (self.is_ipv4() && self.0[12] & 0xf0 == 0xe0)
    }

    const fn as_ipv6(&self) -> Ipv6Addr {
        Ipv6Addr::from_bits(u128::from_be_bytes(self.0))
    }

    /// The last four bytes, which are the address when [`Gid::is_ipv4`].
    pub(crate) const fn low_ipv4(&self) -> Ipv4Addr {
        let [.., a, b, c, d] = self.0;
        Ipv4Addr::new(a, b, c, d)
    }
}

/// Eight groups of four digits, none left out: the form of the verbs tools and of sysfs.
impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g, h, i] = self.as_ipv6().segments();
        write!(f, "{a:04x}:{b:04x}:{c:04x}:{d:04x}:{e:04x}:{g:04x}:{h:04x}:{i:04x}")
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Gid({self})")
    }
}

/// Any spelling of an IPv6 address, among them the eight full groups of `Display`, or an IPv4
/// address, which is mapped.
impl FromStr for Gid {
    type Err = ParseGidError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self::from_ip).map_err(|_| ParseGidError(text.to_owned()))
    }
}

impl From<IpAddr> for Gid {
    fn from(addr: IpAddr) -> Self {
        Self::from_ip(addr)
    }
}

/// Text that is neither an IPv6 nor an IPv4 address; carries the text.
#[derive(Clone, Eq, PartialEq, Debug, thiserror::Error)]
#[error("`{0}` is not a GID: expected an IPv6 or IPv4 address")]
pub struct ParseGidError(pub String);

/// What the IP header says about a packet, as far as the ICRC or a receiver needs it. Host order.
///
/// The packet is IPv4 exactly if `dst` [is](Gid::is_ipv4); of `src` then only the last four bytes
/// count.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug, Default)]
pub struct Path {
    /// Source address.
    pub src: Gid,
    /// Destination address.
    pub dst: Gid,
    /// IPv4 TOS or IPv6 traffic class.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label, 20 bits; no meaning on IPv4.
    pub flow_label: u32,
    /// What the packet's local routing header says; of InfiniBand links only. `src` and `dst` are then
    /// the GIDs of the two ports (or `dst` a multicast group), whether or not the packet has a GRH.
    pub ib: Option<IbRoute>,
}

/// What the local routing header says about a packet on an InfiniBand link (IBA 7.7).
#[derive(Copy, Clone, Eq, PartialEq, Hash, Debug, Default)]
pub struct IbRoute {
    /// Source LID.
    pub slid: u16,
    /// Destination LID.
    pub dlid: u16,
    /// Service level, 4 bits.
    pub sl: u8,
    /// The packet has a global routing header.
    pub grh: bool,
}

impl Path {
    /// The way back to the sender, on the same service level and label.
    pub fn reversed(&self) -> Path {
        let ib = self.ib.map(|ib| IbRoute { slid: ib.dlid, dlid: ib.slid, ..ib });
        Path { src: self.dst, dst: self.src, ib, ..*self }
    }

    /// Whether packets on this path have an IPv4 header.
    pub const fn is_ipv4(&self) -> bool {
        self.dst.is_ipv4()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(text: &str) -> Gid {
        text.parse().unwrap()
    }

    #[test]
    fn text_is_that_of_the_verbs_tools() {
        let mapped = Gid::from_ipv4(Ipv4Addr::new(10, 0, 0, 1));
        assert_eq!(mapped.to_string(), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        for same in ["10.0.0.1", "::ffff:10.0.0.1", "0000:0000:0000:0000:0000:ffff:0a00:0001"] {
            assert_eq!(gid(same), mapped);
        }
        assert_eq!(format!("{:?}", gid("fe80::1")), "Gid(fe80:0000:0000:0000:0000:0000:0000:0001)");
        let error = "10.0.0".parse::<Gid>().unwrap_err();
        assert!(error.to_string().contains("`10.0.0`"), "{error}");
    }

    #[test]
    fn kinds_of_address() {
        // address, IPv4, link-local, multicast
        let cases = [
            ("::", false, false, false),
            ("::10.0.0.1", false, false, false),
            ("10.0.0.1", true, false, false),
            ("169.254.0.1", true, false, false),
            ("224.0.0.1", true, false, true),
            ("239.255.255.255", true, false, true),
            ("240.0.0.1", true, false, false),
            ("fe80::1", false, true, false),
            ("febf::1", false, true, false),
            ("fec0::1", false, false, false),
            ("ff02::1", false, false, true),
            ("fd00::1", false, false, false),
        ];
        for (text, ipv4, link_local, multicast) in cases {
            let gid = gid(text);
            assert_eq!(gid.is_ipv4(), ipv4, "{text}");
            assert_eq!(gid.is_link_local(), link_local, "{text}");
            assert_eq!(gid.is_multicast(), multicast, "{text}");
            assert_eq!(gid.to_ip(), text.parse::<IpAddr>().unwrap());
        }
        assert_eq!(gid("::"), Gid::UNSPECIFIED);
    }
}
