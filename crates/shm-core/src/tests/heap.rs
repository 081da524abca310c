//! The allocator against a model: several participants allocate, share, drop and die.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::prelude::*;

use super::{arena, assert_clean, assert_empty, join, kill, wipe};
use crate::arena::Arena;
use crate::chunk::Chunks;
use crate::error::ErrorKind;
use crate::held::Held;
use crate::layout::descriptor;
use crate::line::Mode;
use crate::room::{Limit, Limits};
use crate::storage::Storage;

const PARTICIPANTS: usize = 3;

#[derive(Clone, Debug)]
enum Step {
    Allocate { by: usize, bytes: usize },
    Share { which: usize, to: usize },
    Clone { which: usize },
    Drop { which: usize },
    Die { who: usize },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![
        4 => 0..5_000_usize,
        3 => 5_000..300_000_usize,
        1 => 300_000..7_000_000_usize,
    ];
    let which = 0..1_000_usize;
    let who = 0..PARTICIPANTS;
    prop_oneof![
        8 => (who.clone(), bytes).prop_map(|(by, bytes)| Step::Allocate { by, bytes }),
        3 => (which.clone(), who.clone()).prop_map(|(which, to)| Step::Share { which, to }),
        2 => which.clone().prop_map(|which| Step::Clone { which }),
        8 => which.prop_map(|which| Step::Drop { which }),
        1 => who.prop_map(|who| Step::Die { who }),
    ]
}

/// A handle, whose it is, and what its block was filled with.
struct Live {
    by: usize,
    storage: Storage,
    mark: u8,
}

const EDGE: usize = 64;

fn fill(storage: &Storage, mark: u8) {
    let edge = storage.len().min(EDGE);
    storage.write_bytes(0, &vec![mark; edge]);
    storage.write_bytes(storage.len() - edge, &vec![mark; edge]);
}

fn check(live: &[Live]) {
    let mut ranges: Vec<(usize, usize, (u64, u64))> = Vec::new();
    for Live { by, storage, mark } in live {
        let edge = storage.len().min(EDGE);
        let start = storage.read_bytes(0, edge);
        let end = storage.read_bytes(storage.len() - edge, edge);
        assert!(
            start.iter().chain(&end).all(|byte| byte == mark),
            "a block of participant {by} lost its content"
        );
        let base = storage.arena().segment().bytes_at(0, 0).unwrap().as_ptr() as usize;
        let at = storage.as_ptr() as usize - base;
        assert!(at.is_multiple_of(64));
        ranges.push((at, at + storage.len(), storage.id()));
    }
    ranges.sort_unstable();
    for pair in ranges.windows(2) {
        let ((_, end, one), (start, _, other)) = (pair[0], pair[1]);
        assert!(one == other || end <= start, "two blocks overlap: {pair:?}");
    }
}

fn run(steps: Vec<Step>) {
    let root = arena();
    let mut arenas: Vec<Arena> = (0..PARTICIPANTS).map(|_| join(&root)).collect();
    let mut live: Vec<Live> = Vec::new();
    let mut mark = 0_u8;
    let mut deaths = 0;
    for step in steps {
        match step {
            Step::Allocate { by, bytes } => {
                // The arena is small: being full is one of the answers.
                if let Ok(storage) = Storage::allocate(&arenas[by], bytes, Mode::Message) {
                    assert_eq!(storage.len(), bytes);
                    mark = mark.wrapping_add(1);
                    fill(&storage, mark);
                    live.push(Live { by, storage, mark });
                }
            }
            Step::Share { which, to } if !live.is_empty() => {
                let from = &live[which % live.len()];
                let (line, generation) = from.storage.id();
                let held = Held::open(&arenas[to], line, generation).unwrap();
                let mark = from.mark;
                let storage = Storage::over(held).unwrap();
                live.push(Live {
                    by: to,
                    storage,
                    mark,
                });
            }
            Step::Clone { which } if !live.is_empty() => {
                let Live { by, storage, mark } = &live[which % live.len()];
                let (by, storage, mark) = (*by, storage.clone(), *mark);
                live.push(Live { by, storage, mark });
            }
            Step::Drop { which } if !live.is_empty() => {
                drop(live.swap_remove(which % live.len()));
            }
            Step::Die { who } if deaths < 2 => {
                deaths += 1;
                let (lost, kept): (Vec<_>, Vec<_>) =
                    live.into_iter().partition(|one| one.by == who);
                live = kept;
                let next = join(&root);
                let dead = kill(std::mem::replace(&mut arenas[who], next), lost);
                root.bury_for_certain(dead);
                assert!(!root.is_present(dead));
            }
            _ => {}
        }
        check(&live);
    }
    assert_clean(&root);
    drop(live);
    assert_empty(&root);
    drop(arenas);
    assert_eq!(root.participants(), 1);
    // All of it can be had again, by the one who is left: nothing is lost but what it uses for itself.
    let total = crate::layout::chunk_count(root.segment().capacity());
    let whole: Vec<Storage> =
        std::iter::from_fn(|| Storage::allocate(&root, 2 << 20, Mode::Message).ok()).collect();
    assert!(
        whole.len() as u64 >= total - 2,
        "{} of {total}",
        whole.len()
    );
    drop(whole);
    wipe(&root);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn blocks_never_overlap_and_all_memory_comes_back(steps in prop::collection::vec(step(), 1..80)) {
        run(steps);
    }
}

