//! Which queues lead where: from each step to the next, and for the segments of an item to one process.

use std::collections::BTreeSet;

use super::{Specs, in_queue, out_queues, refuse, slots, word};
use crate::error::Result;
use crate::route::{Backpressure, Delivery};
use crate::selector::built_in;
use crate::stage::Segments;
use crate::step::{QueueGroup, Step};

pub(super) fn check_queues(before: &Step, step: &Step) -> Result<()> {
    let mut written = BTreeSet::new();
    for (number, group) in before.groups.iter().enumerate() {
        let queues = out_queues(group, false);
        let problem = match queues.iter().collect::<BTreeSet<_>>().len() {
            0 => format!("there are none, but step {:?} comes after it", step.name),
            different if different < queues.len() => format!("{queues:?} names one twice"),
            _ => {
                written.extend(queues);
                continue;
            }
        };
        return Err(refuse(before, Some(number), "out_queues", problem));
    }
    let mut read = BTreeSet::new();
    for (number, group) in step.groups.iter().enumerate() {
        let queue = in_queue(group);
        if !written.contains(&queue) {
            return Err(refuse(
                step,
                Some(number),
                "in_queue",
                format!(
                    "no group of step {:?} writes queue {queue}; it writes {written:?}",
                    before.name
                ),
            ));
        }
        read.insert(queue);
    }
    for (number, group) in before.groups.iter().enumerate() {
        if let Some(queue) = out_queues(group, false)
            .into_iter()
            .find(|queue| !read.contains(queue))
        {
            return Err(refuse(
                before,
                Some(number),
                "out_queues",
                format!(
                    "no group of step {:?} reads queue {queue}; it reads {read:?}",
                    step.name
                ),
            ));
        }
    }
    if step.ordered && before.backpressure == Backpressure::DropOldest {
        return Err(refuse(
            step,
            None,
            "ordered",
            format!(
                "step {:?} drops the oldest items, which it would wait for",
                before.name
            ),
        ));
    }
    Ok(())
}

/// Stages that keep more inputs than the slots before them hold, which is no mistake where the input ends before: all of them
/// wait for ever then. `specs` is what the steps' slots hold, `count` how many inputs there are, where it is known.
pub(crate) fn odd_keeping(steps: &[Step], specs: &Specs, count: Option<u64>) -> Vec<String> {
    let pairs = steps.windows(2).zip(specs);
    let odd = pairs.flat_map(|(pair, specs)| {
        let [before, step] = pair else {
            return Vec::new();
        };
        let of_group = step.groups.iter().filter_map(|group| {
            let keeps = group.maker.keeps().ok().filter(|&keeps| keeps > 0)?;
            let mut room = 0_usize;
            for (writer, specs) in before.groups.iter().zip(specs) {
                if !out_queues(writer, false).contains(&in_queue(group)) {
                    continue;
                }
                // What has no tensors keeps no slots.
                if specs.is_empty() {
                    return None;
                }
                // What gathers segments passes on the slots that they came in.
                if writer.maker.needs_segments().is_ok_and(|needs| needs != Segments::Any) {
                    return None;
                }
                let inputs = slots(before) as usize * before.segments as usize;
                room = room.saturating_add(inputs.saturating_mul(writer.devices.len()));
            }
            let comes = count.is_none_or(|count| count > room as u64);
            let waits = room > 0 && keeps >= room && comes;
            waits.then(|| {
                format!(
                    "step {:?} keeps {keeps} inputs while it waits for one more, and step {:?} has slots for {room} only: unless \
                     the input ends before, both wait for ever; give step {:?} more {}, or the batch a deadline. (If step {:?} \
                     passes its inputs on as they are, with `forward`, this is about the slots of the step that wrote them.)",
                    step.name,
                    before.name,
                    before.name,
                    word(before, "slots"),
                    before.name
                )
            })
        });
        of_group.collect()
    });
    odd.collect()
}

/// A stage that needs all segments of an item gets them: they come in the number that it says, and all to one process.
pub(super) fn check_segments(steps: &[Step]) -> Result<()> {
    // The step from which on items are divided anew: behind one where they are made whole.
    let mut whole_at = 0;
    for (index, step) in steps.iter().enumerate() {
        let mut gathers = !step.groups.is_empty();
        for (number, group) in step.groups.iter().enumerate() {
            let needs = group.maker.needs_segments()?;
            // What is made of several inputs is a new item, and whole.
            gathers &= needs != Segments::Any || group.maker.keeps()? > 0;
            if needs == Segments::Any {
                continue;
            }
            let before = &steps[whole_at..index];
            if let Segments::Count(wanted) = needs {
                check_count(before, step, number, wanted)?;
            }
            check_way(before, step, number)?;
            check_copies(before, step, number)?;
        }
        if gathers {
            whole_at = index;
        }
    }
    Ok(())
}

