//! Work on devices is in order across processes, though no thread waits for a device.

use std::collections::HashMap;

use cuda_ipc::{Device, DeviceTensor, SharedDeviceTensor, Stream};
use integration_tests::{Test, tests};
use tensormp::prelude::*;

use crate::support::{all_is_well, machine, slow_machine};

pub(crate) const TESTS: &[Test] = &tests![
    a_receiver_sees_what_a_slow_stream_wrote,
    memory_is_not_used_again_before_a_slow_reader_is_done,
    a_message_received_on_a_side_stream_is_in_its_order,
    each_send_of_one_tensor_is_waited_for,
    thawing_waits_for_those_who_read,
    streams_of_one_process_wait_for_one_another,
    what_more_readers_than_events_do_is_waited_for,
    a_hand_off_costs_one_record_and_one_wait_a_side,
    what_is_dropped_costs_its_origin_one_query_instead_of_a_wait,
];

type Words = DeviceTensor<u32>;

/// A tensor whose elements its stream has yet to write when this returns.
fn written_later(value: u32) -> Words {
    let source = DeviceTensor::from_slice([256], &[value; 256]).unwrap();
    source.to_device(source.device()).unwrap()
}

fn a_receiver_sees_what_a_slow_stream_wrote() {
    fn read(_rank: usize, from: Receiver<Words>) -> tensormp::Result<Vec<u32>> {
        Ok(from
            .iter()
            .map(|tensor| {
                let elements = tensor.to_vec().unwrap();
                assert!(elements.iter().all(|x| *x == elements[0]), "torn");
                elements[0]
            })
            .collect())
    }
    let session = slow_machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(read, receiver, 1).unwrap();
    for value in 1..=60 {
        sender.put(written_later(value)).unwrap();
    }
    drop(sender);
    assert_eq!(context.join().unwrap(), [(1..=60).collect::<Vec<_>>()]);
    all_is_well(session);
}

fn memory_is_not_used_again_before_a_slow_reader_is_done() {
    fn copy(
        _rank: usize,
        (from, done): (Receiver<Words>, Sender<u32>),
    ) -> tensormp::Result<Vec<u32>> {
        let mut copies = Vec::new();
        for tensor in &from {
            // Reads when it can; the tensor goes back at once.
            copies.push(tensor.to_device(tensor.device()).unwrap());
            drop(tensor);
            done.put(0)?;
        }
        Ok(copies
            .iter()
            .map(|copy| copy.to_vec().unwrap()[255])
            .collect())
    }
    let session = slow_machine();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let (done, told) = Queue::bounded(1).unwrap().split();
    let mut context = spawn(copy, (receiver, done), 1).unwrap();
    let mut seen = HashMap::new();
    for value in 1..=30 {
        let tensor = written_later(value);
        *seen
            .entry(tensor.read_in(tensor.stream()).unwrap())
            .or_insert(0) += 1;
        sender.put(tensor).unwrap();
        told.get().unwrap();
        // How far behind the reader's stream is otherwise, nobody knows, and so how much memory is with it.
        if value % 3 == 0 {
            session.settle();
        }
    }
    drop(sender);
    assert_eq!(context.join().unwrap(), [(1..=30).collect::<Vec<_>>()]);
    assert!(seen.len() < 10, "the same memory goes round: {seen:?}");
    all_is_well(session);
}

fn a_message_received_on_a_side_stream_is_in_its_order() {
    fn read(_rank: usize, from: Receiver<Words>) -> tensormp::Result<Vec<u32>> {
        let side = Stream::new(Device::new(0).unwrap()).unwrap();
        let mut values = Vec::new();
        while let Ok(tensor) = side.scope(|| from.get()) {
            assert!(tensor.stream().same(&side));
            values.push(tensor.to_vec().unwrap()[7]);
        }
        Ok(values)
    }
    let session = slow_machine();
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(read, receiver, 1).unwrap();
    let side = Stream::new(Device::new(0).unwrap()).unwrap();
    for value in 1..=20 {
        sender.put(side.scope(|| written_later(value))).unwrap();
    }
    drop(sender);
    assert_eq!(context.join().unwrap(), [(1..=20).collect::<Vec<_>>()]);
    drop(side);
    all_is_well(session);
}

