//! Pipelines of real processes: what arrives, where, in which order; and that whatever happens is told and leaves nothing.

mod blamed;
mod chaos;
mod command;
mod config;
mod endings;
mod flow;
mod held;
mod known;
mod let_go;
mod misspelt;
mod nowhere;
mod odd;
mod order;
mod order_kills;
mod refused;
mod returned;
mod rnb;
mod room;
mod scenes;
mod stages;
mod told;
mod whole;

use std::process::ExitCode;

use integration_tests::tests;

fn main() -> ExitCode {
    use blamed::*;
    use chaos::*;
    use command::*;
    use config::*;
    use endings::*;
    use flow::*;
    use held::*;
    use known::*;
    use let_go::*;
    use misspelt::*;
    use nowhere::*;
    use odd::*;
    use order::*;
    use order_kills::*;
    use refused::*;
    use returned::*;
    use room::*;
    use told::*;
    use whole::*;
    let tests = tests![
        every_item_is_handled_once_among_replicas,
        values_travel_without_tensors,
        a_value_with_tensors_travels_beside_a_slot,
        an_input_may_have_several_outputs_or_none,
        segments_of_an_item_share_its_slot_and_come_together,
        each_output_goes_to_every_reader_where_that_is_wanted,
        outputs_go_to_the_queue_that_the_selector_says,
        order_is_restored_where_it_is_wanted,
        what_ended_steps_before_is_not_waited_for_in_order,
        what_was_reported_after_a_failure_is_passed_over_in_order,
        too_few_slots_to_restore_the_order_are_made_up_for,
        copies_for_every_reader_come_in_order_also_where_one_ends_its_own,
        what_went_into_a_batch_is_not_waited_for_in_order,
        more_outputs_of_an_item_are_not_waited_for_in_order,
        what_was_given_up_before_it_was_numbered_in_order_is_passed_over,
        killed_again_and_again_replicas_leave_their_items_in_order,
        killed_again_and_again_three_replicas_of_two_slots_leave_their_items_in_order,
        killed_again_and_again_replicas_leave_segments_in_order,
        killed_two_steps_before_processes_do_not_stop_what_is_put_in_order,
        killed_again_and_again_processes_do_not_stop_further_outputs_of_what_is_in_order,
        inputs_are_put_together_by_count_and_by_deadline,
        inputs_are_passed_on_without_a_copy,
        inputs_come_from_another_process_through_a_queue,
        inputs_that_come_at_random_are_counted_to_the_target,
        a_run_leaves_its_directory,
        a_full_queue_ends_the_run_where_that_is_the_policy,
        the_newest_or_the_oldest_is_dropped_where_that_is_the_policy,
        a_stage_that_loans_more_than_there_is_is_told,
        a_stage_that_keeps_more_than_there_is_is_told,
        a_knot_with_one_that_waits_for_room_and_one_that_idles_is_told,
        a_knot_whose_slots_wait_unread_is_told,
        who_is_stopped_before_it_lets_go_of_an_input_by_itself_is_in_no_knot,
        who_lets_go_of_inputs_on_threads_of_its_own_is_in_no_knot,
        who_is_stopped_while_a_thread_of_it_lets_go_of_an_input_is_in_no_knot,
        a_writer_that_is_stopped_while_its_slots_come_back_is_in_no_knot,
        what_a_stage_holds_is_not_lost_and_nothing_is_offered_in_its_place,
        who_lets_go_of_inputs_where_it_is_called_and_on_threads_is_in_no_knot,
        threads_that_were_there_before_the_stage_may_let_go_of_inputs_too,
        threads_of_one_that_waits_for_a_slot_of_its_own_hide_no_knot,
        a_client_that_drops_and_offers_again_hides_no_knot,
        what_a_process_had_when_it_failed_is_failed_in_its_counts_too,
        what_a_client_offered_before_it_panicked_is_counted,
        what_stages_keep_when_a_run_is_ended_is_unfinished,
        a_run_ends_at_its_limit_though_the_clients_iterator_does_not_come_back,
        segments_that_wait_as_copies_keep_no_slots_where_processes_may_be_replaced,
        what_a_stage_has_copied_is_delivered_again_as_a_copy,
        a_batch_whose_stage_fails_is_not_done,
        a_batch_without_a_slot_is_dropped_whole_but_for_the_last,
        what_a_thread_of_a_failing_stage_holds_is_not_done,
        what_a_thread_holds_of_a_stage_that_fails_in_its_end_is_not_done,
        what_another_thread_lets_go_of_in_a_call_is_done_only_with_it,
        a_thread_that_has_ended_hides_no_knot,
        what_a_thread_held_that_panicked_has_failed_and_its_slot_is_free,
        what_is_dropped_in_part_is_made_up_for_though_the_rest_is_held,
        what_can_be_known_not_to_work_is_refused,
        a_payload_or_a_result_of_another_type_is_refused,
        a_directory_with_a_run_is_left_as_it_is_and_no_two_runs_share_one,
        a_step_whose_processes_would_each_get_some_segments_only_is_refused,
        an_aggregator_of_another_number_of_segments_is_refused,
        what_never_comes_whole_has_failed_and_so_has_the_run,
        a_run_with_segments_that_were_dropped_on_purpose_has_not_failed,
        a_counted_run_that_can_not_reach_its_target_says_so_once_all_that_is_left_is_held,
        what_is_held_when_a_run_fails_is_not_finished,
        what_is_held_in_a_deadlock_is_not_finished,
        each_kind_of_failure_ends_the_run_with_its_cause,
        a_process_is_replaced_and_its_item_delivered_again,
        a_process_is_replaced_and_its_item_reported,
        a_crash_loop_ends_the_run,
        a_stage_that_hangs_ends_the_run_or_is_replaced,
        a_stage_that_fails_while_it_is_made_or_ends_ends_the_run_with_its_cause,
        a_stage_that_does_not_keep_to_its_own_shapes_is_told_which_they_are,
        a_thousand_slots_are_all_used_again_by_replicas,
        a_run_that_takes_too_long_or_is_stopped_says_so,
        a_step_that_has_had_enough_ends_those_before_it,
        configurations_as_rnb_ships_them_run_to_their_target,
        older_configurations_of_rnb_are_read_as_well,
        a_configuration_in_toml_runs_and_can_be_changed,
        what_cannot_run_is_told_with_step_group_and_key,
        values_that_make_no_sense_are_refused_in_few_words,
        a_misspelt_key_that_goes_to_a_stage_is_a_warning_with_what_was_meant,
        slots_for_which_there_is_no_room_are_refused_at_once,
        slots_for_which_the_arena_is_too_small_are_refused_at_once,
        tensors_that_do_not_fit_the_next_stage_are_refused,
        a_stage_that_publishes_whatever_comes_is_refused_as_the_last,
        clips_give_the_same_features_however_they_are_split,
        the_command_says_how_a_run_ended,
        what_is_odd_is_told_by_a_check_in_its_object_too,
        a_process_that_is_replaced_is_told_with_the_cause_while_it_runs_and_after,
        the_exit_code_is_the_same_where_nobody_can_be_told,
        a_hangup_ends_a_run_as_interrupted,
        ctrl_c_on_a_terminal_ends_a_run_as_interrupted,
        a_signal_that_a_program_of_its_own_hands_on_interrupts_its_run,
        a_signal_that_comes_while_a_run_starts_interrupts_it,
        a_process_that_gets_an_interrupt_interrupts_its_run,
        processes_say_of_which_step_they_are,
        a_first_step_that_waits_for_input_which_nobody_gives_is_told,
        what_ends_a_run_is_told_with_what_is_to_be_done,
        the_item_that_a_stage_fails_at_is_told,
        the_key_that_is_told_is_the_one_that_was_written,
        a_runs_report_of_batches_says_what_its_processes_say,
        killed_at_each_step_of_its_way_a_process_is_replaced_and_items_are_accounted_for,
        killed_at_random_processes_are_replaced_and_items_are_accounted_for,
        what_a_killed_process_took_with_it_is_made_up_for_by_another_input,
        what_waits_for_a_segment_that_was_killed_is_made_up_for_by_another_input,
        a_reader_that_has_had_enough_does_not_keep_the_others_from_theirs,
        a_process_that_is_killed_behind_its_end_is_not_missed,
        what_a_killed_process_sent_behind_another_that_is_slow_is_waited_for,
        while_what_a_killed_process_sent_is_waited_for_all_else_goes_on,
        a_slot_that_is_nowhere_is_made_anew_and_no_reason_for_a_deadlock,
    ];
    integration_tests::main_with_scenes(
        &tests,
        &tests![
            replaced_again_and_again,
            counted_though_one_is_lost,
            counted_though_a_segment_is_lost,
            killed_behind_its_end,
            killed_behind_one_that_sends,
            something_else_while_a_killed_process_is_waited_for,
            a_run_below_one_that_is_slow_to_bury,
            stopped_while_a_thread_lets_go
        ],
    )
}
