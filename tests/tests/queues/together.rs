//! Many messages at once, counters, and what is said of those who keep others waiting.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use integration_tests::{Keeper, Test, tests};
use tensormp::mp_queue::{self, set_long_wait};
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    many_values_go_through_together_in_their_order,
    values_put_together_wake_all_who_are_needed,
    the_value_that_did_not_go_in_comes_back_and_the_rest_is_not_asked_for,
    a_lane_can_be_gone_through,
    a_queue_counts_what_happens_to_it,
    a_long_wait_is_told_with_the_holder_of_what_is_waited_for,
    a_sender_that_was_forgotten_is_told_while_another_thread_lives,
    a_waiting_process_takes_no_cpu_time,
];

fn many_values_go_through_together_in_their_order() {
    fn puts(_rank: usize, to: Sender<(u32, Tensor<u32>)>) -> tensormp::Result<()> {
        for start in (0..3_000).step_by(100) {
            // More than there is room for.
            let values = (start..start + 100).map(|i| (i, Tensor::full(2, i).unwrap()));
            assert_eq!(to.put_many(values)?, 100);
        }
        Ok(())
    }
    let (sender, receiver) = Queue::bounded(32).unwrap().split();
    let mut context = spawn(puts, sender, 1).unwrap();
    let mut next = 0;
    while let Ok(values) = receiver.get_many(20) {
        assert!((1..=20).contains(&values.len()));
        for (i, tensor) in values {
            assert_eq!((i, tensor.as_slice()), (next, &[next; 2][..]));
            next += 1;
        }
    }
    assert_eq!(next, 3_000);
    context.join().unwrap();
}

fn values_put_together_wake_all_who_are_needed() {
    fn takes_one(_rank: usize, (from, rounds): (Receiver<u32>, Barrier)) -> tensormp::Result<u32> {
        let mut sum = 0;
        for _ in 0..20 {
            sum += from.get()?;
            rounds.wait()?;
        }
        Ok(sum)
    }
    let (queue, rounds) = (Queue::bounded(8).unwrap(), Barrier::new(5).unwrap());
    let shared = (queue.receiver().clone(), rounds.clone());
    let mut context = spawn(takes_one, shared, 4).unwrap();
    for _ in 0..20 {
        // One wake for four sleepers, each of whom takes one.
        assert_eq!(queue.put_many([1, 1, 1, 1]).unwrap(), 4);
        rounds.wait().unwrap();
    }
    assert_eq!(context.join().unwrap(), [20; 4]);
}

fn the_value_that_did_not_go_in_comes_back_and_the_rest_is_not_asked_for() {
    let (sender, receiver) = Queue::bounded(8).unwrap().split();
    sender.put_many([1, 2]).unwrap();
    let mut values = (3..10).inspect(|&i| {
        if i == 5 {
            sender.close();
        }
    });
    let error = sender.put_many(values.by_ref()).unwrap_err();
    assert!(error.error().is_closed());
    assert_eq!(error.into_value(), Some(5));
    assert_eq!(values.next(), Some(6));
    assert_eq!(receiver.get_many(100).unwrap(), [1, 2, 3, 4]);
    assert!(receiver.get_many(100).unwrap_err().is_closed());
}

fn a_lane_can_be_gone_through() {
    fn puts(_rank: usize, mut to: LaneSender<u32>) -> tensormp::Result<()> {
        for i in 0..100 {
            to.put(i)?;
        }
        Ok(())
    }
    let (sender, mut receiver) = pair(4).unwrap();
    let mut context = spawn(puts, sender, 1).unwrap();
    let mut expected = 0..100;
    for i in &mut receiver {
        assert_eq!(Some(i), expected.next());
    }
    assert_eq!(expected.next(), None);
    context.join().unwrap();
}

