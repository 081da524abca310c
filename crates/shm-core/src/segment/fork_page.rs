//! Detects a bare fork: a page that the kernel zeroes in every forked child.
//!
//! A child made by `fork` alone has the parent's mapping and the parent's identity in its memory, but is no participant; whatever it did in the arena would be
//! done in the parent's name. Asking costs one load, where comparing process ids would cost a system call.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use crate::error::{Error, Result};

const SAME_PROCESS: u64 = 1;

/// A private page that holds 1 in the process that made it and 0 in any process forked from it.
#[derive(Debug)]
pub struct ForkPage {
    page: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the page belongs to this value alone and is reached only as an `AtomicU64`, which threads may share.
unsafe impl Send for ForkPage {}
// SAFETY: as above.
unsafe impl Sync for ForkPage {}

impl ForkPage {
    /// Maps the page and marks this process as its maker.
    ///
    /// # Errors
    /// What the system answers when it has no page, or is older than Linux 4.14.
    pub fn new() -> Result<Self> {
        let len = rustix::param::page_size();
        // SAFETY: a new private mapping at an address of the kernel's choice touches no memory that exists.
        let address = unsafe {
            mmap_anonymous(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::PRIVATE,
            )
        }
        .map_err(|errno| Error::system("mmap", errno, "mapping the page that detects a fork"))?;
        let Some(page) = NonNull::new(address.cast::<AtomicU64>()) else {
            // mmap without MAP_FIXED never answers address 0.
            return Err(Error::system(
                "mmap",
                rustix::io::Errno::FAULT,
                "mapping the page that detects a fork",
            ));
        };
        // From here on drop unmaps it.
        let this = Self { page, len };
        // SAFETY: the range is exactly the mapping made above, and the advice changes only what a forked child sees.
        unsafe { madvise(address, len, Advice::LinuxWipeOnFork) }.map_err(|errno| {
            Error::system(
                "madvise(MADV_WIPEONFORK)",
                errno,
                "marking the page that detects a fork (Linux 4.14 or newer)",
            )
        })?;
        this.word().store(SAME_PROCESS, Ordering::Relaxed);
        Ok(this)
    }

    /// Whether this process is a fork of the one that made the page.
    #[inline]
    #[must_use]
    pub fn is_forked(&self) -> bool {
        // Relaxed: the value never changes within a process; a child has its zero from the start.
        self.word().load(Ordering::Relaxed) != SAME_PROCESS
    }

    fn word(&self) -> &AtomicU64 {
        // SAFETY: the page stays mapped, readable and writable until drop, is aligned to its size, zeroed memory is a valid `AtomicU64`, and all access goes
        // through this reference's type.
        unsafe { self.page.as_ref() }
    }
}

impl Drop for ForkPage {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new` with this length, and no reference to it outlives `self`. Unmapping what was mapped cannot fail, and if it did
        // the page would only stay.
        let _ = unsafe { munmap(self.page.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_fork_is_noticed_in_the_child_and_not_in_the_parent() {
        let page = ForkPage::new().unwrap();
        assert!(!page.is_forked());
        // SAFETY: the child calls nothing but `is_forked` (one load) and `_exit`, both fit for a process forked from one with several threads.
        let child = unsafe { libc::fork() };
        assert!(child >= 0, "fork failed");
        if child == 0 {
            let code = i32::from(!page.is_forked());
            // SAFETY: ends the forked child at once, without running anything of the parent's.
            unsafe { libc::_exit(code) };
        }
        let pid = rustix::process::Pid::from_raw(child).unwrap();
        let (_, status) =
            rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())
                .unwrap()
                .unwrap();
        assert_eq!(status.exit_status(), Some(0));
        assert!(!page.is_forked());
    }
}
