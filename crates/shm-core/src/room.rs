//! How much memory may still be taken, and which limit says so.
//!
//! The kernel's own answer comes too late: a cgroup at its limit does not fail an allocation, it kills a process, and a full tmpfs is a SIGBUS at the first
//! touch. So before the arena commits memory it asks every limit that could be hit, and refuses with the one that leaves least.
//! What other programs take between the question and the commit can still end in a kill; each limit's reserve makes that unlikely, not impossible.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result, Shortage};

mod cgroup;
mod system;

pub use system::SystemLimits;

/// One limit, as it stands now.
#[derive(Clone, Copy)]
pub struct Limit<'a> {
    /// What it is called: a cgroup's file, `MemAvailable`, a directory.
    pub name: &'a dyn fmt::Display,
    /// Bytes that it leaves.
    pub free: u64,
    /// Bytes of that which are kept for others, so that they are not killed for ours.
    pub reserve: u64,
    /// What to do when it is too little.
    pub hint: &'a str,
}

impl fmt::Debug for Limit<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Limit")
            .field("name", &format_args!("{}", self.name))
            .field("free", &self.free)
            .field("reserve", &self.reserve)
            .finish_non_exhaustive()
    }
}

/// Where the limits come from: the system, or a test.
pub trait Limits: fmt::Debug + Send + Sync {
    /// Shows each limit on memory taken through `file` to `see`.
    ///
    /// `needed` saves work: a limit that leaves at least `needed` and its reserve may be shown with less than it really leaves, as long as that is enough.
    ///
    /// # Errors
    /// When a limit is there but can't be read. A limit that doesn't exist on this system is left out.
    fn each(&self, needed: u64, file: BorrowedFd<'_>, see: &mut dyn FnMut(Limit<'_>))
    -> Result<()>;
}

/// Refuses when `asked` bytes more would leave less than the reserve of any limit.
///
/// # Errors
/// `OutOfRoom`, for the limit that leaves least.
pub fn ensure(limits: &dyn Limits, asked: u64, file: BorrowedFd<'_>) -> Result<()> {
    let mut tightest: Option<Shortage> = None;
    limits.each(asked, file, &mut |limit| {
        let free = limit.free.saturating_sub(limit.reserve);
        if asked > free && tightest.as_ref().is_none_or(|other| free < other.free) {
            tightest = Some(Shortage {
                asked,
                free,
                limit: limit.name.to_string(),
                hint: limit.hint.to_owned(),
            });
        }
    })?;
    tightest.map_or(Ok(()), |shortage| Err(Error::out_of_room(shortage)))
}

/// A budget that is stated rather than read from the system.
#[derive(Debug)]
pub struct FixedLimits {
    free: AtomicU64,
}

impl FixedLimits {
    /// Leaves `free` bytes, until told otherwise.
    #[must_use]
    pub fn new(free: u64) -> Self {
        Self {
            free: AtomicU64::new(free),
        }
    }

    /// Leaves `free` bytes from now on.
    pub fn set_free(&self, free: u64) {
        self.free.store(free, Ordering::Relaxed);
    }
}

impl Limits for FixedLimits {
    fn each(&self, _: u64, _: BorrowedFd<'_>, see: &mut dyn FnMut(Limit<'_>)) -> Result<()> {
        see(Limit {
            name: &"the stated budget",
            free: self.free.load(Ordering::Relaxed),
            reserve: 0,
            hint: "raise the budget",
        });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::os::fd::AsFd;

    #[derive(Debug)]
    struct Several(&'static [(&'static str, u64, u64)]);

    impl Limits for Several {
        fn each(&self, _: u64, _: BorrowedFd<'_>, see: &mut dyn FnMut(Limit<'_>)) -> Result<()> {
            for (name, free, reserve) in self.0 {
                see(Limit {
                    name,
                    free: *free,
                    reserve: *reserve,
                    hint: "raise it",
                });
            }
            Ok(())
        }
    }

    #[test]
    fn the_limit_that_leaves_least_after_its_reserve_is_the_one_named() {
        let file = tempfile::tempfile().unwrap();
        let limits = Several(&[("a", 100, 0), ("b", 120, 50), ("c", 90, 0), ("d", 1000, 0)]);
        assert!(ensure(&limits, 70, file.as_fd()).is_ok());
        let error = ensure(&limits, 95, file.as_fd()).unwrap_err();
        let ErrorKind::OutOfRoom(shortage) = error.kind() else {
            panic!("{error}")
        };
        assert_eq!(
            (shortage.limit.as_str(), shortage.free, shortage.asked),
            ("b", 70, 95)
        );
        assert!(ensure(&limits, u64::MAX, file.as_fd()).is_err());
    }
}
