//! Memory of many connected queue pairs.

use ironverbs_soft::{Config, Host};

use crate::Outcome;
use crate::ours::End;

const QPS: usize = 1_000;

/// Tells how many MiB the process holds with 1,000 QPs connected in pairs.
pub(crate) fn measure() -> Outcome {
    let host = Host::start(Config::default())?;
    let first = End::new(&host)?;
    let gid = first.context.gid(1, 0)?.gid;
    let mut ends = vec![first];
    for _ in 1..QPS {
        ends.push(End::new(&host)?);
    }
    for i in 0..QPS {
        let peer = ends[i ^ 1].qp.qpn();
        ends[i].connect(gid, peer)?;
    }
    println!("figure {}", resident()? as f64 / 1024.0);
    Ok(())
}

/// KiB resident.
fn resident() -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).ok_or("no VmRSS")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
