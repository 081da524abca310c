//! Everything that can be known to be wrong before anything starts, each told with its step, group and key.

use shm_core::Arena;
use spawn::Stdin;

use crate::client::Client;
use crate::device::check_places;
use crate::error::{Error, Result};
use crate::nearest::did_you_mean;
use crate::route::{Backpressure, Delivery};
use crate::selector::{BUILT_IN, built_in};
use crate::spec::{Layout, TensorSpec};
use crate::step::{OWN, QueueGroup, SLOTS, Step};

mod queues;
mod room;

pub(crate) use queues::odd_keeping;
use queues::{check_queues, check_segments};
pub(crate) use room::check_room;

/// Processes that an arena has room for beside this one.
pub(crate) const PROCESSES_MAX: usize = Arena::PARTICIPANTS_MAX - 1;

/// What was found out on the way: the tensors of each step's groups.
pub(crate) type Specs = Vec<Vec<Vec<TensorSpec>>>;

/// Items that a queue can hold.
const QUEUE_MOST: usize = 1 << 24;

fn refuse(step: &Step, group: Option<usize>, key: &str, problem: impl std::fmt::Display) -> Error {
    Error::invalid(format!("{}: {problem}", place(step, group, key)))
}

/// Where it is written.
fn place(step: &Step, group: Option<usize>, key: &str) -> String {
    let name = &step.name;
    let key = word(step, key);
    let group = group.filter(|_| step.groups_are_listed);
    let of_group = group.map_or(String::new(), |group| format!(", queue group {group}"));
    format!("step {name:?}{of_group}, {key}")
}

/// What a key is called where the step was written.
fn word<'a>(step: &Step, key: &'a str) -> &'a str {
    match key {
        "slots" if step.in_rnbs_words => "num_shared_tensors",
        "segments" if step.in_rnbs_words => "num_segments",
        "devices" if step.in_rnbs_words => "gpus",
        "stage" if step.in_rnbs_words => "model",
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
        let is_called_so = |other: &Step| other.name == step.name;
        let problem = match steps[..index].iter().any(is_called_so) {
            true => Some("two steps are called so; give each a name of its own"),
            false if step.name.is_empty() => Some("it is empty; give the step a name"),
            false if step.name.contains(char::is_control) => Some(
                "it has a line break or another control character, which would garble all that is told of it; leave that out",
            ),
            false => None,
        };
        if let Some(problem) = problem {
            return Err(refuse(step, None, "name", problem));
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
    check_segments(steps)?;
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
        let (key, count) = group.asked();
        if count == 0 {
            let text = "it was to run in 0 processes; give it at least 1";
            return Err(group_is(key, text.to_owned()));
        }
        if count > PROCESSES_MAX {
            return Err(group_is(
                key,
                format!(
                    "it was to run in {count} processes; an arena has room for {PROCESSES_MAX}"
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
    if index == last && step.delivery == Delivery::Every {
        return Err(refuse(
            step,
            None,
            "delivery",
            "the last step has no outputs to deliver; leave it out",
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
            step.groups[0].asked().0,
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
    if is_last && group.maker.needs_next()? {
        return Err(refuse(
            step,
            Some(number),
            "stage",
            format!(
                "{} is no stage for the last step: nobody takes what it publishes; add a step behind it",
                group.maker.stage()
            ),
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
                let of_group = match step_before.groups_are_listed {
                    true => format!("queue group {writer} of "),
                    false => String::new(),
                };
                return Err(refuse(
                    step,
                    Some(number),
                    "in_queue",
                    format!(
                        "what {of_group}step {:?} puts there does not fit: {misfit}",
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
    let rows = specs.iter().filter_map(|spec| spec.shape().first()).max();
    if let Some(&rows) = rows.filter(|&&rows| rows < step.segments as usize) {
        return Err(refuse(
            step,
            Some(number),
            "segments",
            format!(
                "{} segments of at most {rows} rows: some of them would always be empty; divide into {rows} at most",
                step.segments
            ),
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
