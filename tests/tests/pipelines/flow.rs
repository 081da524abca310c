//! What arrives, where, and in which order.

use std::sync::mpsc;
use std::time::Duration;

use tensormp::pipeline::stages::{Batcher, BatcherParams};
use tensormp::pipeline::{
    Client, Context, Delivery, Flow, Input, Outgoing, Output, Pipeline, QueueGroup, Report,
    Selector, Stage, StageError, Step, TensorSpec, Termination,
};
use tensormp::prelude::*;

use crate::scenes::{copy, load};
use crate::stages::*;

/// What the processes of the last step saw: number, rows and part of each.
pub(crate) fn seen(report: &Report, step: &str) -> Vec<Vec<(u64, usize, u32)>> {
    report.results::<See>(step).unwrap()
}

/// The numbers of all processes, sorted.
pub(crate) fn numbers(report: &Report, step: &str) -> Vec<u64> {
    let all = seen(report, step).concat().into_iter();
    let mut all: Vec<u64> = all.map(|(number, ..)| number).collect();
    all.sort_unstable();
    all
}

pub(crate) fn client(count: u64) -> Client {
    Client::new(0..count)
}

/// Numbers until what comes with them is dropped: for a run that goes on as long as something is done to its processes.
pub(crate) fn until_ended() -> (Client, mpsc::Sender<()>) {
    let (ended, has_ended) = mpsc::channel::<()>();
    let goes_on = move |_: &u64| has_ended.try_recv() == Err(mpsc::TryRecvError::Empty);
    // What waits in the queue then is done as well.
    let inputs = (0_u64..).take_while(goes_on);
    (Client::new(inputs).queue_size(8), ended)
}

pub(crate) fn see() -> Step {
    Step::of::<See>("see", SeeParams::default())
}

pub(crate) fn every_item_is_handled_once_among_replicas() {
    for (loads, sees, slots) in [(1, 1, 1), (1, 1, 2), (2, 3, 2)] {
        let report = Pipeline::new()
            .client(client(300))
            .step(load().replicas(loads).slots(slots))
            .step(see().replicas(sees))
            .run()
            .unwrap();
        assert!(numbers(&report, "see").into_iter().eq(0..300));
        assert_eq!(report.termination(), Termination::InputEnded);
        let items = report.items();
        assert_eq!((items.offered, items.completed), (300, 300));
        assert_eq!(report.processes().len(), loads + sees);
    }
    // Without a client the first step makes them.
    let report = Pipeline::new()
        .step(Step::of::<Numbers>("numbers", 100).slots(2))
        .step(see())
        .run()
        .unwrap();
    assert!(seen(&report, "see")[0].iter().map(|seen| seen.0).eq(0..100));
    assert_eq!(
        (report.items().offered, report.items().completed),
        (100, 100)
    );
}

pub(crate) fn values_travel_without_tensors() {
    let report = Pipeline::new()
        .client(client(200))
        .step(Step::of::<Add>("once", ()).replicas(2))
        .step(Step::of::<Add>("twice", ()))
        .step(Step::of::<Values>("values", ()))
        .run()
        .unwrap();
    let mut values = report.results::<Values>("values").unwrap().concat();
    values.sort_unstable();
    assert!(values.into_iter().eq(2..202));
    assert_eq!(report.items().completed, 200);
}

pub(crate) fn an_input_may_have_several_outputs_or_none() {
    let params = LoadParams {
        skip: 3,
        more: 2,
        ..LoadParams::default()
    };
    let report = Pipeline::new()
        .client(client(90))
        .step(Step::of::<Load>("load", params).replicas(2).slots(3))
        .step(see().replicas(2))
        .run()
        .unwrap();
    let wanted = (0..90).filter(|number| number % 3 != 0);
    let wanted = wanted.flat_map(|number| [number; 3]);
    assert!(numbers(&report, "see").into_iter().eq(wanted));
    assert_eq!(
        report.items().completed,
        90,
        "those without outputs are done as well"
    );
}

