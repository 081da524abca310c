//! The network: a 3-D convolution taken apart into one over the picture and one over time, as R(2+1)D does, and a mean.

use serde::{Deserialize, Serialize};
use tensormp::pipeline::{Context, Flow, Input, Output, Stage, StageError, TensorSpec};

use crate::load::clips;
use crate::{COLOURS, FRAMES};

/// Features of a clip: one a filter.
pub(crate) const FILTERS: usize = 8;

/// Parameters.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct ConvolveParams {
    /// Threads that share the clips of an item.
    threads: usize,
    /// Clips of an item at most, and their size, as the loader's.
    clips: usize,
    size: usize,
}

impl Default for ConvolveParams {
    fn default() -> Self {
        Self {
            threads: 1,
            clips: 15,
            size: 112,
        }
    }
}

pub(crate) struct Convolve {
    params: ConvolveParams,
    weights: Weights,
}

/// Weights that are the same everywhere.
pub(crate) struct Weights {
    /// For each filter and colour, 3 × 3 in the picture.
    space: [[[f32; 9]; COLOURS]; FILTERS],
    /// For each filter, 3 in time.
    time: [[f32; 3]; FILTERS],
}

impl Weights {
    pub(crate) fn new() -> Self {
        let mut state = 0.37_f32;
        let mut next = || {
            state = (state * 3.9 * (1.0 - state)).clamp(0.01, 0.99);
            state - 0.5
        };
        Self {
            space: std::array::from_fn(|_| {
                std::array::from_fn(|_| std::array::from_fn(|_| next()))
            }),
            time: std::array::from_fn(|_| std::array::from_fn(|_| next())),
        }
    }

    /// The features of one clip.
    fn features(&self, clip: &[f32], size: usize, features: &mut [f32]) {
        let plane = size * size;
        let mut pictures = vec![0.0_f32; FRAMES * plane];
        for (filter, feature) in features.iter_mut().enumerate() {
            for (frame, picture) in pictures.chunks_exact_mut(plane).enumerate() {
                picture.fill(0.0);
                for (colour, kernel) in self.space[filter].iter().enumerate() {
                    let from = &clip[(colour * FRAMES + frame) * plane..][..plane];
                    add_convolution(from, kernel, size, picture);
                }
                picture.iter_mut().for_each(|value| *value = value.max(0.0));
            }
            let mut sum = 0.0_f64;
            for frame in 0..FRAMES {
                for at in 0..plane {
                    let mut value = 0.0;
                    for (tap, weight) in self.time[filter].iter().enumerate() {
                        let other = (frame + tap).wrapping_sub(1);
                        if other < FRAMES {
                            value += weight * pictures[other * plane + at];
                        }
                    }
                    sum += f64::from(value.max(0.0));
                }
            }
            *feature = (sum / (FRAMES * plane) as f64) as f32;
        }
    }
}

/// Adds the convolution of a picture with 3 × 3 weights; outside it is 0.
fn add_convolution(from: &[f32], kernel: &[f32; 9], size: usize, to: &mut [f32]) {
    for (tap, &weight) in kernel.iter().enumerate() {
        let (down, right) = (tap / 3, tap % 3);
        for row in 0..size {
            let source = (row + down).wrapping_sub(1);
            if source >= size {
                continue;
            }
            let (begin, end) = (usize::from(right == 0), size - usize::from(right == 2));
            let line = &from[source * size + begin + right - 1..source * size + end + right - 1];
            let sums = &mut to[row * size + begin..row * size + end];
            for (sum, value) in sums.iter_mut().zip(line) {
                *sum += weight * value;
            }
        }
    }
}

impl Stage for Convolve {
    type Params = ConvolveParams;
    type Result = ();

    fn output_spec(params: &ConvolveParams) -> Vec<TensorSpec> {
        vec![TensorSpec::of::<f32>([params.clips, FILTERS])]
    }

    fn input_spec(params: &ConvolveParams) -> Option<Vec<TensorSpec>> {
        Some(vec![clips(params.clips, params.size)])
    }

    fn new(params: ConvolveParams, _: &Context) -> Result<Self, StageError> {
        Ok(Self {
            params,
            weights: Weights::new(),
        })
    }

    fn warm_up(&mut self) -> Result<(), StageError> {
        let size = self.params.size;
        let clip = vec![0.0; COLOURS * FRAMES * size * size];
        self.weights.features(&clip, size, &mut [0.0; FILTERS]);
        Ok(())
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Some(input) = input else {
            return Ok(Flow::End);
        };
        let (count, size) = (input.shape(0)?[0], self.params.size);
        let tensor = input.tensor::<f32>(0)?;
        let mut slot = output.loan()?;
        slot.set_valid(0, count)?;
        slot.set_sequence(input.sequence());
        let features = &mut slot.tensor_mut::<f32>(0)?[..count * FILTERS];
        let clip = COLOURS * FRAMES * size * size;
        let each = count.div_ceil(self.params.threads.max(1)).max(1);
        let weights = &self.weights;
        std::thread::scope(|scope| {
            let shares = tensor
                .chunks(each * clip)
                .zip(features.chunks_mut(each * FILTERS));
            for (clips, features) in shares {
                let mut work = move || {
                    let pairs = clips
                        .chunks_exact(clip)
                        .zip(features.chunks_exact_mut(FILTERS));
                    pairs.for_each(|(clip, features)| weights.features(clip, size, features));
                };
                if each >= count {
                    work();
                } else {
                    scope.spawn(work);
                }
            }
        });
        // The clips' slot is free before anything else is waited for.
        drop(input);
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}
