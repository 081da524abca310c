//! Ends: shares in one side of an object.

use super::Object;
use crate::held::Held;

/// A share in one side of an object, for instance a queue's producers. When the last one of all processes goes,
/// whoever waits is woken.
#[derive(Clone, Debug)]
pub struct End {
    pub(crate) held: Held,
}

impl End {
    /// Whether no other handle in this process and no other process or message shares the side.
    #[must_use]
    pub fn is_sole(&self) -> bool {
        self.held.is_sole()
    }

    /// Whether no other handle in this process shares this reference.
    #[must_use]
    pub fn is_locally_unique(&self) -> bool {
        self.held.is_locally_unique()
    }

    /// Whether this is side `index` of `object`.
    #[must_use]
    pub fn is_of(&self, object: &Object, index: u64) -> bool {
        self.held.line == object.end_line(index)
    }
}