pub(crate) fn segments_of_an_item_share_its_slot_and_come_together() {
    let params = LoadParams {
        ragged: true,
        ..LoadParams::default()
    };
    let report = Pipeline::new()
        .client(client(60))
        .step(Step::of::<Load>("load", params).slots(4).segments(3))
        .step(copy().replicas(2).slots(1))
        .step(Step::of::<Join>("join", ()))
        .run()
        .unwrap();
    let mut whole = report.results::<Join>("join").unwrap().remove(0);
    whole.sort_unstable();
    assert_eq!(whole.len(), 60);
    for (number, rows) in whole {
        let all = 1 + number as usize % ROWS;
        assert_eq!(rows.iter().sum::<usize>(), all);
        assert!(
            rows[0] - rows[2] <= 1 && rows.is_sorted_by(|a, b| a >= b),
            "{rows:?}"
        );
    }
    assert_eq!(report.items().completed, 60);
}

pub(crate) fn each_output_goes_to_every_reader_where_that_is_wanted() {
    let report = Pipeline::new()
        .client(client(100))
        .step(load().replicas(2).slots(2).delivery(Delivery::Every))
        .step(see().replicas(3))
        .run()
        .unwrap();
    for mut of_one in seen(&report, "see") {
        of_one.sort_unstable();
        assert!(of_one.into_iter().map(|seen| seen.0).eq(0..100));
    }
    assert_eq!(report.items().completed, 100);
}

/// Odd numbers go into the second queue.
pub(crate) struct OddEven;

impl Selector for OddEven {
    fn new(queues: usize) -> Self {
        assert_eq!(queues, 2);
        Self
    }

    fn select(&mut self, output: &Outgoing<'_>) -> usize {
        assert_eq!(output.shape(0).map(|shape| shape[1]), Some(ROW));
        (output.sequence() % 2) as usize
    }
}

pub(crate) fn outputs_go_to_the_queue_that_the_selector_says() {
    let report = Pipeline::new()
        .client(client(100))
        .step(
            Step::new("load").group(
                QueueGroup::selecting::<Load, OddEven>(LoadParams::default())
                    .replicas(2)
                    .out_queues([4, 7]),
            ),
        )
        .step(
            Step::new("see")
                .group(QueueGroup::of::<See>(SeeParams::default()).in_queue(7))
                .group(
                    QueueGroup::of::<See>(SeeParams::default())
                        .in_queue(4)
                        .replicas(2),
                ),
        )
        .run()
        .unwrap();
    let seen = seen(&report, "see");
    assert_eq!(seen[0].len(), 50);
    assert!(seen[0].iter().all(|seen| seen.0 % 2 == 1));
    assert!(seen[1].iter().chain(&seen[2]).all(|seen| seen.0 % 2 == 0));
    for selector in ["round_robin", "by_size", "least_loaded"] {
        let params = LoadParams {
            ragged: true,
            ..LoadParams::default()
        };
        let report = Pipeline::new()
            .client(client(48))
            .step(
                Step::new("load").group(
                    QueueGroup::of::<Load>(params)
                        .out_queues([0, 1])
                        .selector(selector),
                ),
            )
            .step(
                Step::new("see")
                    .group(QueueGroup::of::<See>(SeeParams::default()).in_queue(0))
                    .group(QueueGroup::of::<See>(SeeParams::default()).in_queue(1)),
            )
            .run()
            .unwrap();
        assert!(numbers(&report, "see").into_iter().eq(0..48), "{selector}");
        let seen = self::seen(&report, "see");
        if selector == "round_robin" {
            assert_eq!((seen[0].len(), seen[1].len()), (24, 24));
        }
        // From the second dozen on the largest is known.
        if selector == "by_size" {
            let later = |&&(number, ..): &&(u64, usize, u32)| number >= 12;
            assert!(
                seen[0].iter().filter(later).all(|seen| seen.1 <= 6),
                "{seen:?}"
            );
            assert!(
                seen[1].iter().filter(later).all(|seen| seen.1 > 6),
                "{seen:?}"
            );
        }
    }
}

