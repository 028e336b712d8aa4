//! The kernel's devices and what is known of them without opening them.

use std::fs;
use std::io;
use std::path::Path;

use ironverbs_sys::netlink::{self, RdmaDevice, RdmaFile};

/// A device of the kernel that programs may use.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct KernelDevice {
    /// Its name, as in /sys/class/infiniband.
    pub name: String,
    /// Its number where the kernel gives numbers, which are never reused; else -1.
    pub index: i32,
    /// What it is, by the kernel's numbers.
    pub node_type: u8,
    /// GUID of the node, in host order.
    pub guid: u64,
    /// Number of ports; 0 when not known.
    pub ports: u32,
    /// Name of its file below /dev/infiniband.
    pub file: String,
    /// The file's number: major, minor.
    pub number: (u32, u32),
    /// Version of the driver's own part of the interface.
    pub abi: u32,
    /// The kernel's driver (`enum rdma_driver_id`); 0 when not known.
    pub driver: u32,
}

/// The devices there are: none without RDMA in the kernel. Asks the kernel, or looks below `sysfs` where it has no
/// answers, or where that is another view than the system's.
///
/// # Errors
/// `ENOSYS` when the kernel's interface is of a version before 6, of 2005.
pub fn devices(sysfs: &Path) -> io::Result<Vec<KernelDevice>> {
    if sysfs != Path::new("/sys") {
        return from_sysfs(sysfs);
    }
    let Ok(listed) = netlink::rdma_devices() else { return from_sysfs(sysfs) };
    let file = |device: &RdmaDevice| match netlink::rdma_verbs_file(device.index) {
        Ok(file) => Some(file),
        // Kernels before 5.1 do not tell.
        Err(_) => file_in_sysfs(sysfs, &device.name),
    };
    Ok(listed
        .into_iter()
        .filter_map(|device| file(&device).map(|file| joined(device, file)))
        .collect())
}

fn joined(device: RdmaDevice, file: RdmaFile) -> KernelDevice {
    KernelDevice {
        name: device.name,
        index: i32::try_from(device.index).unwrap_or(-1),
        node_type: device.node_type,
        guid: device.node_guid,
        ports: device.ports,
        file: file.name,
        number: (file.major, file.minor),
        abi: file.abi as u32,
        driver: file.driver,
    }
}

const CLASS: &str = "class/infiniband_verbs";

/// The `hca_type` of the software devices that `ironverbs run` shows below /sys. They are not the kernel's, and where
/// a program has gone to another network namespace they are not there at all.
pub(crate) const VIEW: &str = "ironverbs";

fn from_sysfs(sysfs: &Path) -> io::Result<Vec<KernelDevice>> {
    let class = sysfs.join(CLASS);
    let Ok(entries) = fs::read_dir(&class) else { return Ok(Vec::new()) };
    let devices: Vec<_> = entries
        .flatten()
        .filter_map(|entry| {
            let name = word(&entry.path().join("ibdev"))?;
            let file = verbs_file(&entry.path())?;
            let (index, ports) = (0, 0);
            let own = sysfs.join("class/infiniband").join(&name);
            if word(&own.join("hca_type")).is_some_and(|kind| kind == VIEW) {
                return None;
            }
            let node_type = node_type(&word(&own.join("node_type")).unwrap_or_default());
            let node_guid = guid(&word(&own.join("node_guid")).unwrap_or_default()).unwrap_or(0);
            let device = RdmaDevice { index, name, node_type, node_guid, ports };
            Some(KernelDevice { index: -1, ..joined(device, file) })
        })
        .collect();
    if !devices.is_empty() {
        let version = word(&class.join("abi_version")).and_then(|v| v.parse::<u32>().ok());
        if version != Some(6) {
            return Err(io::Error::from_raw_os_error(ironverbs_sys::errno::ENOSYS));
        }
    }
    Ok(devices)
}

fn file_in_sysfs(sysfs: &Path, device: &str) -> Option<RdmaFile> {
    let mut entries = fs::read_dir(sysfs.join(CLASS)).ok()?.flatten();
    let own = |path: &Path| word(&path.join("ibdev")).is_some_and(|name| name == device);
    entries.find(|entry| own(&entry.path())).and_then(|entry| verbs_file(&entry.path()))
}

/// What `uverbsN` below the class says of itself.
fn verbs_file(path: &Path) -> Option<RdmaFile> {
    let number = word(&path.join("dev"))?;
    let (major, minor) = number.split_once(':')?;
    Some(RdmaFile {
        name: path.file_name()?.to_str()?.to_owned(),
        major: major.parse().ok()?,
        minor: minor.parse().ok()?,
        abi: word(&path.join("abi_version")).and_then(|v| v.parse().ok()).unwrap_or(0),
        driver: 0,
    })
}

/// The number at the start of `1: CA`.
fn node_type(text: &str) -> u8 {
    text.split(':').next().and_then(|number| number.trim().parse().ok()).unwrap_or(0)
}

