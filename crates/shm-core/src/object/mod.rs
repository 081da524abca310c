//! Objects: blocks of control words that processes operate on together, such as queues, events and rings.
//!
//! An object's header says where its cells, slots, events and ends are, so that the reaper in this crate can
//! mend any object without knowing what it means to the crate that made it. Everything in an object is reached
//! as atomic words only. Whoever operates on an object holds a lease on it, so the leases of a dead participant
//! name every object it may have been in the middle of.

use core::fmt;
use core::sync::atomic::{AtomicU64, Ordering};

use crate::arena::Arena;
use crate::cells::{CellArray, Cells};
use crate::error::{Error, ErrorKind, Result};
use crate::event::Event;
use crate::heap;
use crate::held::{self, Held};
use crate::lane::Lane;
use crate::layout::{LINE, WORD, counted, object};
use crate::line::Counted;
use crate::participant::table::read_text;
use crate::permits::Permits;
use crate::prefetch::prefetch_for_writing;
use crate::segment::{Extent, Segment};
use crate::sync::Shared;
use crate::vigil::Place;

mod array;
mod end;
mod header;
mod mend;

pub(crate) use array::ArrayRef;
pub(crate) use array::Placed;
pub use array::{Array, Lookout};
use array::{HEADER_WORDS, Watched};
pub(crate) use array::{apart, place};
pub use end::{End, LaneEnd};
pub use header::ObjectKind;
pub(crate) use mend::{
    count_dead_consumer, count_lost_message, empty, mend, notify_changed, postpone,
};

/// A reference of this process to an object. Clones are local; the last one gives the reference back.
#[derive(Clone)]
pub struct Object {
    pub(crate) held: Held,
    kind: ObjectKind,
    base: u64,
    /// The words in front of all arrays.
    head: Extent,
    user_words: u64,
    arrays: [Placed; object::ARRAY_COUNT as usize],
}

impl Object {
    /// The arena the object is in.
    #[must_use]
    #[inline]
    pub fn arena(&self) -> &Arena {
        self.held.arena()
    }

