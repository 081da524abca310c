//! How runs end: full queues, stages that keep too much, failures, replacements, limits.

use std::sync::mpsc::channel;
use std::time::Duration;

use integration_tests::allow_leaks;
use tensormp::pipeline::report::{Run, Summary};
use tensormp::pipeline::{
    Backpressure, Client, Context, Counts, Delivery, ErrorKind, Flow, Input, Output, Pipeline,
    QueueGroup, Report, Running, Stage, StageError, Step, TensorSpec, Termination, Unfinished,
};

use crate::flow::{client, numbers, see};
use crate::held::ended_by_its_limit;
use crate::scenes::{copy, load};
use crate::stages::*;

fn see_with(params: SeeParams) -> Step {
    Step::of::<See>("see", params)
}

fn slow(ms: u64) -> SeeParams {
    SeeParams {
        ms,
        ..SeeParams::default()
    }
}

fn at(at: u64, does: &str) -> SeeParams {
    SeeParams {
        at: Some(at),
        does: does.to_owned(),
        ..SeeParams::default()
    }
}

pub(crate) fn a_full_queue_ends_the_run_where_that_is_the_policy() {
    allow_leaks(8);
    let to_client = Pipeline::new()
        .client(client(100).queue_size(2).backpressure(Backpressure::Fail))
        .step(see_values(20));
    let to_ring = Pipeline::new()
        .client(client(100))
        .step(load().slots(2).backpressure(Backpressure::Fail))
        .step(see_with(slow(20)));
    for pipeline in [to_client, to_ring] {
        let report = pipeline.start().unwrap().wait();
        assert_eq!(report.termination(), Termination::QueueFull, "{report:?}");
        assert_eq!(report.error().unwrap().kind(), &ErrorKind::QueueFull);
        let items = report.items();
        assert_eq!(
            items.offered,
            items.completed + items.dropped + items.failed + items.unfinished
        );
    }
}

/// A first and only step that takes its time.
fn see_values(ms: u64) -> Step {
    Step::of::<Load>(
        "load",
        LoadParams {
            ms,
            skip: 1,
            ..LoadParams::default()
        },
    )
}

pub(crate) fn the_newest_or_the_oldest_is_dropped_where_that_is_the_policy() {
    for policy in [Backpressure::DropNewest, Backpressure::DropOldest] {
        let report = Pipeline::new()
            .client(client(60))
            .step(load().slots(2).backpressure(policy))
            .step(see_with(slow(10)))
            .run()
            .unwrap();
        let numbers = numbers(&report, "see");
        let items = report.items();
        assert_eq!(items.completed, numbers.len() as u64);
        assert_eq!((items.completed + items.dropped, items.failed), (60, 0));
        assert!(items.dropped > 0, "{policy:?}");
        let has_last = numbers.last() == Some(&59);
        if policy == Backpressure::DropOldest {
            assert!(has_last, "the newest stays: {numbers:?}");
        } else {
            assert_eq!(numbers[0], 0, "the oldest stays");
        }
    }
    // What is lost is offered anew, until the target is reached.
    let report = Pipeline::new()
        .client(
            Client::new(0..)
                .count(20)
                .queue_size(1)
                .backpressure(Backpressure::DropNewest),
        )
        .step(see_values(2))
        .run()
        .unwrap();
    let items = report.items();
    assert_eq!(report.termination(), Termination::TargetReached);
    assert!(items.completed >= 20 && items.dropped > 0, "{items:?}");
}

pub(crate) fn a_stage_that_loans_more_than_there_is_is_told() {
    allow_leaks(8);
    let params = SeeParams {
        keep: 2,
        ..SeeParams::default()
    };
    let report = Pipeline::new()
        .client(client(10))
        .step(load())
        .step(Step::of::<Copy>("copy", params).slots(2))
        .step(see())
        .start()
        .unwrap()
        .wait();
    let text = report.error().unwrap().to_string();
    assert_eq!(report.termination(), Termination::Deadlock, "{text}");
    assert!(
        text.contains("copy") && text.contains("all 2 slots"),
        "{text}"
    );
}

