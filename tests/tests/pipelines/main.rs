//! Pipelines of real processes: what arrives, where, in which order; and that whatever happens is told and leaves nothing.

mod chaos;
mod command;
mod config;
mod endings;
mod flow;
mod odd;
mod order;
mod order_kills;
mod rnb;
mod stages;

use std::process::ExitCode;

use integration_tests::tests;

fn main() -> ExitCode {
    use chaos::*;
    use command::*;
    use config::*;
    use endings::*;
    use flow::*;
    use odd::*;
    use order::*;
    use order_kills::*;
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
        too_few_slots_to_restore_the_order_are_told,
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
        slots_for_which_there_is_no_room_are_refused_at_once,
        tensors_that_do_not_fit_the_next_stage_are_refused,
        clips_give_the_same_features_however_they_are_split,
        the_command_says_how_a_run_ended,
        ctrl_c_on_a_terminal_ends_a_run_as_interrupted,
        killed_at_each_step_of_its_way_a_process_is_replaced_and_items_are_accounted_for,
        killed_at_random_processes_are_replaced_and_items_are_accounted_for,
        what_a_killed_process_took_with_it_is_made_up_for_by_another_input,
        a_reader_that_has_had_enough_does_not_keep_the_others_from_theirs,
    ];
    integration_tests::main_with_scenes(
        &tests,
        &tests![replaced_again_and_again, counted_though_one_is_lost],
    )
}
