//! Build, stage, test and demonstrate ironverbs.
fn main() {}
