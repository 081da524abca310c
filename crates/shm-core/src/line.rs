//! Counted lines: 64 bytes whose first word holds a generation and a count.
//!
//! Everything that is shared by reference is a counted line: the header of a block, the two ends of a queue,
//! each slot of a ring. The generation (40 bits) grows each time the thing is made anew, so a handle to the
//! previous one is seen to be stale; the count (24 bits) is of *processes and messages*, never of clones
//! within a process. Invariant, always: count ≥ lease entries and messages that count (see [`crate::lease`]).

use core::sync::atomic::AtomicU64;

use crate::error::{Error, ErrorKind, Result};
use crate::steps::{self, Refused};

/// Bits of the count.
pub(crate) const COUNT_BITS: u32 = 24;
/// Largest count; one more is an error.
pub const COUNT_MAX: u64 = (1 << COUNT_BITS) - 1;
/// Generations have 40 bits and wrap.
pub(crate) const GENERATION_MASK: u64 = (1 << 40) - 1;

/// The word of a counted line, taken apart.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counted {
    /// Grows each time the thing is made anew.
    pub generation: u64,
    /// Processes and messages that hold it.
    pub count: u64,
}

impl Counted {
    /// Puts the two together.
    #[must_use]
    pub const fn new(generation: u64, count: u64) -> Self {
        Self {
            generation: generation & GENERATION_MASK,
            count,
        }
    }

    /// Reads a word.
    #[must_use]
    pub const fn from_word(word: u64) -> Self {
        Self {
            generation: word >> COUNT_BITS,
            count: word & COUNT_MAX,
        }
    }

    /// The word.
    #[must_use]
    pub const fn to_word(self) -> u64 {
        (self.generation << COUNT_BITS) | self.count
    }

    /// The generation after this one.
    #[must_use]
    pub const fn next_generation(self) -> u64 {
        (self.generation + 1) & GENERATION_MASK
    }
}

/// The words of a line that count who holds it.
#[derive(Debug)]
pub struct Words<'a, W> {
    /// Generation and count.
    pub count: &'a W,
    /// Whether the count may be too high.
    pub doubt: &'a W,
}

// Not derived: the words themselves need not be copied.
impl<W> Clone for Words<'_, W> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<W> Copy for Words<'_, W> {}

/// Adds one reference to a line that the caller holds a reference to.
pub(crate) fn increment(word: &AtomicU64, generation: u64) -> Result<()> {
    steps::increment(word, generation).map_err(refused(generation))
}

/// The error for a reference that could not be had.
pub(crate) fn refused(generation: u64) -> impl FnOnce(Refused) -> Error {
    move |refused| match refused {
        Refused::Stale(now) => Error::new(
            ErrorKind::Stale,
            format!(
                "took one more reference to generation {generation}, found generation {} with count {}",
                now.generation, now.count
            ),
        ),
        Refused::Overflow => Error::new(
            ErrorKind::CountOverflow,
            format!(
                "a block can be referenced by at most {COUNT_MAX} processes and messages at once; drop some of them"
            ),
        ),
    }
}

/// What a line counts; kept in its second word.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Tag {
    /// The header of a block; the mode is in the same word.
    Block,
    /// One side of a queue.
    End,
    /// A slot of a ring.
    Slot,
}

impl Tag {
    const fn code(self) -> u64 {
        match self {
            Self::Block => 1,
            Self::End => 2,
            Self::Slot => 3,
        }
    }

    pub(crate) const fn from_meta(meta: u64) -> Option<Self> {
        match meta & 0xff {
            1 => Some(Self::Block),
            2 => Some(Self::End),
            3 => Some(Self::Slot),
            _ => None,
        }
    }

    /// The second word of an end or a slot of the object whose line is `object`.
    pub(crate) const fn meta_in_object(self, object: u64) -> u64 {
        self.code() | (object << 16)
    }

    /// The line of the object an end or a slot belongs to.
    pub(crate) const fn object_of(meta: u64) -> u64 {
        meta >> 16
    }

    /// The second word of a block.
    pub(crate) const fn meta_of_block(mode: Mode) -> u64 {
        Self::Block.code() | ((mode as u64) << 8)
    }
}

/// Who may touch a block, as its header says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(crate) enum Mode {
    /// Exactly one process, reading and writing.
    Exclusive = 1,
    /// Any number of processes, reading.
    Shared = 2,
    /// Any number of processes, reading and writing element by element.
    Aliased = 3,
    /// Control words of a queue, an event, a ring: atomics only.
    Object = 4,
    /// A message that did not fit into its cell.
    Message = 5,
    /// The tensors of a ring's slots; who may touch which part is a matter of the slots' lines.
    Slots = 6,
}

impl Mode {
    pub(crate) const fn from_meta(meta: u64) -> Option<Self> {
        match (meta >> 8) & 0xff {
            1 => Some(Self::Exclusive),
            2 => Some(Self::Shared),
            3 => Some(Self::Aliased),
            4 => Some(Self::Object),
            5 => Some(Self::Message),
            6 => Some(Self::Slots),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use core::sync::atomic::Ordering;

    use super::*;

    #[test]
    fn a_word_keeps_generation_and_count_apart() {
        for (generation, count) in [
            (0, 0),
            (GENERATION_MASK, COUNT_MAX),
            (1, COUNT_MAX),
            (GENERATION_MASK, 0),
        ] {
            let counted = Counted::new(generation, count);
            assert_eq!(Counted::from_word(counted.to_word()), counted);
        }
        assert_eq!(Counted::new(GENERATION_MASK, 3).next_generation(), 0);
    }

    #[test]
    fn the_reference_after_the_last_possible_is_an_error() {
        let word = AtomicU64::new(Counted::new(7, COUNT_MAX).to_word());
        assert!(increment(&word, 7).is_err());
        assert_eq!(
            word.load(Ordering::Relaxed),
            Counted::new(7, COUNT_MAX).to_word()
        );
        let word = AtomicU64::new(Counted::new(7, 1).to_word());
        assert!(increment(&word, 6).is_err());
        increment(&word, 7).expect("room for one more");
    }
}
