//! Path MTU as the verbs count it: payload bytes per packet, a power of two.

/// Payload bytes of a full packet. The discriminants are those of `enum ibv_mtu`.
#[derive(Copy, Clone, Eq, PartialEq, Ord, PartialOrd, Hash, Debug)]
#[repr(u8)]
pub enum Mtu {
    /// 256 bytes.
    M256 = 1,
    /// 512 bytes.
    M512 = 2,
    /// 1024 bytes.
    M1024 = 3,
    /// 2048 bytes.
    M2048 = 4,
    /// 4096 bytes.
    M4096 = 5,
}

impl Mtu {
    /// Every MTU, smallest first.
    pub const ALL: [Self; 5] = [Self::M256, Self::M512, Self::M1024, Self::M2048, Self::M4096];

    /// Bytes of an interface MTU kept for all but the payload: what kernel rxe keeps, so that both
    /// ends come to one path MTU on one link. The largest headers beside a payload, those of an XRC
    /// WRITE with immediate over IPv6, are eight bytes more (40 IP, 8 UDP, 12 BTH, 4 XRCETH, 16
    /// RETH, 4 immediate, 4 ICRC): with fewer than eight to spare IP would have to split such a
    /// packet, but no interface MTU in use is that tight.
    pub const OVERHEAD: u32 = 80;

    /// Payload bytes.
    pub const fn bytes(self) -> usize {
        128 << self as u8
    }

    /// The largest MTU that is not above `bytes`; `None` below 256.
    pub fn from_bytes_floor(bytes: usize) -> Option<Self> {
        Self::ALL.into_iter().rev().find(|mtu| mtu.bytes() <= bytes)
    }

    /// The largest MTU whose packets fit an interface of the given MTU (bytes of IP packet), as
    /// kernel rxe reckons it: 1500 gives 1024, 4200 gives 4096. `None` where not even 256 fits.
    pub fn from_interface(mtu: u32) -> Option<Self> {
        Self::from_bytes_floor(mtu.checked_sub(Self::OVERHEAD)? as usize)
    }
}

impl TryFrom<u8> for Mtu {
    type Error = InvalidMtu;

    fn try_from(value: u8) -> Result<Self, Self::Error> {
        match value {
            1 => Ok(Self::M256),
            2 => Ok(Self::M512),
            3 => Ok(Self::M1024),
            4 => Ok(Self::M2048),
            5 => Ok(Self::M4096),
            _ => Err(InvalidMtu(value)),
        }
    }
}

/// A number that is no `enum ibv_mtu`; carries it.
#[derive(Copy, Clone, Eq, PartialEq, Debug, thiserror::Error)]
#[error("{0} is not an IBV_MTU value: allowed are 1 (256 bytes) to 5 (4096 bytes)")]
pub struct InvalidMtu(pub u8);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_bytes_agree_with_ibv_mtu() {
        let bytes = Mtu::ALL.map(Mtu::bytes);
        assert_eq!(bytes, [256, 512, 1024, 2048, 4096]);
        for mtu in Mtu::ALL {
            assert_eq!(Mtu::try_from(mtu as u8), Ok(mtu));
            assert_eq!(Mtu::from_bytes_floor(mtu.bytes()), Some(mtu));
            assert_ne!(Mtu::from_bytes_floor(mtu.bytes() - 1), Some(mtu));
        }
        assert_eq!(Mtu::try_from(0), Err(InvalidMtu(0)));
        assert_eq!(Mtu::try_from(6), Err(InvalidMtu(6)));
        assert_eq!(Mtu::from_bytes_floor(255), None);
    }

    #[test]
    fn interface_mtu_leaves_room_for_headers() {
        let cases = [
            (0, None),
            (79, None),
            (335, None),
            (336, Some(Mtu::M256)),
            (1280, Some(Mtu::M1024)),
            (1500, Some(Mtu::M1024)),
            (4175, Some(Mtu::M2048)),
            (4200, Some(Mtu::M4096)),
            (9000, Some(Mtu::M4096)),
            (65536, Some(Mtu::M4096)),
            (u32::MAX, Some(Mtu::M4096)),
        ];
        for (interface, expected) in cases {
            assert_eq!(Mtu::from_interface(interface), expected, "interface MTU {interface}");
        }
    }
}
