//! The stages that these tests run.

use serde::{Deserialize, Serialize};
use std::time::Duration;
use tensormp::Sender;
use tensormp::pipeline::{Context, Flow, Input, Output, Parts, Stage, StageError, TensorSpec};

/// Rows of a slot, and elements of a row.
pub(crate) const ROWS: usize = 12;
pub(crate) const ROW: usize = 500;

/// Makes `count` items itself: number `n` is written all over item `n`.
pub(crate) struct Numbers {
    next: u64,
    count: u64,
}

impl Stage for Numbers {
    type Params = u64;
    type Result = u64;

    fn output_spec(_: &u64) -> Vec<TensorSpec> {
        vec![
            TensorSpec::of::<u64>([ROWS, ROW]),
            TensorSpec::of::<f32>(()),
        ]
    }

    fn new(count: u64, _: &Context) -> Result<Self, StageError> {
        Ok(Self { next: 0, count })
    }

    fn process(&mut self, _: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        if self.next == self.count {
            return Ok(Flow::End);
        }
        write(self.next, ROWS, output)?;
        self.next += 1;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<u64, StageError> {
        Ok(self.next)
    }
}

fn write(number: u64, rows: usize, output: &mut Output) -> Result<(), StageError> {
    let mut slot = output.loan()?;
    let (all, one) = slot.two_tensors_mut::<u64, f32>(0, 1)?;
    all.fill(number);
    one[0] = number as f32;
    slot.set_valid(0, rows)?;
    slot.set_sequence(number);
    slot.set_payload(&format!("item {number}"))?;
    output.publish(slot)?;
    Ok(())
}

/// What [`Load`] does with an input.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct LoadParams {
    /// Ends every input whose number this divides without an output.
    pub(crate) skip: u64,
    /// Publishes so many more outputs for each.
    pub(crate) more: u64,
    /// Valid rows: as many as the number says, from 1.
    pub(crate) ragged: bool,
    /// Milliseconds that each takes.
    pub(crate) ms: u64,
    /// Every so manieth takes 30 ms.
    pub(crate) slow: u64,
}

/// Writes each number that a client offers into a slot.
pub(crate) struct Load(LoadParams);

impl Stage for Load {
    type Params = LoadParams;
    type Result = usize;

    fn output_spec(_: &LoadParams) -> Vec<TensorSpec> {
        Numbers::output_spec(&0)
    }

    fn new(params: LoadParams, _: &Context) -> Result<Self, StageError> {
        Ok(Self(params))
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        let number: u64 = input.payload()?;
        drop(input);
        let is_slow = self.0.slow > 0 && number % self.0.slow == self.0.slow / 2;
        let ms = if is_slow { 30 } else { self.0.ms };
        std::thread::sleep(Duration::from_millis(ms));
        if self.0.skip > 0 && number.is_multiple_of(self.0.skip) {
            return Ok(Flow::Continue);
        }
        let rows = if self.0.ragged {
            1 + number as usize % ROWS
        } else {
            ROWS
        };
        for _ in 0..=self.0.more {
            write(number, rows, output)?;
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<usize, StageError> {
        Ok(0)
    }
}

/// What [`See`] and [`Copy`] do.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct SeeParams {
    pub(crate) ms: u64,
    /// Inputs that are kept at once.
    pub(crate) keep: usize,
    /// Ends after so many.
    pub(crate) enough: Option<usize>,
    /// At this item...
    pub(crate) at: Option<u64>,
    /// ... the process, unless it is a replacement: errs, panics, dies, hangs.
    pub(crate) does: String,
}

/// Checks each item, and brings home what it saw: number, rows, part.
pub(crate) struct See {
    params: SeeParams,
    seen: Vec<(u64, usize, u32)>,
    kept: Vec<Input>,
    first: bool,
}

impl Stage for See {
    type Params = SeeParams;
    type Result = Vec<(u64, usize, u32)>;

    fn output_spec(_: &SeeParams) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(params: SeeParams, context: &Context) -> Result<Self, StageError> {
        let first = context.restarts == 0;
        Ok(Self {
            params,
            seen: Vec::new(),
            kept: Vec::new(),
            first,
        })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        for slot in 0..input.slots() {
            check(&input, slot);
        }
        let rows = (0..input.slots()).map(|slot| input.shape_in(slot, 0).map(|shape| shape[0]));
        let rows = rows.sum::<Result<usize, _>>()?;
        if self.first && self.params.at == Some(input.sequence()) {
            mishap(&self.params.does)?;
        }
        std::thread::sleep(Duration::from_millis(self.params.ms));
        self.seen.push((input.sequence(), rows, input.part().0));
        if self.kept.len() < self.params.keep {
            self.kept.push(input);
        }
        Ok(if Some(self.seen.len()) == self.params.enough {
            Flow::End
        } else {
            Flow::Continue
        })
    }

