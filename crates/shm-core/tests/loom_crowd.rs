//! loom models of futures that wait: an ear sleeps for all of them, and no wake is lost between it and them.
//!
//! `cargo test -p shm-core --features loom --release --test loom_crowd`. No sleep ends by itself here, so a future that
//! still waits after the last notification has lost its wake.
#![cfg(feature = "loom")]

mod loom_support;

use std::collections::VecDeque;
use std::sync::atomic::Ordering::{Acquire, SeqCst};

use loom::sync::{Arc, Condvar, Mutex};
use loom::thread;
use loom_support::{
    Futex, Model, NoFences, Right, Variant, Word, check, check_fails, word32, word64,
};
use shm_core::crowd::{Crowd, Grant, Left};
use shm_core::event::Event;
use shm_core::sync::{Atomic64, Memory};

type U32<V> = <Model<V> as Memory>::U32;

/// Where the executor sleeps: futures that were told to try, and whether the ear is gone.
#[derive(Default)]
struct Queue {
    told: VecDeque<usize>,
    over: bool,
}

struct World<V: Variant> {
    seq: U32<V>,
    waiters: U32<V>,
    futex: Futex,
    units: Word<V, loom::sync::atomic::AtomicU64>,
    crowd: Mutex<Crowd<usize>>,
    queue: Mutex<Queue>,
    told: Condvar,
}

impl<V: Variant> World<V> {
    fn new() -> Arc<Self> {
        Arc::new(Self {
            seq: word32::<V>(),
            waiters: word32::<V>(),
            futex: Futex::new(),
            units: word64::<V>(),
            crowd: Mutex::new(Crowd::default()),
            queue: Mutex::new(Queue::default()),
            told: Condvar::new(),
        })
    }

    fn event(&self) -> Event<'_, Model<V>> {
        Event::new(&self.seq, &self.waiters)
    }

    fn publish(&self, units: u64, wakes: u32) {
        self.units.fetch_add(units, SeqCst);
        self.event()
            .notify_many(wakes, |how_many| self.futex.wake(how_many));
    }

    fn take_unit(&self) -> bool {
        let mut units = self.units.load(Acquire);
        while units > 0 {
            match self
                .units
                .compare_exchange(units, units - 1, SeqCst, Acquire)
            {
                Ok(_) => return true,
                Err(found) => units = found,
            }
        }
        false
    }

    fn tell(&self, whom: impl IntoIterator<Item = usize>) {
        let mut queue = self.queue.lock().expect("no thread panicked");
        queue.told.extend(whom);
        self.told.notify_all();
    }

    fn end(&self) {
        self.queue.lock().expect("no thread panicked").over = true;
        self.told.notify_all();
    }

    /// The next one that was told; `None`: nobody ever will be.
    fn next_told(&self) -> Option<usize> {
        let mut queue = self.queue.lock().expect("no thread panicked");
        loop {
            if let Some(next) = queue.told.pop_front() {
                return Some(next);
            }
            if queue.over {
                return None;
            }
            queue = self.told.wait(queue).expect("no thread panicked");
        }
    }

    /// The life of the ear, until nobody waits or nothing comes any more.
    fn listen(&self) {
        let mut slept_on = None;
        loop {
            let mut told = Vec::new();
            {
                let mut crowd = self.crowd.lock().expect("no thread panicked");
                crowd.hear(self.event(), slept_on, Grant::EachOne, &mut told);
                slept_on = crowd.seq();
            }
            self.tell(told);
            let Some(seq) = slept_on else { break };
            if !self.futex.sleep_while(&self.seq, seq) {
                break;
            }
        }
        self.end();
    }

    /// Polls future `which`, which has this place; whether it is ready.
    fn poll(&self, which: usize, place: &mut Option<u64>, chain: bool) -> bool {
        if place.is_none() && self.take_unit() {
            return true;
        }
        let (joined, _) = {
            let mut crowd = self.crowd.lock().expect("no thread panicked");
            crowd.join(self.event(), *place, which)
        };
        *place = Some(joined);
        if !self.take_unit() {
            return false;
        }
        let left = {
            let mut crowd = self.crowd.lock().expect("no thread panicked");
            crowd.leave(self.event(), joined)
        };
        if chain {
            self.tell(left.next);
        }
        true
    }

    /// Drops a future that has this place.
    fn drop_future(&self, place: u64, pass_on: bool) {
        let left: Left<usize> = {
            let mut crowd = self.crowd.lock().expect("no thread panicked");
            crowd.give_up(self.event(), place)
        };
        if pass_on {
            self.tell(left.next);
        }
    }
}

