//! What stages let go of when: copies of inputs that they keep, whole batches when they fail, or when there is no slot for
//! one.

use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use integration_tests::allow_leaks;
use tensormp::pipeline::stages::{Aggregator, AggregatorParams, Batcher, BatcherParams};
use tensormp::pipeline::{
    Backpressure, Client, Context, Flow, Input, Output, Pipeline, Report, Stage, StageError, Step,
    TensorSpec, Termination, Unfinished,
};

use crate::flow::{client, numbers, see};
use crate::scenes::{copy, load};
use crate::stages::*;

fn batcher(batch: usize) -> Step {
    let params = BatcherParams {
        batch,
        ..BatcherParams::default()
    };
    Step::of::<Batcher>("batch", params)
}

fn aggregator() -> Step {
    Step::of::<Aggregator>("join", AggregatorParams::default())
}

fn adds_up(report: &Report) {
    let items = report.items();
    let known = items.completed + items.dropped + items.failed + items.unfinished;
    assert_eq!(items.offered, known, "{items:?}");
}

pub(crate) fn segments_that_wait_as_copies_keep_no_slots_where_processes_may_be_replaced() {
    let again = |step: Step| step.restart(1, Unfinished::Redeliver);
    let report = Pipeline::new()
        .client(client(40))
        .step(again(load().slots(2).segments(2)))
        // One slot: the second segment of an item needs that of the first.
        .step(again(copy().slots(1)))
        .step(again(aggregator()))
        .step(see())
        .run()
        .unwrap();
    assert!(numbers(&report, "see").into_iter().eq(0..40));
    assert_eq!(report.items().completed, 40);
}

/// Copies each input that it gets and keeps three; its first process ends, or errs, when it has them.
struct Threes {
    params: SeeParams,
    kept: Vec<Input>,
    seen: Vec<(u64, usize, u32)>,
    first: bool,
}

impl Stage for Threes {
    type Params = SeeParams;
    type Result = Vec<(u64, usize, u32)>;