    fn finish(self, _: &mut Output) -> Result<Self::Result, StageError> {
        Ok(self.seen)
    }
}

/// Every element is what it was written as.
pub(crate) fn check(input: &Input, slot: usize) {
    let all = input.tensor_in::<u64>(slot, 0).expect("a tensor of u64");
    let one = input.tensor_in::<f32>(slot, 1).expect("a tensor of f32");
    let (rows, number) = (input.shape_in(slot, 0).expect("a shape")[0], one[0] as u64);
    assert_eq!(all.len(), rows * ROW);
    assert!(all.iter().all(|&element| element == number), "{all:?}");
}

pub(crate) fn mishap(what: &str) -> Result<(), StageError> {
    match what {
        "err" => Err("this one is bad".into()),
        "panic" => panic!("this one is worse"),
        "die" => {
            integration_tests::kill(std::process::id());
            Ok(())
        }
        "hang" => loop {
            std::thread::sleep(Duration::from_secs(1));
        },
        _ => Ok(()),
    }
}

/// Copies its input into a slot of its own.
pub(crate) struct Copy {
    params: SeeParams,
    first: bool,
    loans: Vec<tensormp::pipeline::OutputSlot>,
}

impl Stage for Copy {
    type Params = SeeParams;
    type Result = ();

    fn output_spec(_: &SeeParams) -> Vec<TensorSpec> {
        Numbers::output_spec(&0)
    }

    fn input_spec(_: &SeeParams) -> Option<Vec<TensorSpec>> {
        Some(Numbers::output_spec(&0))
    }

    fn new(params: SeeParams, context: &Context) -> Result<Self, StageError> {
        Ok(Self {
            params,
            first: context.restarts == 0,
            loans: Vec::new(),
        })
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        let number = input.sequence();
        if self.first && self.params.at == Some(number) {
            mishap(&self.params.does)?;
        }
        std::thread::sleep(Duration::from_millis(self.params.ms));
        let mut slot = output.loan()?;
        if self.loans.len() < self.params.keep {
            self.loans.push(slot);
            return Ok(Flow::Continue);
        }
        let from = input.tensor::<u64>(0)?;
        let rows = input.shape(0)?[0];
        slot.tensor_mut::<u64>(0)?[..from.len()].copy_from_slice(from);
        slot.tensor_mut::<f32>(1)?.copy_from_slice(input.tensor(1)?);
        slot.set_valid(0, rows)?;
        slot.set_sequence(number);
        slot.set_tag(input.tag());
        drop(input);
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

/// Brings home how many segments came for each item, once all had.
pub(crate) struct Join {
    parts: Parts,
    whole: Vec<(u64, Vec<usize>)>,
}

impl Stage for Join {
    type Params = ();
    type Result = Vec<(u64, Vec<usize>)>;

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            parts: Parts::new(),
            whole: Vec::new(),
        })
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        check(&input, 0);
        if let Some(whole) = self.parts.push(input)? {
            let rows = whole.iter().map(|part| part.shape(0).map(|shape| shape[0]));
            let rows = rows.collect::<Result<_, _>>()?;
            self.whole.push((whole[0].sequence(), rows));
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<Self::Result, StageError> {
        assert_eq!(self.parts.incomplete(), 0);
        Ok(self.whole)
    }
}

/// A value without tensors: adds one to each number.
pub(crate) struct Add;

impl Stage for Add {
    type Params = ();
    type Result = ();

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        if let Some(input) = input {
            output.send(&(input.payload::<u64>()? + 1))?;
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

/// Brings home the numbers that came without tensors.
pub(crate) struct Values(Vec<u64>);

impl Stage for Values {
    type Params = ();
    type Result = Vec<u64>;

    fn output_spec(_: &Self::Params) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self(Vec::new()))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        if let Some(input) = input {
            self.0.push(input.payload()?);
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<Vec<u64>, StageError> {
        Ok(self.0)
    }
}

/// Brings home how many rows each input had.
pub(crate) struct Rows(Vec<usize>, Option<Sender<()>>);

impl Stage for Rows {
    /// Where it says that it has seen a batch.
    type Params = Option<Sender<()>>;
    type Result = Vec<usize>;

    fn output_spec(_: &Self::Params) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(seen: Self::Params, _: &Context) -> Result<Self, StageError> {
        Ok(Self(Vec::new(), seen))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        if let Some(input) = input {
            self.0.push(input.shape(0)?[0]);
            if let Some(seen) = &self.1 {
                // Nobody waits for the last.
                let _ = seen.put(());
            }
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<Vec<usize>, StageError> {
        Ok(self.0)
    }
}

/// Errs at its item, again and again.
pub(crate) struct Crash(SeeParams);

impl Stage for Crash {
    type Params = SeeParams;
    type Result = ();

    fn output_spec(_: &SeeParams) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(params: SeeParams, _: &Context) -> Result<Self, StageError> {
        Ok(Self(params))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        match input {
            Some(input) if Some(input.sequence()) == self.0.at => Err("again".into()),
            _ => Ok(Flow::Continue),
        }
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}
