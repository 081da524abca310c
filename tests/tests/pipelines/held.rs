//! Inputs that a stage holds: they are neither lost nor stuck as long as somebody may let go of them. And iterators of a
//! client that panic or do not come back.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use integration_tests::allow_leaks;
use serde::{Deserialize, Deserializer, Serialize};
use tensormp::pipeline::stages::{Batcher, BatcherParams};
use tensormp::pipeline::{
    Backpressure, Client, Context, Flow, Input, Output, Pipeline, Report, Stage, StageError, Step,
    TensorSpec, Termination, Unfinished,
};

use crate::flow::client;
use crate::scenes::load;
use crate::stages::*;

/// How a [`Holder`] holds its inputs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Hold {
    /// Keeps the last so many.
    keep: usize,
    /// Hands them to a thread, but for so many first ones.
    thread_after: Option<u64>,
    /// So long the thread has the first of them, and each.
    first_ms: u64,
    each_ms: u64,
}

struct Holder {
    hold: Hold,
    seen: u64,
    kept: Vec<Input>,
    to: Sender<Input>,
    thread: Option<JoinHandle<()>>,
}

impl Stage for Holder {
    type Params = Hold;
    type Result = u64;

    fn output_spec(_: &Hold) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(hold: Hold, _: &Context) -> Result<Self, StageError> {
        let (to, from) = channel::<Input>();
        let (first, each) = (hold.first_ms, hold.each_ms);
        let holds = move || {
            for (index, input) in from.iter().enumerate() {
                let ms = if index == 0 { first + each } else { each };
                std::thread::sleep(Duration::from_millis(ms));
                drop(input);
            }
        };
        let thread = hold.thread_after.map(|_| std::thread::spawn(holds));
        Ok(Self {
            hold,
            seen: 0,
            kept: Vec::new(),
            to,
            thread,
        })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        self.seen += 1;
        if self
            .hold
            .thread_after
            .is_some_and(|after| self.seen > after)
        {
            self.to.send(input)?;
        } else if self.hold.keep > 0 {
            self.kept.push(input);
            if self.kept.len() > self.hold.keep {
                self.kept.remove(0);
            }
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<u64, StageError> {
        drop(self.to);
        if let Some(thread) = self.thread {
            thread.join().map_err(|_| "the thread panicked")?;
        }
        Ok(self.seen)
    }
}

fn holder(hold: Hold) -> Step {
    Step::of::<Holder>("hold", hold)
}

fn counted(count: u64) -> Pipeline {
    Pipeline::new().client(Client::new(0u64..).count(count))
}

fn adds_up(report: &Report) {
    let items = report.items();
    let known = items.completed + items.dropped + items.failed + items.unfinished;
    assert_eq!(items.offered, known, "{items:?}");
}

pub(crate) fn what_a_stage_holds_is_not_lost_and_nothing_is_offered_in_its_place() {
    let on_thread = |each_ms| Hold {
        thread_after: Some(0),
        each_ms,
        ..Hold::default()
    };
    let keeps = Hold {
        keep: 3,
        ..Hold::default()
    };
    let batches = BatcherParams {
        batch: 4,
        ..BatcherParams::default()
    };
    let restarts = |step: Step| step.restart(1, Unfinished::Redeliver);
    let drops = load().slots(8).backpressure(Backpressure::DropOldest);
    let cases = [
        (20, counted(20).step(restarts(holder(keeps)))),
        (4, counted(4).step(restarts(holder(on_thread(400))))),
        (
            6,
            counted(6)
                .step(load().slots(8))
                .step(Step::of::<Batcher>("batch", batches))
                .step(restarts(holder(Hold::default()))),
        ),
        (4, counted(4).step(drops).step(holder(on_thread(400)))),
    ];
    for (count, pipeline) in cases {
        let report = pipeline.run().unwrap();
        let items = report.items();
        assert_eq!(report.termination(), Termination::TargetReached);
        assert_eq!(
            (items.offered, items.completed, items.failed),
            (count, count, 0),
            "{items:?}"
        );
    }
}

pub(crate) fn who_lets_go_of_inputs_where_it_is_called_and_on_threads_is_in_no_knot() {
    let hold = Hold {
        thread_after: Some(2),
        first_ms: 6000,
        ..Hold::default()
    };
    let report = Pipeline::new()
        .client(client(5))
        .step(load().slots(1))
        .step(holder(hold))
        .run()
        .unwrap();
    assert_eq!(report.results::<Holder>("hold").unwrap(), [5]);
}

/// A thread that is there before any stage is made: whoever reads these parameters starts it.
#[derive(Clone, Copy, Debug, Serialize)]
struct Early;

type Ends = (Mutex<Sender<Input>>, Mutex<Receiver<()>>);
static EARLY: OnceLock<Ends> = OnceLock::new();

impl<'de> Deserialize<'de> for Early {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        <()>::deserialize(from)?;
        EARLY.get_or_init(|| {
            let (to, inputs) = channel::<Input>();
            let (done, all) = channel();
            std::thread::spawn(move || {
                for input in inputs {
                    std::thread::sleep(Duration::from_millis(900));
                    drop(input);
                    let _ = done.send(());
                }
            });
            (Mutex::new(to), Mutex::new(all))
        });
        Ok(Self)
    }
}

/// Hands its inputs to that thread.
struct Pooled(u64);

impl Stage for Pooled {
    type Params = Early;
    type Result = u64;

