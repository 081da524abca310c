//! The run as a trace in the Trace Event Format, which Perfetto and `chrome://tracing` read.
//!
//! One track per process with its real pid: for each item the wait for a slot, the work, the copy and the hand-over. Arrows
//! lead from step to step. The rings are counters.

use std::collections::HashMap;
use std::io::{self, Write};

use serde_json::{Value, json};

use super::read::{Card, Run};

/// Writes the trace.
pub(super) fn write(run: &Run, out: &mut impl Write) -> io::Result<()> {
    let mut events = Events { out, first: true };
    events.begin()?;
    for process in &run.processes {
        let pid = process.pid;
        let name = format!("{} {}", process.step, process.replica);
        events.push(&json!({"ph": "M", "name": "process_name", "pid": pid, "tid": pid, "args": {"name": name}}))?;
        events.push(&json!({"ph": "M", "name": "process_sort_index", "pid": pid, "tid": pid, "args": {"sort_index": process.rank}}))?;
    }
    let pid_of = |card: &Card| {
        run.process(card.rank)
            .map_or(card.rank, |process| process.pid)
    };
    // The card of each part of each item in each step, for the arrows.
    let mut found: HashMap<(&str, u64), Vec<&Card>> = HashMap::new();
    for card in &run.cards {
        found.entry((&card.step, card.item)).or_default().push(card);
    }
    let before: HashMap<&str, &str> = run
        .steps
        .windows(2)
        .map(|pair| (pair[1].name.as_str(), pair[0].name.as_str()))
        .collect();
    let mut arrows = 0_u64;
    for (number, card) in run.cards.iter().enumerate() {
        let pid = pid_of(card);
        spans(run, card, number, pid, &mut events)?;
        let Some(&step) = before.get(card.step.as_str()) else {
            continue;
        };
        // What it was in the step before: itself, the same part of it where there are some; or what it was made of.
        let itself = found.get(&(step, card.item)).map_or(&[][..], Vec::as_slice);
        let same = itself.iter().find(|sender| sender.part == card.part);
        let made_of = card
            .parent
            .iter()
            .filter_map(|&parent| found.get(&(step, parent)));
        let made_of = made_of.filter_map(|parts| parts.first());
        let senders = same.or(itself.first()).into_iter().chain(made_of);
        for sender in senders {
            // Within the call that it was given in, or where it was held, in the moment that it was handed over.
            let from = match sender.held_ns() {
                0 => sender.finished.saturating_sub(1),
                _ => sender.done(),
            };
            arrows += 1;
            for (ph, pid, at) in [("s", pid_of(sender), from), ("f", pid, card.started)] {
                events.push(&json!({
                    "ph": ph, "bp": "e", "name": "hand-over", "cat": "hand-over", "id": arrows,
                    "pid": pid, "tid": pid, "ts": micros(run, at),
                }))?;
            }
        }
    }
    for sample in &run.samples {
        events.push(&json!({
            "ph": "C", "name": format!("ring {}", sample.ring), "pid": 0, "tid": 0,
            "ts": micros(run, sample.t), "args": {"slots in use": sample.in_use},
        }))?;
    }
    events.end()
}

/// What one process did with one item.
fn spans<W: Write>(
    run: &Run,
    card: &Card,
    number: usize,
    pid: u32,
    events: &mut Events<'_, W>,
) -> io::Result<()> {
    let name = match card.part {
        0 => format!("item {}", card.item),
        part => format!("item {}.{part}", card.item),
    };
    let mut span = |what: &str, from: u64, length: u64| {
        if length == 0 && what != "service" {
            return Ok(());
        }
        let name = match what {
            "service" => name.clone(),
            _ => what.to_owned(),
        };
        events.push(&json!({
            "ph": "X", "name": name, "cat": what, "pid": pid, "tid": pid,
            "ts": micros(run, from), "dur": length as f64 / 1e3,
            "args": {"item": card.item, "part": card.part, "step": card.step, "device": card.device,
                     "queueing_us": card.queueing_ns() as f64 / 1e3, "outcome": card.outcome},
        }))
    };
    let taking = card.hand_off_ns();
    span("hand-off", card.started.saturating_sub(taking), taking)?;
    span(
        "service",
        card.started,
        card.finished.saturating_sub(card.started),
    )?;
    let waited = card.slot_wait_ns();
    let acquired = card.slot_acquired.unwrap_or(card.dequeued + waited);
    let held = card.held_ns();
    if held == 0 {
        span("slot wait", acquired.saturating_sub(waited), waited)?;
    }
    span("copy", card.finished, card.copy_ns())?;
    if held == 0 {
        return Ok(());
    }
    // Others are worked on meanwhile, so it stands in a lane of its own.
    for (ph, at) in [("b", card.done() - held), ("e", card.done())] {
        events.push(&json!({
            "ph": ph, "name": format!("held: {name}"), "cat": "held", "id": number, "pid": pid, "tid": pid,
            "ts": micros(run, at), "args": {"item": card.item, "slot_wait_us": waited as f64 / 1e3},
        }))?;
    }
    Ok(())
}

fn micros(run: &Run, at: u64) -> f64 {
    at.saturating_sub(run.clock_start_ns) as f64 / 1e3
}

struct Events<'a, W: Write> {
    out: &'a mut W,
    first: bool,
}

impl<W: Write> Events<'_, W> {
    fn begin(&mut self) -> io::Result<()> {
        self.out
            .write_all(b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[")
    }

    fn push(&mut self, event: &Value) -> io::Result<()> {
        if !std::mem::take(&mut self.first) {
            self.out.write_all(b",")?;
        }
        self.out.write_all(b"\n")?;
        serde_json::to_writer(&mut *self.out, event)?;
        Ok(())
    }

    fn end(&mut self) -> io::Result<()> {
        self.out.write_all(b"\n]}\n")
    }
}
