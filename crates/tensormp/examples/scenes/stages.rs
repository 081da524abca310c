//! The job over rings: four processes, three kinds of stages, and no frame copied between them.

use tensormp::Sender;
use tensormp::Stdin;
use tensormp::pipeline::{
    Context, Flow, Input as Item, Output, Pipeline, Running, Stage, StageError, Step, TensorSpec,
};

use crate::detect::{Cut, Detector};
use crate::error::{Error, Result};
use crate::features::{BLOCKS, GRID, HISTOGRAM, features};
use crate::hops::{HopTimes, Run, Transport};
use crate::source::{Input, Source};
use crate::video::{Format, Header};
use crate::{TO_DETECT, TO_FEATURES};

/// Starts the processes. Each cut goes into `found` when it is certain.
pub(crate) fn start(
    input: &Input,
    header: &Header,
    workers: usize,
    slots: usize,
    found: Sender<Cut>,
) -> Result<Running> {
    let slots = u32::try_from(slots).map_err(|_| Error::Options(format!("{slots} slots")))?;
    let stdin = match input {
        Input::Stdin => Stdin::Inherit,
        Input::File(_) | Input::Clip { .. } => Stdin::Null,
    };
    let running = Pipeline::new()
        .step(
            Step::of::<Decode>("decode", (input.clone(), *header))
                .slots(slots)
                .stdin(stdin),
        )
        .step(
            Step::of::<Extract>("features", header.format)
                .replicas(workers)
                .slots(slots),
        )
        .step(Step::of::<Detect>("detect", (header.format, found)))
        .start()?;
    Ok(running)
}

/// Waits for the end and gathers the figures.
pub(crate) fn finish(running: Running) -> Result<Run> {
    let report = running.join()?;
    if let Some(failed) = report
        .results::<Decode>("decode")?
        .into_iter()
        .flatten()
        .next()
    {
        return Err(failed);
    }
    let mut to_features = HopTimes::default();
    for times in report.results::<Extract>("features")? {
        to_features.merge(&times);
    }
    let mut frames = 0;
    let mut to_detect = HopTimes::default();
    for outcome in report.results::<Detect>("detect")? {
        let (seen, times) = outcome;
        frames += seen;
        to_detect.merge(&times);
    }
    Ok(Run {
        transport: Transport::Ring,
        frames,
        seconds: report.seconds(),
        hops: vec![(TO_FEATURES, to_features), (TO_DETECT, to_detect)],
    })
}

/// Notes how long an item was on its way; a pipeline stamps all of them.
fn record(times: &mut HopTimes, item: &Item) {
    times.record(item.published_ns(), item.asked_ns(), item.dequeued_ns());
}

/// Reads frames straight into slots.
struct Decode {
    source: Source,
    failed: Option<Error>,
}

impl Stage for Decode {
    type Params = (Input, Header);
    /// What was wrong with the input, if anything was: frames before that place are looked at all the same.
    type Result = Option<Error>;

    fn output_spec((_, header): &(Input, Header)) -> Vec<TensorSpec> {
        let format = header.format;
        vec![
            TensorSpec::of::<u8>([format.height, format.width]),
            TensorSpec::of::<u8>([2, format.chroma_height, format.chroma_width]),
        ]
    }

    fn new((input, header): (Input, Header), _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            source: input.open(&header)?,
            failed: None,
        })
    }

    fn process(&mut self, _: Option<Item>, output: &mut Output) -> Result<Flow, StageError> {
        let mut slot = output.loan()?;
        let (luma, chroma) = slot.two_tensors_mut::<u8, u8>(0, 1)?;
        match self.source.read(luma, chroma) {
            Ok(Some(frame)) => {
                slot.set_sequence(frame);
                output.publish(slot)?;
                Ok(Flow::Continue)
            }
            Ok(None) => Ok(Flow::End),
            Err(error) => {
                self.failed = Some(error);
                Ok(Flow::End)
            }
        }
    }

    fn finish(self, _: &mut Output) -> Result<Option<Error>, StageError> {
        Ok(self.failed)
    }
}

/// Turns planes into features, both where they lie.
struct Extract {
    format: Format,
    times: HopTimes,
}

impl Stage for Extract {
    type Params = Format;
    type Result = HopTimes;

    fn output_spec(_: &Format) -> Vec<TensorSpec> {
        vec![
            TensorSpec::of::<f32>([HISTOGRAM]),
            TensorSpec::of::<f32>([3, GRID.1, GRID.0]),
        ]
    }

    fn new(format: Format, _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            format,
            times: HopTimes::default(),
        })
    }

    fn process(&mut self, input: Option<Item>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(frame) = input else {
            return Ok(Flow::End);
        };
        record(&mut self.times, &frame);
        let mut slot = output.loan()?;
        slot.set_sequence(frame.sequence());
        let (histogram, blocks) = slot.two_tensors_mut::<f32, f32>(0, 1)?;
        features(
            &self.format,
            frame.tensor::<u8>(0)?,
            frame.tensor::<u8>(1)?,
            histogram,
            blocks,
        );
        // The frame's slot is free again before anything else is waited for.
        drop(frame);
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<HopTimes, StageError> {
        Ok(self.times)
    }
}

/// Copies the small features out, and compares them in order.
struct Detect {
    detector: Detector,
    found: Sender<Cut>,
    times: HopTimes,
}

impl Stage for Detect {
    type Params = (Format, Sender<Cut>);
    /// Frames seen, and the times of their last hop.
    type Result = (u64, HopTimes);

    fn output_spec(_: &(Format, Sender<Cut>)) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new((format, found): (Format, Sender<Cut>), _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            detector: Detector::new(format),
            found,
            times: HopTimes::default(),
        })
    }

    fn process(&mut self, input: Option<Item>, _: &mut Output) -> Result<Flow, StageError> {
        let Some(slot) = input else {
            return Ok(Flow::End);
        };
        record(&mut self.times, &slot);
        let mut histogram = [0.0; HISTOGRAM];
        let mut blocks = [0.0; BLOCKS];
        histogram.copy_from_slice(slot.tensor(0)?);
        blocks.copy_from_slice(slot.tensor(1)?);
        let frame = slot.sequence();
        drop(slot);
        for cut in self.detector.push(frame, &histogram, &blocks)? {
            self.found.put(cut)?;
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(u64, HopTimes), StageError> {
        let (frames, cuts) = self.detector.finish()?;
        for cut in cuts {
            self.found.put(cut)?;
        }
        Ok((frames, self.times))
    }
}
