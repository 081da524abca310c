//! Workers that die: only their own task fails, with the cause, and the pool goes on.

use integration_tests::{Test, kill, pidfd, resume, stop, tests, wait_for_end, wait_until_asleep};
use tensormp::mp_queue::{Error, ErrorKind};
use tensormp::prelude::*;
use tensormp::shm_core::failpoint;
use tensormp::spawn_api;

pub(crate) const TESTS: &[Test] = &tests![
    a_worker_that_is_killed_fails_only_its_own_task,
    a_worker_that_aborts_exits_or_is_ended_fails_its_task_with_the_cause,
    a_worker_that_is_killed_from_outside_fails_its_task_and_is_replaced,
    what_a_dead_worker_had_not_begun_is_done_by_others,
    a_map_survives_its_workers,
    a_lost_task_is_tried_again_as_often_as_it_may,
    a_task_with_an_exclusive_tensor_is_not_tried_again_and_says_so,
    an_idle_worker_that_is_killed_costs_nothing,
    workers_that_die_at_their_start_end_in_an_error,
    a_crash_loop_ends_the_waits_of_all,
    a_state_that_cannot_be_made_ends_the_worker_with_the_reason,
    a_pool_recovers_when_workers_come_up_again,
    cancelling_what_runs_kills_that_worker_only,
    a_stopped_worker_delays_its_own_task_only,
    a_killed_worker_gives_back_the_tensors_it_held,
    workers_die_with_their_pool,
    idle_workers_of_a_dropped_pool_are_not_killed_over_giving_back,
];

fn dies_at((x, victim): (u32, u32)) -> tensormp::Result<u32> {
    if x == victim {
        kill(std::process::id());
        // The signal may take a moment.
        std::thread::park();
    }
    Ok(x)
}

fn lost(error: &Error) -> (u32, &str) {
    match error.kind() {
        ErrorKind::TaskLost { pid, cause, .. } => (*pid, cause),
        _ => panic!("{error:?}"),
    }
}

fn a_worker_that_is_killed_fails_only_its_own_task() {
    let pool = Pool::new(2).unwrap();
    let before = pool.pids();
    let tasks: Vec<_> = (0..40)
        .map(|x| pool.submit(dies_at, (x, 17)).unwrap())
        .collect();
    for (x, task) in (0..).zip(tasks) {
        match task.wait() {
            Ok(y) => assert_eq!(y, x),
            Err(error) => {
                assert_eq!(x, 17);
                let (pid, cause) = lost(&error);
                assert!(
                    before.contains(&pid) && cause.contains("SIGKILL"),
                    "{error}"
                );
                // By its name and pid, as wherever a process is named; it is alone in its context, whose number 0 says nothing.
                let rank = before.iter().position(|&other| other == pid).unwrap();
                let name = format!("process \"worker.{rank}\" (pid {pid}) ");
                assert!(cause.starts_with(&name), "{cause}");
                // What `spawn` says is below.
                let source = std::error::Error::source(&error).unwrap();
                let process = source.downcast_ref::<spawn_api::Error>().unwrap();
                assert_eq!(process.worker().unwrap().pid, pid);
            }
        }
    }
    // It refills.
    while pool.pids().len() < 2 {
        std::thread::yield_now();
    }
    assert_ne!(pool.pids(), before);
    pool.shutdown().unwrap();
}

fn a_worker_that_aborts_exits_or_is_ended_fails_its_task_with_the_cause() {
    fn ends(how: u8) -> Result<(), String> {
        match how {
            0 => std::process::abort(),
            5 => panic!("harmless"),
            1 => std::process::exit(0),
            2 => std::process::exit(3),
            // A panic that may not unwind: as with `panic = "abort"`.
            3 => {
                extern "C" fn never() {
                    panic!("no way out")
                }
                never();
            }
            _ => {}
        }
        Ok(())
    }
    let pool = Pool::new(1).unwrap();
    let causes = [
        "SIGABRT",
        "exited with code 0",
        "exited with code 3",
        "no way out",
    ];
    for (how, cause) in (0..).zip(causes) {
        // A panic that was caught, and told as that task's error, has nothing to do with the end of a later one.
        let caught = pool.call(ends, 5).unwrap_err();
        assert!(matches!(caught.kind(), ErrorKind::TaskPanicked { .. }));
        let error = pool.call(ends, how).unwrap_err();
        let (_, told) = lost(&error);
        assert!(
            told.contains(cause) && !told.contains("harmless"),
            "{error}"
        );
        pool.call(ends, 9).unwrap();
    }
}

