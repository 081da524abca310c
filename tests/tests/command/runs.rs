//! `report`, on run directories written by hand.

use std::fs;
use std::path::Path;

use integration_tests::{Test, tests};
use serde_json::json;

use crate::{objects, tensormp, text};

pub(crate) const PROMISES: &[Test] = &tests![
    a_run_is_rendered_and_said_where,
    two_runs_are_held_against_each_other,
    what_is_no_run_is_said_and_the_exit_code_is_1,
];

/// A run of one step in which each item took so many milliseconds.
fn write_run(directory: &Path, ms: u64) {
    let mut cards = String::new();
    for item in 0..10 {
        let begins = item * ms * 1_000_000;
        let ends = begins + ms * 1_000_000;
        let card = json!({"item": item, "step": "work", "rank": 0, "enqueued": begins, "dequeued": begins, "started": begins, "finished": ends});
        cards.push_str(&format!("{card}\n"));
    }
    let run = json!({
        "format": "tensormp-run", "version": 1, "clock_start_ns": 0, "ended_ns": 10 * ms * 1_000_000,
        "termination": {"reason": "input_ended"},
        "steps": [{"name": "work"}], "processes": [{"rank": 0, "pid": 4711, "step": "work"}],
    });
    fs::write(directory.join("run.json"), run.to_string()).unwrap();
    fs::write(directory.join("items.jsonl"), cards).unwrap();
}

fn a_run_is_rendered_and_said_where() {
    let directory = tempfile::tempdir().unwrap();
    write_run(directory.path(), 2);
    let printed = text(
        tensormp()
            .arg("report")
            .arg(directory.path())
            .output()
            .unwrap(),
    );
    for part in [
        "work",
        "2.00 ms",
        "10 items in 0.02 s",
        "ended: input_ended",
        "report.html",
    ] {
        assert!(printed.contains(part), "{part:?} is missing in:\n{printed}");
    }
    for file in ["summary.txt", "summary.json", "trace.json", "report.html"] {
        assert!(directory.path().join(file).exists(), "{file}");
    }
    let output = tensormp()
        .args(["report", "--json"])
        .arg(directory.path())
        .output()
        .unwrap();
    let found = objects(&output);
    assert_eq!(found[0]["summary"]["items"]["completed"], 10);
    assert_eq!(found[0]["files"].as_array().unwrap().len(), 4);
}

fn two_runs_are_held_against_each_other() {
    let [a, b] = [2, 6].map(|ms| {
        let directory = tempfile::tempdir().unwrap();
        write_run(directory.path(), ms);
        directory
    });
    let printed = text(
        tensormp()
            .arg("report")
            .args([a.path(), b.path()])
            .output()
            .unwrap(),
    );
    assert!(
        printed.contains("work: service p50") && printed.contains("3.00 ×"),
        "{printed}"
    );
    assert!(!a.path().join("report.html").exists());
}

fn what_is_no_run_is_said_and_the_exit_code_is_1() {
    let directory = tempfile::tempdir().unwrap();
    let output = tensormp()
        .arg("report")
        .arg(directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("run.json") && output.stdout.is_empty(),
        "{said}"
    );
    let output = tensormp()
        .args(["report", "--json"])
        .arg(directory.path())
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(told["error"].as_str().unwrap().contains("run.json"));
}