fn a_queue_counts_what_happens_to_it() {
    fn sleeps(_rank: usize, from: Receiver<u32>) -> tensormp::Result<u32> {
        Ok(from.with_policy(mp_queue::WaitPolicy::Park).iter().sum())
    }
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(sleeps, receiver.clone(), 1).unwrap();
    for i in 0..10 {
        while i == 5 && receiver.stats().parks == 0 {
            std::thread::yield_now();
        }
        sender.put(i).unwrap();
        while i < 5 && !receiver.is_empty() {
            std::thread::yield_now();
        }
    }
    drop(sender);
    let other = receiver.clone();
    assert_eq!(context.join().unwrap(), [45]);
    let stats = other.stats();
    assert_eq!((stats.put, stats.got, stats.lost), (10, 10, 0), "{stats:?}");
    assert!(stats.parks > 0, "{stats:?}");
    assert_eq!(stats.wakes_sent + stats.wakes_elided, 20, "{stats:?}");
}

fn a_long_wait_is_told_with_the_holder_of_what_is_waited_for() {
    let told = Arc::new(Mutex::new(String::new()));
    let _keeper = tracing::subscriber::set_default(Keeper(told.clone()));
    set_long_wait(Duration::from_millis(10));
    let mutex = mp_queue::Mutex::new().unwrap();
    let guard = mutex.lock().unwrap();
    let heard = told.clone();
    std::thread::scope(|scope| {
        // Lets go once that was told: without being told, this test would hang.
        scope.spawn(move || {
            while !heard.lock().unwrap().contains("still waiting") {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(guard);
        });
        assert!(mutex.lock_timeout(Duration::from_secs(3600)).is_ok());
    });
    let text = told.lock().unwrap().clone();
    assert!(
        text.contains("this process itself") && text.contains("the mutex made at"),
        "{text:?}"
    );
}

/// What a runtime's thread hides from those who look for deadlocks.
fn a_sender_that_was_forgotten_is_told_while_another_thread_lives() {
    fn drain(_rank: usize, work: Receiver<u32>) -> tensormp::Result<u32> {
        let mut sum = 0;
        for number in &work {
            sum += number;
        }
        Ok(sum)
    }
    let told = Arc::new(Mutex::new(String::new()));
    let _keeper = tracing::subscriber::set_default(Keeper(told.clone()));
    set_long_wait(Duration::from_millis(10));
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(drain, receiver, 1).unwrap();
    sender.put(3).unwrap();
    let heard = told.clone();
    std::thread::scope(|scope| {
        // Drops the sender once that was told: without being told, this test would hang.
        scope.spawn(move || {
            while !heard.lock().unwrap().contains("still joining") {
                std::thread::sleep(Duration::from_millis(5));
            }
            drop(sender);
        });
        assert_eq!(context.join().unwrap(), [3]);
    });
    let text = told.lock().unwrap().clone();
    for part in [
        "process \"drain\" (pid ",
        "a message from the queue made at",
        "this process holds",
    ] {
        assert!(text.contains(part), "{part:?} is missing in: {text}");
    }
}

/// Clock ticks that a process has used, in user and system mode.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let (_, rest) = stat.rsplit_once(") ").unwrap();
    let fields: Vec<_> = rest.split(' ').collect();
    fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
}

fn a_waiting_process_takes_no_cpu_time() {
    fn waits(
        _rank: usize,
        (from, mutex, ready): (Receiver<u32>, mp_queue::Mutex, Event),
    ) -> tensormp::Result<u32> {
        ready.set();
        drop(mutex.lock().map_err(mp_queue::Error::from)?);
        Ok(from.get()?)
    }
    let (sender, receiver) = Queue::bounded(4).unwrap().split();
    let (mutex, ready) = (mp_queue::Mutex::new().unwrap(), Event::new().unwrap());
    let guard = mutex.lock().unwrap();
    let shared = (receiver, mutex.clone(), ready.clone());
    let mut context = spawn(waits, shared, 1).unwrap();
    let pid = context.pids()[0];
    ready.wait().unwrap();
    let used = |what: &str| {
        // Until it sleeps; then one second, of a hundred ticks.
        let pause = || std::thread::sleep(Duration::from_millis(250));
        pause();
        let before = ticks(pid);
        (0..4).for_each(|_| pause());
        let used = ticks(pid) - before;
        assert!(used <= 2, "{used} ticks in a second of waiting for {what}");
    };
    used("a lock");
    drop(guard);
    used("a message");
    sender.put(7).unwrap();
    assert_eq!(context.join().unwrap(), [7]);
}
