//! Shared words for the floors: a sealed file, mapped by both processes, as atomics. No arena is in it.
//!
//! The first page holds 32-bit words for futexes, the rest 64-bit ones, so that no word is ever accessed in two sizes.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64};

use shm_core::room::FixedLimits;
use shm_core::segment::{Capacity, Segment};
use shm_core::strategy::{FileDescriptor, SharingStrategy};

use crate::Result;

const PAGE: usize = 4096;

/// A mapping of a file that `file` made.
#[derive(Debug)]
pub(crate) struct Words {
    segment: Segment,
}

/// Nothing here is committed, so nothing is ever asked of the limits.
fn unlimited() -> Arc<FixedLimits> {
    Arc::new(FixedLimits::new(u64::MAX))
}

/// A fresh file with room for a page of futexes and at least that many bytes of words. None of it is committed.
pub(crate) fn file(bytes: usize) -> Result<OwnedFd> {
    let capacity = Capacity::exactly((PAGE + bytes) as u64);
    let segment = Segment::create(&FileDescriptor, capacity, unlimited())?;
    Ok(segment.as_fd().try_clone_to_owned()?)
}

impl Words {
    /// Maps the whole file.
    pub(crate) fn map(file: &OwnedFd) -> Result<Words> {
        let backing = FileDescriptor.adopt(file.try_clone()?)?;
        Ok(Words {
            segment: Segment::open(backing, unlimited())?,
        })
    }

    /// How many 64-bit words there are.
    pub(crate) fn len(&self) -> usize {
        (self.segment.capacity() as usize).saturating_sub(PAGE) / size_of::<u64>()
    }

    /// A 64-bit word. Panics beyond `len`, as a slice does.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        let word = self
            .segment
            .u64_at((PAGE + index * size_of::<u64>()) as u64);
        match word {
            Some(word) => word,
            None => panic!("word {index} of {}", self.len()),
        }
    }

    /// A 32-bit word for waiting. Panics beyond the first page, as a slice does.
    pub(crate) fn futex(&self, index: usize) -> &AtomicU32 {
        assert!(
            index < PAGE / size_of::<u32>(),
            "futex {index} of a page of them"
        );
        match self.segment.u32_at((index * size_of::<u32>()) as u64) {
            Some(word) => word,
            None => panic!("the file has no page of futexes"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::{Words, file};

    #[test]
    fn two_mappings_of_a_file_share_their_words() {
        let file = file(100).unwrap();
        let (a, b) = (Words::map(&file).unwrap(), Words::map(&file).unwrap());
        a.word(a.len() - 1).store(7, Relaxed);
        a.futex(0).store(8, Relaxed);
        assert_eq!(
            (b.word(b.len() - 1).load(Relaxed), b.futex(0).load(Relaxed)),
            (7, 8)
        );
    }
}