fn each_send_of_one_tensor_is_waited_for() {
    fn read(_rank: usize, from: Receiver<SharedDeviceTensor<u32>>) -> tensormp::Result<u32> {
        Ok(from.get()?.to_vec().unwrap()[128])
    }
    let session = slow_machine();
    for value in 1..=4 {
        let tensor = written_later(value).freeze();
        let mut contexts = Vec::new();
        for _ in 0..2 {
            let (sender, receiver) = Queue::bounded(1).unwrap().split();
            sender.put(tensor.clone()).unwrap();
            contexts.push(spawn(read, receiver, 1).unwrap());
        }
        for mut context in contexts {
            assert_eq!(context.join().unwrap(), [value]);
        }
    }
    all_is_well(session);
}

fn thawing_waits_for_those_who_read() {
    fn copy(
        _rank: usize,
        (from, done): (Receiver<SharedDeviceTensor<u32>>, Sender<u32>),
    ) -> tensormp::Result<u32> {
        let tensor = from.get()?;
        let copy = tensor.to_device(tensor.device()).unwrap();
        drop(tensor);
        done.put(0)?;
        Ok(copy.to_vec().unwrap()[17])
    }
    let session = slow_machine();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let (done, told) = Queue::bounded(1).unwrap().split();
    let mut context = spawn(copy, (receiver, done), 1).unwrap();
    let tensor = written_later(7).freeze();
    sender.put(tensor.clone()).unwrap();
    told.get().unwrap();
    let mut tensor = tensor.try_thaw().expect("its reader has let go");
    tensor.clear().unwrap();
    assert_eq!(context.join().unwrap(), [7]);
    assert_eq!(tensor.to_vec().unwrap(), [0; 256]);
    drop(tensor);
    all_is_well(session);
}

fn streams_of_one_process_wait_for_one_another() {
    let session = slow_machine();
    let device = Device::new(0).unwrap();
    let streams = [(); 3].map(|()| Stream::new(device).unwrap());
    for round in 0..10 {
        let mut tensor = streams[0].scope(|| written_later(round));
        for stream in &streams {
            tensor.set_stream(stream).unwrap();
            assert_eq!(tensor.to_vec().unwrap(), [round; 256]);
            let copy = tensor.to_device(device).unwrap();
            tensor.set_stream(&streams[0]).unwrap();
            tensor.copy_from_slice(&[round; 256]).unwrap();
            assert_eq!(copy.to_vec().unwrap(), [round; 256]);
        }
        // The memory is used again on another stream than it was left on.
        drop(tensor);
        let next = streams[(round as usize + 1) % 3].scope(|| written_later(round + 100));
        assert_eq!(next.to_vec().unwrap(), [round + 100; 256]);
    }
    let other = Stream::new(Device::new(1).unwrap()).unwrap();
    let tensor = written_later(1);
    let error = tensor.read_in(&other).unwrap_err();
    assert_eq!(*error.kind(), cuda_ipc::ErrorKind::WrongDevice, "{error}");
    drop((tensor, streams, other));
    all_is_well(session);
}

fn what_more_readers_than_events_do_is_waited_for() {
    fn copy(_rank: usize, tensor: SharedDeviceTensor<u32>) -> tensormp::Result<(u32, u64)> {
        let copy = tensor.to_device(tensor.device()).unwrap();
        drop(tensor);
        Ok((copy.to_vec().unwrap()[3], cuda_ipc::stats().host_waits))
    }
    let session = slow_machine();
    let tensor = written_later(5).freeze();
    let mut context = spawn(copy, tensor.clone(), 8).unwrap();
    let results = context.join().unwrap().to_vec();
    assert!(results.iter().all(|(value, _)| *value == 5), "{results:?}");
    let waited = results.iter().filter(|(_, waits)| *waits > 0).count();
    assert_eq!(waited, 3, "five have an event each: {results:?}");
    let mut tensor = tensor.try_thaw().expect("nobody else has it");
    tensor.clear().unwrap();
    drop(tensor);
    all_is_well(session);
}

