//! What drives a device: ourselves, or one of the driver plug-ins that are installed: `driver NAME` in the files of /etc/libibverbs.d, and the variables
//! RDMAV_DRIVERS and IBV_DRIVERS.

use std::ffi::OsStr;
use std::fmt;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::discover::KernelDevice;

/// Where packages name their plug-ins.
pub const CONFIG: &str = "/etc/libibverbs.d";

/// What the plug-ins' files end with: the version of the interface that they were built for.
pub const SUFFIX: &str = "-rdmav34.so";

/// Directories where packages put plug-ins.
const DIRECTORIES: [&str; 6] = [
    "/usr/lib/x86_64-linux-gnu/libibverbs",
    "/usr/lib/aarch64-linux-gnu/libibverbs",
    "/usr/lib64/libibverbs",
    "/usr/lib/libibverbs",
    "/usr/local/lib64/libibverbs",
    "/usr/local/lib/libibverbs",
];

/// The names in configuration files below that directory, in no order; those from the environment come first.
/// Files that cannot be read are as if they were not there.
pub fn names(directory: &Path, environment: Option<&OsStr>) -> Vec<Vec<u8>> {
    let mut names: Vec<Vec<u8>> = Vec::new();
    let listed = environment.map(OsStr::as_bytes).unwrap_or_default();
    names.extend(listed.split(|b| b":;".contains(b)).map(<[u8]>::to_vec));
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    for file in files.filter(|f| f.path().metadata().is_ok_and(|m| m.is_file())) {
        let text = std::fs::read(file.path()).unwrap_or_default();
        names.extend(text.split(|&b| b == b'\n').filter_map(name).map(<[u8]>::to_vec));
    }
    names.retain(|name| !name.is_empty());
    let mut seen = Vec::new();
    names.retain(|name| {
        let new = !seen.contains(name);
        seen.push(name.clone());
        new
    });
    names
}

/// The name in a line `driver NAME`.
fn name(line: &[u8]) -> Option<&[u8]> {
    let mut words = line.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    (words.next()? == b"driver").then(|| words.next())?
}

/// Files that the plug-in of that name may be, best first. A name may be a path without its ending.
pub fn candidates(name: &[u8]) -> Vec<Vec<u8>> {
    let file = |prefix: &[u8]| [prefix, name, SUFFIX.as_bytes()].concat();
    if name.starts_with(b"/") {
        return vec![file(b"")];
    }
    if name.contains(&b'/') {
        return Vec::new();
    }
    let mut files: Vec<_> =
        DIRECTORIES.iter().map(|dir| file([dir.as_bytes(), b"/lib"].concat().as_slice())).collect();
    files.push(file(b"lib"));
    files
}

/// Whether this library has a data path of its own for the device.
pub fn has_own(device: &KernelDevice) -> bool {
    crate::rxe::knows(device.driver, &device.name, device.abi)
        || crate::siw::knows(device.driver, device.abi)
}

/// What drives a device of the kernel.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Driver {
    /// This library by itself.
    Own,
    /// This plug-in.
    PlugIn(PathBuf),
    /// Nothing: the plug-in of that name, which may be empty, is not installed.
    Missing(&'static str),
}

impl Driver {
    /// What will drive the device; by ourselves if we can and that is wanted, else by a plug-in that is named in files
    /// below [`CONFIG`] or in the variable, and is there.
    pub fn of(device: &KernelDevice, own: bool, environment: Option<&OsStr>) -> Driver {
        Driver::among(device, own, &names(Path::new(CONFIG), environment), Path::exists)
    }

    fn among(
        device: &KernelDevice,
        own: bool,
        named: &[Vec<u8>],
        exists: impl Fn(&Path) -> bool,
    ) -> Driver {
        if own && has_own(device) {
            return Driver::Own;
        }
        let name = match device.driver {
            0 if device.name.starts_with("rxe") => "rxe",
            driver => plug_in(driver),
        };
        let wanted = named.iter().find(|n| n.as_slice() == name.as_bytes());
        let files = wanted.map(|name| candidates(name)).unwrap_or_default();
        let mut paths = files.iter().map(|file| Path::new(OsStr::from_bytes(file)));
        match paths.find(|path| exists(path)) {
            Some(path) => Driver::PlugIn(path.to_owned()),
            None => Driver::Missing(name),
        }
    }
}

