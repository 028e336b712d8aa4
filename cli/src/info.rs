//! `ironverbs info`: what there is, and why it is so.

use std::collections::HashMap;
use std::path::Path;

use ironverbs_kernel::discover::{self, KernelDevice};
use ironverbs_kernel::drivers::Driver;
use ironverbs_sys::diag::{self, Owner};
use serde_json::{Value, json};

use crate::run::view::{guid, rate};
use crate::verbs::config::KernelDriver;
use crate::verbs::{Config, Context, DeviceAttr, Host, LinkLayer, PortAttr, PortState, kind_name};

/// Shows devices, ports, GIDs, limits, the configuration and who shares this host.
#[derive(clap::Args)]
pub(crate) struct InfoArgs {
    /// Print everything as JSON
    #[arg(long)]
    json: bool,
}

struct Report {
    config: Config,
    devices: Vec<DeviceReport>,
    kernel: Vec<(KernelDevice, Driver)>,
    port: Port,
    members: Vec<MemberReport>,
}

struct DeviceReport {
    name: String,
    interface: String,
    ifindex: u32,
    attr: DeviceAttr,
    port: PortAttr,
    gids: Vec<(u32, std::net::IpAddr, String, &'static str)>,
}

struct MemberReport {
    slot: u16,
    pid: u32,
    command: String,
    blocks: u8,
}

/// Who has the UDP port.
enum Port {
    Unused,
    Ours,
    /// Why we do not have it, and who does.
    Taken(String, Option<Owner>),
}

pub(crate) fn run(args: &InfoArgs) -> Result<(), String> {
    let report = collect()?;
    if args.json {
        let text = serde_json::to_string_pretty(&report.json()).map_err(|e| e.to_string())?;
        say!("{text}");
    } else {
        report.print();
    }
    Ok(())
}

fn collect() -> Result<Report, String> {
    let config = Config::load().map_err(|e| e.to_string())?;
    let host = Host::start(config.clone()).map_err(|e| e.to_string())?;
    let mut devices = Vec::new();
    // They stay open until all is known: membership of the host's group comes with them.
    let mut contexts = Vec::new();
    for device in host.devices().map_err(|e| e.to_string())? {
        let context = device.open().map_err(|e| format!("{}: {e}", device.name()))?;
        devices.push(describe_device(&context)?);
        contexts.push(context);
    }
    let members: Vec<MemberReport> = host
        .members()
        .iter()
        .map(|m| MemberReport {
            slot: m.slot,
            pid: m.pid,
            command: command(m.pid),
            blocks: m.blocks,
        })
        .collect();
    let owner = || diag::udp_port_owner(config.udp_port.value);
    let port = match contexts.first().map(|context| context.wire_problem()) {
        None => owner().map_or(Port::Unused, |o| {
            let who = describe_owner(&o);
            Port::Taken(format!("UDP port {} is taken by {who}", config.udp_port.value), Some(o))
        }),
        Some(None) => Port::Ours,
        Some(Some(problem)) => Port::Taken(problem, owner()),
    };
    let kernel = kernel_devices(config.kernel_driver.value == KernelDriver::Own);
    Ok(Report { config, devices, kernel, port, members })
}

/// The kernel's devices, and what drives them for libibverbs.
pub(crate) fn kernel_devices(own: bool) -> Vec<(KernelDevice, Driver)> {
    // An interface that is too old has no devices that a program could use.
    let devices = discover::devices(Path::new("/sys")).unwrap_or_default();
    let variable = ["RDMAV_DRIVERS", "IBV_DRIVERS"].into_iter().find_map(std::env::var_os);
    let driver = |device: &KernelDevice| Driver::of(device, own, variable.as_deref());
    devices.into_iter().map(|device| (driver(&device), device)).map(|(by, d)| (d, by)).collect()
}

fn describe_device(context: &Context) -> Result<DeviceReport, String> {
    let device = context.device();
    let port = context.port(1).map_err(|e| e.to_string())?;
    let gids = context.gid_table(1);
    let names: HashMap<u32, String> = HashMap::from([(device.ifindex(), device.interface())]);
    let gids = gids.into_iter().map(|e| {
        let interface = names.get(&e.ifindex).cloned().unwrap_or_else(|| e.ifindex.to_string());
        (e.index, e.gid.to_ip(), interface, kind_name(e.kind))
    });
    Ok(DeviceReport {
        name: device.name().to_owned(),
        interface: device.interface(),
        ifindex: device.ifindex(),
        attr: context.attr(),
        port,
        gids: gids.collect(),
    })
}

fn command(pid: u32) -> String {
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    name.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

pub(crate) fn describe_owner(owner: &Owner) -> String {
    match owner {
        Owner { pid: Some(pid), comm, uid, .. } => format!("process {pid} ({comm}) of user {uid}"),
        Owner { kernel: true, rxe: true, .. } => {
            "the kernel's soft-RoCE (module rdma_rxe)".to_owned()
        }
        Owner { kernel: true, .. } => "the kernel".to_owned(),
        Owner { uid, .. } => format!("a process of user {uid} that cannot be seen from here"),
    }
}

pub(crate) fn state(state: PortState) -> &'static str {
    match state {
        PortState::Down => "DOWN",
        PortState::Active => "ACTIVE",
    }
}

fn link_layer(layer: LinkLayer) -> &'static str {
    match layer {
        LinkLayer::InfiniBand => "InfiniBand",
        LinkLayer::Ethernet => "Ethernet",
    }
}

