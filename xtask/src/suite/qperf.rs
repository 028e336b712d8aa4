//! The distribution's qperf. Each of its tests takes a second and next to no work, so several run at a time, each in a
//! namespace of its own.

use super::{Cases, seconds};
use crate::netns::Namespace;
use crate::pair::{self, User};
use crate::process::{Outcome, Program};
use crate::suite::case::Case;

/// TCP port of its server.
const PORT: u16 = 19765;

/// How many tests at a time.
const AT_ONCE: usize = 4;

/// Tests of reliable connections: with `-cm 1` it connects these by the connection manager.
const CONNECTED: [&str; 12] = [
    "rc_bw",
    "rc_bi_bw",
    "rc_lat",
    "rc_rdma_read_bw",
    "rc_rdma_read_lat",
    "rc_rdma_write_bw",
    "rc_rdma_write_lat",
    "rc_rdma_write_poll_lat",
    "rc_compare_swap_mr",
    "rc_fetch_add_mr",
    "ver_rc_compare_swap",
    "ver_rc_fetch_add",
];

/// Its others. It knows their peers by LID alone, without a GRH, so they are for InfiniBand links.
const BY_LID: [&str; 9] = [
    "uc_bw",
    "uc_bi_bw",
    "uc_lat",
    "uc_rdma_write_bw",
    "uc_rdma_write_lat",
    "uc_rdma_write_poll_lat",
    "ud_bw",
    "ud_bi_bw",
    "ud_lat",
];

/// Those that the connection manager connects.
pub(super) fn connected(cases: &mut Cases<'_>, users: &[(&str, &User)]) -> Outcome {
    let way = Way { options: &["-cm", "1"], variables: &[] };
    run(cases, users, &way, CONNECTED.chunks(AT_ONCE))
}

/// All, by LID.
pub(super) fn by_lid(cases: &mut Cases<'_>, users: &[(&str, &User)]) -> Outcome {
    let way = Way { options: &[], variables: &[("IRONVERBS_LINK_LAYER", "InfiniBand")] };
    run(cases, users, &way, CONNECTED.chunks(AT_ONCE).chain(BY_LID.chunks(AT_ONCE)))
}

/// How it is told to find its peer.
struct Way {
    options: &'static [&'static str],
    variables: &'static [(&'static str, &'static str)],
}

fn run<'a>(
    cases: &mut Cases<'_>,
    users: &[(&str, &User)],
    way: &Way,
    groups: impl Iterator<Item = &'a [&'a str]> + Clone,
) -> Outcome {
    let places = (0..AT_ONCE).map(|_| Namespace::new()).collect::<Outcome<Vec<_>>>()?;
    for (name, user) in users {
        for tests in groups.clone() {
            let first = tests.first().copied().unwrap_or_default();
            cases.case(format!("qperf-{first}-and-more-{name}"), seconds(90), |case| {
                together(case, user, way, &places, tests)
            });
        }
    }
    Ok(())
}

fn together(
    case: &mut Case,
    user: &User,
    way: &Way,
    places: &[Namespace],
    tests: &[&str],
) -> Outcome {
    let qperf = |place: &Namespace| {
        let set = |program: Program, (name, value): &(&str, &str)| program.env(name, *value);
        place.within(way.variables.iter().fold(user.runs("qperf"), set))
    };
    let mut servers = Vec::new();
    for (place, _) in places.iter().zip(tests) {
        servers.push(case.start(&qperf(place))?);
    }
    for server in &mut servers {
        pair::wait_for_listener(server, PORT, case.deadline())?;
    }
    let mut clients = Vec::new();
    for (place, test) in places.iter().zip(tests) {
        let client = qperf(place).args(["-t", "1"]).args(way.options).args(["127.0.0.1", test]);
        clients.push((test, case.start(&client)?));
    }
    for (test, client) in clients {
        let output = client.wait(case.deadline())?.success()?.output;
        if !output.contains(&format!("{test}:")) {
            return Err(format!("{test} shows no result").into());
        }
    }
    Ok(())
}
