//! What a run came to: where the time went, step by step, and which step limits the others.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};

use super::lineage::{Lineage, Way, ways};
use super::read::{Card, Items, Run, Step, Termination};
use super::replacement::Replacement;
use super::verdict::{bottleneck, incomplete, waited};
use crate::counts::Counts;
use crate::replaced::Replacements;
use crate::time_card::Outcome;

/// Three quantiles and the mean of durations, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Quantiles {
    /// Of how many; the rest is 0, and says nothing, where it is of none.
    #[serde(default)]
    pub count: u64,
    /// Half are at most this.
    pub p50: u64,
    /// Nine of ten are at most this.
    pub p90: u64,
    /// 99 of 100 are at most this.
    pub p99: u64,
    /// The mean.
    pub mean: f64,
}

impl Quantiles {
    /// Of any number of durations; all 0 for none.
    #[must_use]
    pub fn of(durations: impl IntoIterator<Item = u64>) -> Self {
        let mut sorted: Vec<u64> = durations.into_iter().collect();
        sorted.sort_unstable();
        let Some(last) = sorted.len().checked_sub(1) else {
            return Self::default();
        };
        // The smallest that so many of them do not exceed.
        let at =
            |q: f64| sorted[((sorted.len() as f64 * q).ceil() as usize).clamp(1, last + 1) - 1];
        let sum: u128 = sorted.iter().map(|&ns| u128::from(ns)).sum();
        Self {
            count: sorted.len() as u64,
            p50: at(0.5),
            p90: at(0.9),
            p99: at(0.99),
            mean: sum as f64 / sorted.len() as f64,
        }
    }
}

/// One step of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct StepSummary {
    /// Its name.
    pub name: String,
    /// Its processes.
    pub processes: usize,
    /// Items that went through it.
    pub items: u64,
    /// Items that did not (failed, dropped, redelivered).
    pub others: u64,
    /// What its processes took, what became of that, and what they gave.
    #[serde(default)]
    pub counts: Counts,
    /// Whether its outputs lie in slots, for which it can wait.
    #[serde(default)]
    pub has_slots: bool,
    /// How long items waited for a process of it.
    pub queueing: Quantiles,
    /// How long its processes waited for a free slot for their output.
    pub slot_wait: Quantiles,
    /// How long it worked on an item: from the stage's being called with it to its answer, without the wait for slots.
    pub service: Quantiles,
    /// How long a copy between devices went on after that.
    pub copy: Quantiles,
    /// How long the stage kept items after the call that it got them in, as a batch keeps the first for the others.
    #[serde(default)]
    pub held: Quantiles,
    /// From taken from the queue to the stage's being called.
    pub hand_off: Quantiles,
    /// Items a second, while the run lasted.
    pub throughput: f64,
    /// The part of its processes' time in which they worked, from 0 to 1.
    pub utilisation: f64,
    /// The part of it in which they waited for slots, from 0 to 1.
    #[serde(default)]
    pub waiting: f64,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Summary {
    /// How it ended.
    pub termination: Termination,
    /// How long it took, seconds, from all processes' being ready to the last one's result.
    pub seconds: f64,
    /// What became of the items.
    pub items: Items,
    /// Inputs that were finished in one of these seconds: [`Report::rate`](crate::Report::rate) of the run.
    pub throughput: f64,
    /// From an input's being offered to the last step's being done with all that was made of it, whatever it was put together
    /// with or divided into on its way.
    pub latency: Quantiles,
    /// The steps, in order.
    pub steps: Vec<StepSummary>,
    /// Processes that failed and were replaced, and why.
    #[serde(default)]
    pub replaced: Vec<Replacements>,
    /// The same one by one, in the order of time.
    #[serde(default)]
    pub replacements: Vec<Replacement>,
    /// Which step limits the run, in a sentence.
    pub bottleneck: String,
}

impl StepSummary {
    /// How long it waited for slots; nothing where it has none.
    pub(super) fn slot_waits(&self) -> Option<Quantiles> {
        self.has_slots.then_some(self.slot_wait)
    }
}

impl Summary {
    /// The counts of the steps as a table, the first row the headings, with what occurred.
    pub(super) fn counts(&self) -> Vec<Vec<String>> {
        type Of = fn(&Counts) -> u64;
        let columns: [(&str, Of, bool); 8] = [
            ("in", |counts| counts.taken, true),
            ("= done", |counts| counts.done, true),
            ("+ redelivered", |counts| counts.redelivered, false),
            ("+ failed", |counts| counts.failed, false),
            ("+ dropped", |counts| counts.dropped, false),
            ("+ unfinished", |counts| counts.unfinished, false),
            ("out", |counts| counts.published, true),
            ("dropped behind it", |counts| counts.dropped_behind, false),
        ];
        let columns: Vec<_> = columns
            .into_iter()
            .filter(|(_, of, always)| *always || self.steps.iter().any(|step| of(&step.counts) > 0))
            .collect();
        let head = columns.iter().map(|(name, ..)| (*name).to_owned());
        let mut rows = vec![std::iter::once("step".to_owned()).chain(head).collect()];
        for step in &self.steps {
            let cells = columns
                .iter()
                .map(|(_, of, _)| of(&step.counts).to_string());
            rows.push(std::iter::once(step.name.clone()).chain(cells).collect());
        }
        rows
    }

