//! Order restored behind steps that mix it up, leave items out, or make more of them.

use std::time::Duration;

use integration_tests::allow_leaks;
use tensormp::pipeline::{
    Backpressure, Client, Context, Delivery, Flow, Input, Output, Pipeline, Report, Stage,
    StageError, Step, TensorSpec, Unfinished,
};

use crate::flow::{client, see, seen};
use crate::scenes::{copy, load};
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

pub(crate) fn what_was_reported_after_a_failure_is_passed_over_in_order() {
    allow_leaks(8);
    for does in ["err", "die"] {
        let params = SeeParams {
            ms: 1,
            at: Some(5),
            does: does.to_owned(),
            ..SeeParams::default()
        };
        let copy = Step::of::<Copy>("copy", params);
        let report = Pipeline::new()
            .client(client(60))
            .step(load().slots(3))
            .step(copy.replicas(2).slots(2).restart(1, Unfinished::Report))
            .step(see().ordered())
            .run()
            .unwrap();
        let wanted = (0..60).filter(|&number| number != 5);
        let seen = in_order(&report);
        assert!(seen.iter().copied().eq(wanted), "{does}: {seen:?}");
        let items = report.items();
        assert_eq!((items.completed, items.failed, items.late), (59, 1, 0));
    }
}

fn load_some(skip: u64, more: u64) -> Step {
    let params = LoadParams {
        skip,
        more,
        ..LoadParams::default()
    };
    Step::of::<Load>("load", params)
}

pub(crate) fn what_ended_steps_before_is_not_waited_for_in_order() {
    for replicas in [1, 2] {
        let report = Pipeline::new()
            .client(client(100))
            .step(load_some(7, 0).slots(3))
            .step(copy().replicas(replicas).slots(3))
            .step(copy_again().slots(16))
            .step(see().ordered())
            .run()
            .unwrap();
        let seen = in_order(&report);
        let wanted = (0..100).filter(|number| number % 7 != 0);
        assert!(seen.iter().copied().eq(wanted), "{replicas}: {seen:?}");
    }
}

fn copy_again() -> Step {
    Step::of::<Copy>("copy again", SeeParams::default())
}

fn in_order(report: &Report) -> Vec<u64> {
    let numbers = seen(report, "see").remove(0);
    numbers.into_iter().map(|seen| seen.0).collect()
}

pub(crate) fn too_few_slots_to_restore_the_order_are_made_up_for() {
    let slow = SeeParams {
        ms: 1,
        ..SeeParams::default()
    };
    let load = |slow: u64| {
        let params = LoadParams {
            slow,
            ..LoadParams::default()
        };
        Step::of::<Load>("load", params)
    };
    for restarts in [0, 5] {
        // Nobody dies, and nothing is lost: what is kept back would use up all slots before what is waited for has come.
        let few = Pipeline::new()
            .client(client(100))
            .step(
                load(20)
                    .replicas(2)
                    .restart(restarts, Unfinished::Redeliver),
            )
            .step(copy().slots(2));
        let one = Pipeline::new()
            .client(client(300))
            .step(load(0).slots(6).restart(restarts, Unfinished::Redeliver))
            .step(Step::of::<Copy>("copy", slow.clone()).replicas(3).slots(6))
            .step(copy_again().slots(1));
        let segments = Pipeline::new()
            .client(client(100))
            .step(load(20).replicas(2).slots(3).segments(3))
            .step(copy().replicas(2).slots(1));
        for (pipeline, count, parts) in [(few, 100, 1), (one, 300, 1), (segments, 100, 3)] {
            let report = pipeline.step(see().ordered()).run().unwrap();
            let seen = in_order(&report);
            let wanted = (0..count).flat_map(|number| std::iter::repeat_n(number, parts));
            assert!(seen.iter().copied().eq(wanted), "{restarts}: {seen:?}");
            assert_eq!(report.items().late, 0);
        }
    }
}

/// Its first process copies, slowly; the others end all, or copy it at once.
struct OneOfMany {
    ends: bool,
    is_first: bool,
}

impl Stage for OneOfMany {
    type Params = bool;
    type Result = ();

