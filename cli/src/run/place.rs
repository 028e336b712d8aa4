//! A directory of this user's own for generated files, and trees that appear in it whole.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, Metadata};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use ironverbs_sys::process;

/// A file of a tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    /// A regular file with this text, readable by its owner.
    File(String),
    /// A symbolic link.
    Link(String),
    /// A directory, empty unless other entries lie in it.
    Dir,
}

/// Paths relative to the root of the tree, and what stands there. Parents need no entry.
pub(crate) type Tree = BTreeMap<String, Node>;

/// Why there is no directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlaceError {
    /// Something that is not ours stands in its place.
    #[error("{}: {problem}; remove it, or set XDG_RUNTIME_DIR to a directory of yours", path.display())]
    Refused {
        /// What stands there.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// A system call failed.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

fn at(path: &Path) -> impl Fn(io::Error) -> PlaceError {
    let path = path.to_owned();
    move |error| PlaceError::Io { path: path.clone(), error }
}

/// `$XDG_RUNTIME_DIR/ironverbs` where that directory is this user's own, else
/// `/tmp/ironverbs-<uid>`, or the same in /dev/shm where /tmp cannot be written; made with mode 0700
/// if missing. Symbolic links in front of it are resolved.
pub(crate) fn own_directory() -> Result<PathBuf, PlaceError> {
    let uid = process::uid();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    if let Some(runtime) = runtime.filter(|p| p.is_absolute())
        && let Ok(runtime) = runtime.canonicalize()
        && fs::metadata(&runtime).is_ok_and(|m| problem(&m, uid).is_none())
        && let Ok(path) = make_own(&runtime.join("ironverbs"), uid)
    {
        return Ok(path);
    }
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    let name = format!("ironverbs-{}", outer_uid(&map, uid));
    let shared = |directory: &str| {
        let directory = Path::new(directory).canonicalize().map_err(at(Path::new(directory)))?;
        make_own(&directory.join(&name), uid)
    };
    match shared("/tmp") {
        Err(PlaceError::Io { path, error }) => {
            shared("/dev/shm").map_err(|_| PlaceError::Io { path, error })
        }
        done => done,
    }
}

/// What `uid` of this user namespace is outside it (user_namespaces(7)): the root of a container and
/// of the machine share /tmp, and must not share a name there.
fn outer_uid(map: &str, uid: u32) -> u32 {
    let outer = |line: &str| {
        let mut numbers = line.split_whitespace().map(|n| n.parse::<u32>().ok());
        let (inside, outside, count) = (numbers.next()??, numbers.next()??, numbers.next()??);
        let offset = uid.checked_sub(inside).filter(|o| *o < count)?;
        outside.checked_add(offset)
    };
    map.lines().find_map(outer).unwrap_or(uid)
}

/// Makes a directory that nobody else may enter, or checks the one that is there: anyone can put a
/// directory or a link of that name into /tmp.
fn make_own(path: &Path, uid: u32) -> Result<PathBuf, PlaceError> {
    match DirBuilder::new().mode(0o700).create(path) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(at(path)(e)),
    }
    let metadata = fs::symlink_metadata(path).map_err(at(path))?;
    match problem(&metadata, uid) {
        None => Ok(path.to_owned()),
        Some(problem) => Err(PlaceError::Refused { path: path.to_owned(), problem }),
    }
}

fn problem(metadata: &Metadata, uid: u32) -> Option<String> {
    if metadata.is_symlink() {
        Some("a symbolic link, not a directory".to_owned())
    } else if !metadata.is_dir() {
        Some("not a directory".to_owned())
    } else if metadata.uid() != uid {
        Some(format!("belongs to uid {}, not to you ({uid})", metadata.uid()))
    } else if metadata.permissions().mode() & 0o077 != 0 {
        Some(format!("others may enter it (mode {:o})", metadata.permissions().mode() & 0o7777))
    } else {
        None
    }
}

/// Sees to it that `parent/name-<hash>` holds exactly `tree`, and gives its path.
///
/// The hash is the tree's, so that a directory never changes once it has its name: programs that
/// were started before keep what they see, and any number of processes may do this at once.
pub(crate) fn publish(parent: &Path, name: &str, tree: &Tree) -> Result<PathBuf, PlaceError> {
    let path = parent.join(format!("{name}-{:016x}", fingerprint(tree)));
    // Something may have gone missing: /tmp is cleaned of old files.
    for _ in 0..3 {
        if holds(&path, tree) {
            return Ok(path);
        }
        let made = build(parent, tree)?;
        match fs::rename(&made, &path) {
            Ok(()) => return Ok(path),
            Err(_) => {
                // Another process was faster, or what is there is damaged.
                if !holds(&path, tree) {
                    let _ = fs::rename(&path, made.with_extension("old"));
                    let _ = fs::remove_dir_all(made.with_extension("old"));
                }
                let _ = fs::remove_dir_all(&made);
            }
        }
    }
    if holds(&path, tree) {
        return Ok(path);
    }
    Err(PlaceError::Refused { path, problem: "cannot be written completely".to_owned() })
}

fn build(parent: &Path, tree: &Tree) -> Result<PathBuf, PlaceError> {
    let unique = format!(".new-{}-{:x}", process::pid(), ironverbs_sys::clock::monotonic_ns());
    let root = parent.join(unique);
    let result = write_all(&root, tree);
    if result.is_err() {
        let _ = fs::remove_dir_all(&root);
    }
    result.map(|()| root)
}

