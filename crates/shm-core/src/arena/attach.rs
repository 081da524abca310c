//! Coming to a named arena from outside, while its last inhabitant may be leaving.

use core::sync::atomic::Ordering;
use std::os::fd::AsFd;
use std::path::Path;

use super::Arena;
use super::builder::{check_header, this_boot};
use crate::error::{Error, ErrorKind, Result};
use crate::layout::header;
use crate::room::SystemLimits;
use crate::segment::Segment;
use crate::strategy::{FileSystem, file_system};

impl Arena {
    /// Takes part in the arena that some process of this user made with that name in /dev/shm, or by the strategy
    /// `file_system` at that path (anything with a slash is one). It need not be a relative of that process.
    ///
    /// ```
    /// use shm_core::Arena;
    ///
    /// let made = Arena::builder().name("example.lens").create()?;
    /// let arena = Arena::attach("example.lens")?;
    /// let same = Arena::attach(arena.path().expect("a named arena"))?;
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `NotFound` when nothing has that name, `Name` for what can't be one; `NotAnArena` for something else than a file,
    /// or one without an arena; `WrongOwner`, `WrongPermission`, `WrongVersion`, `Size`, `Layout` for a file that is not
    /// as it must be; `Stale` for one from before the machine's last boot; `ParticipantsFull`, `OutOfRoom`.
    pub fn attach(place: impl AsRef<Path>) -> Result<Self> {
        let path = file_system::meant(place.as_ref())?;
        loop {
            let backing = file_system::open_vetted(&path)?;
            let segment = Segment::open_any(backing, SystemLimits::shared())?;
            check_header(&segment, path.display())?;
            let boot = segment.word(header::BOOT).load(Ordering::Relaxed);
            if boot != 0 && this_boot().is_some_and(|now| now != boot) {
                return Err(Error::new(
                    ErrorKind::Stale,
                    format!(
                        "the arena at {} was made before the machine's last boot, so nobody lives in it; remove the file",
                        path.display()
                    ),
                ));
            }
            crate::failpoint!("attach.opened");
            let arena = Self::enter(segment, FileSystem::new().into())?;
            crate::failpoint!("attach.entered");
            let gate = arena.locks().gate(file_system::PATIENCE)?.ok_or_else(|| {
                Error::new(
                    ErrorKind::TimedOut,
                    format!(
                        "attaching to {}: for {:?} a process has been about to leave it; is one stopped?",
                        path.display(),
                        file_system::PATIENCE
                    ),
                )
            })?;
            let there = file_system::is_name_of(&path, arena.as_fd());
            drop(gate);
            if there {
                // Those that were killed while nobody was there to see it.
                arena.bury_the_missing();
                return Ok(arena);
            }
            // The last one there removed it while we came in. Perhaps there is a new one by now.
        }
    }
}
