//! What nobody should do, done: values that panic, lie, come back in the middle, or take what they travel through along.

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use integration_tests::{Test, kill, tests};
use mp_queue::{ErrorKind, Mutex, Semaphore};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tensormp::mp_queue;
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    a_panic_in_serialize_puts_nothing_and_breaks_nothing,
    a_panic_in_deserialize_loses_that_message_only,
    a_value_that_puts_while_it_is_written_or_dropped_or_read_finds_the_queue_working,
    every_put_that_succeeded_while_others_close_can_be_got,
    a_put_that_waits_gets_its_value_back_when_the_receiver_goes,
    a_thousand_queues_in_each_other_come_out_again_or_are_dropped_together,
    queues_that_hold_each_other_end_with_their_processes,
    a_message_as_large_as_memory_allows_arrives_whole,
    guards_and_permits_that_are_leaked_come_back_when_their_process_ends,
    a_lock_held_across_a_spawn_is_seen_as_held_and_by_whom,
    an_end_in_a_thread_local_is_let_go_with_its_thread,
    a_value_that_writes_something_else_each_time_is_read_as_it_was_written,
];

thread_local! {
    /// What values of these tests do things to.
    static QUEUE: RefCell<Option<Queue<u32>>> = const { RefCell::new(None) };
}

struct PanicsWhenWritten(Tensor<u8>);

impl Serialize for PanicsWhenWritten {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut tuple = serializer.serialize_tuple(2)?;
        serde::ser::SerializeTuple::serialize_element(&mut tuple, &self.0)?;
        panic!("in the middle of writing");
    }
}

impl<'de> Deserialize<'de> for PanicsWhenWritten {
    fn deserialize<D: Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        unreachable!("it is never in a message")
    }
}

fn a_panic_in_serialize_puts_nothing_and_breaks_nothing() {
    let arena = Arena::current().unwrap();
    let queue = Queue::bounded(2).unwrap();
    let good = Queue::bounded(2).unwrap();
    let before = arena.stats().blocks;
    for _ in 0..20 {
        let value = PanicsWhenWritten(Tensor::full(100, 1).unwrap());
        let panicked = catch_unwind(AssertUnwindSafe(|| queue.put(value)));
        assert!(panicked.is_err());
        assert!(queue.is_empty());
        // In the same thread, right after.
        good.put(Tensor::full(100, 2_u8).unwrap()).unwrap();
        assert_eq!(good.get().unwrap().as_slice(), [2; 100]);
    }
    assert_eq!(arena.stats().blocks, before);
}

#[derive(Debug)]
struct PanicsWhenRead(u32, Tensor<u8>);

impl Serialize for PanicsWhenRead {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (self.0, &self.1).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for PanicsWhenRead {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let (number, tensor) = Deserialize::deserialize(deserializer)?;
        assert!(number != 1, "in the middle of reading");
        Ok(Self(number, tensor))
    }
}

fn a_panic_in_deserialize_loses_that_message_only() {
    let arena = Arena::current().unwrap();
    let queue = Queue::bounded(4).unwrap();
    let before = arena.stats().blocks;
    for _ in 0..20 {
        for number in 0..3 {
            let tensor = Tensor::full(100, number as u8).unwrap();
            queue.put(PanicsWhenRead(number, tensor)).unwrap();
        }
        assert_eq!(queue.get().unwrap().0, 0);
        assert!(catch_unwind(AssertUnwindSafe(|| queue.get())).is_err());
        assert_eq!(queue.get().unwrap().1.as_slice(), [2; 100]);
    }
    assert_eq!(arena.stats().blocks, before);
}

/// Puts something into the thread's queue whenever it is touched.
struct Busybody(u32);

fn meddle(number: u32) {
    QUEUE.with_borrow(|queue| {
        if let Some(queue) = queue {
            queue.try_put(number).unwrap();
        }
    });
}

impl Serialize for Busybody {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        meddle(1);
        self.0.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Busybody {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        meddle(2);
        Deserialize::deserialize(deserializer).map(Self)
    }
}