pub(crate) fn inputs_are_put_together_by_count_and_by_deadline() {
    let params = BatcherParams {
        batch: 4,
        ..BatcherParams::default()
    };
    let report = Pipeline::new()
        .client(client(42))
        .step(load().slots(5))
        .step(Step::of::<Batcher>("batch", params.clone()).slots(2))
        .step(see_batches())
        .run()
        .unwrap();
    let rows: Vec<_> = report.results::<Rows>("rows").unwrap().concat();
    assert_eq!(rows.iter().sum::<usize>(), 42 * ROWS);
    assert_eq!(rows.iter().filter(|&&rows| rows == 4 * ROWS).count(), 10);
    assert_eq!(rows.last(), Some(&(2 * ROWS)), "what was left at the end");
    assert_eq!(report.items().completed, 42);

    // Inputs that come one by one, each when the one before was seen: what makes them batches is that they wait too long.
    let params = BatcherParams {
        deadline_ms: Some(1.0),
        ..params
    };
    let (seen, was_seen) = Queue::bounded(1).unwrap().split();
    let one_by_one = (0..6_u64).inspect(move |&number| {
        if number > 0 {
            was_seen.get().unwrap();
        }
    });
    let report = Pipeline::new()
        .client(Client::new(one_by_one))
        .step(load().slots(5))
        .step(Step::of::<Batcher>("batch", params))
        .step(Step::of::<Rows>("rows", Some(seen)))
        .run()
        .unwrap();
    let rows: Vec<_> = report.results::<Rows>("rows").unwrap().concat();
    assert_eq!(rows, [ROWS; 6]);
}

fn see_batches() -> Step {
    Step::of::<Rows>("rows", None)
}

pub(crate) fn inputs_are_passed_on_without_a_copy() {
    // The readers see the slots of the first step, two steps on.
    let report = Pipeline::new()
        .client(client(50))
        .step(load().slots(3))
        .step(Step::of::<Batcher>("pass", BatcherParams::default()).replicas(2))
        .step(see())
        .run()
        .unwrap();
    assert!(numbers(&report, "see").into_iter().eq(0..50));
    assert_eq!(report.items().completed, 50);
}

fn put(_rank: usize, sender: Sender<u64>) -> tensormp::Result<()> {
    (0..100).try_for_each(|number| Ok(sender.put(number)?))
}

pub(crate) fn inputs_come_from_another_process_through_a_queue() {
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut other = spawn(put, sender, 1).unwrap();
    let report = Pipeline::new()
        .client(Client::from_queue(receiver))
        .step(Step::of::<Add>("add", ()))
        .step(Step::of::<Values>("values", ()))
        .run()
        .unwrap();
    other.join().unwrap();
    assert!(
        report.results::<Values>("values").unwrap()[0]
            .iter()
            .copied()
            .eq(1..101)
    );
}

pub(crate) fn inputs_that_come_at_random_are_counted_to_the_target() {
    let client = Client::new(0..)
        .poisson(Duration::from_micros(200))
        .seed(7)
        .count(150);
    let report = Pipeline::new()
        .client(client)
        .step(load())
        .step(see())
        .run()
        .unwrap();
    assert_eq!(report.termination(), Termination::TargetReached);
    assert_eq!(
        (report.items().offered, report.items().completed),
        (150, 150)
    );
    // 150 intervals of 0.2 ms take 30 ms on average; a machine can only be slower.
    assert!(report.seconds() > 0.010, "{}", report.seconds());
}

