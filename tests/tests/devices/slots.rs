//! A pipeline's slots on devices: written in place, read in place, copied where the reader is on another device.

use std::collections::HashMap;

use integration_tests::{Test, kill, tests};
use tensormp::pipeline::{
    Client, Config, Delivery, Device, Pipeline, QueueGroup, Registry, Report, Stage, Step,
    Unfinished,
};
use tensormp::prelude::*;

use crate::order::handed;
use crate::stages::{Clear, Fill, Keep, Params, Pass, See, Take, spec};
use crate::support::{all_is_well, machine, no_memory_is_left, slow_machine};

pub(crate) const TESTS: &[Test] = &tests![
    a_step_on_a_device_has_its_slots_there_and_the_next_reads_them_in_place,
    a_slot_goes_to_another_device_and_the_time_card_says_when_it_was_there,
    a_process_on_the_cpu_reads_slots_of_a_device,
    replicas_on_two_devices_read_each_slot_once_or_every_one,
    segments_and_batches_of_slots_on_a_device_are_whole,
    a_hand_off_of_a_slot_costs_one_record_and_one_wait_a_side,
    a_stage_that_is_killed_is_replaced_and_its_slots_with_it,
    a_stage_that_keeps_a_device_tensor_to_its_end_ends_where_processes_are_replaced,
    on_the_cpu_everything_is_on_the_cpu,
    slots_on_a_device_that_is_not_there_are_refused,
];

fn step<S: Stage<Params = Params>>(name: &str, device: i32, params: Params) -> Step {
    Step::new(name).group(QueueGroup::of::<S>(params).devices([device]))
}

fn seen(report: &Report) -> Vec<u64> {
    let mut all = report.results::<See>("see").unwrap().concat();
    all.sort_unstable();
    all
}

fn a_step_on_a_device_has_its_slots_there_and_the_next_reads_them_in_place() {
    let session = slow_machine();
    let report = Pipeline::new()
        .client(Client::new(0..60_u64))
        .step(step::<Fill>("fill", 0, Params::default()).slots(3))
        .step(step::<Pass>("pass", 0, Params::default()).slots(2))
        .step(step::<See>("see", 0, Params::default()))
        .run()
        .unwrap();
    assert_eq!(report.results::<Fill>("fill").unwrap(), [vec![0]]);
    assert_eq!(seen(&report), (0..60).collect::<Vec<_>>());
    let calls = session.calls();
    // Nothing went through memory of the host, but what was written and read at the ends.
    assert_eq!(calls.of("cuMemcpyPeerAsync"), 0);
    assert_eq!(
        calls.of("cuIpcOpenMemHandle_v2"),
        2,
        "one for each step's slots"
    );
    no_memory_is_left(session);
}

fn a_slot_goes_to_another_device_and_the_time_card_says_when_it_was_there() {
    let session = slow_machine();
    let folder = tempfile::tempdir().unwrap();
    let run = folder.path().join("run");
    let report = Pipeline::new()
        .client(Client::new(0..40_u64))
        .step(step::<Fill>("fill", 0, Params::on(Device::Cuda(0))).slots(2))
        .step(step::<Pass>("pass", 1, Params::default()).slots(2))
        .step(step::<See>("see", 0, Params::default()))
        .run_dir(&run)
        .run()
        .unwrap();
    assert_eq!(seen(&report), (0..40).collect::<Vec<_>>());
    assert_eq!(session.calls().of("cuMemcpyPeerAsync"), 80);
    let mut noted = 0;
    for file in std::fs::read_dir(&run).unwrap() {
        let path = file.unwrap().path();
        if path.extension().is_some_and(|ending| ending == "jsonl") {
            for line in std::fs::read_to_string(path).unwrap().lines() {
                let card: serde_json::Value = serde_json::from_str(line).unwrap();
                // The last step has read what was copied before it let go.
                if card["step"] == "see" && card["item"].is_u64() {
                    let copied = card["copy_done"].as_u64().unwrap();
                    assert!(copied >= card["dequeued"].as_u64().unwrap(), "{card}");
                    noted += 1;
                }
            }
        }
    }
    assert_eq!(noted, 40);
    no_memory_is_left(session);
}

