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

/// What the `Deserialize` of handles takes from. It stays in its place from message to message: moving it costs more than
/// reading most messages.
#[derive(Default)]
pub(super) struct DecodeScope {
    /// Whether a message is being read.
    active: bool,
    pub(super) entries: Entries,
    /// Boxed: the scope moves where one message is read while another is, an error hardly ever comes.
    pub(super) error: Option<Box<Error>>,
}

/// The scope of the message that this thread reads, if it reads one.
pub(super) fn in_scope(slot: &mut Option<DecodeScope>) -> Option<&mut DecodeScope> {
    slot.as_mut().filter(|scope| scope.active)
}

/// A message that was taken out of its cell; this process holds what it refers to. Dropping it releases that. The default
/// is an empty one, into which a message can be taken.
#[derive(Debug, Default)]
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
        self.take()
    }

    /// As [`decode`](Self::decode), for who has the message in its place: it is empty afterwards, in any case.
    ///
    /// # Errors
    /// As there.
    #[inline]
    pub fn take<T: DeserializeOwned>(&mut self) -> Result<T> {
        if self.entries.0.first().is_some_and(|entry| {
            entry
                .as_ref()
                .is_some_and(|entry| entry.what == What::Spill)
        }) {
            self.entries.0.remove(0);
        }
        let value = decode_with(&mut self.entries, &self.body);
        self.body.clear();
        value
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

/// Opens the scope for as long as it lives, and puts the one before back, also when serde code panics.
struct DecodeGuard {
    outer: Option<Box<DecodeScope>>,
    over: bool,
}

impl DecodeGuard {
    #[inline]
    fn enter(entries: &mut Entries) -> Self {
        DECODING.with_borrow_mut(|slot| {
            let scope = slot.get_or_insert_with(DecodeScope::default);
            let outer = scope.active.then(|| Box::new(std::mem::take(scope)));
            scope.active = true;
            if !entries.0.is_empty() {
                scope.entries.0.extend(entries.0.drain(..));
            }
            Self { outer, over: false }
        })
    }

    /// Closes the scope. What was not taken out of it, and why reading failed, if a handle knows.
    #[inline]
    fn end(&mut self) -> (Option<Box<Entries>>, Option<Box<Error>>) {
        self.over = true;
        DECODING.with_borrow_mut(|slot| {
            let Some(scope) = slot else {
                return (None, None);
            };
            let entries = &mut scope.entries;
            let left = if entries.0.iter().any(Option::is_some) {
                Some(Box::new(std::mem::take(entries)))
            } else {
                if entries.0.spilled() {
                    // One message with many handles must not keep its size for as long as the thread lives.
                    *entries = Entries::default();
                }
                entries.0.clear();
                None
            };
            let error = scope.error.take();
            scope.active = false;
            if let Some(outer) = self.outer.take() {
                *scope = *outer;
            }
            (left, error)
        })
    }
}

impl Drop for DecodeGuard {
    #[inline]
    fn drop(&mut self) {
        if !self.over {
            drop(self.end());
        }
    }
}

/// Reads a value of a body and these handles, which are gone afterwards.
#[inline]
pub(super) fn decode_with<T: DeserializeOwned>(entries: &mut Entries, body: &[u8]) -> Result<T> {
    let mut guard = DecodeGuard::enter(entries);
    let outcome = postcard::take_from_bytes::<T>(body);
    let (left, error) = guard.end();
    let left = left.map_or(0, |left| left.0.iter().flatten().count());
    let type_name = std::any::type_name::<T>();
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
