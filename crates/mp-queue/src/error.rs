//! The one error of this crate, and the one that gives a value back.

use std::fmt;

use serde::de::DeserializeOwned;
use shm_core::deadlock::Deadlock;
use shm_core::failure::PeerFailure;
use spawn::Carried;

/// `Result` with this crate's [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a queue, a lock or another primitive could not do it.
#[derive(thiserror::Error)]
#[error(transparent)]
pub struct Error(
    // Behind a pointer, so that the results of hot paths are a word or two: an error is hardly ever in them.
    Box<Inner>,
);

#[derive(Debug, thiserror::Error)]
#[error("{context}")]
struct Inner {
    kind: ErrorKind,
    /// No longer than it must be: guards travel with it.
    context: Box<str>,
    #[source]
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
    /// The error that a task returned, if it can be told.
    typed: Option<Carried>,
}

/// The cases of [`Error`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// There is no room now (`try_put`).
    Full,
    /// There is nothing now (`try_get`).
    Empty,
    /// Somebody else has it now (`try_lock`, `try_acquire`); the message says who.
    Busy,
    /// This process has no task in hand that could be done.
    NoTask,
    /// The time that was given is over.
    TimedOut,
    /// The one who held the lock before died holding it, or panicked: what the lock guards may be half changed. The
    /// [`LockError`] has the guard.
    Poisoned {
        /// The process that died or panicked.
        pid: u32,
    },
    /// The barrier was reset while this process waited at it.
    Reset,
    /// The queue was closed, or everyone on the other side has dropped it.
    Closed,
    /// A process this depends on failed, died, or returned too early.
    PeerFailed(PeerFailure),
    /// This wait could never end: everyone who could end it waits as well.
    Deadlock(Deadlock),
    /// The arena, or the encoding of a value: the source says more.
    Arena(shm_core::ErrorKind),
    /// A pool's task returned an error.
    TaskRaised {
        /// The task's number in its pool.
        task: u64,
        /// The worker's process.
        pid: u32,
        /// The error's text, then that of its source, and so on.
        chain: Vec<String>,
    },
    /// A pool's task panicked; the worker caught it and works on.
    TaskPanicked {
        /// The task's number in its pool.
        task: u64,
        /// The worker's process.
        pid: u32,
        /// What the panic said.
        message: String,
        /// `file:line:column`, as far as known.
        location: Option<String>,
    },
    /// The worker ended while it was at this task.
    TaskLost {
        /// The task's number in its pool.
        task: u64,
        /// The worker's process.
        pid: u32,
        /// How the worker ended.
        cause: String,
    },
    /// The task was cancelled.
    TaskCancelled {
        /// The task's number in its pool.
        task: u64,
    },
    /// A pool's workers end as soon as they are started, and it has given up.
    CrashLoop {
        /// How many workers in a row ended without having begun a task.
        crashes: u32,
        /// How the last one ended.
        cause: String,
    },
    /// A pool's worker could not be started.
    NoWorker,
    /// The thread that sleeps for this process's futures could not be started.
    NoThread,
    /// A pool was asked to do something that only waiting for itself could do.
    Inside,
}

impl Error {
    /// An error of this kind. For crates that build a primitive of their own on a [`Channel`](crate::channel::Channel).
    pub fn new(kind: ErrorKind, context: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            context: context.into().into_boxed_str(),
            source: None,
            typed: None,
        }))
    }

    /// The failure of a peer, while `doing` something.
    #[must_use]
    pub fn peer_failed(failure: PeerFailure, doing: &str) -> Self {
        let context = format!("{doing}: {failure}");
        Self::new(ErrorKind::PeerFailed(failure.clone()), context).because(failure)
    }

    /// A wait without an end.
    #[must_use]
    pub fn deadlock(deadlock: Deadlock) -> Self {
        let context = deadlock.to_string();
        Self::new(ErrorKind::Deadlock(deadlock.clone()), context).because(deadlock)
    }

    /// The same error with another one below it.
    #[must_use]
    pub(crate) fn because(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> Self {
        self.0.source = Some(source.into());
        self
    }

    /// The same error with something more to say.
    #[must_use]
    pub(crate) fn with(mut self, hint: &str) -> Self {
        self.0.context = format!("{}; {hint}", self.0.context).into();
        self
    }

    /// The error that a pool's task returned, as what it was: for functions that return [`Typed`](spawn::Typed) errors,
    /// of exactly this type. `None` for everything else; the text is in [`TaskRaised`](ErrorKind::TaskRaised) in any case.
    ///
    /// ```no_run
    /// # use serde::{Serialize, Deserialize};
    /// use spawn::Typed;
    ///
    /// #[derive(Debug, thiserror::Error, Serialize, Deserialize)]
    /// #[error("{0} bytes are too many")]
    /// struct TooLarge(u64);
    ///
    /// fn load(bytes: u64) -> Result<u64, Typed<TooLarge>> {
    ///     if bytes > 100 { Err(TooLarge(bytes))? }
    ///     Ok(bytes)
    /// }
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # spawn::init();
    /// let error = mp_queue::Pool::new(1)?.call(load, 200).unwrap_err();
    /// assert_eq!(error.downcast::<TooLarge>().unwrap().0, 200);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn downcast<E: DeserializeOwned>(&self) -> Option<E> {
        self.0.typed.as_ref()?.open()
    }

    /// The same error, with what it was.
    #[must_use]
    pub(crate) fn typed(mut self, typed: Option<Carried>) -> Self {
        self.0.typed = typed;
        self
    }

    /// The same error once more, without what is below it.
    pub(crate) fn again(&self) -> Self {
        Self::new(self.0.kind.clone(), self.0.context.clone())
    }

    /// The case, for programs.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// Whether no more will ever come or go: the ordinary end of a loop.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.kind == ErrorKind::Closed
    }
}