fn a_process_on_the_cpu_reads_slots_of_a_device() {
    let session = slow_machine();
    let report = Pipeline::new()
        .client(Client::new(0..30_u64))
        .step(step::<Fill>("fill", 1, Params::default()).slots(2))
        .step(step::<See>("see", -1, Params::default()))
        .run()
        .unwrap();
    assert_eq!(report.results::<Fill>("fill").unwrap(), [vec![1]]);
    assert_eq!(seen(&report), (0..30).collect::<Vec<_>>());
    no_memory_is_left(session);
}

fn replicas_on_two_devices_read_each_slot_once_or_every_one() {
    let session = machine();
    for delivery in [Delivery::One, Delivery::Every] {
        let fill = QueueGroup::of::<Fill>(Params::default()).devices([0, 1]);
        let see = QueueGroup::of::<See>(Params::default()).devices([0, 1, 1]);
        let report = Pipeline::new()
            .client(Client::new(0..90_u64))
            .step(Step::new("fill").group(fill).slots(2).delivery(delivery))
            .step(Step::new("see").group(see))
            .run()
            .unwrap();
        let mut seen = seen(&report);
        assert_eq!(
            seen.len(),
            if delivery == Delivery::Every { 270 } else { 90 }
        );
        seen.dedup();
        assert_eq!(seen, (0..90).collect::<Vec<_>>());
    }
    no_memory_is_left(session);
}

fn segments_and_batches_of_slots_on_a_device_are_whole() {
    use tensormp::pipeline::stages::{Aggregator, AggregatorParams, Batcher, BatcherParams};
    let session = slow_machine();
    let rows = Params {
        rows: 3,
        ..Params::default()
    };
    let batch = BatcherParams {
        batch: 2,
        ..BatcherParams::default()
    };
    let batch = QueueGroup::of::<Batcher>(batch).devices([0]);
    let whole = QueueGroup::of::<Aggregator>(AggregatorParams::default()).devices([1]);
    let report = Pipeline::new()
        .client(Client::new(0..20_u64))
        .step(step::<Fill>("fill", 0, rows).slots(4))
        .step(Step::new("batch").group(batch).slots(3).segments(2))
        .step(Step::new("whole").group(whole))
        .step(step::<See>("see", 1, Params::default()))
        .run()
        .unwrap();
    let wanted: Vec<_> = (0..60).map(|row| row / 3).collect();
    assert_eq!(seen(&report), wanted);
    no_memory_is_left(session);
}

fn a_hand_off_of_a_slot_costs_one_record_and_one_wait_a_side() {
    const ROUNDS: u64 = 200;
    let session = machine();
    let (items, from) = Queue::bounded(1).unwrap().split();
    let (done, told) = Queue::bounded(1).unwrap().split();
    let take = Params {
        done: Some(done),
        ..Params::default()
    };
    let running = Pipeline::new()
        .client(Client::from_queue(from))
        .step(step::<Clear>("clear", 0, Params::default()).slots(3))
        .step(step::<Take>("take", 0, take))
        .start()
        .unwrap();
    let mut round = |item: u64| {
        items.put(item).unwrap();
        told.get().unwrap();
    };
    // Each slot, and each of its events, has been there once.
    (0..30).for_each(&mut round);
    let pids = running.pids();
    let [writer, reader] = handed(&session, [pids[0], pids[1]], || {
        (0..ROUNDS).for_each(&mut round);
    });
    let wanted = HashMap::from([("cuEventRecord", ROUNDS), ("cuStreamWaitEvent", ROUNDS)]);
    assert_eq!(writer, wanted, "the writer");
    assert_eq!(reader, wanted, "the reader");
    drop(items);
    running.join().unwrap();
    all_is_well(session);
}

