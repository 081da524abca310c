//! A peer that writes garbage into control structures gets errors out of us: no panic, no hang.

use std::sync::atomic::Ordering;

use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::{arena, join, kill, queue, wipe};
use crate::arena::Arena;
use crate::chunk::Chunks;
use crate::error::ErrorKind;
use crate::held::Held;
use crate::layout::{CHUNK, DESCRIPTOR, DESCRIPTORS_START, LINE, ROW, ROWS_START};
use crate::line::{Counted, Mode};
use crate::message;
use crate::object::{Array, Object, ObjectKind};
use crate::slots::Slots;
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::testing::{assert_passed, output, rerun};
use crate::trace::Trace;
use crate::transfer::Get;

/// Where a word is overwritten: which structure, which word of it.
type Spot = (u8, u64, u64);

fn value() -> impl Strategy<Value = u64> {
    prop_oneof![
        any::<u64>(),
        0..200_u64,
        Just(u64::MAX),
        // Words that look right: a bit or two of what is there is changed instead.
        (0..64_u32).prop_map(|bit| 1 << bit),
    ]
}

fn scribble(arena: &Arena, object: &Object, spots: &[Spot], flip: bool) {
    let segment = arena.segment();
    let chunks = Chunks::new(segment);
    for &(what, at, value) in spots {
        let offset = match what {
            // The header, but not its identity: that is read once.
            0 => 64 + at % 64 * 8,
            1 => ROWS_START + at % (3 * ROW / 8) * 8,
            2 => DESCRIPTORS_START + at % (12 * DESCRIPTOR / 8) * 8,
            // Bitmaps, lines, leases: the first pages of the first chunks.
            3 => chunks.offset(at % 8) + at / 8 % 1024 * 8,
            4 => object.held.line * 64 + at % 8 * 8,
            _ => object.base() + at % 400 * 8,
        };
        if let Some(word) = segment.u64_at(offset) {
            let now = word.load(Ordering::SeqCst);
            word.store(if flip { now ^ value } else { value }, Ordering::SeqCst);
        }
    }
}

/// Everything that reads what others write. What it answers does not matter.
fn use_all(arena: &Arena, other: &Arena, object: &Object, slots: &Slots) {
    let _ = arena.audit();
    let _ = object.site();
    let _ = object.failure();
    let _ = object.supervisor();
    for array in [0, 1] {
        if let Ok(mut message) = message::encode(arena, (7_u8, "x".repeat(100))) {
            let _ = object.try_put(array, &mut message);
        }
        if let Ok(Get::Message(message, _)) = object.try_get(array, &mut u64::MAX.clone()) {
            // Held references from garbage are not ours to give back.
            std::mem::forget(message);
        }
    }
    for bytes in [10, 3 << 20] {
        if let Ok(block) = Storage::allocate(arena, bytes, Mode::Message) {
            drop(block);
        }
    }
    let _ = Object::over(Held::uncounted(
        arena,
        object.held.line,
        object.held.generation,
    ));
    let _ = slots.in_use();
    if let Ok(Some(loan)) = slots.try_loan(0) {
        std::mem::forget(loan);
    }
    arena.bury_for_certain(other.me());
    arena.bury_the_dead();
    let _ = arena.audit();
    let copy = rustix::io::fcntl_dupfd_cloexec(std::os::fd::AsFd::as_fd(arena), 0).unwrap();
    drop(Arena::join(copy));
}

#[test]
fn garbage_in_control_structures_is_no_panic_and_no_hang() {
    const NAME: &str = "tests::garbage::garbage_in_control_structures_is_no_panic_and_no_hang";
    // In a process of its own, under a watchdog: a hang must not look like a slow machine.
    if let Some(mut child) = rerun(NAME) {
        return assert_passed(&output(&mut child));
    }
    let spot = (0..6_u8, any::<u64>(), value());
    let strategy = (prop::collection::vec(spot, 1..6), any::<bool>());
    let config = Config {
        cases: 200,
        failure_persistence: None,
        ..Config::default()
    };
    TestRunner::new(config)
        .run(&strategy, |(spots, flip)| {
            let arena = arena();
            let other = join(&arena);
            let object = queue(&arena, 4);
            let ring = Object::create(
                &arena,
                ObjectKind::Ring,
                [Array::Slots { count: 3 }, Array::None],
                0,
            )
            .unwrap();
            let slots = Slots::create(&ring, 0, 10).unwrap();
            let theirs = Object::open(&other, object.handle()).unwrap();
            let shared = Tensor::<u8>::zeros_in(&other, [10]).unwrap().freeze();
            for array in [0, 1] {
                let mut message = message::encode(&other, shared.clone()).unwrap();
                let _ = theirs.try_put(array, &mut message).unwrap();
            }
            let own = queue(&other, 2);
            scribble(&arena, &object, &spots, flip);
            use_all(&arena, &other, &object, &slots);
            drop((slots, ring, object));
            kill(other, (theirs, shared, own));
            wipe(&arena);
            Ok(())
        })
        .unwrap();
}

/// A block went, with its chunk, and where its line was are somebody's bytes, which happen to look like that line.
#[test]
fn a_trace_of_what_is_gone_touches_no_bytes_of_others() {
    let arena = arena();
    let block = Tensor::<u8>::zeros_in(&arena, [100]).unwrap();
    let trace = Trace::of(&block);
    let [line, generation] = trace.id();
    drop(block);
    arena.trim();
    let word = arena.segment().word(line * LINE);
    let mut all = Vec::new();
    let at = loop {
        let mut bytes = Tensor::<u64>::zeros_in(&arena, [CHUNK as usize / 8]).unwrap();
        let range = bytes.as_mut_slice().as_ptr_range();
        let looked_for = std::ptr::from_ref(word).cast::<u64>();
        let is_in_it = range.contains(&looked_for);
        all.push(bytes);
        if is_in_it {
            break (looked_for.addr() - range.start.addr()) / 8;
        }
    };
    let alike = Counted::new(generation, 1).to_word();
    let bytes = all.last_mut().unwrap().as_mut_slice();
    bytes[at] = alike;
    assert_eq!(trace.references(), 0);
    let error = trace.hold().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Stale);
    assert_eq!(bytes[at], alike);
}
