//! What a program finds under `/sys/class/infiniband` and `/dev/infiniband`: the files that the
//! kernel's RDMA core has there (Documentation/ABI/stable/sysfs-class-infiniband), for our devices.

use std::fs;

use ironverbs_sys::{diag, process};

use super::place::{Node, Tree};
use crate::verbs::{Context, DeviceAttr, Error, GidKind, Host, PortAttr};

/// Version of the kernel's uverbs interface (IB_USER_VERBS_ABI_VERSION).
const UVERBS_ABI: u32 = 6;
/// Version of the kernel's umad interface (IB_USER_MAD_ABI_VERSION).
const UMAD_ABI: u32 = 5;
/// Numbers of the kernel's uverbs devices (IB_UVERBS_MAJOR, IB_UVERBS_BASE_MINOR).
const UVERBS_MAJOR: u32 = 231;
const UVERBS_MINOR: u32 = 192;

/// The view of all devices of `host`.
pub(crate) fn tree(host: &Host) -> Result<Tree, Error> {
    let mut tree = Tree::new();
    for directory in ["sys/class/infiniband", "sys/class/infiniband_verbs", "dev/infiniband"] {
        tree.insert(directory.to_owned(), Node::Dir);
    }
    file(&mut tree, "sys/class/infiniband_verbs/abi_version", UVERBS_ABI);
    let wire = !is_taken(host.config().udp_port.value);
    for device in host.devices()? {
        // Only looked at: this process becomes the program, which joins its host's group itself.
        let context = device.inspect()?;
        add_device(&mut tree, &context, wire)?;
    }
    Ok(tree)
}

/// Whether a program of this user will find that it cannot have the UDP port.
fn is_taken(port: u16) -> bool {
    diag::udp_port_owner(port).is_some_and(|o| o.kernel || o.uid != process::uid())
}

fn file(tree: &mut Tree, path: impl Into<String>, value: impl std::fmt::Display) {
    tree.insert(path.into(), Node::File(format!("{value}\n")));
}

fn add_device(tree: &mut Tree, context: &Context, wire: bool) -> Result<(), Error> {
    let device = context.device();
    let (name, index) = (device.name(), device.index());
    let attr = context.attr();
    let interface = device.interface();
    let class = format!("sys/class/infiniband/{name}");
    file(tree, format!("{class}/node_type"), "1: CA");
    file(tree, format!("{class}/node_guid"), guid(attr.node_guid));
    file(tree, format!("{class}/sys_image_guid"), guid(attr.sys_image_guid));
    file(tree, format!("{class}/node_desc"), format_args!("ironverbs {name} on {interface}"));
    file(tree, format!("{class}/fw_ver"), &attr.fw_ver);
    file(tree, format!("{class}/hw_rev"), format_args!("{:#x}", attr.hw_ver));
    file(tree, format!("{class}/hca_type"), "ironverbs");
    file(tree, format!("{class}/board_id"), "ironverbs");
    add_parent(tree, &format!("{class}/device"), &attr, &interface);
    for port in 1..=attr.phys_port_cnt {
        add_port(tree, &format!("{class}/ports/{port}"), context, port, wire)?;
    }
    let verbs = format!("sys/class/infiniband_verbs/uverbs{index}");
    file(tree, format!("{verbs}/ibdev"), name);
    file(tree, format!("{verbs}/abi_version"), 1);
    file(tree, format!("{verbs}/dev"), format_args!("{UVERBS_MAJOR}:{}", UVERBS_MINOR + index));
    let parent = format!("../../infiniband/{name}/device");
    tree.insert(format!("{verbs}/device"), Node::Link(parent));
    // Programs look whether it is a character device that they may open; there is nothing to say to it, and
    // making a device of its own number takes privileges.
    let node = || Node::Link("/dev/null".to_owned());
    tree.insert(format!("dev/infiniband/uverbs{index}"), node());
    if context.port(1)?.link_layer == crate::verbs::LinkLayer::InfiniBand {
        // A subnet manager keeps one open to say that it is there; management datagrams go by libibumad.
        for (kind, minor) in [("umad", 0), ("issm", 64)] {
            let class = format!("sys/class/infiniband_mad/{kind}{index}");
            file(tree, format!("{class}/ibdev"), name);
            file(tree, format!("{class}/port"), 1);
            file(tree, format!("{class}/dev"), format_args!("{UVERBS_MAJOR}:{}", minor + index));
            tree.insert(format!("dev/infiniband/{kind}{index}"), node());
        }
        file(tree, "sys/class/infiniband_mad/abi_version", UMAD_ABI);
    }
    Ok(())
}

