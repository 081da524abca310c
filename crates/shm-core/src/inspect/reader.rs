//! An arena's file, read and never mapped.
//!
//! A read of a hole answers zeros and takes no memory, where a look through a mapping would commit the page; and a file
//! that is cut short meanwhile is a short read, where a mapping would be a SIGBUS. What was read may be torn or old,
//! since its processes go on writing: each number is checked where it is used.

use std::cell::Cell;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;

use rustix::fs::Stat;
use rustix::io::{Errno, pread};

use crate::arena::{check_header_words, this_boot};
use crate::error::{Bytes, Error, ErrorKind, Result};
use crate::layout::{self, PAGE, WORD, header};

/// Words in the header page.
const HEADER_WORDS: usize = (PAGE / WORD) as usize;

/// Bytes that may be read beyond what the file holds: of an arena that grows meanwhile.
const SLACK: u64 = 64 << 20;

/// The file behind an arena, as far as one may look without taking part.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    file: BorrowedFd<'a>,
    size: u64,
    inode: u64,
    taken: u64,
    place: &'a Path,
    /// Bytes that may still be read: a header full of nonsense must not keep us busy for hours.
    budget: Cell<u64>,
}

/// What is needed of a header, checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Header {
    pub(crate) id: [u64; 2],
    pub(crate) rows: u64,
    pub(crate) chunks: u64,
    pub(crate) committed: u64,
    /// Made before the machine's last boot: then everybody is gone, whatever its rows say.
    pub(crate) earlier: bool,
}

impl<'a> Reader<'a> {
    /// Reads through this descriptor, which showed `stat`.
    pub(crate) fn new(file: &'a impl AsFd, stat: &Stat, place: &'a Path) -> Self {
        let size = u64::try_from(stat.st_size).unwrap_or(0);
        let taken = u64::try_from(stat.st_blocks)
            .unwrap_or(0)
            .saturating_mul(512);
        Self {
            file: file.as_fd(),
            size,
            inode: stat.st_ino,
            taken,
            place,
            budget: Cell::new(taken.saturating_mul(2).saturating_add(SLACK)),
        }
    }

    /// Bytes that the file has.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Bytes of memory, or of a disk, behind it.
    pub(crate) fn taken(&self) -> u64 {
        self.taken
    }

    /// Reads `words.len()` words from `offset` on.
    pub(crate) fn read(&self, offset: u64, words: &mut [u64]) -> Result<()> {
        let len = words.len() as u64 * WORD;
        let inside = offset.checked_add(len).is_some_and(|end| end <= self.size);
        let Some(budget) = self.budget.get().checked_sub(len).filter(|_| inside) else {
            return Err(Error::new(
                ErrorKind::Layout,
                format!(
                    "the arena at {} does not add up: it describes {len} bytes at offset {offset}, or more than its file of {} with {} in it can hold",
                    self.place.display(),
                    Bytes(self.size),
                    Bytes(self.taken)
                ),
            ));
        };
        self.budget.set(budget);
        let mut bytes = vec![0; words.len() * WORD as usize];
        let mut done = 0;
        while done < bytes.len() {
            match pread(self.file, &mut bytes[done..], offset + done as u64) {
                Ok(0) => {
                    return Err(Error::new(
                        ErrorKind::Size,
                        format!(
                            "the file of the arena at {} was cut short while it was read",
                            self.place.display()
                        ),
                    ));
                }
                Ok(read) => done += read,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    let tried = format!(
                        "reading {len} bytes at offset {offset} of the arena at {}",
                        self.place.display()
                    );
                    return Err(Error::system("pread", errno, tried));
                }
            }
        }
        for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
            *word = u64::from_ne_bytes(*bytes);
        }
        Ok(())
    }

    /// `count` words from `offset` on.
    pub(crate) fn words(&self, offset: u64, count: u64) -> Result<Vec<u64>> {
        // The budget is in memory as well as in time.
        let most = self.budget.get() / WORD;
        let mut words = vec![0; usize::try_from(count.min(most + 1)).unwrap_or(0)];
        self.read(offset, &mut words)?;
        Ok(words)
    }

    /// The header, if it is one of this version that adds up.
    pub(crate) fn header(&self) -> Result<Header> {
        let mut words = [0; HEADER_WORDS];
        if self.size >= PAGE {
            self.read(0, &mut words)?;
        }
        let word = |field: u64| words[(field / WORD) as usize];
        check_header_words((self.size, self.inode), word, self.place.display())?;
        let boot = word(header::BOOT);
        Ok(Header {
            id: [word(header::ID_LOW), word(header::ID_HIGH)],
            rows: word(header::ROWS_HIGH).min(layout::ROWS),
            chunks: word(header::CHUNKS_HIGH).min(layout::chunk_count(self.size)),
            committed: word(header::COMMITTED),
            earlier: boot != 0 && this_boot().is_some_and(|now| now != boot),
        })
    }
}
