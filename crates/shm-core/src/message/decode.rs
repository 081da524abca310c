//! Making a value of a message that was taken out of its cell.

use std::cell::RefCell;

use serde::de::DeserializeOwned;
use smallvec::SmallVec;

use super::parse::{Body, Extra, FEW, What};
use crate::error::{Error, ErrorKind, Result};
use crate::held::Held;

thread_local! {
    pub(super) static DECODING: RefCell<Option<DecodeScope>> = const { RefCell::new(None) };
}

/// A handle of a message that is now held by this process.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) held: Held,
    pub(crate) what: What,
    pub(crate) extra: Extra,
}

/// The handles of a message, those that were taken out left empty.
///
/// Dropped in order: ends and slots lie in the block of their object, which may be gone with its last handle.
#[derive(Debug, Default)]
pub(crate) struct Entries(pub(crate) SmallVec<[Option<Arrived>; FEW]>);

impl FromIterator<Option<Arrived>> for Entries {
    fn from_iter<I: IntoIterator<Item = Option<Arrived>>>(entries: I) -> Self {
        Self(entries.into_iter().collect())
    }
}

impl Drop for Entries {
    fn drop(&mut self) {
        for entry in &mut self.0 {
            drop(entry.take_if(|entry| entry.what.is_in_object()));
        }
    }
}

pub(super) struct DecodeScope {
    pub(super) entries: Entries,
    /// Boxed: the scope moves with each message, an error hardly ever comes.
    pub(super) error: Option<Box<Error>>,
}

/// A message that was taken out of its cell; this process holds what it refers to. Dropping it releases that.
#[derive(Debug)]
pub struct Incoming {
    pub(crate) entries: Entries,
    pub(crate) body: Body,
}

impl Incoming {
    /// The value.
    ///
    /// # Errors
    /// `Decode` when the bytes are not what the type reads; everything the message held is released then.
    #[inline]
    pub fn decode<T: DeserializeOwned>(mut self) -> Result<T> {
        if self.entries.0.first().is_some_and(|entry| {
            entry
                .as_ref()
                .is_some_and(|entry| entry.what == What::Spill)
        }) {
            self.entries.0.remove(0);
        }
        let entries = std::mem::take(&mut self.entries);
        decode_with(entries, &self.body)
    }
}

impl Incoming {
    /// Takes a value off the front of the message; the rest holds all that the message refers to. For receivers that learn
    /// from the front what the rest is.
    ///
    /// # Errors
    /// `Decode` when the bytes are not what the type reads, also when the type has a tensor in it. The message is as it
    /// was then.
    pub fn take_prefix<H: DeserializeOwned>(&mut self) -> Result<H> {
        match postcard::take_from_bytes::<H>(&self.body) {
            Ok((head, rest)) => {
                let read = self.body.len() - rest.len();
                self.body.drain(..read);
                Ok(head)
            }
            Err(cause) => Err(Error::new(
                ErrorKind::Decode,
                format!(
                    "the front of a message could not be read as {}: {cause}",
                    std::any::type_name::<H>()
                ),
            )
            .because(cause)),
        }
    }
}

/// Puts a scope in place for as long as it lives, and the one before back, also when serde code panics.
struct DecodeGuard(Option<Box<DecodeScope>>);

impl DecodeGuard {
    #[inline]
    fn enter(entries: Entries) -> Self {
        DECODING.with_borrow_mut(|slot| {
            let outer = if slot.is_some() {
                slot.take().map(Box::new)
            } else {
                None
            };
            *slot = Some(DecodeScope {
                entries,
                error: None,
            });
            Self(outer)
        })
    }
}

impl Drop for DecodeGuard {
    #[inline]
    fn drop(&mut self) {
        let outer = self.0.take();
        // Nearly always there is nothing to put back and nothing left.
        if outer.is_some() || DECODING.with_borrow(Option::is_some) {
            drop(DECODING.replace(outer.map(|scope| *scope)));
        }
    }
}

#[inline]
pub(super) fn decode_with<T: DeserializeOwned>(entries: Entries, body: &[u8]) -> Result<T> {
    let guard = DecodeGuard::enter(entries);
    let outcome = postcard::take_from_bytes::<T>(body);
    let scope = DECODING.take();
    drop(guard);
    let type_name = std::any::type_name::<T>();
    let (left, error) = scope.map_or((0, None), |scope| {
        (scope.entries.0.iter().flatten().count(), scope.error)
    });
    match outcome {
        Ok((value, [])) if left == 0 => Ok(value),
        Ok((_, rest)) => Err(Error::new(
            ErrorKind::Decode,
            format!(
                "{type_name} read its message, but {} bytes and {left} tensors of it are left over; sender and receiver must use the same type, and postcard has no `skip_serializing_if`, `flatten` or untagged enums",
                rest.len()
            ),
        )),
        Err(cause) => Err(error.map(|error| *error).unwrap_or_else(|| {
            Error::new(
                ErrorKind::Decode,
                format!("a message could not be read as {type_name}: {cause}; sender and receiver must use the same type, and postcard has no `skip_serializing_if`, `flatten` or untagged enums"),
            )
            .because(cause)
        })),
    }
}
