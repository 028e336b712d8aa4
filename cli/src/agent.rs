//! `ironverbs agent`: a member of the host's group that stays.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use serde_json::json;

use crate::verbs::{Config, Host};

/// Stays, so that the group of this user's processes does.
///
/// Programs find each other without it. With it the UDP port stays this user's when no program runs, programs start
/// faster, and somebody notices at once when the last of them dies. It runs in the foreground until SIGTERM or SIGINT
/// and needs no privilege; one for each user and network namespace is enough. On InfiniBand links its host is seen as long
/// as it runs, and like any process with a device it may manage the subnet.
#[derive(clap::Args)]
pub(crate) struct AgentArgs {
    /// Print the line that says it is ready as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &AgentArgs) -> Result<(), String> {
    let mut end = signals().map_err(|e| format!("cannot wait for signals: {e}"))?;
    let host =
        Host::start(Config::load().map_err(|e| e.to_string())?).map_err(|e| e.to_string())?;
    host.enroll().map_err(|e| e.to_string())?;
    if let Some(why) = host.wire_problem() {
        return Err(why);
    }
    let (pid, port) = (std::process::id(), host.config().udp_port.value);
    let slot = host.members().iter().find(|member| member.pid == pid).map(|member| member.slot);
    if args.json {
        say!("{}", json!({ "ready": true, "pid": pid, "slot": slot, "udp_port": port }));
    } else {
        let slot = slot.map_or_else(|| "?".to_owned(), |slot| slot.to_string());
        say!("ready: pid {pid}, slot {slot}, UDP port {port}");
    }
    // Whoever waits for the line may read a pipe.
    io::stdout().flush().map_err(|e| e.to_string())?;
    // The Host's own thread does all the work.
    loop {
        match end.read(&mut [0]) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e.to_string()),
            Ok(_) => return Ok(()),
        }
    }
}

/// Readable when it is time to end.
fn signals() -> io::Result<UnixStream> {
    let (reader, writer) = UnixStream::pair()?;
    for signal in [signal_hook::consts::SIGTERM, signal_hook::consts::SIGINT] {
        signal_hook::low_level::pipe::register(signal, writer.try_clone()?)?;
    }
    Ok(reader)
}
