//! Ends: shares in one side of an object, and the right to put into it or take from it.

use core::sync::atomic::{AtomicU64, Ordering};

use super::{Array, Object};
use crate::error::{Error, ErrorKind, Result};
use crate::heap;
use crate::held::{self, Held};
use crate::lane::Lane;
use crate::layout::{LINE, counted};
use crate::line::{Counted, Tag};
use crate::message::{Incoming, Outgoing};
use crate::transfer::{Found, Get, Put};

/// A share in one side of an object, for instance a queue's producers. When the last one of all processes goes,
/// whoever waits is woken.
#[derive(Clone, Debug)]
pub struct End {
    // Before the object, in whose block the end's line lies.
    pub(crate) held: Held,
    object: Object,
}

impl End {
    /// The end that a held line is, together with the object it belongs to, which somebody must hold meanwhile.
    pub(crate) fn over(held: Held) -> Result<Self> {
        let segment = held.arena().segment();
        let lost = || held::stale(held.line, held.generation);
        let of_line = |line: u64, field| {
            segment
                .u64_at(line.checked_mul(LINE)?.checked_add(field)?)
                .map(|word| word.load(Ordering::Acquire))
        };
        let meta = of_line(held.line, counted::META).ok_or_else(lost)?;
        let line = Tag::object_of(meta);
        if !heap::in_object(segment, held.line) {
            return Err(lost());
        }
        let word = of_line(line, counted::WORD).ok_or_else(lost)?;
        let object = Object::open(held.arena(), [line, Counted::from_word(word).generation])?;
        Ok(Self { held, object })
    }

    pub(super) fn of(object: &Object, held: Held) -> Self {
        let object = object.clone();
        Self { held, object }
    }

    /// The object whose side it is.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.object
    }

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
    #[inline]
    pub fn is_of(&self, object: &Object, index: u64) -> bool {
        self.held.line == object.end_line(index)
    }
}

impl End {
    /// Fails unless this is side `index` of `object`, which has cells.
    #[inline]
    pub(crate) fn check(&self, object: &Object, index: u64) -> Result<()> {
        if self.is_of(object, index) && matches!(object.array(0), Array::Cells { .. }) {
            return Ok(());
        }
        Err(not_its_end())
    }

    /// Puts a message into the cells, if there is room. On `Done` the message is empty afterwards.
    ///
    /// # Errors
    /// `LeasesFull`, `CountOverflow`: nothing was put. `WrongMode` unless this is the producers' end of cells. `Layout`
    /// when the cells contradict each other.
    #[inline]
    pub fn try_put(&self, message: &mut Outgoing) -> Result<Put> {
        self.check(&self.object, 0)?;
        self.object.try_put(0, message)
    }

    /// Takes the next message out of the cells. `seen_orphans` is the consumer's own, 0 at first.
    ///
    /// # Errors
    /// `LeasesFull`, `OutOfRoom`: the message stays. `Decode`, `Stale`: it was garbage and is gone. `WrongMode` unless
    /// this is the consumers' end of cells.
    pub fn try_get(&self, seen_orphans: &mut u64) -> Result<Get> {
        self.check(&self.object, 1)?;
        self.object.try_get(0, seen_orphans)
    }

    /// As [`try_get`](Self::try_get), into `message`, which is emptied first and stays empty unless there is one: to have
    /// it where it is read, without a move.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn try_get_into(&self, seen_orphans: &mut u64, message: &mut Incoming) -> Result<Found> {
        self.check(&self.object, 1)?;
        self.object.try_get_into(0, seen_orphans, message)
    }
}

#[cold]
fn not_its_end() -> Error {
    Error::wrong_mode("the end of another queue, or the other end", "its own end")
}

/// One side of a lane. One process has it at a time, and `&mut` makes it one thread: what a lane relies on. Sending it
/// moves it, as an exclusive tensor.
#[derive(Debug)]
pub struct LaneEnd {
    end: End,
    /// 1 + the position of a message that was read and whose cell is not free yet; 0 for none. See
    /// [`Slots::take_lane_end`](crate::slots::Slots::take_lane_end).
    unreleased: AtomicU64,
}

impl LaneEnd {
    fn new(end: End) -> Self {
        let unreleased = AtomicU64::new(0);
        Self { end, unreleased }
    }

    /// Notes that the message at `pos` was read, and that its cell is to be freed later.
    #[inline]
    pub(crate) fn postpone_release(&mut self, pos: u64) {
        *self.unreleased.get_mut() = pos + 1;
    }

    /// Frees the cell of the message that was read last, if nobody has yet: before the next is looked for, and before
    /// the end becomes somebody else's, who would read it again.
    ///
    /// Looking for the next one does it, too; whoever is going to wait for that can do it before.
    #[inline]
    pub fn settle(&self) {
        if let Some(pos) = self.unreleased.load(Ordering::Relaxed).checked_sub(1) {
            self.unreleased.store(0, Ordering::Relaxed);
            if Lane(self.end.object.messages(0)).release_once(pos) {
                crate::failpoint!("lane.get.released");
            }
        }
    }

    pub(super) fn take(object: &Object, index: u64) -> Result<Self> {
        if !matches!(object.array(0), Array::Lane { .. }) {
            return Err(not_its_end());
        }
        match Held::acquire_free(object.arena(), object.end_line(index))? {
            Some(held) => Ok(Self::new(End::of(object, held))),
            None => Err(Error::new(
                ErrorKind::AlreadyExists,
                "this side of the lane is somebody's already; it can be sent, but there is only one",
            )),
        }
    }

    pub(crate) fn over(held: Held) -> Result<Self> {
        let end = End::over(held)?;
        match end.object.array(0) {
            Array::Lane { .. } => Ok(Self::new(end)),
            _ => Err(not_its_end()),
        }
    }

    /// The object whose side it is.
    #[must_use]
    pub fn object(&self) -> &Object {
        &self.end.object
    }

    /// Whether this is side `index` of `object`.
    #[must_use]
    #[inline]
    pub fn is_of(&self, object: &Object, index: u64) -> bool {
        self.end.is_of(object, index)
    }

    pub(crate) fn held(&self) -> &Held {
        &self.end.held
    }

    /// Fails unless this is side `index` of `object`.
    #[inline]
    pub(crate) fn check(&self, object: &Object, index: u64) -> Result<()> {
        if self.is_of(object, index) {
            return Ok(());
        }
        Err(not_its_end())
    }

    /// Puts a message into the lane, if there is room. On `Done` the message is empty afterwards.
    ///
    /// # Errors
    /// As [`End::try_put`].
    #[inline]
    pub fn try_put(&mut self, message: &mut Outgoing) -> Result<Put> {
        self.check(&self.end.object, 0)?;
        self.end.object.try_put(0, message)
    }

    /// Takes the next message out of the lane.
    ///
    /// # Errors
    /// As [`End::try_get`].
    pub fn try_get(&mut self) -> Result<Get> {
        self.check(&self.end.object, 1)?;
        self.end.object.try_get(0, &mut 0)
    }

    /// As [`End::try_get_into`].
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn try_get_into(&mut self, message: &mut Incoming) -> Result<Found> {
        self.check(&self.end.object, 1)?;
        self.end.object.try_get_into(0, &mut 0, message)
    }
}

impl Drop for LaneEnd {
    fn drop(&mut self) {
        if !self.end.object.arena().is_forked() {
            self.settle();
        }
    }
}
