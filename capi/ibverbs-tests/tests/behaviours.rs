//! The behaviours that programs rely on, each as a C program of its own process.
//!
//! The programs are `c/*.c`; the cases below are theirs, and one test per program holds the two
//! lists together.

use std::path::Path;

use ironverbs_capi_ibverbs_tests::{on_library, text};

fn scratch() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn run(program: &Path, case: &str) {
    let output = on_library(program, scratch()).arg(case).output().expect("the program starts");
    assert!(output.status.success(), "{case}: {}", text(&output));
}

ironverbs_capi_ibverbs_tests::programs! {
    ironverbs_capi_ibverbs_tests::build_program, ironverbs_capi_ibverbs_tests::on_library, super::run;
    devices {
        list_ends_with_null
        no_device_is_an_empty_list
        wrong_configuration_is_an_error
        strings_of_a_device
        ten_thousand_lists
        device_outlives_its_list
        attributes
        ports_and_tables
        operations_that_are_lacking
        drivers_see_a_stranger
        fork_needs_nothing
        fork_that_starts_over
        list_from_before_a_fork
        reading_sysfs_files
        names_and_rates
    }
    kernel {
        devices_of_the_kernel_come_first
        without_a_driver_or_a_file
        soft_chooses
        a_driver_is_called
        a_driver_gets_what_it_lacks
        events_of_a_driver
        both_worlds
        wrong_drivers
    }
    queue_pairs {
        capability_above_the_limit
        granted_is_what_query_says
        types_that_are_lacking
        srq_makes_receive_sizes_void
        objects_in_use_are_busy
        state_machine
        posting_by_state
        reset_drops_completions
        full_queues
        lists_at_odd_addresses
        bad_request_in_a_list
        inline_data
        used_again_after_an_error
        last_wqe_with_an_srq
        destruction_in_every_state
    }
    completions {
        every_operation
        send_with_invalidate
        unsignaled_that_fails_completes
        receive_too_small
        receive_with_a_bad_key
        reasons_of_the_responder
        reasons_of_the_responder_by_wire
        remote_access_errors
        remote_access_errors_by_wire
        local_errors
        rnr_retries_end
        rnr_waits_for_ever
        peer_that_is_gone
        zero_length
        overrun_raises_cq_err
        resizing
        channel_events
        destroying_waits_for_acknowledgement
        asynchronous_fd
        draining_raises_an_event
        first_message_in_rtr
        fence_and_chains
        unreliable_connection
    }
    memory {
        contradicting_rights
        memory_that_is_not_there
        memory_taken_away
        faults_of_the_program
        offset_addresses
        registering_again
        region_of_eight_gigabytes
        message_of_many_megabytes
        shared_receives_and_their_limit
        srq_sizes
        datagrams_and_their_header
        datagrams_nobody_takes
        address_handles
        scattered_lists_of_many_packets
    }
    kinds {
        null_regions
        null_regions_by_wire
        null_region_of_another_domain
        device_memory
        device_memory_by_wire
        device_memory_asked_wrongly
        memory_on_demand
        memory_on_demand_by_wire
        advice_that_is_wrong
        files_as_regions
        objects_imported
        the_first_context_closes_first
        imports_asked_wrongly
        parent_domains
        queues_in_memory_of_the_program
        queues_in_memory_of_the_program_by_wire
        shared_receives_in_memory_of_the_program
        allocators_that_refuse
        domains_asked_wrongly
    }
    counters {
        by_operation
        by_operation_by_wire
        by_bytes
        by_bytes_by_wire
        errors_and_flushes
        errors_and_flushes_by_wire
        reads_refused
        reads_refused_by_wire
        instead_of_completions
        instead_of_completions_by_wire
        who_is_attached
        datagrams
        unreliable_and_shared
        of_another_process
        of_another_process_by_wire
        values
        asked_wrongly
    }
    newer {
        buffers
        regions_by_one_call
        asked_wrongly
    }
    windows {
        type_1
        type_1_by_wire
        type_2
        type_2_by_wire
        freed_while_bound
        freed_while_bound_by_wire
        asked_wrongly
        builders
    }
    objects {
        destroyed_before
        closed_with_everything_open
        copies
        overwritten_handles
        other_contexts
        null_pointers
        dead_address_handle
        ten_thousand_rounds
        destroyed_under_a_poller
    }
    extended {
        length_is_the_sum_of_the_list
        several_requests_at_once
        aborted_and_wrong_batches
        all_or_nothing
        operations_of_a_type
        writes_of_eight_bytes
        writes_of_eight_bytes_by_wire
        unknown_attributes
        polling_one_by_one
        polling_that_stops_early
        times_of_completions
        events_that_wait_for_more
        moderation_and_clocks
        overrun_that_is_ignored
        batches_of_two_threads
    }
    xrc {
        messages_to_shared_queues
        what_is_asked_wrongly
        opened_again
        the_domain_of_a_file
    }
    multicast {
        members_hear_and_others_do_not
        a_sender_may_be_deaf_to_itself
        wrong_addresses_and_limits
    }
    raw {
        frames_both_ways
        builders_and_neighbours
        flows_in_order
        tags_and_counters
        spread_over_queues
        asked_wrongly
        without_the_right
        errors_and_flushes
        frames_of_the_kernel
        frames_wait_for_receives
        the_device_goes
        left_behind
    }
    removal {
        told_flushed_and_released
        who_sits_in_a_call_comes_back
    }
    cancel {
        who_waits
        who_works
        who_works_by_wire
    }
    forks {
        local
        wire
    }
    old {
        queries
        connection
        datagrams
    }
}

// Names that the distribution's library lacks.
ironverbs_capi_ibverbs_tests::programs! {
    ironverbs_capi_ibverbs_tests::build_program_on_ours, ironverbs_capi_ibverbs_tests::on_library, super::run;
    subnet {
        what_reachable_refuses
        what_registrations_refuse
        a_killed_process
        processes_that_come_and_go
        groups_come_and_go
    }
}
