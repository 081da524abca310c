//! Objects: blocks of control words that processes operate on together, such as queues, events and rings.
//!
//! An object's header says where its cells, slots, events and ends are, so that the reaper in this crate can
//! mend any object without knowing what it means to the crate that made it. Everything in an object is reached
//! as atomic words only. Whoever operates on an object holds a lease on it, so the leases of a dead participant
//! name every object it may have been in the middle of.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};
use std::panic::Location;

use crate::arena::Arena;
use crate::cells::{CellArray, Cells, Owner, PAYLOAD_WORDS};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::heap;
use crate::held::{self, Held};
use crate::lane::Lane;
use crate::layout::{LINE, WORD, counted, object};
use crate::line::{Counted, Mode, Tag};
use crate::participant::table::{read_text, write_text};
use crate::segment::Segment;
use crate::sync::Shared;

/// What an object's owner crate calls it. The number is on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum ObjectKind {
    /// A letterbox of this crate.
    Letterbox,
    /// A queue.
    Queue,
    /// An event.
    Event,
    /// A ring of slots.
    Ring,
    /// A barrier.
    Barrier,
}

impl ObjectKind {
    const fn code(self) -> u64 {
        match self {
            Self::Letterbox => 1,
            Self::Queue => 2,
            Self::Event => 3,
            Self::Ring => 4,
            Self::Barrier => 5,
        }
    }

    const fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            1 => Self::Letterbox,
            2 => Self::Queue,
            3 => Self::Event,
            4 => Self::Ring,
            5 => Self::Barrier,
            _ => return None,
        })
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Letterbox => "letterbox",
            Self::Queue => "queue",
            Self::Event => "event",
            Self::Ring => "ring",
            Self::Barrier => "barrier",
        }
    }
}

/// An array in an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Array {
    /// No array.
    None,
    /// Cells for any number of producers and consumers.
    Cells {
        /// How many messages it holds.
        capacity: u32,
    },
    /// A lane for one producer and one consumer.
    Lane {
        /// How many messages it holds.
        capacity: u32,
    },
    /// Counted lines, one per slot of a ring.
    Slots {
        /// How many.
        count: u32,
    },
}

impl Array {
    fn code_and_count(self) -> (u64, u64) {
        match self {
            Self::None => (0, 0),
            Self::Cells { capacity } => (1, capacity.into()),
            Self::Lane { capacity } => (2, capacity.into()),
            Self::Slots { count } => (3, count.into()),
        }
    }
}