/// What a process called between two looks: context checks and what wrote the tensor aside, and what the thread that looks
/// around twice a second asks, which is whether its two streams are busy.
pub(crate) fn handed(
    session: &cuda_emulator::Session,
    pids: [u32; 2],
    mut between: impl FnMut(),
) -> [HashMap<&'static str, u64>; 2] {
    let before = pids.map(|pid| session.calls_of(pid));
    let started = std::time::Instant::now();
    between();
    let after = pids.map(|pid| session.calls_of(pid));
    let looks = started.elapsed().as_millis() as u64 / 500 + 2;
    [0, 1].map(|side| {
        let mut calls: HashMap<_, _> = after[side].since(&before[side]).into_iter().collect();
        for name in ["cuCtxGetCurrent", "cuCtxSetCurrent", "cuMemsetD8Async"] {
            calls.remove(name);
        }
        if calls
            .get("cuStreamQuery")
            .is_some_and(|&asked| asked <= 2 * looks)
        {
            calls.remove("cuStreamQuery");
        }
        calls
    })
}

/// In so many rounds, after some, this process and the other one call nothing else.
pub(crate) fn costs_one_record_and_one_wait_a_side(
    session: &cuda_emulator::Session,
    pid: u32,
    rounds: u64,
    mut round: impl FnMut(),
) {
    (0..20).for_each(|_| round());
    let pids = [std::process::id(), pid];
    let [one, other] = handed(session, pids, || (0..rounds).for_each(|_| round()));
    let wanted = HashMap::from([("cuEventRecord", rounds), ("cuStreamWaitEvent", rounds)]);
    assert_eq!(one, wanted);
    assert_eq!(other, wanted);
}

/// A fixed set of tensors goes round through two queues.
fn a_hand_off_costs_one_record_and_one_wait_a_side() {
    fn turn(_rank: usize, (from, back): (Receiver<Words>, Sender<Words>)) -> tensormp::Result<()> {
        for mut tensor in &from {
            tensor.clear().unwrap();
            back.put(tensor)?;
        }
        Ok(())
    }
    let session = machine();
    let (full, receiver) = Queue::bounded(3).unwrap().split();
    let (sender, empty) = Queue::bounded(3).unwrap().split();
    let mut context = spawn(turn, (receiver, sender.clone()), 1).unwrap();
    for slot in Words::slots(3, [512]).unwrap() {
        sender.put(slot).unwrap();
    }
    drop(sender);
    // One at a time, so that both are at rest when it is counted: the others wait to be written.
    let round = || {
        let mut slot: Words = empty.get().unwrap();
        slot.clear().unwrap();
        full.put(slot).unwrap();
        while empty.len() < 3 {
            std::thread::yield_now();
        }
    };
    costs_one_record_and_one_wait_a_side(&session, context.pids()[0], 300, round);
    drop((full, empty));
    context.join().unwrap();
    all_is_well(session);
}

/// The receiver's stream waits for the writer. The producer asks whether the last holder is done, and takes other memory
/// if not: were its stream to wait, the holder's death would stop it for ever.
fn what_is_dropped_costs_its_origin_one_query_instead_of_a_wait() {
    const ROUNDS: u64 = 300;
    const WARM: usize = 400;
    fn take(_rank: usize, (from, done): (Receiver<Words>, Sender<u32>)) -> tensormp::Result<()> {
        for tensor in &from {
            drop(tensor);
            done.put(0)?;
        }
        Ok(())
    }
    let session = machine();
    cuda_ipc::Options::new().events(1024).install().unwrap();
    let (sender, receiver) = Queue::bounded(WARM).unwrap().split();
    let (done, told) = Queue::bounded(WARM).unwrap().split();
    let put = || sender.put(DeviceTensor::zeros([512]).unwrap()).unwrap();
    // As many blocks go round as can ever be on their way.
    (0..WARM).for_each(|_| put());
    let mut context = spawn(take, (receiver, done), 1).unwrap();
    for _ in 0..WARM {
        told.get().unwrap();
    }
    session.settle();
    let pids = [std::process::id(), context.pids()[0]];
    let [mut producer, consumer] = handed(&session, pids, || {
        for _ in 0..ROUNDS {
            put();
            told.get().unwrap();
            session.settle();
        }
    });
    // One more for each block whose last holder was not done yet.
    let asked = producer.remove("cuEventQuery").unwrap_or(0);
    assert!((ROUNDS..2 * ROUNDS).contains(&asked), "{asked}");
    assert_eq!(producer, HashMap::from([("cuEventRecord", ROUNDS)]));
    let wanted = HashMap::from([("cuEventRecord", ROUNDS), ("cuStreamWaitEvent", ROUNDS)]);
    assert_eq!(consumer, wanted);
    drop(sender);
    context.join().unwrap();
    all_is_well(session);
}
