//! loom models of counts: what a holder did with a thing comes before whatever its next owner does.
//!
//! `cargo test -p shm-core --features loom --release --test loom_leases`. The thing itself is loom's `UnsafeCell`: an
//! access that is not ordered after the one before fails the model. Which steps exist and in what order a kill may
//! cut them is the explorer's subject (`tests/explore/references`).
#![cfg(feature = "loom")]

mod loom_support;

use loom::cell::UnsafeCell;
use loom::sync::Arc;
use loom::thread;
use loom_support::{
    Model, RelaxedLoads, RelaxedPublication, Right, Variant, check, check_fails, left_out64, word64,
};
use shm_core::cells::Owner;
use shm_core::doubt::Looker;
use shm_core::steps::{self, Counted, EntryRef, Kind, Words};
use shm_core::sync::{Atomic64, Memory};
use std::sync::atomic::Ordering::{Acquire, Relaxed};

type Word<V> = <Model<V> as Memory>::U64;

/// The generation of the first holders.
const FIRST: u64 = 1;

#[derive(Debug)]
struct Entry<V: Variant>([Word<V>; 4]);

impl<V: Variant> Entry<V> {
    /// One whose words are not looked at by anybody else, so that they need not be modelled.
    fn private() -> Self {
        Self(std::array::from_fn(|_| left_out64()))
    }

    fn at(&self) -> EntryRef<'_, Word<V>> {
        let [state, generation, ticket_cell, ticket_position] = &self.0;
        EntryRef {
            state,
            generation,
            ticket_cell,
            ticket_position,
        }
    }
}

/// Nobody was killed, so nobody looks.
struct Nobody;

impl Looker for Nobody {
    fn is_named(&self, _: u64, _: u64) -> bool {
        unreachable!("no count is in doubt")
    }
}

/// A counted block and what is in it: a part for each of two holders.
#[derive(Debug)]
struct Block<V: Variant> {
    word: Word<V>,
    parts: [UnsafeCell<u64>; 2],
}

impl<V: Variant> Block<V> {
    fn held(count: u64) -> Arc<Self> {
        let word = word64();
        word.store(Counted::new(FIRST, count).to_word(), Relaxed);
        Arc::new(Self {
            word,
            parts: [UnsafeCell::new(0), UnsafeCell::new(0)],
        })
    }

    fn now(&self) -> Counted {
        Counted::from_word(self.word.load(Acquire))
    }

    fn give_back(&self) {
        let free = || steps::free(&self.word, FIRST);
        let entry = Entry::<V>::private();
        let doubt = left_out64();
        let words = Words {
            count: &self.word,
            doubt: &doubt,
        };
        let me = Owner { row: 0, epoch: 1 };
        steps::give_back(&entry.at(), me, (0, FIRST), words, free, &Nobody)
            .expect("it was held until now");
    }

    /// As the allocator does, and writes all over it. Whether there was a block to have.
    fn allocate(&self) -> bool {
        let free = self.now();
        let next = (0, free.next_generation());
        let entry = Entry::<V>::private();
        let got = free.count == 0 && steps::allocate(&entry.at(), 1, next, &self.word, || {});
        if got {
            for part in &self.parts {
                part.with_mut(|_| ());
            }
        }
        got
    }

    /// At the end one of them has it, or nobody.
    fn is_left(&self, allocated: bool) {
        let left = if allocated {
            Counted::new(FIRST + 1, 1)
        } else {
            Counted::new(FIRST, 0)
        };
        assert_eq!(self.now(), left);
    }
}

/// Two holders write and let go; an allocator makes the block anew.
fn two_holders<V: Variant>() {
    let block = Block::<V>::held(2);
    let holders = [0, 1].map(|part: usize| {
        let block = block.clone();
        thread::spawn(move || {
            block.parts[part].with_mut(|_| ());
            block.give_back();
        })
    });
    let allocator = {
        let block = block.clone();
        thread::spawn(move || block.allocate() || block.allocate())
    };
    for holder in holders {
        holder.join().expect("no holder panicked");
    }
    block.is_left(allocator.join().expect("the allocator did not panic"));
}

/// The last holder lets go while somebody opens the block by its handle, reads it and lets go too.
fn an_opener<V: Variant>() {
    let block = Block::<V>::held(1);
    let holder = {
        let block = block.clone();
        thread::spawn(move || {
            block.parts[0].with(|_| ());
            block.give_back();
        })
    };
    let opener = {
        let block = block.clone();
        thread::spawn(move || {
            if steps::increment(&block.word, FIRST).is_ok() {
                block.parts[0].with(|_| ());
                block.give_back();
            }
        })
    };
    let allocator = {
        let block = block.clone();
        thread::spawn(move || block.allocate() || block.allocate())
    };
    holder.join().expect("the holder did not panic");
    opener.join().expect("the opener did not panic");
    block.is_left(allocator.join().expect("the allocator did not panic"));
}

/// One of two holders finds itself alone and writes what both could read.
fn alone<V: Variant>() {
    let block = Block::<V>::held(2);
    let other = {
        let block = block.clone();
        thread::spawn(move || {
            block.parts[0].with(|_| ());
            assert!(steps::subtract_shared(&block.word, FIRST));
        })
    };
    let alone = {
        let block = block.clone();
        thread::spawn(move || {
            if block.now() == Counted::new(FIRST, 1) {
                block.parts[0].with_mut(|_| ());
            }
        })
    };
    other.join().expect("the other holder did not panic");
    alone.join().expect("the holder left did not panic");
    assert_eq!(block.now(), Counted::new(FIRST, 1));
}

/// Whoever reads an entry's state sees the words that it makes valid.
fn a_ticket<V: Variant>() {
    let entry = Arc::new(Entry::<V>(std::array::from_fn(|_| word64())));
    let owner = {
        let entry = entry.clone();
        thread::spawn(move || {
            entry
                .at()
                .record_ticket(1, (Kind::Giving, 5, FIRST), (6, 7));
        })
    };
    let reaper = {
        let entry = entry.clone();
        thread::spawn(move || {
            let at = entry.at();
            let seen = at.load();
            if seen.kind == Kind::Giving {
                let words = [at.generation, at.ticket_cell, at.ticket_position];
                assert_eq!(words.map(|word| word.load(Relaxed)), [FIRST, 6, 7]);
            }
        })
    };
    owner.join().expect("the owner did not panic");
    reaper.join().expect("the reaper did not panic");
}

#[test]
fn a_block_is_made_anew_after_all_uses() {
    check(3, two_holders::<Right>);
    check_fails(3, two_holders::<RelaxedPublication>);
}

#[test]
fn a_block_that_somebody_opens_is_freed_once_and_after_all_uses() {
    check(3, an_opener::<Right>);
    check_fails(3, an_opener::<RelaxedPublication>);
}

#[test]
fn a_sole_holder_comes_after_the_others() {
    check(3, alone::<Right>);
    check_fails(3, alone::<RelaxedPublication>);
    check_fails(3, alone::<RelaxedLoads>);
}

#[test]
fn an_entry_is_read_with_its_ticket() {
    check(3, a_ticket::<Right>);
    check_fails(3, a_ticket::<RelaxedLoads>);
}
