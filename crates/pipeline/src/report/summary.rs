//! What a run came to: where the time went, step by step, and which step limits the others.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::read::{Card, Items, Run, Termination};

/// Above this a step is taken to limit the run.
const BUSY: f64 = 0.8;
/// A ring that is nearly full so often makes the step before it wait.
const WAITS_FOR_SLOTS: f64 = 0.1;

/// Three quantiles and the mean of durations, nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Quantiles {
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
    /// How long items waited for a process of it.
    pub queueing: Quantiles,
    /// How long its processes waited for a free slot for their output.
    pub slot_wait: Quantiles,
    /// How long it worked on an item.
    pub service: Quantiles,
    /// How long the copy to another device took.
    pub copy: Quantiles,
    /// From taken from the queue to the stage's being called, and from ready to handed over.
    pub hand_off: Quantiles,
    /// Items a second, while the run lasted.
    pub throughput: f64,
    /// The part of its processes' time in which they worked, from 0 to 1.
    pub utilisation: f64,
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
    /// From an item's being offered to its last step's being done with it.
    pub latency: Quantiles,
    /// The steps, in order.
    pub steps: Vec<StepSummary>,
    /// Which step limits the run, in a sentence.
    pub bottleneck: String,
}

impl Summary {
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
                let processes = run
                    .processes
                    .iter()
                    .filter(|process| process.step == step.name)
                    .count();
                step_summary(&step.name, processes, &cards, seconds)
            })
            .collect();
        let latencies = latencies(run);
        let completed = latencies.len() as u64;
        let items = match run.items {
            items if items.completed == 0 => Items { completed, ..items },
            items => items,
        };
        Self {
            termination: run.termination.clone(),
            seconds,
            items,
            throughput: items.completed as f64 / seconds,
            latency: Quantiles::of(latencies.into_iter().map(|(_, ns)| ns)),
            bottleneck: match run.is_success() {
                true => bottleneck(&steps),
                false => incomplete(run.cards_missing),
            },
            steps,
        }
    }
}

fn step_summary(name: &str, processes: usize, cards: &[&Card], seconds: f64) -> StepSummary {
    let good: Vec<_> = cards.iter().filter(|card| card.is_ok()).collect();
    let of = |part: fn(&Card) -> u64| Quantiles::of(good.iter().map(|card| part(card)));
    let worked: u128 = cards.iter().map(|card| u128::from(card.service_ns())).sum();
    StepSummary {
        name: name.to_owned(),
        processes,
        items: good.len() as u64,
        others: (cards.len() - good.len()) as u64,
        queueing: of(Card::queueing_ns),
        slot_wait: of(Card::slot_wait_ns),
        service: of(Card::service_ns),
        copy: of(Card::copy_ns),
        hand_off: of(Card::hand_off_ns),
        throughput: good.len() as f64 / seconds,
        utilisation: (worked as f64 / 1e9 / seconds / processes.max(1) as f64).min(1.0),
    }
}

/// When each item was completed, and how long it had taken by then: those that the last step has done with.
pub(super) fn latencies(run: &Run) -> Vec<(u64, u64)> {
    let Some(last) = run.steps.last() else {
        return Vec::new();
    };
    let mut offered: HashMap<u64, u64> = HashMap::new();
    let mut done: HashMap<u64, u64> = HashMap::new();
    for card in run.cards.iter().filter(|card| card.is_ok()) {
        let first = offered.entry(card.item).or_insert(card.enqueued);
        *first = (*first).min(card.enqueued);
        if card.step == last.name {
            let latest = done.entry(card.item).or_insert(0);
            *latest = (*latest).max(card.done());
        }
    }
    let mut all: Vec<_> = done
        .into_iter()
        .map(|(item, done)| (done, done.saturating_sub(offered[&item])))
        .collect();
    all.sort_unstable();
    all
}

/// What is said of a run that did not come to its end, and whose figures say nothing of its speed.
fn incomplete(missing: u64) -> String {
    let missing = match missing {
        0 => String::new(),
        1 => "; 1 time card of a process that was ended is missing".to_owned(),
        n => format!("; {n} time cards of processes that were ended are missing"),
    };
    format!(
        "The run did not come to its end: the figures are of what was done until then{missing}."
    )
}

/// The step that limits the others, and what would help.
fn bottleneck(steps: &[StepSummary]) -> String {
    let busiest = steps
        .iter()
        .filter(|step| step.items > 0)
        .max_by(|a, b| a.utilisation.total_cmp(&b.utilisation));
    let Some(step) = busiest else {
        return "No item went through any step.".to_owned();
    };
    let percent = step.utilisation * 100.0;
    let name = &step.name;
    let waits = steps.iter().find(|other| {
        other.slot_wait.mean > WAITS_FOR_SLOTS * (other.service.mean + other.slot_wait.mean)
            && other.slot_wait.mean > 0.0
    });
    if step.utilisation >= BUSY {
        let processes = match step.processes {
            1 => "its one process works".to_owned(),
            n => format!("its {n} processes work"),
        };
        return format!(
            "Step {name:?} limits the run: {processes} {percent:.0} % of the time; make it faster or give it more processes."
        );
    }
    if let Some(waits) = waits {
        return format!(
            "Step {:?} waits for free slots {:.0} % of the time it has an item; give its ring more slots, or let the next step give them back sooner.",
            waits.name,
            100.0 * waits.slot_wait.mean / (waits.service.mean + waits.slot_wait.mean)
        );
    }
    format!(
        "No step limits the run: the busiest, {name:?}, works {percent:.0} % of the time, so items come no faster."
    )
}
