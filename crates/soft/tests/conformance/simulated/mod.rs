//! What only a network that does as it is told can show: faults from a seed, and packets of strangers.

mod connections;
mod hostile;
mod unreliable;
mod weather;

/// Seeds that the random runs go through: the one of `IRONVERBS_SEED`, as many as `IRONVERBS_SEEDS` says, or a
/// hundred.
pub(crate) fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| {
        let text = std::env::var(name).ok()?;
        Some(text.parse::<u64>().unwrap_or_else(|e| panic!("{name} is {text}: {e}")))
    };
    match number("IRONVERBS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("IRONVERBS_SEEDS").unwrap_or(100),
    }
}
