//! The one error of this crate.

use mp_queue::ErrorKind as QueueErrorKind;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a stage's code may answer: anything that is an error.
pub type StageError = Box<dyn std::error::Error + Send + Sync>;

/// Why a ring or a pipeline could not do it.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct Error {
    kind: ErrorKind,
    context: String,
    #[source]
    source: Option<StageError>,
}

/// The cases of [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The pipeline, a step or a tensor is described in a way that cannot work.
    Invalid,
    /// The arena: the source says more.
    Arena(shm_core::ErrorKind),
    /// A ring's messages or waits: the source says more.
    Queue(QueueErrorKind),
    /// A process failed, or could not be started: the source says which and why.
    Process,
    /// A result did not read as the type that was asked for.
    Result,
}

impl Error {
    pub(crate) fn invalid(context: impl Into<String>) -> Self {
        Self {
            kind: ErrorKind::Invalid,
            context: context.into(),
            source: None,
        }
    }

    pub(crate) fn result(context: String, source: impl Into<StageError>) -> Self {
        Self {
            kind: ErrorKind::Result,
            context,
            source: Some(source.into()),
        }
    }

    /// The case, for programs.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.kind
    }
}

impl From<shm_core::Error> for Error {
    fn from(error: shm_core::Error) -> Self {
        Self {
            kind: ErrorKind::Arena(error.kind().clone()),
            context: error.to_string(),
            source: Some(error.into()),
        }
    }
}

impl From<mp_queue::Error> for Error {
    fn from(error: mp_queue::Error) -> Self {
        Self {
            kind: ErrorKind::Queue(error.kind().clone()),
            context: error.to_string(),
            source: Some(error.into()),
        }
    }
}

impl From<spawn::Error> for Error {
    fn from(error: spawn::Error) -> Self {
        Self {
            kind: ErrorKind::Process,
            context: error.to_string(),
            source: Some(error.into()),
        }
    }
}
