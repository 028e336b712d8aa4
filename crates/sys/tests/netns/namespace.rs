//! Network namespaces that end with their test.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

/// A network namespace of ip-netns(8).
pub(crate) struct Namespace {
    pub(crate) name: String,
}

impl Namespace {
    pub(crate) fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let namespace = Self { name: format!("ironverbs-sys-{}-{count}", std::process::id()) };
        let made = Command::new("ip").args(["netns", "add", &namespace.name]).output();
        let why = match made {
            Ok(output) if output.status.success() => {
                namespace.ip("link set lo up");
                return namespace;
            }
            Ok(output) => String::from_utf8_lossy(&output.stderr).into_owned(),
            Err(e) => e.to_string(),
        };
        panic!("needs root (CAP_SYS_ADMIN, CAP_NET_ADMIN) and iproute2: `ip netns add`: {why}");
    }

    /// Runs `ip` with these arguments in the namespace.
    pub(crate) fn ip(&self, arguments: &str) {
        let output = Command::new("ip")
            .args(["-n", &self.name])
            .args(arguments.split_whitespace())
            .output()
            .unwrap();
        assert!(
            output.status.success(),
            "ip {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Runs something in the namespace: sockets that it makes stay there.
    pub(crate) fn run<T: Send>(&self, f: impl FnOnce() -> T + Send) -> T {
        let file = File::open(format!("/run/netns/{}", self.name)).unwrap();
        std::thread::scope(|scope| {
            let inside = scope.spawn(|| {
                // SAFETY: takes no pointers; it moves this thread alone, which ends below.
                let rc = unsafe { libc::setns(file.as_raw_fd(), libc::CLONE_NEWNET) };
                assert_eq!(rc, 0, "setns: {}", std::io::Error::last_os_error());
                f()
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        let _ = Command::new("ip").args(["netns", "del", &self.name]).output();
    }
}
