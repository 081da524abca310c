//! What the plots show, as numbers.

use std::collections::HashMap;

use super::lineage::{Lineage, ways};
use super::read::Run;

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

/// Per step, over the time at which inputs were completed: the mean part of their latency that the step took, milliseconds.
/// Parts of one input that a step had at the same time took it together.
pub(super) fn latency_by_step(run: &Run) -> Vec<Curve> {
    let lineage = Lineage::of(run);
    let ways = ways(run, &lineage);
    let (count, width) = buckets(run, ways.len());
    let bucket = |at: u64| ((seconds(run, at) / width) as usize).min(count - 1);
    let mut items = vec![0_u64; count];
    for way in ways.values() {
        items[bucket(way.done)] += 1;
    }
    let mut spans: HashMap<&str, HashMap<u64, (u64, u64)>> = HashMap::new();
    for card in run.cards.iter().filter(|card| card.is_ok()) {
        let of_step = spans.entry(&card.step).or_default();
        for &root in lineage.roots(&card.item) {
            let span = of_step.entry(root).or_insert((u64::MAX, 0));
            *span = (span.0.min(card.enqueued), span.1.max(card.done()));
        }
    }
    run.steps
        .iter()
        .map(|step| {
            let mut sums = vec![0_f64; count];
            for (root, (from, to)) in spans.remove(step.name.as_str()).unwrap_or_default() {
                if let Some(way) = ways.get(&root) {
                    sums[bucket(way.done)] += to.saturating_sub(from) as f64 / 1e6;
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

/// When each input was completed, in the order of time, and how long it had taken by then.
fn latencies(run: &Run) -> Vec<(u64, u64)> {
    let ways = ways(run, &Lineage::of(run));
    let ways = ways.values();
    let mut all: Vec<_> = ways
        .map(|way| (way.done, way.done.saturating_sub(way.offered)))
        .collect();
    all.sort_unstable();
    all
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

/// Slots in use over time, per ring; beside how many there are, of all processes of the step.
pub(super) fn occupancy(run: &Run) -> (Vec<Curve>, Vec<f64>) {
    run.rings
        .iter()
        .map(|ring| {
            let samples: Vec<_> = run
                .samples
                .iter()
                .filter(|sample| sample.ring == ring.name)
                .collect();
            let every = samples.len().div_ceil(POINTS).max(1);
            let most = samples.iter().map(|sample| sample.in_use).max();
            let shown = samples.iter().step_by(every);
            let mut points: Vec<_> = shown
                .map(|sample| (seconds(run, sample.t), f64::from(sample.in_use)))
                .collect();
            // What was seen last stayed so until the end.
            if let Some(last) = samples.last() {
                let end = run.ended_ns.max(last.t);
                points.push((seconds(run, end), f64::from(last.in_use)));
            }
            let curve = Curve {
                name: format!("{} ({} slots)", ring.name, ring.slots),
                points,
            };
            (curve, f64::from(most.unwrap_or(0).max(ring.slots)))
        })
        .filter(|(curve, _)| !curve.points.is_empty())
        .unzip()
}
