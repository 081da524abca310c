//! What can go wrong, and how it is told.

use std::fmt;

/// What kind of thing went wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A shape, a stride or an index does not fit.
    Shape,
    /// A tensor holds another element type.
    Dtype,
    /// A tensor is held in another mode (exclusive, shared) than asked for.
    Mode,
    /// Bytes from outside are not what they should be.
    Malformed,
    /// There is no memory for what was asked.
    Memory,
}

/// An error of this crate.
#[derive(Debug, thiserror::Error)]
#[error("{context}")]
pub struct Error {
    kind: ErrorKind,
    context: String,
    source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

/// A result of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    fn new(kind: ErrorKind, context: String) -> Self {
        Error {
            kind,
            context,
            source: None,
        }
    }

    /// The kind of this error.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    pub(crate) fn shape(context: String) -> Self {
        Error::new(ErrorKind::Shape, context)
    }

    pub(crate) fn dtype(expected: impl fmt::Display, found: impl fmt::Display) -> Self {
        let context = format!(
            "a tensor of {expected} was asked for, but this one holds {found}; ask for {found}, or \
             look at dtype() first"
        );
        Error::new(ErrorKind::Dtype, context)
    }

    pub(crate) fn mode(context: String) -> Self {
        Error::new(ErrorKind::Mode, context)
    }

    pub(crate) fn malformed(context: String) -> Self {
        Error::new(ErrorKind::Malformed, context)
    }

    pub(crate) fn memory(context: String) -> Self {
        Error::new(ErrorKind::Memory, context)
    }
}
