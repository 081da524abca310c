//! What others do to an object on behalf of one who is gone: empty it, mend it, wake its waiters.

use core::sync::atomic::Ordering;

use super::{Object, event_at};
use crate::arena::Arena;
use crate::cells::Owner;
use crate::heap;
use crate::held::Held;
use crate::layout::{LINE, counted, object};
use crate::line::{Mode, Tag};

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

/// A second look at an object that the caller (or the dead participant it acts for) holds.
fn borrowed(arena: &Arena, line: u64, generation: u64) -> Option<Object> {
    let held = Held::open(arena, line, generation).ok()?;
    Object::over(held).ok()
}

/// Releases what the messages in an object hold. Called by its last holder; safe to call again.
pub(crate) fn empty(arena: &Arena, line: u64, generation: u64) {
    let Some(object) = borrowed(arena, line, generation) else {
        return;
    };
    for index in 0..object::ARRAY_COUNT as usize {
        object.drain(index);
    }
}

/// Mends what a dead participant left in an object it held: its claims become void, its half-taken messages are
/// handed back, whoever waits is woken to look again.
pub(crate) fn mend(arena: &Arena, line: u64, generation: u64, dead: Owner, pid: u32) {
    let Some(object) = borrowed(arena, line, generation) else {
        return;
    };
    object.set_bereaved(pid);
    for index in 0..object::ARRAY_COUNT as usize {
        if let Ok(cells) = object.cells(index) {
            cells.reap(dead);
        }
    }
    object.notify_all();
}
