//! loom models of permits, of readers and a writer, and of a barrier's rounds: who holds a lock sees what the one before
//! wrote, nobody reads while another writes, and no wake is lost.
//!
//! `cargo test -p shm-core --features loom --release --test loom_permits`.
#![cfg(feature = "loom")]

mod loom_support;

use std::sync::atomic::Ordering::{Relaxed, SeqCst};

use loom::sync::Arc;
use loom::thread;
use loom_support::{
    Futex, Model, NoFences, RelaxedPublication, Right, Variant, check, check_fails, word32, word64,
};
use shm_core::cells::Owner;
use shm_core::event::Event;
use shm_core::permits::{Acquired, Permits};
use shm_core::readers::{Read, Readers};
use shm_core::rounds::{Arrived, Round, Rounds};
use shm_core::sync::Memory;

type U32<V> = <Model<V> as Memory>::U32;
type U64<V> = <Model<V> as Memory>::U64;

struct World<V: Variant> {
    words: Vec<U64<V>>,
    /// What the lock guards; no ordering of its own.
    guarded: loom::sync::atomic::AtomicU64,
    seq: U32<V>,
    waiters: U32<V>,
    futex: Futex,
}

impl<V: Variant> World<V> {
    fn new(words: usize) -> Self {
        Self {
            words: (0..words).map(|_| word64::<V>()).collect(),
            guarded: loom::sync::atomic::AtomicU64::new(0),
            seq: word32::<V>(),
            waiters: word32::<V>(),
            futex: Futex::new(),
        }
    }

    fn permits(&self) -> Permits<'_, Model<V>> {
        Permits(&self.words)
    }

    fn event(&self) -> Event<'_, Model<V>> {
        Event::new(&self.seq, &self.waiters)
    }

    /// Waits as every user of an event does; `None`: the wake was lost.
    fn wait_until<T>(&self, mut ready: impl FnMut() -> Option<T>) -> Option<T> {
        loop {
            if let Some(got) = ready() {
                return Some(got);
            }
            let registered = self.event().register();
            let got = ready();
            let awake = got.is_some() || self.futex.sleep_while(&self.seq, registered.seq);
            self.event().unregister(registered);
            if got.is_some() || !awake {
                return got;
            }
        }
    }

    fn lock(&self, me: Owner) -> Option<usize> {
        self.wait_until(|| match self.permits().acquire(me, 0, 0) {
            Acquired::At { index, .. } => Some(index),
            Acquired::Busy(_) => None,
        })
    }

    fn unlock(&self, index: usize, me: Owner) {
        assert!(self.permits().release(index, me, 0, None));
        self.event()
            .notify_one(|how_many| self.futex.wake(how_many));
    }
}

fn owner(row: u16) -> Owner {
    Owner { row, epoch: 1 }
}

/// Two add one each under a mutex.
fn two_lock<V: Variant>() {
    let world = Arc::new(World::<V>::new(1));
    let add = |world: &World<V>, me: Owner| {
        let Some(index) = world.lock(me) else {
            return false;
        };
        let seen = world.guarded.load(Relaxed);
        world.guarded.store(seen + 1, Relaxed);
        world.unlock(index, me);
        true
    };
    let other = {
        let world = world.clone();
        thread::spawn(move || add(&world, owner(2)))
    };
    let mine = add(&world, owner(1));
    // Nobody who holds the lock sleeps, so the other one comes through by itself if no wake is lost.
    world.futex.over();
    assert!(
        other.join().expect("no thread panicked") && mine,
        "a lost wake"
    );
    let _ = world.lock(owner(1));
    assert_eq!(
        world.guarded.load(Relaxed),
        2,
        "what one wrote the other did not see"
    );
}

/// The holder is dead; a reaper gives the permit back, and another sees what the dead one wrote.
fn a_reaper<V: Variant>() {
    let world = Arc::new(World::<V>::new(1));
    let _ = world.lock(owner(1));
    let other = {
        let world = world.clone();
        thread::spawn(move || {
            let index = world.lock(owner(2));
            index.map(|_| world.guarded.load(Relaxed))
        })
    };
    world.guarded.store(7, Relaxed);
    world.permits().reap(owner(1), 1);
    world.event().rouse(|how_many| world.futex.wake(how_many));
    world.futex.over();
    assert_eq!(other.join().expect("no thread panicked"), Some(7));
}

/// One reads while another wants to write.
fn a_reader_and_a_writer<V: Variant>() {
    let world = Arc::new(World::<V>::new(2));
    // What each found: 1 got in.
    let inside = Arc::new(loom::sync::atomic::AtomicU64::new(0));
    let reader = {
        let (world, inside) = (world.clone(), inside.clone());
        thread::spawn(move || {
            let lock = Readers(world.permits());
            if let Read::At(index, _) = lock.read(owner(2), 0) {
                assert_eq!(inside.fetch_add(1, SeqCst), 0, "somebody writes");
                inside.fetch_sub(1, SeqCst);
                lock.stop_reading(index, owner(2), 0);
            }
        })
    };
    let lock = Readers(world.permits());
    if let Acquired::At { .. } = lock.claim(owner(1), 0)
        && lock.drained(owner(1), 0) == Ok(true)
    {
        assert_eq!(inside.fetch_add(1, SeqCst), 0, "somebody reads");
        inside.fetch_sub(1, SeqCst);
        lock.stop_writing(owner(1), 0, None);
    }
    reader.join().expect("no thread panicked");
}

/// Two meet, and each sees what the other did before.
fn two_meet<V: Variant>() {
    let world = Arc::new(World::<V>::new(1));
    let other_word = Arc::new(loom::sync::atomic::AtomicU64::new(0));
    let meet = |world: &World<V>| match Rounds::<Model<V>>(&world.words[0]).arrive(2) {
        Arrived::Last => {
            world
                .event()
                .notify_all(|how_many| world.futex.wake(how_many));
            true
        }
        Arrived::In(round) => world
            .wait_until(|| {
                (Rounds::<Model<V>>(&world.words[0]).stand(round) == Round::Over).then_some(())
            })
            .is_some(),
    };
    let other = {
        let (world, other_word) = (world.clone(), other_word.clone());
        thread::spawn(move || {
            other_word.store(1, Relaxed);
            meet(&world).then(|| world.guarded.load(Relaxed))
        })
    };
    world.guarded.store(1, Relaxed);
    let met = meet(&world).then(|| other_word.load(Relaxed));
    world.futex.over();
    assert_eq!(
        (met, other.join().expect("no thread panicked")),
        (Some(1), Some(1))
    );
}

#[test]
fn who_locks_sees_what_the_one_before_wrote() {
    check(3, two_lock::<Right>);
    check_fails(3, two_lock::<RelaxedPublication>);
}

#[test]
fn what_a_dead_holder_wrote_comes_with_its_permit() {
    check(3, a_reaper::<Right>);
    check_fails(3, a_reaper::<RelaxedPublication>);
}

#[test]
fn nobody_reads_while_another_writes() {
    check(4, a_reader_and_a_writer::<Right>);
    check_fails(4, a_reader_and_a_writer::<NoFences>);
}

#[test]
fn who_meets_sees_what_the_others_did_before() {
    check(3, two_meet::<Right>);
    check_fails(3, two_meet::<RelaxedPublication>);
}