    /// Draws the conclusions from a run.
    #[must_use]
    pub fn of(run: &Run) -> Self {
        let said = run.seconds.filter(|&seconds| seconds > 0.0);
        let seconds = said.unwrap_or(run.duration_ns() as f64 / 1e9);
        let seconds = seconds.max(f64::MIN_POSITIVE);
        let mut by_step: HashMap<&str, Vec<&Card>> = HashMap::new();
        for card in &run.cards {
            by_step.entry(&card.step).or_default().push(card);
        }
        let steps: Vec<_> = run
            .steps
            .iter()
            .map(|step| {
                let cards = by_step.remove(step.name.as_str()).unwrap_or_default();
                step_summary(run, step, &cards, seconds)
            })
            .collect();
        let lineage = Lineage::of(run);
        let ways = ways(run, &lineage);
        let items = match run.items == Items::default() {
            // Its program ended before it could say: what the time cards know.
            true => seen(run, &lineage, &ways),
            false => run.items,
        };
        let latencies = ways
            .values()
            .map(|way| way.done.saturating_sub(way.offered));
        Self {
            termination: run.termination.clone(),
            seconds,
            items,
            throughput: items.completed as f64 / seconds,
            replaced: replaced(run),
            replacements: replacements(run),
            latency: Quantiles::of(latencies),
            bottleneck: match run.is_success() {
                true => bottleneck(run, &steps, seconds),
                false => incomplete(run.cards_missing),
            },
            steps,
        }
    }
}

/// Processes that were replaced, by what they were called, and why.
fn replaced(run: &Run) -> Vec<Replacements> {
    let places = run.processes.iter();
    Replacements::gather(places.map(|place| (&*place.step, &*place.name, &place.replaced[..])))
}

/// The same one by one.
fn replacements(run: &Run) -> Vec<Replacement> {
    let places = run.processes.iter().map(|place| {
        let replaced = &place.replaced[..];
        (place.rank, &*place.step, &*place.name, replaced)
    });
    Replacement::all(run.clock_start_ns, places)
}

fn step_summary(run: &Run, step: &Step, cards: &[&Card], seconds: f64) -> StepSummary {
    let good: Vec<_> = cards.iter().filter(|card| card.is_ok()).collect();
    let of_step = run.processes.iter().filter(|one| one.step == step.name);
    let processes = of_step.clone().count();
    let mut counts = Counts::default();
    for (outcome, was_taken) in cards.iter().map(|card| card.counted()) {
        counts.note(outcome, was_taken);
    }
    counts.failed += of_step.clone().map(|one| one.failed).sum::<u64>();
    let (taken, published) = of_step.fold((0, 0), |(taken, published), one| {
        let inputs: u64 = one.replaced.iter().map(|before| before.inputs).sum();
        let outputs: u64 = one.replaced.iter().map(|before| before.outputs).sum();
        (
            taken + one.inputs + inputs,
            published + one.outputs + outputs,
        )
    });
    let published = match run.has_ended() {
        true => published,
        // Its processes have not said. All items of a batch go on in the same moment.
        false => {
            let put = good
                .iter()
                .filter_map(|card| Some((card.rank, card.published?)));
            put.collect::<HashSet<_>>().len() as u64
        }
    };
    counts.close(taken, published);
    let of = |part: fn(&Card) -> u64| Quantiles::of(good.iter().map(|card| part(card)));
    let worked: u128 = cards.iter().map(|card| u128::from(card.service_ns())).sum();
    StepSummary {
        name: step.name.clone(),
        processes,
        counts,
        has_slots: run.rings.iter().any(|ring| ring.from == step.name),
        items: good.len() as u64,
        others: (cards.len() - good.len()) as u64,
        queueing: of(Card::queueing_ns),
        slot_wait: of(Card::slot_wait_ns),
        service: of(Card::service_ns),
        copy: of(Card::copy_ns),
        held: of(Card::held_ns),
        hand_off: of(Card::hand_off_ns),
        throughput: good.len() as f64 / seconds,
        utilisation: (worked as f64 / 1e9 / seconds / processes.max(1) as f64).min(1.0),
        waiting: (waited(cards) / seconds / processes.max(1) as f64).min(1.0),
    }
}

/// What became of the inputs of a run whose program did not say, as far as its time cards do.
fn seen(run: &Run, lineage: &Lineage, ways: &HashMap<u64, Way>) -> Items {
    let mut worst: HashMap<u64, Outcome> = HashMap::new();
    let mut items = Items::default();
    for card in &run.cards {
        let outcome = card.counted().0;
        items.redelivered += u64::from(outcome == Outcome::Redelivered);
        for &root in lineage.roots(&card.item) {
            let known = worst.entry(root).or_default();
            match (*known, outcome) {
                (_, Outcome::Failed) | (Outcome::Ok, Outcome::Dropped | Outcome::Incomplete) => {
                    *known = outcome;
                }
                _ => {}
            }
        }
    }
    items.offered = worst.len() as u64;
    for (root, outcome) in worst {
        let count = match outcome {
            Outcome::Failed | Outcome::Incomplete => &mut items.failed,
            Outcome::Dropped => &mut items.dropped,
            _ if ways.contains_key(&root) => &mut items.completed,
            _ => &mut items.unfinished,
        };
        *count += 1;
    }
    items
}
