//! What a user writes: a stage, which turns the items of the step before into items for the step after.

use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Result, StageError};
use crate::input::Input;
use crate::output::Output;
use crate::spec::TensorSpec;

/// One step of a pipeline, as one of its processes runs it.
///
/// The first step of a pipeline without a [client](crate::Client) is called without input until it answers
/// [`Flow::End`]; all others once for each item that comes, until no more can come. A stage may keep inputs, and publish
/// any number of outputs for one, or none.
pub trait Stage: Sized + 'static {
    /// What the stage is told when it is made; each replica gets a copy.
    type Params: Serialize + DeserializeOwned + Clone + Send + Sync + 'static;
    /// What a process of the stage brings home at the end.
    type Result: Serialize + DeserializeOwned;

    /// The tensors of an output slot; none for the last step, and for one that sends values without tensors.
    fn output_spec(params: &Self::Params) -> Vec<TensorSpec>;

    /// The same, where it depends on the tensors of the step before.
    ///
    /// # Errors
    /// When the stage can do nothing with such inputs; the run is then not started.
    fn output_spec_for(
        params: &Self::Params,
        _input: &[TensorSpec],
    ) -> Result<Vec<TensorSpec>, StageError> {
        Ok(Self::output_spec(params))
    }

    /// The tensors that the stage wants to get, where it matters: what the step before has must fit, or the run is not
    /// started.
    fn input_spec(_params: &Self::Params) -> Option<Vec<TensorSpec>> {
        None
    }

    /// Whether it publishes whatever comes, so that it can't be the last step: nobody would take that, and the run is not
    /// started. A stage that asks [`Output::has_next`] may be anywhere.
    fn needs_next(_params: &Self::Params) -> bool {
        false
    }

    /// Which segments of an item a process of the stage is to get. One that holds [`Parts`](crate::Parts) says
    /// [`Segments::All`]: then a step whose processes would each get some of them only is not run.
    fn needs_segments(_params: &Self::Params) -> Segments {
        Segments::Any
    }

    /// How many inputs, with their slots, a process of the stage keeps while it waits for another one, for as long as that
    /// takes. A step before that has no more slots than that is told of before the run, since both would wait for ever.
    fn keeps(_params: &Self::Params) -> usize {
        0
    }

    /// Makes the stage, in its process, before the run starts.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn new(params: Self::Params, context: &Context) -> Result<Self, StageError>;

    /// Does once, before the run starts, what is slow the first time. The run starts when all processes have.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn warm_up(&mut self) -> Result<(), StageError> {
        Ok(())
    }

    /// Handles one input. What the stage lets go of meanwhile, such as the inputs of a batch, is done with once it returns:
    /// when it fails, all of that counts as unfinished. So does what threads of its own let go of while it is called; what they
    /// let go of between two calls is done with at once.
    ///
    /// # Errors
    /// Whatever ends the process, and with it the run, unless its step is to be restarted.
    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError>;

    /// When [`woken`](Self::woken) is to be called if no input comes before: for stages that wait for company, but not
    /// for ever.
    fn wake_at(&self) -> Option<Instant> {
        None
    }

    /// No input came until [`wake_at`](Self::wake_at).
    ///
    /// # Errors
    /// As [`process`](Self::process).
    fn woken(&mut self, _output: &mut Output) -> Result<Flow, StageError> {
        Ok(Flow::Continue)
    }

    /// Called when there is no more input, but not where the run is ended before its time: publishes what is left and says what
    /// the process brings home. A stage that has handed inputs to threads of its own waits for them here, for what they still
    /// hold when the process ends is not accounted for.
    ///
    /// # Errors
    /// Whatever ends the run. What the stage holds then, or when this panics, counts as unfinished, also what its threads hold.
    fn finish(self, output: &mut Output) -> Result<Self::Result, StageError>;
}

/// Which segments of an item a process of a stage is to get ([`Stage::needs_segments`]).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Segments {
    /// Each segment stands for itself.
    #[default]
    Any,
    /// All of an item, into however many it was divided.
    All,
    /// So many, which is all of an item.
    Count(u32),
}

/// Whether a stage goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// It wants to be called again.
    Continue,
    /// It has no more to do. For the first step, the end of the input; for a later one, the steps before it end as
    /// well, at their next output, once all processes that read the same queue have ended.
    End,
}

/// Which process of which step this is.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Context {
    /// The step's name.
    pub step: String,
    /// Rank of the process in the whole pipeline, from 0.
    pub rank: usize,
    /// Which replica of its step it is, from 0.
    pub replica: usize,
    /// How many replicas the step has.
    pub replicas: usize,
    /// Which queue group of its step it belongs to, from 0.
    pub group: usize,
    /// The device that it was given; -1 is the CPU.
    pub device: i32,
    /// How often this process has been replaced.
    pub restarts: u32,
}
