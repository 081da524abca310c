//! Stages that fail where few do: while they are made, while they end, with shapes that are not theirs; and many slots.

use std::time::{Duration, Instant};

use integration_tests::{allow_leaks, resume, see_stopped, stop};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tensormp::pipeline::{
    Client, Context, Flow, Input, Output, Pipeline, Stage, StageError, Step, TensorSpec,
    Termination,
};

use crate::flow::{client, numbers, until_ended};
use crate::scenes::{copy, load, told_by};
use crate::stages::{See, SeeParams};

/// What a stage does that it should not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
enum Odd {
    #[default]
    Nothing,
    PanicsInNew,
    ErrsInNew,
    HangsInNew,
    PanicsInDrop,
    HangsInFinish,
    WritesOtherElements,
    WritesAnotherTensor,
    SaysMoreRows,
    SaysOtherDimensions,
}

/// Passes a number on, in a slot that says nothing else.
struct Plain(Odd);

/// For as long as a test may take.
fn hang() {
    std::thread::sleep(Duration::from_secs(600));
}

impl Stage for Plain {
    type Params = Odd;
    type Result = ();

    fn output_spec(_: &Odd) -> Vec<TensorSpec> {
        vec![TensorSpec::of::<u64>([2, 4])]
    }

    fn new(odd: Odd, _: &Context) -> Result<Self, StageError> {
        match odd {
            Odd::PanicsInNew => panic!("no model today"),
            Odd::ErrsInNew => return Err("no weights today".into()),
            Odd::HangsInNew => hang(),
            _ => {}
        }
        Ok(Self(odd))
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let input = input.ok_or("a step without an input")?;
        let number = match input.slots() {
            0 => input.payload::<u64>()?,
            _ => input.tensor::<u64>(0)?[7],
        };
        let mut slot = output.loan()?;
        match self.0 {
            Odd::WritesOtherElements => slot.tensor_mut::<f64>(0)?.fill(0.0),
            Odd::WritesAnotherTensor => slot.tensor_mut::<u64>(1)?.fill(0),
            Odd::SaysMoreRows => slot.set_valid(0, 3)?,
            Odd::SaysOtherDimensions => slot.set_shape(0, &[4, 2])?,
            _ => {}
        }
        slot.tensor_mut::<u64>(0)?.fill(number);
        slot.set_sequence(number);
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        if self.0 == Odd::HangsInFinish {
            hang();
        }
        Ok(())
    }
}

impl Drop for Plain {
    fn drop(&mut self) {
        if self.0 == Odd::PanicsInDrop {
            panic!("the model does not let go");
        }
    }
}

/// Brings the numbers home.
struct Numbers(Vec<u64>);

impl Stage for Numbers {
    type Params = ();
    type Result = Vec<u64>;

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self(Vec::new()))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let input = input.ok_or("a step without an input")?;
        let number = input.sequence();
        if input.tensor::<u64>(0)? != [number; 8] {
            return Err(format!("item {number} arrived as {:?}", input.tensor::<u64>(0)).into());
        }
        self.0.push(number);
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<Vec<u64>, StageError> {
        Ok(self.0)
    }
}

fn pipeline(odd: Odd, count: u64) -> Pipeline {
    Pipeline::new()
        .client(Client::new(0..count))
        .step(Step::of::<Plain>("first", Odd::Nothing))
        .step(Step::of::<Plain>("odd", odd).limit(Duration::from_secs(2)))
        .step(Step::of::<Numbers>("numbers", ()))
}

pub(crate) fn a_stage_that_fails_while_it_is_made_or_ends_ends_the_run_with_its_cause() {
    allow_leaks(8);
    for (odd, ended, told) in [
        (Odd::PanicsInNew, Termination::Failed, "no model today"),
        (Odd::ErrsInNew, Termination::Failed, "no weights today"),
        (Odd::PanicsInDrop, Termination::Failed, "does not let go"),
        (Odd::HangsInFinish, Termination::TimedOut, "has been ending"),
    ] {
        let report = pipeline(odd, 5).start().unwrap().wait();
        let text = report.error().unwrap().to_string();
        assert_eq!(report.termination(), ended, "{odd:?}: {text}");
        assert!(
            text.contains(told) && text.contains("odd"),
            "{odd:?}: {text}"
        );
    }
    // Nothing says how long it may take to be made, but for the whole run.
    let hangs = pipeline(Odd::HangsInNew, 5).timeout(Duration::from_secs(1));
    let report = hangs.start().unwrap().wait();
    let text = report.error().unwrap().to_string();
    assert_eq!(report.termination(), Termination::TimedOut, "{text}");
    assert!(text.contains("process 1 (\"odd\")"), "{text}");
}

