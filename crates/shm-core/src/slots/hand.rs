//! A slot in this process's hands: loaned to be written, or borrowed to be read.

use core::fmt;
use core::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::Slots;
use super::pass::META_WORDS;
use crate::arena::Arena;
use crate::error::{Error, ErrorKind, Result};
use crate::held;
use crate::layout::LINE;
use crate::lease::Kind;
use crate::line::Counted;
use crate::tensor::Element;

/// Index of a ring object's event that says a slot is free.
const SLOT_FREE: u64 = 1;

/// What a lease entry of a slot is to this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum State {
    /// It is FREE.
    Vacant,
    /// It counts: the slot is to be given back.
    Counting,
    /// A message owns the reference, or may: there is nothing to do, whatever happens.
    Gone,
}

/// A lease entry, and what it says: which slot in which generation, with the words that came with it.
///
/// It stays at its place while what refers to it is handed from function to function; it is filled word by word, and what
/// was just written so cannot be moved on at once without the processor stalling.
pub(super) struct Note {
    pub(super) generation: u64,
    pub(super) meta: [u64; META_WORDS],
    pub(super) lease: u32,
    pub(super) slot: u32,
    pub(super) state: State,
}

/// The notes of a ring that nobody has at present, each with its lease entry: one is allocated only when more slots are
/// in this process's hands than ever before.
#[derive(Default)]
pub(super) struct Notes(Mutex<Pool>);

/// Boxed, so that taking one out moves a pointer.
type Pool = Vec<Box<Note>>;

impl Notes {
    /// A vacant note.
    #[inline]
    pub(super) fn take(&self, arena: &Arena) -> Result<Box<Note>> {
        match self.0.lock().pop() {
            Some(note) => Ok(note),
            None => Self::another(arena),
        }
    }

    #[cold]
    fn another(arena: &Arena) -> Result<Box<Note>> {
        Ok(Box::new(Note {
            generation: 0,
            meta: [0; META_WORDS],
            lease: arena.leases().reserve(arena.segment())?,
            slot: 0,
            state: State::Vacant,
        }))
    }

    /// Takes a note back whose entry is FREE.
    #[inline]
    pub(super) fn put_back(&self, mut note: Box<Note>) {
        note.state = State::Vacant;
        self.0.lock().push(note);
    }

    /// Gives the lease entries back.
    pub(super) fn empty(&mut self, arena: &Arena) {
        for note in self.0.get_mut().drain(..) {
            arena.leases().put_back(note.lease);
        }
    }
}

/// A note, and the ring it is of. What [`Held`](crate::held::Held) is for blocks, without local clones.
pub(super) struct Share {
    // Also keeps the object alive, in whose memory the slot's line lies.
    slots: Slots,
    /// Gone once it went back to the others.
    note: Option<Box<Note>>,
}

impl Share {
    #[inline]
    pub(super) fn new(slots: &Slots, note: Box<Note>) -> Self {
        Self {
            slots: slots.clone(),
            note: Some(note),
        }
    }

    #[inline]
    pub(super) fn slots(&self) -> &Slots {
        &self.slots
    }

    /// What it holds; `None` once a message has it.
    #[inline]
    pub(super) fn note(&self) -> Option<&Note> {
        self.note.as_deref()
    }

    #[inline]
    pub(super) fn parts(&mut self) -> (&Slots, Option<&mut Note>) {
        (&self.slots, self.note.as_deref_mut())
    }

    /// The message owns the reference: the entry becomes FREE, and the note is for the next.
    #[inline]
    pub(super) fn spend(&mut self) {
        let arena = self.slots.object().arena();
        if let Some(note) = self.note.take() {
            arena.leases().clear(arena.segment(), note.lease);
            self.slots.notes().put_back(note);
        }
    }

    /// Which slot it is; 0 for one that a message has.
    #[inline]
    fn slot(&self) -> u32 {
        self.note().map_or(0, |note| note.slot)
    }

    /// The address of a range of the slot.
    fn range<T: Element>(&self, offset: usize, len: usize) -> Result<*mut T> {
        match self.note() {
            Some(note) if note.state == State::Counting => self.slots.range(note.slot, offset, len),
            _ => Err(Error::new(
                ErrorKind::Stale,
                "a slot was to be used that had been handed over",
            )),
        }
    }
}

impl Drop for Share {
    /// As [`held::give_back`], for something that has one holder at most and lies in an object that is known.
    fn drop(&mut self) {
        let object = self.slots.object();
        let arena = object.arena();
        let Some(note) = self.note.take() else {
            return;
        };
        if note.state == State::Gone || arena.is_forked() {
            return;
        }
        if note.state == State::Counting {
            let (segment, leases) = (arena.segment(), arena.leases());
            let line = self.slots.line(note.slot);
            leases.mark(segment, note.lease, Kind::Dropping, line);
            crate::failpoint!("block.drop.recorded");
            // Release: whoever loans it (acquire) does so after all uses. SeqCst: whoever waits for a free slot registers
            // and then looks; we change it and then look for who waits.
            let freed = segment.word(line * LINE).compare_exchange(
                Counted::new(note.generation, 1).to_word(),
                Counted::new(note.generation, 0).to_word(),
                Ordering::SeqCst,
                Ordering::Relaxed,
            );
            if freed.is_err() {
                // Not what a slot is ever like: the careful way says what it found, and takes the entry back.
                held::give_back(arena, note.lease, line, note.generation);
                return;
            }
            let event = object.event(SLOT_FREE);
            event.notify_all(|count| event.wake(count));
            crate::failpoint!("block.drop.uncounted");
            leases.clear(segment, note.lease);
        }
        self.slots.notes().put_back(note);
    }
}

