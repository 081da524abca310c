//! `cargo xtask chaos`, run as a program, in short: a fixed seed and so many kills.

#![cfg(debug_assertions)]

use std::process::Command;

use serde_json::Value;

fn chaos(suite: &str) -> Value {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["chaos", suite, "--json", "--seed", "5"])
        .args(["--kills", "60", "--seconds", "40"])
        .output()
        .unwrap();
    let (told, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{told}\n{errors}");
    serde_json::from_str(&told).unwrap()
}

/// Nothing is wrong, and something was done.
#[track_caller]
fn is_clean(told: &Value) {
    let number = |key: &str| told[key].as_u64().unwrap();
    for key in [
        "corruptions",
        "crashes",
        "hangs",
        "counts_too_low",
        "leaks_after_audit",
        "files_left",
    ] {
        assert_eq!(number(key), 0, "{key}: {told}");
    }
    assert_eq!(number("seed"), 5);
    for key in ["rounds", "kills", "killed_at_random", "messages"] {
        assert!(number(key) > 0, "{key}: {told}");
    }
    assert!(!told["killed_at_labels"].as_object().unwrap().is_empty());
}

#[test]
fn kills_among_tensors_of_all_kinds_break_nothing() {
    is_clean(&chaos("memory"));
}

#[test]
fn kills_at_queues_and_lanes_lose_and_double_nothing() {
    is_clean(&chaos("queue"));
}