pub(crate) fn a_stage_that_does_not_keep_to_its_own_shapes_is_told_which_they_are() {
    allow_leaks(8);
    for (odd, told) in [
        (Odd::WritesOtherElements, "f64"),
        (Odd::WritesAnotherTensor, "tensor 1"),
        (Odd::SaysMoreRows, "[3, 4]"),
        (Odd::SaysOtherDimensions, "[4, 2]"),
    ] {
        let report = pipeline(odd, 5).start().unwrap().wait();
        let text = report.error().unwrap().to_string();
        assert_eq!(report.termination(), Termination::Failed, "{text}");
        assert!(
            text.contains(told) && text.contains("\"odd\""),
            "{odd:?}: {text}"
        );
    }
}

pub(crate) fn a_thousand_slots_are_all_used_again_by_replicas() {
    let count = 3_000;
    let report = Pipeline::new()
        .client(Client::new(0..count))
        .step(Step::of::<Plain>("first", Odd::Nothing).slots(1_000))
        .step(
            Step::of::<Plain>("second", Odd::Nothing)
                .replicas(2)
                .slots(3),
        )
        .step(Step::of::<Numbers>("numbers", ()))
        .run()
        .unwrap();
    let mut numbers = report.results::<Numbers>("numbers").unwrap().concat();
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..count));
    let items = report.items();
    assert_eq!((items.offered, items.completed), (count, count));
}

pub(crate) fn tensors_that_do_not_fit_the_next_stage_are_refused() {
    use tensormp::pipeline::stages::{Batcher, BatcherParams};

    let batch = BatcherParams {
        batch: 4,
        ..BatcherParams::default()
    };
    let of = |step: Step| {
        Pipeline::new()
            .client(crate::flow::client(1))
            .step(load())
            .step(step)
            .step(copy())
            .step(crate::flow::see())
    };
    let error = of(Step::of::<Batcher>("batch", batch)).check().unwrap_err();
    let error = error.to_string();
    for part in [
        "step \"copy\", in_queue",
        "step \"batch\"",
        "u64[≤48, 500] does not fit u64[≤12, 500]",
    ] {
        assert!(error.contains(part), "{part}: {error}");
    }
    let passes = of(Step::of::<Batcher>("batch", BatcherParams::default()));
    passes.check().unwrap();
}