pub(crate) fn a_run_leaves_its_directory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("run");
    Pipeline::new()
        .client(client(40))
        .run_dir(&path)
        .step(load().slots(4).segments(2))
        .step(see().replicas(2))
        .run()
        .unwrap();
    let read = |name: &str| std::fs::read_to_string(path.join(name)).unwrap();
    let run: serde_json::Value = serde_json::from_str(&read("run.json")).unwrap();
    assert_eq!(
        (&run["format"], &run["version"]),
        (&"tensormp-run".into(), &1.into())
    );
    assert_eq!(run["termination"]["reason"], "input_ended");
    assert_eq!(run["items"]["completed"], 40);
    assert_eq!(run["rings"][0]["name"], "load→see");
    assert_eq!(
        (
            &run["rings"][0]["slots"],
            run["processes"].as_array().unwrap().len()
        ),
        (&4.into(), 3)
    );
    let mut lines = 0;
    for line in read("items.jsonl").lines() {
        let card: serde_json::Value = serde_json::from_str(line).unwrap();
        let time = |key: &str| card[key].as_u64().unwrap();
        assert!(time("enqueued") <= time("dequeued") && time("dequeued") <= time("started"));
        assert!(time("started") <= time("finished"));
        assert!(run["clock_start_ns"].as_u64().unwrap() <= time("started"));
        assert!(time("released") <= run["ended_ns"].as_u64().unwrap());
        match card["step"].as_str().unwrap() {
            "load" => {
                assert!(time("slot_acquired") <= time("published"));
                assert_eq!(card["part"], 0);
            }
            "see" => assert!(card["published"].is_null() && card["part"].as_u64().unwrap() < 2),
            other => panic!("a card of step {other}"),
        }
        assert_eq!(card["outcome"], "ok");
        lines += 1;
    }
    assert_eq!(lines, 40 + 80);
    // What it came to lies beside it, and can be made anew.
    let again = tensormp::pipeline::report::Run::open(&path).unwrap();
    let summary = tensormp::pipeline::report::Summary::of(&again);
    assert_eq!(read("summary.txt"), summary.to_string());
    for file in ["summary.json", "trace.json", "report.html"] {
        assert!(path.join(file).exists(), "{file}");
    }
    let sample = read("rings.jsonl");
    let sample: serde_json::Value = serde_json::from_str(sample.lines().next().unwrap()).unwrap();
    assert!((1..=4).contains(&sample["in_use"].as_u64().unwrap()));
}

/// Sends a mask of its own beside each clip.
struct Masks;

impl Stage for Masks {
    type Params = ();
    type Result = ();

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        vec![TensorSpec::of::<u8>([8])]
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self)
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let number: u64 = input.ok_or("an input")?.payload()?;
        let mut mask = Tensor::<u64>::zeros([5])?;
        mask.as_mut_slice().fill(number);
        let mut slot = output.loan()?;
        slot.set_payload(&number)?;
        slot.attach((format!("mask {number}"), mask))?;
        output.publish(slot)?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

struct Unmask(u64);

impl Stage for Unmask {
    type Params = ();
    type Result = u64;

    fn output_spec(_: &()) -> Vec<TensorSpec> {
        Vec::new()
    }

    fn new(_: (), _: &Context) -> Result<Self, StageError> {
        Ok(Self(0))
    }

    fn process(&mut self, input: Option<Input>, _: &mut Output) -> Result<Flow, StageError> {
        let input = input.ok_or("an input")?;
        let number: u64 = input.payload()?;
        let (name, mask): (String, Tensor<u64>) = input.attached()?;
        assert_eq!(
            (name, mask.as_slice()),
            (format!("mask {number}"), &[number; 5][..])
        );
        assert!(
            input.attached::<(String, Tensor<u64>)>().is_err(),
            "it was taken"
        );
        self.0 += 1;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<u64, StageError> {
        Ok(self.0)
    }
}

pub(crate) fn a_value_with_tensors_travels_beside_a_slot() {
    let report = Pipeline::new()
        .client(client(20))
        .step(Step::of::<Masks>("masks", ()).slots(2))
        .step(Step::of::<Unmask>("unmask", ()).replicas(2))
        .run()
        .unwrap();
    assert_eq!(
        report
            .results::<Unmask>("unmask")
            .unwrap()
            .iter()
            .sum::<u64>(),
        20
    );
}
