//! Random operations on a network with faults, against a model of what they do.
//!
//! A seed decides the operations, their sizes and flags, how late receives are posted, and every
//! fault of the network, of which there are 10 % of each kind. `IRONVERBS_SEEDS=n` runs n seeds,
//! `IRONVERBS_SEED=s` that one.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use crate::support::model::{Model, Setting};
use ironverbs_transport::qp::Counters;

const DEFAULT_SEEDS: u64 = 300;

#[test]
fn reliable_connections_keep_every_promise() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse().ok());
    if let Some(seed) = number("IRONVERBS_SEED") {
        run(seed, Setting::Clean);
        run(seed, Setting::Harsh);
        return;
    }
    let seeds = number("IRONVERBS_SEEDS").unwrap_or(DEFAULT_SEEDS);
    let mut clean = Counters::default();
    for seed in 0..DEFAULT_SEEDS.min(seeds) / 3 {
        add(&mut clean, run(seed, Setting::Clean));
    }
    // Not a packet is repeated without need.
    assert_eq!((clean.timeouts, clean.seq_naks_sent, clean.probes), (0, 0, 0));

    let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    let harsh = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|first| {
                scope.spawn(move || {
                    let mut sum = Counters::default();
                    let own = (first..seeds).step_by(threads as usize);
                    own.for_each(|seed| add(&mut sum, run(seed, Setting::Harsh)));
                    sum
                })
            })
            .collect();
        let mut sum = Counters::default();
        for worker in workers {
            let counters = worker.join().unwrap_or_else(|panic| resume_unwind(panic));
            add(&mut sum, [counters, Counters::default()]);
        }
        sum
    });
    // The faults did happen, and each way to recover was taken.
    for (what, count) in [
        ("retransmits", harsh.retransmits),
        ("probes", harsh.probes),
        ("RNR NAKs", harsh.rnr_naks_received),
        ("sequence NAKs", harsh.seq_naks_received),
        ("duplicates", harsh.duplicates),
        ("recoveries", harsh.recoveries),
    ] {
        assert!(count > seeds / 10, "{count} {what} in {seeds} seeds");
    }
}

fn add(sum: &mut Counters, sides: [Counters; 2]) {
    for counters in sides {
        sum.retransmits += counters.retransmits;
        sum.probes += counters.probes;
        sum.timeouts += counters.timeouts;
        sum.rnr_naks_received += counters.rnr_naks_received;
        sum.seq_naks_received += counters.seq_naks_received;
        sum.seq_naks_sent += counters.seq_naks_sent;
        sum.duplicates += counters.duplicates;
        sum.recoveries += counters.recoveries;
    }
}

fn run(seed: u64, setting: Setting) -> [Counters; 2] {
    catch_unwind(AssertUnwindSafe(|| Model::new(seed, setting).run())).unwrap_or_else(|panic| {
        eprintln!(
            "seed {seed} ({setting:?}); again with\n  \
             IRONVERBS_SEED={seed} cargo test -p ironverbs-transport model"
        );
        resume_unwind(panic)
    })
}
