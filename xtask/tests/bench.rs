//! `cargo xtask bench`, run as a program: two real processes, and what a script reads from it.

use std::process::Command;

use serde_json::Value;

/// Runs it with the build at hand; none on a machine with one CPU, where it has to refuse.
fn bench(args: &[&str]) -> Option<Vec<Value>> {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["bench", "--as-built"])
        .args(args)
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && errors.contains("two CPUs are needed") {
        return None;
    }
    assert!(output.status.success(), "{errors}");
    let lines = String::from_utf8(output.stdout).unwrap();
    Some(
        lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect(),
    )
}

#[test]
fn each_floor_is_measured_against_itself_and_a_message_by_hand_against_a_word() {
    let Some(lines) = bench(&["floor", "--quick", "--json"]) else {
        return;
    };
    let cases: Vec<_> = lines
        .iter()
        .map(|line| line["case"].as_str().unwrap())
        .collect();
    assert_eq!(
        cases,
        [
            "cache line",
            "futex wake",
            "memcpy 12MB",
            "first touch 12MB",
            "bare line busy 64B",
            "bare lane busy 64B"
        ]
    );
    for line in &lines {
        let case = line["case"].as_str().unwrap();
        let is_bare = case.starts_with("bare ");
        assert_eq!(line["floor"], if is_bare { "cache line" } else { case });
        assert!(line["n"].as_u64().unwrap() >= 9, "{line}");
        let [p50, p99, p999] = ["p50", "p99", "p999"].map(|key| line[key].as_u64().unwrap());
        assert!(0 < p50 && p50 <= p99 && p99 <= p999, "{line}");
        assert!(line["floor_ratio"].as_f64().unwrap() > 0.0, "{line}");
    }
}

#[test]
fn a_cpu_that_is_not_there_is_an_error_that_names_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["bench", "--as-built", "floor", "--quick", "--pin", "0,1000"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("cannot pin to CPU 1000"),
        "{errors}"
    );
}

#[test]
fn a_slot_of_a_pipeline_is_measured_beside_a_queue_and_an_index() {
    let only = ["pipeline", "--quick", "--json", "--only", "busy 12MB"];
    let Some(lines) = bench(&only) else {
        return;
    };
    let cases: Vec<_> = lines
        .iter()
        .map(|line| line["case"].as_str().unwrap())
        .collect();
    assert_eq!(
        cases,
        [
            "ring busy 12MB",
            "queue busy 12MB",
            "rnb busy 12MB",
            "rnb copied busy 12MB"
        ]
    );
    for line in &lines {
        assert_eq!(line["metric"], "finish_to_start_ns", "{line}");
        assert!(line["n"].as_u64().unwrap() >= 180, "{line}");
        assert!(line["p50"].as_u64().unwrap() > 0, "{line}");
    }
}

#[test]
fn a_device_tensor_costs_each_process_one_event_and_one_wait() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["bench", "cuda", "--emulated", "--json"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if !output.status.success() && errors.contains("two CPUs are needed") {
        return;
    }
    assert!(output.status.success(), "{errors}");
    let lines = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<Value> = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let put: Vec<_> = lines
        .iter()
        .filter(|line| line["case"] == "device put")
        .collect();
    assert_eq!(put.len(), 2, "{lines:?}");
    for side in put {
        let mut calls = side["calls"].as_object().unwrap().clone();
        // To ask whether an event has happened waits for nobody.
        let asked = calls
            .remove("cuEventQuery")
            .and_then(|asked| asked.as_f64());
        assert!(asked.unwrap_or(0.0) <= 1.0, "{side}");
        // And the thread that looks around now and then asks whether a stream is busy, however many are handed on meanwhile.
        let looked = calls.remove("cuStreamQuery");
        let looked = looked.and_then(|looked| looked.as_f64());
        assert!(looked.unwrap_or(0.0) <= 0.1, "{side}");
        let steady = serde_json::json!({"cuEventRecord": 1.0, "cuStreamWaitEvent": 1.0});
        assert_eq!(Value::from(calls), steady, "{side}");
    }
}

#[test]
fn without_a_gpu_the_suite_cuda_says_so_and_measures_nothing() {
    if cuda_ipc::is_available() {
        println!("skipped: there is a GPU");
        return;
    }
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["bench", "--as-built", "cuda", "--quick", "--json"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    if errors.contains("two CPUs are needed") {
        return;
    }
    assert!(output.status.success(), "{errors}");
    assert!(output.stdout.is_empty());
    assert!(errors.contains("left out cuda: device put: "), "{errors}");
}
