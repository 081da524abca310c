//! One byte of the arena's file per participant, locked while it lives: a sign of life that reaches across pid namespaces.
//!
//! The locks belong to an open file description (OFD locks), and the kernel drops them when its last descriptor closes, however the process ends. The
//! description is one of our own, opened again through /proc, so that closing another descriptor of the same file loses nothing. Still it is a hint only: a
//! bare fork keeps a dead parent's lock, and a process that closes descriptors wholesale loses its own while it lives.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::fs::{Mode, OFlags, open};
use rustix::io::Errno;

use crate::descriptor::apart;
use crate::error::{Error, ErrorKind, Result};

/// The lock bytes of an arena, through a file description of this process's own.
#[derive(Debug)]
pub struct RowLocks {
    file: OwnedFd,
    base: u64,
}

impl RowLocks {
    /// Opens the arena's file again; row 0's byte lies at offset `base`, the others follow it. Only locks lie there, nothing is read or written.
    ///
    /// # Errors
    /// What the system answers, for example when /proc is not mounted.
    pub fn open(arena: BorrowedFd<'_>, base: u64) -> Result<Self> {
        let path = format!("/proc/self/fd/{}", arena.as_raw_fd());
        let file = open(&*path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
            .and_then(apart)
            .map_err(|errno| {
                Error::system(
                    "open",
                    errno,
                    format!("opening the arena's file again by {path}, for locks of its own"),
                )
            })?;
        Ok(Self { file, base })
    }

    /// The lock bytes of an arena's file through a description that is open already. To ask [`is_held_elsewhere`](Self::is_held_elsewhere) it may be
    /// open for reading only.
    #[must_use]
    pub fn through(file: OwnedFd, base: u64) -> Self {
        Self { file, base }
    }

    /// Locks the byte of `row` for as long as this value (or a copy of its descriptor) exists; `false` if another description holds it.
    ///
    /// # Errors
    /// What the system answers.
    pub fn try_lock(&self, row: u16) -> Result<bool> {
        match self.control(libc::F_OFD_SETLK, libc::F_WRLCK, row) {
            Ok(_) => Ok(true),
            Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
            Err(errno) => Err(self.failure("fcntl(F_OFD_SETLK)", errno, row)),
        }
    }

    /// Lets go of the byte of `row`.
    ///
    /// # Errors
    /// What the system answers.
    pub fn unlock(&self, row: u16) -> Result<()> {
        self.control(libc::F_OFD_SETLK, libc::F_UNLCK, row)
            .map(drop)
            .map_err(|errno| self.failure("fcntl(F_OFD_SETLK)", errno, row))
    }

    /// Whether another description than this one holds the byte of `row`. A lock of our own does not show.
    ///
    /// # Errors
    /// What the system answers.
    pub fn is_held_elsewhere(&self, row: u16) -> Result<bool> {
        match self.control(libc::F_OFD_GETLK, libc::F_WRLCK, row) {
            Ok(found) => Ok(found != libc::F_UNLCK),
            Err(errno) => Err(self.failure("fcntl(F_OFD_GETLK)", errno, row)),
        }
    }

    /// One fcntl on the byte of `row`; answers the lock type that the kernel left in the structure.
    fn control(
        &self,
        command: libc::c_int,
        kind: libc::c_int,
        row: u16,
    ) -> std::result::Result<libc::c_int, Errno> {
        let start = self
            .base
            .checked_add(row.into())
            .and_then(|at| i64::try_from(at).ok())
            .ok_or(Errno::OVERFLOW)?;
        control(self.file.as_fd(), command, kind, start)
    }

    /// The gate of the arena's file, through this description.
    ///
    /// # Errors
    /// As [`Gate::take`].
    pub fn gate(&self, patience: Duration) -> Result<Option<Gate<'_>>> {
        Gate::take(self.file.as_fd(), patience)
    }

    fn failure(&self, operation: &'static str, errno: Errno, row: u16) -> Error {
        if errno == Errno::OVERFLOW {
            return Error::new(
                ErrorKind::Layout,
                format!(
                    "the lock byte of row {row} would lie at {} + {row}, past the largest file offset",
                    self.base
                ),
            );
        }
        Error::system(
            operation,
            errno,
            format!(
                "the life lock of participant row {row} (byte {} + {row})",
                self.base
            ),
        )
    }
}

/// Whether another description than this one holds a lock on any byte of the file.
pub(crate) fn is_locked_elsewhere(file: BorrowedFd<'_>) -> Result<bool> {
    let found = control_range(file, libc::F_OFD_GETLK, libc::F_WRLCK, (0, 0));
    found.map(|found| found != libc::F_UNLCK).map_err(|errno| {
        Error::system(
            "fcntl(F_OFD_GETLK)",
            errno,
            "looking for locks on an arena's file",
        )
    })
}

/// One fcntl on the byte at `start`; answers the lock type that the kernel left in the structure.
fn control(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    start: i64,
) -> std::result::Result<libc::c_int, Errno> {
    control_range(file, command, kind, (start, 1))
}

