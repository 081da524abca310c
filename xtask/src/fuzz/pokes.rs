//! Changing an arena's file, as a hostile process of the same user can: by writing to it.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::SeekFrom;
use rustix::io::{Errno, pread, pwrite};

use super::input::{How, Place};
use crate::Result;

/// Where rows of participants begin, and how long one is: docs/src/wire.md.
const ROWS: u64 = 4096;
const ROW: u64 = 2048;

/// An arena's file, and what was where before it was changed.
#[derive(Debug)]
pub(crate) struct Victim {
    file: OwnedFd,
    /// Where words that are not 0 lie, and what they hold.
    used: Vec<(u64, u64)>,
    /// Where the texts of the scene lie.
    marks: Vec<u64>,
}

/// A change with its place in the file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) at: u64,
    pub(crate) before: u64,
    pub(crate) after: u64,
}

impl Victim {
    /// Looks through all of the file that is there.
    pub(crate) fn look(file: OwnedFd, texts: &[&str]) -> Result<Victim> {
        let mut victim = Victim {
            file,
            used: Vec::new(),
            marks: Vec::new(),
        };
        for (start, end) in there(&victim.file)? {
            let mut bytes = vec![0; usize::try_from(end - start)?];
            let read = pread(victim.file.as_fd(), &mut bytes, start)?;
            victim.remember(start, &bytes[..read], texts);
        }
        Ok(victim)
    }

    fn remember(&mut self, start: u64, bytes: &[u8], texts: &[&str]) {
        let (words, _) = bytes.as_chunks::<8>();
        for (at, word) in words.iter().enumerate() {
            let word = u64::from_le_bytes(*word);
            if word == 0 {
                continue;
            }
            let at = at * 8;
            self.used.push((start + at as u64, word));
            let begins = |from: usize| {
                let rest = &bytes[from..];
                texts.iter().any(|text| rest.starts_with(text.as_bytes()))
            };
            if (at..at + 8).any(begins) {
                self.marks.push(start + at as u64);
            }
        }
    }

    fn offset(&self, place: Place) -> u64 {
        match place {
            Place::Header(word) => u64::from(word) * 8,
            Place::Used(nth) => {
                let nth = nth as usize % self.used.len().max(1);
                self.used.get(nth).map_or(0, |&(at, _)| at)
            }
            Place::Near(mark, words) => {
                let mark = usize::from(mark) % self.marks.len().max(1);
                let at = self.marks.get(mark).copied().unwrap_or(4096);
                at.saturating_add_signed(i64::from(words) * 8)
            }
        }
    }

    fn word(&self, at: u64) -> u64 {
        let found = self.used.binary_search_by_key(&at, |&(at, _)| at);
        found.map_or(0, |index| self.used[index].1)
    }

    /// What these pokes come to, in this file.
    pub(crate) fn plan(&self, pokes: &[(Place, How)]) -> Vec<Change> {
        pokes
            .iter()
            .map(|&(place, how)| {
                let at = self.offset(place);
                let before = self.word(at);
                let after = match how {
                    How::Set(value) => value,
                    How::Flip(bit) => before ^ (1 << (bit % 64)),
                    How::Add(value) => before.wrapping_add_signed(value),
                    How::Byte(byte, value) => {
                        let shift = u32::from(byte % 8) * 8;
                        before & !(0xff << shift) | u64::from(value) << shift
                    }
                    How::Copy(from) => self.word(self.offset(from)),
                };
                Change { at, before, after }
            })
            .collect()
    }

    /// Makes a participant one whose process is gone: another one has its number, says its start time.
    pub(crate) fn bereave(&self, row: u16) -> Result<()> {
        let started = ROWS + u64::from(row) * ROW + 8;
        self.write(started, self.word(started) + 1)
    }

    pub(crate) fn write(&self, at: u64, word: u64) -> Result<()> {
        pwrite(self.file.as_fd(), &word.to_le_bytes(), at)?;
        Ok(())
    }
}

/// Copies what is there of a file, and makes the copy as long.
pub(crate) fn copy(from: OwnedFd, to: BorrowedFd<'_>, length: u64) -> Result<()> {
    rustix::fs::ftruncate(to, length)?;
    for (start, end) in there(&from)? {
        let mut bytes = vec![0; usize::try_from(end - start)?];
        let read = pread(&from, &mut bytes, start)?;
        let written = pwrite(to, &bytes[..read], start)?;
        if written < read {
            return Err("a copy of an arena was cut short".into());
        }
    }
    Ok(())
}

/// The parts of a file that are no holes.
fn there(file: &OwnedFd) -> Result<Vec<(u64, u64)>> {
    let mut parts = Vec::new();
    let mut from = 0;
    loop {
        let start = match rustix::fs::seek(file, SeekFrom::Data(from)) {
            Ok(start) => start,
            Err(Errno::NXIO) => return Ok(parts),
            Err(errno) => return Err(errno.into()),
        };
        from = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        parts.push((start, from));
    }
}
