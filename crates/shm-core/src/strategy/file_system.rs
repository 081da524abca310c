//! `file_system`: a file with a name, in /dev/shm or a directory of the user's choice, that any process of the same user attaches to.
//!
//! The file belongs to one user, mode 0600. It is made under a hidden name and gets its own when the arena in it is whole; whoever is the last to leave removes
//! it. A named file can't be sealed: a process of the same user that truncates it makes the
//! others end by SIGBUS. Who wants that excluded uses `file_descriptor`.
//!
//! **Leaving and coming.** The name goes when nobody is left, but somebody may just be coming. Both sides take the *gate*, a lock on one byte of the file that
//! the kernel drops however its holder ends. A leaver gives its row back first, then takes the gate, counts who is there, and removes the name if nobody is. An
//! attacher opens the file, takes a row first, then the gate, and looks whether the name still means this file. So either its row was there when the leaver
//! counted, or the name is gone when it looks, and it starts over. A process that exits without dropping its arena marks its row as leaving (see the file `exit.rs`).
//! When all were killed, the file stays until somebody attaches to it or sweeps it ([`sweep`]); making an arena of the same name does that, too, and making
//! one whose name is made up sweeps those whose names were, in the same directory.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    CWD, FileType, Mode, OFlags, RenameFlags, Stat, fchmod, fstat, ftruncate, lstat, open,
    renameat_with, unlink,
};
use rustix::io::Errno;
use rustix::process::geteuid;

use super::{Backing, Place, SharingStrategy, check_file_size_limit, vetted_size};
use crate::descriptor::apart;
use crate::error::{Bytes, Error, ErrorKind, Result};
use crate::participant::lock::Gate;

pub(crate) mod exit;
pub(crate) mod sweep;

pub use sweep::{Found, Inhabitant, Standing, Swept, list, sweep};

/// Where named arenas are unless told otherwise: a tmpfs on every Linux.
pub const DEFAULT_DIRECTORY: &str = "/dev/shm";

/// Permission bits of an arena's file.
const MODE: u32 = 0o600;

/// How long the gate may be in somebody's hands before we give up on it: it is held for some system calls only.
pub(crate) const PATIENCE: Duration = Duration::from_secs(10);

/// The strategy `file_system`, with the place of the arena's file.
///
/// ```
/// use shm_core::{Arena, strategy::FileSystem};
///
/// let arena = Arena::builder().strategy(FileSystem::new()).name("example.camera").create()?;
/// let same = Arena::attach("example.camera")?; // in any process of this user
/// # Ok::<(), shm_core::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct FileSystem {
    name: Option<String>,
    directory: Option<PathBuf>,
}

impl FileSystem {
    /// A name made up for each arena, in [`DEFAULT_DIRECTORY`].
    #[must_use]
    pub const fn new() -> Self {
        Self {
            name: None,
            directory: None,
        }
    }

    /// In that directory: of a tmpfs, a hugetlbfs, a disk.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    fn in_directory(&self) -> &Path {
        self.directory
            .as_deref()
            .unwrap_or(Path::new(DEFAULT_DIRECTORY))
    }
}

/// How the names of our files begin: users share directories, so each user's are told apart.
pub(crate) fn prefix() -> String {
    format!("tensormp.{}.", geteuid().as_raw())
}

/// The file of the arena of that name in `directory`.
///
/// # Errors
/// `Name` for an empty name, one with a slash or control characters, or one of more than 200 bytes.
pub fn path_of(directory: &Path, name: &str) -> Result<PathBuf> {
    if name.is_empty() || name.len() > 200 || name.contains(|c: char| c == '/' || c.is_control()) {
        return Err(Error::new(
            ErrorKind::Name,
            format!(
                "{name:?} can't be an arena's name: it has 1 to 200 bytes, without slashes and control characters"
            ),
        ));
    }
    Ok(directory.join(prefix() + name))
}

/// The file that somebody who attaches means: a path if there is a slash in it, else a name in [`DEFAULT_DIRECTORY`].
pub(crate) fn meant(place: &Path) -> Result<PathBuf> {
    let text = place.as_os_str().as_encoded_bytes();
    if text.contains(&b'/') {
        return Ok(place.to_owned());
    }
    match place.to_str() {
        Some(name) => path_of(Path::new(DEFAULT_DIRECTORY), name),
        None => Err(Error::new(
            ErrorKind::Name,
            format!("{place:?} can't be an arena's name: it is not UTF-8"),
        )),
    }
}

/// A name that hides a file until it is revealed; dropped, the name is gone.
#[derive(Debug)]
pub(crate) struct Hidden(PathBuf);