fn a_worker_that_is_killed_from_outside_fails_its_task_and_is_replaced() {
    // As the OOM killer does.
    fn waits(started: Event) -> tensormp::Result<()> {
        started.set();
        loop {
            std::thread::park();
        }
    }
    let pool = Pool::new(1).unwrap();
    let started = Event::new().unwrap();
    let task = pool.submit(waits, started.clone()).unwrap();
    started.wait().unwrap();
    kill(pool.pids()[0]);
    let error = task.wait().unwrap_err();
    assert!(lost(&error).1.contains("SIGKILL"), "{error}");
    assert_eq!(pool.call(|x: u8| Ok::<_, String>(x), 1).unwrap(), 1);
}

fn what_a_dead_worker_had_not_begun_is_done_by_others() {
    fn slow((go, dies, tensor): (Event, bool, Tensor<u32>)) -> tensormp::Result<Tensor<u32>> {
        go.wait()?;
        if dies {
            kill(std::process::id());
            std::thread::park();
        }
        Ok(tensor)
    }
    // All of them are in the lane of the one worker, with tensors that only one process may have.
    let pool = Pool::builder().workers(1).prefetch(20).start().unwrap();
    let go = Event::new().unwrap();
    let tasks: Vec<_> = (0..12)
        .map(|x| {
            let tensor = Tensor::full(100, x).unwrap();
            pool.submit(slow, (go.clone(), x == 0 || x == 5, tensor))
                .unwrap()
        })
        .collect();
    go.set();
    for (x, task) in (0..).zip(tasks) {
        match task.wait() {
            Ok(tensor) => assert_eq!(tensor.as_slice(), [x; 100]),
            Err(error) => {
                assert!(x == 0 || x == 5, "{x}: {error}");
                lost(&error);
            }
        }
    }
}

fn a_map_survives_its_workers() {
    fn risky((x, shared): (u32, SharedTensor<u32>)) -> tensormp::Result<u32> {
        if x % 50 == 49 {
            kill(std::process::id());
            std::thread::park();
        }
        Ok(x + shared.as_slice()[0])
    }
    let pool = Pool::new(2).unwrap();
    let shared = Tensor::full(10, 1000_u32).unwrap().freeze();
    let items = (0..300).map(|x| (x, shared.clone()));
    let mut failed = 0;
    for (x, outcome) in (0..).zip(pool.map(risky, items).unwrap()) {
        match outcome {
            Ok(y) => assert_eq!(y, x + 1000),
            Err(error) => {
                assert_eq!(x % 50, 49, "{error}");
                lost(&error);
                failed += 1;
            }
        }
    }
    assert_eq!(failed, 6);
}

fn a_lost_task_is_tried_again_as_often_as_it_may() {
    fn third((attempts, x): (Queue<u32>, u32)) -> tensormp::Result<u32> {
        attempts.put(x)?;
        if attempts.len() < 3 {
            kill(std::process::id());
            std::thread::park();
        }
        Ok(x)
    }
    let attempts = Queue::bounded(10).unwrap();
    let pool = Pool::builder().workers(1).retry(2).start().unwrap();
    assert_eq!(pool.call(third, (attempts.clone(), 7)).unwrap(), 7);
    assert_eq!(attempts.len(), 3);
    drop(pool);

    let attempts = Queue::bounded(10).unwrap();
    let pool = Pool::builder().workers(1).retry(1).start().unwrap();
    let error = pool.call(third, (attempts.clone(), 7)).unwrap_err();
    assert!(error.to_string().contains("attempt 2"), "{error}");
    assert_eq!(attempts.len(), 2);
}

