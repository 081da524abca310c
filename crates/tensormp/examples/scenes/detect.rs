//! Finds hard cuts in the features of a video's frames.
//!
//! At a cut everything before differs from everything after. So the *strength* of frame t is the least difference
//! between any of the few frames before t and any of the few frames from t on: a flash is no cut, because the picture
//! comes back; a fade is none, because neighbours hardly differ. What counts as strong depends on the surroundings: a
//! cut has to stand out from what motion does nearby. Nothing here depends on a video's size, light or contrast.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::features::{BLOCKS, CELLS, HISTOGRAM};
use crate::order::Reorder;
use crate::video::Format;

/// How many frames on each side are compared. A change that is undone within fewer frames is a flash, and of cuts
/// closer together only the strongest is reported.
const SIDE: usize = 4;
/// How many strengths on each side are the surroundings.
const SURROUNDINGS: usize = 12;
/// A cut is this many times as strong as its surroundings.
const OUTSTANDING: f32 = 2.0;
/// What surroundings are always taken to have: in a still picture, noise and compression are no cuts.
const STILLNESS: f32 = 0.05;
/// Square of the contrast (as a share of full scale) below which a picture counts as blank: differences between blank
/// pictures are measured against this instead of against their contrast.
const BLANK: f32 = 0.04 * 0.04;
/// A change of the mean chroma by the inverse of this is as much as other light in every pixel.
const TINT: f32 = 4.0;

/// A hard cut.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Cut {
    /// The first frame of the new shot, counted from 0.
    pub(crate) frame: u64,
    /// When it is shown, in seconds.
    pub(crate) time: f64,
    /// How clear the cut is: the part of the change that the surroundings do not explain, from 0 to 1.
    pub(crate) score: f32,
}

/// One frame's features, copied out of the place they came in.
#[derive(Clone, Debug)]
pub(crate) struct Features {
    histogram: [f32; HISTOGRAM],
    blocks: [f32; BLOCKS],
}

impl Features {
    fn copied(histogram: &[f32], blocks: &[f32]) -> Self {
        let mut features = Self {
            histogram: [0.0; HISTOGRAM],
            blocks: [0.0; BLOCKS],
        };
        features.histogram.copy_from_slice(histogram);
        features.blocks.copy_from_slice(blocks);
        features
    }

    /// From 0 (the same picture) to 1 (nothing in common). Pictures differ where both their layout and their light
    /// differ: motion changes the layout and leaves the light, a lamp that is switched on does the opposite. The
    /// layout says more, so it weighs twice in this (geometric) mean.
    fn difference(&self, other: &Self) -> f32 {
        (self.layout_difference(other).powi(2) * self.light_difference(other)).cbrt()
    }

    /// The share of pixels whose light changed, wherever they are, or as much of a change of the whole colour.
    fn light_difference(&self, other: &Self) -> f32 {
        let pairs = self.histogram.iter().zip(&other.histogram);
        let moved = pairs.map(|(one, two)| (one - two).abs()).sum::<f32>() / 2.0;
        let chroma = self.planes().zip(other.planes()).skip(1);
        let tint =
            chroma.map(|(one, two)| mean(one.iter().zip(two).map(|(one, two)| one - two)).abs());
        (moved + TINT * tint.sum::<f32>()).min(1.0)
    }

    /// The energy of the difference as a part of the energy of both pictures, which is 1 for unrelated ones.
    fn layout_difference(&self, other: &Self) -> f32 {
        let (mut difference, mut contrast) = (0.0, BLANK);
        for (one, two) in self.planes().zip(other.planes()) {
            contrast += variance(one) + variance(two);
            difference += mean(one.iter().zip(two).map(|(one, two)| (one - two).powi(2)));
        }
        (difference / contrast).min(1.0)
    }

    fn planes(&self) -> impl Iterator<Item = &[f32]> {
        self.blocks.chunks_exact(CELLS)
    }
}

/// Of as many values as a plane has cells.
fn mean(values: impl Iterator<Item = f32>) -> f32 {
    values.sum::<f32>() / CELLS as f32
}

fn variance(plane: &[f32]) -> f32 {
    let middle = mean(plane.iter().copied());
    mean(plane.iter().map(|value| (value - middle).powi(2)))
}