pub(crate) fn a_stage_that_publishes_whatever_comes_is_refused_as_the_last() {
    use tensormp::pipeline::stages::{Batcher, BatcherParams};

    let batcher = || Step::of::<Batcher>("batch", BatcherParams::default());
    let of = |steps: Vec<Step>| {
        let first = Pipeline::new().client(crate::flow::client(1));
        steps.into_iter().fold(first, Pipeline::step)
    };
    let told = "step \"batch\", stage: Batcher is no stage for the last step";
    for steps in [vec![batcher()], vec![crate::flow::see(), batcher()]] {
        let error = of(steps).check().unwrap_err().to_string();
        assert!(
            error.contains(told) && error.contains("add a step behind it"),
            "{error}"
        );
    }
    of(vec![batcher(), crate::flow::see()]).check().unwrap();
    let config = |last: &str| {
        let config = format!(r#"{{ "client": {{ "count": 1 }}, "pipeline": [ {last} ] }}"#);
        let config = tensormp::pipeline::Config::from_json(&config).unwrap();
        let registry = || tensormp::pipeline::Registry::new().iterator("numbers", |_| Ok(0_u64..));
        let pipeline = config
            .set("iterator", "numbers")
            .unwrap()
            .pipeline(registry);
        pipeline.unwrap().check().unwrap_err().to_string()
    };
    let error = config(r#"{ "name": "batch", "stage": "Batcher" }"#);
    assert!(error.contains(told), "{error}");
    let error = config(r#"{ "name": "batch", "model": "batcher.Batcher", "gpus": [-1] }"#);
    assert!(
        error.contains("step \"batch\", model: batcher.Batcher is no stage"),
        "{error}"
    );
}

/// Hands its inputs to a thread of its own, which takes its time.
struct Elsewhere {
    to: std::sync::mpsc::Sender<Input>,
    thread: std::thread::JoinHandle<u64>,
}

impl Stage for Elsewhere {
    type Params = ();
    type Result = u64;

    fn output_spec((): &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new((): (), _: &Context) -> Result<Self, StageError> {
        let (to, from) = std::sync::mpsc::channel::<Input>();
        let thread = std::thread::spawn(move || {
            let slowly = |_: &Input| std::thread::sleep(Duration::from_millis(900));
            from.iter().inspect(slowly).count() as u64
        });
        Ok(Self { to, thread })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        if let Some(input) = input {
            self.to.send(input)?;
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<u64, StageError> {
        drop(self.to);
        Ok(self.thread.join().unwrap_or(0))
    }
}

pub(crate) fn who_lets_go_of_inputs_on_threads_of_its_own_is_in_no_knot() {
    let report = Pipeline::new()
        .client(client(4))
        .step(load().slots(2))
        .step(Step::of::<Elsewhere>("elsewhere", ()))
        .run()
        .unwrap();
    assert_eq!(report.results::<Elsewhere>("elsewhere").unwrap(), [4]);
}

/// A run one of whose processes stops itself, while a thread of its own lets go of an input, and goes on after a while; the
/// environment says where.
pub(crate) fn stopped_while_a_thread_lets_go() {
    let running = Pipeline::new()
        .client(client(3))
        .step(load().slots(1))
        .step(Step::of::<Elsewhere>("elsewhere", ()))
        .start()
        .unwrap();
    let pid = running.pids()[1];
    see_stopped(pid);
    std::thread::sleep(Duration::from_secs(1));
    resume(pid);
    let report = running.wait();
    let error = report.error().map(ToString::to_string);
    assert_eq!(error, None);
    assert_eq!(report.results::<Elsewhere>("elsewhere").unwrap(), [3]);
}

pub(crate) fn who_is_stopped_while_a_thread_of_it_lets_go_of_an_input_is_in_no_knot() {
    let at = ("TENSORMP_FAILPOINT", "input.unread@elsewhere=stop");
    assert_eq!(
        told_by("stopped_while_a_thread_lets_go", &[at]),
        Value::Null
    );
}

/// Keeps each input for some milliseconds, and then lets go of it by itself.
struct Patient {
    kept: Option<Input>,
    until: Option<Instant>,
    seen: u64,
}

impl Stage for Patient {
    type Params = ();
    type Result = u64;

    fn output_spec((): &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new((): (), _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            kept: None,
            until: None,
            seen: 0,
        })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        self.kept = input;
        self.seen += 1;
        self.until = Some(Instant::now() + Duration::from_millis(4));
        Ok(Flow::Continue)
    }

    fn wake_at(&self) -> Option<Instant> {
        self.until
    }

    fn woken(&mut self, _: &mut Output) -> Result<Flow, StageError> {
        (self.kept, self.until) = (None, None);
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<u64, StageError> {
        Ok(self.seen)
    }
}

pub(crate) fn who_is_stopped_before_it_lets_go_of_an_input_by_itself_is_in_no_knot() {
    let (inputs, ended) = until_ended();
    let running = Pipeline::new()
        .client(inputs)
        .step(load().slots(1))
        .step(Step::of::<Patient>("patient", ()))
        .start()
        .unwrap();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(100));
        let pid = running.pids()[1];
        stop(pid);
        std::thread::sleep(Duration::from_millis(600));
        resume(pid);
    }
    drop(ended);
    let report = running.wait();
    assert!(report.error().is_none(), "{report:?}");
    let offered = report.items().offered;
    assert_eq!(report.results::<Patient>("patient").unwrap(), [offered]);
}

pub(crate) fn a_writer_that_is_stopped_while_its_slots_come_back_is_in_no_knot() {
    let (inputs, ended) = until_ended();
    let slow = SeeParams {
        ms: 3,
        ..SeeParams::default()
    };
    let running = Pipeline::new()
        .client(inputs)
        .step(load().slots(2))
        .step(Step::of::<See>("see", slow))
        .start()
        .unwrap();
    for _ in 0..3 {
        std::thread::sleep(Duration::from_millis(100));
        // It waits for a slot most of the time; meanwhile all slots are given back, and the reader waits as well.
        let pid = running.pids()[0];
        stop(pid);
        std::thread::sleep(Duration::from_millis(700));
        resume(pid);
    }
    drop(ended);
    let report = running.wait();
    assert!(report.error().is_none(), "{report:?}");
    let offered = report.items().offered;
    assert!(numbers(&report, "see").into_iter().eq(0..offered));
}
