//! What a user writes: a stage, which turns the slots of the step before into slots for the step after.

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Result, StageError};
use crate::ring::Producer;
use crate::slot::{Borrowed, Slot};
use crate::spec::TensorSpec;

/// One step of a pipeline, as one of its processes runs it.
///
/// The first step is called without input until it answers [`Flow::End`]; the others once for each slot that comes,
/// until no producer of the step before is left. A stage may keep an input and publish any number of outputs for it.
pub trait Stage: Sized + 'static {
    /// What the stage is told when it is made; each replica gets a copy.
    type Params: Serialize + DeserializeOwned;
    /// What a process of the stage brings home at the end.
    type Result: Serialize + DeserializeOwned;

    /// The tensors of an output slot; none for the last step.
    fn output_spec(params: &Self::Params) -> Vec<TensorSpec>;

    /// Makes the stage, in its process, before the run starts.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn new(params: Self::Params, context: &Context) -> Result<Self, StageError>;

    /// Handles one input.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn process(&mut self, input: Option<Borrowed>, output: &mut Output)
    -> Result<Flow, StageError>;

    /// Called when there is no more input: publishes what is left and says what the process brings home.
    ///
    /// # Errors
    /// Whatever ends the run.
    fn finish(self, output: &mut Output) -> Result<Self::Result, StageError>;
}

/// Whether a stage goes on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flow {
    /// It wants to be called again.
    Continue,
    /// It has no more to do. For the first step, the end of the input; for a later one, the steps before it end as
    /// well, at their next output.
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
}

/// Where a stage puts its results.
#[derive(Debug)]
pub struct Output {
    pub(crate) producer: Option<Producer>,
    pub(crate) published: u64,
}

impl Output {
    /// A free slot of the step's output ring, waiting for one.
    ///
    /// # Errors
    /// As [`Producer::loan`]; in the last step, which has no ring.
    pub fn loan(&mut self) -> Result<Slot> {
        self.producer()?.loan()
    }

    /// Hands a slot over to the next step.
    ///
    /// # Errors
    /// As [`Producer::publish`]; in the last step, which has no ring.
    pub fn publish(&mut self, slot: Slot) -> Result<()> {
        self.producer()?.publish(slot)?;
        self.published += 1;
        Ok(())
    }

    /// Slots that this process has published.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Whether the next step wants no more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.producer.as_ref().is_some_and(Producer::is_abandoned)
    }

    fn producer(&mut self) -> Result<&mut Producer> {
        self.producer.as_mut().ok_or_else(|| {
            Error::invalid(
                "the last step of a pipeline has no ring to put slots into; add a step after it",
            )
        })
    }
}
