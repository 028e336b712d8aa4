//! A staged installation and processes that end, whatever happens.

#![allow(dead_code, reason = "each test file uses a part")]

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The command under test.
pub(crate) const IRONVERBS: &str = env!("CARGO_BIN_EXE_ironverbs");

/// Nothing here takes nearly as long; what does, hangs.
const WATCHDOG: Duration = Duration::from_secs(120);

/// bin/ and lib/ as an installation has them, made once for all tests of a file.
pub(crate) fn stage() -> &'static Path {
    static STAGE: OnceLock<PathBuf> = OnceLock::new();
    STAGE.get_or_init(|| {
        let temporary = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let target = temporary.parent().unwrap();
        let status = Command::new(env!("CARGO"))
            .args(["build", "--quiet", "-p", "ironverbs-paths", "-p", "ironverbs-capi-ibverbs"])
            .arg("--target-dir")
            .arg(target)
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .status()
            .unwrap();
        assert!(status.success(), "the libraries do not build");
        let stage = temporary.join(format!("stage-{}", env!("CARGO_CRATE_NAME")));
        let _ = fs::remove_dir_all(&stage);
        fs::create_dir_all(stage.join("bin")).unwrap();
        fs::create_dir_all(stage.join("lib")).unwrap();
        let built = target.join("debug");
        for (from, to) in [
            (PathBuf::from(IRONVERBS), "bin/ironverbs"),
            (built.join("libironverbs_paths.so"), "lib/libironverbs_paths.so"),
            (built.join("libibverbs.so"), "lib/libibverbs.so.1"),
        ] {
            fs::copy(&from, stage.join(to)).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        }
        stage
    })
}

/// A UDP port that no other test uses, so that no other test's processes are in the group.
pub(crate) fn udp_port() -> u16 {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    let file = u32::from(env!("CARGO_CRATE_NAME").as_bytes()[1]);
    (20_000 + (std::process::id() * 31 + n * 7 + file * 1009) % 12_000) as u16
}

/// The command with `arguments`, free of this process's own settings.
pub(crate) fn command(program: impl AsRef<OsStr>, arguments: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("IRONVERBS_") {
            command.env_remove(name);
        }
    }
    // An empty file keeps the machine's configuration out.
    command.env("IRONVERBS_CONFIG", empty_file());
    command
}

fn empty_file() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let path = Path::new(env!("CARGO_TARGET_TMPDIR"))
            .join(format!("empty-{}.toml", env!("CARGO_CRATE_NAME")));
        fs::write(&path, "").unwrap();
        path
    })
}

/// Runs to the end, or fails the test when the watchdog barks.
pub(crate) fn finish(mut command: Command) -> Output {
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    Background::new(child).wait()
}

/// A process that does not outlive its test.
pub(crate) struct Background {
    child: Child,
    stdout: mpsc::Receiver<Vec<u8>>,
    stderr: mpsc::Receiver<Vec<u8>>,
}

fn drain(stream: Option<impl Read + Send + 'static>) -> mpsc::Receiver<Vec<u8>> {
    let (sender, receiver) = mpsc::channel();
    if let Some(stream) = stream {
        std::thread::spawn(move || {
            let mut stream = BufReader::new(stream);
            loop {
                let mut line = Vec::new();
                if !matches!(stream.read_until(b'\n', &mut line), Ok(1..))
                    || sender.send(line).is_err()
                {
                    return;
                }
            }
        });
    }
    receiver
}

impl Background {
    pub(crate) fn start(mut command: Command) -> Background {
        Background::new(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    fn new(mut child: Child) -> Background {
        let (stdout, stderr) = (drain(child.stdout.take()), drain(child.stderr.take()));
        Background { child, stdout, stderr }
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// The next line of its output.
    pub(crate) fn line(&self) -> String {
        match self.stdout.recv_timeout(WATCHDOG) {
            Ok(line) => String::from_utf8_lossy(&line).trim_end().to_owned(),
            Err(_) => panic!("no line came; on stderr: {}", self.rest(&self.stderr)),
        }
    }

    fn rest(&self, stream: &mpsc::Receiver<Vec<u8>>) -> String {
        let mut text = String::new();
        // The end of the stream ends it, unless somebody else holds it open. On a busy machine the thread that reads
        // may be late.
        while let Ok(line) = stream.recv_timeout(Duration::from_secs(2)) {
            text += &String::from_utf8_lossy(&line);
        }
        text
    }

    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
    }

    pub(crate) fn wait(mut self) -> Output {
        let deadline = Instant::now() + WATCHDOG;
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(Instant::now() < deadline, "it hangs; stderr: {}", self.rest(&self.stderr));
            std::thread::sleep(Duration::from_millis(5));
        };
        let (stdout, stderr) = (self.rest(&self.stdout), self.rest(&self.stderr));
        Output { status, stdout: stdout.into(), stderr: stderr.into() }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Output as text, for assertions.
pub(crate) trait Text {
    fn out(&self) -> String;
    fn err(&self) -> String;
    #[track_caller]
    fn ok(self) -> Self;
    #[track_caller]
    fn failed_with(self, code: i32) -> Self;
}

impl Text for Output {
    fn out(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    fn err(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    #[track_caller]
    fn ok(self) -> Output {
        self.failed_with(0)
    }

    #[track_caller]
    fn failed_with(self, code: i32) -> Output {
        assert_eq!(self.status.code(), Some(code), "{}{}", self.out(), self.err());
        self
    }
}

/// A directory of this test's own, removed with it.
pub(crate) struct Scratch(pub(crate) PathBuf);

impl Scratch {
    pub(crate) fn new(name: &str) -> Scratch {
        // Not below target/: the paths must be short enough, and reachable for other users.
        let path =
            std::env::temp_dir().join(format!("ironverbs-test-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        fs::create_dir_all(&path).unwrap();
        Scratch(path)
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn link(&self, target: &str, name: &str) -> PathBuf {
        let path = self.0.join(name);
        symlink(target, &path).unwrap();
        path
    }

    /// Compiles `source` with the C compiler.
    pub(crate) fn compile(&self, name: &str, source: &str, flags: &[&str]) -> PathBuf {
        let file = self.write(&format!("{name}.c"), source);
        let program = self.0.join(name);
        let output = Command::new("cc").args(flags).arg("-o").arg(&program).arg(&file).output();
        let output = output.unwrap_or_else(|e| panic!("cc: {e}: a C compiler is needed"));
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        program
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
