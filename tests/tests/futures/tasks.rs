//! A pool's tasks as futures.

use std::time::Duration;

use integration_tests::{Test, kill, tests};
use mp_queue::ErrorKind;
use tensormp::mp_queue;
use tensormp::prelude::*;
use tokio::time::timeout;

use super::{single, threaded, threads};

pub(crate) const TESTS: &[Test] = &tests![
    hundreds_of_tasks_are_awaited_without_a_thread_for_each,
    tasks_are_awaited_beside_threads_that_wait,
    a_task_that_is_awaited_fails_as_any_other,
    a_task_that_is_given_up_can_be_awaited_again,
    a_task_dropped_while_awaited_runs_and_nobody_hears_of_it,
    a_dropped_pool_ends_what_is_awaited,
    a_waker_that_comes_back_to_the_pool_finds_no_lock_held,
];

fn double(x: u64) -> Result<u64, String> {
    Ok(2 * x)
}

fn hundreds_of_tasks_are_awaited_without_a_thread_for_each() {
    let pool = Pool::new(2).unwrap();
    let before = threads();
    single().block_on(async {
        let mut tasks = Vec::new();
        for x in 0..1_000 {
            let task = pool.submit(double, x).unwrap();
            tasks.push(tokio::spawn(async move { (x, task.await.unwrap()) }));
        }
        for task in tasks {
            let (x, doubled) = task.await.unwrap();
            assert_eq!(doubled, 2 * x);
        }
    });
    assert!(threads() <= before + 1, "{} threads", threads());
    pool.shutdown().unwrap();
}

fn tasks_are_awaited_beside_threads_that_wait() {
    let pool = Pool::builder().workers(2).threads().start().unwrap();
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                for x in 0..300 {
                    assert_eq!(pool.call(double, x).unwrap(), 2 * x);
                }
            });
        }
        threaded(2).block_on(async {
            let mut tasks = Vec::new();
            for x in 0..600 {
                let task = pool.submit(double, x).unwrap();
                tasks.push(tokio::spawn(async move { (x, task.await.unwrap()) }));
            }
            for task in tasks {
                let (x, doubled) = task.await.unwrap();
                assert_eq!(doubled, 2 * x);
            }
        });
    });
    pool.shutdown().unwrap();
}

fn a_task_that_is_awaited_fails_as_any_other() {
    let pool = Pool::new(1).unwrap();
    single().block_on(async {
        let raised = pool.submit(|_: ()| Err::<(), _>("no"), ()).unwrap().await;
        assert!(matches!(
            raised.unwrap_err().kind(),
            ErrorKind::TaskRaised { .. }
        ));
        let panicked = pool
            .submit(|_: ()| -> Result<(), String> { panic!("oh") }, ())
            .unwrap();
        assert!(matches!(
            panicked.await.unwrap_err().kind(),
            ErrorKind::TaskPanicked { .. }
        ));
        let lost = pool
            .submit(|_: ()| kill(std::process::id()), ())
            .unwrap()
            .await;
        assert!(matches!(
            lost.unwrap_err().kind(),
            ErrorKind::TaskLost { .. }
        ));
        let cancelled = pool.submit(|_: ()| std::thread::sleep(Duration::from_secs(3600)), ());
        let cancelled = cancelled.unwrap();
        assert!(cancelled.cancel());
        assert!(matches!(
            cancelled.await.unwrap_err().kind(),
            ErrorKind::TaskCancelled { .. }
        ));
        assert_eq!(pool.submit(double, 4).unwrap().await.unwrap(), 8);
    });
    pool.shutdown().unwrap();
}

fn a_task_that_is_given_up_can_be_awaited_again() {
    fn waits(event: Event) -> tensormp::Result<u32> {
        event.wait()?;
        Ok(7)
    }
    let pool = Pool::new(1).unwrap();
    let event = Event::new().unwrap();
    single().block_on(async {
        let mut task = pool.submit(waits, event.clone()).unwrap();
        for _ in 0..3 {
            assert!(timeout(Duration::from_millis(2), &mut task).await.is_err());
        }
        event.set();
        assert_eq!((&mut task).await.unwrap(), 7);
        // It is given once; asking again is an answer, not a hang.
        assert!(task.await.unwrap_err().is_closed());
    });
    pool.shutdown().unwrap();
}

fn a_task_dropped_while_awaited_runs_and_nobody_hears_of_it() {
    fn sets(event: Event) {
        event.set();
    }
    let pool = Pool::new(1).unwrap();
    let event = Event::new().unwrap();
    single().block_on(async {
        let task = pool.submit(sets, event.clone()).unwrap();
        let _ = timeout(Duration::ZERO, task).await;
        event.wait_async().await.unwrap();
        assert_eq!(pool.submit(double, 1).unwrap().await.unwrap(), 2);
    });
    pool.shutdown().unwrap();
}

fn a_dropped_pool_ends_what_is_awaited() {
    let pool = Pool::new(1).unwrap();
    single().block_on(async {
        let sleeps = pool.submit(|_: ()| std::thread::sleep(Duration::from_secs(3600)), ());
        let queued = pool.submit(double, 1).unwrap();
        let sleeps = tokio::spawn(async move { sleeps.unwrap().await });
        let queued = tokio::spawn(queued);
        tokio::task::yield_now().await;
        drop(pool);
        for error in [
            sleeps.await.unwrap().unwrap_err(),
            queued.await.unwrap().unwrap_err(),
        ] {
            assert!(error.is_closed(), "{error}");
        }
    });
}

/// A waker that asks the pool for something in the middle of being woken.
struct Nosy(std::sync::Arc<Pool>, std::thread::Thread);

impl std::task::Wake for Nosy {
    fn wake(self: std::sync::Arc<Self>) {
        assert!(self.0.pids().len() <= 1);
        let _ = self.0.submit(double, 1).unwrap();
        self.1.unpark();
    }
}

fn a_waker_that_comes_back_to_the_pool_finds_no_lock_held() {
    let pool = std::sync::Arc::new(Pool::builder().workers(1).threads().start().unwrap());
    let nosy = std::sync::Arc::new(Nosy(pool.clone(), std::thread::current()));
    let waker = nosy.into();
    let mut cx = std::task::Context::from_waker(&waker);
    for x in 0..100 {
        let mut task = std::pin::pin!(pool.submit(double, x).unwrap());
        let doubled = loop {
            match task.as_mut().poll(&mut cx) {
                std::task::Poll::Ready(doubled) => break doubled.unwrap(),
                std::task::Poll::Pending => std::thread::park(),
            }
        };
        assert_eq!(doubled, 2 * x);
    }
}
