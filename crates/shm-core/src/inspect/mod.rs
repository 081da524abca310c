//! Arenas seen from outside: what is in them and who takes part, without taking part and without disturbing them.
//!
//! The file is opened for reading only and read, never mapped: no row is taken, no lock, nothing is written, no page is
//! committed. The answer is a snapshot of something that goes on changing. Nothing that is read is believed before it
//! is checked; a file that is no arena of this user and this version is an error that says what it is instead.
//!
//! ```
//! use shm_core::{Arena, Tensor, inspect};
//!
//! let arena = Arena::builder().capacity(1 << 30).create()?;
//! let tensor = Tensor::<f32>::zeros_in(&arena, 1000)?;
//! let seen = inspect::inspect(&arena)?;
//! assert_eq!((seen.members.len(), seen.members[0].blocks), (1, 1));
//! assert_eq!(seen.members[0].pid, std::process::id());
//! # drop(tensor);
//! # Ok::<(), shm_core::Error>(())
//! ```

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{Stat, fstat};

use crate::error::{Error, Result};
use crate::participant::lock::RowLocks;

mod blocks;
mod find;
mod members;
mod reader;

pub use find::{Seen, find};
pub use members::Member;
pub(crate) use members::members;
pub(crate) use reader::{Header, Reader};

/// What an arena holds and who takes part in it, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Inspection {
    /// The arena's random identity.
    pub id: [u64; 2],
    /// Bytes of address space that it reserves: the file's size.
    pub capacity: u64,
    /// Bytes of memory (or disk) that its file takes, control structures included.
    pub taken: u64,
    /// Bytes for which memory was taken, control structures aside.
    pub committed: u64,
    /// Bytes of blocks that somebody holds.
    pub live: u64,
    /// Bytes that were taken and hold no block.
    pub cached: u64,
    /// Blocks that somebody holds: tensors, messages, queues.
    pub blocks: u64,
    /// Whether it was made before the machine's last boot, so that everyone in it is gone.
    pub earlier_boot: bool,
    /// Who takes part, the dead included that nobody has buried yet.
    pub members: Vec<Member>,
}

impl Inspection {
    /// Whether somebody lives there, or may.
    #[must_use]
    pub fn is_inhabited(&self) -> bool {
        self.members.iter().any(Member::needs_the_arena)
    }
}

/// Looks into the arena whose file is open as `file`, for reading at least.
///
/// # Errors
/// `NotAnArena`, `WrongVersion`, `Size` or `Layout` for what is no arena of this version, or does not add up; else what
/// the system answers.
pub fn inspect(file: impl AsFd) -> Result<Inspection> {
    let stat = fstat(&file)
        .map_err(|errno| Error::system("fstat", errno, "looking at an arena's file"))?;
    look(&file, &stat, Path::new("the given descriptor"))
}

/// As [`inspect`], of a file that showed `stat` and is called `place` in messages.
fn look(file: &impl AsFd, stat: &Stat, place: &Path) -> Result<Inspection> {
    let reader = Reader::new(file, stat, place);
    let header = reader.header()?;
    let own = rustix::io::fcntl_dupfd_cloexec(file, 0)
        .map_err(|errno| Error::system("fcntl(F_DUPFD_CLOEXEC)", errno, "looking at locks"))?;
    let locks = RowLocks::through(own, reader.size());
    let mut rows = members::occupied(&reader, &header, &locks)?;
    let chunks = blocks::Blocks::new(&reader, &header)?;
    for row in &mut rows {
        (row.member.blocks, row.member.bytes) = chunks.held_by(row)?;
    }
    let (blocks, live) = chunks.live()?;
    Ok(Inspection {
        id: header.id,
        capacity: reader.size(),
        taken: reader.taken(),
        committed: header.committed,
        live,
        cached: header
            .committed
            .saturating_sub(live.saturating_add(chunks.leases())),
        blocks,
        earlier_boot: header.earlier,
        members: rows.into_iter().map(|row| row.member).collect(),
    })
}

#[cfg(test)]
mod tests;
