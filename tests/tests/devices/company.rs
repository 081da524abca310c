//! Tensors that travel together: one event for all of a message that are on one stream.

use std::collections::HashMap;

use cuda_ipc::{Device, DeviceTensor, SharedDeviceTensor, Stream};
use integration_tests::{Test, tests};
use tensormp::prelude::*;

use crate::order::handed;
use crate::support::{all_is_well, machine, slow_machine};

pub(crate) const TESTS: &[Test] = &tests![
    a_message_of_a_thousand_tensors_costs_one_record_and_one_wait_a_side,
    a_thousand_tensors_that_are_dropped_are_one_record_and_one_wait_to_send,
    tensors_of_one_message_go_different_ways_in_order,
    tensors_of_one_message_on_several_streams_are_each_in_order,
    an_event_of_many_is_not_used_again_while_a_message_speaks_of_it,
    a_message_that_cannot_be_sent_leaves_its_tensors_as_they_were,
];

type Words = DeviceTensor<u32>;
type Many = Vec<Words>;

const MANY: usize = 1_000;
const ROUNDS: u64 = 40;

/// A fixed set of tensors goes round, all of them in one message.
fn a_message_of_a_thousand_tensors_costs_one_record_and_one_wait_a_side() {
    fn turn(_rank: usize, (from, back): (Receiver<Many>, Sender<Many>)) -> tensormp::Result<()> {
        for mut tensors in &from {
            for tensor in tensors.iter_mut().step_by(100) {
                tensor.clear().unwrap();
            }
            back.put(tensors)?;
        }
        Ok(())
    }
    let session = machine();
    let (full, receiver) = Queue::bounded(1).unwrap().split();
    let (sender, empty) = Queue::bounded(1).unwrap().split();
    let mut context = spawn(turn, (receiver, sender), 1).unwrap();
    let mut tensors = Words::slots(MANY, [16]).unwrap();
    let round = |tensors: &mut Many| {
        for tensor in tensors.iter_mut().step_by(100) {
            tensor.clear().unwrap();
        }
        full.put(std::mem::take(tensors)).unwrap();
        *tensors = empty.get().unwrap();
    };
    (0..30).for_each(|_| round(&mut tensors));
    let events = cuda_ipc::stats().events;
    assert!(
        events <= 2_030,
        "one each, and what the slots began with: {events}"
    );
    let pids = [std::process::id(), context.pids()[0]];
    let [mut one, other] = handed(&session, pids, || {
        (0..ROUNDS).for_each(|_| round(&mut tensors))
    });
    // Whether events that the other side recorded for many are over is asked before they are used again.
    let asked = one.remove("cuEventQuery").unwrap_or(0);
    assert!(asked <= 2 * ROUNDS, "{asked}");
    let wanted = HashMap::from([("cuEventRecord", ROUNDS), ("cuStreamWaitEvent", ROUNDS)]);
    assert_eq!(one, wanted);
    assert_eq!(other, wanted);
    assert_eq!(cuda_ipc::stats().host_waits, 0);
    drop((full, empty, tensors));
    context.join().unwrap();
    all_is_well(session);
}

/// Each is released by itself, with an event that goes back to its origin.
fn a_thousand_tensors_that_are_dropped_are_one_record_and_one_wait_to_send() {
    fn take(_rank: usize, (from, done): (Receiver<Many>, Sender<u32>)) -> tensormp::Result<()> {
        for tensors in &from {
            drop(tensors);
            done.put(0)?;
        }
        Ok(())
    }
    let session = machine();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let (done, told) = Queue::bounded(1).unwrap().split();
    let mut context = spawn(take, (receiver, done), 1).unwrap();
    let put = || {
        let tensors = (0..MANY).map(|_| Words::uninit([4]).unwrap()).collect();
        sender.put(tensors).unwrap();
        told.get().unwrap();
        session.settle();
    };
    (0..12).for_each(|_| put());
    let pids = [std::process::id(), context.pids()[0]];
    const TIMES: u64 = 10;
    let [mut producer, consumer] = handed(&session, pids, || (0..TIMES).for_each(|_| put()));
    producer.remove("cuEventQuery");
    assert_eq!(producer, HashMap::from([("cuEventRecord", TIMES)]));
    let released = TIMES * MANY as u64;
    let wanted = HashMap::from([("cuEventRecord", released), ("cuStreamWaitEvent", TIMES)]);
    assert_eq!(consumer, wanted);
    assert_eq!(cuda_ipc::stats().host_waits, 0);
    drop(sender);
    context.join().unwrap();
    all_is_well(session);
}

/// A tensor whose elements its stream has yet to write when this returns.
fn written_later(value: u32) -> Words {
    let source = DeviceTensor::from_slice([64], &[value; 64]).unwrap();
    source.to_device(source.device()).unwrap()
}