impl Drop for Busybody {
    fn drop(&mut self) {
        meddle(3);
    }
}

fn a_value_that_puts_while_it_is_written_or_dropped_or_read_finds_the_queue_working() {
    let inner = Queue::bounded(16).unwrap();
    let queue = Queue::bounded(1).unwrap();
    QUEUE.set(Some(inner.clone()));
    queue.put(Busybody(9)).unwrap();
    let got = queue.get().unwrap();
    assert_eq!(got.0, 9);
    drop(got);
    QUEUE.set(None);
    let mut said = Vec::new();
    while let Ok(number) = inner.try_get() {
        said.push(number);
    }
    // Written and dropped by the put, read by the get, dropped here.
    assert_eq!(said, [1, 3, 2, 3]);
}

fn every_put_that_succeeded_while_others_close_can_be_got() {
    for round in 0..50 {
        let queue = Queue::bounded(4).unwrap();
        let put = AtomicU64::new(0);
        let got = std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while queue.put(Tensor::full(10, round).unwrap()).is_ok() {
                        put.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            let getting = scope.spawn(|| queue.receiver().iter().count() as u64);
            while put.load(Ordering::Relaxed) < 20 {
                std::thread::yield_now();
            }
            scope.spawn(|| queue.close());
            queue.close();
            getting.join().unwrap()
        });
        assert_eq!(got, put.load(Ordering::Relaxed), "in round {round}");
        assert!(queue.is_empty());
    }
}

fn a_put_that_waits_gets_its_value_back_when_the_receiver_goes() {
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    sender.put(Tensor::full(10, 0_u8).unwrap()).unwrap();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| sender.put(Tensor::full(10, 1).unwrap()).unwrap_err());
        scope.spawn(|| drop(receiver));
        let failed = waits.join().unwrap();
        assert_eq!(failed.kind(), &ErrorKind::Closed);
        assert_eq!(failed.into_value().unwrap().as_slice(), [1; 10]);
    });
}

/// A queue of queues of …
#[derive(Serialize, Deserialize)]
struct Nested(Option<Box<Queue<Nested>>>);

fn a_thousand_queues_in_each_other_come_out_again_or_are_dropped_together() {
    const DEPTH: usize = 1_000;
    let nest = || {
        let mut inner = Nested(None);
        for _ in 0..DEPTH {
            let queue = Queue::bounded(1).unwrap();
            queue.put(inner).unwrap();
            inner = Nested(Some(Box::new(queue)));
        }
        inner
    };
    let arena = Arena::current().unwrap();
    let before = arena.stats().blocks;
    drop(nest());
    assert_eq!(arena.stats().blocks, before);
    let (mut next, mut depth) = (nest(), 0);
    while let Some(queue) = next.0.take() {
        next = queue.get().unwrap();
        depth += 1;
    }
    assert_eq!(depth, DEPTH);
    drop(next);
    assert_eq!(arena.stats().blocks, before);
}

fn queues_that_hold_each_other_end_with_their_processes() {
    // Nobody can see that these are unreachable; what they take is given back with the arena.
    let (one, two) = (
        Queue::<Nested>::bounded(1).unwrap(),
        Queue::<Nested>::bounded(1).unwrap(),
    );
    one.put(Nested(Some(Box::new(two.clone())))).unwrap();
    two.put(Nested(Some(Box::new(one.clone())))).unwrap();
    let back = one.get().unwrap();
    assert!(back.0.is_some_and(|queue| queue.len() == 1));
    one.put(Nested(Some(Box::new(two.clone())))).unwrap();
    drop((one, two));
    let other = Queue::bounded(1).unwrap();
    other.put(1_u8).unwrap();
    assert_eq!(other.get().unwrap(), 1);
}

