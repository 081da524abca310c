//! Memory taken and touched before it is needed, when an arena is made.

use super::Heap;
use crate::chunk::{Chunks, State, Use};
use crate::error::Result;
use crate::layout::CHUNK;
use crate::room;
use crate::segment::Segment;
use std::os::fd::AsFd;

impl Heap {
    /// Commits and touches free chunks of together at least `bytes`; they are anybody's afterwards.
    ///
    /// On an error the arena is not made, so nothing is given back here.
    pub(crate) fn prefault(&self, segment: &Segment, bytes: u64) -> Result<()> {
        let chunks = Chunks::new(segment);
        let count = bytes.div_ceil(CHUNK);
        if count == 0 {
            return Ok(());
        }
        // The whole of it before the first part.
        room::ensure(
            &**segment.limits(),
            count.saturating_mul(CHUNK),
            segment.as_fd(),
        )?;
        let first = chunks.claim(self.me, count, &mut self.inner.lock().seen)?;
        for chunk in first..first + count {
            chunks.commit(chunk, CHUNK)?;
            segment.touch(chunks.offset(chunk), CHUNK)?;
            chunks.change(chunk, State::Owned(self.me, Use::Nothing), State::Free);
        }
        Ok(())
    }
}
