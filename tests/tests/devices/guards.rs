//! The guards are what keeps the promises: without one, the test of its promise fails.

use integration_tests::{Test, play, tests};

pub(crate) const TESTS: &[Test] = &tests![each_guard_that_is_left_out_is_missed_by_a_test,];

fn each_guard_that_is_left_out_is_missed_by_a_test() {
    // On a real card nothing tells that a guard was missed.
    crate::support::machine().only_emulated();
    for (guard, test) in [
        ("ordering", "a_receiver_sees_what_a_slow_stream_wrote"),
        (
            "release",
            "memory_is_not_used_again_before_a_slow_reader_is_done",
        ),
        ("lease", "a_producer_may_drop_what_it_sent"),
        (
            "resend",
            "a_received_tensor_is_sent_on_and_its_memory_stays",
        ),
        (
            "same-process",
            "put_and_get_in_one_process_gives_the_original",
        ),
        (
            "ordering",
            "tensors_of_one_message_on_several_streams_are_each_in_order",
        ),
        (
            "joint",
            "an_event_of_many_is_not_used_again_while_a_message_speaks_of_it",
        ),
        (
            "copy",
            "a_copy_through_the_host_ends_where_the_tensor_is_written_again",
        ),
        ("lost", "a_stream_is_not_made_to_wait_for_one_that_is_lost"),
        (
            "refusal",
            "what_would_stay_behind_work_of_the_dead_is_not_sent",
        ),
        (
            "done",
            "an_event_recorded_anew_is_no_doubt_of_who_recorded_it_before_and_ended_in_peace",
        ),
        (
            "kept",
            "memory_with_work_behind_the_dead_is_not_used_again_while_its_reader_lives",
        ),
        (
            "since",
            "what_was_recorded_before_a_stream_came_to_wait_for_the_dead_is_not_lost",
        ),
        (
            "grace",
            "work_of_a_killed_process_is_not_told_gone_within_its_time",
        ),
        (
            "company",
            "what_would_stay_behind_another_blocking_stream_is_not_sent",
        ),
        (
            "device",
            "devices_travel_by_what_they_are_called_everywhere",
        ),
    ] {
        let outcome = play(test).env("CUDA_IPC_SABOTAGE", guard).output().unwrap();
        let said = String::from_utf8_lossy(&outcome.stderr);
        assert!(
            !outcome.status.success(),
            "without the guard `{guard}`, {test} is green all the same: {said}"
        );
        assert!(said.contains("panicked"), "{guard}: {said}");
    }
}