fn physical(phys_state: u8) -> &'static str {
    match phys_state {
        5 => "LinkUp",
        3 => "Disabled",
        _ => "Polling",
    }
}

/// Name and value of what `ibv_devinfo -v` shows as limits.
fn limits(attr: &DeviceAttr) -> Vec<(&'static str, u64)> {
    vec![
        ("max_mr_size", attr.max_mr_size),
        ("max_mr", attr.max_mr.into()),
        ("max_pd", attr.max_pd.into()),
        ("max_qp", attr.max_qp.into()),
        ("max_qp_wr", attr.max_qp_wr.into()),
        ("max_sge", attr.max_sge.into()),
        ("max_sge_rd", attr.max_sge_rd.into()),
        ("max_inline_data", attr.max_inline_data.into()),
        ("max_cq", attr.max_cq.into()),
        ("max_cqe", attr.max_cqe.into()),
        ("max_srq", attr.max_srq.into()),
        ("max_srq_wr", attr.max_srq_wr.into()),
        ("max_srq_sge", attr.max_srq_sge.into()),
        ("max_ah", attr.max_ah.into()),
        ("max_qp_rd_atom", attr.max_qp_rd_atom.into()),
        ("max_qp_init_rd_atom", attr.max_qp_init_rd_atom.into()),
        ("max_res_rd_atom", attr.max_res_rd_atom.into()),
        ("max_pkeys", attr.max_pkeys.into()),
        ("local_ca_ack_delay", attr.local_ca_ack_delay.into()),
        ("num_comp_vectors", attr.num_comp_vectors.into()),
    ]
}

impl Port {
    fn state(&self) -> &'static str {
        match self {
            Port::Unused => "unused",
            Port::Ours => "ours",
            Port::Taken(..) => "taken",
        }
    }
}

impl Report {
    fn print(&self) {
        say!("ironverbs {}", env!("CARGO_PKG_VERSION"));
        if self.devices.is_empty() {
            let why = match self.config.interfaces.value.as_slice() {
                [] => "no network interface is up and has an address".to_owned(),
                names => format!("no such network interface: {}", names.join(", ")),
            };
            say!("\nno devices: {why}");
        }
        for device in &self.devices {
            device.print();
        }
        for (device, driver) in &self.kernel {
            say!("\n{} of the kernel, {}", device.name, device.file);
            say!("  node GUID {}, driven by {driver}", guid(device.guid));
        }
        self.print_port();
        say!("\nconfiguration");
        for entry in self.config.entries() {
            let value = if entry.value.is_empty() { "-" } else { &entry.value };
            say!("  {:<16} {value:<16} {}", entry.key, entry.source);
        }
    }

    fn print_port(&self) {
        let port = self.config.udp_port.value;
        match &self.port {
            Port::Unused => say!("\nUDP port {port}: unused"),
            Port::Ours => {
                let n = self.members.len();
                let who = if n == 1 { "this process" } else { "processes of this user" };
                say!("\nUDP port {port}: held by {who}");
                for m in &self.members {
                    say!(
                        "  slot {:<4} pid {:<8} {} ({} QPN blocks)",
                        m.slot,
                        m.pid,
                        m.command,
                        m.blocks
                    );
                }
            }
            Port::Taken(problem, _) => say!("\n{problem}"),
        }
    }