impl fmt::Display for Driver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Driver::Own => f.write_str("libibverbs itself"),
            Driver::PlugIn(path) => write!(f, "the plug-in {}", path.display()),
            Driver::Missing("") => f.write_str("nothing: which plug-in it needs is not known"),
            Driver::Missing(name) => {
                write!(f, "nothing: the plug-in lib{name}{SUFFIX} is not installed")
            }
        }
    }
}

/// The plug-in's name for a kernel's driver, by `enum rdma_driver_id`; empty where that is not known.
pub fn plug_in(driver: u32) -> &'static str {
    const NAMES: [&str; 21] = [
        "",
        "mlx5",
        "mlx4",
        "cxgb3",
        "cxgb4",
        "mthca",
        "bnxt_re",
        "ocrdma",
        "nes",
        "irdma",
        "vmw_pvrdma",
        "qedr",
        "hns",
        "usnic",
        "rxe",
        "hfi1verbs",
        "ipathverbs",
        "efa",
        "siw",
        "erdma",
        "mana",
    ];
    NAMES.get(driver as usize).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_come_from_lines_and_from_the_environment() {
        let directory =
            std::env::temp_dir().join(format!("ironverbs-drivers-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(
            directory.join("a.driver"),
            "# driver no\n\n driver\trxe\nother x\ndriver siw",
        )
        .unwrap();
        let found = names(&directory, Some(OsStr::new("/opt/x;mlx5:rxe")));
        std::fs::remove_dir_all(&directory).unwrap();
        assert_eq!(found, [&b"/opt/x"[..], b"mlx5", b"rxe", b"siw"]);
        assert_eq!(names(&directory, None), Vec::<Vec<u8>>::new());
    }

    #[test]
    fn a_device_has_one_driver() {
        let device = |driver: u32, abi: u32| KernelDevice {
            name: "rxe0".into(),
            index: 0,
            node_type: 1,
            guid: 0,
            ports: 1,
            file: "uverbs0".into(),
            number: (231, 192),
            abi,
            driver,
        };
        let named = [b"rxe".to_vec(), b"mlx5".to_vec()];
        let of = |device: &KernelDevice, own: bool| {
            Driver::among(device, own, &named, |path| path.starts_with("/usr/lib64/libibverbs"))
        };
        let by = |name: &str| {
            Driver::PlugIn(format!("/usr/lib64/libibverbs/lib{name}-rdmav34.so").into())
        };
        let rxe = device(crate::rxe::DRIVER, 2);
        assert_eq!((of(&rxe, true), of(&rxe, false)), (Driver::Own, by("rxe")));
        // Kernels before 5.1 tell the name alone; a later interface is not ours to know.
        assert_eq!(of(&device(0, 2), true), Driver::Own);
        assert_eq!(of(&device(crate::rxe::DRIVER, 3), true), by("rxe"));
        assert_eq!(of(&device(1, 1), true), by("mlx5"));
        let siw = device(crate::siw::DRIVER, 1);
        assert_eq!((of(&siw, true), of(&siw, false)), (Driver::Own, Driver::Missing("siw")));
        let irdma = of(&device(9, 1), true);
        assert_eq!(irdma, Driver::Missing("irdma"));
        assert_eq!(irdma.to_string(), "nothing: the plug-in libirdma-rdmav34.so is not installed");
        assert_eq!(Driver::among(&rxe, false, &named, |_| false), Driver::Missing("rxe"));
    }

    #[test]
    fn a_path_stands_for_itself_and_a_name_for_no_path() {
        assert_eq!(candidates(b"/opt/libx"), [b"/opt/libx-rdmav34.so".to_vec()]);
        assert!(candidates(b"../x").is_empty());
        assert_eq!(candidates(b"rxe").last().unwrap(), b"librxe-rdmav34.so");
    }
}
