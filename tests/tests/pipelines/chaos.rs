//! Processes that are killed again and again while their step replaces them: no hang, and every item accounted for.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tensormp::pipeline::stages::{Aggregator, AggregatorParams};
use tensormp::pipeline::{Client, Delivery, Pipeline, QueueGroup, Step, Unfinished};

use crate::flow::{client, numbers, see};
use crate::scenes::{copy, load, replaced_in_twos, told_by};
use crate::stages::*;

const ITEMS: u64 = 300;

/// A run whose second step is replaced as often as it takes; tells what became of the items.
pub(crate) fn replaced_again_and_again() {
    let report = replaced_in_twos(ITEMS, 1000).start().unwrap().wait();
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
        ("block.drop.left", 120, "copy.0"),
    ] {
        // What a process does when it starts and ends comes by these labels, too, less often than that.
        let at = format!("{label}:{nth}@{process}=kill");
        let told = told_by("replaced_again_and_again", &[("TENSORMP_FAILPOINT", &at)]);
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

/// A run of so many finished inputs, whose process is killed again and again, by some of these deaths with an item. Each
/// is replaced after some thirty inputs; how many of these are in hand, and come again, is the scheduler's business, so the
/// replacements are no more than one for each input that was there to be finished.
pub(crate) fn counted_though_one_is_lost() {
    let report = Pipeline::new()
        .client(Client::new(0_u64..).count(ITEMS))
        .step(load().slots(2).restart(ITEMS as u32, Unfinished::Redeliver))
        .step(see().ordered())
        .run()
        .unwrap();
    let (items, restarts) = (report.items(), report.processes()[0].restarts());
    println!(
        "{}",
        serde_json::json!({"items": items, "restarts": restarts})
    );
    integration_tests::allow_leaks(2);
}

pub(crate) fn what_a_killed_process_took_with_it_is_made_up_for_by_another_input() {
    let mut lost = 0;
    // What is noted of an item is taken out of a queue, too: one of the two has just taken an item.
    for nth in [60, 61] {
        let at = format!("get.released:{nth}@load=kill");
        let told = told_by("counted_though_one_is_lost", &[("TENSORMP_FAILPOINT", &at)]);
        let restarts = told["restarts"].as_u64().unwrap();
        assert!(restarts > 0, "{told}");
        let failed = told["items"]["failed"].as_u64().unwrap();
        assert!(failed <= restarts, "at most one for each death: {told}");
        assert_eq!(told["items"]["completed"], ITEMS, "{told}");
        assert_eq!(told["items"]["offered"], ITEMS + failed, "{told}");
        lost += failed;
    }
    assert!(lost > 0);
}

/// The same where what is lost is a segment, whose item another process waits for.
pub(crate) fn counted_though_a_segment_is_lost() {
    let report = Pipeline::new()
        .client(Client::new(0_u64..).count(ITEMS))
        .step(load().segments(2))
        .step(copy().restart(50, Unfinished::Redeliver))
        .step(Step::of::<Aggregator>("join", AggregatorParams::default()))
        .step(see())
        .start()
        .unwrap()
        .wait();
    let (items, restarts) = (report.items(), report.processes()[1].restarts());
    println!(
        "{}",
        serde_json::json!({
            "items": items, "restarts": restarts, "termination": report.termination(),
            "seen": numbers(&report, "see").len(),
        })
    );
    integration_tests::allow_leaks(2 * restarts as usize);
}

pub(crate) fn what_waits_for_a_segment_that_was_killed_is_made_up_for_by_another_input() {
    let mut lost = 0;
    // As above: one of the two has just taken a segment.
    for nth in [200, 201] {
        let at = format!("get.released:{nth}@copy=kill");
        let told = told_by(
            "counted_though_a_segment_is_lost",
            &[("TENSORMP_FAILPOINT", &at)],
        );
        assert!(told["restarts"].as_u64().unwrap() > 0, "{told}");
        assert_eq!(told["termination"], "target_reached", "{told}");
        let count = |key: &str| told["items"][key].as_u64().unwrap();
        assert!(count("completed") >= ITEMS, "{told}");
        let known = count("completed") + count("failed");
        assert_eq!(count("offered"), known, "{told}");
        lost += count("failed");
    }
    assert!(lost > 0);
}

/// How many processes are killed at random.
const KILLS: usize = 40;

pub(crate) fn killed_at_random_processes_are_replaced_and_items_are_accounted_for() {
    integration_tests::allow_leaks(2 * KILLS);
    let again = |step: Step| step.replicas(2).restart(1000, Unfinished::Redeliver);
    // As many inputs as can be finished until the killing stops, and some more.
    let stop = Arc::new(AtomicBool::new(false));
    let go_on = Arc::clone(&stop);
    let (begun, has_begun) = std::sync::mpsc::sync_channel(1);
    let inputs = (0_u64..).take_while(move |_| {
        let _ = begun.try_send(());
        !go_on.load(Ordering::Relaxed)
    });
    let running = Pipeline::new()
        .client(Client::new(inputs))
        .step(again(load().slots(2)))
        .step(again(copy().slots(2).segments(2)))
        .step(again(Step::of::<See>("see", SeeParams::default())))
        .start()
        .unwrap();
    // Not while they start, which they do all together: none might get an input before the last is killed.
    has_begun.recv().unwrap();
    let mut random = 7_u64;
    for _ in 0..KILLS {
        random = random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        std::thread::sleep(Duration::from_millis(random >> 59));
        let pid = running.pids()[(random >> 33) as usize % 6];
        // Not one that has just been waited for: its number may be another's.
        if integration_tests::children().contains(&pid) {
            integration_tests::kill(pid);
        }
    }
    stop.store(true, Ordering::Relaxed);
    let report = running.wait();
    assert!(report.error().is_none(), "{report:?}");
    let (items, restarts) = (report.items(), report.processes().iter());
    let restarts: u64 = restarts.map(|process| u64::from(process.restarts())).sum();
    assert!(restarts > 0 && items.completed > 0, "{items:?}");
    assert_eq!(items.offered, items.completed + items.failed, "{items:?}");
    // A process loses at most what it had just taken and not noted.
    assert!(items.failed <= restarts, "{items:?}, {restarts} restarts");
}

pub(crate) fn a_reader_that_has_had_enough_does_not_keep_the_others_from_theirs() {
    let few = SeeParams {
        enough: Some(5),
        ..SeeParams::default()
    };
    // The same where it has a queue of its own.
    let two = QueueGroup::of::<Load>(LoadParams::default()).out_queues([0, 1]);
    let report = Pipeline::new()
        .client(client(60))
        .step(Step::new("load").group(two).slots(2))
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
        .step(load().slots(2).delivery(Delivery::Every))
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
