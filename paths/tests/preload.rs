//! The library in front of libc: a probe that calls every function, and programs of the
//! distribution.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;

/// The library, built once for all tests.
fn library() -> &'static Path {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("preload");
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "-p", "ironverbs-paths", "--target-dir"])
            .arg(&target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(status.success(), "the library does not build");
        target.join("debug/libironverbs_paths.so")
    })
}

/// A directory of this test, with a view in it.
struct Stage {
    dir: PathBuf,
}

impl Stage {
    fn new(name: &str) -> Stage {
        let dir =
            Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}-{}", std::process::id()));
        let view = dir.join("view");
        fs::create_dir_all(view.join("sys/class/infiniband/iron0/device")).unwrap();
        fs::create_dir_all(view.join("sys/class/infiniband_verbs/uverbs0")).unwrap();
        fs::create_dir_all(view.join("dev/infiniband")).unwrap();
        fs::write(view.join("sys/class/infiniband/iron0/node_guid"), "0200:00ff:fe00:0001\n")
            .unwrap();
        fs::write(view.join("dev/infiniband/uverbs0"), "").unwrap();
        std::os::unix::fs::symlink(
            "../../infiniband/iron0/device",
            view.join("sys/class/infiniband_verbs/uverbs0/device"),
        )
        .unwrap();
        Stage { dir: dir.canonicalize().unwrap() }
    }

    fn view(&self) -> PathBuf {
        self.dir.join("view")
    }

    fn compile(&self, flags: &[&str]) -> PathBuf {
        let program = self.dir.join("probe");
        let compiler = std::env::var("CC").unwrap_or_else(|_| "cc".to_owned());
        let output = Command::new(&compiler)
            .args(["-Wall", "-Werror", "-pthread"])
            .args(flags)
            .arg("-o")
            .arg(&program)
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/probe.c"))
            .output()
            .unwrap_or_else(|e| panic!("{compiler}: {e}: a C compiler is needed"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }

    fn command(&self, program: impl AsRef<std::ffi::OsStr>, preload: &str) -> Command {
        let mut command = Command::new("timeout");
        command.arg("60").arg(program).env("IRONVERBS_VIEW", self.view());
        command.env("LD_PRELOAD", format!("{preload} {}", library().display()));
        command
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

#[track_caller]
fn succeeded(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "{:?}: {text}{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

fn probe(name: &str, flags: &[&str]) {
    let stage = Stage::new(name);
    let program = stage.compile(flags);
    succeeded(&stage.command(program, "").arg(stage.view()).output().unwrap());
}

#[test]
fn plain() {
    probe("plain", &["-O0"]);
}

#[test]
fn fortified() {
    probe("fortified", &["-O2", "-D_FORTIFY_SOURCE=2"]);
}

#[test]
fn bound_at_start() {
    probe("now", &["-O1", "-Wl,-z,now", "-fno-plt"]);
}

#[test]
fn position_dependent() {
    probe("nopie", &["-O1", "-no-pie"]);
}

#[test]
fn sanitized() {
    for (sanitizer, runtime) in
        [("address", "libasan.so"), ("undefined", "libubsan.so"), ("thread", "libtsan.so")]
    {
        let stage = Stage::new(sanitizer);
        let program = stage.compile(&["-O1", &format!("-fsanitize={sanitizer}")]);
        // AddressSanitizer refuses to start unless it comes first.
        let path = Command::new("cc").arg(format!("-print-file-name={runtime}")).output().unwrap();
        let path = succeeded(&path);
        let path = fs::canonicalize(path.trim()).unwrap();
        let mut command = stage.command(program, path.to_str().unwrap());
        command.env("PROBE_SANITIZED", "1").env("ASAN_OPTIONS", "detect_leaks=0");
        let output = command.arg(stage.view()).output().unwrap();
        assert!(
            output.status.success(),
            "{sanitizer}: {:?} {}",
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
    }
}

#[test]
fn programs_of_the_distribution() {
    let stage = Stage::new("programs");
    let run = |program: &str, args: &[&str]| {
        succeeded(&stage.command(program, "").args(args).output().unwrap())
    };
    assert_eq!(run("ls", &["/sys/class/infiniband"]), "iron0\n");
    assert_eq!(run("ls", &["/dev/infiniband/"]), "uverbs0\n");
    assert_eq!(run("cat", &["/sys/class/infiniband/iron0/node_guid"]), "0200:00ff:fe00:0001\n");
    assert_eq!(run("stat", &["-c", "%F", "/sys/class/infiniband"]), "directory\n");
    assert_eq!(
        run("realpath", &["/sys/class/infiniband_verbs/uverbs0/device"]),
        "/sys/class/infiniband/iron0/device\n"
    );
    let found = run("find", &["/sys/class/infiniband_verbs"]);
    assert!(found.ends_with("/sys/class/infiniband_verbs/uverbs0/device\n"), "{found}");
    // Children, and a shell's own open.
    let script = "test -e /dev/infiniband/uverbs0 && cat < /sys/class/infiniband/iron0/node_guid";
    assert_eq!(run("sh", &["-c", script]), "0200:00ff:fe00:0001\n");
    assert_eq!(run("env", &["sh", "-c", "exec ls /sys/class/infiniband"]), "iron0\n");
}

/// A preloaded library of the program's user, before ours and behind it.
#[test]
fn other_interposers() {
    let stage = Stage::new("others");
    let source = stage.dir.join("other.c");
    fs::write(
        &source,
        "#define _GNU_SOURCE\n#include <dlfcn.h>\n#include <unistd.h>\n\
         int open64(const char *path, int flags, int mode)\n{\n\
         int (*next)(const char *, int, int) = (int (*)(const char *, int, int))dlsym(RTLD_NEXT, \"open64\");\n\
         if (write(2, \"seen\\n\", 5) != 5) return -1;\nreturn next(path, flags, mode);\n}\n\
         int open(const char *path, int flags, int mode) { return open64(path, flags, mode); }\n",
    )
    .unwrap();
    let other = stage.dir.join("other.so");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-o"])
        .arg(&other)
        .arg(&source)
        .output()
        .unwrap();
    succeeded(&output);
    let ours = library().display();
    let other = other.display();
    for order in [format!("{other} {ours}"), format!("{ours} {other}")] {
        let output = stage
            .command("cat", "")
            .env("LD_PRELOAD", &order)
            .arg("/sys/class/infiniband/iron0/node_guid")
            .output()
            .unwrap();
        assert_eq!(succeeded(&output), "0200:00ff:fe00:0001\n", "{order}");
        assert!(String::from_utf8_lossy(&output.stderr).contains("seen"), "{order}");
    }
}

#[test]
fn without_a_view_nothing_changes() {
    let stage = Stage::new("without");
    let plain = Command::new("ls").arg("/sys/class/infiniband").output().unwrap();
    for view in ["", "relative/path"] {
        let output = stage
            .command("ls", "")
            .env("IRONVERBS_VIEW", view)
            .arg("/sys/class/infiniband")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), plain.status.code());
        assert_eq!(output.stdout, plain.stdout);
        assert_eq!(output.stderr, plain.stderr);
    }
}

/// A name that is exported and does not reach the probe would go unnoticed; one that is missing,
/// too.
#[test]
fn exports() {
    let output = Command::new("nm").args(["-D", "--defined-only"]).arg(library()).output().unwrap();
    let text = succeeded(&output);
    let mut names: Vec<&str> = text.lines().filter_map(|l| l.split_whitespace().last()).collect();
    names.sort_unstable();
    let mut expected = vec![
        "open",
        "open64",
        "openat",
        "openat64",
        "__open_2",
        "__open64_2",
        "__openat_2",
        "__openat64_2",
        "fopen",
        "fopen64",
        "opendir",
        "scandir",
        "scandir64",
        "scandirat",
        "scandirat64",
        "stat",
        "stat64",
        "lstat",
        "lstat64",
        "fstatat",
        "fstatat64",
        "__xstat",
        "__xstat64",
        "__lxstat",
        "__lxstat64",
        "__fxstatat",
        "__fxstatat64",
        "statx",
        "access",
        "eaccess",
        "euidaccess",
        "faccessat",
        "readlink",
        "readlinkat",
        "getxattr",
        "lgetxattr",
        "listxattr",
        "llistxattr",
        "chdir",
        "__readlink_chk",
        "__readlinkat_chk",
        "realpath",
        "__realpath_chk",
        "canonicalize_file_name",
    ];
    expected.sort_unstable();
    assert_eq!(names, expected);
}
