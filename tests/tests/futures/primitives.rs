//! Events, semaphores, locks, barriers and tasks in hand, waited for by futures.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use integration_tests::{Test, kill, tests};
use mp_queue::{Condvar, ErrorKind, JoinableQueue, Mutex, RwLock, Semaphore};
use tensormp::mp_queue;
use tensormp::prelude::*;
use tokio::time::timeout;

use super::{poll_once, single, threaded};

pub(crate) const TESTS: &[Test] = &tests![
    an_event_set_in_another_process_wakes_all_futures,
    futures_never_have_more_permits_than_there_are,
    a_permit_of_a_killed_process_goes_to_a_future,
    a_lock_of_a_killed_process_comes_to_a_future_as_poisoned,
    a_lock_that_a_future_has_can_be_let_go_in_another_thread,
    readers_read_together_and_a_writer_writes_alone,
    a_future_that_gives_up_writing_lets_readers_in,
    a_writer_that_was_killed_leaves_the_lock_poisoned_for_futures,
    futures_wait_for_a_condition_that_another_process_changes,
    a_notification_of_a_dropped_future_goes_to_the_next,
    futures_and_threads_meet_at_a_barrier,
    a_future_that_is_given_up_has_not_arrived_at_a_barrier,
    a_killed_process_breaks_the_barrier_for_futures,
    futures_wait_until_all_tasks_are_done,
];

fn an_event_set_in_another_process_wakes_all_futures() {
    fn sets(_rank: usize, (go, event): (Event, Event)) -> tensormp::Result<()> {
        go.wait()?;
        event.set();
        Ok(())
    }
    let (go, event) = (Event::new().unwrap(), Event::new().unwrap());
    let mut context = spawn(sets, (go.clone(), event.clone()), 1).unwrap();
    threaded(2).block_on(async {
        let waiting: Vec<_> = (0..1_000)
            .map(|_| {
                let event = event.clone();
                tokio::spawn(async move { event.wait_async().await.unwrap() })
            })
            .collect();
        tokio::task::yield_now().await;
        go.set();
        for one in waiting {
            one.await.unwrap();
        }
    });
    context.join().unwrap();
}

fn futures_never_have_more_permits_than_there_are() {
    let semaphore = Semaphore::new(3).unwrap();
    let inside = Arc::new(AtomicUsize::new(0));
    threaded(3).block_on(async {
        let all: Vec<_> = (0..100)
            .map(|_| {
                let (semaphore, inside) = (semaphore.clone(), Arc::clone(&inside));
                tokio::spawn(async move {
                    for _ in 0..10 {
                        let permit = semaphore.acquire_async().await.unwrap();
                        assert!(inside.fetch_add(1, Ordering::SeqCst) < 3);
                        tokio::task::yield_now().await;
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(permit);
                    }
                })
            })
            .collect();
        for one in all {
            one.await.unwrap();
        }
    });
    assert_eq!(semaphore.available(), 3);
}

fn a_permit_of_a_killed_process_goes_to_a_future() {
    fn holds(_rank: usize, (semaphore, held): (Semaphore, Event)) -> tensormp::Result<()> {
        let _permit = semaphore.acquire()?;
        held.set();
        std::thread::sleep(Duration::from_secs(3600));
        Ok(())
    }
    let (semaphore, held) = (Semaphore::new(1).unwrap(), Event::new().unwrap());
    let context = spawn(holds, (semaphore.clone(), held.clone()), 1).unwrap();
    let pid = context.pids()[0];
    single().block_on(async {
        held.wait_async().await.unwrap();
        let (waiting, given_up) = (semaphore.clone(), semaphore.clone());
        let late = timeout(Duration::from_millis(5), given_up.acquire_async());
        assert!(late.await.is_err());
        let waiting = tokio::spawn(async move { waiting.acquire_async().await });
        tokio::task::yield_now().await;
        kill(pid);
        // Either the permit, or that a process of the context failed, whichever is known first.
        match waiting.await.unwrap() {
            Ok(permit) => assert_eq!(permit.abandoned_by(), Some(pid)),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::PeerFailed(_)), "{error}"),
        }
    });
}

