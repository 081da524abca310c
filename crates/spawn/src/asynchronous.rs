//! Waiting for processes in an async program, without a thread per wait and without a descriptor: the supervisor wakes
//! the task.
//!
//! Nothing here knows a runtime, so any will do; the tests use tokio.

use std::pin::Pin;
use std::task::{Context, Poll};

use crate::context::SpawnContext;
use crate::error::Result;
use crate::story::Story;

impl<R> SpawnContext<R> {
    /// Waits as [`join`](SpawnContext::join) does, in an async function. A wait that is dropped changes nothing: the
    /// processes run on, and it can be called again.
    ///
    /// It does not look for a [`Deadlock`](crate::ErrorKind::Deadlock): while a task waits, other tasks may do what ends
    /// the wait, and a runtime cannot be asked. Processes that only wait for each other still notice it themselves.
    ///
    /// ```no_run
    /// # fn square(_rank: usize, x: u32) -> Result<u32, String> { Ok(x * x) }
    /// #[tokio::main]
    /// async fn program() -> spawn::Result<()> {
    ///     let mut context = spawn::spawn(square, 3, 2)?;
    ///     assert_eq!(context.join_async().await?, [9, 9]);
    ///     Ok(())
    /// }
    ///
    /// fn main() -> spawn::Result<()> {
    ///     spawn::init(); // before the runtime: a worker needs none of its threads
    ///     program()
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// The first failure of any process, by time.
    pub async fn join_async(&mut self) -> Result<&[R]> {
        End {
            story: self.story(),
            key: None,
        }
        .await;
        self.join_at_once()
    }
}

/// Ready once a context has come to its end.
struct End<'a> {
    story: &'a Story,
    key: Option<u64>,
}

impl Future for End<'_> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, task: &mut Context<'_>) -> Poll<()> {
        let story = self.story;
        story.poll(&mut self.key, task)
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.story.forget(key);
        }
    }
}