    fn json(&self) -> Value {
        let owner = match &self.port {
            Port::Taken(_, Some(owner)) => json!({
                "pid": owner.pid,
                "command": owner.comm,
                "uid": owner.uid,
                "kernel": owner.kernel,
                "rdma_rxe_loaded": owner.rxe,
            }),
            _ => Value::Null,
        };
        json!({
            "program": "ironverbs",
            "version": env!("CARGO_PKG_VERSION"),
            "devices": self.devices.iter().map(DeviceReport::json).collect::<Vec<_>>(),
            "kernel_devices": self.kernel.iter().map(|(device, driver)| json!({
                "name": device.name,
                "file": device.file,
                "node_guid": guid(device.guid),
                "driver": match driver {
                    Driver::Own => Value::from("own"),
                    Driver::PlugIn(_) => Value::from("plugin"),
                    Driver::Missing(_) => Value::Null,
                },
                "driven_by": driver.to_string(),
            })).collect::<Vec<_>>(),
            "udp_port": {
                "port": self.config.udp_port.value,
                "state": self.port.state(),
                "problem": match &self.port {
                    Port::Taken(problem, _) => Value::from(problem.as_str()),
                    _ => Value::Null,
                },
                "owner": owner,
            },
            "members": self.members.iter().map(|m| json!({
                "slot": m.slot,
                "pid": m.pid,
                "command": m.command,
                "qpn_blocks": m.blocks,
            })).collect::<Vec<_>>(),
            "configuration": self.config.entries().iter().map(|e| json!({
                "key": e.key,
                "variable": e.variable,
                "value": e.value,
                "source": e.source.to_string(),
            })).collect::<Vec<_>>(),
        })
    }
}

impl DeviceReport {
    fn print(&self) {
        let (attr, port) = (&self.attr, &self.port);
        say!("\n{} on {}", self.name, self.interface);
        say!(
            "  node GUID {}, vendor {:#08x}, part {:#x}, firmware {}",
            guid(attr.node_guid),
            attr.vendor_id,
            attr.vendor_part_id,
            attr.fw_ver
        );
        say!(
            "  port 1: {}, {}, {}, {}, MTU {} (at most {}), messages to {} bytes",
            state(port.state),
            physical(port.phys_state),
            link_layer(port.link_layer),
            rate(port),
            port.active_mtu.bytes(),
            port.max_mtu.bytes(),
            port.max_msg_sz
        );
        if self.gids.is_empty() {
            say!("  no GID: the interface has no address");
        }
        for (index, address, interface, kind) in &self.gids {
            say!("  GID {index:<3} {address}  {kind}  {interface}");
        }
        say!("  limits");
        for pair in limits(attr).chunks(2) {
            let cells = pair.iter().map(|(name, value)| format!("{name:<20} {value:<20}"));
            say!("    {}", cells.collect::<Vec<_>>().join(" ").trim_end());
        }
    }

    fn json(&self) -> Value {
        let (attr, port) = (&self.attr, &self.port);
        let limits: serde_json::Map<String, Value> =
            limits(attr).into_iter().map(|(name, value)| (name.to_owned(), value.into())).collect();
        json!({
            "name": self.name,
            "interface": self.interface,
            "ifindex": self.ifindex,
            "node_guid": guid(attr.node_guid),
            "vendor_id": attr.vendor_id,
            "vendor_part_id": attr.vendor_part_id,
            "fw_ver": attr.fw_ver,
            "device_cap_flags": attr.device_cap_flags,
            "limits": limits,
            "ports": [{
                "port": 1,
                "state": state(port.state),
                "phys_state": physical(port.phys_state),
                "link_layer": link_layer(port.link_layer),
                "rate": rate(port),
                "active_mtu": port.active_mtu.bytes(),
                "max_mtu": port.max_mtu.bytes(),
                "max_msg_sz": port.max_msg_sz,
                "gids": self.gids.iter().map(|(index, address, interface, kind)| json!({
                    "index": index,
                    "gid": ironverbs::Gid::from_ip(*address).to_string(),
                    "address": address.to_string(),
                    "interface": interface,
                    "kind": kind,
                })).collect::<Vec<_>>(),
            }],
        })
    }
}
