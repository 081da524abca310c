//! Everything that can be known to be wrong before anything starts, each told with its step, group and key.

use std::collections::BTreeSet;

use shm_core::Arena;
use spawn::Stdin;

use crate::client::Client;
use crate::device::check_places;
use crate::error::{Error, Result};
use crate::nearest::did_you_mean;
use crate::route::{Backpressure, Delivery};
use crate::selector::{BUILT_IN, built_in};
use crate::spec::{Layout, TensorSpec};
use crate::step::{OWN, QueueGroup, SLOTS, Step, Unfinished};

/// Processes that an arena has room for beside this one.
const PROCESSES_MAX: usize = Arena::PARTICIPANTS_MAX - 1;

/// What was found out on the way: the tensors of each step's groups.
pub(crate) type Specs = Vec<Vec<Vec<TensorSpec>>>;

/// Items that a queue can hold.
const QUEUE_MOST: usize = 1 << 24;

fn refuse(step: &Step, group: Option<usize>, key: &str, problem: impl std::fmt::Display) -> Error {
    let name = &step.name;
    let key = word(step, key);
    let of_group = group.map_or(String::new(), |group| format!(", queue group {group}"));
    Error::invalid(format!("step {name:?}{of_group}, {key}: {problem}"))
}

/// What a key is called where the step was written.
fn word<'a>(step: &Step, key: &'a str) -> &'a str {
    match key {
        "slots" if step.in_rnbs_words => "num_shared_tensors",
        "segments" if step.in_rnbs_words => "num_segments",
        "devices" if step.in_rnbs_words => "gpus",
        key => key,
    }
}

/// The queue that a group reads, and those it writes; what is not said is queue 0.
pub(crate) fn in_queue(group: &QueueGroup) -> u32 {
    group.in_queue.unwrap_or(0)
}

pub(crate) fn out_queues(group: &QueueGroup, is_last: bool) -> Vec<u32> {
    match &group.out_queues {
        Some(queues) => queues.clone(),
        None if is_last => Vec::new(),
        None => vec![0],
    }
}

pub(crate) fn slots(step: &Step) -> u32 {
    step.slots.unwrap_or(SLOTS.max(step.segments))
}

pub(crate) fn check(
    steps: &[Step],
    client: Option<&Client>,
    devices: &dyn Fn() -> Result<usize, String>,
) -> Result<Specs> {
    let Some(last) = steps.len().checked_sub(1) else {
        return Err(Error::invalid(
            "a pipeline without steps was to run; add at least one",
        ));
    };
    if let Some(size) = client.and_then(|client| client.queue_size)
        && !(1..=QUEUE_MOST).contains(&size)
    {
        return Err(Error::invalid(format!(
            "client, queue_size: {size} items were asked for; a queue holds 1 to {QUEUE_MOST}"
        )));
    }
    let mut specs: Specs = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        if steps[..index].iter().any(|other| other.name == step.name) {
            return Err(refuse(
                step,
                None,
                "name",
                "two steps are called so; give each a name of its own",
            ));
        }
        check_processes(step, devices)?;
        check_place(step, index, last, client)?;
        if let Some(before) = index.checked_sub(1) {
            check_queues(&steps[before], step)?;
        }
        let of_groups = step
            .groups
            .iter()
            .enumerate()
            .map(|(number, group)| {
                let before = index
                    .checked_sub(1)
                    .map(|before| (&steps[before], &specs[before][..]));
                check_specs(step, number, group, before, (index == last, devices))
            })
            .collect::<Result<_>>()?;
        specs.push(of_groups);
    }
    let total = steps
        .iter()
        .map(Step::processes)
        .fold(0, usize::saturating_add);
    if total > PROCESSES_MAX {
        return Err(Error::invalid(format!(
            "{total} processes were asked for, all in all; an arena has room for {PROCESSES_MAX}"
        )));
    }
    Ok(specs)
}

/// What is odd about the last step, which may be on purpose: its stage names tensors that nobody takes.
pub(crate) fn odd_end(steps: &[Step]) -> Option<String> {
    let step = steps.last().filter(|step| !step.in_rnbs_words)?;
    // What depends on the input (an aggregator's) is of a stage that may be anywhere.
    let names_tensors = |group: &&QueueGroup| {
        let specs = group.maker.output_spec(&[]);
        specs.is_ok_and(|specs| !specs.is_empty())
    };
    let maker = &step.groups.iter().find(names_tensors)?.maker;
    Some(format!(
        "step {:?} is the last, and the output_spec of its stage {:?} names tensors, which nobody takes: publishing will be \
         an error, unless it asks first whether there is a next step (Output::has_next)",
        step.name,
        maker.stage()
    ))
}

