//! Reports of runs in which items are put together, divided, or never told the end of.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};

use super::*;

const MS: u64 = 1_000_000;
const START: u64 = 50_000 * MS;

/// One item's card; times are in milliseconds since the start.
fn card(item: u64, step: &str, [enqueued, dequeued, finished, published]: [u64; 4]) -> Value {
    let at = |ms: u64| START + ms * MS;
    json!({"item": item, "step": step, "rank": 0, "enqueued": at(enqueued), "dequeued": at(dequeued),
           "started": at(dequeued), "finished": at(finished), "published": (published > 0).then(|| at(published)),
           "released": at(finished)})
}

fn run(directory: &Path, steps: &[(&str, u64, u64)], ended: u64, cards: &[Value]) -> Value {
    let names = steps.iter().map(|(name, ..)| json!({"name": name}));
    let places = steps.iter().enumerate().map(|(rank, (name, inputs, outputs))| {
        json!({"rank": rank, "pid": 100 + rank, "step": name, "inputs": inputs, "outputs": outputs})
    });
    let rings = steps.windows(2).map(|pair| {
        let (from, to) = (pair[0].0, pair[1].0);
        json!({"name": format!("{from}→{to}"), "from": from, "slots": 8})
    });
    let run = json!({
        "format": "tensormp-run", "version": 1, "clock_start_ns": START, "ended_ns": START + ended * MS,
        "termination": {"reason": "target_reached"},
        "steps": names.collect::<Vec<_>>(), "processes": places.collect::<Vec<_>>(), "rings": rings.collect::<Vec<_>>(),
        "items": {"offered": 8, "completed": 8},
    });
    fs::write(directory.join("run.json"), run.to_string()).unwrap();
    let lines: String = cards.iter().map(|card| format!("{card}\n")).collect();
    fs::write(directory.join("items.jsonl"), lines).unwrap();
    run
}

/// Eight inputs, one every 10 ms, in batches of four; a batch is worked on for 5 ms. One process for each of three steps.
fn batches(directory: &Path) {
    let batch = |first: u64| (1 << 52) + first;
    let mut cards = Vec::new();
    for item in 0..8_u64 {
        let at = 10 * item;
        cards.push(card(item, "load", [at, at, at + 1, at + 1]));
        let whole = 10 * (item / 4 * 4 + 3) + 2;
        let mut card = card(item, "batch", [at + 1, at + 1, at + 1, whole]);
        card["rank"] = 1.into();
        // One wait for the slot of all four.
        card["slot_acquired"] = (START + whole * MS).into();
        card["slot_wait"] = (MS / 2).into();
        cards.push(card);
    }
    for first in [0_u64, 4] {
        let at = 10 * (first + 3) + 2;
        let mut card = card(batch(first), "infer", [at, at, at + 5, 0]);
        card["parent"] = json!((first..first + 4).collect::<Vec<_>>());
        card["rank"] = 2.into();
        cards.push(card);
    }
    run(
        directory,
        &[("load", 8, 8), ("batch", 8, 2), ("infer", 2, 0)],
        77,
        &cards,
    );
}

#[test]
fn the_latency_of_what_went_into_a_batch_begins_with_its_own_offer() {
    let directory = tempfile::tempdir().unwrap();
    batches(directory.path());
    let run = Run::open(directory.path()).unwrap();
    let summary = Summary::of(&run);
    // The first of a batch is done 37 ms after its offer, the last 7.
    let latency = summary.latency;
    assert_eq!(
        (latency.count, latency.p50, latency.p99),
        (8, 17 * MS, 37 * MS)
    );
    let batch = &summary.steps[1];
    // They wait in the stage, and that is neither work nor a hand-over; nor is the wait for a slot, which they share.
    assert_eq!((batch.held.p50, batch.hand_off.p99), (10 * MS + MS / 2, 0));
    assert_eq!((batch.slot_wait.p50, batch.service.p99), (MS / 2, 0));
    assert!(
        (batch.waiting - 1.0 / 77.0).abs() < 1e-9,
        "{}",
        batch.waiting
    );
    // Stacked, the parts of each input's latency are the whole of it, but for its way through the queues.
    let stack = series::latency_by_step(&run);
    let sum = |at: usize| stack.iter().map(|curve| curve.points[at].1).sum::<f64>();
    assert_eq!((stack[2].points.len(), sum(0)), (2, 22.0), "{stack:?}");
    write(directory.path()).unwrap();
    let text = fs::read_to_string(directory.path().join("summary.txt")).unwrap();
    assert!(
        text.contains("held") && text.contains("8 items in"),
        "{text}"
    );
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(
        page.contains(">held</th>") && page.contains("<dt>held</dt>"),
        "{page}"
    );
    let trace = fs::read_to_string(directory.path().join("trace.json")).unwrap();
    let trace: Value = serde_json::from_str(&trace).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    let of = |ph: &str| events.iter().filter(|event| event["ph"] == ph).count();
    // From each item to the batcher, and from each to its batch.
    assert_eq!((of("s"), of("f"), of("b"), of("e")), (16, 16, 8, 8));
}