fn a_message_as_large_as_memory_allows_arrives_whole() {
    fn length(_rank: usize, from: Receiver<String>) -> tensormp::Result<usize> {
        let mut sum = 0;
        for text in &from {
            assert!(text.bytes().all(|byte| byte == b'x'));
            sum += text.len();
        }
        Ok(sum)
    }
    const LONG: usize = 12 << 20;
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let mut context = spawn(length, receiver, 1).unwrap();
    for _ in 0..3 {
        sender.put("x".repeat(LONG)).unwrap();
    }
    drop(sender);
    assert_eq!(context.join().unwrap(), [3 * LONG]);
    // More than there is room for comes back, and what is there still works.
    let arena = tensormp::shm_core::Arena::builder()
        .capacity(32 << 20)
        .create()
        .unwrap();
    let queue = Queue::bounded_in(&arena, 2).unwrap();
    let failed = queue.put("y".repeat(4 * LONG)).unwrap_err();
    assert!(matches!(failed.kind(), ErrorKind::Arena(_)), "{failed}");
    assert_eq!(failed.into_value().unwrap().len(), 4 * LONG);
    queue.put("z".to_owned()).unwrap();
    assert_eq!(queue.get().unwrap(), "z");
}

fn guards_and_permits_that_are_leaked_come_back_when_their_process_ends() {
    fn leaks(_rank: usize, (mutex, semaphore): (Mutex, Semaphore)) -> tensormp::Result<()> {
        std::mem::forget(mutex.lock()?);
        std::mem::forget(semaphore.acquire()?);
        std::mem::forget((mutex, semaphore));
        Ok(())
    }
    let (mutex, semaphore) = (Mutex::new().unwrap(), Semaphore::new(1).unwrap());
    let mut context = spawn(leaks, (mutex.clone(), semaphore.clone()), 1).unwrap();
    let pid = context.pids()[0];
    context.join().unwrap();
    // It returned, but with the lock in hand.
    let error = mutex.lock().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Poisoned { pid });
    drop(error);
    assert_eq!(semaphore.acquire().unwrap().abandoned_by(), Some(pid));
}

fn a_lock_held_across_a_spawn_is_seen_as_held_and_by_whom() {
    fn tries(_rank: usize, mutex: Mutex) -> tensormp::Result<String> {
        let error = mutex.lock_timeout(Duration::from_millis(10)).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::TimedOut);
        Ok(error.to_string())
    }
    let mutex = Mutex::new().unwrap();
    let guard = mutex.lock().unwrap();
    let mut context = spawn(tries, mutex.clone(), 1).unwrap();
    let said = context.join().unwrap()[0].clone();
    assert!(
        said.contains(&format!("pid {}", std::process::id())),
        "{said}"
    );
    drop(guard);
    assert!(
        mutex.lock().is_ok(),
        "a child that came and went broke nothing"
    );
}

fn an_end_in_a_thread_local_is_let_go_with_its_thread() {
    fn dies(_rank: usize, queue: Queue<u32>) -> tensormp::Result<()> {
        QUEUE.set(Some(queue));
        kill(std::process::id());
        Ok(())
    }
    thread_local! {
        static SENDER: RefCell<Option<Sender<u8>>> = const { RefCell::new(None) };
    }
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    std::thread::spawn(move || SENDER.set(Some(sender)))
        .join()
        .unwrap();
    assert!(receiver.get().unwrap_err().is_closed());
    let queue = Queue::bounded(1).unwrap();
    let mut context = spawn(dies, queue.clone(), 1).unwrap();
    assert!(context.join().is_err());
    queue.put(1).unwrap();
    assert_eq!(queue.get().unwrap(), 1);
}

/// Another value each time that it is written.
struct Fickle;

impl Serialize for Fickle {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        static TIMES: AtomicU64 = AtomicU64::new(0);
        let times = TIMES.fetch_add(1, Ordering::Relaxed);
        "abc".repeat(times as usize * 100).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Fickle {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        assert_eq!(text.len() % 300, 0);
        assert!(text.starts_with("abc") || text.is_empty());
        Ok(Self)
    }
}

fn a_value_that_writes_something_else_each_time_is_read_as_it_was_written() {
    let queue = Queue::bounded(1).unwrap();
    for _ in 0..20 {
        queue.put(Fickle).unwrap();
        let _: Fickle = queue.get().unwrap();
    }
}
