//! The stages of the tests of slots on devices.

use std::collections::HashMap;

use cuda_ipc::{DeviceTensor, SharedDeviceTensor};
use serde::{Deserialize, Serialize};
use tensormp::pipeline::{Context, Device, Flow, Input, Output, Stage, StageError, TensorSpec};
use tensormp::prelude::*;

pub(crate) const WIDTH: usize = 300;

/// Where things are, and what to say when an item is done.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Params {
    pub(crate) place: Device,
    pub(crate) rows: usize,
    pub(crate) done: Option<Sender<u64>>,
}

impl Params {
    pub(crate) fn on(place: Device) -> Self {
        Self {
            place,
            rows: 1,
            done: None,
        }
    }
}

impl Default for Params {
    fn default() -> Self {
        Self::on(Device::Own)
    }
}

pub(crate) fn spec(params: &Params) -> TensorSpec {
    TensorSpec::of::<u64>([params.rows, WIDTH]).on(params.place)
}

/// Fills a slot with the number that comes: on its device by work that is still to be done when it is published.
pub(crate) struct Fill {
    sources: HashMap<u64, DeviceTensor<u64>>,
    pub(crate) rows: usize,
    places: Vec<i32>,
}

impl Stage for Fill {
    type Params = Params;
    /// On which devices slots were, -1 for the CPU.
    type Result = Vec<i32>;

    fn output_spec(params: &Params) -> Vec<TensorSpec> {
        vec![spec(params)]
    }

    fn new(params: Params, _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            sources: HashMap::new(),
            rows: params.rows,
            places: Vec::new(),
        })
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        let number = input.payload::<u64>()?;
        let mut slot = output.loan()?;
        match slot.device() {
            Some(device) => {
                self.places.push(device.ordinal() as i32);
                let stream = cuda_ipc::Stream::of(device)?;
                let source = self.sources.entry(number % 7).or_insert_with(|| {
                    DeviceTensor::zeros_on(&stream, [self.rows, WIDTH]).unwrap()
                });
                // What the source has is different each time, and the copy is later than this returns.
                source.copy_from_slice(&vec![number; self.rows * WIDTH])?;
                slot.device_tensor_mut::<u64>(0)?.copy_from(source)?;
                assert!(slot.tensor_mut::<u64>(0).is_err());
            }
            None => {
                self.places.push(-1);
                slot.tensor_mut::<u64>(0)?.fill(number);
                assert!(slot.device_tensor_mut::<u64>(0).is_err());
            }
        }
        slot.set_sequence(number);
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(mut self, _: &mut Output) -> Result<Vec<i32>, StageError> {
        self.places.sort_unstable();
        self.places.dedup();
        Ok(self.places)
    }
}

/// Copies a slot to its own.
pub(crate) struct Pass;

impl Stage for Pass {
    type Params = Params;
    type Result = ();

    fn output_spec(params: &Params) -> Vec<TensorSpec> {
        vec![spec(params)]
    }

    fn new(_: Params, _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        let mut slot = output.loan()?;
        slot.device_tensor_mut::<u64>(0)?
            .copy_from_shared(&input.device_tensor(0)?)?;
        slot.set_sequence(input.sequence());
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

/// Reads what comes, and remembers it.
pub(crate) struct See {
    device: i32,
    pub(crate) done: Option<Sender<u64>>,
    seen: Vec<u64>,
}

impl Stage for See {
    type Params = Params;
    type Result = Vec<u64>;

    fn output_spec(_: &Params) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(params: Params, context: &Context) -> Result<Self, StageError> {
        Ok(Self {
            device: context.device,
            done: params.done,
            seen: Vec::new(),
        })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        for part in 0..input.slots() {
            let rows = input.shape_in(part, 0)?[0];
            let numbers = match u32::try_from(self.device) {
                Ok(device) => {
                    let tensor = input.device_tensor_in::<u64>(part, 0)?;
                    assert_eq!(tensor.device().ordinal(), device);
                    tensor.to_vec()?
                }
                Err(_) => input.tensor_in::<u64>(part, 0)?.to_vec(),
            };
            assert_eq!(numbers.len(), rows * WIDTH);
            for row in numbers.chunks(WIDTH) {
                assert!(row.iter().all(|number| *number == row[0]), "torn");
                self.seen.push(row[0]);
            }
        }
        let sequence = input.sequence();
        drop(input);
        if let Some(done) = &self.done {
            done.put(sequence)?;
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<Vec<u64>, StageError> {
        Ok(self.seen)
    }
}

/// Clears its slots, which costs one call that is none of the hand-off's.
pub(crate) struct Clear;

impl Stage for Clear {
    type Params = Params;
    type Result = ();

    fn output_spec(params: &Params) -> Vec<TensorSpec> {
        vec![spec(params)]
    }

    fn new(_: Params, _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, _: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let mut slot = output.loan()?;
        slot.device_tensor_mut::<u64>(0)?.clear()?;
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

/// Takes what comes and lets it go.
pub(crate) struct Take(Sender<u64>);

impl Stage for Take {
    type Params = Params;
    type Result = ();

    fn output_spec(_: &Params) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(params: Params, _: &Context) -> Result<Self, StageError> {
        Ok(Self(params.done.ok_or("nobody to tell")?))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        drop(input);
        self.0.put(0)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

/// Keeps the tensor of the first input that comes, and reads it when no more do.
pub(crate) struct Keep(Option<SharedDeviceTensor<u64>>);

impl Stage for Keep {
    type Params = Params;
    type Result = Vec<u64>;

    fn output_spec(_: &Params) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(_: Params, _: &Context) -> Result<Self, StageError> {
        Ok(Self(None))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        if self.0.is_none() {
            self.0 = Some(input.device_tensor(0)?);
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<Vec<u64>, StageError> {
        Ok(self.0.ok_or("nothing came")?.to_vec()?)
    }
}
