//! What limits a run, in a sentence.

use std::collections::HashSet;

use super::read::{Card, Run, Step};
use super::summary::StepSummary;
use super::text::rate;

/// Above this a step is taken to limit the run.
const BUSY: f64 = 0.8;
/// So much of their time processes may wait for slots, or be missing, before that is told.
const MATTERS: f64 = 0.1;
/// Where fewer items than this wait for the first step on average, nobody holds the client up.
const WAITING: f64 = 0.5;

/// What is said of a run that did not come to its end, and whose figures say nothing of its speed.
pub(super) fn incomplete(missing: u64) -> String {
    let missing = match missing {
        0 => String::new(),
        1 => "; 1 time card of a process that was ended is missing".to_owned(),
        n => format!("; {n} time cards of processes that were ended are missing"),
    };
    format!(
        "The run did not come to its end: the figures are of what was done until then{missing}."
    )
}

/// What limits the run, and what would help.
pub(super) fn bottleneck(run: &Run, steps: &[StepSummary], seconds: f64) -> String {
    let busiest = steps
        .iter()
        .filter(|step| step.items > 0)
        .max_by(|a, b| a.utilisation.total_cmp(&b.utilisation));
    let Some(step) = busiest else {
        return "No item went through any step.".to_owned();
    };
    let percent = |part: f64| format!("{:.0} %", part * 100.0);
    let (works, name) = (percent(step.utilisation), &step.name);
    if step.utilisation >= BUSY {
        let processes = match step.processes {
            1 => "its one process works".to_owned(),
            n => format!("its {n} processes work"),
        };
        return format!(
            "Step {name:?} limits the run: {processes} {works} of the time; make it faster or give it more processes."
        );
    }
    if let Some(offered) = paced(run, steps, seconds) {
        return format!(
            "The client limits the run: it gives {} and hardly any of that waits; the busiest step, {name:?}, works {works} \
             of the time.",
            rate(offered)
        );
    }
    let missing = run.steps.iter().map(|step| (step, missing(run, step)));
    let most = missing.max_by(|a, b| a.1.total_cmp(&b.1));
    if let Some((step, part)) = most.filter(|(_, part)| *part / seconds > MATTERS) {
        return format!(
            "Step {:?} was short of a process for {} of the run, while one that had failed was replaced: the figures are of \
             that, too.",
            step.name,
            percent((part / seconds).min(1.0))
        );
    }
    let waits = steps
        .iter()
        .filter(|step| step.waiting > MATTERS)
        .max_by(|a, b| a.waiting.total_cmp(&b.waiting));
    if let Some(waits) = waits {
        return format!(
            "Step {:?} waits for free slots {} of the time; give its ring more slots, or let the next step give them back \
             sooner.",
            waits.name,
            percent(waits.waiting)
        );
    }
    format!(
        "No step limits the run: the busiest, {name:?}, works {works} of the time, so items come no faster."
    )
}

/// How many inputs a second the client gave, where the run was no slower than that: it gave them all along, and next to none
/// waited for the first step.
fn paced(run: &Run, steps: &[StepSummary], seconds: f64) -> Option<f64> {
    let first = steps.first()?;
    // Who makes its items itself takes none.
    let cards = run.cards.iter();
    let taken = cards.filter(|card| card.step == first.name && card.released.is_some());
    let offered = || taken.clone().map(|card| card.enqueued);
    let (from, to) = (offered().min()?, offered().max()?);
    let all_along = to.saturating_sub(from) as f64 / 1e9 > seconds / 2.0;
    let count = offered().count() as f64;
    let waiting: f64 = taken.map(|card| card.queueing_ns() as f64 / 1e9).sum();
    (all_along && waiting / seconds < WAITING).then_some(count / seconds)
}

/// Seconds in which a step had a process less, from when one failed until the one in its place took an item.
fn missing(run: &Run, step: &Step) -> f64 {
    let places = run.processes.iter().filter(|one| one.step == step.name);
    let gaps = places.flat_map(|place| {
        let taken = move |at: u64| {
            let cards = run.cards.iter().filter(|card| card.rank == place.rank);
            let later = cards.filter(move |card| card.is_ok() && card.dequeued >= at);
            later.map(|card| card.dequeued).min()
        };
        place.replaced.iter().map(move |before| {
            let until = taken(before.at_ns).unwrap_or(run.ended_ns);
            until.saturating_sub(before.at_ns) as f64 / 1e9
        })
    });
    gaps.sum()
}

/// Seconds in which a step's processes waited for slots. A wait for the slot of a batch is in the card of each of its items.
pub(super) fn waited(cards: &[&Card]) -> f64 {
    let mut seen = HashSet::new();
    let new = cards.iter().filter(|card| {
        seen.insert((card.rank, card.slot_acquired)) || card.slot_acquired.is_none()
    });
    new.map(|card| card.slot_wait_ns() as f64 / 1e9).sum()
}