/// `main` prints errors by `Debug`, so this is the message and its causes, not the fields.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        shm_core::error::tell(self, f)
    }
}

impl From<shm_core::Error> for Error {
    #[cold]
    fn from(error: shm_core::Error) -> Self {
        Self::new(ErrorKind::Arena(error.kind().clone()), error.to_string()).because(error)
    }
}

/// A value that could not be put, with the reason.
///
/// `?` turns it into an [`Error`]; [`into_value`](PutError::into_value) gives the value back.
pub struct PutError<T> {
    error: Error,
    value: Option<T>,
}

impl<T> PutError<T> {
    /// An error of this kind. For crates that build a primitive of their own on a [`Channel`](crate::channel::Channel).
    pub fn new(error: Error, value: Option<T>) -> Self {
        Self { error, value }
    }

    /// The reason.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The reason's case.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        self.error.kind()
    }

    /// The value. `None` only where whoever held on to parts of it has it still (`StillHeld`), or it does not read
    /// what it wrote.
    #[must_use]
    pub fn into_value(self) -> Option<T> {
        self.value
    }

    /// Reason and value.
    #[must_use]
    pub fn into_parts(self) -> (Error, Option<T>) {
        (self.error, self.value)
    }
}

impl<T> fmt::Debug for PutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> fmt::Display for PutError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<T> std::error::Error for PutError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<T> From<PutError<T>> for Error {
    fn from(error: PutError<T>) -> Self {
        error.error
    }
}

/// A lock that was not taken, or was taken and is poisoned, with the reason.
///
/// `?` turns it into an [`Error`] and lets the lock go; [`into_guard`](LockError::into_guard) is for programs that can
/// put right what a dead holder left.
///
/// ```
/// let mutex = mp_queue::Mutex::new()?;
/// let guard = match mutex.lock() {
///     Ok(guard) => guard,
///     // Whatever the one before had half done is looked at and put right here.
///     Err(error) => {
///         let mut guard = error.into_guard()?;
///         guard.clear_poison();
///         guard
///     }
/// };
/// # drop(guard);
/// # Ok::<(), mp_queue::Error>(())
/// ```
pub struct LockError<G> {
    error: Error,
    /// Boxed, so that taking a lock moves one guard's worth of words and not two.
    guard: Option<Box<G>>,
}

impl<G> LockError<G> {
    pub(crate) fn new(error: Error) -> Self {
        Self { error, guard: None }
    }

    pub(crate) fn poisoned(pid: u32, what: impl fmt::Display, guard: G) -> Self {
        let context = format!(
            "{what} is poisoned: the process with pid {pid} died or panicked while it held it, so what it guards may be half changed; \
             take the guard out of this error to put that right, then `clear_poison()`"
        );
        Self {
            error: Error::new(ErrorKind::Poisoned { pid }, context),
            guard: Some(Box::new(guard)),
        }
    }

    /// The reason.
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// The reason's case.
    #[must_use]
    pub fn kind(&self) -> &ErrorKind {
        self.error.kind()
    }

    /// The guard of a poisoned lock.
    ///
    /// # Errors
    /// The reason, where the lock was not taken.
    pub fn into_guard(self) -> Result<G> {
        self.guard.map(|guard| *guard).ok_or(self.error)
    }
}

impl<G> fmt::Debug for LockError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<G> fmt::Display for LockError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl<G> std::error::Error for LockError<G> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<G> From<Error> for LockError<G> {
    fn from(error: Error) -> Self {
        Self::new(error)
    }
}

impl<G> From<LockError<G>> for Error {
    fn from(error: LockError<G>) -> Self {
        error.error
    }
}
