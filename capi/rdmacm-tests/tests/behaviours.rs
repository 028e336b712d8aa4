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
        newer_names
    }
    wrong {
        nothing_given
        addresses_of_another_kind
        out_of_turn
        kinds_that_do_not_fit
        options_out_of_bounds
        private_data_too_long
        groups
        endpoints_that_cannot_be
    }
    connections {
        a_message_arrives
        resources_are_swapped
        a_receiver_that_is_late
        too_many_resources
        private_data
        refusals
        without_a_queue_pair
        datagrams
        destruction_waits_for_acknowledgements
        destruction_says_what_it_waits_for
        refusal_of_options
        cancelled_in_a_wait
        a_signal_in_a_wait
        a_client_that_is_gone
        a_reader_on_its_way_back
        a_thousand_rounds
    }
    gids {
        connections
        paths
        wrong_paths
        wrong_addresses
        ip_listener_refuses
        names
        endpoints
    }
}

/// The same, where a GID is no IP address.
#[test]
fn gids_of_infiniband_links() {
    let program = ironverbs_capi_rdmacm_tests::build_program("gids", scratch());
    for case in [
        "connections",
        "paths",
        "wrong_paths",
        "wrong_addresses",
        "ip_listener_refuses",
        "endpoints",
    ] {
        let mut command = on_libraries(&program, scratch());
        let command = command.arg(case).env("IRONVERBS_LINK_LAYER", "InfiniBand");
        let output = command.output().expect("the program starts");
        assert!(output.status.success(), "{case}: {}", text(&output));
    }
}

#[test]
fn who_waits_for_acknowledgements_says_so() {
    let program = ironverbs_capi_rdmacm_tests::build_program("connections", scratch());
    let mut command = on_libraries(&program, scratch());
    let command = command.arg("destruction_says_what_it_waits_for").env("IRONVERBS_EXPLAIN", "1");
    let output = command.output().expect("the program starts");
    assert!(output.status.success(), "{}", text(&output));
    let said = String::from_utf8_lossy(&output.stderr);
    for part in ["rdma_destroy_id of id 1 (Tcp", "RDMA_CM_EVENT_ADDR_RESOLVED"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}
