//! How the arena's file comes to be and how other processes reach it.
//!
//! A strategy makes the file, gives it its final size, and vets a descriptor that arrived from elsewhere. It maps nothing: [`Segment`](crate::segment::Segment)
//! does, in the same way for all strategies. A new strategy is a file beside this one and a line in [`all`]; the book's page "Strategies" says what it owes.

use std::fmt;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, fstat};
use rustix::process::{Resource, getrlimit};

use crate::error::{Bytes, Error, ErrorKind, Result, Shortage};

mod choice;
mod file_descriptor;
pub mod file_system;

pub(crate) use choice::default_strategy;
pub use choice::{Strategy, all_sharing_strategies, set_sharing_strategy, sharing_strategy};
pub use file_descriptor::FileDescriptor;
pub use file_system::FileSystem;

/// Where a file that has a name is to be made; each part is the strategy's choice if it is not given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The arena's name.
    pub name: Option<String>,
    /// The directory of its file.
    pub directory: Option<PathBuf>,
}

/// One way to share the arena's file between processes.
///
/// # Safety
/// The arena hands out references into the file that [`create`](Self::create) gives. So that file must be a new one that
/// nobody else has or gets but the arena's own participants (as a [`Backing`] of it, or by the name that
/// [`reveal`](Self::reveal) gives it); nobody may write to it, cut it short or punch holes into it but through the arena;
/// and it has the size that [`fix_size`](Self::fix_size) was asked for, until its last participant is gone.
pub unsafe trait SharingStrategy: fmt::Debug + Send + Sync + 'static {
    /// The name by which users choose it, as in torch ("file_descriptor").
    fn name(&self) -> &'static str;

    /// Makes a new, empty file that only this user can reach.
    ///
    /// # Errors
    /// What the system answers: no descriptor left, no permission, no such directory.
    fn create(&self) -> Result<Backing>;

    /// Gives a file made by [`create`](Self::create) its final size, for good where the system can promise that.
    ///
    /// # Errors
    /// `OutOfRoom` where a file may not be that large, else what the system answers.
    fn fix_size(&self, backing: &mut Backing, capacity: u64) -> Result<()>;

    /// The same strategy, for an arena at that place.
    ///
    /// # Errors
    /// `Unsupported` for a strategy whose files have no names, which is what it answers unless it says otherwise; `Name` for what can't be a name.
    fn at(&self, place: &Place) -> Result<Box<dyn SharingStrategy>> {
        Err(Error::new(
            ErrorKind::Unsupported,
            format!(
                "an arena of the strategy {} has no name and no directory, but {place:?} was asked for; choose file_system, or leave them out",
                self.name()
            ),
        ))
    }

    /// Lets others find the file, now that the arena in it is whole. Nothing to do for a strategy whose files have no names.
    ///
    /// # Errors
    /// `AlreadyExists` when its name is taken; else what the system answers.
    fn reveal(&self, backing: &Backing) -> Result<()> {
        let _ = backing;
        Ok(())
    }

    /// Whether a file stays when every process that has it open is gone, so that the last to leave has to remove it.
    fn outlives_processes(&self) -> bool {
        false
    }

    /// Whether this open file is one that this strategy makes: which strategy adopts a descriptor follows from what it is.
    fn recognises(&self, file: BorrowedFd<'_>) -> bool;

    /// Takes a descriptor that came from another process, after checking that it is what this strategy makes.
    ///
    /// # Errors
    /// `NotAnArena`, `Size` or `Unsupported` for a file that could change its size under us or is none of ours.
    fn adopt(&self, file: OwnedFd) -> Result<Backing>;
}

/// All strategies of this build, the default one first.
#[must_use]
pub fn all() -> &'static [&'static dyn SharingStrategy] {
    static FILE_SYSTEM: FileSystem = FileSystem::new();
    static ALL: [&dyn SharingStrategy; 2] = [&FileDescriptor, &FILE_SYSTEM];
    &ALL
}

/// The strategy called `name`.
///
/// # Errors
/// `Unsupported`, naming those that exist.
pub fn by_name(name: &str) -> Result<&'static dyn SharingStrategy> {
    all()
        .iter()
        .copied()
        .find(|strategy| strategy.name() == name)
        .ok_or_else(|| {
            let known: Vec<_> = all().iter().map(|strategy| strategy.name()).collect();
            Error::new(
                ErrorKind::Unsupported,
                format!(
                    "there is no sharing strategy {name:?}; choose one of {}",
                    known.join(", ")
                ),
            )
        })
}

/// Takes a descriptor that came from another process; says whose file it is.
///
/// # Errors
/// As the `adopt` of the strategy that recognises it; of the default one if none does.
pub(crate) fn adopt(file: OwnedFd) -> Result<(Strategy, Backing)> {
    let strategy = all()
        .iter()
        .copied()
        .find(|strategy| strategy.recognises(file.as_fd()))
        .unwrap_or(&FileDescriptor);
    Ok((strategy.into(), strategy.adopt(file)?))
}

/// An arena's file, open in this process.
#[derive(Debug)]
pub struct Backing {
    file: OwnedFd,
    size: u64,
    path: Option<PathBuf>,
    /// The name under which the file waits to be revealed, if it has one.
    hidden: Option<file_system::Hidden>,
}

impl Backing {
    /// Wraps an open file of `size` bytes; `path` where it has a name.
    #[must_use]
    pub fn new(file: OwnedFd, size: u64, path: Option<PathBuf>) -> Self {
        Self {
            file,
            size,
            path,
            hidden: None,
        }
    }

    /// The file's size in bytes; 0 until it was fixed.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.size
    }

    /// The file's name, for strategies that have one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }
}

impl AsFd for Backing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// The largest file that this process may make (`RLIMIT_FSIZE`); `None` without a limit.
///
/// To be looked at before a file grows: the system's own answer is SIGXFSZ, which ends the process.
#[must_use]
pub fn file_size_limit() -> Option<u64> {
    getrlimit(Resource::Fsize).current
}

/// Refuses a size that `RLIMIT_FSIZE` forbids.
fn check_file_size_limit(capacity: u64) -> Result<()> {
    match file_size_limit() {
        Some(limit) if limit < capacity => Err(Error::out_of_room(Shortage {
            asked: capacity,
            free: limit,
            limit: "the file size limit (RLIMIT_FSIZE)".into(),
            hint: "raise it with `ulimit -f`, or make the arena with a smaller capacity".into(),
        })),
        _ => Ok(()),
    }
}

/// Size of a descriptor that came from elsewhere, once it is known to be a regular file of whole pages that can be mapped.
pub(crate) fn vetted_size(file: &OwnedFd) -> Result<u64> {
    let stat = fstat(file)
        .map_err(|errno| Error::system("fstat", errno, "looking at a received descriptor"))?;
    let kind = FileType::from_raw_mode(stat.st_mode);
    if kind != FileType::RegularFile {
        return Err(Error::new(
            ErrorKind::NotAnArena,
            format!("the received descriptor is a {kind:?}, not an arena's file"),
        ));
    }
    let page = rustix::param::page_size() as u64;
    match u64::try_from(stat.st_size) {
        Ok(size) if size > 0 && size % page == 0 && isize::try_from(size).is_ok() => Ok(size),
        _ => Err(Error::new(
            ErrorKind::Size,
            format!(
                "the received file has {} bytes; an arena's file is one or more whole pages of {}",
                stat.st_size,
                Bytes(page)
            ),
        )),
    }
}