fn tensors_of_one_message_go_different_ways_in_order() {
    /// Numbers of a message, and those of its tensors that are on their way.
    type Some = (u32, Vec<(u32, Words)>, Vec<(u32, SharedDeviceTensor<u32>)>);
    const MESSAGES: u32 = 40;

    fn scatter(
        _rank: usize,
        (from, on, back): (Receiver<Some>, Sender<Some>, Sender<Some>),
    ) -> tensormp::Result<()> {
        for (number, tensors, shared) in &from {
            let (mut home, mut away) = (Vec::new(), Vec::new());
            for (id, mut tensor) in tensors {
                match (id + number) % 4 {
                    // Written again, and on by itself.
                    0 => {
                        tensor.copy_from(&written_later(id + 1)).unwrap();
                        on.put((number, vec![(id + 1, tensor)], Vec::new()))?;
                    }
                    1 => away.push((id, tensor)),
                    2 => home.push((id, tensor)),
                    _ => drop(tensor),
                }
            }
            on.put((number, away, shared))?;
            back.put((number, home, Vec::new()))?;
        }
        Ok(())
    }
    fn look(_rank: usize, from: Receiver<Some>) -> tensormp::Result<u32> {
        let mut seen = 0;
        for (_, tensors, shared) in &from {
            for (id, tensor) in &tensors {
                assert_eq!(tensor.to_vec().unwrap(), [*id; 64]);
            }
            for (id, tensor) in &shared {
                assert_eq!(tensor.to_vec().unwrap(), [*id; 64]);
            }
            seen += (tensors.len() + shared.len()) as u32;
        }
        Ok(seen)
    }
    let session = slow_machine();
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let (on, last) = Queue::bounded(2).unwrap().split();
    let (back, home) = Queue::bounded(64).unwrap().split();
    let mut middle = spawn(scatter, (receiver, on, back), 1).unwrap();
    let mut end = spawn(look, last, 1).unwrap();
    let mut came_back = 0;
    let look_at_home = |(_, tensors, _): Some| {
        for (id, tensor) in &tensors {
            assert_eq!(tensor.to_vec().unwrap(), [*id; 64]);
        }
        tensors.len()
    };
    for number in 0..MESSAGES {
        let make = |id: u32| (1_000 * number + id, written_later(1_000 * number + id));
        let shared = (8..11).map(make).map(|(id, tensor)| (id, tensor.freeze()));
        let message = (number, (0..8).map(make).collect(), shared.collect());
        sender.put(message).unwrap();
        while let Ok(message) = home.try_get() {
            came_back += look_at_home(message);
        }
    }
    drop(sender);
    middle.join().unwrap();
    came_back += home.iter().map(look_at_home).sum::<usize>();
    assert_eq!(came_back, 2 * MESSAGES as usize);
    assert_eq!(end.join().unwrap(), [(2 + 2 + 3) * MESSAGES]);
    // A few for each block, and some for the messages that are on their way.
    let events = cuda_ipc::stats().events;
    assert!(events <= 600, "{events}");
    all_is_well(session);
}

fn tensors_of_one_message_on_several_streams_are_each_in_order() {
    fn read(_rank: usize, from: Receiver<Many>) -> tensormp::Result<Vec<u32>> {
        let mut values = Vec::new();
        for tensors in &from {
            values.extend(tensors.iter().map(|tensor| tensor.to_vec().unwrap()[63]));
        }
        Ok(values)
    }
    let session = slow_machine();
    let streams = [0, 0, 1].map(|ordinal| Stream::new(Device::new(ordinal).unwrap()).unwrap());
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let mut context = spawn(read, receiver, 1).unwrap();
    let mut wanted = Vec::new();
    for round in 0..10 {
        let mut tensors: Many = (0..9)
            .map(|at| streams[at % 3].scope(|| written_later(round * 10 + at as u32)))
            .collect();
        wanted.extend((0..9).map(|at| round * 10 + at));
        // Used in another stream last, which its own waits for when it is sent.
        let source = streams[1].scope(|| written_later(round + 500));
        let address = tensors[0].write_in(&streams[1]).unwrap();
        assert_ne!(address, 0);
        tensors[0].copy_from(&source).unwrap();
        tensors[0].set_stream(&streams[0]).unwrap();
        wanted[round as usize * 9] = round + 500;
        sender.put(tensors).unwrap();
    }
    drop(sender);
    assert_eq!(context.join().unwrap(), [wanted]);
    drop(streams);
    all_is_well(session);
}

fn an_event_of_many_is_not_used_again_while_a_message_speaks_of_it() {
    const MESSAGES: u32 = 60;
    fn read(_rank: usize, from: Receiver<Many>) -> tensormp::Result<Vec<u32>> {
        let mut values = Vec::new();
        for tensors in &from {
            for tensor in &tensors {
                let elements = tensor.to_vec().unwrap();
                assert!(elements.iter().all(|x| *x == elements[0]), "torn");
            }
            values.push(tensors[2].to_vec().unwrap()[63]);
        }
        Ok(values)
    }
    let session = slow_machine();
    let device = Device::new(0).unwrap();
    let streams = [(); 3].map(|()| Stream::new(device).unwrap());
    let (sender, receiver) = Queue::bounded(MESSAGES as usize).unwrap().split();
    // All are sent before the first is received. What one stream records says nothing of the others.
    for value in 0..MESSAGES {
        let stream = &streams[value as usize % 3];
        let tensors = stream.scope(|| (0..3).map(|_| written_later(value)).collect());
        sender.put(tensors).unwrap();
    }
    drop(sender);
    let mut context = spawn(read, receiver, 1).unwrap();
    assert_eq!(context.join().unwrap(), [(0..MESSAGES).collect::<Vec<_>>()]);
    drop(streams);
    all_is_well(session);
}

fn a_message_that_cannot_be_sent_leaves_its_tensors_as_they_were() {
    let session = machine();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    sender.put((0..2).map(written_later).collect()).unwrap();
    // Full: the value comes back, and can be written and sent again.
    let failed = sender
        .try_put((2..5).map(written_later).collect())
        .unwrap_err();
    let mut back: Many = failed.into_value().expect("the value is whole");
    back[0].copy_from_slice(&[9; 64]).unwrap();
    let first: Many = receiver.get().unwrap();
    sender.put(back).unwrap();
    let second: Many = receiver.get().unwrap();
    let values = |tensors: &Many| -> Vec<u32> {
        tensors
            .iter()
            .map(|tensor| tensor.to_vec().unwrap()[0])
            .collect()
    };
    assert_eq!(
        (values(&first), values(&second)),
        (vec![0, 1], vec![9, 3, 4])
    );
    drop((first, second));
    all_is_well(session);
}
