//! `SimpleQueue`: Python's queue without options.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{PutError, Result};
use crate::queue::Queue;

/// Messages that fit; Python's pipe holds 64 KiB.
const CAPACITY: usize = 1024;

/// A [`Queue`] as Python's `SimpleQueue`: put, get, empty, close, and no size to think of. It holds 1,024 messages, however
/// large; then `put` waits, as Python's does when its pipe is full.
///
/// ```
/// let queue = mp_queue::SimpleQueue::new()?;
/// queue.put("hello".to_string())?;
/// assert!(!queue.empty());
/// assert_eq!(queue.get()?, "hello");
/// # Ok::<(), mp_queue::Error>(())
/// ```
#[derive(Debug, Serialize, Deserialize)]
#[serde(bound = "")]
pub struct SimpleQueue<T>(Queue<T>);

// Not derived: the messages need not be `Clone` for the queue to be.
impl<T> Clone for SimpleQueue<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> SimpleQueue<T> {
    /// Makes a queue in the current arena.
    ///
    /// # Errors
    /// What making an arena or an allocation in it can answer.
    #[track_caller]
    pub fn new() -> Result<Self> {
        Queue::bounded(CAPACITY).map(Self)
    }

    /// Whether there is no message now.
    #[must_use]
    pub fn empty(&self) -> bool {
        self.0.is_empty()
    }

    /// As [`Queue::close`].
    pub fn close(&self) {
        self.0.close();
    }
}

impl<T: Serialize + DeserializeOwned> SimpleQueue<T> {
    /// As [`Queue::put`].
    ///
    /// # Errors
    /// As there.
    pub fn put(&self, value: T) -> Result<(), PutError<T>> {
        self.0.put(value)
    }

    /// As [`Queue::get`].
    ///
    /// # Errors
    /// As there.
    pub fn get(&self) -> Result<T> {
        self.0.get()
    }

    /// As [`Queue::put_async`].
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "tokio")]
    pub async fn put_async(&self, value: T) -> Result<(), PutError<T>> {
        self.0.put_async(value).await
    }

    /// As [`Queue::get_async`].
    ///
    /// # Errors
    /// As there.
    #[cfg(feature = "tokio")]
    pub async fn get_async(&self) -> Result<T> {
        self.0.get_async().await
    }
}
