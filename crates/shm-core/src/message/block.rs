//! A message that is all bytes of one shared block, and a few words beside it: what hands memory on that both sides know.
//!
//! It is as any other message with one handle, written without serde: its cell names the block, and five words are left.

use super::decode::{Arrived, Incoming};
use super::encode::Outgoing;
use super::parse::{FORM_BLOCK, What};
use super::pins::{Pin, Pins};
use crate::error::Result;
use crate::slots::META_WORDS;
use crate::storage::Storage;
use crate::tensor::SharedBytes;

/// What such a message says.
pub type Block = (SharedBytes, [u64; META_WORDS]);

impl Outgoing {
    /// A message of all bytes of a block, with these words beside it.
    #[inline]
    #[must_use]
    pub fn of_block(bytes: SharedBytes, words: [u64; META_WORDS]) -> Self {
        let held = bytes.into_held();
        let [a, b, c, d, e] = words;
        let named = u64::from(FORM_BLOCK) | held.line << 8;
        let payload = [named, held.generation, a, b, c, d, e];
        let what = What::Shared;
        let mut pins = Pins::default();
        pins.0.push(Pin { held, what });
        Self { payload, pins }
    }

    /// What [`of_block`](Self::of_block) made a message of, where it was not sent. `None` for any other message.
    #[must_use]
    pub fn into_block(mut self) -> Option<Block> {
        let [named, _, words @ ..] = self.payload;
        if named as u8 != FORM_BLOCK {
            return None;
        }
        let pin = self.pins.0.pop()?;
        let storage = Storage::over(pin.held).ok()?;
        SharedBytes::over(storage).ok().map(|bytes| (bytes, words))
    }
}

impl Incoming {
    /// What [`Outgoing::of_block`] made a message of: `None` for any other message, which stays as it is.
    ///
    /// # Errors
    /// `Stale` when the block is not what it was when the message was taken; the message is gone then.
    #[inline]
    pub fn take_block(&mut self) -> Option<Result<Block>> {
        let words = self.bytes.beside_block()?;
        let entry = self.entries.as_mut()?.0.pop()??;
        self.clear();
        let Arrived { held, place, .. } = entry;
        let storage = Storage::placed(held, place);
        Some(
            storage
                .and_then(SharedBytes::over)
                .map(|bytes| (bytes, words)),
        )
    }
}