#[test]
fn outputs_of_a_step_are_those_that_it_put_and_not_the_items_in_them() {
    let directory = tempfile::tempdir().unwrap();
    batches(directory.path());
    let counts = |directory: &Path| {
        let summary = Summary::of(&Run::open(directory).unwrap());
        let counts = summary
            .steps
            .iter()
            .map(|step| (step.counts.taken, step.counts.published));
        (counts.collect::<Vec<_>>(), summary)
    };
    assert_eq!(counts(directory.path()).0, [(8, 8), (8, 2), (2, 0)]);
    // Nobody came to say how it ended, or what its processes had taken: as many as went on, each batch once.
    let path = directory.path().join("run.json");
    let mut run: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    run["termination"]["reason"] = "unknown".into();
    run["items"] = Value::Null;
    run.as_object_mut().unwrap().remove("items");
    for process in run["processes"].as_array_mut().unwrap() {
        (process["inputs"], process["outputs"]) = (0.into(), 0.into());
    }
    fs::write(&path, run.to_string()).unwrap();
    let (of_steps, summary) = counts(directory.path());
    assert_eq!(of_steps, [(8, 8), (8, 2), (2, 0)]);
    // Nor what became of its inputs: those of one batch were not done.
    assert_eq!((summary.items.offered, summary.items.completed), (8, 8));
    let cards = directory.path().join("items.jsonl");
    let text = fs::read_to_string(&cards).unwrap();
    let lines: Vec<_> = text.lines().collect();
    fs::write(&cards, lines[..lines.len() - 1].join("\n")).unwrap();
    let items = counts(directory.path()).1.items;
    assert_eq!(
        (items.offered, items.completed, items.unfinished),
        (8, 4, 4)
    );
}

#[test]
fn where_nothing_was_finished_there_is_no_latency_to_tell() {
    let directory = tempfile::tempdir().unwrap();
    let cards = [card(0, "load", [0, 0, 1, 1])];
    let mut run = run(
        directory.path(),
        &[("load", 1, 1), ("infer", 1, 0)],
        5,
        &cards,
    );
    run["items"] = json!({"offered": 1, "failed": 1});
    run["termination"] = json!({"reason": "failed"});
    fs::write(directory.path().join("run.json"), run.to_string()).unwrap();
    write(directory.path()).unwrap();
    let text = fs::read_to_string(directory.path().join("summary.txt")).unwrap();
    assert!(
        text.contains("0 items in") && text.contains("done p50 –, p90 –, p99 –"),
        "{text}"
    );
    assert!(text.contains("1 item failed\n"), "{text}");
    let page = fs::read_to_string(directory.path().join("report.html")).unwrap();
    assert!(page.contains("<dt>latency p50</dt><dd>–</dd>"), "{page}");
    let none = Summary::of(&Run::open(directory.path()).unwrap());
    batches(directory.path());
    let some = Summary::of(&Run::open(directory.path()).unwrap());
    for (a, b) in [(none.clone(), some.clone()), (some, none)] {
        let both = Comparison::of(a, b).to_string();
        let latency = both
            .lines()
            .find(|line| line.starts_with("latency p50"))
            .unwrap();
        assert!(latency.contains('–') && latency.ends_with('–'), "{both}");
    }
}

#[test]
fn a_client_that_gives_less_than_the_steps_could_take_is_what_limits_the_run() {
    let directory = tempfile::tempdir().unwrap();
    batches(directory.path());
    let verdict = |directory: &Path| Summary::of(&Run::open(directory).unwrap()).bottleneck;
    let told = verdict(directory.path());
    assert!(
        told.starts_with("The client limits the run: it gives 104 /s"),
        "{told}"
    );
    // All at once: then it is no longer the client.
    let cards: Vec<_> = (0..8)
        .map(|item| card(item, "load", [0, 10 * item, 10 * item + 1, 10 * item + 1]))
        .collect();
    run(directory.path(), &[("load", 8, 8)], 77, &cards);
    let told = verdict(directory.path());
    assert!(
        told.starts_with("No step limits the run: the busiest, \"load\""),
        "{told}"
    );
}

#[test]
fn slots_are_not_blamed_for_a_process_that_was_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let mut cards = Vec::new();
    for item in 0..8 {
        let mut card = card(item, "load", [0, 10 * item, 10 * item + 10, 10 * item + 10]);
        card["slot_acquired"] = (START + (10 * item + 9) * MS).into();
        card["slot_wait"] = (9 * MS).into();
        cards.push(card);
    }
    let steps = [("load", 8, 8), ("infer", 8, 0)];
    let mut run = run(directory.path(), &steps, 90, &cards);
    let verdict = |directory: &Path| Summary::of(&Run::open(directory).unwrap()).bottleneck;
    let told = verdict(directory.path());
    assert!(
        told.starts_with("Step \"load\" waits for free slots 80 % of the time"),
        "{told}"
    );
    run["processes"][1]["replaced"] =
        json!([{"pid": 9, "at_ns": START + 30 * MS, "cause": "it was killed", "inputs": 0}]);
    fs::write(directory.path().join("run.json"), run.to_string()).unwrap();
    let told = verdict(directory.path());
    assert!(
        told.starts_with("Step \"infer\" was short of a process for 67 % of the run"),
        "{told}"
    );
}
