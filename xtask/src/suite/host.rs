//! Several processes on one host.

use super::{Cases, seconds};
use crate::netns::{End, Family, Joined, Namespace};
use crate::pair::{self, Kind, Pingpong, Place, User};
use crate::process::{Outcome, Program};
use crate::tree;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

const PAIR_LIMIT: Duration = seconds(60);

/// The users that everything runs as.
pub(super) fn users() -> Outcome<[(&'static str, User); 2]> {
    Ok([("root", User::own()), ("nobody", User::nobody()?)])
}

pub(super) fn devices(cases: &mut Cases<'_>) -> Outcome {
    let joined = Joined::new(1500)?;
    let alone = Namespace::new()?;
    for (user_name, user) in &users()? {
        for (place, namespace) in [("veth", &joined.a), ("loopback", &alone)] {
            let name = |what: &str| format!("{what}-{place}-{user_name}");
            let runs = |program: &str| namespace.within(user.runs(program));
            cases.case(name("ibv_devices"), seconds(30), |case| {
                let output = case.run(&runs("ibv_devices"))?;
                expect(&output, &["iron0"])
            });
            cases.case(name("ibv_devinfo"), seconds(30), |case| {
                let output = case.run(&runs("ibv_devinfo").arg("-v"))?;
                expect(&output, &["iron0", "PORT_ACTIVE", "link_layer:", "Ethernet", "RoCE v2"])?;
                if output
                    .lines()
                    .any(|line| line.contains("node_guid:") && line.contains("0000:0000:0000:0000"))
                {
                    return Err("the node GUID is zero".into());
                }
                Ok(())
            });
            cases.case(name("ironverbs-info"), seconds(30), |case| {
                let program = namespace.within(user.command().args(["info", "--json"]));
                expect(&case.run(&program)?, &["iron0"])
            });
            cases.case(name("ibv_asyncwatch"), seconds(30), |case| {
                watch(case, runs("stdbuf").args(["-oL", "ibv_asyncwatch"]), namespace)
            });
        }
    }
    Ok(())
}

/// An event reaches the program: an address goes and comes back, so the GID table changes.
fn watch(case: &mut super::Case, program: Program, namespace: &Namespace) -> Outcome {
    const EXTRA: &str = "10.67.0.9/24";
    let mut watcher = case.start(&program)?;
    watcher.wait_until("its async event FD", case.deadline(), |running| {
        running.output().contains("async event FD")
    })?;
    let interface = if namespace.ip(["link", "show", "veth0"]).is_ok() { "veth0" } else { "lo" };
    namespace.ip(["address", "add", EXTRA, "dev", interface])?;
    let outcome = watcher.wait_until("GID_CHANGE", case.deadline(), |running| {
        running.output().to_lowercase().contains("gid")
    });
    namespace.ip(["address", "delete", EXTRA, "dev", interface])?;
    outcome
}

fn expect(output: &str, words: &[&str]) -> Outcome {
    match words.iter().find(|word| !output.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(format!("the output lacks {word:?}").into()),
    }
}

pub(super) fn pingpongs(cases: &mut Cases<'_>) -> Outcome {
    let joined = Joined::new(1500)?;
    let own = Joined::address(End::A, Family::V4);
    let place = Place { namespace: &joined.a, gid_index: 0 };
    let [root, nobody] = users()?;
    let wire = ("root-by-wire", User::own().on_path("wire"));
    for (user_name, user) in &[root, nobody, wire] {
        for (host_name, host) in [("127.0.0.1", "127.0.0.1"), ("own-address", own)] {
            for pingpong in Pingpong::matrix() {
                let name = format!("{}-{host_name}-{user_name}", pingpong.name());
                cases.case(name, PAIR_LIMIT, |case| {
                    pair::run(case, pingpong, user, &place, &place, host)
                });
            }
        }
        cases.case(format!("ten-pairs-{user_name}"), seconds(120), |case| {
            ten_pairs(case, user, &place)
        });
    }
    let alone = Namespace::new()?;
    for (user_name, user) in &users()? {
        cases.case(format!("sandbox-{user_name}"), PAIR_LIMIT, |case| {
            sandbox(case, user, &alone, false)
        });
    }
    cases.case("sandbox-nobody-no-ptrace", PAIR_LIMIT, |case| {
        sandbox(case, &User::nobody()?, &alone, true)
    });
    let place = Place { namespace: &alone, gid_index: 0 };
    for kind in Kind::ALL {
        let pingpong = Pingpong::new(kind, 1024, false);
        cases.case(format!("{}-loopback-only", pingpong.name()), PAIR_LIMIT, |case| {
            pair::run(case, pingpong, &User::own(), &place, &place, "127.0.0.1")
        });
    }
    Ok(())
}

/// Pairs in a PID namespace of their own, as in a container. `hidden`: of programs that are not readable, whose memory
/// the kernel lets no other process of the user touch, so that shared memory alone carries everything.
fn sandbox(case: &mut super::Case, user: &User, namespace: &Namespace, hidden: bool) -> Outcome {
    let directory = std::env::temp_dir().join(format!("ironverbs-sandbox-{}", std::process::id()));
    fs::create_dir_all(&directory)?;
    let shown = directory.join("sandbox.sh");
    fs::copy(tree::root().join("tests/sandbox.sh"), &shown)?;
    if hidden {
        for name in ["ibv_rc_pingpong", "ibv_srq_pingpong", "ib_send_bw", "ib_write_lat"] {
            let copy = directory.join(name);
            fs::copy(Path::new("/usr/bin").join(name), &copy)?;
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o711))?;
        }
    }
    let path = format!("{}:{}", directory.display(), std::env::var("PATH").unwrap_or_default());
    let program = user.script(&shown).env("PATH", &path);
    let program = program.under(["unshare", "--pid", "--fork", "--mount-proc"]);
    let outcome = case.run(&namespace.within(program));
    let _ = fs::remove_dir_all(&directory);
    expect(&outcome?, &["sandbox: done"])
}

/// Ten pairs at once, of every kind.
fn ten_pairs(case: &mut super::Case, user: &User, place: &Place<'_>) -> Outcome {
    let pairs: Vec<_> = Kind::ALL
        .into_iter()
        .cycle()
        .take(10)
        .zip(18600..)
        .map(|(kind, port)| {
            // Sleeping, as twenty pollers on two cores would only wait for their turns.
            let mut pingpong = Pingpong::new(kind, 1024, true);
            pingpong.port = port;
            pingpong.rounds = if kind == Kind::Srq { 20 } else { 200 };
            pingpong
        })
        .collect();
    let mut sides = Vec::new();
    for &pingpong in &pairs {
        sides.push(pair::serve(case, pingpong, user, place)?);
    }
    for &pingpong in &pairs {
        sides.push(pair::connect(case, pingpong, user, place, "127.0.0.1")?);
    }
    sides.into_iter().try_for_each(|side| pair::finish(case, side))
}