fn a_task_with_an_exclusive_tensor_is_not_tried_again_and_says_so() {
    fn dies(_tensor: Tensor<u8>) -> tensormp::Result<()> {
        kill(std::process::id());
        loop {
            std::thread::park();
        }
    }
    let pool = Pool::builder().workers(1).retry(3).start().unwrap();
    let error = pool.call(dies, Tensor::zeros(9).unwrap()).unwrap_err();
    assert!(
        error.to_string().contains("only one process may have"),
        "{error}"
    );
}

fn an_idle_worker_that_is_killed_costs_nothing() {
    let pool = Pool::new(2).unwrap();
    for round in 0..5_u32 {
        for pid in pool.pids() {
            let process = pidfd(pid);
            kill(pid);
            wait_for_end(&process);
        }
        assert_eq!(
            pool.call(|x: u32| Ok::<_, String>(x), round).unwrap(),
            round
        );
    }
}

fn workers_that_die_at_their_start_end_in_an_error() {
    let pool = Pool::builder()
        .workers(2)
        .init(|rank| -> u32 { panic!("no model for {rank}") })
        .start()
        .unwrap();
    let error = pool.call_with(|_: &mut u32, ()| (), ()).unwrap_err();
    let ErrorKind::CrashLoop { crashes, cause } = error.kind() else {
        panic!("{error:?}")
    };
    assert!(*crashes >= 5 && cause.contains("no model for"), "{error}");
    // It says so again, and at once.
    let error = pool.call(|()| (), ()).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::CrashLoop { .. }),
        "{error}"
    );
    assert!(pool.shutdown().is_err());
}

fn a_state_that_cannot_be_made_ends_the_worker_with_the_reason() {
    for threads in [false, true] {
        let builder = Pool::builder().workers(1);
        let builder = if threads { builder.threads() } else { builder };
        let pool = builder
            .try_init(|rank| Err::<u32, _>(format!("no weights for {rank}")))
            .start()
            .unwrap();
        let error = pool
            .call_with(|state: &mut u32, ()| Ok::<_, String>(*state), ())
            .unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::CrashLoop { .. }),
            "{error}"
        );
        assert!(error.to_string().contains("no weights for 0"), "{error}");
    }
    let pool = Pool::builder()
        .workers(1)
        .try_init(|rank| Ok::<_, String>(rank + 7))
        .start()
        .unwrap();
    let state = pool.call_with(|state: &mut usize, ()| Ok::<_, String>(*state), ());
    assert_eq!(state.unwrap(), 7);
}

fn a_crash_loop_ends_the_waits_of_all() {
    let pool = Pool::builder()
        .workers(1)
        .crash_limit(2)
        .init(|_| -> () { std::process::exit(4) })
        .start()
        .unwrap();
    let tasks: Vec<_> = (0..10).map(|_| pool.submit(|()| (), ())).collect();
    for task in tasks {
        let error = task.map(|task| task.wait()).unwrap().unwrap_err();
        assert!(error.to_string().contains("exited with code 4"), "{error}");
    }
    let outcomes: Vec<_> = pool.map(|_: u8| (), 0..20).unwrap().collect();
    assert_eq!(outcomes.len(), 20);
    assert!(outcomes.iter().all(|outcome| outcome.is_err()));
}

fn a_pool_recovers_when_workers_come_up_again() {
    // More deaths than a crash loop would be, but each of them costs a task.
    let pool = Pool::builder().workers(1).crash_limit(2).start().unwrap();
    for x in 0..6 {
        lost(&pool.call(dies_at, (x, x)).unwrap_err());
    }
    assert_eq!(pool.call(dies_at, (1, 2)).unwrap(), 1);
}

