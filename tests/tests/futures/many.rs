//! Thousands of futures, and their cancelling.

use std::collections::BTreeSet;
use std::time::Duration;

use integration_tests::{Test, tests};
use tensormp::prelude::*;
use tokio::runtime::Runtime;
use tokio::time::timeout;

use super::{poll_once, single, threaded, threads};

pub(crate) const TESTS: &[Test] = &tests![
    thousands_of_futures_wait_on_one_thread_and_each_message_goes_to_one,
    thousands_of_futures_wait_in_a_runtime_of_several_threads,
    putting_futures_wait_for_room_and_lose_no_order,
    more_queues_than_one_sleep_can_be_on,
    without_futex_waitv_all_of_that_works_too,
    futures_cancelled_at_random_lose_no_message,
    futures_cancelled_at_random_leave_whole_messages,
    a_future_that_was_woken_and_is_never_polled_holds_nobody_up,
    futures_wait_in_the_order_in_which_they_began,
    a_queue_that_futures_waited_for_is_freed_like_any_other,
    a_task_that_always_finds_a_message_lets_others_have_their_turn,
];

fn puts(_rank: usize, (sender, from, count): (Sender<u64>, u64, u64)) -> tensormp::Result<()> {
    for number in from..from + count {
        sender.put(number)?;
    }
    Ok(())
}

/// So many futures each take one message that another process puts.
fn take_one_each(runtime: &Runtime, futures: u64, most_threads: usize) {
    let (sender, receiver) = Queue::bounded(16).unwrap().split();
    let all = runtime.block_on(async {
        let waiting: Vec<_> = (0..futures)
            .map(|_| {
                let receiver = receiver.clone();
                tokio::spawn(async move { receiver.get_async().await.unwrap() })
            })
            .collect();
        // Everybody waits before the first message comes.
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let context = spawn(puts, (sender, 0, futures), 1).unwrap();
        assert!(threads() <= most_threads, "{} threads", threads());
        let mut all = BTreeSet::new();
        for one in waiting {
            assert!(all.insert(one.await.unwrap()), "a message came twice");
        }
        drop(context);
        all
    });
    assert_eq!(all, (0..futures).collect());
}

fn thousands_of_futures_wait_on_one_thread_and_each_message_goes_to_one() {
    // The test's own, the arena's watcher, the supervisor, the ear.
    take_one_each(&single(), 5_000, 5);
}

fn thousands_of_futures_wait_in_a_runtime_of_several_threads() {
    take_one_each(&threaded(4), 5_000, 10);
}

fn putting_futures_wait_for_room_and_lose_no_order() {
    const EACH: u64 = 500;
    fn gets(_rank: usize, receiver: Receiver<(usize, u64)>) -> tensormp::Result<u64> {
        let mut next = [0; 8];
        for (producer, number) in &receiver {
            assert_eq!(next[producer], number, "of producer {producer}");
            next[producer] += 1;
        }
        Ok(next.iter().sum())
    }
    for runtime in [single(), threaded(3)] {
        let (sender, receiver) = Queue::bounded(2).unwrap().split();
        let mut context = spawn(gets, receiver, 1).unwrap();
        runtime.block_on(async {
            let putting: Vec<_> = (0..8)
                .map(|producer| {
                    let sender = sender.clone();
                    tokio::spawn(async move {
                        for number in 0..EACH {
                            sender.put_async((producer, number)).await.unwrap();
                        }
                    })
                })
                .collect();
            for one in putting {
                one.await.unwrap();
            }
        });
        drop(sender);
        assert_eq!(context.join().unwrap(), [8 * EACH]);
    }
}

/// One future at each of so many queues; another process puts into all of them, the last first.
fn wait_at_many_queues(queues: usize) {
    fn puts_backwards(_rank: usize, senders: Vec<Sender<usize>>) -> tensormp::Result<()> {
        for (number, sender) in senders.iter().enumerate().rev() {
            sender.put(number)?;
        }
        Ok(())
    }
    let (senders, receivers): (Vec<_>, Vec<_>) = (0..queues)
        .map(|_| Queue::bounded(1).unwrap().split())
        .unzip();
    single().block_on(async {
        let waiting: Vec<_> = receivers
            .into_iter()
            .map(|receiver| tokio::spawn(async move { receiver.get_async().await.unwrap() }))
            .collect();
        tokio::task::yield_now().await;
        let context = spawn(puts_backwards, senders, 1).unwrap();
        for (number, one) in waiting.into_iter().enumerate() {
            assert_eq!(one.await.unwrap(), number);
        }
        drop(context);
    });
}

fn more_queues_than_one_sleep_can_be_on() {
    let before = threads();
    wait_at_many_queues(300);
    // Three that sleep, the watcher and the supervisor.
    assert!(threads() <= before + 5, "{} threads", threads());
}

fn without_futex_waitv_all_of_that_works_too() {
    shm_core::vigil::pretend_deaf();
    let before = threads();
    wait_at_many_queues(200);
    assert!(threads() <= before + 3, "{} threads", threads());
    take_one_each(&single(), 1_000, before + 3);
    take_one_each(&threaded(2), 1_000, before + 6);
    putting_futures_wait_for_room_and_lose_no_order();
}

