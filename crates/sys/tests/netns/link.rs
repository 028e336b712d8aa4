//! Two namespaces and a cable.

use std::time::{Duration, Instant};

use ironverbs_sys::netlink::{Interface, interfaces};

use crate::WATCHDOG;
use crate::namespace::Namespace;

/// Namespaces `a` and `b`, whose interfaces `v` are the two ends of a veth pair.
pub(crate) struct Link {
    pub(crate) a: Namespace,
    pub(crate) b: Namespace,
}

pub(crate) const A4: &str = "10.77.0.1";
pub(crate) const B4: &str = "10.77.0.2";
pub(crate) const A6: &str = "fd77::1";
pub(crate) const B6: &str = "fd77::2";
pub(crate) const A_LOCAL: &str = "fe80::a";
pub(crate) const B_LOCAL: &str = "fe80::b";

impl Link {
    /// Both ends are up, with addresses of every kind and an MTU of 4200.
    pub(crate) fn new() -> Self {
        let (a, b) = (Namespace::new(), Namespace::new());
        a.ip(&format!("link add v type veth peer name v netns {}", b.name));
        for (end, v4, v6, local) in [(&a, A4, A6, A_LOCAL), (&b, B4, B6, B_LOCAL)] {
            end.ip("link set v addrgenmode none mtu 4200");
            end.ip(&format!("addr add {v4}/24 dev v"));
            end.ip(&format!("addr add {v6}/64 dev v nodad"));
            end.ip(&format!("addr add {local}/64 dev v nodad"));
            end.ip("link set v up");
        }
        wait_until_up(&a);
        wait_until_up(&b);
        Self { a, b }
    }

    /// Has the kernel of end `a` split batches before they reach the cable, as before an adapter
    /// that cannot; a veth passes them whole.
    pub(crate) fn split_batches(&self) {
        self.a.ip("link set v gso_max_segs 1");
    }
}

/// The interface `v` of a namespace.
pub(crate) fn interface(namespace: &Namespace) -> Interface {
    let all = namespace.run(|| interfaces().unwrap());
    all.into_iter().find(|i| i.name == "v").unwrap()
}

/// Waits until what is sent by `v` is no longer dropped.
pub(crate) fn wait_until_up(namespace: &Namespace) {
    let end = Instant::now() + WATCHDOG;
    while !interface(namespace).up {
        assert!(Instant::now() < end, "v does not come up");
        std::thread::sleep(Duration::from_millis(5));
    }
}
