//! Slots that are nowhere: nobody reads them, no queue holds them, and they are counted all the same, since the process that
//! had them is dead and whoever buries it is slow.

use std::io::{BufRead, BufReader};
use std::process::{Child, Stdio};

use integration_tests::{kill, resume, see_stopped, see_stopped_below, stop};
use serde_json::{Value, json};
use tensormp::pipeline::{
    Context, Flow, Input, Output, Pipeline, Stage, StageError, Step, TensorSpec, Unfinished,
};
use tensormp::shm_core::failpoint;
use tensormp::{AliasedTensor, Tensor};

use crate::flow::client;
use crate::scenes::load;

const ITEMS: u64 = 20;

/// Lets go of its inputs two by two. Its first process stops itself when it has two.
struct Pairs {
    first: Option<Input>,
    stops: bool,
    pairs: u64,
}

impl Stage for Pairs {
    type Params = ();
    type Result = u64;

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(_: (), context: &Context) -> Result<Self, StageError> {
        Ok(Self {
            first: None,
            stops: context.restarts == 0,
            pairs: 0,
        })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let Some(first) = self.first.take() else {
            self.first = input;
            return Ok(Flow::Continue);
        };
        if self.stops {
            stop(std::process::id());
            // Another thread may have taken the signal, and this one stops a moment later. It is killed then.
            loop {
                std::thread::park();
            }
        }
        drop((first, input));
        self.pairs += 1;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<u64, StageError> {
        Ok(self.pairs)
    }
}

/// A run in a process of its own, which is not the eldest of its arena, since it gets something from there. It tells of its
/// processes, and what it came to.
fn run_below(_: AliasedTensor<u64>) -> Result<(), StageError> {
    let running = Pipeline::new()
        .client(client(ITEMS))
        .step(load().slots(2))
        .step(Step::of::<Pairs>("pairs", ()).restart(3, Unfinished::Redeliver))
        .start()?;
    println!("{}", json!([std::process::id(), running.pids()]));
    let report = running.wait();
    let told = json!({
        "error": report.error().map(ToString::to_string),
        "completed": report.items().completed,
        "restarts": report.processes()[1].restarts(),
        "pairs": report.results::<Pairs>("pairs").ok(),
    });
    println!("{told}");
    Ok(())
}

/// The eldest of the arena, which is stopped as soon as it buries somebody.
pub(crate) fn a_run_below_one_that_is_slow_to_bury() {
    let given = Tensor::<u64>::zeros([1]).unwrap().alias();
    let mut run = tensormp::spawn_api::spawn_one("run", run_below, given).unwrap();
    failpoint::arm(Some("reap.begun=stop"));
    run.join().unwrap();
    integration_tests::allow_leaks(4);
}

/// Ends with its program, and all below it, also where a test fails.
struct Scene(Child);

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

pub(crate) fn a_slot_that_is_nowhere_is_made_anew_and_no_reason_for_a_deadlock() {
    let scene = integration_tests::play("a_run_below_one_that_is_slow_to_bury")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut scene = Scene(scene);
    let eldest = scene.0.id();
    let mut told = BufReader::new(scene.0.stdout.take().unwrap()).lines();
    let mut told = || -> Value {
        let line = told.next().expect("one more line").unwrap();
        serde_json::from_str(&line).unwrap()
    };
    let (run, [load, pairs]): (u32, [u32; 2]) = serde_json::from_value(told()).unwrap();
    see_stopped_below(pairs);
    // It has both slots. Nobody but the eldest sees its death, so nobody else begins to bury it.
    for other in [run, load] {
        stop(other);
        see_stopped_below(other);
    }
    kill(pairs);
    see_stopped(eldest);
    // Its replacement lets go of both, which stay counted as the dead one's: one of them is made anew, as there was one
    // death, and kept by it. Now it waits for one more, and for its sake the other slot is waited for.
    resume(load);
    resume(run);
    let expected = json!({"error": null, "completed": ITEMS, "restarts": 1, "pairs": [ITEMS / 2]});
    assert_eq!(told(), expected);
    resume(eldest);
    assert!(scene.0.wait().unwrap().success());
}
