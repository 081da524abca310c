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
        "orphans",
        "zombies",
    ] {
        assert_eq!(number(key), 0, "{key}: {told}");
    }
    assert_eq!(number("seed"), 5);
    for key in ["rounds", "kills", "messages"] {
        assert!(number(key) > 0, "{key}: {told}");
    }
}

/// The crew itself was killed, from outside and at labels.
#[track_caller]
fn killed_the_crew(told: &Value) {
    assert!(told["killed_at_random"].as_u64().unwrap() > 0, "{told}");
    assert!(!told["killed_at_labels"].as_object().unwrap().is_empty());
}

#[test]
fn kills_among_tensors_of_all_kinds_break_nothing() {
    let told = chaos("memory");
    is_clean(&told);
    killed_the_crew(&told);
}

#[test]
fn kills_at_queues_and_lanes_lose_and_double_nothing() {
    let told = chaos("queue");
    is_clean(&told);
    killed_the_crew(&told);
}

#[test]
fn kills_among_parents_and_children_leave_nobody_behind() {
    let told = chaos("spawn");
    is_clean(&told);
    assert!(told["children_killed"].as_u64().unwrap() > 0, "{told}");
}

#[test]
fn kills_of_workers_cost_no_task_more_than_its_value() {
    let told = chaos("pool");
    is_clean(&told);
    assert!(told["children_killed"].as_u64().unwrap() > 0, "{told}");
}

#[test]
fn kills_of_stages_lose_no_input_without_a_word() {
    let told = chaos("pipeline");
    is_clean(&told);
    assert!(told["children_killed"].as_u64().unwrap() > 0, "{told}");
}

#[test]
fn kills_among_device_tensors_free_nothing_that_is_read() {
    let told = chaos("cuda");
    is_clean(&told);
    killed_the_crew(&told);
}
