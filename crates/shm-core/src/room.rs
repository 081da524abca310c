//! How much memory may still be taken, and which limit says so.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::error::{Error, Result, Shortage};

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
