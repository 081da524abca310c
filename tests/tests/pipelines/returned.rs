//! Processes that are killed behind their end, when they have brought home all that they were there for.

use std::cell::Cell;
use std::time::Duration;

use integration_tests::{exists, kill, resume, see_stopped, stop};
use serde_json::{Value, json};
use tensormp::AliasedTensor;
use tensormp::Tensor;
use tensormp::pipeline::{
    Context, Flow, Input, Output, Pipeline, Stage, StageError, Step, TensorSpec, Unfinished,
};

use crate::flow::{client, numbers};
use crate::scenes::{replaced_in_twos, told_by};
use crate::stages::*;

const ITEMS: u64 = 40;

/// A run one of whose processes stops itself (the environment says at which step of its end), and is killed then; behind
/// its end only after the steps behind it have ended as well.
pub(crate) fn killed_behind_its_end() {
    let which: Value = serde_json::from_str(&std::env::var("KILLED").unwrap()).unwrap();
    let running = replaced_in_twos(ITEMS, 9).start().unwrap();
    let pids = running.pids();
    let killed = pids[which["index"].as_u64().unwrap() as usize];
    see_stopped(killed);
    while which["waits"].as_bool().unwrap() && exists(pids[4]) {
        std::thread::sleep(Duration::from_millis(1));
    }
    kill(killed);
    let report = running.wait();
    let processes = report.processes().iter();
    let told = json!({
        "error": report.error().map(ToString::to_string),
        "restarts": processes.map(|process| process.restarts()).sum::<u32>(),
        "completed": report.items().completed,
        "seen": numbers(&report, "see").len(),
        "results": report.results::<Load>("load").unwrap().len()
            + report.results::<Copy>("copy").unwrap().len(),
    });
    println!("{told}");
    integration_tests::allow_leaks(4);
}

pub(crate) fn a_process_that_is_killed_behind_its_end_is_not_missed() {
    for (label, process, index, waits) in [
        ("stage.brought", "load.0", 0, false),
        ("stage.brought", "copy.1", 3, false),
        ("stage.done", "load.1", 1, true),
        ("stage.done", "copy.0", 2, true),
    ] {
        let at = format!("{label}@{process}=stop");
        let killed = json!({"index": index, "waits": waits}).to_string();
        let environment = [("TENSORMP_FAILPOINT", &*at), ("KILLED", &killed)];
        let told = told_by("killed_behind_its_end", &environment);
        let expected = json!({
            "error": null, "restarts": 0, "completed": ITEMS, "seen": ITEMS, "results": 4,
        });
        assert_eq!(told, expected, "{label} in {process}");
    }
}

/// The first of two that end stops while it sends what it brings home.
const SENDS: (&str, &str) = ("TENSORMP_FAILPOINT", "put.claimed@ends.0=stop");

/// Stops its process when the thread that has it ends.
#[derive(Default)]
struct Stops(Cell<bool>);

impl Drop for Stops {
    fn drop(&mut self) {
        if self.0.get() {
            stop(std::process::id());
        }
    }
}

thread_local! {
    static STOPS: Stops = Stops::default();
}

/// Gets nothing. The second of its processes ends once it is told to, and stops behind its end.
struct Ends {
    may: AliasedTensor<u64>,
    stops: bool,
}

impl Stage for Ends {
    type Params = AliasedTensor<u64>;
    type Result = u64;

    fn output_spec(_: &Self::Params) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(may: Self::Params, context: &Context) -> Result<Self, StageError> {
        let stops = context.replica == 1 && context.restarts == 0;
        Ok(Self { may, stops })
    }

    fn process(&mut self, _: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        Err("an input, though there is none".into())
    }

    fn finish(self, _: &mut Output) -> Result<u64, StageError> {
        if self.stops {
            while self.may.load(&[0])? == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            STOPS.with(|stops| stops.0.set(true));
        }
        Ok(7)
    }
}

/// A run one of whose processes is stopped while it sends what it brings home; what another has sent behind that is there, but
/// cannot be read yet when that one is killed.
pub(crate) fn killed_behind_one_that_sends() {
    let may = Tensor::<u64>::zeros([1]).unwrap().alias();
    let ends = Step::of::<Ends>("ends", may.clone()).replicas(2);
    let running = Pipeline::new()
        .client(client(0))
        .step(ends.restart(9, Unfinished::Redeliver))
        .start()
        .unwrap();
    let [sends, killed] = running.pids()[..] else {
        panic!("two processes");
    };
    see_stopped(sends);
    may.store(&[0], 1).unwrap();
    see_stopped(killed);
    kill(killed);
    while exists(killed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    // Whoever supervises the run has learnt of it, too.
    std::thread::sleep(Duration::from_millis(200));
    resume(sends);
    let report = running.wait();
    let processes = report.processes().iter();
    let told = json!({
        "error": report.error().map(ToString::to_string),
        "restarts": processes.map(|process| process.restarts()).sum::<u32>(),
        "results": report.results::<Ends>("ends").unwrap(),
    });
    println!("{told}");
    integration_tests::allow_leaks(4);
}

/// The same, where meanwhile another process is killed, or the run is stopped; that is seen before what was sent is there.
pub(crate) fn something_else_while_a_killed_process_is_waited_for() {
    let may = Tensor::<u64>::zeros([1]).unwrap().alias();
    let again = |step: Step| step.restart(9, Unfinished::Redeliver);
    let running = Pipeline::new()
        .client(client(0))
        .step(again(Step::of::<Ends>("ends", may.clone()).replicas(2)))
        .step(again(Step::of::<Ends>("last", may.clone())))
        .start()
        .unwrap();
    let [sends, killed, last] = running.pids()[..] else {
        panic!("three processes");
    };
    see_stopped(sends);
    may.store(&[0], 1).unwrap();
    see_stopped(killed);
    kill(killed);
    while exists(killed) {
        std::thread::sleep(Duration::from_millis(1));
    }
    match std::env::var("MEANWHILE").unwrap().as_str() {
        "death" => {
            kill(last);
            while running.pids()[2] == last {
                std::thread::sleep(Duration::from_millis(1));
            }
            resume(sends);
        }
        _ => running.stopper().terminate(),
    }
    let report = running.wait();
    let processes = report.processes().iter();
    let told = json!({
        "termination": report.termination(),
        "restarts": processes.map(|process| process.restarts()).collect::<Vec<_>>(),
    });
    println!("{told}");
    integration_tests::allow_leaks(6);
}

pub(crate) fn while_what_a_killed_process_sent_is_waited_for_all_else_goes_on() {
    for (meanwhile, termination, restarts) in [
        ("death", "input_ended", [0, 0, 1]),
        ("stop", "interrupted", [0, 0, 0]),
    ] {
        let told = told_by(
            "something_else_while_a_killed_process_is_waited_for",
            &[SENDS, ("MEANWHILE", meanwhile)],
        );
        let expected = json!({"termination": termination, "restarts": restarts});
        assert_eq!(told, expected, "{meanwhile}");
    }
}

pub(crate) fn what_a_killed_process_sent_behind_another_that_is_slow_is_waited_for() {
    let told = told_by("killed_behind_one_that_sends", &[SENDS]);
    let expected = json!({"error": null, "restarts": 0, "results": [7, 7]});
    assert_eq!(told, expected);
}
