//! What a run says of itself: that it was interrupted, what was wrong with it and where, and with the key that says so.

use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use integration_tests::{Keeper, allow_leaks};
use serde::{Deserialize, Serialize};
use tensormp::Arena;
use tensormp::pipeline::report::{Run, Summary};
use tensormp::pipeline::stages::{Batcher, BatcherParams};
use tensormp::pipeline::{
    Backpressure, Client, Config, Context, Flow, Input, Output, Pipeline, Registry, Running, Stage,
    StageError, Step, TensorSpec, Termination, Unfinished,
};
use tensormp::spawn_api::Signals;

use crate::flow::see;
use crate::scenes::{Idle, load};
use crate::stages::*;

/// Waits until the processes of a run work, or it is over.
fn wait_for(running: &Running, dir: &Path) {
    while !dir.join("run.json").exists() && !running.pids().is_empty() {
        std::thread::yield_now();
    }
}

fn send(signal: &str, pid: u32) {
    let sent = Command::new("kill")
        .args([signal, &pid.to_string()])
        .status();
    assert!(sent.unwrap().success());
}

pub(crate) fn a_signal_that_a_program_of_its_own_hands_on_interrupts_its_run() {
    allow_leaks(8);
    let signals = Signals::forward().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let running = Pipeline::new()
        .client(Client::new(0_u64..))
        .step(Step::of::<Load>(
            "load",
            LoadParams {
                ms: 2,
                ..LoadParams::default()
            },
        ))
        .step(see())
        .run_dir(dir.path())
        .start()
        .unwrap();
    wait_for(&running, dir.path());
    send("-TERM", std::process::id());
    let report = running.wait();
    assert_eq!(signals.received().as_deref(), Some("SIGTERM"));
    let told = report.error().unwrap().to_string();
    assert_eq!(report.termination(), Termination::Interrupted, "{told}");
    assert!(
        told.contains("this program got SIGINT, SIGTERM or SIGHUP"),
        "{told}"
    );
    // Nothing was wrong with what its processes had.
    assert_eq!(report.items().failed, 0, "{:?}", report.items());
    assert_eq!(
        Run::open(dir.path()).unwrap().termination.reason,
        "interrupted"
    );
}

static HASTY: OnceLock<Signals> = OnceLock::new();

/// Its program gets a signal as soon as anybody looks at its tensors, when there is no process yet.
struct Hasty;

impl Stage for Hasty {
    type Params = ();
    type Result = ();

    fn output_spec((): &()) -> Vec<TensorSpec> {
        if let Some(signals) = HASTY.get()
            && signals.received().is_none()
        {
            send("-TERM", std::process::id());
            while signals.received().is_none() {
                std::thread::yield_now();
            }
        }
        Vec::new()
    }