    fn output_spec(_: &SeeParams) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(params: SeeParams, context: &Context) -> Result<Self, StageError> {
        Ok(Self {
            params,
            kept: Vec::new(),
            seen: Vec::new(),
            first: context.restarts == 0,
        })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let Some(mut input) = input else {
            return Ok(Flow::End);
        };
        if self.params.keep > 0 {
            input.detach()?;
        }
        self.kept.push(input);
        if self.kept.len() < 3 {
            return Ok(Flow::Continue);
        }
        let three = std::mem::take(&mut self.kept);
        if self.first {
            if let Some(does) = self.params.does.strip_prefix("thread: ") {
                std::thread::scope(|scope| {
                    scope.spawn(move || drop(three));
                });
                mishap(does)?;
                return Ok(Flow::Continue);
            }
            mishap(&self.params.does)?;
        }
        for one in three {
            check(&one, 0);
            self.seen.push((one.sequence(), one.shape(0)?[0], 0));
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<Self::Result, StageError> {
        Ok(self.seen)
    }
}

fn threes(does: &str, copies: bool) -> Step {
    let params = SeeParams {
        does: does.to_owned(),
        keep: usize::from(copies),
        ..SeeParams::default()
    };
    Step::of::<Threes>("threes", params)
}

fn saw(report: &Report) -> Vec<u64> {
    let seen = report.results::<Threes>("threes").unwrap().concat();
    let mut numbers: Vec<u64> = seen.into_iter().map(|(number, ..)| number).collect();
    numbers.sort_unstable();
    numbers
}

pub(crate) fn what_a_stage_has_copied_is_delivered_again_as_a_copy() {
    allow_leaks(8);
    for does in ["die", "err", "panic"] {
        let report = Pipeline::new()
            .client(client(9))
            .step(load().slots(1))
            .step(threes(does, true).restart(1, Unfinished::Redeliver))
            .run()
            .unwrap();
        assert!(saw(&report).into_iter().eq(0..9), "{does}");
        let items = report.items();
        assert_eq!((items.completed, items.redelivered), (9, 3), "{does}");
    }
}

pub(crate) fn a_batch_whose_stage_fails_is_not_done() {
    allow_leaks(8);
    let pipeline = |step: Step| {
        Pipeline::new()
            .client(client(9))
            .step(load().slots(4))
            .step(step)
    };
    let again = |unfinished| pipeline(threes("err", false).restart(1, unfinished)).run();
    let report = again(Unfinished::Redeliver).unwrap();
    assert!(saw(&report).into_iter().eq(0..9));
    let items = report.items();
    assert_eq!((items.completed, items.redelivered), (9, 3), "{items:?}");

    let report = again(Unfinished::Report).unwrap();
    assert!(saw(&report).into_iter().eq(3..9));
    let items = report.items();
    assert_eq!((items.completed, items.failed), (6, 3), "{items:?}");

    let report = pipeline(threes("err", false)).start().unwrap().wait();
    assert_eq!(report.termination(), Termination::Failed);
    let items = report.items();
    assert_eq!((items.completed, items.failed), (0, 3), "{items:?}");
    adds_up(&report);
}

pub(crate) fn what_another_thread_lets_go_of_in_a_call_is_done_only_with_it() {
    allow_leaks(8);
    for (does, again) in [("err", 3), ("panic", 3), ("die", 3), ("nothing", 0)] {
        let report = Pipeline::new()
            .client(client(9))
            .step(load().slots(4))
            .step(threes(&format!("thread: {does}"), false).restart(1, Unfinished::Redeliver))
            .run()
            .unwrap();
        let items = report.items();
        assert_eq!((items.completed, items.redelivered), (9, again), "{does}");
        // The first process does nothing else with its inputs.
        let seen = if again > 0 { 0..9 } else { 0..0 };
        assert!(saw(&report).into_iter().eq(seen), "{does}");
    }
}

/// Takes its time, and brings home the sequence and the rows of each input.
struct Slow(Vec<(u64, usize)>);

impl Stage for Slow {
    type Params = ();
    type Result = Vec<(u64, usize)>;

    fn output_spec((): &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new((): (), _: &Context) -> Result<Self, StageError> {
        Ok(Self(Vec::new()))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        std::thread::sleep(Duration::from_millis(20));
        self.0.push((input.sequence(), input.shape(0)?[0]));
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<Self::Result, StageError> {
        Ok(self.0)
    }
}

pub(crate) fn a_batch_without_a_slot_is_dropped_whole_but_for_the_last() {
    let report = Pipeline::new()
        .client(client(41))
        .step(load())
        .step(batcher(2).slots(1).backpressure(Backpressure::DropNewest))
        .step(Step::of::<Slow>("slow", ()))
        .run()
        .unwrap();
    let seen = report.results::<Slow>("slow").unwrap().concat();
    let rows: usize = seen.iter().map(|&(_, rows)| rows).sum();
    let items = report.items();
    // Each input has so many rows, and came to the last step with all of them or not at all.
    assert_eq!(items.completed as usize * ROWS, rows, "{items:?}");
    assert!(items.dropped > 0, "{items:?}");
    assert_eq!(items.completed + items.dropped, 41, "{items:?}");
    // What is left at the end waits for its slot.
    assert_eq!(seen.last().unwrap(), &(40, ROWS));
    let counts = report.processes()[1].counts();
    assert_eq!(counts.dropped, items.dropped, "{counts:?}");
}

pub(crate) fn what_is_dropped_in_part_is_made_up_for_though_the_rest_is_held() {
    let report = Pipeline::new()
        .client(Client::new(0_u64..).count(60))
        .step(
            load()
                .slots(3)
                .segments(3)
                .queue_size(4)
                .backpressure(Backpressure::DropOldest),
        )
        .step(aggregator())
        .step(see())
        .run()
        .unwrap();
    let items = report.items();
    assert_eq!(
        report.termination(),
        Termination::TargetReached,
        "{items:?}"
    );
    assert!(items.completed >= 60, "{items:?}");
    assert!(numbers(&report, "see").len() as u64 >= items.completed);
}

/// Keeps all its inputs, in a process that has one more thread for a while.
struct Brief(Vec<Input>);

impl Stage for Brief {
    type Params = ();
    type Result = ();

    fn output_spec((): &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new((): (), _: &Context) -> Result<Self, StageError> {
        std::thread::spawn(|| std::thread::sleep(Duration::from_millis(700)));
        Ok(Self(Vec::new()))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        self.0.extend(input);
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

pub(crate) fn a_thread_that_has_ended_hides_no_knot() {
    allow_leaks(8);
    let report = Pipeline::new()
        .client(client(9))
        .step(load().slots(2))
        .step(Step::of::<Brief>("brief", ()))
        // For a run whose knot is not told.
        .timeout(Duration::from_secs(30))
        .start()
        .unwrap()
        .wait();
    assert_eq!(report.termination(), Termination::Deadlock, "{report:?}");
}

/// A thread of its own keeps what comes, until the stage is dropped.
struct Keeper {
    to: Option<Sender<Input>>,
    thread: Option<JoinHandle<()>>,
    does: String,
}

impl Stage for Keeper {
    type Params = String;
    type Result = ();

    fn output_spec(_: &String) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(does: String, _: &Context) -> Result<Self, StageError> {
        let (to, from) = channel::<Input>();
        let thread = std::thread::spawn(move || drop(from.iter().collect::<Vec<_>>()));
        Ok(Self {
            to: Some(to),
            thread: Some(thread),
            does,
        })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        if let (Some(input), Some(to)) = (input, &self.to) {
            let number = input.item();
            let _ = to.send(input);
            if number == 6 {
                mishap(&self.does)?;
            }
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        mishap(self.does.strip_prefix("end: ").unwrap_or_default())
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.to = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

pub(crate) fn what_a_thread_of_a_failing_stage_holds_is_not_done() {
    for does in ["err", "panic"] {
        let keeper = Step::of::<Keeper>("keeper", does.to_owned());
        let report = Pipeline::new().client(client(10)).step(load().slots(10));
        let report = report.step(keeper).start().unwrap().wait();
        assert_eq!(report.termination(), Termination::Failed, "{does}");
        let items = report.items();
        assert_eq!((items.completed, items.failed), (0, 7), "{does} {items:?}");
        adds_up(&report);
    }
}

pub(crate) fn what_a_thread_holds_of_a_stage_that_fails_in_its_end_is_not_done() {
    allow_leaks(8);
    for does in ["end: err", "end: panic"] {
        let keeper = Step::of::<Keeper>("keeper", does.to_owned());
        let report = Pipeline::new().client(client(10)).step(load().slots(10));
        let report = report.step(keeper).start().unwrap().wait();
        assert_eq!(report.termination(), Termination::Failed, "{does}");
        let items = report.items();
        assert_eq!((items.completed, items.failed), (0, 10), "{does} {items:?}");
        adds_up(&report);
    }
}

/// Panics with each input in hand but the first three, in threads of its own, or in a call that goes on.
struct Fragile {
    in_threads: bool,
    threads: Vec<JoinHandle<()>>,
}

impl Stage for Fragile {
    type Params = bool;
    type Result = ();

    fn output_spec(_: &bool) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(in_threads: bool, _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            in_threads,
            threads: Vec::new(),
        })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let breaks = move || {
            let number = input.as_ref().map_or(0, Input::item);
            assert!(number < 3, "number {number} breaks");
        };
        if self.in_threads {
            self.threads.push(std::thread::spawn(breaks));
        } else {
            let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(breaks));
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        for thread in self.threads {
            let _ = thread.join();
        }
        Ok(())
    }
}

pub(crate) fn what_a_thread_held_that_panicked_has_failed_and_its_slot_is_free() {
    for (in_threads, restarts) in [(true, 1), (false, 1), (true, 0), (false, 0)] {
        let report = Pipeline::new()
            .client(client(12))
            .step(load().slots(2))
            .step(
                Step::of::<Fragile>("fragile", in_threads).restart(restarts, Unfinished::Redeliver),
            )
            // For a run that waits for its slots for ever.
            .timeout(Duration::from_secs(60))
            .start()
            .unwrap()
            .wait();
        adds_up(&report);
        let items = report.items();
        assert_eq!((items.completed, items.failed), (3, 9), "{report:?}");
    }
}