/// Takes features in any order, gives cuts in theirs.
#[derive(Debug)]
pub(crate) struct Detector {
    format: Format,
    order: Reorder<Features>,
    /// The last frames, up to [`SIDE`] on both sides of the one whose strength is next.
    frames: VecDeque<Features>,
    /// How many frames came so far, in order.
    seen: u64,
    /// The strengths around the frame that is judged next, of frames up to `measured`.
    strengths: VecDeque<f32>,
    /// Frames before this one have a strength. Frame 0 has none: nothing is before it.
    measured: u64,
    /// Frames before this one have been judged.
    judged: u64,
}

impl Detector {
    pub(crate) fn new(format: Format) -> Self {
        Self {
            format,
            order: Reorder::new(),
            frames: VecDeque::new(),
            seen: 0,
            strengths: VecDeque::new(),
            measured: 1,
            judged: 1,
        }
    }

    /// Takes the features of frame `frame`: [`HISTOGRAM`] and [`BLOCKS`] values, which it copies. Returns the cuts
    /// that are certain by now.
    pub(crate) fn push(
        &mut self,
        frame: u64,
        histogram: &[f32],
        blocks: &[f32],
    ) -> Result<Vec<Cut>> {
        self.order.put(frame, Features::copied(histogram, blocks))?;
        let mut cuts = Vec::new();
        while let Some(features) = self.order.take() {
            self.frames.push_back(features);
            self.seen += 1;
            while self.measured + SIDE as u64 <= self.seen {
                self.measure();
                while self.judged + (SURROUNDINGS as u64) < self.measured {
                    cuts.extend(self.judge());
                }
            }
        }
        Ok(cuts)
    }

    /// The input has ended: returns the number of frames and the remaining cuts. These are judged by what there is:
    /// a picture that changes right before the end and never comes back counts as cut.
    pub(crate) fn finish(mut self) -> Result<(u64, Vec<Cut>)> {
        let frames = self.order.finish()?;
        let mut cuts = Vec::new();
        while self.measured < self.seen {
            self.measure();
        }
        while self.judged < self.measured {
            cuts.extend(self.judge());
        }
        Ok((frames, cuts))
    }

    /// Finds the strength of the next frame, from the frames that are there on both sides.
    fn measure(&mut self) {
        let first = self.seen - self.frames.len() as u64;
        let at = (self.measured - first) as usize;
        let before = self.frames.range(at.saturating_sub(SIDE)..at);
        let after = self.frames.range(at..self.frames.len().min(at + SIDE));
        let pairs = before.flat_map(|one| after.clone().map(|two| one.difference(two)));
        let strength = pairs.fold(1.0, f32::min);
        self.strengths.push_back(strength);
        self.measured += 1;
        if at >= SIDE {
            self.frames.pop_front();
        }
    }

    /// Decides about the next frame, from the strengths that are there on both sides.
    fn judge(&mut self) -> Option<Cut> {
        let first = self.measured - self.strengths.len() as u64;
        let at = (self.judged - first) as usize;
        let frame = self.judged;
        let strength = self.strengths[at];
        let outstanding = self.outstanding(at, strength);
        self.judged += 1;
        if at >= SURROUNDINGS {
            self.strengths.pop_front();
        }
        (outstanding > OUTSTANDING).then(|| Cut {
            frame,
            time: self.format.seconds(frame),
            score: 1.0 - 1.0 / outstanding,
        })
    }

    /// How many times as strong as its surroundings a strength is; 0 if a stronger one is too close.
    fn outstanding(&self, at: usize, strength: f32) -> f32 {
        let close = self.strengths.range(at.saturating_sub(SIDE - 1)..at);
        let stronger_before = close.clone().any(|&other| other >= strength);
        let close = self
            .strengths
            .range(at + 1..self.strengths.len().min(at + SIDE));
        let stronger_after = close.clone().any(|&other| other > strength);
        if stronger_before || stronger_after {
            return 0.0;
        }
        let before = self.strengths.range(at.saturating_sub(SURROUNDINGS)..at);
        let after = self
            .strengths
            .range(at + 1..self.strengths.len().min(at + 1 + SURROUNDINGS));
        let mut others: Vec<f32> = before.chain(after).copied().collect();
        others.sort_by(f32::total_cmp);
        // Other cuts may be near: the strongest fifth does not count.
        let usual = others.get(others.len() * 4 / 5).copied().unwrap_or(0.0);
        strength / (usual + STILLNESS)
    }
}

#[cfg(test)]
mod tests;
