//! The settings that are one of a few words.

/// Declares an enum and the word in files and variables that stands for each of its values.
macro_rules! choice {
    ($(#[$about:meta])* $name:ident { $($(#[$each:meta])* $value:ident = $word:literal,)+ }) => {
        $(#[$about])*
        #[derive(Copy, Clone, Debug, PartialEq, Eq)]
        pub enum $name {
            $($(#[$each])* $value,)+
        }

        impl $name {
            pub(super) fn parse(word: &str) -> Option<$name> {
                match word {
                    $($word => Some($name::$value),)+
                    _ => None,
                }
            }

            /// The word that stands for it in a file.
            pub fn as_str(self) -> &'static str {
                match self {
                    $($name::$value => $word,)+
                }
            }
        }
    };
}

choice! {
    /// Which devices a program sees (`soft`).
    Soft {
        /// The kernel's devices, then ours.
        Also = "also",
        /// Ours only.
        Only = "only",
        /// The kernel's only.
        Off = "off",
    }
}

choice! {
    /// What drives devices of the kernel for which this library has a data path (`kernel_driver`).
    KernelDriver {
        /// The library's own.
        Own = "own",
        /// A plug-in of rdma-core, as for all other devices of the kernel.
        PlugIn = "plugin",
    }
}

choice! {
    /// On whose device a connection manager's id lives where an address is on a device of the kernel and on one of ours
    /// (`prefer`).
    Prefer {
        /// The kernel's.
        Kernel = "kernel",
        /// Ours.
        Software = "software",
    }
}

choice! {
    /// How data reaches a peer on the same host (`path`).
    DataPath {
        /// The best that the peer allows.
        Auto = "auto",
        /// RoCEv2 packets, to every peer.
        Wire = "wire",
    }
}

choice! {
    /// Whether an initiator carries out WRITEs, READs and atomics to a peer on the same host by itself (`onesided`).
    OneSided {
        /// In the best way that the peer allows.
        Auto = "auto",
        /// Only by having the kernel copy, within a process, too: to compare, and for tests.
        Kernel = "kernel",
        /// No: the peer's process does it, from packets.
        Off = "off",
    }
}

choice! {
    /// What kind of links the devices have (`link_layer`).
    Links {
        /// Ethernet: RoCEv2, addressed by IP addresses.
        Ethernet = "Ethernet",
        /// InfiniBand: one subnet of the hosts that the configuration lists, addressed by LIDs.
        InfiniBand = "InfiniBand",
    }
}
