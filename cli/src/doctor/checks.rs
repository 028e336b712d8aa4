//! What one host shows of itself.

use std::fs;

use ironverbs_sys::diag;
use serde_json::{Value, json};

use super::Level::{Note, Problem, Warning};
use super::adapters::{self, Adapter};
use super::{Findings, Level};
use crate::info::{describe_owner, state};
use crate::verbs::config::{KernelDriver, Soft};
use crate::verbs::{Config, Context, Host, PortState};

/// An interface with this MTU or more carries packets with 4096 bytes of payload over either family.
const FULL_MTU: u64 = 4200;

/// The usual net.core.rmem_max: some 50 packets of 4 KiB wait in a socket then.
const USUAL_RMEM: u64 = 212_992;

/// What another host wants to know.
pub(super) struct Facts {
    udp_port: u16,
    wire: bool,
    devices: Vec<DeviceFacts>,
    adapters: Vec<Adapter>,
}

struct DeviceFacts {
    name: String,
    interface: String,
    active: bool,
    payload: usize,
    addresses: Vec<String>,
}

impl Facts {
    pub(super) fn json(&self) -> Value {
        let device = |device: &DeviceFacts| {
            json!({
                "name": device.name,
                "interface": device.interface,
                "active": device.active,
                "active_mtu": device.payload,
                "addresses": device.addresses,
            })
        };
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "udp_port": self.udp_port,
            "wire": self.wire,
            "devices": self.devices.iter().map(device).collect::<Vec<_>>(),
            "kernel_devices": self.adapters.iter().map(Adapter::json).collect::<Vec<_>>(),
        })
    }

    /// Looks at everything.
    pub(super) fn gather(findings: &mut Findings) -> Result<Facts, String> {
        let config = Config::load().map_err(|e| e.to_string())?;
        let udp_port = config.udp_port.value;
        let own = config.kernel_driver.value == KernelDriver::Own;
        let which = config.soft.value;
        let host = Host::start(config).map_err(|e| e.to_string())?;
        let mut contexts = Vec::new();
        for device in host.devices().map_err(|e| e.to_string())? {
            match device.open() {
                Ok(context) => contexts.push(context),
                Err(e) => findings.add("device", Problem, format!("{}: {e}", device.name()), ""),
            }
        }
        let wire = port(contexts.first().map(|context| &**context), udp_port, findings);
        let mut devices = Vec::new();
        for context in &contexts {
            devices.push(device(context, wire, findings)?);
        }
        let adapters = adapters::look(own, findings);
        picked(which, &devices, &adapters, findings);
        memory(findings);
        limits(findings);
        Ok(Facts { udp_port, wire, devices, adapters })
    }
}

fn device(context: &Context, wire: bool, findings: &mut Findings) -> Result<DeviceFacts, String> {
    let device = context.device();
    let port = context.port(1).map_err(|e| e.to_string())?;
    let gids = context.gid_table(1);
    let addresses: Vec<_> = gids.iter().map(|entry| entry.gid.to_ip().to_string()).collect();
    let interface = device.interface();
    let (name, active) = (device.name(), port.state == PortState::Active);
    let what = format!("{name} on {interface}: port {}, {} GIDs", state(port.state), gids.len());
    if gids.is_empty() {
        findings.add("device", Warning, what, format!("give {interface} an address"));
    } else if !active && wire {
        findings.add("device", Warning, what, format!("ip link set {interface} up"));
    } else {
        findings.good("device", what);
    }
    mtu(&interface, Some(port.active_mtu.bytes()), findings);
    Ok(DeviceFacts {
        name: name.to_owned(),
        interface,
        active,
        payload: port.active_mtu.bytes(),
        addresses,
    })
}

/// Whether an interface takes packets of 4096 bytes of payload, or what its port says that packets carry.
pub(super) fn mtu(interface: &str, payload: Option<usize>, findings: &mut Findings) {
    let path = format!("/sys/class/net/{interface}/mtu");
    let Some(mtu) = number(&path).filter(|&mtu| mtu < FULL_MTU) else { return };
    let carried = match payload {
        Some(payload) => format!("packets carry at most {payload} bytes"),
        None => "packets of 4096 bytes do not fit".to_owned(),
    };
    let advice =
        format!("ip link set {interface} mtu 9000, if the network between the hosts takes it");
    findings.add("mtu", Note, format!("{interface} has MTU {mtu}: {carried}"), advice);
}

