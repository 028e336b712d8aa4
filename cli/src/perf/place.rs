//! Which device, port and GID a session uses.

use std::net::IpAddr;

use ironverbs::raw::Host;
use ironverbs::{Context, Devices, Gid, GidEntry, Mtu, PortState};

/// The port and address that a session uses.
#[derive(Clone)]
pub(crate) struct Place {
    pub(crate) context: Context,
    pub(crate) gid: Gid,
    pub(crate) gid_index: u8,
    pub(crate) mtu: Mtu,
    /// UDP port of RoCEv2.
    pub(crate) udp_port: u16,
    /// How to reach the other side, for messages.
    pub(crate) peer: String,
}

impl Place {
    /// Finds the device and GID that belong to `local`, the address of our end of the TCP
    /// connection, unless the caller names them.
    pub(crate) fn find(
        host: &Host,
        local: IpAddr,
        peer: IpAddr,
        device: Option<&str>,
        gid_index: Option<u32>,
    ) -> Result<Place, String> {
        let devices = Devices::from(host.clone()).list().map_err(|e| e.to_string())?;
        let names = devices.iter().map(|d| d.name()).collect::<Vec<_>>().join(", ");
        if devices.is_empty() {
            return Err("there is no device: no network interface is up and has an address \
                        (or IRONVERBS_INTERFACES names none)"
                .to_owned());
        }
        let local = local.to_canonical();
        for candidate in devices {
            if device.is_some_and(|name| name != candidate.name()) {
                continue;
            }
            let context = candidate.open().map_err(|e| format!("{candidate}: {e}"))?;
            let table = context.gids();
            if let Some(entry) = choose(&table, local, device.is_some(), gid_index) {
                return Place::at(host, context, entry, peer);
            }
            match (device, gid_index) {
                (Some(name), Some(index)) => {
                    return Err(format!("{name} has no GID {index} (see ironverbs info)"));
                }
                (Some(name), None) => {
                    return Err(format!("{name} has no GID: its interface has no address"));
                }
                (None, _) => {}
            }
        }
        Err(match (device, gid_index) {
            (Some(name), _) => format!("there is no device {name}; there are: {names}"),
            (None, Some(index)) => format!("no device has a GID {index}; devices: {names}"),
            (None, None) => format!(
                "no device has the address {local}; devices: {names} (choose with --device and --gid-index)"
            ),
        })
    }

    fn at(host: &Host, context: Context, entry: &GidEntry, peer: IpAddr) -> Result<Place, String> {
        let port = context.port(1).map_err(|e| e.to_string())?;
        if port.state != PortState::Active {
            let why = wire_problem(host).unwrap_or_else(|| "its interface is down".to_owned());
            return Err(format!("port 1 of {} is down: {why}", context.device()));
        }
        let gid_index = u8::try_from(entry.index).map_err(|_| "the GID index is above 255")?;
        Ok(Place {
            context,
            gid: entry.gid,
            gid_index,
            mtu: port.active_mtu,
            udp_port: host.config().udp_port.value,
            peer: peer.to_canonical().to_string(),
        })
    }

    /// The same device with a GID that can talk to `peer`.
    pub(crate) fn facing(mut self, peer: &Gid) -> Result<Place, String> {
        if self.gid.is_ipv4() == peer.is_ipv4() {
            return Ok(self);
        }
        let table = self.context.gids();
        let entry = table.iter().find(|e| e.gid.is_ipv4() == peer.is_ipv4()).ok_or_else(|| {
            let family = if peer.is_ipv4() { "IPv4" } else { "IPv6" };
            let name = self.context.device();
            format!("the peer uses {family} ({}), and {name} has no such address", peer.to_ip())
        })?;
        self.gid = entry.gid;
        self.gid_index = u8::try_from(entry.index).map_err(|e| e.to_string())?;
        Ok(self)
    }
}

/// The entry that was asked for, else that of the address, else one of its family.
fn choose(
    table: &[GidEntry],
    local: IpAddr,
    any: bool,
    gid_index: Option<u32>,
) -> Option<&GidEntry> {
    if let Some(index) = gid_index {
        return table.iter().find(|e| e.index == index);
    }
    let wanted = Gid::from_ip(local);
    table.iter().find(|e| e.gid == wanted).or_else(|| {
        // Loopback addresses are in no table: any GID of this host will do.
        let any = any || local.is_loopback();
        let of_family = |e: &&GidEntry| e.gid.is_ipv4() == local.is_ipv4();
        table.iter().filter(|_| any).find(of_family).or(table.first().filter(|_| any))
    })
}

fn wire_problem(host: &Host) -> Option<String> {
    host.devices().ok()?.first()?.inspect().ok()?.wire_problem()
}