fn cancelling_what_runs_kills_that_worker_only() {
    fn hangs((started, x): (Event, u32)) -> tensormp::Result<u32> {
        started.set();
        if x == 0 {
            loop {
                std::thread::park();
            }
        }
        Ok(x)
    }
    let pool = Pool::builder().workers(2).prefetch(10).start().unwrap();
    let started = Event::new().unwrap();
    let hanging = pool.submit(hangs, (started.clone(), 0)).unwrap();
    started.wait().unwrap();
    // Some of these lie behind it in the same lane.
    let others: Vec<_> = (1..9)
        .map(|x| pool.submit(hangs, (started.clone(), x)).unwrap())
        .collect();
    let before = pool.pids();
    assert!(hanging.cancel());
    let error = hanging.wait().unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::TaskCancelled { .. }),
        "{error}"
    );
    for (x, task) in (1..).zip(others) {
        assert_eq!(task.wait().unwrap(), x);
    }
    let survivors = || {
        pool.pids()
            .iter()
            .filter(|pid| before.contains(pid))
            .count()
    };
    while survivors() == 2 || pool.pids().len() < 2 {
        std::thread::yield_now();
    }
    assert_eq!(survivors(), 1);
}

fn a_stopped_worker_delays_its_own_task_only() {
    let pool = Pool::new(2).unwrap();
    let add = |x: u32| Ok::<_, String>(x + 1);
    pool.call(add, 0).unwrap();
    let stopped = pool.pids()[0];
    stop(stopped);
    let first = pool.submit(add, 1).unwrap();
    let second = pool.submit(add, 2).unwrap();
    // One of them is with the stopped worker; the other's is done as soon as the other worker gets to it.
    while !first.is_done() && !second.is_done() {
        std::thread::yield_now();
    }
    resume(stopped);
    assert_eq!((first.wait().unwrap(), second.wait().unwrap()), (2, 3));
}

fn a_killed_worker_gives_back_the_tensors_it_held() {
    fn dies(tensors: Vec<Tensor<u8>>) -> tensormp::Result<()> {
        let _more: Vec<_> = (0..10).map(|_| Tensor::<u8>::zeros(1 << 16)).collect();
        assert_eq!(tensors.len(), 5);
        kill(std::process::id());
        loop {
            std::thread::park();
        }
    }
    let pool = Pool::new(1).unwrap();
    pool.call(|()| (), ()).unwrap();
    let before = Arena::current().unwrap().stats().blocks;
    for _ in 0..3 {
        let tensors = (0..5).map(|_| Tensor::zeros(1 << 20).unwrap()).collect();
        lost(&pool.call(dies, tensors).unwrap_err());
    }
    pool.call(|()| (), ()).unwrap();
    assert_eq!(Arena::current().unwrap().stats().blocks, before);
}

fn workers_die_with_their_pool() {
    fn hangs(started: Event) -> tensormp::Result<()> {
        started.set();
        loop {
            std::thread::park();
        }
    }
    let pool = Pool::new(2).unwrap();
    let started = Event::new().unwrap();
    let task = pool.submit(hangs, started.clone()).unwrap();
    started.wait().unwrap();
    let processes: Vec<_> = pool.pids().into_iter().map(pidfd).collect();
    pool.kill();
    for process in &processes {
        wait_for_end(process);
    }
    assert_eq!(task.wait().unwrap_err().kind(), &ErrorKind::Closed);
}

fn idle_workers_of_a_dropped_pool_are_not_killed_over_giving_back() {
    // Each would be killed by itself where it has cleared its record of a reference and has not yet counted it off: that
    // leaks one, and the look around after the test would find it.
    for _ in 0..10 {
        let pool = Pool::new(2).unwrap();
        for _ in 0..2 {
            let arm = |()| failpoint::arm(Some("block.drop.cleared=kill"));
            pool.call(arm, ()).unwrap();
        }
        pool.pids().into_iter().for_each(wait_until_asleep);
    }
}
