//! Processes that are killed again and again while their step replaces them: no hang, and every item accounted for.

use std::process::Stdio;

use serde_json::Value;
use tensormp::pipeline::{Delivery, Pipeline, QueueGroup, Step, Unfinished};

use crate::flow::{client, numbers, see};
use crate::stages::*;

const ITEMS: u64 = 300;

/// A run whose second step is replaced as often as it takes; tells what became of the items.
pub(crate) fn replaced_again_and_again() {
    let report = Pipeline::new()
        .client(client(ITEMS))
        .step(
            Step::of::<Load>("load", LoadParams::default())
                .replicas(2)
                .slots(2)
                .restart(1000, Unfinished::Redeliver),
        )
        .step(
            Step::of::<Copy>("copy", SeeParams::default())
                .replicas(2)
                .slots(2)
                .restart(1000, Unfinished::Redeliver),
        )
        .step(see())
        .start()
        .unwrap()
        .wait();
    let restarts: u32 = report
        .processes()
        .iter()
        .map(|process| process.restarts())
        .sum();
    let error = report.error().map(ToString::to_string);
    let mut numbers = match &error {
        None => numbers(&report, "see"),
        Some(_) => Vec::new(),
    };
    let arrived = numbers.len();
    numbers.dedup();
    println!(
        "{}",
        serde_json::json!({
            "error": error, "items": report.items(), "restarts": restarts,
            "arrived": arrived, "numbers": numbers.len(),
        })
    );
    integration_tests::allow_leaks(2 * restarts as usize);
}

pub(crate) fn killed_at_each_step_of_its_way_a_process_is_replaced_and_items_are_accounted_for() {
    let mut killed = 0;
    for (label, nth, process) in [
        ("put.claimed", 40, "copy.0"),
        ("put.written", 40, "load.1"),
        ("put.giving", 40, "copy.0"),
        ("put.published", 40, "copy.1"),
        ("get.taken", 40, "load.0"),
        ("get.recorded", 40, "copy.1"),
        ("get.released", 40, "copy.0"),
        ("block.drop.recorded", 40, "copy.0"),
        ("block.drop.uncounted", 40, "copy.1"),
        ("block.drop.cleared", 120, "copy.0"),
    ] {
        // What a process does when it starts and ends comes by these labels, too, less often than that.
        let output = integration_tests::play("replaced_again_and_again")
            .env(
                "TENSORMP_FAILPOINT",
                format!("{label}:{nth}@{process}=kill"),
            )
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{label} in {process}: {said}");
        let told = String::from_utf8_lossy(&output.stdout);
        let told: Value = serde_json::from_str(told.trim()).unwrap();
        assert_eq!(told["error"], Value::Null, "{label}: {told}");
        let count = |key: &str| told["items"][key].as_u64().unwrap();
        killed += u64::from(told["restarts"].as_u64().unwrap() > 0);
        assert_eq!(count("offered"), ITEMS, "{label}: {told}");
        assert_eq!(
            count("completed") + count("failed"),
            ITEMS,
            "{label}: {told}"
        );
        // What failed was lost with a process; at most one for each.
        assert!(
            count("failed") <= told["restarts"].as_u64().unwrap(),
            "{label}: {told}"
        );
        assert!(
            told["numbers"].as_u64().unwrap() >= count("completed"),
            "{label}: {told}"
        );
    }
    // Which process gets how many items is the scheduler's business: some may not come by so often.
    assert!(killed >= 5, "{killed} of 10 were killed");
}

pub(crate) fn a_reader_that_has_had_enough_does_not_keep_the_others_from_theirs() {
    let few = SeeParams {
        enough: Some(5),
        ..SeeParams::default()
    };
    // The same where it has a queue of its own.
    let load = QueueGroup::of::<Load>(LoadParams::default()).out_queues([0, 1]);
    let report = Pipeline::new()
        .client(client(60))
        .step(Step::new("load").group(load).slots(2))
        .step(
            Step::new("see")
                .group(QueueGroup::of::<See>(few.clone()).in_queue(1))
                .group(QueueGroup::of::<See>(SeeParams::default())),
        )
        .run()
        .unwrap();
    let seen = crate::flow::seen(&report, "see");
    assert_eq!((seen[0].len(), seen[1].len()), (5, 30));

    let report = Pipeline::new()
        .client(client(60))
        .step(
            Step::of::<Load>("load", LoadParams::default())
                .slots(2)
                .delivery(Delivery::Every),
        )
        .step(
            Step::new("see")
                .group(QueueGroup::of::<See>(few))
                .group(QueueGroup::of::<See>(SeeParams::default())),
        )
        .run()
        .unwrap();
    let seen = crate::flow::seen(&report, "see");
    assert_eq!((seen[0].len(), seen[1].len()), (5, 60));
    let items = report.items();
    assert_eq!(items.completed + items.dropped, 60);
}
