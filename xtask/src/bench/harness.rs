//! Measures one case: floor and subject alternate in short batches, and the ratio is the median over the pairs.
//!
//! The floor's own median moves by half within minutes on a shared machine, so a floor measured before and a subject
//! measured after cannot be compared. Each pair is floor, subject, floor: the subject against the mean of its neighbours, and
//! the neighbours against each other, which shows the noise.

use serde::Serialize;

use super::catalogue::Case;
use super::machine::Pins;
use super::pair::Pair;
use super::stats::{median, percentile};
use crate::Result;

/// How many pairs.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Effort {
    Quick,
    Full,
}

impl Effort {
    fn pairs(self) -> usize {
        match self {
            Effort::Quick => 9,
            Effort::Full => 25,
        }
    }
}

/// What came out, as one line of the report. All but the ratios in nanoseconds.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Figures {
    pub(crate) suite: &'static str,
    pub(crate) case: String,
    pub(crate) metric: &'static str,
    /// Samples of the subject.
    pub(crate) n: usize,
    pub(crate) p50: u64,
    pub(crate) p99: u64,
    pub(crate) p999: u64,
    /// Subject / floor.
    pub(crate) floor_ratio: f64,
    /// The case that was the floor.
    pub(crate) floor: String,
    /// Floor / floor: what it differs from 1 is noise.
    pub(crate) floor_self_ratio: f64,
}

pub(crate) fn measure(
    suite: &'static str,
    case: &Case,
    effort: Effort,
    pins: Pins,
) -> Result<Figures> {
    let subject = case.subject.as_ref();
    let floor = case.floor.as_deref().unwrap_or(subject);
    let failed = |error| format!("{suite}: {}: {error}", subject.name());
    let mut pair = Pair::start(pins).map_err(failed)?;
    let subject_end = pair.open(subject).map_err(failed)?;
    let floor_end = if case.floor.is_some() {
        pair.open(floor).map_err(failed)?
    } else {
        subject_end
    };

    let mut samples = Vec::new();
    let (mut ratios, mut self_ratios) = (Vec::new(), Vec::new());
    // The first round is warm-up.
    for round in 0..=effort.pairs() {
        let before = batch_median(
            pair.run(floor_end, floor.batch()).map_err(failed)?,
            &floor.name(),
        )?;
        let batch = pair.run(subject_end, subject.batch()).map_err(failed)?;
        let after = batch_median(
            pair.run(floor_end, floor.batch()).map_err(failed)?,
            &floor.name(),
        )?;
        if round > 0 {
            ratios
                .push(batch_median(batch.clone(), &subject.name())? / f64::midpoint(before, after));
            self_ratios.push(after / before);
            samples.extend(batch);
        }
    }
    Ok(Figures {
        suite,
        case: subject.name(),
        metric: subject.metric(),
        n: samples.len(),
        p50: percentile(&mut samples, 0.5),
        p99: percentile(&mut samples, 0.99),
        p999: percentile(&mut samples, 0.999),
        floor_ratio: rounded(median(&ratios)),
        floor: floor.name(),
        floor_self_ratio: rounded(median(&self_ratios)),
    })
}

fn batch_median(mut batch: Vec<u64>, name: &str) -> Result<f64> {
    match percentile(&mut batch, 0.5) {
        0 => Err(
            format!("{name}: a batch gave no sample (of what should sleep, nothing slept?)").into(),
        ),
        median => Ok(median as f64),
    }
}

/// To three places: more would claim what was not measured.
fn rounded(ratio: f64) -> f64 {
    (ratio * 1000.0).round() / 1000.0
}
