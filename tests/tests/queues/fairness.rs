//! Nobody who waits is starved by others that never pause: who sleeps comes to what it waits for beside who spins.
//!
//! Each test goes on until the one that sleeps has had its share, and the watchdog ends one that never gets it.

use std::sync::atomic::{AtomicBool, Ordering};

use integration_tests::{Test, tests};
use mp_queue::{Mutex, RwLock, Semaphore, WaitPolicy};
use tensormp::mp_queue;
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    a_getter_that_sleeps_gets_messages_beside_getters_that_never_pause,
    a_putter_that_sleeps_gets_room_beside_putters_that_never_pause,
    a_lock_comes_to_who_sleeps_beside_others_that_never_pause,
    a_permit_comes_to_who_sleeps_beside_others_that_never_pause,
    a_writer_comes_between_readers_that_never_pause,
];

/// How often it has to come to it.
const SHARE: usize = 10;

/// Runs `greedy` in two threads, again and again, until `patient` is done.
fn beside(greedy: impl Fn() + Sync, patient: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    greedy();
                }
            });
        }
        patient();
        over.store(true, Ordering::Relaxed);
    });
}

fn a_getter_that_sleeps_gets_messages_beside_getters_that_never_pause() {
    fn puts(_rank: usize, sender: Sender<u64>) -> tensormp::Result<()> {
        let mut number = 0;
        while sender.put(number).is_ok() {
            number += 1;
        }
        Ok(())
    }
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let mut context = spawn(puts, sender, 1).unwrap();
    let patient = receiver.clone().with_policy(WaitPolicy::Park);
    beside(
        || drop(receiver.try_get()),
        || assert_eq!((0..SHARE).map(|_| patient.get().unwrap()).count(), SHARE),
    );
    receiver.close();
    context.join().unwrap();
}

fn a_putter_that_sleeps_gets_room_beside_putters_that_never_pause() {
    fn gets(_rank: usize, receiver: Receiver<u64>) -> tensormp::Result<u64> {
        Ok(receiver.iter().filter(|&number| number == 1).count() as u64)
    }
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let mut context = spawn(gets, receiver, 1).unwrap();
    let patient = sender.clone().with_policy(WaitPolicy::Park);
    beside(
        || drop(sender.try_put(0)),
        || (0..SHARE).for_each(|_| patient.put(1).unwrap()),
    );
    drop((sender, patient));
    assert_eq!(context.join().unwrap(), [SHARE as u64]);
}

fn a_lock_comes_to_who_sleeps_beside_others_that_never_pause() {
    let mutex = Mutex::new().unwrap();
    beside(
        || drop(mutex.lock().unwrap()),
        || (0..SHARE).for_each(|_| drop(mutex.lock().unwrap())),
    );
}

fn a_permit_comes_to_who_sleeps_beside_others_that_never_pause() {
    let semaphore = Semaphore::new(1).unwrap();
    beside(
        || drop(semaphore.acquire().unwrap()),
        || (0..SHARE).for_each(|_| drop(semaphore.acquire().unwrap())),
    );
}

fn a_writer_comes_between_readers_that_never_pause() {
    let lock = RwLock::new().unwrap();
    beside(
        || drop(lock.read().unwrap()),
        || (0..SHARE).for_each(|_| drop(lock.write().unwrap())),
    );
}