    fn new((): (), _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, _: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

pub(crate) fn a_signal_that_comes_while_a_run_starts_interrupts_it() {
    allow_leaks(8);
    assert!(HASTY.set(Signals::forward().unwrap()).is_ok());
    let hasty = |inputs: Client, again: bool| {
        let step = Step::of::<Hasty>("hasty", ());
        let step = match again {
            true => step.restart(1, Unfinished::Redeliver),
            false => step,
        };
        // For a run that is not stopped.
        let limit = Duration::from_secs(15);
        let run = Pipeline::new().client(inputs).step(step).timeout(limit);
        run.start().unwrap().wait()
    };
    let report = hasty(Client::new(0_u64..), false);
    let told = report.error().unwrap().to_string();
    assert_eq!(report.termination(), Termination::Interrupted, "{told}");
    assert!(told.contains("SIGTERM"), "{told}");
    // One that starts afterwards is none of its business.
    for again in [false, true] {
        let report = hasty(Client::new(0_u64..9), again);
        assert_eq!(report.termination(), Termination::InputEnded, "{report:?}");
    }
}

/// As of a terminal, whose Ctrl-C reaches all processes, where the program does something of its own about it.
pub(crate) fn a_process_that_gets_an_interrupt_interrupts_its_run() {
    allow_leaks(8);
    let dir = tempfile::tempdir().unwrap();
    let running = Pipeline::new()
        .client(Client::new(0_u64..))
        .step(load())
        .step(see())
        .run_dir(dir.path())
        .start()
        .unwrap();
    wait_for(&running, dir.path());
    send("-INT", running.pids()[1]);
    let report = running.wait();
    let told = report.error().unwrap().to_string();
    assert_eq!(report.termination(), Termination::Interrupted, "{told}");
    assert!(told.contains("SIGINT"), "{told}");
}

/// What `tensormp ls` shows of them.
pub(crate) fn processes_say_of_which_step_they_are() {
    allow_leaks(8);
    let dir = tempfile::tempdir().unwrap();
    let running = Pipeline::new()
        .client(Client::new(0_u64..))
        .step(load())
        .step(see().replicas(2))
        .run_dir(dir.path())
        .start()
        .unwrap();
    wait_for(&running, dir.path());
    let arena = Arena::current().unwrap();
    let seen = tensormp::shm_core::inspect::inspect(arena.as_fd()).unwrap();
    let of = |pid: &u32| {
        let mut members = seen.members.iter();
        members.find(|one| one.pid == *pid).unwrap().task.clone()
    };
    let tasks: Vec<_> = running.pids().iter().map(of).collect();
    let expected = [
        "step \"load\"",
        "step \"see\", replica 0 of 2",
        "step \"see\", replica 1 of 2",
    ];
    assert_eq!(tasks, expected);
    drop(running);
}

pub(crate) fn a_first_step_that_waits_for_input_which_nobody_gives_is_told() {
    let told = Arc::new(Mutex::new(String::new()));
    tracing::subscriber::set_global_default(Keeper(Arc::clone(&told))).unwrap();
    // Answers that it goes on, without input, for ever.
    let step = Step::of::<Crash>("crash", SeeParams::default());
    let running = Pipeline::new().step(step).start().unwrap();
    let text = || told.lock().unwrap().clone();
    while !text().contains("\"crash\" has made nothing") {
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(text().contains("names no iterator"), "{}", text());
    running.stopper().terminate();
    assert_eq!(running.wait().termination(), Termination::Interrupted);
}

/// Why a run ended.
fn cause(pipeline: Pipeline) -> String {
    pipeline.run().unwrap_err().to_string()
}

/// Does one thing wrong.
struct Wrong;

impl Stage for Wrong {
    type Params = String;
    type Result = ();

    fn output_spec(does: &String) -> Vec<TensorSpec> {
        match &**does {
            "loans without tensors" => Vec::new(),
            _ => vec![TensorSpec::of::<f32>([2])],
        }
    }

    fn new(_: String, _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, _: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let mut slot = output.loan()?;
        slot.tensor_mut::<u8>(0)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

pub(crate) fn what_ends_a_run_is_told_with_what_is_to_be_done() {
    allow_leaks(32);
    let client = || Client::new(0..9_u64);
    let slow = SeeParams {
        ms: 20,
        ..SeeParams::default()
    };
    let does = |what: &str| Step::of::<Wrong>("wrong", what.to_owned());
    let dies = SeeParams {
        at: Some(4),
        does: "die".to_owned(),
        ..SeeParams::default()
    };
    let rows = BatcherParams {
        batch: 4,
        deadline_ms: None,
        max_rows: Some(ROWS),
    };
    let full = Client::new(0..100_u64).queue_size(2);
    for (pipeline, told) in [
        (
            Pipeline::new()
                .client(full.backpressure(Backpressure::Fail))
                .step(Step::of::<Values>("values", ()))
                .step(Step::of::<See>("see", slow)),
            &["the client", "its queue is full (2 items)"][..],
        ),
        (
            Pipeline::new()
                .client(Client::bulk(3))
                .step(load())
                .step(see()),
            &[
                "payload of item 0",
                "without an iterator a client gives inputs without a value",
            ],
        ),
        (
            Pipeline::new()
                .client(client())
                .step(does("loans without tensors"))
                .step(see()),
            &["in a step whose output_spec names no tensors"],
        ),
        (
            Pipeline::new()
                .client(client())
                .step(does("loans as the last")),
            &["in the last step"],
        ),
        (
            Pipeline::new()
                .client(client())
                .step(does("another type"))
                .step(see()),
            &["tensor 0 of the slot holds f32, but u8 was asked for; ask for f32"],
        ),
        (
            Pipeline::new()
                .client(client())
                .step(load())
                .step(Step::of::<See>("see", dies)),
            &["item 4 was being worked on", "was killed by SIGKILL"],
        ),
        (
            Pipeline::new()
                .client(client())
                .step(load())
                .step(Step::of::<Batcher>("batch", rows))
                .step(see()),
            &["putting 4 inputs together, with max_rows = "],
        ),
        (
            Pipeline::new()
                .client(Client::new((0..9_u64).map(|number| match number {
                    3 => panic!("no more than {number}"),
                    number => number,
                })))
                .step(load())
                .step(see()),
            &["the iterator that makes the inputs panicked: no more than 3"],
        ),
    ] {
        let cause = cause(pipeline);
        for part in told {
            assert!(cause.contains(part), "{part:?} is not in {cause:?}");
        }
    }
}

#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct From {
    from: u64,
}

/// Its parameter has no name.
type Nameless = Idle<u64>;

fn registry() -> Registry {
    Registry::new()
        .iterator("numbers", |params| {
            let from: Option<From> = serde_json::from_value(params.clone())?;
            Ok(from.map_or(0, |from| from.from)..)
        })
        .stage::<Load>("Load")
        .stage::<See>("See")
        .stage::<Nameless>("Nameless")
}

pub(crate) fn the_key_that_is_told_is_the_one_that_was_written() {
    let about = |text: &str| {
        let pipeline = Config::from_toml(text).and_then(|config| config.pipeline(registry));
        let checked = pipeline.and_then(|pipeline| pipeline.check());
        checked.unwrap_err().to_string()
    };
    let with = |more: &str| {
        about(&format!(
            "iterator = \"numbers\"\n[[pipeline]]\nstage = \"Load\"\n{more}\n[[pipeline]]\nstage = \"See\"\n"
        ))
    };
    let steps = "[[pipeline]]\nstage = \"See\"\n";
    for (said, told) in [
        (
            with("replicas = 100000"),
            "step \"Load\", replicas: it was to run in 100000 processes",
        ),
        (
            with("replicas = 0"),
            "step \"Load\", replicas: it was to run in 0 processes",
        ),
        (
            with("devices = []"),
            "step \"Load\", devices: it was to run in 0 processes",
        ),
        (
            about(&format!(
                "iterator = \"numbers\"\niterator_params = {{ form = 1 }}\n{steps}"
            )),
            "the configuration, iterator_params: unknown field `form`",
        ),
        (
            about(&format!("iterator = \"number\"\n{steps}")),
            "the configuration, iterator: there is no iterator \"number\"",
        ),
        (
            about("[[pipeline]]\nstage = \"Nameless\"\n"),
            "let the stage's Params be a struct with named fields",
        ),
        (
            Config::from_json("{").unwrap_err().to_string(),
            "this is no configuration in JSON: EOF",
        ),
        (
            Pipeline::new()
                .step(see().replicas(0))
                .check()
                .unwrap_err()
                .to_string(),
            "step \"see\", replicas: it was to run in 0 processes",
        ),
        (
            Pipeline::new()
                .step(see().replicas(usize::MAX))
                .check()
                .unwrap_err()
                .to_string(),
            "step \"see\", replicas: it was to run in 18446744073709551615 processes",
        ),
    ] {
        assert!(said.contains(told), "{told:?} is not in {said:?}");
    }
}

pub(crate) fn a_runs_report_of_batches_says_what_its_processes_say() {
    let dir = tempfile::tempdir().unwrap();
    let batches = BatcherParams {
        batch: 4,
        ..BatcherParams::default()
    };
    let report = Pipeline::new()
        .client(Client::new(0..40_u64).count(40))
        .step(load())
        .step(Step::of::<Batcher>("batch", batches))
        .step(Step::of::<Rows>("rows", None))
        .run_dir(dir.path())
        .run()
        .unwrap();
    let run = Run::open(dir.path()).unwrap();
    let summary = Summary::of(&run);
    for ((process, of_run), step) in report
        .processes()
        .iter()
        .zip(&run.processes)
        .zip(&summary.steps)
    {
        let counts = process.counts();
        assert_eq!(step.counts, counts, "{}", step.name);
        assert_eq!(
            (of_run.inputs, of_run.outputs),
            (counts.taken, counts.published)
        );
    }
    assert_eq!(
        (
            summary.steps[1].counts.taken,
            summary.steps[1].counts.published
        ),
        (40, 10)
    );
    // Each input's own, and each of a batch is done when that is.
    assert_eq!(summary.latency.count, 40);
    let offered = |item: u64| {
        let mut cards = run.cards.iter();
        cards
            .find(|card| card.item == item && card.step == "load")
            .unwrap()
            .enqueued
    };
    let last = run
        .cards
        .iter()
        .filter(|card| card.step == "rows")
        .map(|card| card.done())
        .max();
    let most = (0..40)
        .map(|item| last.unwrap() - offered(item))
        .max()
        .unwrap();
    assert!(
        summary.latency.p99 <= most && summary.latency.p50 > 0,
        "{summary:?}"
    );
}
