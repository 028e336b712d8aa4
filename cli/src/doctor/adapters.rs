//! Devices behind the kernel: what drives them, whether this user may open them, and the addresses they have.

use std::fs;
use std::net::{IpAddr, Ipv6Addr};
use std::path::Path;

use ironverbs_kernel::drivers::Driver;
use ironverbs_kernel::{discover, management};
use serde_json::{Value, json};

use super::Findings;
use super::Level::{Note, Warning};

/// What another host wants to know of one.
pub(super) struct Adapter {
    pub(super) name: String,
    /// Something drives it, and this user may open it.
    pub(super) usable: bool,
    pub(super) active: bool,
    /// GID index and address, of RoCE v2 and of InfiniBand.
    pub(super) gids: Vec<(u32, IpAddr)>,
    pub(super) interface: String,
}

impl Adapter {
    pub(super) fn json(&self) -> Value {
        let addresses = self.gids.iter().map(|(_, ip)| ip.to_string());
        json!({
            "name": self.name,
            "interface": self.interface,
            "usable": self.usable,
            "active": self.active,
            "addresses": addresses.collect::<Vec<_>>(),
        })
    }
}

/// Looks at all there are; `own`: whether rxe is to be driven by this library itself.
pub(super) fn look(own: bool, findings: &mut Findings) -> Vec<Adapter> {
    let devices = crate::info::kernel_devices(own);
    if devices.is_empty() {
        findings.good("kernel", "the kernel has no RDMA devices");
        return Vec::new();
    }
    let mut closed = Vec::new();
    let mut adapters = Vec::new();
    for (device, driver) in &devices {
        let file = format!("/dev/infiniband/{}", device.file);
        let open = may_open(&file);
        let mut adapter = described(&device.name);
        adapter.usable = open && !matches!(driver, Driver::Missing(_));
        report(&adapter, driver, findings);
        if !open {
            closed.push(file);
        }
        let ports = (1..=u8::try_from(device.ports.max(1)).unwrap_or(1)).filter_map(|port| {
            let file = management::file(Path::new("/sys"), &device.name, port)?;
            Some(format!("/dev/infiniband/{file}"))
        });
        closed.extend(ports.filter(|path| Path::new(path).exists() && !may_open(path)));
        adapters.push(adapter);
    }
    let manager = "/dev/infiniband/rdma_cm";
    if !Path::new(manager).exists() {
        let what = format!("{manager} is not there: librdmacm has software devices alone");
        findings.add("kernel", Note, what, "modprobe rdma_ucm");
    } else if !may_open(manager) {
        closed.push(manager.to_owned());
    }
    if closed.is_empty() {
        findings.good("rights", "this user may open all of them below /dev/infiniband");
    } else {
        let what = format!("this user may not open {}", closed.join(", "));
        findings.add("rights", Note, what, "EPERM for programs that open them; librdmacm leaves their addresses to software devices");
    }
    adapters
}

fn may_open(path: &str) -> bool {
    fs::File::options().read(true).write(true).open(path).is_ok()
}

fn described(name: &str) -> Adapter {
    let sysfs = Path::new("/sys");
    let entries = (0..).map_while(|index| Some((index, discover::gid(sysfs, name, 1, index)?)));
    let port = management::port(sysfs, name, 1).unwrap_or_default();
    let is_ethernet = port.link_layer == "Ethernet";
    let used = entries.filter(|(_, e)| e.gid != [0; 16] && (e.v2 || !is_ethernet));
    let (mut interface, mut gids) = (String::new(), Vec::new());
    for (index, entry) in used {
        gids.push((index, Ipv6Addr::from(entry.gid).to_canonical()));
        if interface.is_empty() {
            interface = entry.interface;
        }
    }
    const ACTIVE: u32 = 4;
    Adapter { name: name.to_owned(), usable: false, active: port.state == ACTIVE, gids, interface }
}

fn report(adapter: &Adapter, driver: &Driver, findings: &mut Findings) {
    let Adapter { name, active, gids, interface, .. } = adapter;
    let on = if interface.is_empty() { String::new() } else { format!(" on {interface}") };
    let state = if *active { "ACTIVE" } else { "not ACTIVE" };
    let what = format!(
        "the kernel's device {name}{on}: port {state}, {} GIDs of RoCE v2 or InfiniBand, driven by {driver}",
        gids.len()
    );
    if let Driver::Missing(_) = driver {
        let advice =
            "programs that open it need that: plug-ins are rdma-core's (Debian: ibverbs-providers)";
        findings.add("kernel", Warning, what, advice);
    } else if !*active && !interface.is_empty() {
        findings.add("kernel", Warning, what, format!("ip link set {interface} up"));
    } else if gids.is_empty() {
        findings.add("kernel", Warning, what, "give its interface an address");
    } else {
        findings.good("kernel", what);
    }
    super::checks::mtu(interface, None, findings);
}