/// Which device and GID a program gets that does not choose: the first of the list, where the kernel's come first.
fn picked(which: Soft, devices: &[DeviceFacts], adapters: &[Adapter], findings: &mut Findings) {
    let software = devices.first().filter(|_| which != Soft::Off);
    if let Some(first) = adapters.first().filter(|_| which != Soft::Only) {
        let gid =
            first.gids.first().map_or("none of RoCE v2 or InfiniBand".to_owned(), |(i, ip)| {
                format!("index {i} ({ip}) is its first of RoCE v2 or InfiniBand")
            });
        let what = format!("who does not choose gets the kernel's {}; GID: {gid}", first.name);
        match first.usable {
            true => findings.good("default", what),
            false => findings.add(
                "default",
                Warning,
                format!("{what}; it cannot be opened"),
                "choose another, or set IRONVERBS_SOFT=only to have software devices alone",
            ),
        }
    } else if let Some(first) = software {
        let gid = first.addresses.first().map_or("none", String::as_str);
        let what = format!("who does not choose gets {}, GID index 0 ({gid})", first.name);
        findings.good("default", what);
    } else {
        findings.add(
            "device",
            Problem,
            "no device: no network interface is up and has an address",
            "see IRONVERBS_INTERFACES in `ironverbs info`, and `ip address`",
        );
    }
}

/// Whether packets can be sent and received.
fn port(context: Option<&Context>, udp_port: u16, findings: &mut Findings) -> bool {
    let Some(context) = context else { return false };
    let Some(problem) = context.wire_problem() else {
        findings.good("port", format!("UDP port {udp_port} is ours"));
        return true;
    };
    let owner = diag::udp_port_owner(udp_port);
    let advice = match &owner {
        Some(owner) if owner.kernel && owner.rxe => {
            "remove the kernel's devices (rdma link delete NAME; modprobe -r rdma_rxe), or work in a network \
             namespace of your own, or set IRONVERBS_UDP_PORT to the same other port on every host"
        }
        Some(_) => {
            "end that process, or set IRONVERBS_UDP_PORT to the same other port on every host"
        }
        None => "",
    };
    let who = owner.map(|owner| format!("; held by {}", describe_owner(&owner)));
    let what = format!(
        "{problem}{}; until then a software device reaches its own process alone",
        who.unwrap_or_default()
    );
    findings.add("port", Warning, what, advice);
    false
}

/// Shared memory and the rights to another process's memory.
fn memory(findings: &mut Findings) {
    use rustix::fs::{MemfdFlags, memfd_create};
    match memfd_create("ironverbs-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
        Ok(_) => findings.good("shared memory", "memfd_create(2) works"),
        Err(e) => findings.add(
            "shared memory",
            Problem,
            format!("memfd_create(2): {e}"),
            "the container's seccomp profile or vm.memfd_noexec forbids it",
        ),
    }
    match number("/proc/sys/kernel/yama/ptrace_scope").unwrap_or(0) {
        0 => findings.good("ptrace", "processes of one user may copy each other's memory"),
        scope => findings.add(
            "ptrace",
            Note,
            format!("kernel.yama.ptrace_scope is {scope}: memory that the library did not allocate is copied twice"),
            "sysctl kernel.yama.ptrace_scope=0, if other users of the host are trusted",
        ),
    }
}

/// Resource limits and the kernel's.
fn limits(findings: &mut Findings) {
    let text = fs::read_to_string("/proc/self/limits").unwrap_or_default();
    match soft_limit(&text, "Max locked memory") {
        Some(bytes) if bytes < 64 << 20 => findings.add(
            "memlock",
            Note,
            format!("at most {bytes} bytes may be locked: enough for software devices, which lock nothing"),
            "ulimit -l unlimited, for programs that lock memory themselves or use an adapter",
        ),
        _ => findings.good("memlock", "memory may be locked"),
    }
    match soft_limit(&text, "Max open files") {
        Some(files) if files < 256 => findings.add(
            "files",
            Warning,
            format!("at most {files} files may be open"),
            "ulimit -n 4096: completion channels, peers and sockets take one each",
        ),
        _ => findings.good("files", "enough files may be open"),
    }
    if let Some(bytes) = number("/proc/sys/net/core/rmem_max") {
        let what = format!("net.core.rmem_max is {bytes}");
        let level = if bytes > USUAL_RMEM { Level::Good } else { Note };
        let advice = match level {
            Note => {
                "sysctl net.core.rmem_max=8388608: fewer packets are lost where many peers send at once"
            }
            _ => "",
        };
        findings.add("buffers", level, what, advice);
    }
}

/// The soft limit in `/proc/self/limits`; None if there is none.
fn soft_limit(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse().ok()
}

fn number(path: &str) -> Option<u64> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::soft_limit;

    #[test]
    fn limits_are_the_soft_ones() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max open files            1024                 524288               files\n\
                    Max locked memory         unlimited            unlimited            bytes\n";
        assert_eq!(soft_limit(text, "Max open files"), Some(1024));
        assert_eq!(soft_limit(text, "Max locked memory"), None);
        assert_eq!(soft_limit(text, "Max processes"), None);
    }
}
