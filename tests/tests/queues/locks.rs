//! Mutexes, semaphores, locks for readers and a writer, and conditions across processes.

use std::time::Duration;

use integration_tests::{Test, kill, see_stopped, stop, tests};
use mp_queue::{BoundedSemaphore, Condvar, ErrorKind, Mutex, RLock, RwLock};
use tensormp::mp_queue;
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    a_mutex_lets_one_at_a_time,
    a_killed_holder_poisons_its_mutex_for_the_next_one_and_hangs_nobody,
    a_panic_poisons_a_mutex,
    a_stopped_holder_is_named_by_those_who_wait,
    an_rlock_is_its_threads_and_can_be_taken_again,
    a_semaphore_lets_as_many_at_a_time_as_it_has_permits,
    the_permit_of_a_killed_process_comes_back_with_its_name,
    permits_can_be_used_up_and_made_elsewhere,
    a_writer_sees_no_reader_and_no_other_writer,
    a_killed_reader_is_gone_and_a_killed_writer_poisons,
    a_writer_that_gives_up_lets_the_readers_in,
    a_condition_is_waited_for_without_the_lock,
    a_notifier_that_is_killed_hangs_no_waiter,
    a_broken_barrier_can_be_reset_for_those_that_are_left,
    a_lock_goes_through_a_queue,
];

const SHORT: Duration = Duration::from_millis(30);

/// Adds to a number by a load and a store, which loses additions if two do it at once.
fn add(number: &AliasedTensor<u64>) {
    let seen = number.load(&[0]).unwrap();
    if seen.is_multiple_of(64) {
        std::thread::yield_now();
    }
    number.store(&[0], seen + 1).unwrap();
}

fn number() -> AliasedTensor<u64> {
    Tensor::zeros(1).unwrap().alias()
}

fn a_mutex_lets_one_at_a_time() {
    fn adds(_rank: usize, (mutex, number): (Mutex, AliasedTensor<u64>)) -> tensormp::Result<()> {
        for _ in 0..2_000 {
            let _guard = mutex.lock().map_err(mp_queue::Error::from)?;
            add(&number);
        }
        Ok(())
    }
    let (mutex, number) = (Mutex::new().unwrap(), number());
    let mut context = spawn(adds, (mutex.clone(), number.clone()), 4).unwrap();
    context.join().unwrap();
    assert_eq!(number.load(&[0]).unwrap(), 8_000);
    assert!(!mutex.is_locked() && !mutex.is_poisoned());
}

/// Holds what it got until it is killed.
fn hold_for_ever<G>(got: G, ready: &Event) -> ! {
    ready.set();
    loop {
        std::thread::park();
        // Never reached, and so never dropped.
        let _ = &got;
    }
}

fn holds_mutex(_rank: usize, (mutex, ready): (Mutex, Sender<Event>)) -> tensormp::Result<()> {
    let event = Event::new()?;
    let guard = mutex.lock().map_err(mp_queue::Error::from)?;
    ready.put(event.clone())?;
    hold_for_ever(guard, &event)
}

/// A process that holds the mutex, in a context that has nothing else; its pid.
fn with_holder(mutex: &Mutex) -> SpawnContext<()> {
    let (sender, ready) = Queue::bounded(1).unwrap().split();
    let context = spawn(holds_mutex, (mutex.clone(), sender), 1).unwrap();
    ready.get().unwrap().wait().unwrap();
    context
}

fn a_killed_holder_poisons_its_mutex_for_the_next_one_and_hangs_nobody() {
    let mutex = Mutex::new().unwrap();
    let waits = |mutex: &Mutex| {
        let mutex = mutex.clone();
        std::thread::spawn(move || mutex.lock().map(drop).map_err(mp_queue::Error::from))
    };
    let context = with_holder(&mutex);
    let pid = context.pids()[0];
    let error = mutex.try_lock().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Busy);
    assert!(error.to_string().contains(&format!("pid {pid}")), "{error}");
    let waiter = waits(&mutex);
    kill(pid);
    // That the context has failed as well is not what a waiter is told: the lock is there, and its guard in the error.
    let error = waiter.join().unwrap().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Poisoned { pid }, "{error}");
    drop(context);
    // As long as nobody puts it right, each holder is told.
    for _ in 0..2 {
        let error = mutex.lock().unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Poisoned { pid });
        drop(error.into_guard().unwrap());
    }
    let mut guard = mutex.lock().unwrap_err().into_guard().unwrap();
    guard.clear_poison();
    drop(guard);
    drop(mutex.lock().unwrap());
}

