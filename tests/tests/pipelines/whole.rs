//! Items that were divided are whole again in one process, or it is told that they can't be, or were not. And what ends with a
//! run that is ended early is not finished.

use integration_tests::allow_leaks;
use serde::{Deserialize, Serialize};
use tensormp::pipeline::stages::{Aggregator, AggregatorParams, Batcher, BatcherParams};
use tensormp::pipeline::{
    Client, Context, Delivery, ErrorKind, Flow, Input, Output, Pipeline, QueueGroup, Report,
    Segments, Stage, StageError, Step, TensorSpec, Termination, Unfinished,
};

use crate::flow::{OddEven, client, numbers, see};
use crate::scenes::{copy, load};
use crate::stages::*;

fn aggregator(aggregate: Option<u32>) -> Step {
    Step::of::<Aggregator>("join", AggregatorParams { aggregate })
}

fn pipeline(steps: impl IntoIterator<Item = Step>) -> Pipeline {
    let start = Pipeline::new().client(client(9));
    steps.into_iter().fold(start, Pipeline::step)
}

fn adds_up(report: &Report) {
    let items = report.items();
    let known = items.completed + items.dropped + items.failed + items.unfinished;
    assert_eq!(items.offered, known, "{items:?}");
}

/// The same as [`Aggregator`] for what can be known of it: needs all segments.
struct Needs;

