//! `ironverbs run`: any program on the stack.

mod elf;
mod place;
pub(crate) mod view;

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use elf::Program;

use crate::verbs::{Config, Host, config::Soft};
use crate::{complain, warn};

/// Runs a program against the stack of this installation.
///
/// The program finds our libibverbs before the system's, and our devices under
/// /sys/class/infiniband and /dev/infiniband. It takes the place of this command: its exit status
/// and signals are its own. 125: ironverbs itself failed; 126: the program cannot be executed;
/// 127: it was not found.
#[derive(clap::Args)]
pub(crate) struct RunArgs {
    /// The program and its arguments, best after `--`
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// What env(1), timeout(1) and others use.
const FAILED: u8 = 125;
const NOT_EXECUTABLE: u8 = 126;
const NOT_FOUND: u8 = 127;

const PRELOAD: &str = "libironverbs_paths.so";
const VERBS: &str = "libibverbs.so.1";

pub(crate) fn run(args: &RunArgs) -> ExitCode {
    let Some((name, arguments)) = args.command.split_first() else {
        return ExitCode::from(FAILED);
    };
    let program = match find(name) {
        Ok(program) => program,
        Err((status, why)) => {
            complain(format_args!("{}: {why}", name.display()));
            return ExitCode::from(status);
        }
    };
    let mut command = Command::new(&program);
    command.arg0(name).args(arguments);
    let sanitizers = warn_about(&program);
    if let Err(why) = prepare(&mut command, &sanitizers) {
        complain(why);
        return ExitCode::from(FAILED);
    }
    let error = command.exec();
    let status = match error.kind() {
        // The file was there: its interpreter was not.
        io::ErrorKind::NotFound => {
            complain(format_args!("{}: its interpreter was not found", program.display()));
            NOT_EXECUTABLE
        }
        _ => {
            complain(format_args!("{}: {error}", program.display()));
            NOT_EXECUTABLE
        }
    };
    ExitCode::from(status)
}

/// The file that execvp(3) would run.
fn find(name: &OsStr) -> Result<PathBuf, (u8, String)> {
    let check = |path: &Path| match path.metadata() {
        Ok(m) if m.is_dir() => Err((NOT_EXECUTABLE, "is a directory".to_owned())),
        Ok(m) if m.permissions().mode() & 0o111 == 0 => {
            Err((NOT_EXECUTABLE, "is not executable".to_owned()))
        }
        Ok(_) => Ok(path.to_owned()),
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            Err((NOT_FOUND, "not found".to_owned()))
        }
        Err(e) => Err((NOT_EXECUTABLE, e.to_string())),
    };
    if name.as_bytes().contains(&b'/') {
        return check(Path::new(name));
    }
    let mut failure = (NOT_FOUND, "not found in PATH".to_owned());
    let path = std::env::var_os("PATH").unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    if name.is_empty() {
        return Err((NOT_FOUND, "no program has an empty name".to_owned()));
    }
    for directory in std::env::split_paths(&path) {
        let directory =
            if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
        match check(&directory.join(name)) {
            Ok(path) => return Ok(path),
            Err((NOT_EXECUTABLE, why)) if failure.0 == NOT_FOUND => failure = (NOT_EXECUTABLE, why),
            Err(_) => {}
        }
    }
    Err(failure)
}

/// Says where the program will not see the stack, whatever we do. Returns the sanitizer runtimes
/// that must be loaded before anything else.
fn warn_about(program: &Path) -> Vec<String> {
    let Ok(mut kind) = Program::examine(program) else { return Vec::new() };
    let mut file = program.to_owned();
    if let Some(interpreter) = kind.interpreter.take() {
        kind = Program::examine(&interpreter).unwrap_or_default();
        file = interpreter;
    } else {
        // Of a script, these bits are ignored.
        warn_about_privileges(program);
    }
    let file = file.display();
    if kind.is_foreign {
        warn(format_args!("{file} is for another architecture: it cannot load this stack"));
    } else if kind.is_static {
        warn(format_args!(
            "{file} is statically linked{}: it loads no shared libraries, so neither this stack nor \
             its devices are visible to it",
            if kind.is_go { " (Go)" } else { "" }
        ));
    } else if kind.is_go {
        warn(format_args!(
            "{file} is a Go program: libibverbs reaches it through cgo, but the files that it opens \
             itself under /sys/class/infiniband are the system's"
        ));
    }
    kind.sanitizers
}

