//! What several scenes have in common: steps that do nothing special, a run of them, and programs that are told at which step
//! to stop or die.

use std::marker::PhantomData;
use std::process::Stdio;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tensormp::pipeline::{
    Context, Flow, Input, Output, Pipeline, Stage, StageError, Step, TensorSpec, Unfinished,
};

use crate::flow::{client, see};
use crate::stages::*;

/// Loads numbers, and nothing special.
pub(crate) fn load() -> Step {
    Step::of::<Load>("load", LoadParams::default())
}

/// Copies what was loaded.
pub(crate) fn copy() -> Step {
    Step::of::<Copy>("copy", SeeParams::default())
}

/// Two processes that load and two that copy, with two slots each, and each replaced so often; behind them one that looks.
pub(crate) fn replaced_in_twos(items: u64, restarts: u32) -> Pipeline {
    let again = |step: Step| step.replicas(2).slots(2);
    let again = |step| again(step).restart(restarts, Unfinished::Redeliver);
    let pipeline = Pipeline::new().client(client(items));
    let pipeline = pipeline.step(again(load())).step(again(copy()));
    pipeline.step(see())
}

/// What a scene that is played with this in its environment tells as JSON; nothing where it prints nothing.
pub(crate) fn told_by(scene: &str, environment: &[(&str, &str)]) -> Value {
    let mut command = integration_tests::play(scene);
    let command = command.envs(environment.iter().copied());
    let output = command.stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{scene}, {environment:?}: {said}");
    match output.stdout.is_empty() {
        true => Value::Null,
        false => serde_json::from_slice(&output.stdout).expect("one JSON value"),
    }
}

/// A stage that does nothing, with parameters that say what may be given to it.
pub(crate) struct Idle<P>(PhantomData<P>);

impl<P: Serialize + DeserializeOwned + Clone + Send + Sync + 'static> Stage for Idle<P> {
    type Params = P;
    type Result = ();

    fn output_spec(_: &P) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(_: P, _: &Context) -> Result<Self, StageError> {
        Ok(Self(PhantomData))
    }

    fn process(&mut self, _: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}
