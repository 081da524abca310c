//! The one error of this crate.

use mp_queue::ErrorKind as QueueErrorKind;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What a stage's code may answer: anything that is an error.
pub type StageError = Box<dyn std::error::Error + Send + Sync>;

/// Why a ring or a pipeline could not do it.
#[derive(thiserror::Error)]
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
    /// A process holds all the slots of a ring and waits for one more: it would wait for ever.
    Deadlock,
    /// A queue or a ring was full, and its policy is to fail.
    QueueFull,
    /// There was no slot for an item, and the policy is to drop the newest: the item is dropped, and the stage goes on
    /// with the next.
    Dropped,
    /// The run was stopped on request.
    Interrupted,
    /// The run, or one item in a step, took longer than its limit.
    TimedOut,
    /// Items never came whole to a stage that waits for all of their segments.
    Incomplete,
    /// A file of a run could not be read or written.
    File,
    /// A slot on a device: the source says more.
    Device,
    /// What a slot on a device held was lost with the process that wrote it.
    Lost,
}

impl Error {
    pub(crate) fn invalid(context: impl Into<String>) -> Self {
        Self::new(ErrorKind::Invalid, context)
    }

    pub(crate) fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self {
            kind,
            context: context.into(),
            source: None,
        }
    }

    pub(crate) fn caused(
        kind: ErrorKind,
        context: impl std::fmt::Display,
        source: impl Into<StageError>,
    ) -> Self {
        let source = source.into();
        Self {
            kind,
            context: format!("{context}: {source}"),
            source: Some(source),
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

/// `main` prints errors by `Debug`, so this is the message and its causes, not the fields.
impl std::fmt::Debug for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        shm_core::error::tell(self, f)
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
