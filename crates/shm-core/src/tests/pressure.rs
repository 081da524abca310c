//! Who gives memory back when another process lacks it, and how long that one waits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::{arena, assert_empty, join, lend, lent};
use crate::arena::Arena;
use crate::error::ErrorKind;
use crate::heap::{PATIENCE, Request};
use crate::layout::header;
use crate::line::Mode;
use crate::room::FixedLimits;
use crate::storage::Storage;
use crate::testing::{self, rerun};

const MIB: u64 = 1 << 20;

/// An arena with a stated budget, and another participant of it that keeps 32 MiB.
fn kept_by_another(limits: &Arc<FixedLimits>) -> (Arena, Arena) {
    let one = Arena::builder()
        .capacity(1 << 30)
        .limits(limits.clone())
        .create()
        .unwrap();
    let other = join(&one);
    drop(Storage::allocate(&other, 32 << 20, Mode::Message).unwrap());
    (one, other)
}

#[test]
fn what_another_process_keeps_is_given_back_to_whoever_lacks_it() {
    let limits = Arc::new(FixedLimits::new(u64::MAX));
    let (one, other) = kept_by_another(&limits);
    assert!(one.stats().cached >= 32 * MIB);
    // It does something else: only its watcher is there to notice.
    other.watch();
    limits.set_free(MIB);
    let error = Storage::allocate(&one, 8 << 20, Mode::Message).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OutOfRoom(_)), "{error}");
    until_given_back(&one);
    assert_empty(&one);
}

/// On a busy machine a watcher may come later than it is waited for.
fn until_given_back(arena: &Arena) {
    let start = Instant::now();
    while arena.stats().cached >= MIB {
        assert!(start.elapsed().as_secs() < 60, "{:?}", arena.stats());
        std::thread::yield_now();
    }
}

#[test]
fn an_idle_process_answers_whatever_its_free_memory_consists_of() {
    // Runs of 2 and of 12 MiB, and slabs; none of it was enough to be noticed while it was kept.
    for (bytes, count) in [(2 << 20, 3), (12 << 20, 1), (4096, 2000), (200 << 10, 60)] {
        let limits = Arc::new(FixedLimits::new(u64::MAX));
        let one = Arena::builder()
            .capacity(1 << 30)
            .limits(limits.clone())
            .create()
            .unwrap();
        let other = join(&one);
        let blocks: Vec<Storage> = (0..count)
            .map(|_| Storage::allocate(&other, bytes, Mode::Message).unwrap())
            .collect();
        drop(blocks);
        let kept = one.stats().cached;
        assert!(kept >= 5 * MIB, "{bytes}: {kept}");
        limits.set_free(MIB);
        let error = Storage::allocate(&one, 8 << 20, Mode::Message).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfRoom(_)), "{error}");
        until_given_back(&one);
        assert_empty(&one);
    }
}

#[test]
fn who_asks_for_memory_waits_on_after_a_pause_in_which_nobody_had_a_turn() {
    let limits = Arc::new(FixedLimits::new(u64::MAX));
    let (one, other) = kept_by_another(&limits);
    other.end_watcher();
    let mut request = Request::send(&one).expect("somebody keeps memory");
    std::thread::sleep(PATIENCE + Duration::from_millis(100));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // In time, for who had no turn until now.
            std::thread::sleep(Duration::from_millis(50));
            other.heap().answer(other.segment());
        });
        assert!(request.wait(), "given up at the first look");
    });
    assert_empty(&one);
}

#[test]
fn who_keeps_memory_for_itself_answers_those_who_join_later() {
    let first = arena();
    drop(Storage::allocate(&first, 12 << 20, Mode::Message).unwrap());
    let late = join(&first);
    let total = crate::layout::chunk_count(first.segment().capacity());
    // Each of the two has leases in a chunk.
    let mut all: Vec<Storage> = Vec::new();
    let start = Instant::now();
    while (all.len() as u64) < total - 2 {
        assert!(start.elapsed().as_secs() < 60, "{} of {total}", all.len());
        all.extend(Storage::allocate(&late, 2 << 20, Mode::Message));
    }
    drop(all);
    assert_empty(&late);
}

