//! What must do no harm: killed processes, a taken port, a wrong configuration.

use super::{Cases, seconds};
use crate::netns::{End, Family, Joined};
use crate::pair::{self, Kind, Pingpong, Place, User};
use crate::process::{Outcome, Program, Running};
use crate::suite::case::Case;
use std::fs;

/// Exchanges that no test waits for.
const ENDLESS: u32 = 100_000_000;

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let joined = Joined::new(1500)?;
    let user = User::own();
    let place = Place { namespace: &joined.a, gid_index: 0 };
    // Indices into the programs in the order they start: server, client, server, client, …
    for (name, victims) in [
        ("kill-first", &[0][..]),
        ("kill-client", &[3]),
        ("kill-several", &[0, 2, 5]),
        ("kill-all", &[0, 1, 2, 3, 4, 5]),
    ] {
        cases.case(name, seconds(120), |case| kill(case, &user, &place, victims));
    }
    cases.case("kill-on-the-wire", seconds(120), |case| kill_remote(case, &user, &joined));
    cases.case("port-taken", seconds(60), |case| port_taken(case, &user, &place));
    cases.case("wrong-variable", seconds(60), |case| {
        let program = place.namespace.within(user.runs("ibv_devices"));
        let program = program.env("IRONVERBS_SOFT", "perhaps");
        names(case, &program, &["IRONVERBS_SOFT", "perhaps"])
    });
    cases.case("wrong-file", seconds(60), |case| {
        let file = case.file("toml");
        fs::write(&file, "soft = \"perhaps\"\n")?;
        let file = file.display().to_string();
        let program = place.namespace.within(user.runs("ibv_devices"));
        names(case, &program.env("IRONVERBS_CONFIG", &file), &[&file, "soft", "perhaps"])
    });
    Ok(())
}

/// Six programs of three pairs; `victims` are killed; their peers fail, the others go on, and a new
/// pair works.
fn kill(case: &mut Case, user: &User, place: &Place<'_>, victims: &[usize]) -> Outcome {
    let mut programs = Vec::new();
    for port in 18700..18703 {
        // Events, so that six programs share two cores fairly.
        let endless = Pingpong { rounds: ENDLESS, port, ..Pingpong::new(Kind::Rc, 4096, true) };
        let server = pair::serve(case, endless, user, place)?;
        let mut client = pair::connect(case, endless, user, place, "127.0.0.1")?;
        wait_for_peer(case, &mut client)?;
        programs.extend([Some(server), Some(client)]);
    }
    // That they exchange anything shows only in the time they then run.
    std::thread::sleep(seconds(1));
    for &victim in victims {
        let program = programs.get_mut(victim).and_then(Option::take);
        let program = program.ok_or("no such victim")?;
        program.signal("KILL")?;
        drop(program);
    }
    // The next program runs as if nothing had been.
    let next = Pingpong { port: 18710, ..Pingpong::new(Kind::Rc, 4096, false) };
    pair::run(case, next, user, place, place, "127.0.0.1")?;
    for index in 0..programs.len() {
        let peer_died = victims.contains(&(index ^ 1));
        let Some(program) = programs.get_mut(index).and_then(Option::take) else { continue };
        if peer_died {
            fails(case, program)?;
        } else {
            still_runs(program)?;
        }
    }
    Ok(())
}

fn kill_remote(case: &mut Case, user: &User, joined: &Joined) -> Outcome {
    let server = Place { namespace: joined.end(End::A), gid_index: 0 };
    let client = Place { namespace: joined.end(End::B), gid_index: 0 };
    let endless = Pingpong { rounds: ENDLESS, ..Pingpong::new(Kind::Rc, 4096, false) };
    let survivor = pair::serve(case, endless, user, &server)?;
    let host = Joined::address(End::A, Family::V4);
    let mut victim = pair::connect(case, endless, user, &client, host)?;
    wait_for_peer(case, &mut victim)?;
    std::thread::sleep(seconds(1));
    victim.signal("KILL")?;
    drop(victim);
    fails(case, survivor)?;
    let next = Pingpong::new(Kind::Rc, 4096, false);
    pair::run(case, next, user, &server, &client, host)
}

/// Waits until a client knows its peer; it sends from then on.
fn wait_for_peer(case: &Case, client: &mut Running) -> Outcome {
    client.wait_until("the remote address", case.deadline(), |client| {
        // Standard output to a file is written late; the listener's socket is gone at once.
        client.output().contains("remote address") || connected(client)
    })
}

fn connected(client: &Running) -> bool {
    // The client's TCP connection, by which the two met, is over: established is state 01.
    let table = fs::read_to_string(format!("/proc/{}/net/tcp", client.pid()));
    table.is_ok_and(|table| {
        let state = |line: &str| line.split_whitespace().nth(3).map(str::to_owned);
        !table.lines().any(|line| state(line).as_deref() == Some("01"))
    })
}

/// The peer of a dead process ends by itself, with an error completion.
fn fails(case: &Case, program: Running) -> Outcome {
    let finished = program.wait(case.deadline())?;
    if finished.status.success() {
        return Err("the peer of a killed process succeeded".into());
    }
    finished.says("Failed status").map(drop)
}

fn still_runs(mut program: Running) -> Outcome {
    let mut looks = 0;
    program.wait_until("a second look", std::time::Instant::now() + seconds(10), |_| {
        looks += 1;
        looks > 1
    })
}

/// UDP 4791 in another program's hands: the port is down and a line says whose they are.
fn port_taken(case: &mut Case, user: &User, place: &Place<'_>) -> Outcome {
    let script = "import socket, time\n\
        s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\n\
        s.bind(('0.0.0.0', 4791))\n\
        print('bound', flush=True)\n\
        time.sleep(600)";
    let holder = Program::new("/usr/bin/python3").args(["-c", script]);
    let mut holder = case.start(&place.namespace.within(holder))?;
    holder.wait_until("the bound port", case.deadline(), |holder| {
        holder.output().contains("bound")
    })?;
    let devinfo = place.namespace.within(user.runs("ibv_devinfo"));
    let output = case.run(&devinfo)?;
    for word in ["PORT_DOWN", "4791", "python3", &holder.pid().to_string()] {
        if !output.contains(word) {
            return Err(format!("ibv_devinfo does not say {word:?}").into());
        }
    }
    drop(holder);
    let output = case.run(&devinfo)?;
    if output.contains("PORT_ACTIVE") { Ok(()) } else { Err("the port stays down".into()) }
}

/// The output names each of `words`.
fn names(case: &mut Case, program: &Program, words: &[&str]) -> Outcome {
    let output = case.start(program)?.wait(case.deadline())?.output;
    // The command itself is not part of what the program said.
    match words.iter().find(|word| !output.contains(**word)) {
        None => Ok(()),
        Some(word) => Err(format!("the complaint does not name {word}").into()),
    }
}
