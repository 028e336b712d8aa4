//! Which ports are taken.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};

use ironverbs_sys::clock::monotonic_ns;
use parking_lot::Mutex;

use super::{CmError, PortSpace};

/// Ports that are given to those who do not ask for one: the kernel's range.
const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;

/// How two claims to one port agree.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Sharing {
    /// Both have it: they may share the address, unless one listens.
    pub(super) reuse: bool,
    /// Both have it: IPv6's wildcard leaves IPv4 alone.
    pub(super) family_only: bool,
}

#[derive(Debug)]
struct Claim {
    id: u64,
    ip: IpAddr,
    sharing: Sharing,
    listens: bool,
}

/// The ports that ids of this process have.
#[derive(Debug, Default)]
pub(super) struct Ports(Mutex<HashMap<(PortSpace, u16), Vec<Claim>>>);

impl Ports {
    /// Takes the port of `addr`, or a free one if that is 0, for `id`; returns it.
    pub(super) fn claim(
        &self,
        id: u64,
        space: PortSpace,
        addr: SocketAddr,
        sharing: Sharing,
    ) -> Result<u16, CmError> {
        let mut ports = self.0.lock();
        let claim = Claim { id, ip: addr.ip(), sharing, listens: false };
        let port = match addr.port() {
            0 => pick(&ports, space).ok_or(CmError::AddrInUse { addr })?,
            port => port,
        };
        let claims = ports.entry((space, port)).or_default();
        if claims.iter().any(|other| conflict(other, &claim)) {
            return Err(CmError::AddrInUse { addr });
        }
        claims.push(claim);
        Ok(port)
    }

    /// The id listens on its port from now on.
    pub(super) fn listen(
        &self,
        id: u64,
        space: PortSpace,
        addr: SocketAddr,
    ) -> Result<(), CmError> {
        let mut ports = self.0.lock();
        let in_use = Err(CmError::AddrInUse { addr });
        let Some(claims) = ports.get_mut(&(space, addr.port())) else { return in_use };
        let Some(at) = claims.iter().position(|claim| claim.id == id) else { return in_use };
        let shared = |(n, other): (usize, &Claim)| n != at && overlap(other, &claims[at]);
        if claims.iter().enumerate().any(shared) {
            return in_use;
        }
        claims[at].listens = true;
        Ok(())
    }

    /// Gives the port back.
    pub(super) fn release(&self, id: u64, space: PortSpace, port: u16) {
        let mut ports = self.0.lock();
        if let Some(claims) = ports.get_mut(&(space, port)) {
            claims.retain(|claim| claim.id != id);
            if claims.is_empty() {
                ports.remove(&(space, port));
            }
        }
    }
}

/// Whether packets to one could be meant for the other.
fn overlap(a: &Claim, b: &Claim) -> bool {
    if a.sharing.family_only && b.sharing.family_only && a.ip.is_ipv4() != b.ip.is_ipv4() {
        return false;
    }
    a.ip.is_unspecified() || b.ip.is_unspecified() || a.ip == b.ip
}

fn conflict(held: &Claim, new: &Claim) -> bool {
    let shared = held.sharing.reuse && new.sharing.reuse && !held.listens;
    !shared && overlap(held, new)
}

fn pick(taken: &HashMap<(PortSpace, u16), Vec<Claim>>, space: PortSpace) -> Option<u16> {
    let span = EPHEMERAL.end - EPHEMERAL.start;
    let start = (monotonic_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u16 % span;
    (0..span)
        .map(|step| EPHEMERAL.start + (start + step) % span)
        .find(|port| !taken.contains_key(&(space, *port)))
}
