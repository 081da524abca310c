//! Stand-in for the arena: it holds nothing.

use crate::error::Result;

/// A stand-in for the shared arena.
#[derive(Clone, Debug)]
pub struct Arena;

impl Arena {
    /// The arena of this process.
    pub fn current() -> Result<Arena> {
        Ok(Arena)
    }
}
