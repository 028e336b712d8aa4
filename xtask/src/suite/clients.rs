//! The programs that people run on RDMA: the scripts in `tests/clients`, each on one host and between two.

use super::{Cases, seconds};
use crate::netns::{End, Family, Joined};
use crate::process::{Outcome, Program};
use crate::suite::case::Case;
use crate::suite::host;
use crate::tools::{self, Tool};
use crate::tree;
use std::fs;
use std::time::Duration;

/// Who runs a script, and where.
#[derive(Copy, Clone, PartialEq, Eq)]
enum By {
    Root,
    Nobody,
    /// Its two sides on two hosts.
    TwoHosts,
}

impl By {
    const ALL: &[By] = &[By::Root, By::Nobody, By::TwoHosts];

    fn name(self) -> &'static str {
        match self {
            By::Root => "root",
            By::Nobody => "nobody",
            By::TwoHosts => "two-hosts",
        }
    }
}

/// One of the scripts.
struct Client {
    name: &'static str,
    needs: &'static [Tool],
    by: &'static [By],
    limit: Duration,
}

/// Run by its name alone, `cargo xtask test clients/crates`: what it needs takes minutes to build.
const ON_REQUEST: &str = "crates";

const CLIENTS: [Client; 10] = [
    Client { name: "ucx", needs: &[tools::UCX], by: By::ALL, limit: seconds(180) },
    Client {
        name: "openmpi",
        needs: &[tools::OPENMPI, tools::OPENMPI_HEADERS, tools::CC],
        by: By::ALL,
        limit: seconds(120),
    },
    Client {
        name: "mpich",
        needs: &[tools::MPICH, tools::MPICH_HEADERS, tools::CC],
        by: &[By::Root, By::Nobody],
        limit: seconds(120),
    },
    Client { name: "libfabric", needs: &[tools::LIBFABRIC], by: By::ALL, limit: seconds(120) },
    Client { name: "fio", needs: &[tools::FIO], by: By::ALL, limit: seconds(120) },
    Client { name: "qemu", needs: &[tools::QEMU, tools::PYTHON], by: By::ALL, limit: seconds(180) },
    // What is installed for these is kept in the build directory, which is not everybody's to read.
    Client {
        name: "pypi",
        needs: &[tools::PYTHON, tools::VENV, tools::NUMA, tools::CURL],
        by: &[By::Root, By::TwoHosts],
        limit: seconds(300),
    },
    Client {
        name: "crates",
        needs: &[tools::LIBCLANG, tools::CMAKE, tools::LIBNL, tools::PKGCONF],
        by: &[By::TwoHosts],
        limit: seconds(600),
    },
    Client {
        name: "raw",
        needs: &[tools::PERFTEST],
        by: &[By::Root, By::TwoHosts],
        limit: seconds(120),
    },
    Client {
        name: "perftest",
        needs: &[tools::PERFTEST, tools::IBVERBS_UTILS],
        by: &[By::Root],
        limit: seconds(180),
    },
];

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let joined = Joined::new(1500)?;
    // In a place that everybody can read, which the source tree may not be.
    let scripts = std::env::temp_dir().join(format!("ironverbs-clients-{}", std::process::id()));
    let from = tree::root().join("tests/clients");
    Program::new("cp").arg("-r").args([from.display(), scripts.display()]).read()?;
    let [(_, root), (_, nobody)] = host::users()?;
    let a = joined.a.within(Program::new("env")).to_string();
    let b = joined.b.within(Program::new("env")).to_string();
    for client in &CLIENTS {
        for &by in client.by {
            let name = format!("{}-{}", client.name, by.name());
            let body = |case: &mut Case| {
                let script = scripts.join(format!("{}.sh", client.name));
                // Root's scripts run outside, where they can install what they need, and put the programs in their
                // places.
                let program = match by {
                    By::Nobody => joined.a.within(nobody.script(&script)),
                    By::Root => root.script(&script).env("SERVER_IN", &a).env("CLIENT_IN", &a),
                    By::TwoHosts => root
                        .script(&script)
                        .env("SERVER_IN", &a)
                        .env("CLIENT_IN", &b)
                        .env("HOST", Joined::address(End::A, Family::V4))
                        .env("CLIENT_HOST", Joined::address(End::B, Family::V4)),
                };
                let cache = tree::target().join("clients").display().to_string();
                client
                    .run(case, if by == By::Nobody { program } else { program.env("CACHE", cache) })
            };
            match client.name == ON_REQUEST {
                true => cases.on_request(name, client.limit, body),
                false => cases.case(name, client.limit, body),
            }
        }
    }
    let _ = fs::remove_dir_all(&scripts);
    Ok(())
}

impl Client {
    fn run(&self, case: &mut Case, program: Program) -> Outcome {
        tools::need(self.needs)?;
        let output = case.run(&program)?;
        let last = output.lines().last().unwrap_or_default();
        match last.strip_prefix(&format!("{}: done, ", self.name)) {
            Some(checks) => {
                case.note(checks);
                Ok(())
            }
            None => Err("it does not say at its end that it is done".into()),
        }
    }
}