pub(crate) fn a_stage_that_keeps_more_than_there_is_is_told() {
    allow_leaks(8);
    let params = SeeParams {
        keep: 4,
        ..SeeParams::default()
    };
    let report = Pipeline::new()
        .client(client(50))
        .step(load().slots(4))
        .step(see_with(params.clone()))
        .start()
        .unwrap()
        .wait();
    let text = report.error().unwrap().to_string();
    assert_eq!(report.termination(), Termination::Deadlock, "{text}");
    for part in [
        "\"see\"",
        "slots 0, 1, 2, 3 of the 4",
        "\"load\"",
        "more slots",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // One more is enough.
    let report = Pipeline::new()
        .client(client(50))
        .step(load().slots(5))
        .step(see_with(params))
        .run()
        .unwrap();
    assert!(numbers(&report, "see").into_iter().eq(0..50));
}

/// One that could publish, and never does.
struct Mute;

impl Stage for Mute {
    type Params = ();
    type Result = ();

    fn output_spec((): &()) -> Vec<TensorSpec> {
        Numbers::output_spec(&0)
    }

    fn new((): (), _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, _: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

/// "load" feeds "copy", which waits for slots that "see" keeps, and "mute", which could go on if "load" did.
fn knotted(load: Step, mute: u32) -> String {
    let report = Pipeline::new()
        .client(client(50))
        .step(load)
        .step(
            Step::new("copy")
                .group(QueueGroup::of::<Copy>(SeeParams::default()).in_queue(0))
                .group(QueueGroup::of::<Mute>(()).in_queue(mute))
                .slots(2),
        )
        .step(see_with(SeeParams {
            keep: 4,
            ..SeeParams::default()
        }))
        .timeout(Duration::from_secs(60))
        .start()
        .unwrap()
        .wait();
    let text = report.error().unwrap().to_string();
    assert_eq!(report.termination(), Termination::Deadlock, "{text}");
    assert!(text.contains("slots 0, 1 of the 2"), "{text}");
    text
}

pub(crate) fn a_knot_with_one_that_waits_for_room_and_one_that_idles_is_told() {
    allow_leaks(8);
    let load = QueueGroup::of::<Load>(LoadParams::default()).out_queues([0, 1]);
    knotted(Step::new("load").group(load).slots(8).queue_size(2), 1);
}

pub(crate) fn a_knot_whose_slots_wait_unread_is_told() {
    allow_leaks(16);
    let group = QueueGroup::of::<Load>(LoadParams::default());
    let two_ways = Step::new("load").group(group.clone().out_queues([0, 1]));
    // Of each output one reader's part is done, and the other's waits.
    let every = Step::new("load").group(group).delivery(Delivery::Every);
    for (load, mute) in [
        (two_ways.clone().slots(8), 1),
        (
            two_ways
                .replicas(2)
                .slots(3)
                .restart(1, Unfinished::Redeliver),
            1,
        ),
        (every.slots(5), 0),
    ] {
        let text = knotted(load, mute);
        assert!(text.contains("wait, unread, for processes"), "{text}");
    }
}

pub(crate) fn each_kind_of_failure_ends_the_run_with_its_cause() {
    allow_leaks(8);
    let dir = tempfile::tempdir().unwrap();
    for (does, told) in [
        ("err", "this one is bad"),
        ("panic", "this one is worse"),
        ("die", "SIGKILL"),
    ] {
        for (copy, see, name) in [
            (at(7, does), SeeParams::default(), "copy"),
            (SeeParams::default(), at(7, does), "see"),
        ] {
            let report = Pipeline::new()
                .client(Client::new(0_u64..))
                .step(load().slots(2))
                .step(Step::of::<Copy>("copy", copy).slots(2))
                .step(see_with(see))
                .run_dir(dir.path())
                .overwrite()
                .start()
                .unwrap()
                .wait();
            let text = report.error().unwrap().to_string();
            assert_eq!(report.termination(), Termination::Failed, "{text}");
            assert!(
                text.contains(told) && text.contains(name),
                "{does}, {name}: {text}"
            );
            let items = report.items();
            // What the process was at failed; the rest was on its way.
            assert_eq!(items.failed, 1, "{items:?}");
            assert_eq!(
                items.offered,
                items.completed + items.dropped + items.failed + items.unfinished
            );
            // What was done until then is told, also of those that were ended.
            assert!(report.seconds() > 0.0 && report.rate().is_some());
            let [load, copied, seen] = report.processes() else {
                panic!("three processes: {report:?}")
            };
            let failed = if name == "copy" { copied } else { seen };
            assert_eq!(failed.inputs(), 8, "items 0 to 7");
            assert!(load.outputs() >= 8 && copied.inputs() >= 8 && copied.outputs() >= 7);
            let run = Run::open(dir.path()).unwrap();
            let summary = Summary::of(&run);
            // Its report says the same of each process.
            for (process, step) in report.processes().iter().zip(&summary.steps) {
                assert_eq!(step.counts, process.counts(), "{does}, {name}: {step:?}");
            }
            assert_eq!((failed.counts().failed, failed.counts().unfinished), (1, 0));
            let cards = run.cards.iter().filter(|card| card.rank < 3).count() as u64;
            let taken: u64 = report.processes().iter().map(|one| one.inputs()).sum();
            assert!(cards + run.cards_missing >= taken, "{cards} of {taken}");
            // Whatever ended a process, only the item that it was at is missing.
            assert!(run.cards_missing <= 3, "{}", run.cards_missing);
            let rank = if name == "copy" { 1 } else { 2 };
            let of_failed = run.cards.iter().filter(|card| card.rank == rank).count();
            assert_eq!(of_failed, 7, "items 0 to 6");
            assert!(
                summary.bottleneck.contains("did not come to its end"),
                "no advice from half a run: {}",
                summary.bottleneck
            );
        }
    }
}

fn replaced(does: &str, unfinished: Unfinished) -> (Vec<u64>, tensormp::pipeline::Report) {
    let report = Pipeline::new()
        .client(client(80))
        .step(load().slots(2).replicas(2))
        .step(
            Step::of::<Copy>("copy", at(40, does))
                .replicas(2)
                .slots(2)
                .restart(2, unfinished),
        )
        .step(see())
        .run()
        .unwrap();
    (numbers(&report, "see"), report)
}

pub(crate) fn a_process_is_replaced_and_its_item_delivered_again() {
    allow_leaks(8);
    for does in ["err", "panic", "die"] {
        let (numbers, report) = replaced(does, Unfinished::Redeliver);
        assert!(numbers.iter().copied().eq(0..80), "{does}: {numbers:?}");
        let items = report.items();
        assert_eq!(
            (items.completed, items.redelivered, items.failed),
            (80, 1, 0),
            "{does}"
        );
        let restarts = report.processes().iter().map(|process| process.restarts());
        assert_eq!(restarts.sum::<u32>(), 1);
        // It is known of each why it was replaced, and what it took adds up with what became of that.
        let place = report.processes().iter().find(|one| one.restarts() > 0);
        let [before] = place.unwrap().replaced() else {
            panic!("{place:?}")
        };
        let cause = match does {
            "die" => "was killed by SIG",
            "err" => "returned an error",
            _ => "panicked",
        };
        assert!(before.cause.contains(cause), "{before:?}");
        assert_eq!((before.redelivered, before.failed), (1, 0));
        assert_eq!(before.items, [40]);
        let copies = report.processes().iter().filter(|one| one.step() == "copy");
        let counts: Vec<_> = copies.map(|one| one.counts()).collect();
        let sum = |of: fn(&Counts) -> u64| counts.iter().map(of).sum::<u64>();
        assert_eq!(sum(|counts| counts.taken), 81, "{counts:?}");
        assert_eq!(sum(|counts| counts.done), 80, "{counts:?}");
        assert_eq!(sum(|counts| counts.redelivered), 1, "{counts:?}");
        assert_eq!(sum(|counts| counts.published), 80, "{counts:?}");
    }
}

pub(crate) fn a_process_is_replaced_and_its_item_reported() {
    allow_leaks(8);
    let (numbers, report) = replaced("die", Unfinished::Report);
    assert!(
        numbers
            .iter()
            .copied()
            .eq((0..80).filter(|&number| number != 40)),
        "{numbers:?}"
    );
    let items = report.items();
    assert_eq!(
        (items.completed, items.redelivered, items.failed),
        (79, 0, 1)
    );
}

pub(crate) fn a_crash_loop_ends_the_run() {
    allow_leaks(8);
    let params = SeeParams {
        does: "loop".to_owned(),
        ..at(5, "")
    };
    let report = Pipeline::new()
        .client(client(20))
        .step(load())
        .step(Step::of::<Crash>("crash", params).restart(3, Unfinished::Redeliver))
        .start()
        .unwrap()
        .wait();
    let text = report.error().unwrap().to_string();
    assert_eq!(report.termination(), Termination::Failed);
    assert!(text.contains("crash") && text.contains("again"), "{text}");
    assert_eq!(report.processes()[1].restarts(), 3);
}

pub(crate) fn a_stage_that_hangs_ends_the_run_or_is_replaced() {
    allow_leaks(8);
    let limit = Duration::from_millis(700);
    let dir = tempfile::tempdir().unwrap();
    let hangs = |restarts| {
        Pipeline::new()
            .client(client(20))
            .step(load())
            .step(
                see_with(at(7, "hang"))
                    .limit(limit)
                    .restart(restarts, Unfinished::Redeliver),
            )
            .grace(Duration::from_millis(100))
            .run_dir(dir.path())
            .overwrite()
            .start()
            .unwrap()
            .wait()
    };
    let report = hangs(0);
    let text = report.error().unwrap().to_string();
    assert_eq!(report.termination(), Termination::TimedOut, "{text}");
    assert_eq!(report.items().failed, 1, "{:?}", report.items());
    assert!(
        text.contains("\"see\"") && text.contains("item 7"),
        "{text}"
    );
    let who = format!(
        "step \"see\", replica 0: process \"see\" (rank 1, pid {}) has worked on item 7 for ",
        report.processes()[1].pid()
    );
    assert!(text.contains(&who), "{who:?} is missing in: {text}");
    let report = hangs(1);
    assert!(report.error().is_none(), "{report:?}");
    assert_eq!(
        (report.items().completed, report.items().redelivered),
        (20, 1)
    );
    let [replaced] = &Summary::of(&Run::open(dir.path()).unwrap()).replaced[..] else {
        panic!("one was replaced: {report:?}")
    };
    assert!(
        replaced.cause.starts_with("has worked on item 7 for "),
        "{replaced:?}"
    );
}

/// What was on its way when a run was ended from outside is told apart from what failed.
fn nothing_failed(report: &Report) {
    let items = report.items();
    assert!(items.unfinished > 0, "{items:?}");
    assert_eq!((items.failed, items.dropped), (0, 0), "{items:?}");
    assert_eq!(items.offered, items.completed + items.unfinished);
}

pub(crate) fn a_run_that_takes_too_long_or_is_stopped_says_so() {
    allow_leaks(8);
    let with = |client: Client| {
        Pipeline::new()
            .client(client)
            .step(load())
            .step(see_with(slow(1)))
    };
    let endless = || with(Client::new(0_u64..));
    let (report, ()) = ended_by_its_limit(1, || (endless(), ()));
    nothing_failed(&report);
    let (begin, has_begun) = channel();
    let inputs = (0_u64..).inspect(move |_| {
        let _ = begin.send(());
    });
    let running = with(Client::new(inputs)).start().unwrap();
    assert_eq!(running.pids().len(), 2);
    let stopper = running.stopper();
    let stops = std::thread::spawn(move || {
        let _ = has_begun.recv();
        std::thread::sleep(Duration::from_millis(300));
        stopper.terminate();
    });
    let report = running.wait();
    stops.join().unwrap();
    assert_eq!(report.termination(), Termination::Interrupted);
    assert_eq!(report.error().unwrap().kind(), &ErrorKind::Interrupted);
    nothing_failed(&report);
    drop::<Running>(endless().start().unwrap());
}

pub(crate) fn a_step_that_has_had_enough_ends_those_before_it() {
    let params = SeeParams {
        enough: Some(10),
        ..SeeParams::default()
    };
    let report = Pipeline::new()
        .client(Client::new(0_u64..))
        .step(load().slots(2))
        .step(copy().slots(2))
        .step(see_with(params))
        .run()
        .unwrap();
    assert_eq!(report.termination(), Termination::InputEnded);
    assert!(numbers(&report, "see").into_iter().eq(0..10));
    let items = report.items();
    assert_eq!((items.completed, items.failed), (10, 0));
    assert_eq!(items.offered, items.completed + items.dropped);
}
