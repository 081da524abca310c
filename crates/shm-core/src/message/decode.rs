//! Making a value of a message that was taken out of its cell.

use std::any::Any;

use serde::de::DeserializeOwned;
use smallvec::SmallVec;

use super::aside::Aside;
use super::bytes::Bytes;
use super::parse::{Extra, FEW, What};
use super::reach::{self, Guard, Reach, Scope};
use crate::error::{Error, ErrorKind, Result};
use crate::held::Held;
use crate::storage::Place;

thread_local! {
    /// What the message that this thread reads has.
    static READING: Reach<Reading> = const { Reach::nowhere() };
}

/// A message is being read.
struct Reading;

impl Scope for Reading {
    type For<'a> = DecodeScope<'a>;
}

/// A handle of a message that is now held by this process.
#[derive(Debug)]
pub(crate) struct Arrived {
    pub(crate) held: Held,
    pub(crate) what: What,
    pub(crate) extra: Extra,
    pub(crate) place: Place,
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

/// What the `Deserialize` of handles takes from.
#[derive(Default)]
pub(super) struct DecodeScope<'a> {
    pub(super) entries: &'a mut [Option<Arrived>],
    /// What the handles say.
    pub(super) table: &'a [u8],
    /// Boxed: there is hardly ever anything.
    pub(super) aside: Option<Box<Aside<dyn Any>>>,
}

/// Whether this thread reads a message.
#[inline]
pub(super) fn is_reading() -> bool {
    reach::is_open(&READING)
}

/// The handles of the message that this thread reads, if it reads one.
#[inline]
pub(super) fn with_scope<R>(act: impl FnOnce(&mut DecodeScope<'_>) -> R) -> Option<R> {
    reach::with_scope(&READING, act)
}

/// Tells whoever reads the message why it cannot: serde's errors keep no text.
#[cold]
pub(super) fn fail(error: Error) {
    with_scope(|scope| scope.aside.get_or_insert_default().error = Some(error));
}

/// A message that was taken out of its cell; this process holds what it refers to. Dropping it releases that. The default
/// is an empty one, into which a message can be taken.
#[derive(Debug, Default)]
pub struct Incoming {
    /// `None` rather than an empty one where there are no handles, as in most: there is less to drop then.
    pub(crate) entries: Option<Entries>,
    pub(crate) bytes: Bytes,
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
        self.take_or()
    }

    /// As [`take`](Self::take), with the caller's kind of error: to change that afterwards moves the value once more.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn take_or<T: DeserializeOwned, E: From<Error>>(&mut self) -> Result<T, E> {
        self.take_as(std::any::type_name::<T>)
    }

    /// As [`take_or`](Self::take_or), for a value with something around it that is nobody's business: `name` is what errors
    /// call it.
    ///
    /// # Errors
    /// As there.
    #[inline(always)]
    pub fn take_as<T: DeserializeOwned, E: From<Error>>(
        &mut self,
        name: fn() -> &'static str,
    ) -> Result<T, E> {
        // Emptied by a guard, so that the value is made where the caller gets it.
        let message = Emptied(self);
        let entries = match &mut message.0.entries {
            Some(Entries(entries)) => {
                let first = entries.first().and_then(Option::as_ref);
                if first.is_some_and(|entry| entry.what == What::Spill) {
                    entries.remove(0);
                }
                entries.as_mut_slice()
            }
            None => &mut [],
        };
        let bytes = &message.0.bytes;
        decode_with(entries, bytes.table(), bytes.body(), name)
    }

    /// Releases what is left of it.
    #[inline]
    pub(crate) fn clear(&mut self) {
        if self.entries.is_some() {
            self.entries = None;
        }
        self.bytes.clear();
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
        match postcard::take_from_bytes::<H>(self.bytes.body()) {
            Ok((head, rest)) => {
                let read = self.bytes.body().len() - rest.len();
                self.bytes.skip(read);
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

/// A message of which nothing is left when this is dropped.
struct Emptied<'a>(&'a mut Incoming);

impl Drop for Emptied<'_> {
    #[inline(always)]
    fn drop(&mut self) {
        self.0.clear();
    }
}

/// Reads a value of a body and these handles, of which those that were not taken are left.
#[inline(always)]
pub(super) fn decode_with<T: DeserializeOwned, E: From<Error>>(
    entries: &mut [Option<Arrived>],
    table: &[u8],
    body: &[u8],
    name: fn() -> &'static str,
) -> Result<T, E> {
    let aside = None;
    let mut scope = DecodeScope {
        entries,
        table,
        aside,
    };
    let guard = Guard::enter(&READING, &mut scope);
    let mut deserializer = postcard::Deserializer::from_bytes(body);
    let outcome = T::deserialize(&mut deserializer);
    drop(guard);
    if outcome.is_ok() {
        let rest = deserializer.finalize().unwrap_or(&[]);
        if !rest.is_empty() || scope.entries.iter().any(Option::is_some) {
            let left = scope.entries.iter().flatten().count();
            return Err(left_over(name(), left, rest).into());
        }
    }
    // The value is moved once, and not in and out of the look above.
    outcome.map_err(|cause| unreadable(name(), scope.aside, cause).into())
}

#[cold]
fn left_over(type_name: &str, left: usize, rest: &[u8]) -> Error {
    Error::new(
        ErrorKind::Decode,
        format!(
            "{type_name} read its message, but {} bytes and {left} tensors of it are left over; sender and receiver must use the same type, and postcard has no `skip_serializing_if`, `flatten` or untagged enums",
            rest.len()
        ),
    )
}

#[cold]
fn unreadable(
    type_name: &str,
    aside: Option<Box<Aside<dyn Any>>>,
    cause: postcard::Error,
) -> Error {
    aside.and_then(|aside| aside.into_error()).unwrap_or_else(|| {
        // Postcard keeps nothing of what a `Deserialize` says when it refuses.
        let said = match &cause {
            postcard::Error::SerdeDeCustom => "its `Deserialize` refuses what it says".to_owned(),
            cause => cause.to_string(),
        };
        Error::new(
            ErrorKind::Decode,
            format!(
                "a message could not be read as {type_name}: {said}; sender and receiver must use the same type, and postcard has no `skip_serializing_if`, `flatten` or untagged enums"
            ),
        )
        .because(cause)
    })
}
