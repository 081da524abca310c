//! Asking another process for what no handle carries.

use std::os::fd::OwnedFd;

use crate::error::{Error, ErrorKind, Result};
use crate::event::Visited;

/// A descriptor of a memory of another process.
pub(crate) fn fetch_descriptor(_visited: &Visited, _memory: [u64; 2]) -> Result<OwnedFd> {
    Err(Error::new(ErrorKind::NoPath, "not yet"))
}
