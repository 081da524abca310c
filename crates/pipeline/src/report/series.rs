//! What the plots show, as numbers.

use std::collections::HashMap;

use super::read::{Card, Run};
use super::summary::latencies;

/// Buckets that a run's time is cut into.
const BUCKETS: usize = 100;
/// Points of a curve at most: more than that no screen shows.
const POINTS: usize = 400;

/// A curve with a name.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// Seconds since the start of work.
fn seconds(run: &Run, at: u64) -> f64 {
    at.saturating_sub(run.clock_start_ns) as f64 / 1e9
}

/// How many buckets, and how long one is in seconds.
fn buckets(run: &Run, items: usize) -> (usize, f64) {
    let count = (items / 3).clamp(1, BUCKETS);
    let whole = (run.duration_ns() as f64 / 1e9).max(1e-9);
    (count, whole / count as f64)
}

/// Per step, over the time at which items were completed: the mean part of their latency that the step took, milliseconds.
pub(super) fn latency_by_step(run: &Run) -> Vec<Curve> {
    let completed: HashMap<u64, u64> = completed_at(run);
    let (count, width) = buckets(run, completed.len());
    let bucket = |at: u64| ((seconds(run, at) / width) as usize).min(count - 1);
    let mut items = vec![0_u64; count];
    for at in completed.values() {
        items[bucket(*at)] += 1;
    }
    run.steps
        .iter()
        .map(|step| {
            let mut sums = vec![0_f64; count];
            for card in run.cards.iter().filter(|card| card.step == step.name) {
                if let Some(at) = completed.get(&card.item) {
                    sums[bucket(*at)] += card.done().saturating_sub(card.enqueued) as f64 / 1e6;
                }
            }
            let points = (0..count)
                .filter(|&index| items[index] > 0)
                .map(|index| {
                    let middle = (index as f64 + 0.5) * width;
                    (middle, sums[index] / items[index] as f64)
                })
                .collect();
            Curve {
                name: step.name.clone(),
                points,
            }
        })
        .collect()
}

/// When each item was completed.
fn completed_at(run: &Run) -> HashMap<u64, u64> {
    let last = run.steps.last().map(|step| step.name.as_str());
    let mut at = HashMap::new();
    let of_last = |card: &&Card| card.is_ok() && Some(card.step.as_str()) == last;
    for card in run.cards.iter().filter(of_last) {
        let latest = at.entry(card.item).or_insert(0);
        *latest = card.done().max(*latest);
    }
    at
}

/// The part of the items, in percent, that took at most so many milliseconds.
pub(super) fn distribution(run: &Run) -> Vec<(f64, f64)> {
    let mut sorted: Vec<u64> = latencies(run).into_iter().map(|(_, ns)| ns).collect();
    sorted.sort_unstable();
    let all = sorted.len();
    let every = all.div_ceil(POINTS).max(1);
    sorted
        .iter()
        .enumerate()
        .filter(|(index, _)| index % every == 0 || index + 1 == all)
        .map(|(index, &ns)| (ns as f64 / 1e6, 100.0 * (index + 1) as f64 / all as f64))
        .collect()
}

/// Items a second over time.
///
/// A bucket ends with an item and has as many as it takes to say something of their rate: of a bucket that ends in between
/// two it would be chance whether there is one item more or less in it. Steps, since a bucket is as long as its items took.
pub(super) fn throughput(run: &Run) -> Vec<(f64, f64)> {
    let completed = latencies(run);
    let (Some(&(last, _)), all) = (completed.last(), completed.len()) else {
        return Vec::new();
    };
    // Of n items that come by chance the number varies by the square root of n.
    let least = (all as f64).sqrt().ceil().max(all as f64 / BUCKETS as f64) as usize;
    let shortest = seconds(run, run.ended_ns.max(last)) / POINTS as f64;
    let mut points: Vec<(f64, f64)> = Vec::new();
    let (mut begin, mut items) = (0.0, 0);
    for (index, &(at, _)) in completed.iter().enumerate() {
        items += 1;
        let now = seconds(run, at);
        let left = all - index - 1;
        // What comes at once stays together, and too few are no bucket of their own.
        let is_whole = items >= least && (left == 0 || left >= least);
        let is_apart = completed.get(index + 1).is_none_or(|next| next.0 > at);
        if left == 0 || is_whole && is_apart && now - begin >= shortest {
            points.push((begin, items as f64 / (now - begin).max(1e-9)));
            (begin, items) = (now, 0);
        }
    }
    // To where the last item came, and nothing from there on, where the run took much longer.
    let value = points.last().map_or(0.0, |point| point.1);
    points.push((begin, value));
    let end = seconds(run, run.ended_ns);
    if end - begin > 0.02 * end {
        points.extend([(begin, 0.0), (end, 0.0)]);
    }
    points
}

/// Slots in use over time, per ring.
pub(super) fn occupancy(run: &Run) -> Vec<Curve> {
    run.rings
        .iter()
        .map(|ring| {
            let samples: Vec<_> = run
                .samples
                .iter()
                .filter(|sample| sample.ring == ring.name)
                .collect();
            let every = samples.len().div_ceil(POINTS).max(1);
            Curve {
                name: format!("{} ({} slots)", ring.name, ring.slots),
                points: samples
                    .iter()
                    .step_by(every)
                    .map(|sample| (seconds(run, sample.t), f64::from(sample.in_use)))
                    .collect(),
            }
        })
        .filter(|curve| !curve.points.is_empty())
        .collect()
}
