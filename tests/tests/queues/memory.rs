//! What messages take, and that it comes back.

use integration_tests::{Test, tests};
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    two_thousand_sends_of_one_tensor_take_no_more_memory,
    a_child_may_keep_a_thousand_messages,
    a_queue_that_is_dropped_releases_its_messages,
    queues_that_come_and_go_take_no_more_memory,
];

fn committed() -> u64 {
    Arena::current().unwrap().stats().committed
}

fn two_thousand_sends_of_one_tensor_take_no_more_memory() {
    fn add(_rank: usize, from: Receiver<SharedTensor<u8>>) -> tensormp::Result<u64> {
        Ok(from
            .iter()
            .map(|tensor| u64::from(tensor.as_slice()[0]))
            .sum())
    }
    let (sender, receiver) = Queue::bounded(16).unwrap().split();
    let mut context = spawn(add, receiver, 1).unwrap();
    let tensor = Tensor::full(1 << 20, 3_u8).unwrap().freeze();
    // The first sends make what all of them use.
    for _ in 0..100 {
        sender.put(tensor.clone()).unwrap();
    }
    let before = committed();
    for _ in 0..2000 {
        sender.put(tensor.clone()).unwrap();
    }
    assert_eq!(committed(), before);
    drop(sender);
    assert_eq!(context.join().unwrap(), [6300]);
    assert!(tensor.try_thaw().is_ok(), "nobody else has it any more");
}

fn a_child_may_keep_a_thousand_messages() {
    fn keep(_rank: usize, from: Receiver<(u32, Tensor<u32>)>) -> tensormp::Result<bool> {
        let kept: Vec<_> = from.iter().collect();
        assert_eq!(kept.len(), 1000);
        Ok(kept
            .iter()
            .all(|(i, tensor)| tensor.as_slice() == [*i; 100]))
    }
    let (sender, receiver) = Queue::bounded(16).unwrap().split();
    let mut context = spawn(keep, receiver, 1).unwrap();
    for i in 0..1000 {
        sender.put((i, Tensor::full(100, i).unwrap())).unwrap();
    }
    drop(sender);
    assert_eq!(context.join().unwrap(), [true]);
}

fn a_queue_that_is_dropped_releases_its_messages() {
    let arena = Arena::current().unwrap();
    let before = arena.audit();
    let kept = Tensor::full(10, 1_u8).unwrap().freeze();
    {
        let queue = Queue::bounded(8).unwrap();
        let inner = Queue::bounded(2).unwrap();
        inner.put(Tensor::full(1000, 1.5_f32).unwrap()).unwrap();
        // In the cell, in a block of its own, with a queue that holds a message itself.
        queue.put((String::new(), kept.clone(), None)).unwrap();
        queue
            .put(("long ".repeat(100), kept.clone(), None))
            .unwrap();
        queue
            .put((String::new(), kept.clone(), Some(inner)))
            .unwrap();
        assert!(arena.audit().lines > before.lines + 4);
    }
    {
        let (mut sender, receiver) = pair(4).unwrap();
        sender.put(("long ".repeat(100), kept.clone())).unwrap();
        drop((sender, receiver));
    }
    assert!(kept.try_thaw().is_ok(), "no message holds it any more");
    let after = arena.audit();
    assert!(
        after.leaked.is_empty() && after.missing.is_empty(),
        "{after:?}"
    );
    assert_eq!(after.lines, before.lines);
}

fn queues_that_come_and_go_take_no_more_memory() {
    let once = || {
        let (sender, receiver) = Queue::bounded(100).unwrap().split();
        for i in 0..10 {
            sender.put(Tensor::full(1000, i).unwrap()).unwrap();
        }
        let first: Tensor<i32> = receiver.get().unwrap();
        assert_eq!(first.as_slice()[999], 0);
    };
    once();
    let before = committed();
    for _ in 0..500 {
        once();
    }
    assert_eq!(committed(), before);
}