fn a_panic_poisons_a_mutex() {
    let mutex = Mutex::new().unwrap();
    let other = mutex.clone();
    let panicked = std::thread::spawn(move || {
        let _guard = other.lock().unwrap();
        std::panic::resume_unwind(Box::new("on purpose"));
    });
    assert!(panicked.join().is_err());
    assert!(mutex.is_poisoned());
    let pid = std::process::id();
    assert_eq!(
        mutex.lock().unwrap_err().kind(),
        &ErrorKind::Poisoned { pid }
    );
    mutex.clear_poison();
    assert!(mutex.lock().is_ok());
}

fn a_stopped_holder_is_named_by_those_who_wait() {
    let mutex = Mutex::new().unwrap();
    let context = with_holder(&mutex);
    let pid = context.pids()[0];
    stop(pid);
    see_stopped(pid);
    let error = mutex.lock_timeout(SHORT).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::TimedOut);
    let text = error.to_string();
    assert!(
        text.contains(&format!("pid {pid}")) && text.contains("which is stopped"),
        "{text}"
    );
    kill(pid);
    drop(context);
    assert_eq!(
        mutex.lock().unwrap_err().kind(),
        &ErrorKind::Poisoned { pid }
    );
}

fn an_rlock_is_its_threads_and_can_be_taken_again() {
    fn adds(_rank: usize, (lock, number): (RLock, AliasedTensor<u64>)) -> tensormp::Result<()> {
        for _ in 0..500 {
            let _outer = lock.lock().map_err(mp_queue::Error::from)?;
            let _inner = lock.lock().map_err(mp_queue::Error::from)?;
            add(&number);
        }
        Ok(())
    }
    let (lock, number) = (RLock::new().unwrap(), number());
    let mut context = spawn(adds, (lock.clone(), number.clone()), 3).unwrap();
    context.join().unwrap();
    assert_eq!(number.load(&[0]).unwrap(), 1_500);
    let outer = lock.lock().unwrap();
    let inner = lock.lock().unwrap();
    let busy = std::thread::scope(|scope| {
        scope
            .spawn(|| lock.try_lock().map(drop).unwrap_err().kind().clone())
            .join()
            .unwrap()
    });
    assert_eq!(busy, ErrorKind::Busy, "another thread of the same process");
    drop(outer);
    assert!(lock.is_locked());
    drop(inner);
    assert!(!lock.is_locked());
}

fn a_semaphore_lets_as_many_at_a_time_as_it_has_permits() {
    fn enters(
        _rank: usize,
        (semaphore, inside): (Semaphore, AliasedTensor<u64>),
    ) -> tensormp::Result<u64> {
        let mut most = 0;
        for _ in 0..300 {
            let permit = semaphore.acquire()?;
            most = most.max(inside.fetch_add(&[0], 1)? + 1);
            std::thread::yield_now();
            inside.fetch_sub(&[0], 1)?;
            drop(permit);
        }
        Ok(most)
    }
    let (semaphore, inside) = (Semaphore::new(2).unwrap(), number());
    let mut context = spawn(enters, (semaphore.clone(), inside.clone()), 4).unwrap();
    let most = context.join().unwrap().iter().copied().max();
    assert!(most <= Some(2), "{most:?} at once");
    assert_eq!((semaphore.available(), inside.load(&[0]).unwrap()), (2, 0));
}

fn the_permit_of_a_killed_process_comes_back_with_its_name() {
    fn holds(_rank: usize, (semaphore, ready): (BoundedSemaphore, Event)) -> tensormp::Result<()> {
        let permits = [semaphore.acquire()?, semaphore.acquire()?];
        hold_for_ever(permits, &ready)
    }
    let (semaphore, ready) = (BoundedSemaphore::new(2).unwrap(), Event::new().unwrap());
    let context = spawn(holds, (semaphore.clone(), ready.clone()), 1).unwrap();
    ready.wait().unwrap();
    assert_eq!(semaphore.available(), 0);
    let pid = context.pids()[0];
    let error = semaphore.acquire_timeout(SHORT).unwrap_err();
    assert!(error.to_string().contains(&format!("pid {pid}")), "{error}");
    kill(pid);
    drop(context);
    let permits = [(); 2].map(|()| semaphore.acquire().unwrap());
    assert!(
        permits
            .iter()
            .all(|permit| permit.abandoned_by() == Some(pid))
    );
    drop(permits);
    let permit = semaphore.acquire().unwrap();
    assert_eq!(permit.abandoned_by(), None, "it is told once");
}

