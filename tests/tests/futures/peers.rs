//! Futures that wait for processes which end, fail or are killed.

use std::time::Duration;

use integration_tests::{Test, allow_leaks, kill, tests};
use mp_queue::ErrorKind;
use tensormp::mp_queue;
use tensormp::prelude::*;
use tokio::time::timeout;

use super::{single, threaded};

pub(crate) const TESTS: &[Test] = &tests![
    the_last_sender_ends_all_futures_that_get,
    a_closed_queue_ends_all_futures,
    a_killed_sender_ends_the_futures_that_get_with_the_cause,
    a_killed_receiver_ends_the_futures_that_put_with_the_cause_and_the_value,
    a_process_killed_with_futures_waiting_takes_no_wake_with_it,
    a_deadline_of_the_runtime_ends_a_wait_and_the_next_one_gets_the_message,
    a_message_goes_back_and_forth_between_the_futures_of_two_processes,
    lanes_have_futures_as_well,
    threads_and_futures_share_a_queue,
];

fn the_last_sender_ends_all_futures_that_get() {
    fn drops(_rank: usize, (sender, go): (Sender<u8>, Event)) -> tensormp::Result<()> {
        go.wait()?;
        drop(sender);
        Ok(())
    }
    let (sender, receiver) = Queue::<u8>::bounded(4).unwrap().split();
    let go = Event::new().unwrap();
    let mut context = spawn(drops, (sender, go.clone()), 1).unwrap();
    threaded(2).block_on(async {
        let waiting: Vec<_> = (0..500)
            .map(|_| {
                let receiver = receiver.clone();
                tokio::spawn(async move { receiver.get_async().await.unwrap_err() })
            })
            .collect();
        tokio::task::yield_now().await;
        go.set();
        for one in waiting {
            let error = one.await.unwrap();
            assert!(error.is_closed(), "{error}");
        }
    });
    context.join().unwrap();
}

fn a_closed_queue_ends_all_futures() {
    let (full, empty) = (Queue::bounded(1).unwrap(), Queue::<u8>::bounded(1).unwrap());
    full.put(0).unwrap();
    single().block_on(async {
        let waiting: Vec<_> = (0..100_u8)
            .map(|number| {
                let (full, empty) = (full.clone(), empty.clone());
                tokio::spawn(async move {
                    let put = full.put_async(number).await.unwrap_err();
                    assert_eq!(put.kind(), &ErrorKind::Closed);
                    assert_eq!(put.into_value(), Some(number));
                    assert!(empty.get_async().await.unwrap_err().is_closed());
                })
            })
            .collect();
        tokio::task::yield_now().await;
        full.close();
        empty.close();
        for one in waiting {
            one.await.unwrap();
        }
        assert_eq!(full.get_async().await.unwrap(), 0);
    });
}

/// The failure of a context's process as its parent's queue tells it.
#[track_caller]
fn killed(kind: &ErrorKind, pid: u32) {
    let ErrorKind::PeerFailed(failure) = kind else {
        panic!("{kind:?}")
    };
    assert_eq!((failure.rank, failure.pid), (0, pid), "{failure}");
    assert!(failure.cause.contains("was killed by SIGKILL"), "{failure}");
}

fn sleeps(_rank: usize, _: Option<Sender<u32>>) {
    std::thread::sleep(Duration::from_secs(3600));
}

fn a_killed_sender_ends_the_futures_that_get_with_the_cause() {
    let (sender, receiver) = Queue::<u32>::bounded(4).unwrap().split();
    let context = spawn(sleeps, Some(sender), 1).unwrap();
    let pid = context.pids()[0];
    single().block_on(async {
        let waiting: Vec<_> = (0..200)
            .map(|_| {
                let receiver = receiver.clone();
                tokio::spawn(async move { receiver.get_async().await.unwrap_err() })
            })
            .collect();
        tokio::task::yield_now().await;
        kill(pid);
        for one in waiting {
            killed(one.await.unwrap().kind(), pid);
        }
    });
}

