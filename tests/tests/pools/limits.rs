//! Limits of processes: memory, idling, nesting; and what threads refuse.

use std::sync::OnceLock;
use std::time::Duration;

use integration_tests::{Test, pidfd, tests, wait_for_end};
use tensormp::mp_queue::ErrorKind;
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    a_pool_of_more_processes_than_an_arena_has_room_for_is_refused_at_once,
    a_worker_that_grows_is_replaced_after_its_task,
    what_lies_in_the_arena_does_not_count_as_a_workers_memory,
    idle_workers_leave_and_come_back,
    a_worker_may_have_a_pool_of_its_own,
    a_task_of_a_thread_cannot_submit_to_a_pool,
    waiting_costs_no_cpu,
    a_task_that_waits_for_its_caller_is_told_as_a_deadlock,
    all_threads_that_wait_on_one_pool_are_told_of_a_deadlock,
    a_long_task_is_no_deadlock,
];

fn pid_after((grow, wait): (usize, u64)) -> Result<u32, String> {
    if grow > 0 {
        std::mem::forget(vec![1_u8; grow]);
    }
    // The worker looks at its memory every 10 ms at most.
    std::thread::sleep(Duration::from_millis(wait));
    Ok(std::process::id())
}

fn a_worker_that_grows_is_replaced_after_its_task() {
    let pool = Pool::builder()
        .workers(1)
        .max_rss(100 << 20)
        .start()
        .unwrap();
    let first = pool.call(pid_after, (0, 20)).unwrap();
    assert_eq!(pool.call(pid_after, (1 << 20, 20)).unwrap(), first);
    let process = pidfd(first);
    assert_eq!(pool.call(pid_after, (128 << 20, 20)).unwrap(), first);
    wait_for_end(&process);
    assert_ne!(pool.call(pid_after, (0, 0)).unwrap(), first);
}

fn what_lies_in_the_arena_does_not_count_as_a_workers_memory() {
    fn fill(mut tensor: Tensor<u8>) -> tensormp::Result<(u32, Tensor<u8>)> {
        tensor.as_mut_slice().fill(7);
        std::thread::sleep(Duration::from_millis(20));
        Ok((std::process::id(), tensor))
    }
    let pool = Pool::builder()
        .workers(1)
        .max_rss(48 << 20)
        .start()
        .unwrap();
    let (first, tensor) = pool.call(fill, Tensor::zeros(64 << 20).unwrap()).unwrap();
    let (second, _) = pool.call(fill, tensor).unwrap();
    assert_eq!(first, second);
}

fn idle_workers_leave_and_come_back() {
    let pool = Pool::builder()
        .workers(2)
        .idle_timeout(Duration::from_millis(30))
        .start()
        .unwrap();
    let first = pool.call(pid_after, (0, 0)).unwrap();
    while !pool.pids().is_empty() {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_ne!(pool.call(pid_after, (0, 0)).unwrap(), first);
    let outcomes = pool.map(pid_after, (0..20).map(|_| (0, 5))).unwrap();
    assert_eq!(outcomes.filter(|outcome| outcome.is_ok()).count(), 20);
    pool.shutdown().unwrap();
}

fn a_worker_may_have_a_pool_of_its_own() {
    fn outer(x: u64) -> tensormp::Result<u64> {
        let inner = Pool::new(1)?;
        Ok(inner.call(|x: u64| Ok::<_, String>(x + 1), x)? * 2)
    }
    let pool = Pool::new(1).unwrap();
    assert_eq!(pool.call(outer, 20).unwrap(), 42);
}

fn a_task_of_a_thread_cannot_submit_to_a_pool() {
    static POOL: OnceLock<Pool> = OnceLock::new();
    fn again(x: u64) -> tensormp::Result<u64> {
        let pool = POOL.get().ok_or("no pool")?;
        Ok(pool.call(again, x)?)
    }
    POOL.set(Pool::builder().workers(1).threads().start().unwrap())
        .unwrap();
    let error = POOL.get().unwrap().call(again, 1).unwrap_err();
    let ErrorKind::TaskRaised { chain, .. } = error.kind() else {
        panic!("{error:?}")
    };
    assert!(chain[0].contains("submit it outside"), "{chain:?}");
}

/// Ticks of 10 ms that a process has run, all threads.
fn ticks(pid: u32) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).expect("a process");
    let (_, fields) = stat.rsplit_once(')').expect("a name");
    let fields: Vec<&str> = fields.split_whitespace().collect();
    [11, 12]
        .iter()
        .map(|&field| fields[field].parse::<u64>().expect("a number"))
        .sum()
}

fn waiting_costs_no_cpu() {
    fn naps(_: ()) -> tensormp::Result<()> {
        std::thread::sleep(Duration::from_millis(1500));
        Ok(())
    }
    let pool = Pool::new(2).unwrap();
    for _ in 0..20 {
        pool.call(|()| (), ()).unwrap();
    }
    let all: Vec<u32> = pool
        .pids()
        .into_iter()
        .chain([std::process::id()])
        .collect();
    let before: u64 = all.iter().map(|&pid| ticks(pid)).sum();
    // One sleeps in its task, one waits for a request, and this process waits for the reply.
    pool.call(naps, ()).unwrap();
    let after: u64 = all.iter().map(|&pid| ticks(pid)).sum();
    // A wait that spins takes 150 ticks; counting them has a tick's grain for each thread.
    assert!(after - before <= 30, "{before} {after}");
}

fn a_task_that_waits_for_its_caller_is_told_as_a_deadlock() {
    fn gets(from: Receiver<u32>) -> tensormp::Result<u32> {
        Ok(from.get()?)
    }
    let pool = Pool::new(2).unwrap();
    let (to, from) = Queue::bounded(1).unwrap().split();
    // Nobody will put: whoever could is waiting.
    let error = pool.call(gets, from).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("deadlock"), "{text}");
    drop(to);
}

fn all_threads_that_wait_on_one_pool_are_told_of_a_deadlock() {
    fn gets(from: Receiver<u32>) -> tensormp::Result<u32> {
        Ok(from.get()?)
    }
    let pool = Pool::new(2).unwrap();
    let (to, from) = Queue::bounded(1).unwrap().split();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| pool.call(gets, from.clone()).unwrap_err());
        }
        let error = pool.call(gets, from.clone()).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("deadlock"), "{text}");
        // From here on this thread waits for nothing that anybody could see.
        drop(to);
    });
}

fn a_long_task_is_no_deadlock() {
    let pool = Pool::new(2).unwrap();
    let nap = |millis: u64| {
        std::thread::sleep(Duration::from_millis(millis));
        Ok::<_, String>(millis)
    };
    // Longer than two looks for a deadlock are apart; the other worker waits meanwhile.
    assert_eq!(pool.call(nap, 3000).unwrap(), 3000);
    assert_eq!(pool.map(nap, [1500, 1, 1]).unwrap().count(), 3);
}

fn a_pool_of_more_processes_than_an_arena_has_room_for_is_refused_at_once() {
    let started = Pool::builder().workers(100_000).start();
    let text = started.unwrap_err().to_string();
    assert!(text.contains("100000") && text.contains("4094"), "{text}");
}