/// Whether items come in so many segments behind these steps.
fn check_count(before: &[Step], step: &Step, number: usize, wanted: u32) -> Result<()> {
    // A stage that makes something new of several inputs makes it whole, which cannot be seen here: so the steps before it
    // may count or not.
    let mut counts = vec![1_u32];
    for (distance, divider) in before.iter().rev().enumerate() {
        if divider.segments > 1 {
            let last = counts.last().copied().unwrap_or(1);
            counts.push(last.saturating_mul(divider.segments));
            if distance == 0 {
                counts.remove(0);
            }
        }
    }
    if counts.contains(&wanted) {
        return Ok(());
    }
    let dividers = before.iter().filter(|step| step.segments > 1).count();
    let comes = match (&counts[..], before.iter().find(|step| step.segments > 1)) {
        ([.., many], Some(divider)) if dividers == 1 => format!(
            "in {many} here ({}, step {:?})",
            word(divider, "segments"),
            divider.name
        ),
        (_, None) => "whole here, since no step before divides them".to_owned(),
        (several, _) => format!("in one of these here: {several:?}"),
    };
    Err(refuse(
        step,
        Some(number),
        "stage",
        format!(
            "{} waits for {wanted} segments of each item, but they come {comes}, so none would ever be whole; leave its number \
             out or let it be the same",
            step.groups[number].maker.stage()
        ),
    ))
}

/// Whether all segments of an item come to one process of a step behind these.
fn check_way(before: &[Step], step: &Step, number: usize) -> Result<()> {
    let readers = |step: &'_ Step, queues: &BTreeSet<u32>| -> Vec<QueueGroup> {
        let groups = step.groups.iter();
        let reads = groups.filter(|group| queues.contains(&in_queue(group)));
        reads.cloned().collect()
    };
    for (at, divider) in before.iter().enumerate() {
        if divider.segments <= 1 {
            continue;
        }
        // The segments of one output go into one queue together; what becomes of each may go anywhere from there.
        let writes = divider
            .groups
            .iter()
            .flat_map(|group| out_queues(group, false));
        for queue in writes.collect::<BTreeSet<_>>() {
            let mut queues = BTreeSet::from([queue]);
            for between in &before[at + 1..] {
                let readers = readers(between, &queues);
                let writes = readers.iter().flat_map(|group| out_queues(group, false));
                queues = writes.collect();
            }
            let group = &step.groups[number];
            if !queues.contains(&in_queue(group)) {
                continue;
            }
            let readers = readers(step, &queues);
            let to_every = before
                .last()
                .is_some_and(|step| step.delivery == Delivery::Every);
            // Where a user's own selector sends what, only that knows.
            let chosen = |step: &Step| {
                let mut groups = step.groups.iter();
                groups.any(|group| built_in(&group.selector, 1).is_none())
            };
            if queues.len() > 1 && before[at..].iter().any(chosen) {
                continue;
            }
            let places: usize = match to_every {
                true => queues.len(),
                false => readers.iter().map(|group| group.devices.len()).sum(),
            };
            if places > 1 {
                let key = if queues.len() > 1 {
                    "in_queue"
                } else {
                    "devices"
                };
                let stage = group.maker.stage();
                return Err(refuse(
                    step,
                    Some(number),
                    key,
                    format!(
                        "{stage} waits for all segments of an item, but those that step {:?} divides one into would be shared among \
                         {places} processes; let them all come to one",
                        divider.name
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// Whether each segment comes to a step behind these once, and not in the copies of several readers.
fn check_copies(before: &[Step], step: &Step, number: usize) -> Result<()> {
    let Some(divider) = before.iter().position(|step| step.segments > 1) else {
        return Ok(());
    };
    // The queues that lead to the group, seen from its end.
    let group = &step.groups[number];
    let mut leading = BTreeSet::from([in_queue(group)]);
    for at in (divider + 1..before.len()).rev() {
        let leads = |group: &&QueueGroup| {
            let queues = out_queues(group, false);
            queues.iter().any(|queue| leading.contains(queue))
        };
        let groups: Vec<_> = before[at].groups.iter().filter(leads).collect();
        let copies: usize = groups.iter().map(|group| group.devices.len()).sum();
        let giver = &before[at - 1];
        if giver.delivery == Delivery::Every && copies > 1 {
            return Err(refuse(
                step,
                Some(number),
                "stage",
                format!(
                    "{} would get {copies} copies of each segment, since step {:?} delivers to every reader; gather the \
                     segments before that",
                    group.maker.stage(),
                    giver.name
                ),
            ));
        }
        leading = groups.into_iter().map(in_queue).collect();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::TensorSpec;
    use crate::stages::{Batcher, BatcherParams};

    #[test]
    fn a_batch_that_no_slots_suffice_for_is_told() {
        let batcher = |batch, deadline_ms| {
            let params = BatcherParams {
                batch,
                deadline_ms,
                ..BatcherParams::default()
            };
            let group = QueueGroup::of::<Batcher>(params.clone()).replicas(2);
            (Step::of::<Batcher>("batch", params), group)
        };
        let told = |(step, group): (Step, QueueGroup), has_tensors: bool, count| {
            let load = Step::new("load").group(group).slots(4);
            let tensors = vec![TensorSpec::of::<u8>([2]); usize::from(has_tensors)];
            let specs = vec![vec![tensors.clone()], vec![tensors]];
            odd_keeping(&[load, step], &specs, count).concat()
        };
        let text = told(batcher(9, None), true, None);
        assert!(text.contains("keeps 8 inputs") && text.contains("\"load\" has slots for 8"));
        assert!(!told(batcher(9, None), true, Some(9)).is_empty());
        assert!(told(batcher(9, None), true, Some(8)).is_empty());
        assert!(told(batcher(8, None), true, None).is_empty());
        assert!(told(batcher(9, Some(5.0)), true, None).is_empty());
        assert!(told(batcher(9, None), false, None).is_empty());
    }
}
