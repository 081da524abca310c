//! Stages that many pipelines need: a batcher and an aggregator.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use crate::error::{Error, StageError};
use crate::gather::{Batch, Parts, concatenate};
use crate::input::Input;
use crate::output::Output;
use crate::spec::TensorSpec;
use crate::stage::{Context, Flow, Segments, Stage};

/// Parameters of a [`Batcher`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BatcherParams {
    /// Inputs of a batch; 1 where nothing is said, and then they pass through without a copy.
    #[serde(default = "one")]
    pub batch: usize,
    /// How long, in milliseconds, the first input of a batch waits for others at most; for ever where nothing is said.
    #[serde(default)]
    pub deadline_ms: Option<f64>,
    /// Rows that a batch has room for; `batch` times those of an input where nothing is said.
    #[serde(default)]
    pub max_rows: Option<usize>,
}

fn one() -> usize {
    1
}

impl Default for BatcherParams {
    fn default() -> Self {
        Self {
            batch: 1,
            deadline_ms: None,
            max_rows: None,
        }
    }
}

impl BatcherParams {
    fn patience(&self) -> Result<Option<Duration>, StageError> {
        let Some(ms) = self.deadline_ms else {
            return Ok(None);
        };
        match Duration::try_from_secs_f64(ms / 1e3) {
            Ok(patience) => Ok(Some(patience)),
            Err(error) => Err(format!("deadline_ms: {ms:?} milliseconds: {error}").into()),
        }
    }
}

/// Puts inputs together along the first dimension, by count or until a deadline. RnB's `batcher.Batcher`.
///
/// The time card of a batch names the items it was made of.
#[derive(Debug)]
pub struct Batcher {
    batch: Batch,
    passes: bool,
    max_rows: Option<usize>,
}

impl Batcher {
    fn put(&self, inputs: Vec<Input>, output: &mut Output) -> Result<(), StageError> {
        if inputs.is_empty() {
            return Ok(());
        }
        if self.passes {
            output.forward(inputs)?;
            return Ok(());
        }
        let mut slot = output.loan()?;
        concatenate(&inputs, &mut slot).map_err(|error| match self.max_rows {
            Some(rows) => {
                let told = format!(
                    "putting {} inputs together, with max_rows = {rows}",
                    inputs.len()
                );
                Error::caused(error.kind().clone(), told, error)
            }
            None => error,
        })?;
        slot.set_sequence(inputs[0].sequence());
        slot.set_tag(inputs[0].tag());
        output.publish_for(slot, &inputs)?;
        Ok(())
    }
}

impl Stage for Batcher {
    type Params = BatcherParams;
    type Result = ();

    fn output_spec(_: &BatcherParams) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn output_spec_for(
        params: &BatcherParams,
        input: &[TensorSpec],
    ) -> Result<Vec<TensorSpec>, StageError> {
        if params.batch == 0 {
            return Err("batch: 0 inputs were to be put together; give it at least 1".into());
        }
        params.patience()?;
        let exact = input.iter().filter(|spec| !spec.is_maximum(0));
        let needed = exact.filter_map(|spec| spec.shape().first().copied()).max();
        if let Some(most) = params.max_rows
            && most < needed.unwrap_or(1)
        {
            let needed = needed.unwrap_or(1);
            return Err(format!(
                "max_rows: a batch of {most} rows has no room for one input, which has {needed}"
            )
            .into());
        }
        let rows = |spec: &TensorSpec| {
            let of_input = spec.shape().first().copied().unwrap_or(1);
            let all = || of_input.saturating_mul(params.batch);
            params.max_rows.unwrap_or_else(all)
        };
        let specs = input.iter().map(|spec| spec.clone().with_rows(rows(spec)));
        Ok(specs.collect())
    }

    fn needs_next(_: &BatcherParams) -> bool {
        true
    }

    fn keeps(params: &BatcherParams) -> usize {
        match params.deadline_ms {
            None => params.batch.saturating_sub(1),
            Some(_) => 0,
        }
    }

    fn new(params: BatcherParams, _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            batch: Batch::new(params.batch, params.patience()?),
            passes: params.batch <= 1,
            max_rows: params.max_rows,
        })
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        if let Some(inputs) = self.batch.push(input) {
            self.put(inputs, output)?;
        }
        Ok(Flow::Continue)
    }

    fn wake_at(&self) -> Option<Instant> {
        self.batch.due()
    }

    fn woken(&mut self, output: &mut Output) -> Result<Flow, StageError> {
        let inputs = self.batch.take();
        self.put(inputs, output)?;
        Ok(Flow::Continue)
    }

    fn finish(mut self, output: &mut Output) -> Result<(), StageError> {
        let inputs = self.batch.take();
        self.put(inputs, output)
    }
}

/// Parameters of an [`Aggregator`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AggregatorParams {
    /// Segments of each item, as the steps before divide it; as many as it comes in where nothing is said.
    #[serde(default)]
    pub aggregate: Option<u32>,
}

/// Waits for all segments of an item and passes them on as one, in the slots they are in; as the last step, it only
/// makes an item finished when all of it is. What RnB's aggregators do with the id in the time card.
///
/// One process must get all segments of an item, or the run is not started. An item of which some never come, since a stage
/// made nothing of them, counts as failed, and so does the run. Behind a step that delivers to
/// [every](crate::Delivery::Every) reader, several of which pass their copies on, it takes all copies of a segment for one:
/// the first is passed on, and an item is whole when one copy of each segment is there.
#[derive(Debug)]
pub struct Aggregator {
    aggregate: Option<u32>,
    parts: Parts,
    finished: u64,
}

impl Stage for Aggregator {
    type Params = AggregatorParams;
    /// Items that were whole, and items of which some segments never came.
    type Result = (u64, u64);

    fn output_spec(_: &AggregatorParams) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn output_spec_for(
        _: &AggregatorParams,
        input: &[TensorSpec],
    ) -> Result<Vec<TensorSpec>, StageError> {
        Ok(input.to_vec())
    }

    fn needs_segments(params: &AggregatorParams) -> Segments {
        params.aggregate.map_or(Segments::All, Segments::Count)
    }

    fn new(params: AggregatorParams, _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            aggregate: params.aggregate,
            parts: Parts::new(),
            finished: 0,
        })
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        let parts = self.aggregate.unwrap_or_else(|| input.part().1);
        if let Some(whole) = self.parts.push_of(input, parts)? {
            self.finished += 1;
            if output.has_next() {
                output.forward(whole)?;
            }
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(u64, u64), StageError> {
        Ok((self.finished, self.parts.incomplete() as u64))
    }
}