/// Where an array lies; checked once against the object's size, then never read again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placed {
    pub(crate) array: Array,
    /// Offset of the first line in the arena.
    pub(crate) first: u64,
}

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
    /// Makes an object with these arrays and `user_words` zeroed words for its owner crate.
    ///
    /// # Errors
    /// What [`ErrorKind`] says of allocations; `Shape` for an array of no elements.
    #[track_caller]
    pub fn create(
        arena: &Arena,
        kind: ObjectKind,
        arrays: [Array; 2],
        user_words: u64,
    ) -> Result<Self> {
        let site = Location::caller();
        for array in arrays {
            if array != Array::None && array.code_and_count().1 == 0 {
                return Err(Error::new(
                    ErrorKind::Shape,
                    format!(
                        "a {} with room for 0 items was asked for; it needs room for at least 1",
                        kind.name()
                    ),
                ));
            }
        }
        let user_bytes = (user_words * WORD).next_multiple_of(LINE);
        let lines: u64 = arrays.iter().map(|array| array.code_and_count().1).sum();
        let bytes = object::USER + user_bytes + lines * LINE;
        let held = Held::allocate(arena, bytes, Mode::Object)?;
        let segment = arena.segment();
        let span = heap::locate(segment, held.line)
            .ok_or_else(|| held::stale(held.line, held.generation))?;
        for word in 0..bytes / WORD {
            segment
                .word(span.data + word * WORD)
                .store(0, Ordering::Relaxed);
        }
        segment
            .word(span.data + object::KIND)
            .store(kind.code() | (user_words << 16), Ordering::Relaxed);
        let mut first = object::USER + user_bytes;
        for (index, array) in arrays.iter().enumerate() {
            let (code, count) = array.code_and_count();
            let descriptor = span.data + object::ARRAYS + index as u64 * object::ARRAY;
            segment
                .word(descriptor)
                .store(code | (count << 16), Ordering::Relaxed);
            segment
                .word(descriptor + WORD)
                .store(first, Ordering::Relaxed);
            first += count * LINE;
        }
        let text = format!("{}:{}", site.file(), site.line());
        write_text(segment, span.data + object::SITE, object::SITE_WORDS, &text);
        for end in 0..2 {
            let line = span.data + object::ENDS + end * LINE;
            segment
                .word(line + counted::META)
                .store(Tag::End.meta_in_object(held.line), Ordering::Relaxed);
            segment.word(line).store(
                Counted::new(held.generation, 0).to_word(),
                Ordering::Relaxed,
            );
        }
        let this = Self::over(held)?;
        for (index, placed) in this.arrays.iter().enumerate() {
            match placed.array {
                Array::Cells { .. } => this.cells(index)?.init(),
                Array::Lane { .. } => this.lane(index)?.init(),
                Array::Slots { count } => {
                    for slot in 0..u64::from(count) {
                        let line = placed.first + slot * LINE;
                        segment
                            .word(line + counted::META)
                            .store(Tag::Slot.meta_in_object(this.held.line), Ordering::Relaxed);
                    }
                }
                Array::None => {}
            }
        }
        Ok(this)
    }

    /// The object that a held block is; every number in its header is checked here.
    pub(crate) fn over(held: Held) -> Result<Self> {
        let arena = held.arena().clone();
        let segment = arena.segment();
        let meta = segment
            .word(held.line * LINE + counted::META)
            .load(Ordering::Acquire);
        let span = heap::locate(segment, held.line)
            .ok_or_else(|| held::stale(held.line, held.generation))?;
        if Tag::from_meta(meta) != Some(Tag::Block) || Mode::from_meta(meta) != Some(Mode::Object) {
            return Err(Error::wrong_mode(
                "a block of data",
                "an object (queue, event, ring)",
            ));
        }
        let damaged = || {
            Error::new(
                ErrorKind::Layout,
                "an object's header does not add up; a participant wrote where it must not",
            )
        };
        if span.capacity < object::USER {
            return Err(damaged());
        }
        let head = segment
            .word(span.data + object::KIND)
            .load(Ordering::Acquire);
        let kind = ObjectKind::from_code(head & 0xffff).ok_or_else(damaged)?;
        let user_words = head >> 16;
        if user_words > (span.capacity - object::USER) / WORD {
            return Err(damaged());
        }
        let mut arrays = [Placed {
            array: Array::None,
            first: 0,
        }; object::ARRAY_COUNT as usize];
        for (index, placed) in arrays.iter_mut().enumerate() {
            let descriptor = span.data + object::ARRAYS + index as u64 * object::ARRAY;
            let head = segment.word(descriptor).load(Ordering::Acquire);
            let first = segment.word(descriptor + WORD).load(Ordering::Acquire);
            let count = u32::try_from(head >> 16).map_err(|_| damaged())?;
            let array = match head & 0xffff {
                0 => Array::None,
                1 => Array::Cells { capacity: count },
                2 => Array::Lane { capacity: count },
                3 => Array::Slots { count },
                _ => return Err(damaged()),
            };
            let fits = first
                .checked_add(u64::from(count) * LINE)
                .is_some_and(|end| {
                    first >= object::USER + user_words * WORD && end <= span.capacity
                });
            if array != Array::None && (count == 0 || !fits || !first.is_multiple_of(LINE)) {
                return Err(damaged());
            }
            *placed = Placed {
                array,
                first: span.data.saturating_add(first),
            };
        }
        Ok(Self {
            held,
            kind,
            base: span.data,
            user_words,
            arrays,
        })
    }

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
        let held = match Held::acquire_free(self.arena(), line)? {
            Some(held) => held,
            None => {
                let word = self
                    .arena()
                    .segment()
                    .word(line * LINE)
                    .load(Ordering::Acquire);
                Held::open(self.arena(), line, Counted::from_word(word).generation)?
            }
        };
        Ok(End { held })
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

/// A share in one side of an object, for instance a queue's producers. When the last one of all processes goes,
/// whoever waits is woken.
#[derive(Clone, Debug)]
pub struct End {
    pub(crate) held: Held,
}

impl End {
    /// Whether no other handle in this process and no other process or message shares the side.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.held.is_sole()
    }

    /// Whether no other handle in this process shares this reference.
    #[must_use]
    pub fn is_locally_unique(&self) -> bool {
        self.held.is_locally_unique()
    }

    /// Whether this is side `index` of `object`.
    #[must_use]
    pub fn is_of(&self, object: &Object, index: u64) -> bool {
        self.held.line == object.end_line(index)
    }
}

/// An array of cells in an object, as the algorithms of [`crate::cells`] and [`crate::lane`] see it.
#[derive(Debug)]
pub struct ArrayRef<'a> {
    words: &'a [AtomicU64],
    tail: &'a AtomicU64,
    head: &'a AtomicU64,
    orphan_epoch: &'a AtomicU64,
    flags: &'a AtomicU64,
    capacity: u64,
    pub(crate) first: u64,
}

impl CellArray for ArrayRef<'_> {
    type M = Shared;

    #[inline]
    fn capacity(&self) -> u64 {
        self.capacity
    }

    #[inline]
    fn word(&self, index: u64) -> &AtomicU64 {
        &self.words[index as usize * 8]
    }

    #[inline]
    fn payload(&self, index: u64) -> &[AtomicU64; PAYLOAD_WORDS] {
        let start = index as usize * 8 + 1;
        match self.words[start..start + PAYLOAD_WORDS].try_into() {
            Ok(words) => words,
            Err(_) => unreachable!("the range has that many words"),
        }
    }

    #[inline]
    fn tail(&self) -> &AtomicU64 {
        self.tail
    }

    #[inline]
    fn head(&self) -> &AtomicU64 {
        self.head
    }

    #[inline]
    fn orphan_epoch(&self) -> &AtomicU64 {
        self.orphan_epoch
    }

    #[inline]
    fn closed(&self) -> &AtomicU64 {
        self.flags
    }
}

fn event_at(segment: &Segment, base: u64, index: u64) -> Event<'_, Shared> {
    let line = base + object::EVENTS + index * LINE;
    Event::new(segment.half(line), segment.half(line + 4))
}

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