fn warn_about_privileges(program: &Path) {
    let Ok(metadata) = program.metadata() else { return };
    let mode = metadata.permissions().mode();
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let has_capabilities = || {
        let mut value = [0_u8; 64];
        uid != 0 && rustix::fs::getxattr(program, "security.capability", &mut value).is_ok()
    };
    let why = if mode & 0o4000 != 0 && metadata.uid() != uid {
        "setuid"
    } else if mode & 0o2010 == 0o2010 && metadata.gid() != gid {
        "setgid"
    } else if has_capabilities() {
        "has file capabilities"
    } else {
        return;
    };
    let kind = if why.starts_with("set") { format!("is {why}") } else { why.to_owned() };
    warn(format_args!(
        "{} {kind}: the dynamic linker ignores LD_PRELOAD and LD_LIBRARY_PATH for it, so it uses the \
         system's libibverbs and devices",
        program.display()
    ));
}

fn prepare(command: &mut Command, sanitizers: &[String]) -> Result<(), String> {
    let libraries = library_directory()?;
    let config = Config::load().map_err(|e| e.to_string())?;
    let ours = libraries.join(PRELOAD).into_os_string();
    let mut preload: Vec<OsString> = sanitizers.iter().map(OsString::from).collect();
    let present = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    let separators = |b: &u8| matches!(b, b' ' | b':' | b'\t');
    for entry in present.as_bytes().split(separators).filter(|e| !e.is_empty()) {
        if entry != ours.as_bytes() {
            preload.push(OsStr::from_bytes(entry).to_owned());
        }
    }
    preload.push(ours);
    command.env("LD_PRELOAD", preload.join(OsStr::new(" ")));
    let mut path = libraries.clone().into_os_string();
    if let Some(present) = std::env::var_os("LD_LIBRARY_PATH").filter(|p| !p.is_empty()) {
        let first = present.as_bytes().split(|&b| b == b':').next();
        if first == Some(libraries.as_os_str().as_bytes()) {
            path = present;
        } else {
            path.push(":");
            path.push(present);
        }
    }
    command.env("LD_LIBRARY_PATH", path);
    if config.soft.value == Soft::Off {
        command.env_remove("IRONVERBS_VIEW");
        return Ok(());
    }
    let host = Host::start(config).map_err(|e| e.to_string())?;
    let tree = view::tree(&host).map_err(|e| e.to_string())?;
    let parent = place::own_directory().map_err(|e| e.to_string())?;
    let view = place::publish(&parent, "view", &tree).map_err(|e| e.to_string())?;
    command.env("IRONVERBS_VIEW", view);
    Ok(())
}

/// `../lib` of this executable, or what `IRONVERBS_LIB_DIR` names.
fn library_directory() -> Result<PathBuf, String> {
    let directory = match std::env::var_os("IRONVERBS_LIB_DIR").filter(|d| !d.is_empty()) {
        Some(directory) => PathBuf::from(directory),
        None => {
            let exe = std::env::current_exe().map_err(|e| format!("cannot find myself: {e}"))?;
            let up = exe.parent().and_then(Path::parent).unwrap_or(Path::new("/"));
            up.join("lib")
        }
    };
    let shown = directory.display();
    let found = directory.canonicalize().map_err(|e| {
        format!("{shown}: {e}: the libraries belong into ../lib beside bin/ironverbs (cargo xtask stage puts them there)")
    })?;
    for library in [VERBS, PRELOAD] {
        if !found.join(library).is_file() {
            return Err(format!("{shown}: {library} is missing (cargo xtask stage puts it there)"));
        }
    }
    // Separators of LD_PRELOAD and LD_LIBRARY_PATH, and what ld.so expands in them.
    if found.as_os_str().as_bytes().iter().any(|b| b" :;$\t\n".contains(b)) {
        return Err(format!(
            "{}: the dynamic linker takes no directory with a space, \":\", \";\" or \"$\" in its name",
            found.display()
        ));
    }
    Ok(found)
}