/// As [`control`], on so many bytes; 0 for all that follow.
fn control_range(
    file: BorrowedFd<'_>,
    command: libc::c_int,
    kind: libc::c_int,
    (start, len): (i64, i64),
) -> std::result::Result<libc::c_int, Errno> {
    let mut lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: len,
        // OFD locks demand 0 here.
        l_pid: 0,
    };
    // SAFETY: these commands read and write one `flock`, which `lock` is for the whole call; the descriptor is open for as long as it is borrowed.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) };
    if answer == -1 {
        let error = std::io::Error::last_os_error();
        return Err(Errno::from_io_error(&error).unwrap_or(Errno::IO));
    }
    Ok(lock.l_type.into())
}

/// The byte that whoever changes what a named file's name means has locked: far behind every row's, in all versions.
const GATE: i64 = 1 << 62;

/// The gate of a named file, held until this is dropped.
#[derive(Debug)]
pub struct Gate<'a> {
    file: BorrowedFd<'a>,
}

impl<'a> Gate<'a> {
    /// Takes the gate for the file's description; `None` if another description has had it for longer than `patience`.
    ///
    /// It is held for a few system calls, so waiting for long means that its holder was stopped.
    ///
    /// # Errors
    /// What the system answers.
    pub fn take(file: BorrowedFd<'a>, patience: Duration) -> Result<Option<Self>> {
        let mut waited = Duration::ZERO;
        loop {
            match control(file, libc::F_OFD_SETLK, libc::F_WRLCK, GATE) {
                Ok(_) => return Ok(Some(Self { file })),
                Err(Errno::AGAIN | Errno::ACCESS) if waited >= patience => return Ok(None),
                Err(Errno::AGAIN | Errno::ACCESS) => {
                    let pause = Duration::from_millis(1);
                    std::thread::sleep(pause);
                    waited += pause;
                }
                Err(errno) => {
                    return Err(Error::system(
                        "fcntl(F_OFD_SETLK)",
                        errno,
                        "locking the gate of a named arena",
                    ));
                }
            }
        }
    }
}

impl Drop for Gate<'_> {
    fn drop(&mut self) {
        // By name, not by closing: a forked child may have the description as well.
        let _ = control(self.file, libc::F_OFD_SETLK, libc::F_UNLCK, GATE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Held, gets_so, rerun};
    use rustix::process::Signal;

    const BASE: u64 = 1 << 30;

    fn locks(file: &std::fs::File) -> RowLocks {
        RowLocks::open(file.as_fd(), BASE).unwrap()
    }

    #[test]
    fn a_row_is_locked_by_one_description_only() {
        let file = tempfile::tempfile().unwrap();
        let (one, other) = (locks(&file), locks(&file));
        assert!(one.try_lock(4094).unwrap());
        assert!(
            one.try_lock(4094).unwrap(),
            "asking again is no conflict with ourselves"
        );
        assert!(!other.try_lock(4094).unwrap());
        assert!(other.is_held_elsewhere(4094).unwrap());
        assert!(!one.is_held_elsewhere(4094).unwrap());
        assert!(!other.is_held_elsewhere(4093).unwrap());
        one.unlock(4094).unwrap();
        assert!(!other.is_held_elsewhere(4094).unwrap());
    }

    #[test]
    fn a_description_for_reading_sees_who_holds_a_lock() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let holder = locks(file.as_file());
        let looking = RowLocks::through(std::fs::File::open(file.path()).unwrap().into(), BASE);
        assert!(!looking.is_held_elsewhere(5).unwrap());
        assert!(holder.try_lock(5).unwrap());
        assert!(looking.is_held_elsewhere(5).unwrap());
        assert!(looking.try_lock(6).is_err(), "it can only look");
    }

    #[test]
    fn closing_another_descriptor_of_the_file_keeps_the_lock() {
        let file = tempfile::tempfile().unwrap();
        let (one, other) = (locks(&file), locks(&file));
        assert!(one.try_lock(1).unwrap());
        drop(file);
        assert!(other.is_held_elsewhere(1).unwrap());
        drop(one);
        assert!(gets_so(|| !other.is_held_elsewhere(1).unwrap()));
    }

    #[test]
    fn a_byte_past_the_largest_offset_is_an_error() {
        let file = tempfile::tempfile().unwrap();
        let locks = RowLocks::open(file.as_fd(), i64::MAX as u64).unwrap();
        assert_eq!(locks.try_lock(1).unwrap_err().kind(), &ErrorKind::Layout);
    }

    #[test]
    fn a_stopped_process_keeps_its_lock_and_a_killed_one_loses_it() {
        const PLACE: &str = "SHM_CORE_TEST_LOCKED_FILE";
        let Some(mut child) = rerun(
            "participant::lock::tests::a_stopped_process_keeps_its_lock_and_a_killed_one_loses_it",
        ) else {
            let file = std::fs::File::options()
                .read(true)
                .write(true)
                .open(std::env::var_os(PLACE).unwrap())
                .unwrap();
            assert!(
                locks(&file).try_lock(7).unwrap(),
                "the lock is taken and lost again with its description"
            );
            let held = locks(&file);
            assert!(held.try_lock(7).unwrap());
            return Held::stay();
        };
        let file = tempfile::NamedTempFile::new().unwrap();
        let locks = locks(file.as_file());
        let child = Held::start(child.env(PLACE, file.path()));
        assert!(locks.is_held_elsewhere(7).unwrap());
        child.signal(Signal::STOP);
        assert!(locks.is_held_elsewhere(7).unwrap());
        child.signal(Signal::KILL);
        child.wait_until_ended();
        assert!(!locks.is_held_elsewhere(7).unwrap());
    }
}
