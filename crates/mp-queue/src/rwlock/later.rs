//! Locking for reading and for writing as futures.

use shm_core::crowd::Grant;

use super::{DRAINED, FREE, READING, ReadGuard, RwLock, WRITING, WriteGuard};
use crate::error::{LockError, Result};
use crate::primitive::obtain_async;

/// Not the thread's: the task may go on in another one.
const TAG: u32 = 0;

impl RwLock {
    /// [`read`](Self::read) as a future, which knows no runtime and takes no thread. Cancel safe: the lock is taken in the
    /// very poll that answers with it. The guard may be kept while the task waits for something else, and dropped in
    /// another thread.
    ///
    /// # Errors
    /// As [`read`](Self::read), without `Deadlock`.
    pub async fn read_async(&self) -> Result<ReadGuard, LockError<ReadGuard>> {
        // Everybody: readers go on together, and a writer that is told and still has to wait tells nobody else.
        let event = (FREE, Grant::Everybody);
        let begin = || self.begin_reading(TAG);
        let began = obtain_async(&self.object, event, READING, begin).await?;
        self.reading(TAG, began)
    }

    /// [`write`](Self::write) as a future; otherwise as [`read_async`](Self::read_async). As a thread does, it keeps new
    /// readers out while it waits for those that read; dropped then, it lets them in again.
    ///
    /// # Errors
    /// As [`write`](Self::write), without `Deadlock`.
    pub async fn write_async(&self) -> Result<WriteGuard, LockError<WriteGuard>> {
        let object = &self.object;
        let event = (FREE, Grant::Everybody);
        let left = obtain_async(object, event, WRITING, || self.claim(TAG)).await?;
        let claim = self.claimed(TAG, left);
        let event = (DRAINED, Grant::Everybody);
        obtain_async(object, event, WRITING, || claim.is_drained()).await?;
        claim.writing()
    }
}