fn permits_can_be_used_up_and_made_elsewhere() {
    fn makes(_rank: usize, semaphore: Semaphore) -> tensormp::Result<()> {
        for _ in 0..100 {
            semaphore.add_permits(1)?;
        }
        Ok(())
    }
    let semaphore = Semaphore::new(0).unwrap();
    let mut context = spawn(makes, semaphore.clone(), 1).unwrap();
    for _ in 0..100 {
        semaphore.acquire().unwrap().forget();
    }
    context.join().unwrap();
    assert_eq!(semaphore.available(), 0);
    let error = semaphore.add_permits(257).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Full);
    assert_eq!(semaphore.available(), 256);
    assert!(Semaphore::new(65_537).is_err());
}

fn a_writer_sees_no_reader_and_no_other_writer() {
    fn works(rank: usize, (lock, pair): (RwLock, AliasedTensor<u64>)) -> tensormp::Result<u64> {
        let mut torn = 0;
        for _ in 0..600 {
            if rank < 2 {
                let _guard = lock.write().map_err(mp_queue::Error::from)?;
                pair.store(&[0], pair.load(&[0]).unwrap() + 1).unwrap();
                pair.store(&[1], pair.load(&[1]).unwrap() + 1).unwrap();
            } else {
                let _guard = lock.read().map_err(mp_queue::Error::from)?;
                torn += u64::from(pair.load(&[0]).unwrap() != pair.load(&[1]).unwrap());
            }
        }
        Ok(torn)
    }
    let lock = RwLock::new().unwrap();
    let pair = Tensor::zeros(2).unwrap().alias();
    let mut context = spawn(works, (lock, pair.clone()), 4).unwrap();
    assert_eq!(context.join().unwrap(), [0; 4]);
    assert_eq!(
        (pair.load(&[0]).unwrap(), pair.load(&[1]).unwrap()),
        (1_200, 1_200)
    );
}

fn a_killed_reader_is_gone_and_a_killed_writer_poisons() {
    fn holds(_rank: usize, (lock, writes, ready): (RwLock, bool, Event)) -> tensormp::Result<()> {
        if writes {
            let guard = lock.write().map_err(mp_queue::Error::from)?;
            hold_for_ever(guard, &ready)
        }
        let guard = lock.read().map_err(mp_queue::Error::from)?;
        hold_for_ever(guard, &ready)
    }
    let lock = RwLock::new().unwrap();
    for writes in [false, true] {
        let ready = Event::new().unwrap();
        let context = spawn(holds, (lock.clone(), writes, ready.clone()), 1).unwrap();
        ready.wait().unwrap();
        let pid = context.pids()[0];
        let error = lock.write_timeout(SHORT).unwrap_err();
        assert!(error.to_string().contains(&format!("pid {pid}")), "{error}");
        assert_eq!(lock.try_read().is_ok(), !writes);
        kill(pid);
        drop(context);
        if writes {
            let poisoned = ErrorKind::Poisoned { pid };
            assert_eq!(lock.read().unwrap_err().kind(), &poisoned);
            assert_eq!(lock.write().unwrap_err().kind(), &poisoned);
            lock.clear_poison();
        }
        drop(lock.write().unwrap());
    }
}

fn a_writer_that_gives_up_lets_the_readers_in() {
    let lock = RwLock::new().unwrap();
    let reading = lock.read().unwrap();
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| lock.write_timeout(SHORT).map(drop));
        let error = writer.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::TimedOut);
    });
    let more = lock.read().unwrap();
    drop((reading, more));
    assert!(lock.try_write().is_ok());
}