fn write_all(root: &Path, tree: &Tree) -> Result<(), PlaceError> {
    let mut directories = DirBuilder::new();
    directories.recursive(true).mode(0o700);
    directories.create(root).map_err(at(root))?;
    for (name, node) in tree {
        let path = root.join(name);
        if let Some(parent) = path.parent() {
            directories.create(parent).map_err(at(parent))?;
        }
        match node {
            Node::Dir => directories.create(&path).map_err(at(&path))?,
            Node::Link(target) => symlink(target, &path).map_err(at(&path))?,
            Node::File(text) => {
                let mut options = fs::OpenOptions::new();
                let file = options.write(true).create_new(true).mode(0o400).open(&path);
                file.and_then(|mut f| f.write_all(text.as_bytes())).map_err(at(&path))?;
            }
        }
    }
    Ok(())
}

fn holds(root: &Path, tree: &Tree) -> bool {
    fs::symlink_metadata(root).is_ok_and(|m| problem(&m, process::uid()).is_none())
        && tree.iter().all(|(name, node)| {
            let path = root.join(name);
            match node {
                Node::Dir => fs::symlink_metadata(&path).is_ok_and(|m| m.is_dir()),
                Node::Link(target) => fs::read_link(&path).is_ok_and(|t| t == Path::new(target)),
                Node::File(text) => fs::read(&path).is_ok_and(|t| t == text.as_bytes()),
            }
        })
}

/// FNV-1a: a name, not a defence; the directory is this user's own.
fn fingerprint(tree: &Tree) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    let mut add = |bytes: &[u8]| {
        for &b in bytes.iter().chain(&[0]) {
            hash = (hash ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3);
        }
    };
    for (name, node) in tree {
        add(name.as_bytes());
        match node {
            Node::Dir => add(b"d"),
            Node::Link(target) => add(format!("l{target}").as_bytes()),
            Node::File(text) => add(format!("f{text}").as_bytes()),
        }
    }
    hash
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            static COUNT: AtomicU32 = AtomicU32::new(0);
            let n = COUNT.fetch_add(1, Ordering::Relaxed);
            let path = std::env::temp_dir().join(format!("ironverbs-place-{}-{n}", process::pid()));
            DirBuilder::new().mode(0o700).create(&path).unwrap();
            Scratch(path)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn tree(text: &str) -> Tree {
        Tree::from([
            ("a/b/c".to_owned(), Node::File(text.to_owned())),
            ("a/link".to_owned(), Node::Link("b/c".to_owned())),
            ("empty".to_owned(), Node::Dir),
        ])
    }

    #[test]
    fn a_tree_appears_whole_and_once() {
        let scratch = Scratch::new();
        let first = publish(&scratch.0, "view", &tree("x")).unwrap();
        assert_eq!(fs::read_to_string(first.join("a/link")).unwrap(), "x");
        assert!(first.join("empty").is_dir());
        assert_eq!(publish(&scratch.0, "view", &tree("x")).unwrap(), first);
        assert_ne!(publish(&scratch.0, "view", &tree("y")).unwrap(), first);
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 2, "nothing is left behind");
    }

    #[test]
    fn uids_outside_the_namespace() {
        for (map, uid, outer) in [
            ("         0          0 4294967295\n", 7, 7),
            ("0 1000 1\n", 0, 1000),
            ("0 1000 1\n1 100000 65536\n", 33, 100_032),
            ("0 1000 1\n", 5, 5),
            ("", 5, 5),
            ("x y z\n0 4294967295 5", 3, 3),
        ] {
            assert_eq!(outer_uid(map, uid), outer, "{map}");
        }
    }

    #[test]
    fn a_damaged_tree_is_replaced() {
        let scratch = Scratch::new();
        let path = publish(&scratch.0, "view", &tree("x")).unwrap();
        fs::remove_file(path.join("a/b/c")).unwrap();
        assert_eq!(publish(&scratch.0, "view", &tree("x")).unwrap(), path);
        assert_eq!(fs::read_to_string(path.join("a/b/c")).unwrap(), "x");
        fs::remove_dir(path.join("empty")).unwrap();
        assert_eq!(publish(&scratch.0, "view", &tree("x")).unwrap(), path);
        assert!(path.join("empty").is_dir());
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 1);
    }

    #[test]
    fn many_at_once() {
        let scratch = Scratch::new();
        std::thread::scope(|s| {
            for _ in 0..8 {
                s.spawn(|| {
                    for round in 0..20 {
                        let tree = tree(&format!("{}", round % 3));
                        let path = publish(&scratch.0, "view", &tree).unwrap();
                        assert!(holds(&path, &tree));
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(&scratch.0).unwrap().count(), 3);
    }

    #[test]
    fn what_others_can_touch_is_refused() {
        let scratch = Scratch::new();
        let uid = process::uid();
        let open = scratch.0.join("open");
        fs::create_dir(&open).unwrap();
        fs::set_permissions(&open, PermissionsExt::from_mode(0o777)).unwrap();
        let error = make_own(&open, uid).unwrap_err().to_string();
        assert!(error.contains("mode 777"), "{error}");
        let link = scratch.0.join("link");
        symlink(&scratch.0, &link).unwrap();
        let error = make_own(&link, uid).unwrap_err().to_string();
        assert!(error.contains("not a directory"), "{error}");
        let file = scratch.0.join("file");
        fs::write(&file, "").unwrap();
        assert!(make_own(&file, uid).is_err());
        let foreign = make_own(&scratch.0, uid + 1).unwrap_err().to_string();
        assert!(foreign.contains("belongs to uid"), "{foreign}");
    }
}
