//! RDMA devices as the kernel lists them (`rdma/rdma_netlink.h`).

use std::io;

use super::frame::{self, Attributes, Netlink};

/// An RDMA device of the kernel.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RdmaDevice {
    /// Its number; never reused while the system runs.
    pub index: u32,
    /// Its name.
    pub name: String,
    /// What it is, by the kernel's numbers: 1 an adapter, 4 an iWARP adapter.
    pub node_type: u8,
    /// GUID of the node, in host order.
    pub node_guid: u64,
    /// Number of its ports.
    pub ports: u32,
}

/// The character device through which programs use an RDMA device.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct RdmaFile {
    /// Its name below /dev/infiniband.
    pub name: String,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Version of the driver's own part of the interface.
    pub abi: u64,
    /// The kernel's driver (`enum rdma_driver_id`); 0 where it does not say.
    pub driver: u32,
}

/// The devices that this network namespace may use.
///
/// # Errors
/// `EPROTONOSUPPORT` on a kernel without RDMA, or as recv(2) of netlink.
pub fn rdma_devices() -> io::Result<Vec<RdmaDevice>> {
    let replies = Netlink::open(libc::NETLINK_RDMA)?.dump(kind(GET), &[])?;
    Ok(replies.iter().filter_map(|reply| device(&reply.payload)).collect())
}

/// The verbs file of the device with that index. On kernels with modules, asking for it loads ib_uverbs.
///
/// # Errors
/// As [`rdma_devices`]; `ENODEV` without that device or its file.
pub fn rdma_verbs_file(index: u32) -> io::Result<RdmaFile> {
    let mut request = Vec::new();
    frame::push_attribute(&mut request, DEV_INDEX, &index.to_ne_bytes());
    frame::push_attribute(&mut request, CHARDEV_TYPE, b"uverbs\0");
    let reply = Netlink::open(libc::NETLINK_RDMA)?.ask(kind(GET_CHARDEV), &request)?;
    file(&reply.payload).ok_or_else(|| io::Error::from_raw_os_error(libc::ENODEV))
}

/// Number of the client `RDMA_NL_NLDEV`, and of its commands.
const NLDEV: u16 = 5;
const GET: u16 = 1;
const GET_CHARDEV: u16 = 15;

fn kind(command: u16) -> u16 {
    NLDEV << 10 | command
}

const DEV_INDEX: u16 = 1;
const DEV_NAME: u16 = 2;
const PORT_INDEX: u16 = 3;
const NODE_GUID: u16 = 6;
const DEV_NODE_TYPE: u16 = 14;
const CHARDEV_TYPE: u16 = 69;
const CHARDEV_NAME: u16 = 70;
const CHARDEV_ABI: u16 = 71;
const CHARDEV: u16 = 72;
const UVERBS_DRIVER_ID: u16 = 73;

fn device(payload: &[u8]) -> Option<RdmaDevice> {
    let mut device = RdmaDevice::default();
    for (kind, value) in Attributes(payload) {
        match kind {
            DEV_INDEX => device.index = u32_of(value)?,
            DEV_NAME => device.name = text(value)?,
            PORT_INDEX => device.ports = u32_of(value)?,
            NODE_GUID => device.node_guid = u64_of(value)?,
            DEV_NODE_TYPE => device.node_type = *value.first()?,
            _ => {}
        }
    }
    (!device.name.is_empty()).then_some(device)
}

fn file(payload: &[u8]) -> Option<RdmaFile> {
    let mut file = RdmaFile::default();
    for (kind, value) in Attributes(payload) {
        match kind {
            CHARDEV_NAME => file.name = text(value)?,
            CHARDEV_ABI => file.abi = u64_of(value)?,
            CHARDEV => {
                // Minor number in bits 0 to 7 and 20 to 31, major in 8 to 19.
                let number = u64_of(value)?;
                file.major = (number >> 8 & 0xfff) as u32;
                file.minor = ((number & 0xff) | (number >> 12 & 0xf_ff00)) as u32;
            }
            UVERBS_DRIVER_ID => file.driver = u32_of(value)?,
            _ => {}
        }
    }
    (!file.name.is_empty()).then_some(file)
}

fn u32_of(value: &[u8]) -> Option<u32> {
    value.first_chunk().map(|b| u32::from_ne_bytes(*b))
}

fn u64_of(value: &[u8]) -> Option<u64> {
    value.first_chunk().map(|b| u64::from_ne_bytes(*b))
}

/// A name: what a path is made of may not lead elsewhere.
fn text(value: &[u8]) -> Option<String> {
    let end = value.iter().position(|&b| b == 0).unwrap_or(value.len());
    let text = std::str::from_utf8(value.get(..end)?).ok()?;
    (!text.contains('/') && !text.starts_with('.')).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_files_are_read_whole_or_not_at_all() {
        let mut body = Vec::new();
        frame::push_attribute(&mut body, DEV_INDEX, &3u32.to_ne_bytes());
        frame::push_attribute(&mut body, DEV_NAME, b"rxe0\0");
        frame::push_attribute(&mut body, PORT_INDEX, &1u32.to_ne_bytes());
        frame::push_attribute(&mut body, NODE_GUID, &7u64.to_ne_bytes());
        frame::push_attribute(&mut body, DEV_NODE_TYPE, &[1]);
        let wanted =
            RdmaDevice { index: 3, name: "rxe0".into(), node_type: 1, node_guid: 7, ports: 1 };
        assert_eq!(device(&body), Some(wanted));
        assert_eq!(device(&[]), None);
        let mut short = Vec::new();
        frame::push_attribute(&mut short, DEV_NAME, b"rxe0\0");
        frame::push_attribute(&mut short, DEV_INDEX, &[1]);
        assert_eq!(device(&short), None);

        let mut body = Vec::new();
        frame::push_attribute(&mut body, CHARDEV_NAME, b"uverbs1\0");
        // 231:193 as huge_encode_dev() has it.
        frame::push_attribute(&mut body, CHARDEV, &(231u64 << 8 | 193).to_ne_bytes());
        frame::push_attribute(&mut body, UVERBS_DRIVER_ID, &14u32.to_ne_bytes());
        let wanted =
            RdmaFile { name: "uverbs1".into(), major: 231, minor: 193, abi: 0, driver: 14 };
        assert_eq!(file(&body), Some(wanted));
        let mut elsewhere = Vec::new();
        frame::push_attribute(&mut elsewhere, CHARDEV_NAME, b"../mem\0");
        assert_eq!(file(&elsewhere), None);
    }
}
