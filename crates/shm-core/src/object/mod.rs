//! Objects: blocks of control words that processes operate on together, such as queues, events and rings.
//!
//! An object's header says where its cells, slots, events and ends are, so that the reaper in this crate can
//! mend any object without knowing what it means to the crate that made it. Everything in an object is reached
//! as atomic words only. Whoever operates on an object holds a lease on it, so the leases of a dead participant
//! name every object it may have been in the middle of.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::arena::Arena;
use crate::cells::Cells;
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::heap;
use crate::held::{self, Held};
use crate::lane::Lane;
use crate::layout::{LINE, WORD, counted, object};
use crate::line::Counted;
use crate::participant::table::read_text;
use crate::segment::Segment;
use crate::sync::Shared;

mod array;
mod end;
mod header;
mod mend;

pub(crate) use array::Placed;
pub use array::{Array, ArrayRef};
pub use end::End;
pub use header::ObjectKind;
pub(crate) use mend::{empty, mend, notify_changed, postpone};

/// A reference of this process to an object. Clones are local; the last one gives the reference back.
#[derive(Clone)]
pub struct Object {
    pub(crate) held: Held,
    kind: ObjectKind,
    base: u64,
    user_words: u64,
    arrays: [Placed; object::ARRAY_COUNT as usize],
}

impl Object {
    /// The arena the object is in.
    #[must_use]
    pub fn arena(&self) -> &Arena {
        self.held.arena()
    }

    /// What the object is.
    #[must_use]
    pub fn kind(&self) -> ObjectKind {
        self.kind
    }

    /// Fails unless the object is of `kind`.
    ///
    /// # Errors
    /// `WrongMode`, naming both.
    pub fn expect(&self, kind: ObjectKind) -> Result<()> {
        if self.kind == kind {
            return Ok(());
        }
        Err(Error::wrong_mode(self.kind.name(), kind.name()))
    }

    /// Two words that name the object to processes of the same arena.
    #[must_use]
    pub fn handle(&self) -> [u64; 2] {
        [self.held.line, self.held.generation]
    }

    /// Takes a reference to the object that `handle` names, which somebody must hold meanwhile.
    ///
    /// # Errors
    /// `Stale` when nobody holds it any more; `Layout` and `WrongMode` for a handle that names no object.
    pub fn open(arena: &Arena, handle: [u64; 2]) -> Result<Self> {
        let [line, generation] = handle;
        if heap::locate(arena.segment(), line).is_none() {
            return Err(held::stale(line, generation));
        }
        // Looked at before the count is touched: a number that names somebody's tensor must leave that alone.
        let meta = arena
            .segment()
            .word(line * LINE + counted::META)
            .load(Ordering::Acquire);
        if !held::is_object(meta) {
            return Err(held::stale(line, generation));
        }
        Self::over(Held::open(arena, line, generation)?)
    }

    /// A word of the owner crate.
    ///
    /// # Panics
    /// When the object was not made with that many, as a slice does.
    #[must_use]
    pub fn word(&self, index: u64) -> &AtomicU64 {
        assert!(
            index < self.user_words,
            "word {index} of an object with {}",
            self.user_words
        );
        self.arena()
            .segment()
            .word(self.base + object::USER + index * WORD)
    }

    /// Words that the owner crate has.
    #[must_use]
    pub fn word_count(&self) -> u64 {
        self.user_words
    }

