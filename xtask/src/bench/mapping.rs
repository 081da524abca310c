//! Shared words for the floors: a memfd, mapped by both processes, as atomics.
//!
//! The only file here that holds `unsafe`. The first page holds 32-bit words for futexes, the rest 64-bit ones, so that no
//! word is ever accessed in two sizes.

#![allow(unsafe_code)]

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64};

use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::Result;

const PAGE: usize = 4096;

/// A mapping of a file that `file` made.
#[derive(Debug)]
pub(crate) struct Words {
    map: MmapRaw,
}

/// A fresh file with room for a page of futexes and that many bytes of words. None of it is committed.
pub(crate) fn file(bytes: usize) -> Result<OwnedFd> {
    let file = memfd_create("xtask-bench", MemfdFlags::CLOEXEC)?;
    ftruncate(&file, (PAGE + bytes.next_multiple_of(PAGE)) as u64)?;
    Ok(file)
}

impl Words {
    /// Maps the whole file.
    pub(crate) fn map(file: &OwnedFd) -> Result<Words> {
        // memmap2 takes the length from the file; what `file` made holds at least the page of futexes.
        let descriptor = std::fs::File::from(file.as_fd().try_clone_to_owned()?);
        Ok(Words {
            map: MmapOptions::new().map_raw(&descriptor)?,
        })
    }

    /// How many 64-bit words there are.
    pub(crate) fn len(&self) -> usize {
        self.map.len().saturating_sub(PAGE) / size_of::<u64>()
    }

    /// A 64-bit word. Panics beyond `len`, as a slice does.
    pub(crate) fn word(&self, index: usize) -> &AtomicU64 {
        assert!(index < self.len(), "word {index} of {}", self.len());
        let word = self
            .map
            .as_mut_ptr()
            .wrapping_add(PAGE + index * size_of::<u64>())
            .cast::<u64>();
        // SAFETY: the assertion keeps the word inside of the mapping, which lives as long as `self`; it is aligned, since
        // the mapping is to a page; the file is not shrunk by anyone; and all processes access it through this function
        // only, hence atomically and in this size.
        unsafe { AtomicU64::from_ptr(word) }
    }

    /// A 32-bit word for waiting. Panics beyond the first page, as a slice does.
    pub(crate) fn futex(&self, index: usize) -> &AtomicU32 {
        assert!(
            index < PAGE / size_of::<u32>() && self.map.len() >= PAGE,
            "futex {index} of a page"
        );
        let word = self
            .map
            .as_mut_ptr()
            .wrapping_add(index * size_of::<u32>())
            .cast::<u32>();
        // SAFETY: as for `word`; the first page is accessed in this size only.
        unsafe { AtomicU32::from_ptr(word) }
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
