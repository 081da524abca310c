//! Making an arena: its file, its header, and then its name.

use core::fmt;
use core::sync::atomic::Ordering;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::PathBuf;
use std::sync::Arc;

use super::Arena;
use crate::error::{Error, ErrorKind, Result};
use crate::layout::{self, PAGE, header};
use crate::participant::table;
use crate::room::{Limits, SystemLimits};
use crate::segment::{Capacity, HugePages, Segment, demand_huge_pages};
use crate::shape::FINGERPRINT;
use crate::strategy::{self, FileSystem, Place, Strategy};

const _: () = assert!(layout::chunk_count(Builder::CAPACITY_MIN) == 8);

/// Chooses how an arena is made.
#[derive(Debug)]
pub struct Builder {
    capacity: Capacity,
    limits: Arc<dyn Limits>,
    strategy: Option<Strategy>,
    place: Place,
    cache_limit: Option<u64>,
    prefault: u64,
    huge_pages: HugePages,
}

impl Builder {
    /// The least capacity of an arena, in bytes: 26 MiB.
    pub const CAPACITY_MIN: u64 = 26 << 20;

    pub(super) fn new() -> Self {
        Self {
            capacity: Capacity::default(),
            limits: SystemLimits::shared(),
            strategy: None,
            place: Place::default(),
            cache_limit: None,
            prefault: 0,
            huge_pages: HugePages::default(),
        }
    }

    /// How the arena's file is made and found. The default is [`sharing_strategy`](crate::sharing_strategy), or
    /// `file_system` for an arena with a name or a directory.
    #[must_use]
    pub fn strategy(mut self, strategy: impl Into<Strategy>) -> Self {
        self.strategy = Some(strategy.into());
        self
    }

