//! Messages: postcard bytes plus a table of handles.
//!
//! The bytes carry indices into the table; each entry can be taken out at most once. So a message can be
//! released without knowing its type, and serde's `&self` cannot duplicate an exclusive tensor: [`encode`]
//! serializes the value, drops it, and gives a message only if each exclusive entry occurs once and the
//! sender's own handle is really gone. Small messages lie in the 56 bytes of a cell, larger ones in a block.
//! What arrives is checked before it is used; `docs/src/wire.md` has the format.

mod aside;
mod block;
mod bytes;
mod decode;
mod draft;
mod encode;
mod outlive;
mod parse;
mod pins;
mod reach;
mod scope;
mod serde;
mod strict;

pub use aside::{Companion, is_for_another, while_reading, while_writing};
pub use block::Block;
pub use decode::Incoming;
pub(crate) use decode::{Arrived, Entries};
pub use encode::{EncodeError, Outgoing, encode, plain, read_plain};
pub use outlive::{is_outliving, outliving};
pub(crate) use parse::What;
pub(crate) use parse::names;
pub(crate) use parse::{
    Entry, FEW, FORM_BLOCK, FORM_INLINE, FORM_SLOT, FORM_SPILLED, Parsed, parse, parse_into,
};
pub(crate) use pins::Pin;
#[cfg(test)]
pub(crate) use pins::Pins;
pub(crate) use serde::{deserialize_slots, deserialize_tensor, serialize_slots, serialize_tensor};
pub use serde::{refuse, refuse_because, refuse_to_write};

/// A value sent to oneself, for tests of what is in messages.
#[cfg(test)]
pub(crate) fn send<T: ::serde::Serialize, R: ::serde::de::DeserializeOwned>(
    value: T,
) -> crate::error::Result<R> {
    let arena = crate::arena::Arena::current()?;
    encode(&arena, value)
        .map_err(|failed| failed.error)?
        .decode()
}