fn add_port(
    tree: &mut Tree,
    class: &str,
    context: &Context,
    port: u8,
    wire: bool,
) -> Result<(), Error> {
    let attr = context.port(port)?;
    let (state, phys_state) = match wire && context.device().link().0 {
        true => ("4: ACTIVE", "5: LinkUp"),
        false => ("1: DOWN", "3: Disabled"),
    };
    file(tree, format!("{class}/state"), state);
    file(tree, format!("{class}/phys_state"), phys_state);
    file(tree, format!("{class}/rate"), rate(&attr));
    file(tree, format!("{class}/lid"), format_args!("{:#x}", attr.lid));
    file(tree, format!("{class}/lid_mask_count"), attr.lmc);
    file(tree, format!("{class}/sm_lid"), format_args!("{:#x}", attr.sm_lid));
    file(tree, format!("{class}/sm_sl"), attr.sm_sl);
    file(tree, format!("{class}/cap_mask"), format_args!("{:#010x}", attr.port_cap_flags));
    let link_layer = match attr.link_layer {
        crate::verbs::LinkLayer::InfiniBand => "InfiniBand",
        crate::verbs::LinkLayer::Ethernet => "Ethernet",
    };
    file(tree, format!("{class}/link_layer"), link_layer);
    for index in 0..attr.pkey_tbl_len {
        let pkey = context.pkey(port, index.into())?;
        file(tree, format!("{class}/pkeys/{index}"), format_args!("{pkey:#06x}"));
    }
    for directory in ["gids", "gid_attrs/ndevs", "gid_attrs/types"] {
        tree.insert(format!("{class}/{directory}"), Node::Dir);
    }
    for entry in context.gid_table(port) {
        let index = entry.index;
        file(tree, format!("{class}/gids/{index}"), entry.gid);
        file(tree, format!("{class}/gid_attrs/ndevs/{index}"), context.device().interface());
        // The kernel has one name for these two, and programs (UCX) know no other.
        let kind = if entry.kind == GidKind::Ib { GidKind::RoceV1 } else { entry.kind };
        file(tree, format!("{class}/gid_attrs/types/{index}"), crate::verbs::kind_name(kind));
    }
    Ok(())
}

/// The device behind the RDMA device: what is known of the network interface's own.
fn add_parent(tree: &mut Tree, class: &str, attr: &DeviceAttr, interface: &str) {
    let real = |name: &str| {
        let path = format!("/sys/class/net/{interface}/device/{name}");
        fs::read_to_string(path).ok().map(|text| text.trim_end().to_owned())
    };
    file(tree, format!("{class}/vendor"), format_args!("{:#06x}", attr.vendor_id));
    file(tree, format!("{class}/device"), format_args!("{:#06x}", attr.vendor_part_id));
    let list = online_cpus();
    file(tree, format!("{class}/numa_node"), real("numa_node").unwrap_or("-1".to_owned()));
    file(tree, format!("{class}/local_cpus"), real("local_cpus").unwrap_or_else(|| mask(&list)));
    file(tree, format!("{class}/local_cpulist"), real("local_cpulist").unwrap_or(list));
    tree.insert(
        format!("{class}/net/{interface}"),
        Node::Link(format!("/sys/class/net/{interface}")),
    );
}

fn online_cpus() -> String {
    let text = fs::read_to_string("/sys/devices/system/cpu/online");
    text.ok().map(|t| t.trim().to_owned()).filter(|t| !t.is_empty()).unwrap_or("0".to_owned())
}

/// A CPU list (`0-3,8`) as the kernel's bitmap: groups of 32 bits in hex, highest first.
fn mask(list: &str) -> String {
    let mut words = vec![0_u32];
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
            continue;
        };
        for cpu in first..=last.min(8191) {
            if words.len() <= cpu / 32 {
                words.resize(cpu / 32 + 1, 0);
            }
            if let Some(word) = words.get_mut(cpu / 32) {
                *word |= 1 << (cpu % 32);
            }
        }
    }
    let words: Vec<String> = words.iter().rev().map(|w| format!("{w:08x}")).collect();
    words.join(",")
}

/// A GUID in four groups, as the kernel writes it.
pub(crate) fn guid(guid: u64) -> String {
    let group = |shift: u32| (guid >> shift) as u16;
    format!("{:04x}:{:04x}:{:04x}:{:04x}", group(48), group(32), group(16), group(0))
}

/// `100 Gb/sec (4X EDR)`; codes of IBA PortInfo.
pub(crate) fn rate(attr: &PortAttr) -> String {
    let lanes = match attr.active_width {
        1 => 1,
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    let (tenths, name) = match attr.active_speed {
        2 => (50, " DDR"),
        4 => (100, " QDR"),
        8 => (100, " FDR10"),
        16 => (140, " FDR"),
        32 => (250, " EDR"),
        64 => (500, " HDR"),
        128 => (1000, " NDR"),
        256 => (2000, " XDR"),
        _ => (25, ""),
    };
    let total = tenths * lanes;
    let fraction = if total % 10 == 0 { String::new() } else { format!(".{}", total % 10) };
    format!("{}{fraction} Gb/sec ({lanes}X{name})", total / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks() {
        for (list, expected) in [
            ("0", "00000001"),
            ("0-1", "00000003"),
            ("0-3,8", "0000010f"),
            ("32", "00000001,00000000"),
            ("0-63", "ffffffff,ffffffff"),
            ("", "00000000"),
            ("x-y", "00000000"),
            ("5-2", "00000000"),
        ] {
            assert_eq!(mask(list), expected, "{list}");
        }
    }

    #[test]
    fn guids() {
        assert_eq!(guid(0x0200_00ff_fe00_0001), "0200:00ff:fe00:0001");
    }
}