fn check_processes(step: &Step, devices: &dyn Fn() -> Result<usize, String>) -> Result<()> {
    if step.groups.is_empty() {
        return Err(refuse(
            step,
            None,
            "queue_groups",
            "there are none; add at least one",
        ));
    }
    for (number, group) in step.groups.iter().enumerate() {
        let group_is = |key, problem: String| refuse(step, Some(number), key, problem);
        if group.devices.is_empty() {
            return Err(group_is(
                "devices",
                "it was to run in 0 processes; give it at least 1 (-1 is the CPU)".to_owned(),
            ));
        }
        if group.devices.len() > PROCESSES_MAX {
            return Err(group_is(
                "devices",
                format!(
                    "it was to run in {} processes; an arena has room for {PROCESSES_MAX}",
                    group.devices.len()
                ),
            ));
        }
        if let Some(&odd) = group.devices.iter().find(|&&device| device < -1) {
            return Err(group_is(
                "devices",
                format!("there is no device {odd}; -1 is the CPU, 0 the first CUDA device"),
            ));
        }
        if let Some(&most) = group.devices.iter().max().filter(|&&device| device >= 0) {
            let problem = match devices() {
                Ok(count) if (most as usize) < count => None,
                Ok(count) => Some(format!("this machine has {count} CUDA devices")),
                Err(reason) => Some(reason),
            };
            if let Some(problem) = problem {
                return Err(group_is(
                    "devices",
                    format!(
                        "device {most} does not exist here: {problem}; use -1, or `--device cpu`"
                    ),
                ));
            }
        }
        let (name, own) = (&group.selector, group.maker.selectors());
        if built_in(name, 1).is_none() && !own.contains(name) {
            // One that is a type of the step has no name to be written.
            let own = own.iter().map(String::as_str).filter(|&own| own != OWN);
            let known: Vec<&str> = BUILT_IN.into_iter().chain(own).collect();
            return Err(group_is(
                "queue_selector",
                format!(
                    "there is no selector {name:?}; there are {}{}",
                    known.join(", "),
                    did_you_mean(name, &known)
                ),
            ));
        }
    }
    if matches!(step.stdin, Stdin::Inherit) && step.processes() > 1 {
        return Err(refuse(
            step,
            None,
            "stdin",
            format!(
                "its {} processes would each get some part of it; give it to a step of one",
                step.processes()
            ),
        ));
    }
    Ok(())
}

fn check_place(step: &Step, index: usize, last: usize, client: Option<&Client>) -> Result<()> {
    let count = step.processes();
    if step.segments == 0 {
        return Err(refuse(
            step,
            None,
            "segments",
            "0 were asked for; 1 divides nothing",
        ));
    }
    if index == last && step.segments > 1 {
        return Err(refuse(
            step,
            None,
            "segments",
            format!(
                "{} in the last step, whose outputs nobody takes; let it be 1",
                step.segments
            ),
        ));
    }
    if index == last && step.slots.is_some() {
        return Err(refuse(
            step,
            None,
            "slots",
            "the last step has no outputs to put into slots; leave it out",
        ));
    }
    if step.slots == Some(0) {
        return Err(refuse(
            step,
            None,
            "slots",
            "0 slots were asked for; give it at least 1",
        ));
    }
    if index < last && slots(step) < step.segments {
        return Err(refuse(
            step,
            None,
            "segments",
            format!(
                "{} segments are more than the {} slots of a process; raise {} to {}",
                step.segments,
                slots(step),
                word(step, "slots"),
                step.segments
            ),
        ));
    }
    let on_the_way = (slots(step) as usize)
        .saturating_mul(count)
        .saturating_mul(step.segments as usize);
    if index < last && step.queue_size.is_none() && on_the_way > QUEUE_MOST {
        return Err(refuse(
            step,
            None,
            "slots",
            format!(
                "{on_the_way} items could be on their way from all of its slots; a queue holds {QUEUE_MOST}"
            ),
        ));
    }
    if let Some(size) = step.queue_size
        && !(1..=QUEUE_MOST).contains(&size)
    {
        return Err(refuse(
            step,
            None,
            "queue_size",
            format!("{size} items were asked for; a queue holds 1 to {QUEUE_MOST}"),
        ));
    }
    if step.ordered && (count > 1 || index == 0) {
        return Err(refuse(
            step,
            None,
            "ordered",
            "only a step of one process, behind another step, can get its items in order",
        ));
    }
    if step.ordered && step.restarts > 0 {
        return Err(refuse(
            step,
            None,
            "restart",
            "a replacement does not know how far the order had come; let a step behind it do what may fail",
        ));
    }
    if index > 0 || client.is_some() {
        return Ok(());
    }
    if count > 1 {
        return Err(refuse(
            step,
            None,
            "devices",
            format!(
                "it is the first and has {count} processes, which would each make the whole input; give it 1, or a client"
            ),
        ));
    }
    if step.restarts > 0 {
        return Err(refuse(
            step,
            None,
            "restart",
            "it makes the input itself and would begin anew; give the pipeline a client, or the step no restarts",
        ));
    }
    if step.backpressure == Backpressure::DropNewest {
        return Err(refuse(
            step,
            None,
            "backpressure",
            "it makes the input itself, so there is nothing to drop before a slot is free; drop the oldest, or use a client",
        ));
    }
    Ok(())
}

