//! The mapping of the arena, the only one there is: address space reserved whole, memory committed piece by piece.
//!
//! Reserving costs address space only. Memory is taken by [`Segment::commit`], which asks the limits first, so that a full machine is an error and not a
//! SIGBUS or an OOM kill. Even reading a page that was never committed takes memory from the file, so nothing here reads what nobody committed.
//! What lies where is none of this file's business: it knows offsets, lengths and alignment.

use std::mem::size_of;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use memmap2::{Advice, MmapOptions, MmapRaw};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use crate::error::{Bytes, Error, ErrorKind, Result, Shortage};
use crate::room::{self, Limits};
use crate::strategy::{Backing, SharingStrategy, file_size_limit};

mod extent;
mod fork_page;
mod pages;

pub(crate) use extent::Extent;
pub use fork_page::ForkPage;
pub(crate) use pages::demand as demand_huge_pages;
pub use pages::{HugePages, PageSize};

/// Capacities are whole multiples of this: the size of a huge page, and of what larger parts of the arena are made of.
pub const GRANULE: u64 = 2 << 20;

/// The smallest capacity that [`Capacity::default`] settles for.
pub const MINIMUM: u64 = 1 << 30;

/// Memory is committed in steps of at most this much: long enough to be cheap, short enough that other programs' demand is seen between two steps.
const STEP: u64 = 16 << 20;

/// The shortest step, when signals keep interrupting longer ones.
const SHORTEST_STEP: u64 = 64 << 10;

/// How much address space an arena wants, and what it settles for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capacity {
    wanted: u64,
    minimum: u64,
}

impl Capacity {
    /// Exactly `bytes`, rounded up to a whole [`GRANULE`]; less is an error.
    #[must_use]
    pub fn exactly(bytes: u64) -> Self {
        Self::at_most(bytes, bytes)
    }

    /// `wanted` bytes, halved as often as the system refuses, but not below `minimum`; both are rounded up to a whole [`GRANULE`].
    #[must_use]
    pub fn at_most(wanted: u64, minimum: u64) -> Self {
        // The largest granule count whose bytes an address range can have.
        let largest = isize::MAX as u64 / GRANULE;
        let round = |bytes: u64| bytes.div_ceil(GRANULE).clamp(1, largest) * GRANULE;
        Self {
            wanted: round(wanted),
            minimum: round(minimum.min(wanted)),
        }
    }

    /// What would be tried after `refused`, if anything.
    fn next_after(self, refused: u64) -> Option<u64> {
        let half = refused / 2 / GRANULE * GRANULE;
        (refused > self.minimum).then_some(half.max(self.minimum))
    }
}

impl Default for Capacity {
    /// 64 GiB or twice the machine's memory, whichever is more; at least [`MINIMUM`].
    fn default() -> Self {
        let system = rustix::system::sysinfo();
        let memory = (system.totalram as u64).saturating_mul(u64::from(system.mem_unit));
        Self::at_most(memory.saturating_mul(2).max(64 << 30), MINIMUM)
    }
}

/// The arena's file, mapped whole and shared.
#[derive(Debug)]
pub struct Segment {
    backing: Backing,
    map: MmapRaw,
    fork_page: ForkPage,
    limits: Arc<dyn Limits>,
    wanted: u64,
    /// What the file consists of.
    page: u64,
    /// Whether memory is taken through the mapping first, since only there the system was asked for huge pages.
    advised: AtomicBool,
}

impl Segment {
    /// Makes a file by `strategy` and maps it. Takes no memory yet.
    ///
    /// # Errors
    /// `OutOfRoom` when not even the least capacity fits into the address space (`ulimit -v`) or a file (`ulimit -f`); else what the system answers.
    pub fn create(
        strategy: &dyn SharingStrategy,
        capacity: Capacity,
        limits: Arc<dyn Limits>,
    ) -> Result<Self> {
        let mut backing = strategy.create()?;
        // The mapping comes first: it may reach past the end of the file, and only a size that can be mapped is then made final.
        let (map, size) = reserve(&backing, capacity)?;
        strategy.fix_size(&mut backing, size)?;
        if size < capacity.wanted {
            crate::say!(
                warn,
                wanted = capacity.wanted,
                reserved = size,
                "the arena's capacity was reduced: the address space or the file size is limited (ulimit -v, ulimit -f)"
            );
        }
        let fork_page = ForkPage::new()?;
        Ok(Self {
            page: pages::of_file(&backing),
            backing,
            map,
            fork_page,
            limits,
            wanted: capacity.wanted,
            advised: AtomicBool::new(false),
        })
    }