    /// One of the object's two events.
    ///
    /// # Panics
    /// For another index than 0 or 1.
    #[must_use]
    pub fn event(&self, index: u64) -> Event<'_, Shared> {
        assert!(index < 2, "an object has two events");
        event_at(self.arena().segment(), self.base, index)
    }

    /// Wakes everyone who waits for anything about the object.
    pub fn notify_all(&self) {
        for index in 0..2 {
            let event = self.event(index);
            event.rouse(|count| event.wake(count));
        }
    }

    /// What array `index` is, with its size.
    #[must_use]
    pub fn array(&self, index: usize) -> Array {
        self.arrays
            .get(index)
            .map_or(Array::None, |placed| placed.array)
    }

    pub(crate) fn placed(&self, index: usize) -> Option<Placed> {
        self.arrays.get(index).copied()
    }

    /// The cells of array `index`.
    ///
    /// # Errors
    /// `WrongMode` when the array is something else.
    pub fn cells(&self, index: usize) -> Result<Cells<ArrayRef<'_>>> {
        match self.arrays.get(index) {
            Some(&Placed {
                array: Array::Cells { capacity },
                first,
            }) => Ok(Cells(self.array_ref(index, capacity, first))),
            _ => Err(Error::wrong_mode(
                "an object without cells",
                "a queue with cells",
            )),
        }
    }

    /// The lane of array `index`.
    ///
    /// # Errors
    /// `WrongMode` when the array is something else.
    pub fn lane(&self, index: usize) -> Result<Lane<ArrayRef<'_>>> {
        match self.arrays.get(index) {
            Some(&Placed {
                array: Array::Lane { capacity },
                first,
            }) => Ok(Lane(self.array_ref(index, capacity, first))),
            _ => Err(Error::wrong_mode("an object without a lane", "a lane")),
        }
    }

    fn array_ref(&self, index: usize, capacity: u32, first: u64) -> ArrayRef<'_> {
        let segment = self.arena().segment();
        let tail = self.base + object::TAILS + 2 * index as u64 * LINE;
        ArrayRef {
            words: segment
                .words_at(first, u64::from(capacity) * 8)
                .unwrap_or(&[]),
            tail: segment.word(tail),
            head: segment.word(tail + LINE),
            orphan_epoch: segment.word(self.base + object::ORPHAN_EPOCH),
            flags: segment.word(self.base + object::FLAGS),
            capacity: capacity.into(),
            first,
        }
    }

    /// Flag bits; bit 0 is *closed*.
    #[must_use]
    pub fn flags(&self) -> &AtomicU64 {
        self.arena().segment().word(self.base + object::FLAGS)
    }

    /// Opens side `index` (0: producers, 1: consumers) for the first time, or once more.
    ///
    /// # Errors
    /// What taking a reference can answer.
    pub fn end(&self, index: u64) -> Result<End> {
        let line = self.end_line(index);
        let word = self.arena().segment().word(line * LINE);
        let mut tries = 0;
        loop {
            if let Some(held) = Held::acquire_free(self.arena(), line)? {
                return Ok(End::of(self, held));
            }
            let now = Counted::from_word(word.load(Ordering::Acquire));
            match Held::open(self.arena(), line, now.generation) {
                Ok(held) => return Ok(End::of(self, held)),
                // Its last holder let go, or its first one is just coming: look again.
                Err(error) if *error.kind() == ErrorKind::Stale && tries < 10_000 => {
                    tries += 1;
                    if tries % 1_000 == 0 {
                        // One that died there keeps the end until it is buried.
                        self.arena().bury_the_dead();
                    }
                    std::thread::yield_now();
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Line of an end.
    pub(crate) fn end_line(&self, index: u64) -> u64 {
        assert!(index < 2, "an object has two ends");
        (self.base + object::ENDS) / LINE + index
    }

    /// How many processes and messages hold side `index`.
    #[must_use]
    pub fn end_count(&self, index: u64) -> u64 {
        let word = self
            .arena()
            .segment()
            .word(self.end_line(index) * LINE)
            .load(Ordering::Acquire);
        Counted::from_word(word).count
    }

    /// Where the object was made, as `file:line`.
    #[must_use]
    pub fn site(&self) -> String {
        read_text(
            self.arena().segment(),
            self.base + object::SITE,
            object::SITE_WORDS,
        )
    }

    /// Ties an array of slots to the block that is their memory. `false` if it has one already.
    pub(crate) fn bind_memory(&self, array: usize, memory: (u64, u64)) -> bool {
        let [line, generation] = self.memory_words(array);
        let bound = generation
            .compare_exchange(0, memory.1 + 1, Ordering::AcqRel, Ordering::Relaxed)
            .is_ok();
        if bound {
            line.store(memory.0, Ordering::Release);
        }
        bound
    }

    /// Whether that block is the memory of an array of slots.
    pub(crate) fn has_memory(&self, array: usize, memory: (u64, u64)) -> bool {
        let [line, generation] = self.memory_words(array);
        (
            line.load(Ordering::Acquire),
            generation.load(Ordering::Acquire),
        ) == (memory.0, memory.1 + 1)
    }

    fn memory_words(&self, array: usize) -> [&AtomicU64; 2] {
        let descriptor = object::ARRAYS + array as u64 * object::ARRAY;
        [2, 3].map(|word| self.header(descriptor + word * WORD))
    }

    pub(crate) fn header(&self, field: u64) -> &AtomicU64 {
        self.arena().segment().word(self.base + field)
    }

    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Whether both name the same object.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        self.handle() == other.handle() && self.arena().same(other.arena())
    }
}

impl fmt::Debug for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct(self.kind.name())
            .field("made_at", &self.site())
            .field("arrays", &self.arrays.map(|placed| placed.array))
            .finish()
    }
}
fn event_at(segment: &Segment, base: u64, index: u64) -> Event<'_, Shared> {
    let line = base + object::EVENTS + index * LINE;
    Event::new(segment.half(line), segment.half(line + 4))
}
