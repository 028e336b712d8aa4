//! The distribution's pingpong programs, a server and a client.

use crate::netns::{Family, Namespace};
use crate::process::{During, Finished, Outcome, Program, Running};
use crate::suite::case::Case;
use crate::{stage, tree};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Which of the programs.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Rc,
    Uc,
    Ud,
    Srq,
    Xsrq,
}

impl Kind {
    pub(crate) const ALL: [Kind; 5] = [Kind::Rc, Kind::Uc, Kind::Ud, Kind::Srq, Kind::Xsrq];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::Rc => "rc",
            Kind::Uc => "uc",
            Kind::Ud => "ud",
            Kind::Srq => "srq",
            Kind::Xsrq => "xsrq",
        }
    }

    /// Message sizes to try, in bytes. A datagram is at most one packet.
    fn sizes(self) -> &'static [u32] {
        match self {
            Kind::Ud => &[1, 1024],
            _ => &[1, 4096, 1 << 20],
        }
    }
}

/// One run of a pair.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Pingpong {
    pub(crate) kind: Kind,
    /// Bytes per message.
    pub(crate) size: u32,
    /// Sleep on completion events instead of polling.
    pub(crate) events: bool,
    /// Exchanges (per QP, of which the SRQ program has 16).
    pub(crate) rounds: u32,
    /// TCP port on which the two programs meet.
    pub(crate) port: u16,
    /// Path MTU in bytes, if not the programs' default.
    pub(crate) mtu: Option<u32>,
}

impl Pingpong {
    /// Enough exchanges of `size` bytes to show a fault, few enough to be quick.
    pub(crate) fn new(kind: Kind, size: u32, events: bool) -> Pingpong {
        let rounds = if size > 1 << 16 { 16 } else { 1000 };
        let rounds = match kind {
            Kind::Srq => rounds / 8,
            Kind::Xsrq => rounds / 4,
            _ => rounds,
        };
        Pingpong { kind, size, events, rounds, port: 18515, mtu: None }
    }

    /// Every program with every size, polling and sleeping.
    pub(crate) fn matrix() -> Vec<Pingpong> {
        let mut all = Vec::new();
        for kind in Kind::ALL {
            for &size in kind.sizes() {
                all.extend([false, true].map(|events| Pingpong::new(kind, size, events)));
            }
        }
        all
    }

    pub(crate) fn name(&self) -> String {
        let Pingpong { kind, size, events, .. } = self;
        let mtu = self.mtu.map(|mtu| format!("-mtu{mtu}")).unwrap_or_default();
        format!("{}-{size}{mtu}{}", kind.name(), if *events { "-events" } else { "" })
    }

    /// The command line without a host: the server's.
    fn program(&self, user: &User, gid_index: usize) -> Program {
        let mut program = user.runs(&format!("ibv_{}_pingpong", self.kind.name()));
        if self.events {
            program = program.arg("-e");
        }
        if let Some(mtu) = self.mtu {
            program = program.args(["-m", &mtu.to_string()]);
        }
        let program = program
            .args(["-g", &gid_index.to_string(), "-p", &self.port.to_string()])
            .args(["-s", &self.size.to_string(), "-n", &self.rounds.to_string()]);
        // The one for XRC always checks what arrives; there the option is a number of clients.
        if self.kind == Kind::Xsrq { program } else { program.arg("-c") }
    }
}

/// As whom programs run, and the stage they run on.
#[derive(Clone)]
pub(crate) struct User {
    wrapper: Vec<&'static str>,
    stage: PathBuf,
    copy: bool,
    /// `IRONVERBS_PATH`, if not the default.
    path: Option<&'static str>,
}

impl User {
    /// As this process does, on the tree's own stage.
    pub(crate) fn own() -> User {
        User { wrapper: Vec::new(), stage: tree::stage(), copy: false, path: None }
    }

    /// As user and group `nobody` without capabilities, on a copy of the stage in a place that
    /// everybody can read, which the source tree may not be.
    pub(crate) fn nobody() -> Outcome<User> {
        let stage = std::env::temp_dir().join(format!("ironverbs-stage-{}", std::process::id()));
        stage::install(&stage)?;
        let wrapper = vec![
            "setpriv",
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "--inh-caps=-all",
            "--no-new-privs",
            "--",
            "env",
            "HOME=/nonexistent",
        ];
        Ok(User { wrapper, stage, copy: true, path: None })
    }

    /// The same, with data for peers on this host going that way.
    pub(crate) fn on_path(mut self, path: &'static str) -> User {
        self.path = Some(path);
        self
    }

    /// `ironverbs run -- NAME`.
    pub(crate) fn runs(&self, name: &str) -> Program {
        self.command().args(["run", "--", name])
    }

    /// A script, told where the stage is.
    pub(crate) fn script(&self, script: &Path) -> Program {
        let program = Program::new("bash").arg(script.display()).arg(self.stage.display());
        program.under(self.wrapper.iter())
    }