#[test]
fn what_is_free_below_and_what_was_never_used_is_one_piece() {
    for first in [100_usize, 190, 200] {
        let arena = Arena::builder().capacity(256 << 20).create().unwrap();
        drop(Storage::allocate(&arena, first << 20, Mode::Exclusive).unwrap());
        arena.trim();
        let kept = Storage::allocate(&arena, 2 << 20, Mode::Exclusive).unwrap();
        // All but what is kept, in one piece; then nothing more.
        let rest = Storage::allocate(&arena, 240 << 20, Mode::Exclusive).unwrap();
        assert!(Storage::allocate(&arena, 8 << 20, Mode::Exclusive).is_err());
        drop((kept, rest));
        wipe(&arena);
    }
}

#[test]
fn memory_that_was_paid_for_is_used_again() {
    let (one, two) = (arena(), ());
    let () = two;
    let other = join(&one);
    let sizes = [
        1,
        64,
        100,
        5_000,
        70_000,
        262_144,
        262_145,
        3 << 20,
        9 << 20,
    ];
    let round = || {
        let blocks: Vec<Storage> = sizes
            .iter()
            .map(|&bytes| Storage::allocate(&one, bytes, Mode::Message).unwrap())
            .collect();
        // Half of it is dropped by another participant, and found by its owner all the same.
        let elsewhere: Vec<Held> = blocks
            .iter()
            .step_by(2)
            .map(|block| Held::open(&other, block.id().0, block.id().1).unwrap())
            .collect();
        drop(blocks);
        drop(elsewhere);
        one.stats().committed
    };
    let paid = round();
    for _ in 0..50 {
        assert_eq!(round(), paid);
    }
    assert_empty(&one);
}

#[test]
fn a_small_run_after_a_large_one_commits_nothing_and_counts_right() {
    let arena = arena();
    let large = Storage::allocate(&arena, 20 << 20, Mode::Message).unwrap();
    let paid = arena.stats().committed;
    drop(large);
    // As long as the cached run fits it is used; a much smaller one takes chunks of its own.
    let again = Storage::allocate(&arena, 19 << 20, Mode::Message).unwrap();
    assert_eq!(arena.stats().committed, paid);
    drop(again);
    assert_empty(&arena);
}

#[test]
fn what_a_dead_owner_left_free_is_allocated_by_others() {
    let root = arena();
    let other = join(&root);
    let kept = Storage::allocate(&other, 100, Mode::Message).unwrap();
    let given = Held::open(&root, kept.id().0, kept.id().1).unwrap();
    let chunk = crate::heap::locate(root.segment(), kept.id().0)
        .unwrap()
        .chunk;
    let dead = kill(other, kept);
    root.bury_for_certain(dead);
    assert_clean(&root);
    // The slab was adopted, not left: blocks of the size come out of it.
    let next = Storage::allocate(&root, 100, Mode::Message).unwrap();
    assert_eq!(
        crate::heap::locate(root.segment(), next.id().0)
            .unwrap()
            .chunk,
        chunk
    );
    drop((given, next));
    assert_empty(&root);
}

