//! Making an object, and reading the header of one that others made.

use core::sync::atomic::Ordering;
use std::panic::Location;

use super::array::HEADER_WORDS;
use super::{Array, Object, Placed};
use crate::arena::Arena;
use crate::error::{Error, ErrorKind, Result};
use crate::heap;
use crate::held::{self, Held};
use crate::layout::{LINE, WORD, counted, object};
use crate::line::{Counted, Mode, Tag};
use crate::participant::table::write_text;

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
    /// A semaphore.
    Semaphore,
    /// A lock for one.
    Mutex,
    /// A lock for many readers or one writer.
    RwLock,
    /// A condition to wait for.
    Condvar,
    /// Memory of a device, and who may still use which part of it.
    DeviceMemory,
    /// What a process lends to those who use its device memory: events, and where it can be asked.
    DeviceStation,
    /// What a process's streams of devices wait for, to be read by others.
    DeviceStreams,
    /// The names of an arena.
    Names,
    /// A value that has a name.
    Published,
}

impl ObjectKind {
    pub(crate) const fn code(self) -> u64 {
        match self {
            Self::Letterbox => 1,
            Self::Queue => 2,
            Self::Event => 3,
            Self::Ring => 4,
            Self::Barrier => 5,
            Self::Semaphore => 6,
            Self::Mutex => 7,
            Self::RwLock => 8,
            Self::Condvar => 9,
            Self::DeviceMemory => 10,
            Self::DeviceStation => 11,
            Self::DeviceStreams => 12,
            Self::Names => 32,
            Self::Published => 33,
        }
    }

    const fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            1 => Self::Letterbox,
            2 => Self::Queue,
            3 => Self::Event,
            4 => Self::Ring,
            5 => Self::Barrier,
            6 => Self::Semaphore,
            7 => Self::Mutex,
            8 => Self::RwLock,
            9 => Self::Condvar,
            10 => Self::DeviceMemory,
            11 => Self::DeviceStation,
            12 => Self::DeviceStreams,
            32 => Self::Names,
            33 => Self::Published,
            _ => return None,
        })
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Letterbox => "letterbox",
            Self::Queue => "queue",
            Self::Event => "event",
            Self::Ring => "ring",
            Self::Barrier => "barrier",
            Self::Semaphore => "semaphore",
            Self::Mutex => "mutex",
            Self::RwLock => "lock for readers and a writer",
            Self::Condvar => "condition variable",
            Self::DeviceMemory => "device memory",
            Self::DeviceStation => "device station",
            Self::DeviceStreams => "device streams",
            Self::Names => "table of names",
            Self::Published => "published value",
        }
    }
}

impl Object {
    /// The handle of the object that is at `line` now, if there is one.
    pub(crate) fn current_handle(arena: &Arena, line: u64) -> Option<[u64; 2]> {
        let segment = arena.segment();
        heap::locate(segment, line)?;
        // Acquire: as in `open`, which looks at both again.
        let word = |at| segment.word(line * LINE + at).load(Ordering::Acquire);
        let generation = Counted::from_word(word(counted::WORD)).generation;
        held::is_object(word(counted::META)).then_some([line, generation])
    }

    /// What a wait for one of its events waits for, in words.
    pub(crate) fn awaited(&self, event: u64) -> String {
        let what = match (self.kind(), event) {
            (ObjectKind::Queue | ObjectKind::Letterbox, 0) => "a message from ",
            (ObjectKind::Queue | ObjectKind::Letterbox, _) => "room in ",
            (ObjectKind::Ring, 0) => "a slot from ",
            (ObjectKind::Ring, _) => "a free slot of ",
            _ => "",
        };
        format!("{what}{self}")
    }

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
        let lines: u64 = arrays.iter().map(|array| array.lines()).sum();
        let user_bytes = user_words
            .checked_mul(WORD)
            .and_then(|bytes| bytes.checked_next_multiple_of(LINE));
        // An arena never has as many bytes as this in the case that it overflows.
        let bytes = user_bytes
            .and_then(|user| user.checked_add(object::USER + lines * LINE))
            .unwrap_or(u64::MAX / 2);
        let user_bytes = user_bytes.unwrap_or(0);
        // No object yet: a reaper that found one half made would mend what its memory held before.
        let held = Held::allocate(arena, bytes, Mode::Message)?;
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
            first += array.lines() * LINE;
        }
        let text = format!("{}:{}", site.file(), site.line());
        write_text(segment, span.data + object::SITE, object::SITE_WORDS, &text);
        for end in 0..2 {
            let line = span.data + object::ENDS + end * LINE;
            segment
                .word(line + counted::META)
                .store(Tag::End.meta_in_object(held.line), Ordering::Relaxed);
            segment.word(line + counted::WORD).store(
                Counted::new(held.generation << 20, 0).to_word(),
                Ordering::Relaxed,
            );
        }
        crate::failpoint!("object.unborn");
        let this = Self::read(held)?;
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
                        // Far from the generations that slots of an earlier object at this place had.
                        let generation = this.held.generation << 20;
                        segment
                            .word(line + counted::WORD)
                            .store(Counted::new(generation, 0).to_word(), Ordering::Relaxed);
                    }
                }
                // All free; whoever makes the object says which are not there.
                Array::None | Array::Permits { .. } => {}
            }
        }
        // Release: who finds an object finds a whole one.
        segment
            .word(this.held.line * LINE + counted::META)
            .store(Tag::meta_of_block(Mode::Object), Ordering::Release);
        Ok(this)
    }

    /// The object that a held block is; every number in its header is checked here.
    pub(crate) fn over(held: Held) -> Result<Self> {
        let meta = held
            .arena()
            .segment()
            .word(held.line * LINE + counted::META)
            .load(Ordering::Acquire);
        if !held::is_object(meta) {
            return Err(Error::wrong_mode(
                "a block of data",
                "an object (queue, event, ring)",
            ));
        }
        Self::read(held)
    }

    fn read(held: Held) -> Result<Self> {
        let arena = held.arena().clone();
        let segment = arena.segment();
        let span = heap::locate(segment, held.line)
            .ok_or_else(|| held::stale(held.line, held.generation))?;
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
        let mut arrays = [Placed::NONE; object::ARRAY_COUNT as usize];
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
                4 => Array::Permits { count },
                _ => return Err(damaged()),
            };
            let fits = first.checked_add(array.lines() * LINE).is_some_and(|end| {
                first >= object::USER + user_words * WORD && end <= span.capacity
            });
            if array != Array::None && (count == 0 || !fits || !first.is_multiple_of(LINE)) {
                return Err(damaged());
            }
            let first = span.data.saturating_add(first);
            *placed = Placed::at(segment, array, first).ok_or_else(damaged)?;
        }
        let head = segment
            .extent(span.data, HEADER_WORDS as u64)
            .ok_or_else(damaged)?;
        Ok(Self {
            held,
            kind,
            base: span.data,
            head,
            user_words,
            arrays,
        })
    }
}
