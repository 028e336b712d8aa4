//! The programs that people run on RDMA: the scripts in `tests/clients`, each on one host and between two.

use super::{Cases, seconds};
use crate::netns::{End, Family, Joined};
use crate::process::{Outcome, Program};
use crate::suite::case::Case;
use crate::suite::host;
use crate::tools::{self, Tool};
use crate::tree;
use std::fs;
use std::path::Path;
use std::time::Duration;

/// One of the scripts.
struct Client {
    name: &'static str,
    needs: &'static [Tool],
    /// Has two sides that may be on two hosts.
    sides: bool,
    limit: Duration,
}

const CLIENTS: [Client; 4] = [
    Client { name: "ucx", needs: &[tools::UCX], sides: true, limit: seconds(240) },
    Client {
        name: "openmpi",
        needs: &[tools::OPENMPI, tools::OPENMPI_HEADERS, tools::CC],
        sides: true,
        limit: seconds(180),
    },
    Client { name: "libfabric", needs: &[tools::LIBFABRIC], sides: true, limit: seconds(120) },
    Client { name: "fio", needs: &[tools::FIO], sides: true, limit: seconds(120) },
];

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let joined = Joined::new(1500)?;
    // In a place that everybody can read, which the source tree may not be.
    let scripts = std::env::temp_dir().join(format!("ironverbs-clients-{}", std::process::id()));
    Program::new("cp")
        .arg("-r")
        .arg(tree::root().join("tests/clients").display())
        .arg(scripts.display())
        .read()?;
    let [(root_name, root), (nobody_name, nobody)] = host::users()?;
    for client in &CLIENTS {
        for (name, user) in [(root_name, &root), (nobody_name, &nobody)] {
            cases.case(format!("{}-{name}", client.name), client.limit, |case| {
                client.run(case, joined.a.within(user.script(&client.script(&scripts))))
            });
        }
        if client.sides {
            cases.case(format!("{}-two-hosts", client.name), client.limit, |case| {
                let place = |end: End| joined.end(end).within(Program::new("env")).to_string();
                let program = root
                    .script(&client.script(&scripts))
                    .env("SERVER_IN", place(End::A))
                    .env("CLIENT_IN", place(End::B))
                    .env("HOST", Joined::address(End::A, Family::V4))
                    .env("CLIENT_HOST", Joined::address(End::B, Family::V4));
                client.run(case, program)
            });
        }
    }
    let _ = fs::remove_dir_all(&scripts);
    Ok(())
}

impl Client {
    fn script(&self, scripts: &Path) -> std::path::PathBuf {
        scripts.join(format!("{}.sh", self.name))
    }

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
