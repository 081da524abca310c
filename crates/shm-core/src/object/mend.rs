//! What others do to an object on behalf of one who is gone: empty it, mend it, wake its waiters.

use core::sync::atomic::Ordering;
use std::cell::RefCell;

use super::{Object, ObjectKind, event_at};
use crate::arena::Arena;
use crate::cells::Owner;
use crate::error::ErrorKind;
use crate::heap;
use crate::held::{self, Held};
use crate::layout::{LINE, counted, object};
use crate::line::{Counted, Mode, Tag};

/// Wakes whoever waits for a change of the object with this line: of its ends both events, of its slots the second.
/// No system call when nobody does. Comes after a SeqCst change of the end's or slot's word.
pub(crate) fn notify_changed(arena: &Arena, line: u64, tag: Tag) {
    let segment = arena.segment();
    let Some(span) = heap::locate(segment, line) else {
        return;
    };
    let meta = segment
        .word(line * LINE + counted::META)
        .load(Ordering::Acquire);
    if Mode::from_meta(meta) != Some(Mode::Object) || span.capacity < object::USER {
        return;
    }
    let first = if tag == Tag::Slot { 1 } else { 0 };
    for index in first..2 {
        let event = event_at(segment, span.data, index);
        event.notify_all(|count| event.wake(count));
    }
}

thread_local! {
    /// While this thread empties an object: references it has come upon that may be the last of other objects.
    static POSTPONED: RefCell<Option<Vec<Postponed>>> = const { RefCell::new(None) };
}

/// A reference to give back later, with the entry that records it, if one does.
struct Postponed {
    arena: Arena,
    lease: Option<u32>,
    line: u64,
    generation: u64,
}

/// Keeps a reference to an object for later if this thread is emptying another one, so that a queue in a queue in a
/// queue takes no more stack than one.
pub(crate) fn postpone(arena: &Arena, lease: Option<u32>, line: u64, generation: u64) -> bool {
    let postpone = |list: &RefCell<Option<Vec<Postponed>>>| {
        list.borrow_mut().as_mut().is_some_and(|list| {
            let meta = arena
                .segment()
                .word(line * LINE + counted::META)
                .load(Ordering::Acquire);
            let is_object = held::is_object(meta);
            if is_object {
                list.push(Postponed {
                    arena: arena.clone(),
                    lease,
                    line,
                    generation,
                });
            }
            is_object
        })
    };
    // On a thread that is ending there is no list any more, and stack enough for what is left.
    POSTPONED.try_with(postpone).unwrap_or(false)
}

/// Begins to collect in this thread; `false` if it does already.
fn begin() -> bool {
    let begin = |list: &RefCell<Option<Vec<Postponed>>>| {
        let mut list = list.borrow_mut();
        let first = list.is_none();
        list.get_or_insert_default();
        first
    };
    POSTPONED.try_with(begin).unwrap_or(false)
}

/// Gives back what was collected, which may add to it, until nothing is left.
fn finish() {
    while let Some(next) = POSTPONED.with_borrow_mut(|list| list.as_mut().and_then(Vec::pop)) {
        match next.lease {
            Some(lease) => held::give_back_now(&next.arena, lease, next.line, next.generation),
            None => held::release_unrecorded_now(&next.arena, next.line, next.generation),
        }
    }
    POSTPONED.set(None);
}

/// Releases what the messages in an object hold. Called by its last holder; safe to call again.
pub(crate) fn empty(arena: &Arena, line: u64, generation: u64) {
    let outermost = begin();
    // With a reference of our own, so that whoever reaps us finds the cells that we are emptying; without room for
    // one, what we had begun is lost with us.
    let held = match Held::open(arena, line, generation) {
        // It is gone: somebody has taken over the same count as nobody's.
        Err(error) if *error.kind() == ErrorKind::Stale => {
            if outermost {
                finish();
            }
            return;
        }
        Err(_) => Held::uncounted(arena, line, generation),
        Ok(held) => held,
    };
    match Object::over(held.clone()) {
        Ok(object) => {
            for index in 0..object::ARRAY_COUNT as usize {
                object.drain(index);
            }
            drop(object);
        }
        Err(error) => crate::say!(warn, %error, "an object cannot be emptied"),
    }
    if held.is_locally_unique() {
        held.give_back_at_once();
    }
    if outermost {
        finish();
    }
}

/// Whoever held this line is dead. If that was the consuming end of a queue, what it had taken and not finished is gone,
/// and nobody but it knew what that was; so it is counted, in the last word but one. A reaper that is killed just before
/// misses one.
#[cold]
pub(crate) fn count_dead_consumer(arena: &Arena, line: u64) {
    let segment = arena.segment();
    let meta = segment
        .word(line * LINE + counted::META)
        .load(Ordering::Acquire);
    if Tag::from_meta(meta) != Some(Tag::End) {
        return;
    }
    let of = Tag::object_of(meta);
    if heap::locate(segment, of).is_none() {
        return;
    }
    let generation = Counted::from_word(segment.word(of * LINE).load(Ordering::Acquire)).generation;
    // The dead one's own reference keeps it until the end.
    let Ok(object) = Object::over(Held::uncounted(arena, of, generation)) else {
        return;
    };
    let is_queue = object.kind == ObjectKind::Queue
        && matches!(object.array(0), super::Array::Cells { .. })
        && object.end_line(1) == line;
    if is_queue {
        object.count(2, 1);
    }
}

/// A dead consumer had released the cell at this line and not handed its message to its program. Counted where that was a
/// queue; one that counts tasks has counted this one already.
#[cold]
pub(crate) fn count_lost_message(arena: &Arena, cell: u64) {
    let segment = arena.segment();
    let Some(block) = heap::block_around(segment, cell) else {
        return;
    };
    let word = segment.word(block.line * LINE).load(Ordering::Acquire);
    let held = Held::uncounted(arena, block.line, Counted::from_word(word).generation);
    // The dead one's own reference keeps it until the end; what is no object says so.
    let Ok(object) = Object::over(held) else {
        return;
    };
    if object.kind == ObjectKind::Queue && matches!(object.array(1), super::Array::None) {
        object.count_lost(1);
    }
}

/// Mends what a dead participant left in an object it held: its claims become void, its half-taken messages are
/// handed back, its permits are given back, whoever waits is woken to look again. The dead one's reference keeps the object.
/// Of the dead one it is said which pid it had, and whether its function had returned in order.
pub(crate) fn mend(
    arena: &Arena,
    line: u64,
    generation: u64,
    dead: Owner,
    (pid, returned): (u32, bool),
) {
    let Ok(object) = Object::over(Held::uncounted(arena, line, generation)) else {
        return;
    };
    if !returned {
        object.set_bereaved(pid);
    }
    let mut handed_back = 0;
    for index in 0..object::ARRAY_COUNT as usize {
        if let Ok(cells) = object.cells(index) {
            handed_back += cells.reap(dead).handed_back;
        }
        let permits = object.permits(index);
        if object.kind == ObjectKind::Queue {
            // Counts of tasks in hand; one that was handed back is nobody's task any more.
            permits.reap_counts(dead, pid, handed_back);
        } else {
            permits.reap(dead, pid);
        }
    }
    if object.kind == ObjectKind::Queue && handed_back > 0 {
        object.count(3, handed_back);
    }
    object.notify_all();
}
