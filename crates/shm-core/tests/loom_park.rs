//! loom models of waiting and waking: no wake is lost, alone and over cells.
//!
//! `cargo test -p shm-core --features loom --release --test loom_park`. No sleep ends by
//! itself here, so whoever still sleeps after the last notification has lost its wake.
#![cfg(feature = "loom")]

mod loom_support;

use std::sync::atomic::Ordering::{Acquire, SeqCst};

use loom::sync::Arc;
use loom::thread;
use loom_support::{
    Futex, Model, ModelCells, NoFences, Right, Variant, Word, check, check_fails, word32, word64,
};
use shm_core::cells::{Cells, Claim, Owner, PAYLOAD_WORDS, Take};
use shm_core::event::Event;
use shm_core::sync::{Atomic64, Memory};

type U32<V> = <Model<V> as Memory>::U32;

struct Waiting<V: Variant> {
    seq: U32<V>,
    waiters: U32<V>,
    futex: Futex,
    published: Word<V, loom::sync::atomic::AtomicU64>,
}

impl<V: Variant> Waiting<V> {
    fn new() -> Self {
        Self {
            seq: word32::<V>(),
            waiters: word32::<V>(),
            futex: Futex::new(),
            published: word64::<V>(),
        }
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

    fn notify_one(&self) {
        self.event()
            .notify_one(|how_many| self.futex.wake(how_many));
    }

    /// Takes one of the units that were published.
    fn take_unit(&self) -> Option<()> {
        let mut units = self.published.load(Acquire);
        while units > 0 {
            match self
                .published
                .compare_exchange(units, units - 1, SeqCst, Acquire)
            {
                Ok(_) => return Some(()),
                Err(found) => units = found,
            }
        }
        None
    }
}

/// One waits for what the other publishes.
fn one_waiter<V: Variant>() {
    let waiting = Arc::new(Waiting::<V>::new());
    let waiter = {
        let waiting = waiting.clone();
        thread::spawn(move || {
            waiting.wait_until(|| (waiting.published.load(Acquire) == 1).then_some(()))
        })
    };
    waiting.published.swap(1, SeqCst);
    waiting.notify_one();
    waiting.futex.over();
    let woken = waiter.join().expect("the waiter did not panic");
    assert!(woken.is_some(), "a lost wake");
}

/// Two wait for a unit each, and a third dies registered, so that its count has to be healed.
fn two_waiters_and_a_dead_one<V: Variant>() {
    let waiting = Arc::new(Waiting::<V>::new());
    let _dead = waiting.event().register();
    let waiters = [(); 2].map(|()| {
        let waiting = waiting.clone();
        thread::spawn(move || waiting.wait_until(|| waiting.take_unit()))
    });
    for _ in 0..2 {
        waiting.published.fetch_add(1, SeqCst);
        waiting.notify_one();
    }
    waiting.futex.over();
    let woken = waiters.map(|waiter| waiter.join().expect("no waiter panicked"));
    assert_eq!(woken, [Some(()); 2], "a lost wake");
}

/// A producer and a consumer, both asleep when they have nothing to do, over one cell.
fn over_a_cell<V: Variant>(messages: u64) {
    let cells = Arc::new(ModelCells::<V>::new(1));
    Cells(&*cells).init();
    let not_empty = Arc::new(Waiting::<V>::new());
    let not_full = Arc::new(Waiting::<V>::new());
    let consumer = {
        let (cells, not_empty, not_full) = (cells.clone(), not_empty.clone(), not_full.clone());
        thread::spawn(move || {
            let (mut seen, mut got) = (0, Vec::new());
            for _ in 0..messages {
                let me = Owner { row: 2, epoch: 1 };
                let pos = not_empty.wait_until(|| match Cells(&*cells).take(me, &mut seen) {
                    Take::At { pos, .. } => Some(pos),
                    _ => None,
                });
                let Some(pos) = pos else { break };
                got.push(Cells(&*cells).read(pos)[0]);
                let _ = Cells(&*cells).release(pos);
                not_full.notify_one();
            }
            not_full.futex.over();
            got
        })
    };
    let me = Owner { row: 1, epoch: 1 };
    for value in 1..=messages {
        let pos = not_full.wait_until(|| match Cells(&*cells).claim(me) {
            Claim::At(pos) => Some(pos),
            _ => None,
        });
        let Some(pos) = pos else { break };
        Cells(&*cells).write(pos, &[value; PAYLOAD_WORDS]);
        Cells(&*cells).publish(pos);
        not_empty.notify_one();
    }
    not_empty.futex.over();
    let got = consumer.join().expect("the consumer did not panic");
    assert_eq!(got, (1..=messages).collect::<Vec<_>>(), "a lost wake");
}

#[test]
fn a_wake_is_not_lost() {
    check(4, one_waiter::<Right>);
    check_fails(4, one_waiter::<NoFences>);
}

#[test]
fn a_dead_waiters_count_is_healed_without_losing_the_living() {
    check(2, two_waiters_and_a_dead_one::<Right>);
    check_fails(2, two_waiters_and_a_dead_one::<NoFences>);
}

#[test]
fn nobody_sleeps_beside_a_message_or_a_free_cell() {
    check(3, || over_a_cell::<Right>(2));
    // With one message only the consumer can sleep for ever, so the model comes to its end.
    check_fails(3, || over_a_cell::<NoFences>(1));
}