fn check_queues(before: &Step, step: &Step) -> Result<()> {
    let mut written = BTreeSet::new();
    for (number, group) in before.groups.iter().enumerate() {
        let queues = out_queues(group, false);
        if queues.is_empty() {
            return Err(refuse(
                before,
                Some(number),
                "out_queues",
                format!("there are none, but step {:?} comes after it", step.name),
            ));
        }
        written.extend(queues);
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
    if step.ordered && before.restarts > 0 && before.unfinished == Unfinished::Report {
        return Err(refuse(
            step,
            None,
            "ordered",
            format!(
                "it would wait for what failed in step {:?}; let that be redelivered (unfinished)",
                before.name
            ),
        ));
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

fn check_specs(
    step: &Step,
    number: usize,
    group: &QueueGroup,
    before: Option<(&Step, &[Vec<TensorSpec>])>,
    (is_last, devices): (bool, &dyn Fn() -> Result<usize, String>),
) -> Result<Vec<TensorSpec>> {
    if is_last
        && group
            .out_queues
            .as_ref()
            .is_some_and(|queues| !queues.is_empty())
    {
        return Err(refuse(
            step,
            Some(number),
            "out_queues",
            "it is the last step, so nobody reads them; leave them out",
        ));
    }
    let mut input: &[TensorSpec] = &[];
    if let Some((step_before, specs_before)) = before {
        let wanted = group.maker.input_spec()?;
        let groups = step_before.groups.iter().zip(specs_before);
        for (writer, (other, specs)) in groups.enumerate() {
            if !out_queues(other, false).contains(&in_queue(group)) {
                continue;
            }
            input = specs;
            let Some(wanted) = &wanted else { continue };
            let misfit = if wanted.len() == specs.len() {
                specs
                    .iter()
                    .zip(wanted)
                    .find_map(|(has, wants)| has.misfit(wants))
            } else {
                Some(format!(
                    "{} tensors come, {} are wanted",
                    specs.len(),
                    wanted.len()
                ))
            };
            if let Some(misfit) = misfit {
                return Err(refuse(
                    step,
                    Some(number),
                    "in_queue",
                    format!(
                        "what queue group {writer} of step {:?} puts there does not fit: {misfit}",
                        step_before.name
                    ),
                ));
            }
        }
    }
    let specs = group
        .maker
        .output_spec(input)
        .map_err(|error| refuse(step, Some(number), "output_spec", error))?;
    Layout::anywhere(&specs)
        .and_then(|_| check_places(group, &specs, devices))
        .map_err(|error| refuse(step, Some(number), "output_spec", error))?;
    if step.segments > 1 && specs.is_empty() {
        return Err(refuse(
            step,
            Some(number),
            "segments",
            "outputs without tensors have no rows to divide; let it be 1",
        ));
    }
    if step.segments > 1 && step.delivery == Delivery::Every {
        return Err(refuse(
            step,
            None,
            "delivery",
            "segments go to one reader each; deliver to one, or do not divide",
        ));
    }
    Ok(specs)
}