/// `0011:2233:4455:6677`.
fn guid(text: &str) -> Option<u64> {
    let parts: Option<Vec<u16>> =
        text.split(':').map(|part| u16::from_str_radix(part, 16).ok()).collect();
    let parts = parts.filter(|parts| parts.len() == 4)?;
    Some(parts.iter().fold(0, |guid, &part| guid << 16 | u64::from(part)))
}

fn word(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim_end_matches('\n');
    (!text.is_empty()).then(|| text.to_owned())
}

/// What the hardware behind a device says it is, for tables of drivers; empty where it says nothing.
pub fn modalias(sysfs: &Path, device: &str) -> String {
    word(&sysfs.join("class/infiniband").join(device).join("device/modalias")).unwrap_or_default()
}

/// A P_Key of a port's table, in host order.
pub fn pkey(sysfs: &Path, device: &str, port: u8, index: u32) -> Option<u16> {
    let text = word(&port_of(sysfs, device, port).join(format!("pkeys/{index}")))?;
    u16::from_str_radix(text.strip_prefix("0x").unwrap_or(&text), 16).ok()
}

/// An entry of a port's GID table as sysfs shows it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct SysfsGid {
    /// The GID; zeros in an empty entry.
    pub gid: [u8; 16],
    /// Whether it is of RoCE v2.
    pub v2: bool,
    /// Name of the interface it belongs to; empty where there is none.
    pub interface: String,
}

/// An entry of a port's GID table, for kernels that do not tell otherwise; `None` behind its end.
pub fn gid(sysfs: &Path, device: &str, port: u8, index: u32) -> Option<SysfsGid> {
    let port = port_of(sysfs, device, port);
    let text = word(&port.join(format!("gids/{index}")))?;
    let mut gid = [0; 16];
    let mut parts = text.split(':');
    for pair in gid.chunks_exact_mut(2) {
        pair.copy_from_slice(&u16::from_str_radix(parts.next()?, 16).ok()?.to_be_bytes());
    }
    let kind = word(&port.join(format!("gid_attrs/types/{index}"))).unwrap_or_default();
    let interface = word(&port.join(format!("gid_attrs/ndevs/{index}"))).unwrap_or_default();
    Some(SysfsGid { gid, v2: kind == "RoCE v2", interface })
}

fn port_of(sysfs: &Path, device: &str, port: u8) -> std::path::PathBuf {
    sysfs.join("class/infiniband").join(device).join(format!("ports/{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(name: &str, version: &str) -> std::path::PathBuf {
        let root = std::env::temp_dir().join(format!("ironverbs-{name}-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("class/infiniband_verbs/abi_version", version);
        put("class/infiniband_verbs/uverbs3/ibdev", "rxe0\n");
        put("class/infiniband_verbs/uverbs3/dev", "231:195\n");
        put("class/infiniband_verbs/uverbs3/abi_version", "2\n");
        put("class/infiniband_verbs/uverbs4/dev", "231:196\n");
        put("class/infiniband_verbs/uverbs5/ibdev", "iron0\n");
        put("class/infiniband_verbs/uverbs5/dev", "231:197\n");
        put("class/infiniband/iron0/hca_type", "ironverbs\n");
        put("class/infiniband/rxe0/node_type", "1: CA\n");
        put("class/infiniband/rxe0/node_guid", "0011:2233:4455:6677\n");
        put("class/infiniband/rxe0/ports/1/pkeys/0", "0xffff\n");
        put("class/infiniband/rxe0/ports/1/gids/1", "0000:0000:0000:0000:0000:ffff:0a4d:0001\n");
        put("class/infiniband/rxe0/ports/1/gid_attrs/types/1", "RoCE v2\n");
        put("class/infiniband/rxe0/ports/1/gid_attrs/ndevs/1", "dummy0\n");
        root
    }

    #[test]
    fn sysfs_tells_what_a_device_is() {
        let root = tree("sysfs", "6\n");
        let found = from_sysfs(&root).unwrap();
        let wanted = KernelDevice {
            name: "rxe0".into(),
            index: -1,
            node_type: 1,
            guid: 0x0011_2233_4455_6677,
            ports: 0,
            file: "uverbs3".into(),
            number: (231, 195),
            abi: 2,
            driver: 0,
        };
        assert_eq!(found, [wanted]);
        assert_eq!(pkey(&root, "rxe0", 1, 0), Some(0xffff));
        assert_eq!(pkey(&root, "rxe0", 1, 1), None);
        let entry = gid(&root, "rxe0", 1, 1).unwrap();
        assert_eq!(
            (entry.gid[12..].to_vec(), entry.v2, entry.interface.as_str()),
            (vec![10, 77, 0, 1], true, "dummy0")
        );
        assert_eq!(gid(&root, "rxe0", 1, 2), None);
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn an_interface_of_another_version_is_refused_and_none_is_no_error() {
        let root = tree("old", "5\n");
        assert_eq!(from_sysfs(&root).unwrap_err().raw_os_error(), Some(38));
        fs::remove_dir_all(&root).unwrap();
        assert_eq!(from_sysfs(&root).unwrap(), []);
    }
}