impl Drop for Hidden {
    fn drop(&mut self) {
        // Revealed already: then there is no such name any more.
        let _ = unlink(&self.0);
    }
}

fn random() -> Result<String> {
    let mut bytes = [0; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| Error::system("getrandom", errno, "making up a file name"))?;
    Ok(format!("{:016x}", u64::from_ne_bytes(bytes)))
}

/// A new file in `directory` that only we and the sweep know of, mode 0600, its gate in our hands.
fn make_hidden(directory: &Path) -> Result<(OwnedFd, Hidden)> {
    loop {
        let path = directory.join(format!(".{}{}.new", prefix(), random()?));
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::RDWR | OFlags::CLOEXEC;
        let file = open(&path, flags, Mode::RUSR | Mode::WUSR).and_then(apart);
        let file = file.map_err(|errno| {
            let tried = format!("making an arena's file in {}", directory.display());
            Error::system("open", errno, tried)
        })?;
        let hidden = Hidden(path);
        // Whatever the umask left of it.
        fchmod(&file, Mode::from_raw_mode(MODE)).map_err(|errno| {
            Error::system(
                "fchmod",
                errno,
                "keeping the arena's file to this user (mode 0600)",
            )
        })?;
        // A sweeper takes a hidden file whose gate is free for one whose maker is dead, and may have come first.
        let gate = Gate::take(file.as_fd(), PATIENCE)?;
        let kept = gate.is_some() && look(&file, &hidden.0)?.st_nlink > 0;
        // Kept until the file is revealed.
        std::mem::forget(gate);
        if kept {
            return Ok((file, hidden));
        }
    }
}

// SAFETY: the file is created exclusively, with permissions for this user only, under a name that is given to it when the
// arena in it is whole; who opens it by that name checks its owner, permissions and header first. A user who changes the file
// behind the arena's back is outside of what the library can promise, as the book says of named files.
unsafe impl SharingStrategy for FileSystem {
    fn name(&self) -> &'static str {
        "file_system"
    }

    fn create(&self) -> Result<Backing> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => {
                sweep::sweep_made_up(self.in_directory());
                random()?
            }
        };
        let path = path_of(self.in_directory(), &name)?;
        let (file, hidden) = make_hidden(self.in_directory())?;
        let mut backing = Backing::new(file, 0, Some(path));
        backing.hidden = Some(hidden);
        Ok(backing)
    }

    fn fix_size(&self, backing: &mut Backing, capacity: u64) -> Result<()> {
        check_file_size_limit(capacity)?;
        ftruncate(&*backing, capacity).map_err(|errno| {
            Error::system(
                "ftruncate",
                errno,
                format!(
                    "giving the arena's file in {} its size of {}; if the file system has no files that large, make the arena with a smaller capacity",
                    self.in_directory().display(),
                    Bytes(capacity)
                ),
            )
        })?;
        backing.size = capacity;
        Ok(())
    }

    fn at(&self, place: &Place) -> Result<Box<dyn SharingStrategy>> {
        let placed = Self {
            name: place.name.clone().or_else(|| self.name.clone()),
            directory: place.directory.clone().or_else(|| self.directory.clone()),
        };
        if let Some(name) = &placed.name {
            path_of(placed.in_directory(), name)?;
        }
        Ok(Box::new(placed))
    }

    fn reveal(&self, backing: &Backing) -> Result<()> {
        let (Some(path), Some(Hidden(hidden))) = (backing.path(), &backing.hidden) else {
            return Ok(());
        };
        crate::failpoint!("named.hidden");
        // Renamed and not linked: so the kernel tells everyone who has the file open what it is called.
        let rename = || renameat_with(CWD, hidden, CWD, path, RenameFlags::NOREPLACE);
        let outcome = match rename() {
            // Perhaps of an arena whose processes were all killed.
            Err(Errno::EXIST) if sweep::sweep_one(path).unwrap_or(false) => rename(),
            outcome => outcome,
        };
        // Ours since the file was made.
        drop(Gate::take(backing.as_fd(), Duration::ZERO)?);
        match outcome {
            Ok(()) => Ok(()),
            Err(Errno::EXIST) => Err(Error::new(
                ErrorKind::AlreadyExists,
                format!(
                    "there is an arena (or another file) at {} already{}; attach to it, or choose another name",
                    path.display(),
                    sweep::who_lives_in(path)
                ),
            )),
            Err(errno) => Err(Error::system(
                "renameat2(RENAME_NOREPLACE)",
                errno,
                format!(
                    "giving the arena's file its name {}; if the file system cannot do that, choose a directory of another one",
                    path.display()
                ),
            )),
        }
    }

    fn outlives_processes(&self) -> bool {
        true
    }

    fn recognises(&self, file: BorrowedFd<'_>) -> bool {
        // A memfd has no name, and nor has a file that was removed.
        fstat(file).is_ok_and(|stat| is_regular(&stat) && stat.st_nlink > 0)
    }

    fn adopt(&self, file: OwnedFd) -> Result<Backing> {
        let path = name_now(file.as_fd()).unwrap_or_else(|| "a received descriptor".into());
        vet(&look(&file, &path)?, &path)?;
        let size = vetted_size(&file)?;
        Ok(Backing::new(file, size, Some(path)))
    }
}