#[test]
fn a_mark_that_a_broken_peer_raised_makes_no_block_of_what_was_never_committed() {
    let root = arena();
    let other = join(&root);
    let kept = Storage::allocate(&other, 4096, Mode::Message).unwrap();
    let given = Held::open(&root, kept.id().0, kept.id().1).unwrap();
    let chunk = crate::heap::locate(root.segment(), kept.id().0)
        .unwrap()
        .chunk;
    let chunks = Chunks::new(root.segment());
    chunks
        .word(chunk, descriptor::BUMP)
        .store(u64::MAX, Ordering::SeqCst);
    let dead = kill(other, kept);
    root.bury_for_certain(dead);
    // Its slab is adopted with what the mark says; blocks come from what is there, and from chunks of our own.
    let blocks: Vec<Storage> = (0..600)
        .map(|_| Storage::allocate(&root, 4096, Mode::Message).unwrap())
        .collect();
    for block in &blocks {
        assert!(crate::heap::locate(root.segment(), block.id().0).is_some());
    }
    drop((given, blocks));
    assert_empty(&root);
}

#[test]
fn a_size_that_no_machine_has_is_an_error() {
    let arena = arena();
    for bytes in [1 << 30, 1 << 62, usize::MAX - 5, usize::MAX] {
        let error = Storage::allocate(&arena, bytes, Mode::Message).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::CapacityExhausted { .. }),
            "{error}"
        );
        let text = error.to_string();
        assert!(text.contains("more than the whole arena has"), "{text}");
    }
    assert_empty(&arena);
}

#[test]
fn an_arena_that_is_used_up_says_what_is_free_and_in_which_pieces() {
    let arena = arena();
    let half = arena.stats().capacity as usize / 2;
    let first = Storage::allocate(&arena, half, Mode::Message).unwrap();
    let text = Storage::allocate(&arena, half, Mode::Message)
        .unwrap_err()
        .to_string();
    assert!(text.contains("are used up"), "{text}");
    assert!(text.contains("the largest free piece has"), "{text}");
    assert!(!text.contains("more than the whole arena"), "{text}");
    drop(first);
    assert_empty(&arena);
}

#[test]
fn what_one_frees_another_can_allocate_while_both_live() {
    let one = arena();
    let other = join(&one);
    // Most of the arena, twice; the first has kept it neither for itself nor for ever.
    for by in [&one, &other, &one] {
        let most: Vec<Storage> = (0..8)
            .map(|_| Storage::allocate(by, 10 << 20, Mode::Message).unwrap())
            .collect();
        assert_clean(&one);
        drop(most);
    }
    assert_empty(&one);
}

/// A machine that has this much memory for the arena's file.
#[derive(Debug)]
struct Machine(u64);

impl Limits for Machine {
    fn each(
        &self,
        _: u64,
        file: BorrowedFd<'_>,
        see: &mut dyn FnMut(Limit<'_>),
    ) -> crate::Result<()> {
        let taken = rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512;
        see(Limit {
            name: &"the test's machine",
            free: self.0.saturating_sub(taken),
            reserve: 0,
            hint: "none",
        });
        Ok(())
    }
}

#[test]
fn memory_that_nobody_uses_is_no_reason_to_refuse_more() {
    let arena = Arena::builder()
        .capacity(512 << 20)
        .limits(Arc::new(Machine(64 << 20)))
        .create()
        .unwrap();
    // Each size leaves memory that the next one cannot use as it lies.
    for bytes in [40 << 20, 5 << 20, 23 << 20, 100 << 10, 45 << 20] {
        let count = (50 << 20) / bytes;
        let blocks: Vec<Storage> = (0..count)
            .map(|_| Storage::allocate(&arena, bytes, Mode::Message).unwrap())
            .collect();
        drop(blocks);
    }
    let error = Storage::allocate(&arena, 70 << 20, Mode::Message).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::OutOfRoom(_)), "{error}");
    assert_empty(&arena);
}
