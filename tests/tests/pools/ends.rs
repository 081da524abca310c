//! Cancelling, closing, shutting down and dropping.

use std::time::Duration;

use integration_tests::Test;
use tensormp::mp_queue::ErrorKind;
use tensormp::prelude::*;

use crate::workers::{Workers, see_threads_off, with_both};

pub(crate) const TESTS: &[Test] = with_both![
    a_task_that_was_not_begun_can_be_cancelled_and_never_runs,
    a_done_task_cannot_be_cancelled,
    a_shutdown_does_what_was_submitted,
    a_shutdown_with_a_limit_ends,
    a_closed_pool_takes_nothing_and_finishes_what_it_has,
    a_dropped_pool_tells_those_who_wait,
    a_pool_of_nobody_is_refused,
    replaced_workers_never_stall_the_pool,
];

fn waits((go, to, x): (Event, Sender<u32>, u32)) -> tensormp::Result<u32> {
    go.wait()?;
    to.put(x)?;
    Ok(x)
}

fn a_task_that_was_not_begun_can_be_cancelled_and_never_runs<W: Workers>() {
    // One that was given to the worker already, and one that still waits here.
    for prefetch in [0, 8] {
        let pool = W::builder().workers(1).prefetch(prefetch).start().unwrap();
        let go = Event::new().unwrap();
        let (to, from) = Queue::bounded(8).unwrap().split();
        let tasks: Vec<_> = (0..4)
            .map(|x| pool.submit(waits, (go.clone(), to.clone(), x)).unwrap())
            .collect();
        assert!(tasks[1].cancel());
        assert!(tasks[3].cancel());
        assert!(!tasks[3].cancel(), "it is cancelled already");
        assert!(tasks[1].is_done());
        go.set();
        for (x, task) in (0..).zip(tasks) {
            match task.wait() {
                Ok(y) => assert!(y == x && x.is_multiple_of(2)),
                Err(error) => {
                    assert!(
                        matches!(error.kind(), ErrorKind::TaskCancelled { .. }),
                        "{error}"
                    );
                    assert!(!x.is_multiple_of(2));
                }
            }
        }
        drop(to);
        assert_eq!(from.iter().collect::<Vec<_>>(), [0, 2]);
        pool.shutdown().unwrap();
    }
}

fn a_done_task_cannot_be_cancelled<W: Workers>() {
    let pool = W::pool(1);
    let task = pool.submit(|x: u8| Ok::<_, String>(x), 3).unwrap();
    while !task.is_done() {
        std::thread::yield_now();
    }
    assert!(!task.cancel());
    assert_eq!(task.wait().unwrap(), 3);
}

fn a_shutdown_does_what_was_submitted<W: Workers>() {
    fn put((to, x): (Sender<u32>, u32)) -> tensormp::Result<()> {
        Ok(to.put(x)?)
    }
    let pool = W::pool(2);
    let (to, from) = Queue::bounded(200).unwrap().split();
    for x in 0..200 {
        drop(pool.submit(put, (to.clone(), x)).unwrap());
    }
    drop(to);
    pool.shutdown().unwrap();
    assert_eq!(from.iter().count(), 200);
}

fn a_shutdown_with_a_limit_ends<W: Workers>() {
    let pool = W::pool(1);
    let go = Event::new().unwrap();
    let (to, from) = Queue::bounded(8).unwrap().split();
    let task = pool.submit(waits, (go.clone(), to, 1)).unwrap();
    let error = pool
        .shutdown_timeout(Duration::from_millis(30))
        .unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::TimedOut);
    let error = task.wait().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Closed);
    // A thread cannot be killed, so it is let go on; a process is gone.
    go.set();
    drop(from);
    see_threads_off();
}

fn a_closed_pool_takes_nothing_and_finishes_what_it_has<W: Workers>() {
    let pool = W::pool(1);
    let task = pool.submit(|x: u8| Ok::<_, String>(x), 3).unwrap();
    pool.close();
    let error = pool.submit(|x: u8| Ok::<_, String>(x), 4).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Closed);
    assert_eq!(error.into_value(), Some(4));
    assert!(pool.map(|x: u8| Ok::<_, String>(x), [1]).is_err());
    assert_eq!(task.wait().unwrap(), 3);
    pool.shutdown().unwrap();
}

fn a_dropped_pool_tells_those_who_wait<W: Workers>() {
    let pool = W::pool(1);
    let go = Event::new().unwrap();
    let (to, from) = Queue::bounded(8).unwrap().split();
    let tasks: Vec<_> = (0..3)
        .map(|x| pool.submit(waits, (go.clone(), to.clone(), x)).unwrap())
        .collect();
    std::thread::scope(|scope| {
        let waiting: Vec<_> = tasks
            .into_iter()
            .map(|task| scope.spawn(|| task.wait()))
            .collect();
        drop(pool);
        for thread in waiting {
            let error = thread.join().unwrap().unwrap_err();
            assert_eq!(error.kind(), &ErrorKind::Closed);
        }
    });
    go.set();
    drop((to, from));
    see_threads_off();
}

fn a_pool_of_nobody_is_refused<W: Workers>() {
    let error = W::builder().workers(0).start().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::NoWorker);
}

fn replaced_workers_never_stall_the_pool<W: Workers>() {
    let pool = W::builder().workers(2).max_tasks(7).start().unwrap();
    let sum: u64 = pool
        .map(|x: u64| Ok::<_, String>(x), 0..200)
        .unwrap()
        .map(|outcome| outcome.unwrap())
        .sum();
    assert_eq!(sum, 19_900);
    for x in 0..40_u64 {
        assert_eq!(pool.call(|x: u64| Ok::<_, String>(x), x).unwrap(), x);
    }
    let tasks: Vec<_> = (0..40_u64)
        .map(|x| pool.submit(|x: u64| Ok::<_, String>(x), x).unwrap())
        .collect();
    pool.shutdown().unwrap();
    for (x, task) in (0..).zip(tasks) {
        assert_eq!(task.wait().unwrap(), x);
    }
}
