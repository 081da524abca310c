//! A run that never was, for tests: a queue of known times.

use std::io::Write as _;
use std::path::Path;

use serde_json::json;

/// Writes the directory of a run of `items` items through *load* (1 ms each) and *infer* (two processes, 4 ms each).
pub(super) fn write(directory: &Path, items: u64) {
    const MS: u64 = 1_000_000;
    const START: u64 = 50_000 * MS;
    let mut cards = Vec::new();
    let mut rings = Vec::new();
    let mut free = [START; 2];
    let mut end = START;
    for item in 0..items {
        let loaded = START + (item + 1) * MS;
        writeln!(
            cards,
            "{}",
            json!({"item": item, "step": "load", "rank": 0, "enqueued": START, "dequeued": loaded - MS, "slot_acquired": loaded - MS,
                   "started": loaded - MS + 1000, "finished": loaded, "published": loaded})
        )
        .unwrap();
        let worker = usize::from(free[1] < free[0]);
        let begins = free[worker].max(loaded);
        free[worker] = begins + 4 * MS;
        end = end.max(free[worker]);
        writeln!(
            cards,
            "{}",
            json!({"item": item, "part": 0, "parent": null, "step": "infer", "rank": worker + 1, "device": -1, "enqueued": loaded,
                   "dequeued": begins, "slot_acquired": null, "started": begins, "finished": free[worker], "released": free[worker],
                   "outcome": "ok"})
        )
        .unwrap();
        writeln!(
            rings,
            "{}",
            json!({"t": loaded, "ring": "load→infer", "in_use": item.min(8)})
        )
        .unwrap();
    }
    let run = json!({
        "format": "tensormp-run", "version": 1, "started_unix_ns": 0, "clock_start_ns": START, "ended_ns": end,
        "termination": {"reason": "target_reached", "detail": null},
        "machine": {"cpus": 2, "kernel": "6.1"}, "command": ["demo", "run"],
        "steps": [{"name": "load", "stage": "Loader", "ranks": [0]}, {"name": "infer", "stage": "Net", "ranks": [1, 2]}],
        "processes": [
            {"rank": 0, "pid": 100, "step": "load", "replica": 0, "device": -1, "inputs": items, "outputs": items},
            {"rank": 1, "pid": 101, "step": "infer", "replica": 0, "device": -1},
            {"rank": 2, "pid": 102, "step": "infer", "replica": 1, "device": -1}],
        "rings": [{"name": "load→infer", "from": "load", "to": "infer", "slots": 8, "slot_bytes": 4096}],
        "items": {"offered": items, "completed": items, "dropped": 0, "failed": 0, "redelivered": 0},
        "config": {"name": "<demo>"}
    });
    std::fs::write(directory.join("run.json"), run.to_string()).unwrap();
    std::fs::write(directory.join("items.jsonl"), cards).unwrap();
    std::fs::write(directory.join("rings.jsonl"), rings).unwrap();
}