/// Numbers that seem random.
fn random(state: &mut u64) -> u64 {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

fn futures_cancelled_at_random_lose_no_message() {
    const MESSAGES: u64 = 6_000;
    for runtime in [single(), threaded(3)] {
        let (sender, receiver) = Queue::bounded(8).unwrap().split();
        let mut context = spawn(puts, (sender, 0, MESSAGES), 1).unwrap();
        let mut all = BTreeSet::new();
        runtime.block_on(async {
            let taking: Vec<_> = (0..50_u64)
                .map(|seed| {
                    let receiver = receiver.clone();
                    tokio::spawn(async move {
                        let (mut state, mut taken) = (seed, Vec::new());
                        loop {
                            let patience = Duration::from_micros(random(&mut state) % 300);
                            match timeout(patience, receiver.get_async()).await {
                                Ok(Ok(number)) => taken.push(number),
                                Ok(Err(error)) if error.is_closed() => return taken,
                                Ok(Err(error)) => panic!("{error}"),
                                Err(_) => tokio::task::yield_now().await,
                            }
                        }
                    })
                })
                .collect();
            for one in taking {
                for number in one.await.unwrap() {
                    assert!(all.insert(number), "{number} came twice");
                }
            }
        });
        assert_eq!(all, (0..MESSAGES).collect());
        context.join().unwrap();
    }
}

fn futures_cancelled_at_random_leave_whole_messages() {
    // A tensor in each: one that was given up must not stay anywhere.
    fn sums(_rank: usize, receiver: Receiver<(u64, Tensor<u64>)>) -> tensormp::Result<u64> {
        let mut count = 0;
        for (number, tensor) in &receiver {
            assert_eq!(tensor.as_slice(), [number; 100]);
            count += 1;
        }
        Ok(count)
    }
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(sums, receiver, 1).unwrap();
    let put: u64 = threaded(2).block_on(async {
        let putting: Vec<_> = (0..20_u64)
            .map(|seed| {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let (mut state, mut put) = (seed, 0);
                    for number in 0..200 {
                        let tensor = Tensor::full(100, number).unwrap();
                        let patience = Duration::from_micros(random(&mut state) % 200);
                        if let Ok(done) =
                            timeout(patience, sender.put_async((number, tensor))).await
                        {
                            done.unwrap();
                            put += 1;
                        }
                    }
                    put
                })
            })
            .collect();
        let mut put = 0;
        for one in putting {
            put += one.await.unwrap();
        }
        put
    });
    drop(sender);
    assert_eq!(context.join().unwrap(), [put]);
}

fn a_future_that_was_woken_and_is_never_polled_holds_nobody_up() {
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut forgotten = Box::pin(receiver.get_async());
    let (answer, told) = poll_once(&mut forgotten);
    assert!(answer.is_pending());
    let second = receiver.clone();
    let got = single().block_on(async {
        let second = tokio::spawn(async move { second.get_async().await.unwrap() });
        tokio::task::yield_now().await;
        sender.put(7_u32).unwrap();
        second.await.unwrap()
    });
    assert_eq!(got, 7);
    assert!(
        told.is_raised(),
        "the first to wait is the first to be told"
    );
    // And if its memory is leaked, nothing else is.
    std::mem::forget(forgotten);
    sender.put(8).unwrap();
    assert_eq!(receiver.get().unwrap(), 8);
}

fn futures_wait_in_the_order_in_which_they_began() {
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut waiting: Vec<_> = (0..20).map(|_| Box::pin(receiver.get_async())).collect();
    let told: Vec<_> = waiting
        .iter_mut()
        .map(|future| poll_once(future).1)
        .collect();
    for number in 0..20 {
        sender.put(number).unwrap();
        while !told[number].is_raised() {
            std::thread::yield_now();
        }
        let (answer, _) = poll_once(&mut waiting[number]);
        assert!(matches!(answer, std::task::Poll::Ready(Ok(got)) if got == number));
    }
}

fn a_queue_that_futures_waited_for_is_freed_like_any_other() {
    let arena = Arena::current().unwrap();
    let before = arena.stats().blocks;
    single().block_on(async {
        for round in 0..20 {
            let (sender, receiver) = Queue::bounded(4).unwrap().split();
            let late = timeout(Duration::from_millis(1), receiver.get_async());
            assert!(late.await.is_err());
            let waiting = tokio::spawn(async move { receiver.get_async().await });
            tokio::task::yield_now().await;
            sender
                .put_async(Tensor::full(1000, round).unwrap())
                .await
                .unwrap();
            drop(waiting.await.unwrap().unwrap());
        }
    });
    while arena.stats().blocks > before {
        std::thread::yield_now();
    }
}

fn a_task_that_always_finds_a_message_lets_others_have_their_turn() {
    let queue = Queue::bounded(4).unwrap();
    let stop = Event::new().unwrap();
    single().block_on(async {
        let (busy, stopped) = (queue.clone(), stop.clone());
        let busy = tokio::spawn(async move {
            while !stopped.is_set() {
                busy.put_async(1_u8).await.unwrap();
                busy.get_async().await.unwrap();
            }
        });
        let other = tokio::spawn(async move { stop.set() });
        busy.await.unwrap();
        other.await.unwrap();
    });
}