/// Opens the file at `path` if it is one that this strategy made for this user.
///
/// Looked at before it is opened for reading: opening a device or a pipe that somebody planted may do something.
pub(crate) fn open_vetted(path: &Path) -> Result<Backing> {
    let (file, _) = open_looked_at(path, OFlags::NOFOLLOW, OFlags::RDWR)?;
    let size = vetted_size(&file)?;
    Ok(Backing::new(file, size, Some(path.to_owned())))
}

/// Opens the regular file at `path` that is this user's alone, `following` links or not; with what was seen of it.
pub(crate) fn open_looked_at(
    path: &Path,
    following: OFlags,
    access: OFlags,
) -> Result<(OwnedFd, Stat)> {
    let failed = |errno| match errno {
        Errno::NOENT | Errno::NOTDIR => Error::new(
            ErrorKind::NotFound,
            format!(
                "there is no arena at {}; is it running, as this user, and by that name?",
                path.display()
            ),
        ),
        errno => Error::system("open", errno, format!("opening {}", path.display())),
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC | following;
    let seen = open(path, flags, Mode::empty()).map_err(failed)?;
    let stat = look(&seen, path)?;
    vet(&stat, path)?;
    // The same file, whatever the name means by now.
    let again = format!("/proc/self/fd/{}", seen.as_raw_fd());
    let file = open(&*again, access | OFlags::CLOEXEC, Mode::empty());
    Ok((file.and_then(apart).map_err(failed)?, stat))
}

fn look(file: &OwnedFd, path: &Path) -> Result<Stat> {
    fstat(file)
        .map_err(|errno| Error::system("fstat", errno, format!("looking at {}", path.display())))
}

fn is_regular(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile
}

/// Refuses what another user, or somebody by mistake, has put there.
fn vet(stat: &Stat, path: &Path) -> Result<()> {
    let path = path.display();
    if !is_regular(stat) {
        let kind = FileType::from_raw_mode(stat.st_mode);
        return Err(Error::new(
            ErrorKind::NotAnArena,
            format!(
                "{path} is a {kind:?}, not an arena's file; links are not followed, because others could plant them"
            ),
        ));
    }
    let (found, wanted) = (stat.st_uid, geteuid().as_raw());
    if found != wanted {
        return Err(Error::new(
            ErrorKind::WrongOwner { found, wanted },
            format!(
                "{path} belongs to user {found}, this process acts as user {wanted}: an arena is for the processes of one user"
            ),
        ));
    }
    let found = stat.st_mode & 0o7777;
    if found != MODE {
        return Err(Error::new(
            ErrorKind::WrongPermission {
                found,
                wanted: MODE,
            },
            format!(
                "{path} has mode {found:04o}, an arena's file has {MODE:04o}: others may have written there; remove it if it is none of yours"
            ),
        ));
    }
    Ok(())
}

/// Whether `path` is the name of this open file now.
pub(crate) fn is_name_of(path: &Path, file: BorrowedFd<'_>) -> bool {
    match (lstat(path), fstat(file)) {
        (Ok(named), Ok(open)) => (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino),
        _ => false,
    }
}

/// What an open file is called now, as far as this process can see it.
pub(crate) fn name_now(file: BorrowedFd<'_>) -> Option<PathBuf> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    let path = std::fs::read_link(link).ok()?;
    is_name_of(&path, file).then_some(path)
}

/// Removes the name of an open file. The gate is the caller's, and nobody lives there.
pub(crate) fn remove(file: BorrowedFd<'_>) -> Result<bool> {
    let Some(path) = name_now(file) else {
        return Ok(false);
    };
    match unlink(&path) {
        Ok(()) => Ok(true),
        // Somebody cleaned up before us: that is what we want.
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(Error::system(
            "unlink",
            errno,
            format!("removing the arena at {}", path.display()),
        )),
    }
}

#[cfg(test)]
mod tests;
