//! Events and barriers across processes.

use std::time::Duration;

use integration_tests::{Test, kill, tests};
use mp_queue::ErrorKind;
use tensormp::mp_queue;
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    an_event_set_in_one_process_wakes_all_others,
    an_event_can_be_cleared_and_set_again,
    an_event_and_a_barrier_of_an_arena_that_everybody_else_has_left_still_work,
    an_event_that_nobody_sets_says_when_the_time_is_over,
    a_barrier_lets_nobody_ahead,
    a_killed_process_ends_the_waits_at_events_and_barriers,
];

fn an_event_set_in_one_process_wakes_all_others() {
    fn waits(_rank: usize, (go, ready): (Event, Sender<()>)) -> tensormp::Result<bool> {
        ready.put(())?;
        go.wait()?;
        Ok(go.is_set())
    }
    let go = Event::new().unwrap();
    let (sender, ready) = Queue::bounded(4).unwrap().split();
    let mut context = spawn(waits, (go.clone(), sender), 4).unwrap();
    for _ in 0..4 {
        ready.get().unwrap();
    }
    go.set();
    assert_eq!(context.join().unwrap(), [true; 4]);
}

fn an_event_can_be_cleared_and_set_again() {
    fn answers(_rank: usize, (ping, pong): (Event, Event)) -> tensormp::Result<()> {
        for _ in 0..500 {
            ping.wait()?;
            ping.clear();
            pong.set();
        }
        Ok(())
    }
    let (ping, pong) = (Event::new().unwrap(), Event::new().unwrap());
    let mut context = spawn(answers, (ping.clone(), pong.clone()), 1).unwrap();
    for _ in 0..500 {
        ping.set();
        pong.wait().unwrap();
        pong.clear();
    }
    context.join().unwrap();
    assert!(!ping.is_set() && !pong.is_set());
}

/// What a handle names is there as long as the handle is: so there is nothing that `set` and `reset` could fail by.
fn an_event_and_a_barrier_of_an_arena_that_everybody_else_has_left_still_work() {
    let arena = Arena::builder().create().unwrap();
    let event = Event::new_in(&arena).unwrap();
    let barrier = Barrier::new_in(&arena, 1).unwrap();
    drop(arena);
    event.set();
    assert!(event.is_set());
    event.wait().unwrap();
    event.clear();
    assert!(!event.is_set());
    barrier.wait().unwrap();
    barrier.reset();
    barrier.wait().unwrap();
}

fn an_event_that_nobody_sets_says_when_the_time_is_over() {
    let short = Duration::from_millis(20);
    let error = Event::new().unwrap().wait_timeout(short).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::TimedOut);
    let error = Barrier::new(2).unwrap().wait_timeout(short).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::TimedOut);
}

fn a_barrier_lets_nobody_ahead() {
    const ROUNDS: usize = 200;
    fn walks(_rank: usize, (barrier, log): (Barrier, Sender<usize>)) -> tensormp::Result<usize> {
        let mut last = 0;
        for round in 0..ROUNDS {
            log.put(round)?;
            last += usize::from(barrier.wait()?);
        }
        Ok(last)
    }
    let barrier = Barrier::new(3).unwrap();
    let (sender, log) = Queue::bounded(3).unwrap().split();
    let mut context = spawn(walks, (barrier, sender), 3).unwrap();
    // Whoever writes down a round has passed the barrier of the one before, and so has everyone arrived there.
    for round in 0..ROUNDS {
        for _ in 0..3 {
            assert_eq!(log.get().unwrap(), round);
        }
    }
    let last = context.join().unwrap();
    assert_eq!(
        last.iter().sum::<usize>(),
        ROUNDS,
        "one is the last of each round"
    );
}

fn a_killed_process_ends_the_waits_at_events_and_barriers() {
    fn never(_rank: usize, (_event, _barrier, ready): (Event, Barrier, Event)) {
        ready.set();
        loop {
            std::thread::park();
        }
    }
    let (event, barrier, ready) = (
        Event::new().unwrap(),
        Barrier::new(2).unwrap(),
        Event::new().unwrap(),
    );
    let shared = (event.clone(), barrier.clone(), ready.clone());
    let context = spawn(never, shared, 1).unwrap();
    ready.wait().unwrap();
    kill(context.pids()[0]);
    for error in [event.wait().unwrap_err(), barrier.wait().unwrap_err()] {
        let ErrorKind::PeerFailed(failure) = error.kind() else {
            panic!("{error}")
        };
        assert_eq!((failure.rank, failure.pid), (0, context.pids()[0]));
        assert!(error.to_string().contains("SIGKILL"), "{error}");
    }
}
