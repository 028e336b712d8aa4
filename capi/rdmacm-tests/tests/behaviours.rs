//! The behaviours that programs rely on, each as a C program of its own process.
//!
//! The programs are `c/*.c`; the cases below are theirs, and one test per program holds the two
//! lists together.

use std::path::Path;

use ironverbs_capi_ibverbs_tests::text;
use ironverbs_capi_rdmacm_tests::on_libraries;

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

ironverbs_capi_ibverbs_tests::programs! {
    ironverbs_capi_rdmacm_tests::build_program, ironverbs_capi_rdmacm_tests::on_libraries, super::run;
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