impl fmt::Debug for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.note() {
            Some(note) => write!(f, "{}@{}", self.slots.line(note.slot), note.generation),
            None => f.write_str("handed over"),
        }
    }
}

/// A slot that this process may write: nobody else has it.
pub struct Loan {
    pub(super) share: Share,
}

impl Loan {
    /// The slots it is one of.
    #[must_use]
    #[inline]
    pub fn slots(&self) -> &Slots {
        self.share.slots()
    }

    /// Which slot it is.
    #[must_use]
    #[inline]
    pub fn slot(&self) -> u32 {
        self.share.slot()
    }

    /// `len` elements from byte `offset` of the slot.
    ///
    /// # Errors
    /// `Shape` when they do not fit or are misaligned.
    pub fn slice<T: Element>(&self, offset: usize, len: usize) -> Result<&[T]> {
        let start = self.share.range::<T>(offset, len)?;
        // SAFETY: in bounds and aligned (`range`); the slot's line is held once, by this loan, so nobody writes; any
        // bytes are a valid `T` (`Element`); the memory lives as long as `self.share`.
        Ok(unsafe { core::slice::from_raw_parts(start, len) })
    }

    /// `len` elements from byte `offset` of the slot, to write.
    ///
    /// # Errors
    /// `Shape` when they do not fit or are misaligned.
    pub fn slice_mut<T: Element>(&mut self, offset: usize, len: usize) -> Result<&mut [T]> {
        let start = self.share.range::<T>(offset, len)?;
        // SAFETY: as in `slice`; and `&mut self` makes this the only slice of the loan.
        Ok(unsafe { core::slice::from_raw_parts_mut(start, len) })
    }

    /// Two disjoint ranges to write at once, each a byte offset and a number of elements.
    ///
    /// # Errors
    /// `Shape` when one does not fit or is misaligned, or they overlap.
    pub fn two_slices_mut<A: Element, B: Element>(
        &mut self,
        first: (usize, usize),
        second: (usize, usize),
    ) -> Result<(&mut [A], &mut [B])> {
        let a = self.share.range::<A>(first.0, first.1)?;
        let b = self.share.range::<B>(second.0, second.1)?;
        // `range` found both to lie in the slot, so nothing overflows.
        let end_of_a = first.0 + first.1 * size_of::<A>();
        let end_of_b = second.0 + second.1 * size_of::<B>();
        if first.0 < end_of_b && second.0 < end_of_a {
            return Err(Error::new(
                ErrorKind::Shape,
                format!(
                    "bytes {}..{end_of_a} and {}..{end_of_b} of a slot were asked for at once; they overlap",
                    first.0, second.0
                ),
            ));
        }
        // SAFETY: as in `slice_mut`; it shares no byte with the other.
        let a = unsafe { core::slice::from_raw_parts_mut(a, first.1) };
        // SAFETY: as above.
        let b = unsafe { core::slice::from_raw_parts_mut(b, second.1) };
        Ok((a, b))
    }
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Loan of slot {} ({:?})", self.share.slot(), self.share)
    }
}

/// A slot that this process may read. Dropping it gives the slot back.
pub struct Borrow {
    pub(super) share: Share,
}

impl Borrow {
    /// Which slot it is.
    #[must_use]
    #[inline]
    pub fn slot(&self) -> u32 {
        self.share.slot()
    }

    /// The words that came with it.
    #[must_use]
    #[inline]
    pub fn meta(&self) -> &[u64; META_WORDS] {
        match self.share.note() {
            Some(note) => &note.meta,
            None => &[0; META_WORDS],
        }
    }

    /// `len` elements from byte `offset` of the slot.
    ///
    /// # Errors
    /// `Shape` when they do not fit or are misaligned.
    pub fn slice<T: Element>(&self, offset: usize, len: usize) -> Result<&[T]> {
        let start = self.share.range::<T>(offset, len)?;
        // SAFETY: in bounds and aligned (`range`); a published slot is only read until all who hold it let go; any
        // bytes are a valid `T` (`Element`); the memory lives as long as `self.share`.
        Ok(unsafe { core::slice::from_raw_parts(start, len) })
    }
}

impl Drop for Borrow {
    fn drop(&mut self) {
        // Before the share's own drop.
        if self
            .share
            .note()
            .is_some_and(|note| note.state == State::Counting)
        {
            crate::failpoint!("slot.released");
        }
    }
}

impl fmt::Debug for Borrow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Borrow of slot {} ({:?})", self.share.slot(), self.share)
    }
}
