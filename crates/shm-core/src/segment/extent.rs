//! Words of a segment that were looked for once, and are found again without all the checks.

use core::sync::atomic::AtomicU64;

use super::{Segment, outside};
use crate::layout::WORD;

/// A range of words that was found to lie in a segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// Offset of the first byte: a multiple of a word, at most `end`.
    start: u64,
    /// Offset of the byte after the last: a whole number of words further.
    end: u64,
}

impl Extent {
    /// No words.
    pub(crate) const NONE: Self = Self { start: 0, end: 0 };
}

impl Segment {
    /// The range of `count` words from `offset` on, if they lie inside the arena and are aligned.
    pub(crate) fn extent(&self, offset: u64, count: u64) -> Option<Extent> {
        let words = self.words_at(offset, count)?;
        // Fits, since the words are there.
        let end = offset + words.len() as u64 * WORD;
        Some(Extent { start: offset, end })
    }

    /// The words of a range that was found in this segment.
    ///
    /// # Panics
    /// For a range of another segment that lies outside of this one: a bug in this crate.
    #[inline(always)]
    pub(crate) fn words_in(&self, extent: Extent) -> &[AtomicU64] {
        let Extent { start, end } = extent;
        if end > self.capacity() {
            outside(end);
        }
        // SAFETY: start ≤ end (see the fields) ≤ capacity, as just checked, so the address is inside the mapping or one past
        // its end, which is one allocation of at most isize::MAX bytes.
        let first = unsafe { self.map.as_mut_ptr().add(start as usize) };
        // SAFETY: the bytes from `start` to `end` are such words, inside the mapping by the above and aligned, since `start` is a
        // multiple of a word and the mapping begins on a page. It lives as long as `self`, its size is fixed, any bytes are a
        // valid `AtomicU64`, and words of the arena are only reached as atomics.
        unsafe { core::slice::from_raw_parts(first.cast(), ((end - start) / WORD) as usize) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::room::FixedLimits;
    use crate::segment::{Capacity, MINIMUM};
    use crate::strategy::FileDescriptor;
    use core::sync::atomic::Ordering::Relaxed;
    use std::sync::Arc;

    #[test]
    fn a_range_is_found_again_word_by_word_and_none_reaches_outside() {
        let limits = || Arc::new(FixedLimits::new(u64::MAX));
        let make = |capacity| {
            Segment::create(&FileDescriptor, Capacity::exactly(capacity), limits()).unwrap()
        };
        let segment = make(2 * MINIMUM);
        let capacity = segment.capacity();
        segment.commit(0, 2 << 20).unwrap();
        let words = segment.words_in(segment.extent(64, 24).unwrap());
        for (index, word) in words.iter().enumerate() {
            word.store(index as u64 + 1, Relaxed);
            assert_eq!(
                segment.word(64 + index as u64 * WORD).load(Relaxed),
                index as u64 + 1
            );
        }
        assert_eq!(words.len(), 24);
        assert!(segment.words_in(Extent::NONE).is_empty());
        assert!(
            segment
                .words_in(segment.extent(capacity, 0).unwrap())
                .is_empty()
        );
        for (offset, count) in [
            (4, 1),
            (capacity, 1),
            (capacity - WORD, 2),
            (0, u64::MAX / WORD),
            (u64::MAX - 7, 1),
        ] {
            assert!(segment.extent(offset, count).is_none(), "{offset} {count}");
        }
        let smaller = make(MINIMUM);
        let last = segment.extent(capacity - WORD, 1).unwrap();
        let refused = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            smaller.words_in(last).len()
        }));
        assert!(
            refused.is_err(),
            "a range of another segment, outside of this one"
        );
    }
}
