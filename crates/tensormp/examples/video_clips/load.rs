//! The loader: samples clips from a video and writes them straight into a slot.

use std::collections::HashMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tensormp::pipeline::{Context, Flow, Input, Output, Stage, StageError, TensorSpec};

use crate::video::Video;
use crate::{COLOURS, FRAMES, Request};

/// Parameters, with RnB's sizes where nothing is said.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct LoadParams {
    /// Clips of a video at most; a request has from one to so many.
    clips: usize,
    /// Width and height of a frame.
    size: usize,
}

impl Default for LoadParams {
    fn default() -> Self {
        Self {
            clips: 15,
            size: 112,
        }
    }
}

/// The tensor of clips: clip, colour, frame, row, column.
pub(crate) fn clips(clips: usize, size: usize) -> TensorSpec {
    TensorSpec::of::<f32>([clips, COLOURS, FRAMES, size, size])
}

pub(crate) struct Load {
    params: LoadParams,
    /// Videos that were read before.
    videos: HashMap<Option<PathBuf>, Video>,
}

impl Stage for Load {
    type Params = LoadParams;
    type Result = ();

    fn output_spec(params: &LoadParams) -> Vec<TensorSpec> {
        vec![clips(params.clips, params.size)]
    }

    fn new(params: LoadParams, _: &Context) -> Result<Self, StageError> {
        if params.clips == 0 || params.size == 0 {
            return Err("clips and size are at least 1".into());
        }
        Ok(Self {
            params,
            videos: HashMap::new(),
        })
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Err("the loader gets its requests from a client".into());
        };
        let Request { path, number } = input.payload()?;
        if !self.videos.contains_key(&path) {
            let video = match &path {
                Some(path) => Video::read(path)?,
                None => Video::generated()?,
            };
            self.videos.insert(path.clone(), video);
        }
        let video = &self.videos[&path];
        let LoadParams { clips, size } = self.params;
        // A small generator, so that a request means the same clips in every run.
        let mut random = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x5851_f42d;
        let mut below = |n: usize| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            (random % n as u64) as usize
        };
        let count = 1 + below(clips);
        let mut slot = output.loan()?;
        let plane = size * size;
        let tensor = slot.tensor_mut::<f32>(0)?;
        for clip in tensor
            .chunks_exact_mut(COLOURS * FRAMES * plane)
            .take(count)
        {
            let start = below(video.frames().saturating_sub(FRAMES) + 1);
            for frame in 0..FRAMES {
                video.write(
                    start + frame,
                    size,
                    FRAMES * plane,
                    &mut clip[frame * plane..],
                );
            }
        }
        slot.set_valid(0, count)?;
        slot.set_sequence(number);
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}