    fn output_spec(_: &Early) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(_: Early, _: &Context) -> Result<Self, StageError> {
        Ok(Self(0))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let (to, _) = EARLY.get().ok_or("no thread")?;
        if let Some(input) = input {
            to.lock().map_err(|_| "poisoned")?.send(input)?;
            self.0 += 1;
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<u64, StageError> {
        let (_, all) = EARLY.get().ok_or("no thread")?;
        let all = all.lock().map_err(|_| "poisoned")?;
        Ok(all.iter().take(self.0 as usize).count() as u64)
    }
}

pub(crate) fn threads_that_were_there_before_the_stage_may_let_go_of_inputs_too() {
    let report = Pipeline::new()
        .client(client(3))
        .step(load().slots(1))
        .step(Step::of::<Pooled>("pooled", Early))
        .run()
        .unwrap();
    assert_eq!(report.results::<Pooled>("pooled").unwrap(), [3]);
}

/// Passes copies on, and has a thread that never does anything.
struct Idle {
    stop: Sender<()>,
    thread: JoinHandle<()>,
}

impl Stage for Idle {
    type Params = ();
    type Result = ();

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        vec![TensorSpec::of::<u64>([1])]
    }

    fn new((): (), _: &Context) -> Result<Self, StageError> {
        let (stop, stopped) = channel();
        let thread = std::thread::spawn(move || stopped.iter().for_each(drop));
        Ok(Self { stop, thread })
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let slot = output.loan()?;
        output.publish(slot)?;
        drop(input);
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        drop(self.stop);
        self.thread.join().map_err(|_| "the thread panicked")?;
        Ok(())
    }
}

pub(crate) fn threads_of_one_that_waits_for_a_slot_of_its_own_hide_no_knot() {
    allow_leaks(8);
    let keeps = Hold {
        keep: 4,
        ..Hold::default()
    };
    let report = Pipeline::new()
        .client(client(50))
        .step(load().slots(2))
        .step(Step::of::<Idle>("idle", ()).slots(2))
        .step(holder(keeps))
        .start()
        .unwrap()
        .wait();
    assert_eq!(report.termination(), Termination::Deadlock, "{report:?}");
    adds_up(&report);
}

pub(crate) fn a_client_that_drops_and_offers_again_hides_no_knot() {
    allow_leaks(8);
    let keeps = Hold {
        keep: 9,
        ..Hold::default()
    };
    for policy in [Backpressure::DropNewest, Backpressure::DropOldest] {
        // What is dropped another is offered for, as long as the run goes on.
        let inputs = Client::new(0u64..).count(48).queue_size(4);
        let report = Pipeline::new()
            .client(inputs.backpressure(policy))
            .step(load().slots(2))
            .step(holder(keeps.clone()))
            // For a run whose knot is not told.
            .timeout(Duration::from_secs(20))
            .start()
            .unwrap()
            .wait();
        assert_eq!(report.termination(), Termination::Deadlock, "{report:?}");
        adds_up(&report);
    }
}

pub(crate) fn what_a_process_had_when_it_failed_is_failed_in_its_counts_too() {
    allow_leaks(8);
    let params = SeeParams {
        at: Some(2),
        ..SeeParams::default()
    };
    let report = Pipeline::new()
        .client(client(9))
        .step(load())
        .step(Step::of::<Crash>("crash", params))
        .start()
        .unwrap()
        .wait();
    assert_eq!(report.termination(), Termination::Failed, "{report:?}");
    let process = report.processes().iter().find(|one| one.name() == "crash");
    let counts = process.unwrap().counts();
    assert_eq!((counts.failed, counts.unfinished), (1, 0), "{counts:?}");
    assert_eq!(report.items().failed, 1);
    adds_up(&report);
}

pub(crate) fn what_a_client_offered_before_it_panicked_is_counted() {
    allow_leaks(8);
    let inputs = (0u64..30).inspect(|&number| assert!(number < 7, "out of numbers"));
    let report = Pipeline::new()
        .client(Client::new(inputs))
        .step(holder(Hold::default()))
        .start()
        .unwrap()
        .wait();
    let told = report.error().unwrap().to_string();
    let (said, place) = ("out of numbers", "pipelines/held.rs:");
    assert!(told.contains(said) && told.contains(place), "{told}");
    assert_eq!(report.items().offered, 7);
    adds_up(&report);
}

/// Keeps all its inputs, and is content with no end.
struct Insatiable(Vec<Input>);

impl Stage for Insatiable {
    type Params = ();
    type Result = ();