    fn output_spec(_: &bool) -> Vec<TensorSpec> {
        Numbers::output_spec(&0)
    }

    fn new(ends: bool, context: &Context) -> Result<Self, StageError> {
        Ok(Self {
            ends,
            is_first: context.replica == 0,
        })
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        if self.is_first {
            std::thread::sleep(Duration::from_millis(2));
        } else if self.ends {
            return Ok(Flow::Continue);
        }
        let mut slot = output.loan()?;
        slot.tensor_mut::<u64>(0)?.copy_from_slice(input.tensor(0)?);
        slot.tensor_mut::<f32>(1)?.copy_from_slice(input.tensor(1)?);
        slot.set_sequence(input.sequence());
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

pub(crate) fn copies_for_every_reader_come_in_order_also_where_one_ends_its_own() {
    for ends in [false, true] {
        for restarts in [0, 3] {
            let params = LoadParams {
                slow: 20,
                ..LoadParams::default()
            };
            let load = Step::of::<Load>("load", params)
                .replicas(2)
                .delivery(Delivery::Every)
                .restart(restarts, Unfinished::Redeliver);
            let report = Pipeline::new()
                .client(client(60))
                .step(load)
                .step(Step::of::<OneOfMany>("copy", ends).replicas(3).slots(2))
                .step(copy_again().slots(2))
                .step(see().ordered())
                .run()
                .unwrap();
            let seen = in_order(&report);
            let times = if ends { 1 } else { 3 };
            let wanted = (0..60).flat_map(|number| std::iter::repeat_n(number, times));
            assert!(seen.iter().copied().eq(wanted), "{ends}: {seen:?}");
            assert_eq!((report.items().completed, report.items().late), (60, 0));
        }
    }
}

/// Puts two of three together, and passes on the third alone.
struct Pairs(Vec<Input>);

impl Stage for Pairs {
    type Params = ();
    type Result = ();

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        Numbers::output_spec(&0)
    }

    fn new((): (), _: &Context) -> Result<Self, StageError> {
        Ok(Self(Vec::new()))
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        match input.sequence() % 3 {
            0 => self.0.push(input),
            1 => {
                self.0.push(input);
                output.forward(std::mem::take(&mut self.0))?;
            }
            _ => output.forward(vec![input])?,
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

pub(crate) fn what_went_into_a_batch_is_not_waited_for_in_order() {
    let report = Pipeline::new()
        .client(client(60))
        .step(load().slots(4))
        .step(Step::of::<Pairs>("pairs", ()))
        .step(see().ordered())
        .run()
        .unwrap();
    let seen = in_order(&report);
    // A batch has the number of its first, and comes as it is made.
    let wanted = (0..60).filter(|number| number % 3 != 1);
    assert!(seen.iter().copied().eq(wanted), "{seen:?}");
}

pub(crate) fn more_outputs_of_an_item_are_not_waited_for_in_order() {
    let made = || {
        Pipeline::new()
            .client(client(60))
            .step(load_some(0, 2).slots(3))
    };
    // Also when they have been through another step.
    for pipeline in [made(), made().step(copy().slots(2))] {
        let report = pipeline.step(see().ordered()).run().unwrap();
        let seen = in_order(&report);
        assert!(seen.is_sorted(), "{seen:?}");
        assert_eq!(seen.len(), 180);
    }
}

pub(crate) fn what_was_given_up_before_it_was_numbered_in_order_is_passed_over() {
    // Nobody tells the ordered step of these: it keeps back what comes until nothing before it can come any more.
    for policy in [Backpressure::DropNewest, Backpressure::DropOldest] {
        let report = Pipeline::new()
            .client(Client::new(0..300).queue_size(4).backpressure(policy))
            .step(load().slots(3))
            .step(see().ordered())
            .run()
            .unwrap();
        let items = report.items();
        let seen = in_order(&report);
        assert!(seen.is_sorted(), "{seen:?}");
        assert_eq!(seen.len() as u64, items.completed);
        assert_eq!((items.completed + items.dropped, items.failed), (300, 0));
    }
}
