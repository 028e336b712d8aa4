//! The behaviours that programs rely on, each as a C program of its own process.
//!
//! The programs are `c/*.c`; the cases below are theirs, and one test per program holds the two
//! lists together.

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use ironverbs_capi_ibverbs_tests::text;
use ironverbs_capi_rdmacm_tests::{build_program, on_libraries};

fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn run(program: &Path, case: &str) {
    // From process to process, and between sockets.
    for path in ["local", "wire"] {
        let mut command = on_libraries(program, scratch());
        if path == "wire" {
            command.env("IRONVERBS_PATH", path);
        }
        let output = command.arg(case).output().expect("the program starts");
        assert!(output.status.success(), "{case}, {path}: {}", text(&output));
    }
}

macro_rules! programs {
    ($($name:ident { $($case:ident)* })*) => {$(
        mod $name {
            use super::*;

            fn program() -> &'static Path {
                static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
                PROGRAM.get_or_init(|| build_program(stringify!($name), scratch()))
            }

            #[test]
            fn every_case_is_a_test() {
                let output = on_libraries(program(), scratch()).arg("--list").output();
                let output = output.expect("the program starts");
                let listed = String::from_utf8_lossy(&output.stdout);
                let ours = [$(stringify!($case)),*];
                assert_eq!(listed.lines().collect::<Vec<_>>(), ours);
            }

            $(
                #[test]
                fn $case() {
                    run(program(), stringify!($case));
                }
            )*
        }
    )*};
}

programs! {
    ids {
        no_device
        devices_are_shared_with_ids
        channels_are_descriptors
        ports
        options
        link_local_without_scope
        synchronous_ids
        names_to_addresses
        names_of_events
        endpoints
    }
    connections {
        a_message_arrives
        resources_are_swapped
        too_many_resources
        private_data
        refusals
        without_a_queue_pair
        datagrams
        destruction_waits_for_acknowledgements
        a_thousand_rounds
    }
}