/// Two futures wait for a unit each; they are published with so many notifications of so many wakes.
fn two_futures<V: Variant>(publications: u64, chain: bool) {
    let world = World::<V>::new();
    let mut places = [None, None];
    for (which, place) in places.iter_mut().enumerate() {
        assert!(!world.poll(which, place, chain));
    }
    let threads = [
        thread::spawn({
            let world = world.clone();
            move || world.listen()
        }),
        thread::spawn({
            let world = world.clone();
            move || {
                let each = 2 / publications;
                for _ in 0..publications {
                    world.publish(each, each as u32);
                }
                world.futex.over();
            }
        }),
    ];
    let mut ready = 0;
    while ready < 2 {
        let which = world.next_told().expect("a lost wake");
        ready += usize::from(world.poll(which, &mut places[which], chain));
    }
    for thread in threads {
        thread.join().expect("no thread panicked");
    }
}

/// The first of two futures is dropped when it is told; the unit is for the other one then.
fn one_is_dropped<V: Variant>(pass_on: bool) {
    let world = World::<V>::new();
    let mut places = [None, None];
    for (which, place) in places.iter_mut().enumerate() {
        assert!(!world.poll(which, place, true));
    }
    let threads = [
        thread::spawn({
            let world = world.clone();
            move || world.listen()
        }),
        thread::spawn({
            let world = world.clone();
            move || {
                world.publish(1, 1);
                world.futex.over();
            }
        }),
    ];
    loop {
        let which = world.next_told().expect("a lost wake");
        if which == 0 {
            world.drop_future(places[0].take().expect("it waits"), pass_on);
        } else if world.poll(which, &mut places[which], true) {
            break;
        }
    }
    for thread in threads {
        thread.join().expect("no thread panicked");
    }
}

/// A future comes while a unit is published, beside an ear that sleeps for another one.
fn one_joins<V: Variant>() {
    let world = World::<V>::new();
    let mut places = [None, None];
    assert!(!world.poll(0, &mut places[0], true));
    let threads = [
        thread::spawn({
            let world = world.clone();
            move || world.listen()
        }),
        thread::spawn({
            let world = world.clone();
            move || {
                world.publish(1, 1);
                world.publish(1, 1);
                world.futex.over();
            }
        }),
    ];
    let mut ready = usize::from(world.poll(1, &mut places[1], true));
    while ready < 2 {
        let which = world.next_told().expect("a lost wake");
        ready += usize::from(world.poll(which, &mut places[which], true));
    }
    for thread in threads {
        thread.join().expect("no thread panicked");
    }
}

#[test]
fn each_publication_finds_a_future() {
    check(2, || two_futures::<Right>(2, true));
    check(2, || two_futures::<Right>(1, true));
    check_fails(3, || two_futures::<NoFences>(2, true));
    // One wake for two units: whoever got one has to let the next one try.
    check_fails(2, || two_futures::<Right>(1, false));
}

#[test]
fn a_future_that_is_dropped_hands_its_wake_on() {
    check(2, || one_is_dropped::<Right>(true));
    check_fails(2, || one_is_dropped::<Right>(false));
}

#[test]
fn a_future_that_comes_meanwhile_is_seen_or_sees() {
    check(2, one_joins::<Right>);
}
