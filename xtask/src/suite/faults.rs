//! What must do no harm: killed processes, a taken port, a wrong configuration.

use super::{Cases, seconds};
use crate::netns::{End, Family, Joined};
use crate::pair::{self, Kind, Pingpong, Place, User};
use crate::process::{Outcome, Program, Running};
use crate::suite::case::Case;
use std::fs;

/// Pairs whose programs are killed.
const PAIRS: u16 = 3;

pub(super) fn run(cases: &mut Cases<'_>) -> Outcome {
    let joined = Joined::new(1500)?;
    let user = User::own();
    let place = Place { namespace: &joined.a, gid_index: 0 };
    // The first server is also the first process of the host.
    let kills: [(&str, &[usize]); 4] = [
        ("kill-first", &[0]),
        ("kill-last", &[2]),
        ("kill-several", &[0, 1]),
        ("kill-all", &[0, 1, 2]),
    ];
    for (path, user) in [("auto", User::own()), ("wire", User::own().on_path("wire"))] {
        for (name, victims) in kills {
            cases.case(format!("{name}-{path}"), seconds(120), |case| {
                kill_servers(case, &user, &place, victims)
            });
        }
        cases.case(format!("kill-clients-{path}"), seconds(120), |case| {
            kill_clients(case, &user, &place)
        });
    }
    cases.case("kill-remote", seconds(120), |case| kill_remote(case, &user, &joined));
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

/// perftest's endless stream of WRITEs: its client has requests outstanding at any time, its server
/// none ever.
struct Stream {
    server: Running,
    client: Running,
}

impl Stream {
    fn start(
        case: &mut Case,
        user: &User,
        port: u16,
        server: &Place<'_>,
        client: &Place<'_>,
        host: &str,
    ) -> Outcome<Stream> {
        let program = |place: &Place<'_>| {
            let program = user.runs("ib_write_bw").args(["-F", "--run_infinitely", "-s", "4096"]);
            let program =
                program.args(["-x", &place.gid_index.to_string(), "-p", &port.to_string()]);
            // Its reports are the sign that data flows.
            program.args(["-D", "1"])
        };
        let mut listening = case.start(&server.namespace.within(program(server)))?;
        pair::wait_for_listener(&mut listening, port, case.deadline())?;
        let connecting = program(client).arg(host);
        let connecting = case.start(&client.namespace.within(connecting))?;
        Ok(Stream { server: listening, client: connecting })
    }

    /// Waits until WRITEs have completed.
    fn flows(&mut self, case: &Case) -> Outcome {
        self.client.wait_until("WRITEs", case.deadline(), |client| {
            // Its report: size, count and three rates.
            client.output().lines().any(|line| line.trim_start().starts_with("4096 "))
        })
    }

    /// The client of a dead server ends by itself, with an error completion.
    fn fails(self, case: &Case) -> Outcome {
        let finished = self.client.wait(case.deadline())?;
        if finished.status.success() {
            return Err("the client of a killed server succeeded".into());
        }
        finished.says("Failed status 12").map(drop)
    }
}

fn streams(case: &mut Case, user: &User, place: &Place<'_>) -> Outcome<Vec<Stream>> {
    let mut streams = Vec::new();
    for port in 18700..18700 + PAIRS {
        streams.push(Stream::start(case, user, port, place, place, "127.0.0.1")?);
    }
    streams.iter_mut().try_for_each(|stream| stream.flows(case))?;
    Ok(streams)
}

/// The next program runs as if nothing had been.
fn next_runs(case: &mut Case, user: &User, place: &Place<'_>) -> Outcome {
    let next = Pingpong { port: 18710, ..Pingpong::new(Kind::Rc, 4096, false) };
    pair::run(case, next, user, place, place, "127.0.0.1")
}

/// `victims` of three servers are killed: their clients fail, the others go on, a new pair works.
fn kill_servers(case: &mut Case, user: &User, place: &Place<'_>, victims: &[usize]) -> Outcome {
    let streams = streams(case, user, place)?;
    for &victim in victims {
        streams.get(victim).ok_or("no such victim")?.server.signal("KILL")?;
    }
    next_runs(case, user, place)?;
    for (index, stream) in streams.into_iter().enumerate() {
        if victims.contains(&index) {
            stream.fails(case)?;
        } else {
            still_runs(stream.client)?;
        }
    }
    // Of three streams nothing is left.
    next_runs(case, user, place)
}

/// Clients are killed in the middle of their requests.
fn kill_clients(case: &mut Case, user: &User, place: &Place<'_>) -> Outcome {
    let streams = streams(case, user, place)?;
    for stream in streams.iter().skip(1) {
        stream.client.signal("KILL")?;
    }
    next_runs(case, user, place)?;
    let first = streams.into_iter().next().ok_or("no stream")?;
    still_runs(first.client)
}

fn kill_remote(case: &mut Case, user: &User, joined: &Joined) -> Outcome {
    let server = Place { namespace: joined.end(End::A), gid_index: 0 };
    let client = Place { namespace: joined.end(End::B), gid_index: 0 };
    let host = Joined::address(End::A, Family::V4);
    let mut stream = Stream::start(case, user, 18700, &server, &client, host)?;
    stream.flows(case)?;
    stream.server.signal("KILL")?;
    stream.fails(case)?;
    pair::run(case, Pingpong::new(Kind::Rc, 4096, false), user, &server, &client, host)
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