impl Stage for Needs {
    type Params = ();
    type Result = ();

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn needs_segments(_: &()) -> Segments {
        Segments::All
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, _: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

pub(crate) fn a_step_whose_processes_would_each_get_some_segments_only_is_refused() {
    let refused = |steps: Vec<Step>, words: &[&str]| {
        let told = pipeline(steps).check().unwrap_err().to_string();
        for word in words {
            assert!(told.contains(word), "{told}");
        }
    };
    let can_run = |steps: Vec<Step>| pipeline(steps).check().unwrap();
    let divided = || load().segments(2);

    let words = [r#"step "join", devices"#, r#"step "load""#, "2 processes"];
    refused(
        vec![divided(), copy(), aggregator(None).replicas(2)],
        &words,
    );
    let words = [r#"step "needs", devices"#, "Needs waits for all segments"];
    let needs = || Step::of::<Needs>("needs", ());
    refused(vec![divided(), needs().replicas(3)], &words);
    // A copy of each may go into another queue than the other's.
    let join = |queue| QueueGroup::of::<Aggregator>(AggregatorParams::default()).in_queue(queue);
    let joins = || Step::new("join").group(join(0)).group(join(1));
    let load_group = || QueueGroup::of::<Load>(LoadParams::default());
    let copy_group = || QueueGroup::of::<Copy>(SeeParams::default());
    let copies = Step::new("copy").group(copy_group().out_queues([0, 1]));
    refused(
        vec![divided(), copies, joins()],
        &["in_queue", "queue group 0"],
    );

    can_run(vec![divided(), copy().replicas(2), aggregator(None)]);
    can_run(vec![load(), needs().replicas(3)]);
    // All segments of an item go into one queue together.
    let both = || {
        Step::new("load")
            .group(load_group().out_queues([0, 1]))
            .segments(2)
    };
    can_run(vec![both(), joins()]);
    let ways = Step::new("copy")
        .group(copy_group().in_queue(0).out_queues([0]))
        .group(copy_group().in_queue(1).out_queues([1]));
    can_run(vec![both(), ways, joins()]);
    // Each gets all.
    let every = copy().delivery(Delivery::Every);
    can_run(vec![divided(), every, aggregator(None).replicas(2)]);
    // Copies of each segment that come to the same place are too many.
    let every = || load().segments(2);
    let to_all = copy().delivery(Delivery::Every);
    let again = || Step::of::<Copy>("again", SeeParams::default());
    refused(
        vec![
            every(),
            to_all.clone(),
            again().replicas(2),
            aggregator(None),
        ],
        &[r#"step "join", stage"#, "2 copies", r#"step "copy""#],
    );
    can_run(vec![every(), to_all, again(), aggregator(None)]);
    // A selector of the user's may know which belong together, and a batch is a new item.
    let chosen = QueueGroup::selecting::<Copy, OddEven>(SeeParams::default());
    let chosen = Step::new("copy").group(chosen.out_queues([0, 1]));
    can_run(vec![divided(), chosen, joins()]);
    let batcher = |batch| {
        let params = BatcherParams {
            batch,
            ..BatcherParams::default()
        };
        Step::of::<Batcher>("batch", params)
    };
    can_run(vec![divided(), batcher(2), needs().replicas(2)]);
    refused(
        vec![divided(), batcher(1), needs().replicas(2)],
        &["2 processes"],
    );
    // What was made whole may be shared out.
    can_run(vec![divided(), aggregator(None), needs().replicas(2)]);
}

pub(crate) fn an_aggregator_of_another_number_of_segments_is_refused() {
    let refused = |steps: Vec<Step>, words: &str| {
        let told = pipeline(steps).check().unwrap_err().to_string();
        assert!(told.contains(words), "{told}");
    };
    let three = || aggregator(Some(3));
    let divided = |name: &str| Step::of::<Copy>(name, SeeParams::default()).segments(2);
    refused(
        vec![load().segments(2), three()],
        r#"step "join", stage: Aggregator waits for 3 segments of each item, but they come in 2 here (segments, step "load")"#,
    );
    refused(vec![load(), three()], "whole here");
    refused(
        vec![load().segments(2), divided("copy"), three()],
        "one of these here: [2, 4]",
    );
    let whole = Step::of::<Aggregator>("whole", AggregatorParams::default());
    refused(
        vec![load().segments(3), whole, copy(), three()],
        "whole here",
    );
    for steps in [
        vec![load().segments(3), copy(), three()],
        vec![load().segments(3), three()],
        vec![load().segments(2), divided("copy"), aggregator(Some(4))],
    ] {
        pipeline(steps).check().unwrap();
    }
}

/// Makes nothing of the last segment of every third item.
#[derive(Serialize, Deserialize)]
struct Third;

impl Stage for Third {
    type Params = ();
    type Result = ();

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        Numbers::output_spec(&0)
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        if input.part().0 > 0 && input.sequence().is_multiple_of(3) {
            return Ok(Flow::Continue);
        }
        output.forward(vec![input])?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

pub(crate) fn what_never_comes_whole_has_failed_and_so_has_the_run() {
    let third = Step::of::<Third>("third", ());
    let report = pipeline([load().segments(2), third, aggregator(None), see()])
        .start()
        .unwrap()
        .wait();
    let items = report.items();
    assert_eq!((items.completed, items.failed), (6, 3), "{items:?}");
    assert_eq!(report.termination(), Termination::Failed);
    let error = report.error().unwrap();
    assert_eq!(*error.kind(), ErrorKind::Incomplete);
    let told = error.to_string();
    assert!(
        told.contains(r#"3 items never came whole: "join""#),
        "{told}"
    );
    let counts = report.processes()[2].counts();
    assert_eq!((counts.taken, counts.done, counts.incomplete), (15, 12, 3));
    assert_eq!(report.results::<Aggregator>("join").unwrap(), [(6, 3)]);
    adds_up(&report);
}

pub(crate) fn a_run_with_segments_that_were_dropped_on_purpose_has_not_failed() {
    allow_leaks(8);
    // Reported, with a segment: the other one waits in vain.
    let params = SeeParams {
        at: Some(4),
        does: "err".to_owned(),
        ..SeeParams::default()
    };
    let copy = Step::of::<Copy>("copy", params).restart(1, Unfinished::Report);
    let report = pipeline([load().segments(2), copy, aggregator(None), see()])
        .run()
        .unwrap();
    let items = report.items();
    assert_eq!((items.completed, items.failed), (8, 1), "{items:?}");
    let others = (0..9).filter(|&number| number != 4);
    assert!(numbers(&report, "see").into_iter().eq(others));
    adds_up(&report);
}

/// Keeps first segments until it has so many, and passes them on, and what is left at its end. Its first process is killed when
/// it has that many.
struct Collects {
    first: bool,
    held: Vec<Input>,
}

/// More than can be delivered again.
const COLLECTED: usize = 21;
const AGAIN: usize = 16;

impl Stage for Collects {
    type Params = ();
    type Result = ();

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        Numbers::output_spec(&0)
    }

    fn new(_: (), context: &Context) -> Result<Self, StageError> {
        let first = context.restarts == 0;
        let held = Vec::new();
        Ok(Self { first, held })
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        if input.part().0 > 0 {
            output.forward(vec![input])?;
            return Ok(Flow::Continue);
        }
        self.held.push(input);
        if self.held.len() == COLLECTED {
            if self.first {
                mishap("die")?;
            }
            for input in self.held.drain(..) {
                output.forward(vec![input])?;
            }
        }
        Ok(Flow::Continue)
    }

    fn finish(self, output: &mut Output) -> Result<(), StageError> {
        for input in self.held {
            output.forward(vec![input])?;
        }
        Ok(())
    }
}

pub(crate) fn a_counted_run_that_can_not_reach_its_target_says_so_once_all_that_is_left_is_held() {
    allow_leaks(16);
    let again = |step: Step| step.restart(1, Unfinished::Redeliver);
    let run = |count: u64, steps: Vec<Step>| {
        let start = Pipeline::new().client(Client::new(0_u64..).count(count));
        let report = steps.into_iter().fold(start, Pipeline::step);
        report.start().unwrap().wait()
    };
    let says = |report: &Report, (offered, completed, failed): (u64, u64, u64), words: &[&str]| {
        let items = report.items();
        let came_to = (items.offered, items.completed, items.failed);
        assert_eq!(came_to, (offered, completed, failed), "{items:?}");
        assert_eq!(report.termination(), Termination::Failed);
        let error = report.error().unwrap();
        assert_eq!(*error.kind(), ErrorKind::Incomplete);
        for word in words {
            assert!(error.to_string().contains(word), "{error}");
        }
        assert_eq!(
            report.results::<Aggregator>("join").unwrap(),
            [(completed, failed)]
        );
        assert_eq!(numbers(report, "see").len() as u64, completed);
        adds_up(report);
    };

    // What a process held beyond what can be delivered again is lost with it, and is more than is made up for.
    let lost = (COLLECTED - AGAIN) as u64;
    let collects = again(Step::of::<Collects>("collects", ()));
    let load = || load().slots(64).segments(2);
    let report = run(40, vec![load(), collects, aggregator(None), see()]);
    assert_eq!(report.items().redelivered, AGAIN as u64);
    let words = [
        "37 inputs were finished, and not 40",
        "went with processes that were killed",
    ];
    says(&report, (42, 42 - lost, lost), &words);

    // A stage makes nothing of some segments, and one process was killed for another reason: so much is made up for as that
    // may have taken with it, and no more.
    let params = SeeParams {
        at: Some(4),
        does: "die".to_owned(),
        ..SeeParams::default()
    };
    let copy = again(Step::of::<Copy>("copy", params));
    let third = Step::of::<Third>("third", ());
    let report = run(
        9,
        vec![load(), copy.slots(64), third, aggregator(None), see()],
    );
    let words = [
        "7 inputs were finished, and not 9",
        "4 items never came whole",
        "a stage before made nothing",
    ];
    says(&report, (11, 7, 4), &words);
}

/// Keeps what it gets, and publishes it at the end: no run that is ended early comes to that.
struct Hoard(Vec<Input>, bool);

impl Stage for Hoard {
    /// Whether it errs then.
    type Params = bool;
    type Result = ();

    fn output_spec(_: &bool) -> Vec<TensorSpec> {
        Numbers::output_spec(&0)
    }

    fn new(errs: bool, _: &Context) -> Result<Self, StageError> {
        Ok(Self(Vec::new(), errs))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        self.0.extend(input);
        Ok(Flow::Continue)
    }

    fn finish(self, output: &mut Output) -> Result<(), StageError> {
        if self.1 {
            return Err("it can't finish".into());
        }
        for input in self.0 {
            output.forward(vec![input])?;
        }
        Ok(())
    }
}

pub(crate) fn what_is_held_when_a_run_fails_is_not_finished() {
    allow_leaks(8);
    for does in ["err", "panic", "die"] {
        let params = SeeParams {
            at: Some(7),
            does: does.to_owned(),
            ..SeeParams::default()
        };
        let copy = Step::of::<Copy>("copy", params);
        let hoard = Step::of::<Hoard>("hoard", false);
        let report = pipeline([load().slots(9), copy.slots(9), hoard, see()])
            .start()
            .unwrap()
            .wait();
        assert_eq!(report.termination(), Termination::Failed, "{does}");
        let told = report.error().unwrap().to_string();
        assert!(told.contains("copy"), "{told}");
        let items = report.items();
        assert_eq!((items.completed, items.failed), (0, 1), "{does} {items:?}");
        adds_up(&report);
    }
    let hoard = Step::of::<Hoard>("hoard", true);
    let report = pipeline([load().slots(9), hoard, see()]);
    let report = report.start().unwrap().wait();
    assert_eq!(report.termination(), Termination::Failed);
    let items = report.items();
    assert_eq!((items.completed, items.failed), (0, 9), "{items:?}");
    adds_up(&report);
}

pub(crate) fn what_is_held_in_a_deadlock_is_not_finished() {
    let params = BatcherParams {
        batch: 16,
        ..BatcherParams::default()
    };
    for _ in 0..4 {
        let batcher = Step::of::<Batcher>("batch", params.clone());
        let start = Pipeline::new().client(client(40));
        let steps = [load(), batcher, Step::of::<Rows>("rows", None)];
        let report = steps.into_iter().fold(start, Pipeline::step);
        let report = report.start().unwrap().wait();
        assert_eq!(report.termination(), Termination::Deadlock);
        assert_eq!(report.items().completed, 0);
        adds_up(&report);
    }
}
