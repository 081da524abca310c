//! Tokens: what stands for a device's block in the arena, and travels in its place.

use std::ops::Deref;
use std::sync::Arc;

use shm_core::trace::Trace;
use shm_core::{SharedTensor, Tensor};

use crate::error::{Error, ErrorKind, Result};
use crate::layout::malformed;

/// Words of a token, and the first of them.
pub(crate) const WORDS: usize = 6;
pub(crate) const MAGIC: u64 = u64::from_le_bytes(*b"devtok\x01\0");

/// The small block of the arena that travels in place of a device's: its mode is the tensor's, its holders are the
/// tensor's holders.
#[derive(Debug)]
pub(crate) enum Token {
    Exclusive(Tensor<u64>),
    /// Counted here, so that who comes later can find it.
    Shared(Arc<SharedTensor<u64>>),
    /// Of a part that was lent by the tensor that has the token; it is not sent.
    Lent,
}

impl Token {
    /// Of which block of the arena it is; none of a part that was lent.
    pub(crate) fn id(&self) -> Option<[u64; 2]> {
        self.trace().ok().map(|trace| trace.id())
    }

    pub(crate) fn words(&self) -> Result<[u64; WORDS]> {
        let words = match self {
            Self::Exclusive(token) => token.try_as_slice()?,
            Self::Shared(token) => token.try_as_slice()?,
            Self::Lent => return Err(lent()),
        };
        words
            .try_into()
            .map_err(|_| malformed("a token of another length"))
    }

    pub(crate) fn trace(&self) -> Result<Trace> {
        match self {
            Self::Exclusive(token) => Ok(Trace::of(token)),
            Self::Shared(token) => Ok(Trace::of(token)),
            Self::Lent => Err(lent()),
        }
    }
}

#[cold]
pub(crate) fn lent() -> Error {
    Error::new(
        ErrorKind::StillHeld,
        "a part of a device tensor cannot be sent by itself; send the tensor",
    )
}

/// A token in a tensor's hands. Where a use of the block could not be noted when it ended, the token stays with
/// [`kept`](crate::kept) as the tensor goes.
#[derive(Debug)]
pub(crate) struct HeldToken(Option<Token>);

impl HeldToken {
    pub(crate) fn into_inner(mut self) -> Token {
        self.0.take().unwrap_or(Token::Lent)
    }
}

impl From<Token> for HeldToken {
    fn from(token: Token) -> Self {
        Self(Some(token))
    }
}

impl Deref for HeldToken {
    type Target = Token;

    fn deref(&self) -> &Token {
        self.0.as_ref().unwrap_or(&Token::Lent)
    }
}

impl Drop for HeldToken {
    fn drop(&mut self) {
        if let Some(token) = self.0.take() {
            crate::kept::let_go(token);
        }
    }
}