    /// What the object is.
    #[must_use]
    #[inline]
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
    #[inline]
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
    #[inline]
    pub fn event(&self, index: u64) -> Event<'_, Shared> {
        assert!(index < 2, "an object has two events");
        event_at(self.arena().segment(), self.base, index)
    }

    /// Where event `index` is, for [`vigil::sleep`](crate::vigil::sleep).
    ///
    /// # Panics
    /// For another index than 0 or 1.
    #[must_use]
    pub fn event_place(&self, index: u64) -> Place {
        assert!(index < 2, "an object has two events");
        Place::new(self.arena(), self.base + object::EVENTS + index * LINE)
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
    #[inline]
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
    #[inline]
    pub(crate) fn cells(&self, index: usize) -> Result<Cells<ArrayRef<'_>>> {
        match self.arrays.get(index) {
            Some(&Placed {
                array: Array::Cells { .. },
                ..
            }) => Ok(Cells(self.messages(index))),
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
    #[inline]
    pub(crate) fn lane(&self, index: usize) -> Result<Lane<ArrayRef<'_>>> {
        match self.arrays.get(index) {
            Some(&Placed {
                array: Array::Lane { .. },
                ..
            }) => Ok(Lane(self.messages(index))),
            _ => Err(Error::wrong_mode("an object without a lane", "a lane")),
        }
    }

    /// The permits of array `index`; none if it is something else.
    #[must_use]
    pub fn permits(&self, index: usize) -> Permits<'_, Shared> {
        let words = match self.arrays.get(index) {
            Some(&Placed {
                array: Array::Permits { count },
                first,
                ..
            }) => self.arena().segment().words_at(first, count.into()),
            _ => None,
        };
        Permits(words.unwrap_or(&[]))
    }

    /// What to look at while waiting for a message in array `index`.
    #[must_use]
    pub fn lookout(&self, index: usize) -> Lookout<'_> {
        let watched = match self.array(index) {
            Array::Cells { .. } => Watched::Cells(Cells(self.messages(index))),
            Array::Lane { .. } => Watched::Lane(Lane(self.messages(index))),
            Array::None | Array::Slots { .. } | Array::Permits { .. } => Watched::Nothing,
        };
        Lookout {
            watched,
            segment: self.arena().segment(),
        }
    }

    /// Brings the cell that the next message goes into nearer, which the other side has touched last: while the message is
    /// still being written. For the producer of a lane; among several producers it was found to cost more than it gains.
    #[inline]
    pub fn hasten(&self) {
        let messages = self.messages(0);
        if messages.capacity() > 0 {
            // Relaxed: whichever cell it is.
            let index = messages.index(messages.tail().load(Ordering::Relaxed));
            prefetch_for_writing(messages.word(index));
        }
    }

    /// Array `index` as the algorithms see it; of no cells if it is no array of cells.
    #[inline(always)]
    pub(crate) fn messages(&self, index: usize) -> ArrayRef<'_> {
        let placed = self.arrays.get(index).unwrap_or(&Placed::NONE);
        ArrayRef {
            cells: self.arena().segment().words_in(placed.words),
            header: self.head(),
            index,
            capacity: placed.capacity,
            first: placed.first,
            apart: placed.apart,
        }
    }

    /// The object's own words, in front of all arrays.
    #[inline(always)]
    fn head(&self) -> &[AtomicU64; HEADER_WORDS] {
        match self.arena().segment().words_in(self.head).first_chunk() {
            Some(words) => words,
            None => unreachable!("the extent has that many words"),
        }
    }

    /// Flag bits; bit 0 is *closed*.
    #[must_use]
    pub fn flags(&self) -> &AtomicU64 {
        self.arena().segment().word(self.base + object::FLAGS)
    }

    /// Whether the message after the one at `position` is there: a wake that was meant for several is passed on.
    #[must_use]
    #[inline]
    pub fn next_is_ready(&self, position: u64) -> bool {
        self.cells(0)
            .is_ok_and(|cells| cells.next_is_ready(position))
    }

    /// Whether the cell after the one at `position` is free.
    #[must_use]
    #[inline]
    pub fn next_is_free(&self, position: u64) -> bool {
        self.cells(0)
            .is_ok_and(|cells| cells.next_is_free(position))
    }

    /// Takes no more messages; those that are there can be taken. Wakes whoever waits.
    pub fn close(&self) {
        if let Ok(cells) = self.cells(0) {
            cells.close();
        } else if let Ok(lane) = self.lane(0) {
            lane.close();
        }
        self.notify_all();
    }

    /// Whether it was closed. An object without messages always is.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        // What it is first: who waits asks this at each turn, and an error that nobody reads takes longer than the answer.
        match self.array(0) {
            Array::Lane { .. } => self.lane(0).is_ok_and(|lane| lane.is_closed()),
            _ => self.cells(0).map_or(true, |cells| cells.is_closed()),
        }
    }

    /// About how many messages there are.
    #[must_use]
    pub fn len(&self) -> u64 {
        match self.array(0) {
            Array::Lane { .. } => self.lane(0).map_or(0, |lane| lane.len()),
            _ => self.cells(0).map_or(0, |cells| cells.len()),
        }
    }

    /// Whether there is no message, and none is being put or taken: exact, where [`len`](Self::len) is a hint that a death
    /// may leave wrong. Looks at every cell.
    #[must_use]
    pub fn holds_nothing(&self) -> bool {
        match self.cells(0) {
            Ok(cells) => cells.are_all_free(),
            Err(_) => self.is_empty(),
        }
    }

    /// Whether [`len`](Self::len) is 0.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many messages were ever put and taken, positions that a dead producer had claimed among them.
    #[must_use]
    pub fn traffic(&self) -> (u64, u64) {
        let messages = self.messages(0);
        let [tail, head] = [messages.tail(), messages.head()];
        (tail.load(Ordering::Acquire), head.load(Ordering::Acquire))
    }

    /// Remembers messages, or tasks, that a dead consumer had in hand, and nobody else knows of any more. A kill just
    /// before loses them from the statistics, and from nothing else.
    #[cold]
    pub(crate) fn count_lost(&self, messages: u32) {
        self.count(1, messages);
    }

    /// Adds to the last word but so many (1: the last one), for an owner crate that keeps count there.
    #[cold]
    fn count(&self, from_end: u64, how_many: u32) {
        if let Some(word) = self.user_words.checked_sub(from_end) {
            self.word(word)
                .fetch_add(how_many.into(), Ordering::Relaxed);
        }
    }

    /// Whether no message is in array 0, on its way in or half taken. Exact if nobody puts meanwhile.
    #[must_use]
    pub fn is_clear(&self) -> bool {
        self.cells(0).map_or_else(
            |_| self.lane(0).map_or(true, |lane| lane.is_empty()),
            |cells| cells.is_clear(),
        )
    }

    /// Takes side `index` of a lane (0: the producer, 1: the consumer), of which there is one.
    ///
    /// # Errors
    /// `AlreadyExists` when somebody has it; `WrongMode` for an object without a lane.
    pub fn lane_end(&self, index: u64) -> Result<LaneEnd> {
        LaneEnd::take(self, index)
    }

    /// Opens side `index` (0: producers, 1: consumers) for the first time, or once more. A lane has a
    /// [`lane_end`](Self::lane_end) instead.
    ///
    /// # Errors
    /// What taking a reference can answer.
    pub fn end(&self, index: u64) -> Result<End> {
        if matches!(self.array(0), Array::Lane { .. }) {
            return Err(Error::wrong_mode(
                "a lane, whose ends are nobody's to share",
                "a queue with cells",
            ));
        }
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
    #[inline]
    pub(crate) fn end_line(&self, index: u64) -> u64 {
        assert!(index < 2, "an object has two ends");
        (self.base + object::ENDS) / LINE + index
    }

    /// How many processes and messages hold side `index`.
    #[must_use]
    #[inline]
    pub fn end_count(&self, index: u64) -> u64 {
        assert!(index < 2, "an object has two ends");
        let end = (object::ENDS + index * LINE) / WORD;
        let word = self.head()[end as usize].load(Ordering::Acquire);
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

/// What it is and where it was made: what a message about it should say.
impl fmt::Display for Object {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the {} made at {}", self.kind.name(), self.site())?;
        match self.arrays[0].array {
            Array::Cells { capacity } | Array::Lane { capacity } => {
                write!(f, " (room for {capacity})")
            }
            Array::None | Array::Slots { .. } | Array::Permits { .. } => Ok(()),
        }
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

#[inline]
fn event_at(segment: &Segment, base: u64, index: u64) -> Event<'_, Shared> {
    let line = base + object::EVENTS + index * LINE;
    Event::new(segment.half(line), segment.half(line + 4))
}
