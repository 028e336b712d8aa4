//! What the machine was doing meanwhile.

use std::fs;

/// Steal and total time at the start.
pub(crate) struct Machine {
    steal: u64,
    total: u64,
}

impl Machine {
    pub(crate) fn start() -> Machine {
        let (steal, total) = times();
        Machine { steal, total }
    }

    /// A line with processor, load, and the share of time the hypervisor took.
    pub(crate) fn describe(&self) -> String {
        let (steal, total) = times();
        let share = 100.0 * (steal - self.steal) as f64 / (total - self.total).max(1) as f64;
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let name =
            cpu.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or(" unknown");
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or("?");
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        let name = name.trim_start_matches([' ', '\t', ':']);
        format!("{name}, {cores} cores; load {load}, steal {share:.1}%\n")
    }
}

fn times() -> (u64, u64) {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    let first = stat.lines().next().unwrap_or_default();
    let times: Vec<u64> = first.split_whitespace().skip(1).filter_map(|n| n.parse().ok()).collect();
    (times.get(7).copied().unwrap_or(0), times.iter().take(8).sum())
}