fn a_lock_of_a_killed_process_comes_to_a_future_as_poisoned() {
    fn holds(_rank: usize, (mutex, held): (Mutex, Event)) -> tensormp::Result<()> {
        let _guard = mutex.lock();
        held.set();
        std::thread::sleep(Duration::from_secs(3600));
        Ok(())
    }
    let (mutex, held) = (Mutex::new().unwrap(), Event::new().unwrap());
    let context = spawn(holds, (mutex.clone(), held.clone()), 1).unwrap();
    let pid = context.pids()[0];
    single().block_on(async {
        held.wait_async().await.unwrap();
        kill(pid);
        let error = loop {
            match mutex.lock_async().await {
                // That it failed may be known before what it held is free.
                Err(error) if matches!(error.kind(), ErrorKind::PeerFailed(_)) => {}
                Err(error) => break error,
                Ok(_) => panic!("the lock of a dead process is not poisoned"),
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(error.kind(), &ErrorKind::Poisoned { pid });
        let mut guard = error.into_guard().unwrap();
        guard.clear_poison();
        drop(guard);
        assert!(mutex.lock_async().await.is_ok());
    });
}

fn a_lock_that_a_future_has_can_be_let_go_in_another_thread() {
    let mutex = Mutex::new().unwrap();
    let counter = Arc::new(AtomicUsize::new(0));
    threaded(4).block_on(async {
        let all: Vec<_> = (0..40)
            .map(|_| {
                let (mutex, counter) = (mutex.clone(), Arc::clone(&counter));
                tokio::spawn(async move {
                    for _ in 0..20 {
                        let guard = mutex.lock_async().await.unwrap();
                        let before = counter.load(Ordering::Relaxed);
                        tokio::task::yield_now().await;
                        counter.store(before + 1, Ordering::Relaxed);
                        drop(guard);
                    }
                })
            })
            .collect();
        for one in all {
            one.await.unwrap();
        }
    });
    assert_eq!(counter.load(Ordering::Relaxed), 800);
    assert!(!mutex.is_locked() && !mutex.is_poisoned());
}

fn readers_read_together_and_a_writer_writes_alone() {
    let lock = RwLock::with_readers_in(&Arena::current().unwrap(), 3).unwrap();
    let (readers, writers) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    threaded(3).block_on(async {
        let all: Vec<_> = (0..60)
            .map(|number| {
                let lock = lock.clone();
                let (readers, writers) = (Arc::clone(&readers), Arc::clone(&writers));
                tokio::spawn(async move {
                    for _ in 0..10 {
                        if number % 6 == 0 {
                            let _guard = lock.write_async().await.unwrap();
                            assert_eq!(writers.fetch_add(1, Ordering::SeqCst), 0);
                            assert_eq!(readers.load(Ordering::SeqCst), 0);
                            tokio::task::yield_now().await;
                            writers.fetch_sub(1, Ordering::SeqCst);
                        } else {
                            let _guard = lock.read_async().await.unwrap();
                            assert!(readers.fetch_add(1, Ordering::SeqCst) < 3);
                            assert_eq!(writers.load(Ordering::SeqCst), 0);
                            tokio::task::yield_now().await;
                            readers.fetch_sub(1, Ordering::SeqCst);
                        }
                    }
                })
            })
            .collect();
        for one in all {
            one.await.unwrap();
        }
    });
    assert!(lock.try_write().is_ok());
}

fn a_future_that_gives_up_writing_lets_readers_in() {
    let lock = RwLock::new().unwrap();
    let reading = lock.read().unwrap();
    let mut writes = Box::pin(lock.write_async());
    assert!(poll_once(&mut writes).0.is_pending());
    assert!(lock.try_read().is_err(), "a writer is next");
    let mut reads = Box::pin(lock.read_async());
    assert!(poll_once(&mut reads).0.is_pending());
    drop(writes);
    single().block_on(async { drop(reads.await.unwrap()) });
    drop(reading);
    assert!(lock.try_write().is_ok());
}

fn a_writer_that_was_killed_leaves_the_lock_poisoned_for_futures() {
    fn writes(_rank: usize, (lock, held): (RwLock, Event)) -> tensormp::Result<()> {
        let _guard = lock.write();
        held.set();
        std::thread::sleep(Duration::from_secs(3600));
        Ok(())
    }
    let (lock, held) = (RwLock::new().unwrap(), Event::new().unwrap());
    let context = spawn(writes, (lock.clone(), held.clone()), 1).unwrap();
    let pid = context.pids()[0];
    single().block_on(async {
        held.wait_async().await.unwrap();
        kill(pid);
        let error = loop {
            match lock.read_async().await {
                // That it failed may be known before what it held is free.
                Err(error) if matches!(error.kind(), ErrorKind::PeerFailed(_)) => {}
                Err(error) => break error,
                Ok(_) => panic!("the lock of a dead process is not poisoned"),
            }
            tokio::task::yield_now().await;
        };
        assert_eq!(error.kind(), &ErrorKind::Poisoned { pid });
        drop(error);
        let mut guard = lock.write_async().await.unwrap_err().into_guard().unwrap();
        guard.clear_poison();
        drop(guard);
        assert!(lock.read_async().await.is_ok());
    });
}

fn futures_wait_for_a_condition_that_another_process_changes() {
    type Shared = (Mutex, Condvar, AliasedTensor<u32>);
    fn changes(_rank: usize, (mutex, condvar, ready): Shared) -> tensormp::Result<()> {
        for number in 1..=20 {
            let _guard = mutex.lock()?;
            ready.store(&[0], number)?;
            condvar.notify_all();
        }
        Ok(())
    }
    let (mutex, condvar) = (Mutex::new().unwrap(), Condvar::new().unwrap());
    let ready = Tensor::<u32>::zeros(1).unwrap().alias();
    let shared = (mutex.clone(), condvar.clone(), ready.clone());
    let mut context = spawn(changes, shared, 1).unwrap();
    threaded(2).block_on(async {
        let waiting: Vec<_> = (0..50)
            .map(|_| {
                let (mutex, condvar, ready) = (mutex.clone(), condvar.clone(), ready.clone());
                tokio::spawn(async move {
                    let guard = mutex.lock_async().await.unwrap();
                    let not_yet = || ready.load(&[0]).unwrap() < 20;
                    let guard = condvar.wait_while_async(guard, not_yet).await.unwrap();
                    assert!(mutex.is_locked());
                    drop(guard);
                })
            })
            .collect();
        for one in waiting {
            one.await.unwrap();
        }
    });
    context.join().unwrap();
}

fn a_notification_of_a_dropped_future_goes_to_the_next() {
    let (mutex, condvar) = (Mutex::new().unwrap(), Condvar::new().unwrap());
    let mut first = Box::pin(condvar.wait_async(mutex.lock().unwrap()));
    assert!(poll_once(&mut first).0.is_pending());
    assert!(!mutex.is_locked(), "a waiting future has let the lock go");
    let busy = mutex.lock().unwrap();
    condvar.notify_one();
    // It has its turn, and waits for the lock.
    assert!(poll_once(&mut first).0.is_pending());
    let mut second = Box::pin(condvar.wait_async(busy));
    assert!(poll_once(&mut second).0.is_pending());
    drop(first);
    single().block_on(async { drop(second.await.unwrap()) });
    assert!(!mutex.is_locked());
}

fn futures_and_threads_meet_at_a_barrier() {
    const ROUNDS: usize = 100;
    fn walks(_rank: usize, barrier: Barrier) -> tensormp::Result<usize> {
        let mut last = 0;
        for _ in 0..ROUNDS {
            last += usize::from(barrier.wait()?);
        }
        Ok(last)
    }
    let barrier = Barrier::new(12).unwrap();
    let mut context = spawn(walks, barrier.clone(), 2).unwrap();
    let mut last = single().block_on(async {
        let walking: Vec<_> = (0..10)
            .map(|_| {
                let barrier = barrier.clone();
                tokio::spawn(async move {
                    let mut last = 0;
                    for _ in 0..ROUNDS {
                        last += usize::from(barrier.wait_async().await.unwrap());
                    }
                    last
                })
            })
            .collect();
        let mut last = 0;
        for one in walking {
            last += one.await.unwrap();
        }
        last
    });
    last += context.join().unwrap().iter().sum::<usize>();
    assert_eq!(last, ROUNDS, "one of each round is the last");
}

fn a_future_that_is_given_up_has_not_arrived_at_a_barrier() {
    let barrier = Barrier::new(3).unwrap();
    let mut waits = Box::pin(barrier.wait_async());
    assert!(poll_once(&mut waits).0.is_pending());
    assert_eq!(barrier.waiting(), 1);
    assert!(poll_once(&mut waits).0.is_pending());
    assert_eq!(barrier.waiting(), 1, "it arrives once");
    drop(waits);
    assert_eq!(barrier.waiting(), 0);
    let mut waits = Box::pin(barrier.wait_async());
    assert!(poll_once(&mut waits).0.is_pending());
    barrier.reset();
    let (answer, _) = poll_once(&mut waits);
    assert!(
        matches!(answer, std::task::Poll::Ready(Err(error)) if error.kind() == &ErrorKind::Reset)
    );
}

fn a_killed_process_breaks_the_barrier_for_futures() {
    fn sleeps(_rank: usize, _: Barrier) {
        std::thread::sleep(Duration::from_secs(3600));
    }
    let barrier = Barrier::new(20).unwrap();
    let context = spawn(sleeps, barrier.clone(), 1).unwrap();
    let pid = context.pids()[0];
    single().block_on(async {
        let waiting: Vec<_> = (0..10)
            .map(|_| {
                let barrier = barrier.clone();
                tokio::spawn(async move { barrier.wait_async().await.unwrap_err() })
            })
            .collect();
        tokio::task::yield_now().await;
        kill(pid);
        for one in waiting {
            let error = one.await.unwrap();
            let ErrorKind::PeerFailed(failure) = error.kind() else {
                panic!("{error}")
            };
            assert_eq!(failure.pid, pid);
            assert!(failure.cause.contains("SIGKILL"), "{failure}");
        }
    });
    assert_eq!(barrier.waiting(), 0);
}

fn futures_wait_until_all_tasks_are_done() {
    fn works(_rank: usize, tasks: JoinableQueue<u64>) -> tensormp::Result<()> {
        super::single().block_on(async {
            loop {
                match tasks.get_async().await {
                    Ok(_) => tasks.task_done()?,
                    Err(error) if error.is_closed() => return Ok(()),
                    Err(error) => return Err(error.into()),
                }
            }
        })
    }
    let tasks = JoinableQueue::bounded(4).unwrap();
    let mut context = spawn(works, tasks.clone(), 2).unwrap();
    single().block_on(async {
        for round in 1..=50 {
            let idle = tasks.clone();
            for number in 0..10 {
                tasks.put_async(number).await.unwrap();
            }
            // Beside one that waits for room.
            let idle = tokio::spawn(async move { idle.wait_idle_async().await.unwrap() });
            tasks.put_async(10).await.unwrap();
            tasks.wait_idle_async().await.unwrap();
            idle.await.unwrap();
            assert!(tasks.is_idle(), "in round {round}");
        }
    });
    tasks.close();
    context.join().unwrap();
    assert_eq!(tasks.stats().lost, 0);
}