    fn output_spec((): &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new((): (), _: &Context) -> Result<Self, StageError> {
        Ok(Self(Vec::new()))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        self.0.extend(input);
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Err("there should have been more".into())
    }
}

/// The report of a run without an end whose limit came when it had offered so many items. How long its processes take to
/// start, which the limit counts too, is up to what else the machine does: one that had not come so far is given longer.
pub(crate) fn ended_by_its_limit<K>(offered: u64, make: impl Fn() -> (Pipeline, K)) -> (Report, K) {
    let mut limit = Duration::from_millis(500);
    loop {
        let (pipeline, kept) = make();
        let report = pipeline.timeout(limit).start().unwrap().wait();
        assert_eq!(report.termination(), Termination::TimedOut, "{report:?}");
        if report.items().offered >= offered {
            return (report, kept);
        }
        limit *= 2;
    }
}

pub(crate) fn what_stages_keep_when_a_run_is_ended_is_unfinished() {
    allow_leaks(8);
    let (report, stop) = ended_by_its_limit(8, || {
        let (stop, stopped) = channel::<()>();
        // Gives 8, and then nothing until the run has ended.
        let inputs = (0u64..).inspect(move |&number| {
            if number == 8 {
                let _ = stopped.recv();
            }
        });
        // Some are killed as they are told to end, others see first that those before them are gone.
        let pipeline = Pipeline::new()
            .client(Client::new(inputs))
            .step(load())
            .step(Step::of::<Insatiable>("keep", ()).replicas(4))
            .grace(Duration::from_millis(300));
        (pipeline, stop)
    });
    drop(stop);
    let items = report.items();
    assert_eq!((items.completed, items.unfinished), (0, 8), "{items:?}");
}

pub(crate) fn a_run_ends_at_its_limit_though_the_clients_iterator_does_not_come_back() {
    allow_leaks(8);
    let (report, (stop, is_gone)) = ended_by_its_limit(7, || {
        let (stop, stopped) = channel::<()>();
        let (gone, is_gone) = channel::<()>();
        // Gives 7, and then nothing until the run has ended.
        let inputs = (0u64..).inspect(move |&number| {
            let _here = &gone;
            if number == 7 {
                let _ = stopped.recv();
            }
        });
        let pipeline = Pipeline::new()
            .client(Client::new(inputs))
            .step(holder(Hold::default()))
            .grace(Duration::from_millis(300));
        (pipeline, (stop, is_gone))
    });
    assert_eq!(report.items().offered, 7);
    adds_up(&report);
    drop(stop);
    // What it gives now is dropped, and the iterator with it.
    assert!(is_gone.recv().is_err());
}
