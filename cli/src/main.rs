//! The ironverbs command.
fn main() {}