fn a_killed_receiver_ends_the_futures_that_put_with_the_cause_and_the_value() {
    fn sleeps(_rank: usize, _: Receiver<Tensor<u32>>) {
        std::thread::sleep(Duration::from_secs(3600));
    }
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let context = spawn(sleeps, receiver, 1).unwrap();
    let pid = context.pids()[0];
    single().block_on(async {
        sender.put_async(Tensor::full(9, 0).unwrap()).await.unwrap();
        let waiting: Vec<_> = (1..50_u32)
            .map(|number| {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let value = Tensor::full(9, number).unwrap();
                    let failed = sender.put_async(value).await.unwrap_err();
                    killed(failed.kind(), pid);
                    assert_eq!(failed.into_value().unwrap().as_slice(), [number; 9]);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        kill(pid);
        // What comes after its death as well.
        for one in waiting {
            one.await.unwrap();
        }
        let late = Tensor::full(9, 1).unwrap();
        killed(sender.put_async(late).await.unwrap_err().kind(), pid);
    });
}

fn a_process_killed_with_futures_waiting_takes_no_wake_with_it() {
    fn waits(_rank: usize, (queue, ready): (Receiver<u32>, Sender<()>)) -> tensormp::Result<()> {
        super::single().block_on(async {
            let waiting: Vec<_> = (0..50)
                .map(|_| {
                    let queue = queue.clone();
                    tokio::spawn(async move { queue.get_async().await.map(drop) })
                })
                .collect();
            tokio::task::yield_now().await;
            ready.put(())?;
            for one in waiting {
                one.await.expect("no panic")?;
            }
            Ok(())
        })
    }
    allow_leaks(1);
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (ready, is_ready) = Queue::bounded(1).unwrap().split();
    let context = spawn(waits, (receiver.clone(), ready), 1).unwrap();
    is_ready.get().unwrap();
    kill(context.pids()[0]);
    drop(context);
    single().block_on(async {
        for number in 0..200_u32 {
            sender.put_async(number).await.unwrap();
            assert_eq!(receiver.get_async().await.unwrap(), number);
        }
    });
}

fn a_deadline_of_the_runtime_ends_a_wait_and_the_next_one_gets_the_message() {
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    single().block_on(async {
        let short = Duration::from_millis(5);
        assert!(timeout(short, receiver.get_async()).await.is_err());
        sender.put_async(1).await.unwrap();
        assert!(timeout(short, sender.put_async(2)).await.is_err());
        assert_eq!(receiver.get_async().await.unwrap(), 1);
        assert!(receiver.is_empty(), "what was given up never comes");
    });
}

fn a_message_goes_back_and_forth_between_the_futures_of_two_processes() {
    const TIMES: u32 = 3_000;
    fn answers(
        _rank: usize,
        (from, to): (Receiver<Tensor<u32>>, Sender<Tensor<u32>>),
    ) -> tensormp::Result<()> {
        super::single().block_on(async {
            loop {
                match from.get_async().await {
                    Ok(mut tensor) => {
                        tensor.as_mut_slice()[0] += 1;
                        to.put_async(tensor).await?;
                    }
                    Err(error) if error.is_closed() => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
        })
    }
    let (there, from) = Queue::bounded(1).unwrap().split();
    let (to, back) = Queue::bounded(1).unwrap().split();
    let mut context = spawn(answers, (from, to), 1).unwrap();
    single().block_on(async {
        let mut tensor = Tensor::zeros(10).unwrap();
        for number in 0..TIMES {
            assert_eq!(tensor.as_slice()[0], number);
            there.put_async(tensor).await.unwrap();
            tensor = back.get_async().await.unwrap();
        }
    });
    drop(there);
    context.join().unwrap();
}

fn lanes_have_futures_as_well() {
    fn answers(
        _rank: usize,
        (mut from, mut to): (LaneReceiver<u32>, LaneSender<u32>),
    ) -> tensormp::Result<()> {
        for number in &mut from {
            to.put(number + 1)?;
        }
        Ok(())
    }
    let (mut there, from) = pair(1).unwrap();
    let (to, mut back) = pair(1).unwrap();
    let mut context = spawn(answers, (from, to), 1).unwrap();
    single().block_on(async {
        let mut number = 0;
        for round in 0..1_000 {
            assert_eq!(number, round);
            there.put_async(number).await.unwrap();
            number = back.get_async().await.unwrap();
        }
        there.put_async(0).await.unwrap();
        assert_eq!(back.get_async().await.unwrap(), 1);
        drop(there);
        assert!(back.get_async().await.unwrap_err().is_closed());
    });
    context.join().unwrap();
}

fn threads_and_futures_share_a_queue() {
    const EACH: u64 = 1_500;
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let sum = std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for _ in 0..2 {
            let receiver = receiver.clone();
            threads.push(scope.spawn(move || receiver.iter().sum::<u64>()));
        }
        for from in 0..2 {
            let sender = sender.clone();
            scope.spawn(move || sender.put_many(from * EACH..(from + 1) * EACH).unwrap());
        }
        let sum = threaded(2).block_on(async {
            let getting: Vec<_> = (0..10)
                .map(|_| {
                    let receiver = receiver.clone();
                    tokio::spawn(async move {
                        let mut sum = 0;
                        while let Ok(number) = receiver.get_async().await {
                            sum += number;
                        }
                        sum
                    })
                })
                .collect();
            let putting: Vec<_> = (2..4)
                .map(|from| {
                    let sender = sender.clone();
                    tokio::spawn(async move {
                        for number in from * EACH..(from + 1) * EACH {
                            sender.put_async(number).await.unwrap();
                        }
                    })
                })
                .collect();
            for one in putting {
                one.await.unwrap();
            }
            drop(sender);
            let mut sum = 0;
            for one in getting {
                sum += one.await.unwrap();
            }
            sum
        });
        let of_threads = threads.into_iter().map(|thread| thread.join().unwrap());
        of_threads.sum::<u64>() + sum
    });
    assert_eq!(sum, (0..4 * EACH).sum::<u64>());
}
