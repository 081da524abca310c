//! loom models of the turn of a pool's request: it is begun or taken away, never both, and never the next one by mistake.
//!
//! `cargo test -p shm-core --features loom --release --test loom_turn`.
#![cfg(feature = "loom")]

mod loom_support;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use loom::sync::Arc;
use loom::sync::atomic::AtomicU64;
use loom::thread;
use loom_support::{Model, RelaxedPublication, Right, Variant, Word, check, check_fails, word64};
use shm_core::turn::{Found, Revoked, Turn};

/// A lane with one place, which the requests 0, 1, … go through.
struct Lane<V: Variant> {
    turn: Word<V, AtomicU64>,
    /// Requests that were put.
    put: AtomicU64,
    /// Replies.
    replied: AtomicU64,
    /// What the pool wrote down before it took a request away; read by a worker that finds that it did.
    note: AtomicU64,
}

impl<V: Variant> Lane<V> {
    fn new() -> Arc<Self> {
        let lane = Arc::new(Self {
            turn: word64::<V>(),
            put: AtomicU64::new(0),
            replied: AtomicU64::new(0),
            note: AtomicU64::new(0),
        });
        lane.turn().init(0);
        lane
    }

    fn turn(&self) -> Turn<'_, Model<V>> {
        Turn(&self.turn)
    }

    fn write_note(&self) {
        self.note.store(7, Relaxed);
    }

    fn read_note(&self) -> u64 {
        self.note.load(Relaxed)
    }

    /// Takes its turn at the requests from `first` on, until it is halted; says which it ran.
    fn work(&self, first: u64, requests: u64, position: impl Fn(u64) -> u64) -> Vec<u64> {
        let mut ran = Vec::new();
        for request in first..requests {
            while self.put.load(Acquire) <= request {
                thread::yield_now();
            }
            match self.turn().begin(position(request)) {
                Found::Mine => ran.push(request),
                Found::Revoked => assert_eq!(self.read_note(), 7),
                Found::Halted => {
                    assert_eq!(self.read_note(), 7);
                    return ran;
                }
            }
            self.turn().end(position(request + 1));
            self.replied.store(request + 1, Release);
        }
        ran
    }
}

/// The pool revokes a request that the worker is about to begin, or at, or through with while the next one comes to its
/// place.
fn revoked_or_begun<V: Variant>(position: fn(u64) -> u64) {
    let lane = Lane::<V>::new();
    lane.put.store(1, Release);
    let worker = {
        let lane = lane.clone();
        thread::spawn(move || lane.work(0, 2, position))
    };
    // Another thread of the pool puts the next one as soon as there is room.
    let putter = {
        let lane = lane.clone();
        thread::spawn(move || {
            while lane.replied.load(Acquire) == 0 {
                thread::yield_now();
            }
            lane.put.store(2, Release);
        })
    };
    lane.write_note();
    let first = lane.turn().revoke(position(0));
    let ran = worker.join().expect("the worker did not panic");
    putter.join().expect("the putter did not panic");
    assert_eq!(ran.contains(&0), first != Revoked::InTime);
    assert!(ran.contains(&1), "nobody has revoked that one");
}

/// To end the request that runs, the pool halts the one behind it and kills the worker then; what was halted is run by
/// another one. Each request is run at most once, and the one behind exactly once.
fn halted_and_given_to_another<V: Variant>() {
    let lane = Lane::<V>::new();
    lane.put.store(2, Release);
    lane.turn().end(1);
    let worker = {
        let lane = lane.clone();
        // It is through with request 0 and goes on to 1, or dies before.
        thread::spawn(move || lane.work(1, 2, |request| request))
    };
    lane.write_note();
    let halted = lane.turn().halt(1);
    let mut runs = worker.join().expect("the worker did not panic").len();
    if halted == Revoked::InTime {
        runs += 1;
    }
    assert_eq!(runs, 1);
}

#[test]
fn a_request_is_begun_or_revoked_and_the_next_one_is_not_touched() {
    check(3, || revoked_or_begun::<Right>(|request| request));
    check_fails(3, || {
        revoked_or_begun::<RelaxedPublication>(|request| request)
    });
    // Without the position in the word, whoever comes late takes away the next one.
    check_fails(3, || revoked_or_begun::<Right>(|_| 0));
}

#[test]
fn what_was_halted_is_run_once_by_somebody_else() {
    check(4, halted_and_given_to_another::<Right>);
    check_fails(4, halted_and_given_to_another::<RelaxedPublication>);
}