    /// Maps a file that another process made, at the size it has. Not an arena: that would be a second way to its words
    /// and pages, past all that keeps tensors whole; [`Arena::join`](crate::Arena::join) is for those.
    ///
    /// # Errors
    /// `OutOfRoom` when the address space cannot hold it; `WrongMode` for an arena; else what the system answers.
    pub fn open(backing: Backing, limits: Arc<dyn Limits>) -> Result<Self> {
        // Read from the file: through the mapping even a look would commit the page.
        let mut first = [0; 8];
        let read = rustix::io::pread(&backing, &mut first, 0);
        if read == Ok(8) && u64::from_ne_bytes(first) == crate::layout::MAGIC {
            return Err(Error::new(
                ErrorKind::WrongMode,
                "an arena's file was to be mapped as a plain segment; join it with `Arena::join`",
            ));
        }
        Self::open_any(backing, limits)
    }

    /// As [`open`](Self::open), whatever the file is.
    ///
    /// # Errors
    /// As there.
    pub(crate) fn open_any(backing: Backing, limits: Arc<dyn Limits>) -> Result<Self> {
        let size = backing.size();
        let map = map_whole(&backing, size).map_err(|errno| refusal(errno, size))?;
        let fork_page = ForkPage::new()?;
        Ok(Self {
            page: pages::of_file(&backing),
            backing,
            map,
            fork_page,
            limits,
            wanted: size,
            advised: AtomicBool::new(false),
        })
    }

    /// Bytes reserved, for good.
    #[must_use]
    pub fn capacity(&self) -> u64 {
        self.map.len() as u64
    }

    /// Bytes that were wanted at creation: more than [`capacity`](Self::capacity) if the system had no more to give.
    #[must_use]
    pub fn wanted_capacity(&self) -> u64 {
        self.wanted
    }

    /// Whether this process is a bare fork of the one that made this mapping, and so must not touch it. One load.
    #[inline]
    #[must_use]
    pub fn is_forked(&self) -> bool {
        self.fork_page.is_forked()
    }

    /// The file behind the mapping.
    #[must_use]
    pub fn backing(&self) -> &Backing {
        &self.backing
    }

    /// The limits that [`commit`](Self::commit) asks.
    #[must_use]
    pub fn limits(&self) -> &Arc<dyn Limits> {
        &self.limits
    }