    /// A name, by which other processes of this user [attach](Arena::attach).
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.place.name = Some(name.into());
        self
    }

    /// The directory of the arena's file: of a tmpfs, a hugetlbfs, a disk. The default is /dev/shm.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.place.directory = Some(directory.into());
        self
    }

    /// Address space to reserve, in bytes, rounded up to whole 2 MiB; final. The default is 64 GiB or twice the machine's
    /// memory, whichever is more, halved where the system refuses, down to 1 GiB.
    ///
    /// Address space costs nothing until it is used, so rather too much than too little. Some 10 MiB of it, and a little
    /// more of a large arena, are for control structures; less than [`CAPACITY_MIN`](Self::CAPACITY_MIN) is an error when
    /// the arena is [created](Self::create).
    ///
    /// ```
    /// use shm_core::Arena;
    /// use shm_core::arena::Builder;
    ///
    /// let smallest = Arena::builder().capacity(Builder::CAPACITY_MIN).create()?;
    /// assert_eq!(smallest.stats().capacity, 26 << 20);
    /// assert!(Arena::builder().capacity(1 << 20).create().is_err());
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    #[must_use]
    pub fn capacity(mut self, bytes: u64) -> Self {
        self.capacity = Capacity::exactly(bytes);
        self
    }

    /// Where the limits on memory come from; tests state them.
    #[must_use]
    pub fn limits(mut self, limits: Arc<dyn Limits>) -> Self {
        self.limits = limits;
        self
    }

    /// How much free memory each process of the arena keeps for its next allocations, in bytes: about that much, and as
    /// much again in pieces that belong to no process. What is above it goes back to the system, in whole chunks of 2 MiB
    /// that hold nothing, and never one that a device has pinned.
    ///
    /// Without a limit all is kept until memory is short: to take fresh memory costs ten times what copying into it costs.
    ///
    /// ```
    /// use shm_core::{Arena, Tensor};
    ///
    /// let arena = Arena::builder().capacity(1 << 30).cache_limit(64 << 20).create()?;
    /// drop(Tensor::<u8>::zeros_in(&arena, 100 << 20)?);
    /// assert!(arena.stats().cached <= 64 << 20);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    #[must_use]
    pub fn cache_limit(mut self, bytes: u64) -> Self {
        self.cache_limit = Some(bytes);
        self
    }

    /// Takes that many bytes of memory when the arena is made, in whole chunks of 2 MiB, and touches them, so that the
    /// first tensors cost this process no more than later ones. Other processes touch memory themselves, but need not take
    /// it. A [cache limit](Self::cache_limit) below it, or a lack of memory, gives it back.
    ///
    /// Where there is not as much, [`create`](Self::create) fails with `OutOfRoom`, or `CapacityExhausted` for more than
    /// fits into the arena.
    ///
    /// ```
    /// use shm_core::Arena;
    ///
    /// let arena = Arena::builder().capacity(1 << 30).prefault(32 << 20).create()?;
    /// assert_eq!(arena.stats().cached, 32 << 20);
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    #[must_use]
    pub fn prefault(mut self, bytes: u64) -> Self {
        self.prefault = bytes;
        self
    }

    /// Whether the arena should consist of huge pages: those of the [directory](Self::directory) if that is on a hugetlbfs,
    /// else transparent ones, where the system's settings allow them for shared memory. What came of it says
    /// [`Arena::page_size`]; only what is `Required` and can't be had is an error, `Unsupported`.
    ///
    /// ```
    /// use shm_core::{Arena, HugePages};
    ///
    /// let arena = Arena::builder().capacity(1 << 30).huge_pages(HugePages::IfPossible).create()?;
    /// println!("{}", arena.page_size()); // pages of 4 KiB and not huge ones: /sys/… is never; write "advise" …
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    #[must_use]
    pub fn huge_pages(mut self, wanted: HugePages) -> Self {
        self.huge_pages = wanted;
        self
    }

    /// Makes the arena. This process is its first participant.
    ///
    /// # Errors
    /// `Layout` for a capacity below [`CAPACITY_MIN`](Self::CAPACITY_MIN); `OutOfRoom`, `Unsupported`, `DescriptorLimit`
    /// or what else the system answers; `AlreadyExists` for a name
    /// under which processes live already, `Name` for what can't be one.
    pub fn create(self) -> Result<Arena> {
        let unplaced = self.place == Place::default();
        let strategy = match self.strategy {
            Some(strategy) => strategy,
            None if unplaced => strategy::default_strategy()?,
            None => FileSystem::new().into(),
        };
        let placed = match unplaced {
            true => None,
            false => Some(strategy.get()?.at(&self.place)?),
        };
        let maker = placed.as_deref().map_or_else(|| strategy.get(), Ok)?;
        let segment = Segment::create(maker, self.capacity, self.limits)?;
        let capacity = segment.capacity();
        if capacity < Self::CAPACITY_MIN {
            return Err(Error::new(
                ErrorKind::Layout,
                format!(
                    "an arena of {} was to be made, of which nothing would be left for tensors; make it at least {}, or better as large as it may ever have to be: address space costs nothing until it is used",
                    crate::error::Bytes(capacity),
                    crate::error::Bytes(Self::CAPACITY_MIN)
                ),
            ));
        }
        let asked = self.huge_pages != HugePages::Unasked;
        let pages = segment.use_huge_pages(asked);
        if self.huge_pages == HugePages::Required {
            demand_huge_pages(&pages)?;
        }
        if let Some(reason) = &pages.why_not {
            crate::say!(warn, reason, "the arena has no huge pages");
        }
        segment.commit(0, PAGE)?;
        let mut id = [0; 16];
        rustix::rand::getrandom(&mut id, rustix::rand::GetRandomFlags::empty())
            .map_err(|errno| Error::system("getrandom", errno, "giving the arena an identity"))?;
        let (low, high) = (
            u128::from_ne_bytes(id) as u64,
            (u128::from_ne_bytes(id) >> 64) as u64,
        );
        segment
            .word(header::VERSION)
            .store(layout::VERSION, Ordering::Relaxed);
        segment
            .word(header::SHAPE)
            .store(FINGERPRINT, Ordering::Relaxed);
        segment
            .word(header::CAPACITY)
            .store(capacity, Ordering::Relaxed);
        segment
            .word(header::INODE)
            .store(inode_of(segment.as_fd())?, Ordering::Relaxed);
        segment.word(header::ID_LOW).store(low, Ordering::Relaxed);
        segment.word(header::ID_HIGH).store(high, Ordering::Relaxed);
        segment
            .word(header::BOOT)
            .store(this_boot().unwrap_or(0), Ordering::Relaxed);
        segment.word(header::CACHE_LIMIT).store(
            self.cache_limit.map_or(0, |bytes| bytes.saturating_add(1)),
            Ordering::Relaxed,
        );
        segment
            .word(header::HUGE_PAGES)
            .store(u64::from(asked), Ordering::Relaxed);
        table::commit_rows(&segment, 0)?;
        // Release: who sees the magic sees a whole header.
        segment
            .word(header::MAGIC)
            .store(layout::MAGIC, Ordering::Release);
        let arena = Arena::enter(segment, strategy.clone())?;
        arena.heap().prefault(arena.segment(), self.prefault)?;
        maker.reveal(arena.segment().backing())?;
        Ok(arena)
    }
}