fn a_condition_is_waited_for_without_the_lock() {
    type Shared = (Mutex, Condvar, AliasedTensor<u64>);
    /// Each waits for its turn.
    fn takes_turns(rank: usize, (mutex, condvar, turn): Shared) -> tensormp::Result<()> {
        for round in 0..100 {
            let mine = round * 3 + rank as u64;
            let guard = mutex.lock().map_err(mp_queue::Error::from)?;
            let _guard = condvar
                .wait_while(guard, || turn.load(&[0]).unwrap() != mine)
                .map_err(mp_queue::Error::from)?;
            turn.store(&[0], mine + 1).unwrap();
            condvar.notify_all();
        }
        Ok(())
    }
    let shared = (Mutex::new().unwrap(), Condvar::new().unwrap(), number());
    let mut context = spawn(takes_turns, shared.clone(), 3).unwrap();
    context.join().unwrap();
    let (mutex, condvar, turn) = shared;
    assert_eq!(turn.load(&[0]).unwrap(), 300);
    let guard = mutex.lock().unwrap();
    let (guard, met) = condvar
        .wait_timeout_while(guard, SHORT, || turn.load(&[0]).unwrap() == 300)
        .unwrap();
    assert!(!met && mutex.is_locked());
    drop(guard);
}

fn a_notifier_that_is_killed_hangs_no_waiter() {
    fn never_notifies(
        _rank: usize,
        (mutex, _condvar, ready): (Mutex, Condvar, Event),
    ) -> tensormp::Result<()> {
        let guard = mutex.lock().map_err(mp_queue::Error::from)?;
        hold_for_ever(guard, &ready)
    }
    let (mutex, condvar) = (Mutex::new().unwrap(), Condvar::new().unwrap());
    let ready = Event::new().unwrap();
    let guard = mutex.lock().unwrap();
    let shared = (mutex.clone(), condvar.clone(), ready.clone());
    let context = spawn(never_notifies, shared, 1).unwrap();
    let pid = context.pids()[0];
    let waiter = std::thread::spawn(move || condvar.wait_while(guard, || true).map(drop));
    ready.wait().unwrap();
    kill(pid);
    let error = waiter.join().unwrap().unwrap_err();
    assert!(
        matches!(
            error.kind(),
            ErrorKind::Poisoned { .. } | ErrorKind::PeerFailed(_)
        ),
        "{error}"
    );
    drop(context);
}

fn a_broken_barrier_can_be_reset_for_those_that_are_left() {
    fn waits(_rank: usize, (barrier, ready): (Barrier, Event)) -> tensormp::Result<()> {
        ready.set();
        barrier.wait()?;
        Ok(())
    }
    let (barrier, ready) = (Barrier::new(3).unwrap(), Event::new().unwrap());
    let context = spawn(waits, (barrier.clone(), ready.clone()), 1).unwrap();
    ready.wait().unwrap();
    while barrier.waiting() == 0 {
        std::thread::yield_now();
    }
    kill(context.pids()[0]);
    for _ in 0..2 {
        let error = barrier.wait().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::PeerFailed(_)), "{error}");
    }
    drop(context);
    assert!(barrier.is_broken());
    barrier.reset();
    assert_eq!((barrier.waiting(), barrier.is_broken()), (0, false));
    std::thread::scope(|scope| {
        let others = [(); 2].map(|()| scope.spawn(|| barrier.wait().unwrap()));
        let last = [
            barrier.wait().unwrap(),
            others.map(|other| other.join().unwrap()).contains(&true),
        ];
        assert!(last[0] != last[1], "one of three is the last");
        let waiting = scope.spawn(|| barrier.wait());
        while barrier.waiting() == 0 {
            std::thread::yield_now();
        }
        barrier.reset();
        let error = waiting.join().unwrap().unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Reset);
    });
}

fn a_lock_goes_through_a_queue() {
    fn locks(_rank: usize, from: Receiver<(Mutex, RwLock, Semaphore)>) -> tensormp::Result<bool> {
        let (mutex, lock, semaphore) = from.get()?;
        let busy = mutex.try_lock().is_err() && lock.try_write().is_err();
        Ok(busy && semaphore.try_acquire().is_err())
    }
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let (mutex, lock) = (Mutex::new().unwrap(), RwLock::new().unwrap());
    let semaphore = Semaphore::new(1).unwrap();
    let _held = (
        mutex.lock().unwrap(),
        lock.read().unwrap(),
        semaphore.acquire().unwrap(),
    );
    sender
        .put((mutex.clone(), lock.clone(), semaphore.clone()))
        .unwrap();
    let mut context = spawn(locks, receiver, 1).unwrap();
    assert_eq!(context.join().unwrap(), [true]);
}