    /// Takes memory for a range of whole pages, so that touching it cannot fail any more. Pages that are there already keep what they hold.
    ///
    /// On failure what was taken is given back by punching the range up to where it got: its content is then zero. So it may only be called for a range in
    /// which nothing is alive.
    ///
    /// # Errors
    /// `OutOfRoom` with what was asked, what is free, which limit and what to do; `Layout` for a range outside the arena or off page boundaries.
    pub fn commit(&self, offset: u64, len: u64) -> Result<()> {
        self.check_pages("committing", offset, len)?;
        let end = offset + len;
        let (mut at, mut longest) = (offset, STEP);
        while at < end {
            // Asked before every step, for all that is still to come: other programs take memory meanwhile.
            let step = longest.min(end - at);
            // A file of huge pages gives whole ones.
            let asked = (end - at).next_multiple_of(self.page);
            let outcome = room::ensure(&*self.limits, asked, self.as_fd())
                .inspect(|()| self.take_huge(at, step))
                .and_then(|()| self.take_step(at, step, len, &mut longest));
            match outcome {
                Ok(taken) => at += taken,
                Err(error) => {
                    if at > offset {
                        // The error on its way out matters more than one in giving back.
                        let _ = self.punch(offset, at - offset);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// One fallocate. Answers how much was taken: nothing if a signal came first, and then later steps are shorter, since an interrupted one is undone whole.
    fn take_step(&self, at: u64, step: u64, asked: u64, longest: &mut u64) -> Result<u64> {
        match fallocate(&self.backing, FallocateFlags::empty(), at, step) {
            Ok(()) => Ok(step),
            Err(Errno::INTR) => {
                *longest = (step / 2).max(SHORTEST_STEP);
                Ok(0)
            }
            Err(errno @ (Errno::NOSPC | Errno::NOMEM | Errno::DQUOT)) => {
                let place = match self.backing.path() {
                    Some(path) => format!("the file system of {}", path.display()),
                    None => "the system's memory".into(),
                };
                Err(Error::out_of_room(Shortage {
                    asked,
                    free: 0,
                    limit: format!("{place} (fallocate answered \"{errno}\")"),
                    hint: "drop tensors or end other programs, or enlarge it".into(),
                })
                .because(errno))
            }
            Err(errno) => Err(Error::system(
                "fallocate",
                errno,
                format!("committing {} at offset {at} of the arena", Bytes(step)),
            )),
        }
    }

    /// Gives the memory of a range of whole pages back to the system. The range reads as zero afterwards, and must be committed again before it is used.
    ///
    /// # Errors
    /// `Layout` for a range outside the arena or off page boundaries; else what the system answers.
    pub fn punch(&self, offset: u64, len: u64) -> Result<()> {
        self.check_pages("giving back", offset, len)?;
        if len == 0 {
            return Ok(());
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        loop {
            match fallocate(&self.backing, flags, offset, len) {
                Ok(()) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(errno) => {
                    return Err(Error::system(
                        "fallocate(FALLOC_FL_PUNCH_HOLE)",
                        errno,
                        format!("giving back {} at offset {offset} of the arena", Bytes(len)),
                    ));
                }
            }
        }
    }

    /// Where `len` bytes at `offset` lie in this process, if they lie inside the arena.
    ///
    /// The pointer may be used while the segment lives. What may be done through it is for the caller to know: other processes see the same bytes.
    #[inline]
    #[must_use]
    pub fn bytes_at(&self, offset: u64, len: u64) -> Option<NonNull<u8>> {
        if offset.checked_add(len)? > self.capacity() {
            return None;
        }
        // SAFETY: offset ≤ capacity was just checked, so the address is inside the mapping or one past its end, which is one allocation of at most
        // isize::MAX bytes.
        let address = unsafe { self.map.as_mut_ptr().add(offset as usize) };
        // SAFETY: no mapping begins at the null page, and the address lies in one.
        Some(unsafe { NonNull::new_unchecked(address) })
    }

    /// The 64-bit word at `offset`, if it lies inside the arena and is aligned.
    #[inline]
    #[must_use]
    pub fn u64_at(&self, offset: u64) -> Option<&AtomicU64> {
        let word = self.aligned::<AtomicU64>(offset, 1)?;
        // SAFETY: `aligned` checked bounds and alignment; the mapping lives as long as `self`, its size is fixed, any bytes are a valid `AtomicU64`, and words
        // of the arena are only reached as atomics.
        Some(unsafe { word.as_ref() })
    }

    /// The 64-bit word at an offset that was computed from checked values.
    ///
    /// # Panics
    /// Outside the arena or off a word boundary, as a slice does: a bug in this crate, never a peer's doing,
    /// since offsets read from shared memory are checked where they are read.
    #[inline]
    #[must_use]
    pub(crate) fn word(&self, offset: u64) -> &AtomicU64 {
        match self.u64_at(offset) {
            Some(word) => word,
            None => outside(offset),
        }
    }

    /// So many words in a row, as [`word`](Self::word).
    #[inline(always)]
    #[must_use]
    pub(crate) fn block_at<const N: usize>(&self, offset: u64) -> &[AtomicU64; N] {
        match self.words_at(offset, N as u64).map(TryFrom::try_from) {
            Some(Ok(words)) => words,
            _ => outside(offset),
        }
    }

    /// As [`word`](Self::word), for 32 bits.
    #[inline]
    #[must_use]
    pub(crate) fn half(&self, offset: u64) -> &AtomicU32 {
        match self.u32_at(offset) {
            Some(word) => word,
            None => outside(offset),
        }
    }

    /// The 32-bit word at `offset`, if it lies inside the arena and is aligned. For futexes, which have 32 bits.
    #[inline]
    #[must_use]
    pub fn u32_at(&self, offset: u64) -> Option<&AtomicU32> {
        let word = self.aligned::<AtomicU32>(offset, 1)?;
        // SAFETY: as in `u64_at`.
        Some(unsafe { word.as_ref() })
    }

    /// `count` 64-bit words from `offset` on, if they lie inside the arena and are aligned.
    #[inline]
    #[must_use]
    pub fn words_at(&self, offset: u64, count: u64) -> Option<&[AtomicU64]> {
        let first = self.aligned::<AtomicU64>(offset, count)?;
        // SAFETY: as in `u64_at`, for `count` words, whose bytes `aligned` found to lie inside one allocation.
        Some(unsafe { std::slice::from_raw_parts(first.as_ptr(), count as usize) })
    }

    #[inline]
    fn aligned<T>(&self, offset: u64, count: u64) -> Option<NonNull<T>> {
        // The mapping starts on a page boundary, so alignment of the offset is alignment of the address.
        if !offset.is_multiple_of(align_of::<T>() as u64) {
            return None;
        }
        let len = count.checked_mul(size_of::<T>() as u64)?;
        self.bytes_at(offset, len).map(NonNull::cast)
    }

    fn check_pages(&self, doing: &str, offset: u64, len: u64) -> Result<()> {
        let page = rustix::param::page_size() as u64;
        let inside = offset
            .checked_add(len)
            .is_some_and(|end| end <= self.capacity());
        if inside && offset.is_multiple_of(page) && len.is_multiple_of(page) {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Layout,
            format!(
                "{doing} {len} bytes at offset {offset}: not whole pages of {page} bytes inside the arena of {}",
                Bytes(self.capacity())
            ),
        ))
    }
}

#[cold]
#[inline(never)]
fn outside(offset: u64) -> ! {
    panic!("offset {offset} is no word of the arena")
}

impl AsFd for Segment {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.backing.as_fd()
    }
}

/// Maps as much as `capacity` wants, or the largest part of it that the limits on files and address space allow.
fn reserve(backing: &Backing, capacity: Capacity) -> Result<(MmapRaw, u64)> {
    let mut size = capacity.wanted;
    loop {
        let refused = match file_size_limit() {
            Some(limit) if limit < size => Errno::FBIG,
            _ => match map_whole(backing, size) {
                Ok(map) => return Ok((map, size)),
                Err(errno) => errno,
            },
        };
        size = match refused {
            Errno::NOMEM | Errno::FBIG => capacity
                .next_after(size)
                .ok_or_else(|| refusal(refused, size))?,
            _ => return Err(refusal(refused, size)),
        };
    }
}

fn map_whole(backing: &Backing, size: u64) -> std::result::Result<MmapRaw, Errno> {
    let answer = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::NOMEM);
    let map = usize::try_from(size)
        .map_err(|_| Errno::NOMEM)
        .and_then(|len| {
            MmapOptions::new()
                .len(len)
                .no_reserve_swap()
                .map_raw(&backing.as_fd())
                .map_err(answer)
        })?;
    // At once: a core dump would read every hole of the arena, and so fill it.
    map.advise(Advice::DontDump).map_err(answer)?;
    Ok(map)
}

fn refusal(errno: Errno, size: u64) -> Error {
    let (limit, free, hint) = match errno {
        Errno::NOMEM => (
            "the address space of this process (RLIMIT_AS, vm.max_map_count)",
            rustix::process::getrlimit(rustix::process::Resource::As)
                .current
                .unwrap_or(0),
            "raise it with `ulimit -v`, or make the arena with a smaller capacity",
        ),
        Errno::FBIG => (
            "the file size limit (RLIMIT_FSIZE)",
            file_size_limit().unwrap_or(0),
            "raise it with `ulimit -f`, or make the arena with a smaller capacity",
        ),
        _ => {
            return Error::system(
                "mmap",
                errno,
                format!("reserving {} of address space", Bytes(size)),
            );
        }
    };
    Error::out_of_room(Shortage {
        asked: size,
        free,
        limit: limit.into(),
        hint: hint.into(),
    })
    .because(errno)
    .while_doing("reserving the arena's address space")
}

#[cfg(test)]
mod tests;