/// A number that tells this boot of the machine from others, if the system says.
pub(crate) fn this_boot() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    let digits: String = text
        .chars()
        .filter(char::is_ascii_hexdigit)
        .take(16)
        .collect();
    u64::from_str_radix(&digits, 16).ok()
}

/// Refuses what is not an arena of this version, whole. `place` says where it is, for the message.
pub(crate) fn check_header(segment: &Segment, place: impl fmt::Display) -> Result<()> {
    let word = |field| segment.word(field).load(Ordering::Acquire);
    check_header_words(
        (segment.capacity(), inode_of(segment.as_fd())?),
        word,
        place,
    )
}

fn inode_of(file: BorrowedFd<'_>) -> Result<u64> {
    let stat = rustix::fs::fstat(file);
    stat.map(|stat| stat.st_ino)
        .map_err(|errno| Error::system("fstat", errno, "looking at the arena's file"))
}

/// As [`check_header`], of a file of this size and inode by its header's words, however those are read.
pub(crate) fn check_header_words(
    (size, inode): (u64, u64),
    word: impl Fn(u64) -> u64,
    place: impl fmt::Display,
) -> Result<()> {
    if size < PAGE || word(header::MAGIC) != layout::MAGIC {
        return Err(Error::new(
            ErrorKind::NotAnArena,
            format!("{place} holds no arena: its first word is not the magic"),
        ));
    }
    let version = word(header::VERSION);
    if version != layout::VERSION {
        return Err(Error::new(
            ErrorKind::WrongVersion {
                found: version as u32,
                wanted: layout::VERSION as u32,
            },
            format!(
                "the arena at {place} has layout version {version}, this build reads {}; build all processes with one version of tensormp",
                layout::VERSION
            ),
        ));
    }
    let shape = word(header::SHAPE);
    if shape != FINGERPRINT {
        return Err(Error::new(
            ErrorKind::WrongVersion {
                found: version as u32,
                wanted: layout::VERSION as u32,
            },
            format!(
                "the arena at {place} has layout version {version} as this build's have, but what its words look like differs (fingerprint {shape:016x}, here {FINGERPRINT:016x}); build all processes with one version of tensormp"
            ),
        ));
    }
    let written = word(header::CAPACITY);
    if written != size {
        return Err(Error::new(
            ErrorKind::Size,
            format!(
                "the arena at {place} says it has {written} bytes, its file has {size}; it was cut short or grew"
            ),
        ));
    }
    if layout::chunk_count(written) < 8 {
        return Err(Error::new(
            ErrorKind::Size,
            format!("the arena at {place} says it has {written} bytes, which is too small for one"),
        ));
    }
    let original = word(header::INODE);
    if original != inode {
        return Err(Error::new(
            ErrorKind::Copied,
            format!(
                "the file at {place} is a copy of an arena's file (which has inode {original}, the copy {inode}): what it says of processes and memory is the original's; attach to that one, and remove the copy"
            ),
        ));
    }
    let rows = word(header::ROWS_HIGH);
    let chunks = word(header::CHUNKS_HIGH);
    if rows > layout::ROWS || chunks > layout::chunk_count(written) {
        return Err(Error::new(
            ErrorKind::Layout,
            format!(
                "the header of the arena at {place} does not add up: it tells of {rows} rows for participants, of which there can be {}, and {chunks} chunks, of which {} fit",
                layout::ROWS,
                layout::chunk_count(written)
            ),
        ));
    }
    Ok(())
}
