//! Which ports are taken, among this user's processes where they form a group.

use std::collections::HashMap;
use std::net::SocketAddr;

use ironverbs_sys::clock::monotonic_ns;
use parking_lot::Mutex;

use super::{CmError, PortSpace};
use crate::registry::{Claim, Registry};

/// Ports that are given to those who do not ask for one: the kernel's range.
const EPHEMERAL: std::ops::Range<u16> = 32_768..61_000;

/// The ports that ids of this process have, by service.
#[derive(Debug, Default)]
pub(super) struct Ports(Mutex<HashMap<u32, Vec<Claim>>>);

/// Port space and port in one number.
fn service(space: PortSpace, port: u16) -> u32 {
    (space as u32) << 16 | u32::from(port)
}

impl Ports {
    /// Takes the port of `addr`, or a free one if that is 0, as `claim` says; returns it.
    pub(super) fn claim(
        &self,
        registry: Option<&Registry>,
        space: PortSpace,
        addr: SocketAddr,
        claim: Claim,
    ) -> Result<u16, CmError> {
        let mut ports = self.0.lock();
        if addr.port() != 0 {
            let claim = Claim { service: service(space, addr.port()), ..claim };
            return match take(&mut ports, registry, claim)? {
                true => Ok(addr.port()),
                false => Err(CmError::AddrInUse { addr }),
            };
        }
        let span = EPHEMERAL.end - EPHEMERAL.start;
        let start = (monotonic_ns().wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as u16 % span;
        for step in 0..span {
            let port = EPHEMERAL.start + (start + step) % span;
            let claim = Claim { service: service(space, port), ..claim };
            // One that nobody has in any way: the address may be decided later.
            if !ports.contains_key(&claim.service) && take(&mut ports, registry, claim)? {
                return Ok(port);
            }
        }
        Err(CmError::AddrInUse { addr })
    }

    /// The id listens on its port from now on.
    pub(super) fn listen(
        &self,
        registry: Option<&Registry>,
        space: PortSpace,
        addr: SocketAddr,
        id: u32,
    ) -> Result<(), CmError> {
        let mut ports = self.0.lock();
        let in_use = Err(CmError::AddrInUse { addr });
        let Some(claims) = ports.get_mut(&service(space, addr.port())) else { return in_use };
        let Some(at) = claims.iter().position(|claim| claim.id == id) else { return in_use };
        let claim = Claim { listens: true, ..claims[at] };
        let others = |(n, other): (usize, &Claim)| n != at && other.overlaps(&claim);
        if claims.iter().enumerate().any(others) {
            return in_use;
        }
        if let Some(registry) = registry
            && !registry.listen_on_port(&claim)?
        {
            return in_use;
        }
        claims[at] = claim;
        Ok(())
    }

    /// Gives the port back.
    pub(super) fn release(
        &self,
        registry: Option<&Registry>,
        space: PortSpace,
        port: u16,
        id: u32,
    ) {
        let service = service(space, port);
        let mut ports = self.0.lock();
        if let Some(claims) = ports.get_mut(&service) {
            claims.retain(|claim| claim.id != id);
            if claims.is_empty() {
                ports.remove(&service);
            }
        }
        if let Some(registry) = registry {
            registry.release_port(service, id);
        }
    }

    /// Takes in the group the ports that this process has, when it has only now joined.
    pub(super) fn announce(&self, registry: &Registry) {
        for claim in self.0.lock().values().flatten() {
            // What somebody else has there stays his; this process has it only for itself.
            let _ = registry.claim_port(claim);
            if claim.listens {
                let _ = registry.listen_on_port(claim);
            }
        }
    }
}

fn take(
    ports: &mut HashMap<u32, Vec<Claim>>,
    registry: Option<&Registry>,
    claim: Claim,
) -> Result<bool, CmError> {
    let held = ports.get(&claim.service).map(Vec::as_slice).unwrap_or_default();
    if held.iter().any(|held| held.excludes(&claim)) {
        return Ok(false);
    }
    if let Some(registry) = registry
        && !registry.claim_port(&claim)?
    {
        return Ok(false);
    }
    ports.entry(claim.service).or_default().push(claim);
    Ok(true)
}
