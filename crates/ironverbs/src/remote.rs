//! What peers tell each other out of band: where a region and a queue pair are.

use ironverbs_soft::Gid;
use thiserror::Error;

/// A value that names more than is there, or bytes that mean nothing.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Error)]
pub enum RemoteError {
    /// The part does not lie within the region.
    #[error("{len} bytes at offset {offset} reach outside the {size} bytes of the remote region")]
    Outside {
        /// Start of the part.
        offset: u64,
        /// Its length in bytes.
        len: u64,
        /// Bytes of the region.
        size: u64,
    },
    /// A field has a value that is not possible.
    #[error("{what} is {value:#x}, at most {max:#x} is possible")]
    Field {
        /// The field.
        what: &'static str,
        /// What was found.
        value: u64,
        /// The largest value possible.
        max: u64,
    },
}

/// Memory of a peer, as READ, WRITE and atomics name it. It says nothing about rights: the peer checks those.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct RemoteRegion {
    /// Address in the peer, or offset in a zero-based region.
    pub addr: u64,
    /// The peer's key.
    pub rkey: u32,
    /// Bytes.
    pub len: u64,
}

impl RemoteRegion {
    /// Length of the byte form.
    pub const BYTES: usize = 20;

    /// Address, length and key, in network order.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..8].copy_from_slice(&self.addr.to_be_bytes());
        bytes[8..16].copy_from_slice(&self.len.to_be_bytes());
        bytes[16..].copy_from_slice(&self.rkey.to_be_bytes());
        bytes
    }

    /// The reverse of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// Field, when the range wraps around.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<RemoteRegion, RemoteError> {
        let &[a0, a1, a2, a3, a4, a5, a6, a7, l0, l1, l2, l3, l4, l5, l6, l7, k0, k1, k2, k3] =
            bytes;
        let addr = u64::from_be_bytes([a0, a1, a2, a3, a4, a5, a6, a7]);
        let len = u64::from_be_bytes([l0, l1, l2, l3, l4, l5, l6, l7]);
        let rkey = u32::from_be_bytes([k0, k1, k2, k3]);
        if addr.checked_add(len).is_none() {
            return Err(RemoteError::Field { what: "length", value: len, max: u64::MAX - addr });
        }
        Ok(RemoteRegion { addr, rkey, len })
    }

    /// The part of `len` bytes at `offset`.
    ///
    /// # Errors
    /// Outside.
    pub fn part(&self, offset: u64, len: u64) -> Result<RemoteRegion, RemoteError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.len => {
                Ok(RemoteRegion { addr: self.addr.wrapping_add(offset), rkey: self.rkey, len })
            }
            _ => Err(RemoteError::Outside { offset, len, size: self.len }),
        }
    }
}

/// Where a queue pair is: what its peer needs to connect.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub struct Endpoint {
    /// GID of its port.
    pub gid: Gid,
    /// Its number, 24 bits.
    pub qpn: u32,
    /// The first PSN it sends, 24 bits.
    pub psn: u32,
}

impl Endpoint {
    /// Length of the byte form.
    pub const BYTES: usize = 24;

    /// GID, QPN and PSN, in network order.
    pub fn to_bytes(&self) -> [u8; Self::BYTES] {
        let mut bytes = [0; Self::BYTES];
        bytes[..16].copy_from_slice(&self.gid.0);
        bytes[16..20].copy_from_slice(&self.qpn.to_be_bytes());
        bytes[20..].copy_from_slice(&self.psn.to_be_bytes());
        bytes
    }

    /// The reverse of [`to_bytes`](Self::to_bytes).
    ///
    /// # Errors
    /// Field, for numbers above 24 bits.
    pub fn from_bytes(bytes: &[u8; Self::BYTES]) -> Result<Endpoint, RemoteError> {
        let &[ref gid @ .., q0, q1, q2, q3, p0, p1, p2, p3] = bytes;
        let qpn = u32::from_be_bytes([q0, q1, q2, q3]);
        let psn = u32::from_be_bytes([p0, p1, p2, p3]);
        for (what, value) in [("QPN", qpn), ("PSN", psn)] {
            if value > MAX_24 {
                let (value, max) = (value.into(), MAX_24.into());
                return Err(RemoteError::Field { what, value, max });
            }
        }
        Ok(Endpoint { gid: Gid(*gid), qpn, psn })
    }
}

/// The largest QPN and PSN.
pub(crate) const MAX_24: u32 = 0xff_ffff;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_remote_region_survives_its_byte_form() {
        let region = RemoteRegion { addr: 0x1122_3344_5566_7788, rkey: 0xabcd_ef01, len: 5 << 30 };
        assert_eq!(RemoteRegion::from_bytes(&region.to_bytes()), Ok(region));
        assert_eq!(region.to_bytes()[..4], [0x11, 0x22, 0x33, 0x44]);
        let wraps = RemoteRegion { addr: u64::MAX - 1, rkey: 1, len: 2 };
        let error = RemoteError::Field { what: "length", value: 2, max: 1 };
        assert_eq!(RemoteRegion::from_bytes(&wraps.to_bytes()), Err(error));
    }

    #[test]
    fn parts_lie_within() {
        let region = RemoteRegion { addr: 1000, rkey: 7, len: 100 };
        assert_eq!(region.part(40, 60), Ok(RemoteRegion { addr: 1040, rkey: 7, len: 60 }));
        assert_eq!(region.part(100, 0).map(|part| part.len), Ok(0));
        let error = RemoteError::Outside { offset: 41, len: 60, size: 100 };
        assert_eq!(region.part(41, 60), Err(error));
        assert!(region.part(u64::MAX, 2).is_err());
    }

    #[test]
    fn an_endpoint_survives_its_byte_form() {
        let gid = "10.1.2.3".parse().unwrap();
        let endpoint = Endpoint { gid, qpn: 0xabcdef, psn: 0x00_0102 };
        assert_eq!(Endpoint::from_bytes(&endpoint.to_bytes()), Ok(endpoint));
        let wrong = Endpoint { psn: 1 << 24, ..endpoint };
        let error = RemoteError::Field { what: "PSN", value: 1 << 24, max: 0xff_ffff };
        assert_eq!(Endpoint::from_bytes(&wrong.to_bytes()), Err(error));
    }
}
