//! What sysfs says of the kernel's adapters to who manages them: `class/infiniband`, `class/infiniband_mad`
//! (Documentation/ABI/stable/sysfs-class-infiniband).

use std::fs;
use std::path::{Path, PathBuf};

use crate::discover::VIEW;

/// An adapter.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Adapter {
    /// Its name.
    pub name: String,
    /// 1 an adapter, 2 a switch, 3 a router.
    pub node_type: u32,
    /// Firmware.
    pub fw_ver: String,
    /// Hardware.
    pub hw_rev: String,
    /// Model.
    pub hca_type: String,
    /// GUID of the node, in host order.
    pub node_guid: u64,
    /// GUID of the system, in host order.
    pub sys_image_guid: u64,
    /// Its ports, in ascending order.
    pub ports: Vec<u8>,
}

/// The adapters there are, by name.
pub fn adapters(sysfs: &Path) -> Vec<Adapter> {
    let entries = fs::read_dir(sysfs.join("class/infiniband")).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort();
    let adapter = |name: String| {
        let at = sysfs.join("class/infiniband").join(&name);
        let node_type = leading(&at.join("node_type"));
        let entries = fs::read_dir(at.join("ports")).into_iter().flatten().flatten();
        let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse().ok();
        let mut ports: Vec<u8> = entries.filter_map(number).collect();
        ports.sort_unstable();
        let adapter = Adapter {
            name,
            node_type,
            fw_ver: word(&at.join("fw_ver")),
            hw_rev: word(&at.join("hw_rev")),
            hca_type: word(&at.join("hca_type")),
            node_guid: guid(&word(&at.join("node_guid"))),
            sys_image_guid: guid(&word(&at.join("sys_image_guid"))),
            ports,
        };
        ((1..=3).contains(&node_type) && adapter.hca_type != VIEW).then_some(adapter)
    };
    names.into_iter().filter_map(adapter).collect()
}

/// A port of an adapter.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Port {
    /// Its first LID.
    pub lid: u32,
    /// LMC.
    pub lmc: u32,
    /// LID of the subnet manager.
    pub sm_lid: u32,
    /// Its service level.
    pub sm_sl: u32,
    /// State (`enum ibv_port_state`).
    pub state: u32,
    /// Physical state.
    pub phys_state: u32,
    /// Gbit/s.
    pub rate: u32,
    /// Capabilities.
    pub capabilities: u32,
    /// The first GID.
    pub gid: [u8; 16],
    /// P_Keys, in host order.
    pub pkeys: Vec<u16>,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
}

/// What is said of a port; `None` without it.
pub fn port(sysfs: &Path, adapter: &str, number: u8) -> Option<Port> {
    let at = sysfs.join("class/infiniband").join(adapter).join(format!("ports/{number}"));
    at.is_dir().then(|| Port {
        lid: hex(&word(&at.join("lid"))),
        lmc: leading(&at.join("lid_mask_count")),
        sm_lid: hex(&word(&at.join("sm_lid"))),
        sm_sl: leading(&at.join("sm_sl")),
        state: leading(&at.join("state")),
        phys_state: leading(&at.join("phys_state")),
        rate: leading(&at.join("rate")),
        capabilities: hex(&word(&at.join("cap_mask"))),
        gid: super::discover::gid(sysfs, adapter, number, 0).map_or([0; 16], |entry| entry.gid),
        pkeys: (0..).map_while(|i| super::discover::pkey(sysfs, adapter, number, i)).collect(),
        link_layer: word(&at.join("link_layer")),
    })
}

/// The name below /dev/infiniband of the file of a port's management datagrams.
pub fn file(sysfs: &Path, adapter: &str, port: u8) -> Option<String> {
    let entries = fs::read_dir(sysfs.join("class/infiniband_mad")).ok()?.flatten();
    let is_its = |at: &PathBuf| {
        word(&at.join("ibdev")) == adapter && leading(&at.join("port")) == u32::from(port)
    };
    let name = |at: PathBuf| Some(at.file_name()?.to_str()?.to_owned());
    let mut files = entries.map(|entry| entry.path()).filter(is_its).filter_map(name);
    files.find(|name| name.starts_with("umad"))
}

/// Version of the interface of those files; `None` where the kernel has none.
pub fn version(sysfs: &Path) -> Option<u32> {
    word(&sysfs.join("class/infiniband_mad/abi_version")).parse().ok()
}

/// The only version of the interface that this crate knows.
pub const VERSION: u32 = 5;

fn word(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_default().trim_end().to_owned()
}

/// The number that a file begins with, as in `4: ACTIVE` and `2.5 Gb/sec`.
fn leading(path: &Path) -> u32 {
    let text = word(path);
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    text.get(..end).and_then(|digits| digits.parse().ok()).unwrap_or(0)
}

fn hex(text: &str) -> u32 {
    u32::from_str_radix(text.strip_prefix("0x").unwrap_or(text), 16).unwrap_or(0)
}

fn guid(text: &str) -> u64 {
    u64::from_str_radix(&text.replace(':', ""), 16).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sysfs_tells_what_libibumad_tells() {
        let root = std::env::temp_dir().join(format!("ironverbs-mad-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("class/infiniband_mad/abi_version", "5\n");
        put("class/infiniband_mad/issm1/ibdev", "mlx5_0\n");
        put("class/infiniband_mad/issm1/port", "2\n");
        put("class/infiniband_mad/umad1/ibdev", "mlx5_0\n");
        put("class/infiniband_mad/umad1/port", "2\n");
        put("class/infiniband/iron0/node_type", "1: CA\n");
        put("class/infiniband/iron0/hca_type", "ironverbs\n");
        put("class/infiniband/mlx5_0/node_type", "1: CA\n");
        put("class/infiniband/mlx5_0/node_guid", "0011:2233:4455:6677\n");
        put("class/infiniband/mlx5_0/ports/2/state", "4: ACTIVE\n");
        put("class/infiniband/mlx5_0/ports/2/lid", "0x1f\n");
        put("class/infiniband/mlx5_0/ports/2/rate", "2.5 Gb/sec (1X SDR)\n");
        put("class/infiniband/mlx5_0/ports/2/cap_mask", "0x2651e848\n");
        put("class/infiniband/mlx5_0/ports/2/pkeys/0", "0x7fff\n");
        put("class/infiniband/iw0/node_type", "4: RNIC\n");
        let found = adapters(&root);
        let [adapter] = found.as_slice() else { panic!("{found:?}") };
        assert_eq!((adapter.name.as_str(), adapter.ports.as_slice()), ("mlx5_0", [2].as_slice()));
        assert_eq!(adapter.node_guid, 0x0011_2233_4455_6677);
        let port = port(&root, "mlx5_0", 2).unwrap();
        assert_eq!((port.state, port.lid, port.rate, port.capabilities), (4, 31, 2, 0x2651_e848));
        assert_eq!(port.pkeys, [0x7fff]);
        assert_eq!(super::port(&root, "mlx5_0", 1), None);
        assert_eq!(file(&root, "mlx5_0", 2).as_deref(), Some("umad1"));
        assert_eq!(file(&root, "mlx5_0", 1), None);
        assert_eq!(version(&root), Some(VERSION));
        fs::remove_dir_all(&root).unwrap();
    }
}
