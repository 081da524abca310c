//! Kills at the labelled steps of locks, semaphores, barriers and queues of tasks.

use integration_tests::{Test, tests};
use mp_queue::{ErrorKind, Mutex, RwLock};
use serde::{Deserialize, Serialize};
use tensormp::mp_queue;
use tensormp::prelude::*;

use crate::scene::{arm, audit};

pub(crate) const TESTS: &[Test] = &tests![
    a_process_killed_at_any_step_of_a_lock_gives_it_back,
    a_process_killed_at_a_barrier_breaks_it,
    a_consumer_killed_while_it_takes_a_task_leaves_the_task_or_counts_it_lost,
];

#[derive(Clone, Serialize, Deserialize)]
struct Locks {
    mutex: Mutex,
    lock: RwLock,
    semaphore: Semaphore,
}

fn uses(_rank: usize, (armed, locks): (String, Locks)) -> tensormp::Result<()> {
    arm(Some(&armed));
    for _ in 0..3 {
        drop(locks.mutex.lock().map_err(mp_queue::Error::from)?);
        drop(locks.lock.read().map_err(mp_queue::Error::from)?);
        drop(locks.lock.write().map_err(mp_queue::Error::from)?);
        drop(locks.semaphore.acquire()?);
    }
    Ok(())
}

fn a_process_killed_at_any_step_of_a_lock_gives_it_back() {
    let locks = Locks {
        mutex: Mutex::new().unwrap(),
        lock: RwLock::new().unwrap(),
        semaphore: Semaphore::new(1).unwrap(),
    };
    for (label, poisons) in [
        ("mutex.locked", true),
        // The same lock-free words, let go.
        ("mutex.unlocked", false),
        ("rwlock.reading", false),
        ("rwlock.claimed", false),
        ("rwlock.writing", true),
        ("semaphore.acquired", false),
    ] {
        for nth in [1, 3] {
            let armed = format!("{label}:{nth}=kill");
            let mut context = spawn(uses, (armed, locks.clone()), 1).unwrap();
            let pid = context.pids()[0];
            let error = context.join().unwrap_err().to_string();
            assert!(error.contains("SIGKILL"), "{label}: {error}");
            drop(context);
            // A context that failed ends waits; one that is new does not.
            let mut next = spawn(|_rank: usize, _locks: Locks| (), locks.clone(), 1).unwrap();
            next.join().unwrap();
            let mutex = locks
                .mutex
                .lock()
                .map(drop)
                .map_err(|error| error.kind().clone());
            let reads = locks
                .lock
                .read()
                .map(drop)
                .map_err(|error| error.kind().clone());
            let writes = locks
                .lock
                .write()
                .map(drop)
                .map_err(|error| error.kind().clone());
            let poisoned = Err(ErrorKind::Poisoned { pid });
            let of = |part: &str| {
                if poisons && label.starts_with(part) {
                    poisoned.clone()
                } else {
                    Ok(())
                }
            };
            assert_eq!((mutex, reads), (of("mutex"), of("rwlock")), "{label}");
            assert_eq!(writes, of("rwlock"), "{label}");
            locks.mutex.clear_poison();
            locks.lock.clear_poison();
            let permit = locks.semaphore.acquire().unwrap();
            let abandoned = label.starts_with("semaphore").then_some(pid);
            assert_eq!(permit.abandoned_by(), abandoned, "{label}");
            drop(permit);
            audit(1);
        }
    }
}

fn a_process_killed_at_a_barrier_breaks_it() {
    fn waits(_rank: usize, (armed, barrier): (String, Barrier)) -> tensormp::Result<()> {
        arm(Some(&armed));
        barrier.wait()?;
        Ok(())
    }
    let barrier = Barrier::new(3).unwrap();
    let armed = "barrier.arrived:1=kill".to_owned();
    let context = spawn(waits, (armed, barrier.clone()), 1).unwrap();
    let error = barrier.wait().unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::PeerFailed(_)), "{error}");
    assert!(error.to_string().contains("SIGKILL"), "{error}");
    drop(context);
    audit(1);
}

fn a_consumer_killed_while_it_takes_a_task_leaves_the_task_or_counts_it_lost() {
    fn works(_rank: usize, (armed, tasks): (String, JoinableQueue<u32>)) -> tensormp::Result<()> {
        arm(Some(&armed));
        while tasks.get().is_ok() {
            tasks.task_done()?;
        }
        Ok(())
    }
    for (label, lost) in [
        ("get.taken", 0),
        ("get.recorded", 0),
        ("task.counted", 0),
        ("get.released", 1),
    ] {
        let tasks = JoinableQueue::bounded(4).unwrap();
        for task in 0..4 {
            tasks.put(task).unwrap();
        }
        let armed = format!("{label}:2=kill");
        let mut context = spawn(works, (armed, tasks.clone()), 1).unwrap();
        let error = context.join().unwrap_err().to_string();
        assert!(error.contains("SIGKILL"), "{label}: {error}");
        drop(context);
        let mut left = Vec::new();
        while let Ok(task) = tasks.try_get() {
            left.push(task);
            tasks.task_done().unwrap();
        }
        left.sort_unstable();
        // The second was in its hands: handed back, or lost.
        let expected: &[u32] = if lost == 0 { &[1, 2, 3] } else { &[2, 3] };
        assert_eq!(left, expected, "{label}");
        assert!(tasks.is_idle(), "{label}");
        assert_eq!(tasks.stats().lost, lost, "{label}");
        audit(1);
    }
}