fn a_stage_that_is_killed_is_replaced_and_its_slots_with_it() {
    const ITEMS: u64 = 400;
    let session = slow_machine();
    let (done, told) = Queue::bounded(ITEMS as usize).unwrap().split();
    let see = Params {
        done: Some(done),
        ..Params::default()
    };
    let again = |step: Step| step.restart(20, Unfinished::Redeliver);
    let running = Pipeline::new()
        .client(Client::new(0..ITEMS))
        .step(again(step::<Fill>("fill", 0, Params::default()).slots(3)))
        .step(again(step::<Pass>("pass", 0, Params::default()).slots(3)))
        .step(again(step::<See>("see", 1, see)))
        .start()
        .unwrap();
    for rank in [0, 1, 0, 2, 1] {
        for _ in 0..10 {
            let _ = told.get_timeout(std::time::Duration::from_secs(5));
        }
        let pid = running.pids()[rank];
        if integration_tests::children().contains(&pid) {
            kill(pid);
        }
    }
    let report = running.wait();
    assert!(report.error().is_none(), "{:?}", report.error());
    let items = report.items();
    assert_eq!(items.offered, ITEMS);
    assert_eq!(items.completed + items.failed, ITEMS, "{items:?}");
    assert!(items.completed > ITEMS / 2, "{items:?}");
    let restarts: u32 = report.processes().iter().map(|one| one.restarts()).sum();
    assert!(restarts >= 3, "{restarts}");
    drop((told, report));
    integration_tests::allow_leaks(2 * restarts as usize);
    let faults = session.faults();
    assert!(faults.is_empty(), "{faults:#?}");
}

fn a_stage_that_keeps_a_device_tensor_to_its_end_ends_where_processes_are_replaced() {
    let session = machine();
    let again = |step: Step| step.restart(3, Unfinished::Redeliver);
    let report = Pipeline::new()
        .client(Client::new(0..20_u64))
        .timeout(std::time::Duration::from_secs(40))
        .step(again(step::<Fill>("fill", 0, Params::default()).slots(3)))
        .step(again(step::<Pass>("pass", 0, Params::default()).slots(3)))
        .step(again(step::<Keep>("keep", 0, Params::default())))
        .run()
        .unwrap();
    assert_eq!(report.items().completed, 20);
    // Its writer has returned, and is there as long as the tensor is.
    assert_eq!(report.results::<Keep>("keep").unwrap(), [vec![0; 300]]);
    no_memory_is_left(session);
}

fn on_the_cpu_everything_is_on_the_cpu() {
    let session = machine();
    let text = r#"
        [[pipeline]]
        name = "fill"
        stage = "Fill"
        devices = [1]
        place = { Cuda = 1 }
        rows = 1

        [[pipeline]]
        name = "see"
        stage = "See"
        devices = [0]
        place = "Own"
        rows = 1
    "#;
    let registry = || Registry::new().stage::<Fill>("Fill").stage::<See>("See");
    for (on_cpu, place) in [(true, -1), (false, 1)] {
        let config = Config::from_toml(text).unwrap();
        let config = if on_cpu { config.on_cpu() } else { config };
        let pipeline = config.pipeline(registry).unwrap();
        let report = pipeline.client(Client::new(0..10_u64)).run().unwrap();
        assert_eq!(report.results::<Fill>("fill").unwrap(), [vec![place]]);
        assert_eq!(seen(&report), (0..10).collect::<Vec<_>>());
        let started = session.processes().len();
        assert_eq!(started > 0, !on_cpu, "the driver is not even started");
    }
    no_memory_is_left(session);
}

fn slots_on_a_device_that_is_not_there_are_refused() {
    let session = machine();
    let error = Pipeline::new()
        .client(Client::new(0..1_u64))
        .step(step::<Fill>("fill", -1, Params::on(Device::Cuda(7))))
        .step(step::<See>("see", -1, Params::default()))
        .check()
        .unwrap_err();
    assert!(error.to_string().contains("CUDA device 7"), "{error}");
    let error = tensormp::pipeline::ring(
        1,
        &[spec(&Params::default())],
        tensormp::pipeline::Topology::OneToOne,
    )
    .unwrap_err();
    assert!(error.to_string().contains("ring"), "{error}");
    no_memory_is_left(session);
}
