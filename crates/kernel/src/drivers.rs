//! Which driver plug-ins are installed: `driver NAME` in the files of /etc/libibverbs.d, and the variables
//! RDMAV_DRIVERS and IBV_DRIVERS.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

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
    fn a_path_stands_for_itself_and_a_name_for_no_path() {
        assert_eq!(candidates(b"/opt/libx"), [b"/opt/libx-rdmav34.so".to_vec()]);
        assert!(candidates(b"../x").is_empty());
        assert_eq!(candidates(b"rxe").last().unwrap(), b"librxe-rdmav34.so");
    }
}