    /// The staged `ironverbs`.
    pub(crate) fn command(&self) -> Program {
        let command = self.stage.join("bin/ironverbs").display().to_string();
        let program = Program::new(command).under(self.wrapper.iter());
        match self.path {
            None => program,
            Some(path) => program.env("IRONVERBS_PATH", path),
        }
    }
}

impl Drop for User {
    fn drop(&mut self) {
        if self.copy {
            let _ = fs::remove_dir_all(&self.stage);
        }
    }
}

/// One end of a pair.
pub(crate) struct Place<'a> {
    pub(crate) namespace: &'a Namespace,
    pub(crate) gid_index: usize,
}

/// Runs a server at one place and a client, told to connect to `host`, at another.
pub(crate) fn run(
    case: &mut Case,
    pingpong: Pingpong,
    user: &User,
    server: &Place<'_>,
    client: &Place<'_>,
    host: &str,
) -> Outcome {
    let listening = serve(case, pingpong, user, server)?;
    let connected = connect(case, pingpong, user, client, host)?;
    finish(case, connected)?;
    finish(case, listening)
}

/// Starts a server and waits until it listens.
pub(crate) fn serve(
    case: &mut Case,
    pingpong: Pingpong,
    user: &User,
    place: &Place<'_>,
) -> Outcome<Running> {
    let program = place.namespace.within(pingpong.program(user, place.gid_index));
    let mut server = case.start(&program)?;
    wait_for_listener(&mut server, pingpong.port, case.deadline())?;
    Ok(server)
}

/// Starts a client.
pub(crate) fn connect(
    case: &mut Case,
    pingpong: Pingpong,
    user: &User,
    place: &Place<'_>,
    host: &str,
) -> Outcome<Running> {
    let program = pingpong.program(user, place.gid_index).arg(host);
    case.start(&place.namespace.within(program))
}

/// Waits for one side's success.
pub(crate) fn finish(case: &Case, side: Running) -> Outcome {
    side.wait(case.deadline())?.success().and_then(completed)
}

fn completed(side: Finished) -> Outcome {
    // The program for XRC says no more than that.
    if side.output.trim_end().ends_with("success") {
        return Ok(());
    }
    side.says(" iters in ").map(drop)
}

/// Waits until a program listens for connections: a client that makes several could lose the first of them before.
pub(crate) fn wait_for_service(
    server: &mut Running,
    user: &User,
    place: &Namespace,
    deadline: Instant,
) -> Outcome {
    let ps = place.within(user.command().arg("ps"));
    server.wait_until("service", deadline, |server| {
        let shown = ps.read().unwrap_or_default();
        let pid = server.pid().to_string();
        let mut lines = shown.lines().skip_while(|line| line.split(' ').next() != Some(&pid));
        // What belongs to a process is indented below it.
        lines.next();
        lines.take_while(|line| line.starts_with(' ')).any(|line| line.starts_with("  listens on "))
    })
}

/// Waits until `program` itself listens on TCP `port`.
pub(crate) fn wait_for_listener(program: &mut Running, port: u16, deadline: Instant) -> Outcome {
    let what = format!("a listener on TCP port {port}");
    program.wait_until(&what, deadline, |running| {
        let process = PathBuf::from(format!("/proc/{}", running.pid()));
        ["tcp", "tcp6"].iter().any(|table| {
            let table = fs::read_to_string(process.join("net").join(table)).unwrap_or_default();
            table.lines().any(|line| {
                listener(line, port).is_some_and(|inode| holds(&process.join("fd"), inode))
            })
        })
    })
}

/// The inode of the socket that a line of `/proc/net/tcp` is about, if it listens (state 0A) on `port`.
fn listener(line: &str, port: u16) -> Option<&str> {
    let fields: Vec<_> = line.split_whitespace().collect();
    let listens = fields.get(1)?.ends_with(&format!(":{port:04X}")) && *fields.get(3)? == "0A";
    fields.get(9).copied().filter(|_| listens)
}

/// Whether one of the descriptors in `directory` is the socket.
fn holds(directory: &Path, inode: &str) -> bool {
    let socket = format!("socket:[{inode}]");
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
    links.any(|link| link == Path::new(&socket))
}

/// The index of the GID that stands for `address` on the first device, as `ibv_devinfo -v` shows it.
pub(crate) fn gid_index(
    case: &mut Case,
    user: &User,
    namespace: &Namespace,
    family: Family,
    address: &str,
) -> Outcome<usize> {
    let program = namespace.within(user.runs("ibv_devinfo").arg("-v"));
    let output = case.start(&program)?.wait(case.deadline())?.success()?.output;
    let gid = match family {
        Family::V4 => format!("::ffff:{address}"),
        Family::V6 => address.to_owned(),
    };
    // GID[  1]:		fd66::1, RoCE v2
    let found = output.lines().find_map(|line| {
        let (index, value) = line.trim().strip_prefix("GID[")?.split_once("]:")?;
        (value.split(',').next()?.trim() == gid).then(|| index.trim().to_owned())
    });
    let index = found.ok_or_else(|| format!("ibv_devinfo shows no GID {gid}"))?;
    index.parse().during(format!("GID index {index:?}"))
}
