//! One error for programs that use several crates of the family, so that `?` works everywhere.

use std::fmt;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

type Other = Box<dyn std::error::Error + Send + Sync>;

/// What can go wrong in a program of several processes. The message is that of the part it came from.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Tensors and the arena they lie in.
    #[error(transparent)]
    Arena(#[from] shm_core::Error),
    /// Queues, lanes, events, barriers.
    #[error(transparent)]
    Queue(#[from] mp_queue::Error),
    /// Processes: one of them failed, or could not be started.
    #[error(transparent)]
    Process(#[from] spawn::Error),
    /// Rings and pipelines.
    #[error(transparent)]
    Pipeline(#[from] pipeline::Error),
    /// Devices, and tensors on them.
    #[cfg(feature = "cuda")]
    #[error(transparent)]
    Device(#[from] cuda_ipc::Error),
    /// Anything else, for instance an error of the program's own.
    #[error(transparent)]
    Other(#[from] Other),
}

impl<T> From<mp_queue::PutError<T>> for Error {
    fn from(error: mp_queue::PutError<T>) -> Self {
        Self::Queue(error.into())
    }
}

/// The guard of a poisoned lock is let go; to keep it, look at the error before.
impl<G> From<mp_queue::LockError<G>> for Error {
    fn from(error: mp_queue::LockError<G>) -> Self {
        Self::Queue(error.into())
    }
}

impl From<std::io::Error> for Error {
    fn from(error: std::io::Error) -> Self {
        Self::Other(error.into())
    }
}

impl From<String> for Error {
    fn from(text: String) -> Self {
        Self::Other(text.into())
    }
}

impl From<&str> for Error {
    fn from(text: &str) -> Self {
        Self::Other(text.into())
    }
}

/// `main` prints errors by `Debug`, so this is the message and its causes, not the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shm_core::error::tell(self, f)
    }
}
