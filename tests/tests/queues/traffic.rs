//! Many messages: each arrives once, in its producer's order, and whole.

use integration_tests::{Test, tests};
use serde::{Deserialize, Serialize};
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    one_producer_and_one_consumer_keep_the_order,
    two_producers_and_two_consumers_share_the_messages,
    four_producers_and_four_consumers_share_the_messages,
    a_queue_of_one_cell_carries_everything,
    messages_of_all_sizes_keep_the_order,
    a_lane_keeps_the_order,
    a_hundred_thousand_tensors_go_through_three_processes,
];

#[derive(Debug, Serialize, Deserialize)]
struct Message {
    producer: usize,
    number: u64,
    tensor: Tensor<u64>,
    /// Makes some messages too long for a cell.
    ballast: Vec<u8>,
}

impl Message {
    fn new(producer: usize, number: u64, ballast: usize) -> tensormp::Result<Self> {
        Ok(Self {
            producer,
            number,
            tensor: Tensor::full(5, number)?,
            ballast: vec![number as u8; ballast],
        })
    }

    /// Producer and number, after a look at all the rest.
    fn check(&self) -> (usize, u64) {
        assert_eq!(self.tensor.as_slice(), [self.number; 5]);
        assert!(self.ballast.iter().all(|&byte| byte == self.number as u8));
        (self.producer, self.number)
    }
}

/// What a process has taken, in order; nothing for a producer.
type Taken = Vec<(usize, u64)>;

fn produce(rank: usize, to: (Sender<Message>, u64, usize)) -> tensormp::Result<Taken> {
    let (sender, count, ballast) = to;
    for number in 0..count {
        sender.put(Message::new(rank, number, number as usize % (ballast + 1))?)?;
    }
    Ok(Taken::new())
}

fn consume(_rank: usize, from: Receiver<Message>) -> tensormp::Result<Taken> {
    Ok(from.iter().map(|message| message.check()).collect())
}

/// Sends `count` messages of each producer through a queue, and checks what came out.
fn share(producers: usize, consumers: usize, capacity: usize, count: u64, ballast: usize) {
    let (sender, receiver) = Queue::bounded(capacity).unwrap().split();
    let mut group = Group::new();
    group
        .add_replicas("produce", produce, (sender, count, ballast), producers)
        .unwrap();
    group
        .add_replicas("consume", consume, receiver, consumers)
        .unwrap();
    let mut context = group.start().unwrap();
    let taken = context.join().unwrap();
    let mut all: Taken = Vec::new();
    for taken in taken {
        for producer in 0..producers {
            let of_one = taken.iter().filter(|(from, _)| *from == producer);
            assert!(
                of_one.is_sorted(),
                "a consumer saw a producer's messages out of order"
            );
        }
        all.extend(taken);
    }
    all.sort_unstable();
    let wanted = (0..producers).flat_map(|producer| (0..count).map(move |i| (producer, i)));
    assert!(all.into_iter().eq(wanted), "each message must arrive once");
}

fn one_producer_and_one_consumer_keep_the_order() {
    share(1, 1, 8, 3000, 0);
}

fn two_producers_and_two_consumers_share_the_messages() {
    share(2, 2, 4, 1500, 0);
}

fn four_producers_and_four_consumers_share_the_messages() {
    share(4, 4, 3, 700, 0);
}

fn a_queue_of_one_cell_carries_everything() {
    share(2, 2, 1, 400, 0);
}

fn messages_of_all_sizes_keep_the_order() {
    share(2, 1, 4, 600, 5000);
}

fn a_lane_keeps_the_order() {
    fn produce(rank: usize, to: (LaneSender<Message>, u64)) -> tensormp::Result<()> {
        let (mut sender, count) = to;
        for number in 0..count {
            sender.put(Message::new(rank, number, number as usize % 200)?)?;
        }
        Ok(())
    }
    let (sender, mut receiver) = pair(4).unwrap();
    let mut context = spawn(produce, (sender, 3000), 1).unwrap();
    for number in 0..3000 {
        assert_eq!(receiver.get().unwrap().check(), (0, number));
    }
    context.join().unwrap();
    assert!(receiver.get().unwrap_err().is_closed());
}

fn a_hundred_thousand_tensors_go_through_three_processes() {
    const COUNT: u64 = 100_000;
    type In = Receiver<Tensor<u64>>;
    type Out = Sender<Tensor<u64>>;
    fn make(_rank: usize, to: Out) -> tensormp::Result<u64> {
        for number in 0..COUNT {
            to.put(Tensor::from_slice(2, &[number, 0])?)?;
        }
        Ok(0)
    }
    fn square(_rank: usize, (from, to): (In, Out)) -> tensormp::Result<u64> {
        for mut tensor in &from {
            let elements = tensor.as_mut_slice();
            elements[1] = elements[0] * elements[0];
            to.put(tensor)?;
        }
        Ok(0)
    }
    fn add(_rank: usize, from: In) -> tensormp::Result<u64> {
        Ok(from.iter().map(|tensor| tensor.as_slice()[1]).sum())
    }
    let (first, second) = (Queue::bounded(64).unwrap(), Queue::bounded(64).unwrap());
    let ((to_square, from_make), (to_add, from_square)) = (first.split(), second.split());
    let mut group = Group::new();
    group.add("make", make, to_square).unwrap();
    group.add("square", square, (from_make, to_add)).unwrap();
    group.add("add", add, from_square).unwrap();
    let mut context = group.start().unwrap();
    let wanted = (COUNT - 1) * COUNT * (2 * COUNT - 1) / 6;
    assert_eq!(context.join().unwrap(), [0, 0, wanted]);
}
