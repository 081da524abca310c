//! [`Stopper`]: stops a context's processes from another thread than the one that joins them.

use std::fmt;
use std::sync::Arc;

use crate::story::Story;
use crate::supervisor;

/// Stops the processes of one context. For threads that handle signals or deadlines while another joins.
#[derive(Clone)]
pub struct Stopper {
    pub(crate) story: Arc<Story>,
}

impl Stopper {
    /// As [`SpawnContext::terminate`](crate::SpawnContext::terminate).
    pub fn terminate(&self) {
        supervisor::stop(&self.story, false);
    }

    /// As [`SpawnContext::kill`](crate::SpawnContext::kill).
    pub fn kill(&self) {
        supervisor::stop(&self.story, true);
    }
}

impl fmt::Debug for Stopper {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stopper")
            .field("processes", &self.story.members().len())
            .finish()
    }
}