#[test]
fn who_drops_its_last_handle_has_left_also_while_its_watcher_looks() {
    let root = arena();
    for _ in 0..200 {
        let other = join(&root);
        // The watcher starts with this, and looks at once.
        drop(Storage::allocate(&other, 4 << 20, Mode::Message).unwrap());
        drop(other);
        assert_eq!(root.participants(), 1);
    }
    assert_empty(&root);
}

#[test]
fn a_process_at_work_answers_when_it_next_allocates_or_frees() {
    let limits = Arc::new(FixedLimits::new(u64::MAX));
    for frees in [false, true] {
        let (one, other) = kept_by_another(&limits);
        other.end_watcher();
        let block = Storage::allocate(&other, 100, Mode::Message).unwrap();
        let mut request = Request::send(&one).unwrap();
        assert!(one.stats().cached >= 32 * MIB);
        if frees {
            drop(block);
        } else {
            drop(Storage::allocate(&other, 200, Mode::Message).unwrap());
        }
        assert!(one.stats().cached < 32 * MIB);
        assert!(request.wait(), "it has answered");
        assert!(!request.wait(), "and there is nobody else");
    }
}

#[test]
fn who_keeps_nothing_is_not_asked_and_who_is_gone_is_not_waited_for() {
    let limits = Arc::new(FixedLimits::new(u64::MAX));
    let one = arena();
    let other = join(&one);
    let held = Storage::allocate(&other, 4096, Mode::Message).unwrap();
    assert!(Request::send(&one).is_none());
    drop((held, other, one));
    let (one, other) = kept_by_another(&limits);
    let mut request = Request::send(&one).unwrap();
    drop(other);
    assert!(request.wait());
    assert!(!request.wait());
}

#[test]
fn two_that_lack_memory_at_once_do_not_wait_for_each_other() {
    let limits = Arc::new(FixedLimits::new(u64::MAX));
    let (one, other) = kept_by_another(&limits);
    drop(Storage::allocate(&one, 32 << 20, Mode::Message).unwrap());
    let lack = |arena: Arena| {
        std::thread::spawn(move || {
            let error = Storage::allocate(&arena, 1023 << 20, Mode::Message).unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::CapacityExhausted { .. }),
                "{error}"
            );
        })
    };
    let both = [lack(one.clone()), lack(other.clone())];
    for one in both {
        one.join().unwrap();
    }
    for arena in [&one, &other] {
        assert!(Request::send(arena).is_none(), "nobody keeps anything");
    }
}

#[test]
fn a_stopped_process_delays_one_that_lacks_memory_once_and_no_longer_than_stated() {
    const NAME: &str = "tests::pressure::a_stopped_process_delays_one_that_lacks_memory_once_and_no_longer_than_stated";
    let Some(mut child) = rerun(NAME) else {
        let arena = Arena::join(lent()).unwrap();
        drop(Storage::allocate(&arena, 32 << 20, Mode::Message).unwrap());
        return testing::Held::stay();
    };
    let limits = Arc::new(FixedLimits::new(u64::MAX));
    let arena = Arena::builder()
        .capacity(1 << 30)
        .limits(limits.clone())
        .create()
        .unwrap();
    lend(&mut child, &arena);
    let child = testing::Held::start(&mut child);
    child.signal(Signal::STOP);
    limits.set_free(MIB);
    let mut waits = [true, false];
    for waited in &mut waits {
        let asked = arena
            .segment()
            .word(header::PRESSURE)
            .load(Ordering::SeqCst);
        let start = Instant::now();
        let error = Storage::allocate(&arena, 8 << 20, Mode::Message).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfRoom(_)), "{error}");
        *waited = start.elapsed() >= crate::heap::PATIENCE;
        let now = arena
            .segment()
            .word(header::PRESSURE)
            .load(Ordering::SeqCst);
        assert_eq!(now, asked + 1, "it was asked all the same");
    }
    assert!(waits[0], "it did not wait for the stopped one");
    let mut request = Request::send(&arena).unwrap();
    assert!(!request.wait(), "it is not waited for a second time");
    assert!(arena.stats().cached >= 32 * MIB, "nobody else took it");
    child.signal(Signal::CONT);
    // Its watcher answers, and from then on it is waited for again.
    while arena.stats().cached >= 32 * MIB {
        std::thread::yield_now();
    }
    child.let_go();
}
