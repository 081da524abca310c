//! Ends: shares in one side of an object.

use core::sync::atomic::Ordering;

use super::Object;
use crate::error::Result;
use crate::heap;
use crate::held::{self, Held};
use crate::layout::{LINE, counted};
use crate::line::{Counted, Tag};

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
    pub fn is_of(&self, object: &Object, index: u64) -> bool {
        self.held.line == object.end_line(index)
    }
}
