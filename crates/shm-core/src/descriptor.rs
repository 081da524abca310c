//! Descriptors that nobody takes for stdin, stdout or stderr.
//!
//! A program that closed one of those gives its number to whatever is opened next. If that is an arena's file, the next
//! line that the program prints goes over the arena's first bytes; if it is a socket, the line is a message.

use std::os::fd::{AsRawFd, OwnedFd};

use rustix::io::{Errno, fcntl_dupfd_cloexec};

/// The same file under a number above 2, closed on exec. A descriptor that has one already stays as it is.
///
/// # Errors
/// `MFILE` when the process has no number left.
#[inline]
pub fn apart(descriptor: OwnedFd) -> Result<OwnedFd, Errno> {
    if descriptor.as_raw_fd() > 2 {
        return Ok(descriptor);
    }
    fcntl_dupfd_cloexec(&descriptor, 3)
}
