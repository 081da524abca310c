//! Order restored behind steps that mix it up, leave items out, or make more of them.

use integration_tests::allow_leaks;
use tensormp::pipeline::{Backpressure, Client, Pipeline, Step, Termination};

use crate::flow::{client, see, seen};
use crate::stages::*;

pub(crate) fn order_is_restored_where_it_is_wanted() {
    let params = LoadParams {
        skip: 7,
        ..LoadParams::default()
    };
    let report = Pipeline::new()
        .client(client(200))
        .step(
            Step::of::<Load>("load", params)
                .replicas(3)
                .slots(2)
                .segments(2),
        )
        .step(see().ordered())
        .run()
        .unwrap();
    let seen = seen(&report, "see").remove(0);
    let wanted = (0..200).filter(|number| number % 7 != 0);
    let wanted = wanted.flat_map(|number| [(number, 0), (number, 1)]);
    assert!(
        seen.into_iter()
            .map(|(number, _, part)| (number, part))
            .eq(wanted)
    );
}

fn load(skip: u64, more: u64) -> Step {
    let params = LoadParams {
        skip,
        more,
        ..LoadParams::default()
    };
    Step::of::<Load>("load", params)
}

fn copy() -> Step {
    Step::of::<Copy>("copy", SeeParams::default())
}

pub(crate) fn what_ended_steps_before_is_not_waited_for_in_order() {
    for replicas in [1, 2] {
        let report = Pipeline::new()
            .client(client(100))
            .step(load(7, 0).slots(3))
            .step(copy().replicas(replicas).slots(3))
            .step(copy_again().slots(16))
            .step(see().ordered())
            .run()
            .unwrap();
        let seen = seen(&report, "see").remove(0);
        let wanted = (0..100).filter(|number| number % 7 != 0);
        let seen: Vec<u64> = seen.into_iter().map(|seen| seen.0).collect();
        assert!(seen.iter().copied().eq(wanted), "{replicas}: {seen:?}");
    }
}

fn copy_again() -> Step {
    Step::of::<Copy>("copy again", SeeParams::default())
}

pub(crate) fn too_few_slots_to_restore_the_order_are_told() {
    allow_leaks(8);
    let slow = SeeParams {
        ms: 1,
        ..SeeParams::default()
    };
    let report = Pipeline::new()
        .client(client(500))
        .step(Step::of::<Load>("load", LoadParams::default()).slots(6))
        .step(Step::of::<Copy>("copy", slow).replicas(3).slots(6))
        .step(copy_again().slots(1))
        .step(see().ordered())
        .start()
        .unwrap()
        .wait();
    // Whether anything overtakes is chance.
    if let Some(error) = report.error() {
        let text = error.to_string();
        assert_eq!(report.termination(), Termination::Deadlock, "{text}");
        assert!(text.contains("more slots"), "{text}");
    }
}

pub(crate) fn more_outputs_of_an_item_are_not_waited_for_in_order() {
    let made = || Pipeline::new().client(client(60)).step(load(0, 2).slots(3));
    // Also when they have been through another step.
    for pipeline in [made(), made().step(copy().slots(2))] {
        let report = pipeline.step(see().ordered()).run().unwrap();
        let seen: Vec<u64> = seen(&report, "see")
            .remove(0)
            .into_iter()
            .map(|seen| seen.0)
            .collect();
        assert!(seen.is_sorted(), "{seen:?}");
        assert_eq!(seen.len(), 180);
    }
}

pub(crate) fn what_was_given_up_before_it_was_numbered_in_order_is_passed_over() {
    // Nobody tells the ordered step of these: it keeps back what comes until nothing before it can come any more.
    for policy in [Backpressure::DropNewest, Backpressure::DropOldest] {
        let report = Pipeline::new()
            .client(Client::new(0..300).queue_size(4).backpressure(policy))
            .step(load(0, 0).slots(3))
            .step(see().ordered())
            .run()
            .unwrap();
        let items = report.items();
        let seen: Vec<u64> = seen(&report, "see")
            .remove(0)
            .into_iter()
            .map(|seen| seen.0)
            .collect();
        assert!(seen.is_sorted(), "{seen:?}");
        assert_eq!(seen.len() as u64, items.completed);
        assert_eq!((items.completed + items.dropped, items.failed), (300, 0));
    }
}
