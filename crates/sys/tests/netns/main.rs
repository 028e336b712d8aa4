//! What needs interfaces of its own: every test makes network namespaces, joined by a veth pair
//! where it takes two. That needs root; without it these tests fail and say so.

mod capture;
mod link;
mod namespace;
mod netlink;
mod udp;

use std::time::Duration;

/// Longer than anything here takes.
const WATCHDOG: Duration = Duration::from_secs(20);
