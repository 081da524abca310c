//! A message that is all bytes of one shared block, and a few words beside it: what hands memory on that both sides know.
//!
//! It is as any other message with one handle, written without serde: its cell names the block, and five words are left.

use super::decode::{Arrived, Incoming};
use super::encode::Outgoing;
use super::parse::{FORM_BLOCK, What};
use super::pins::Pin;
use crate::error::Result;
use crate::held::Held;
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
        let mut message = Self::default();
        message.name(bytes.into_held(), words);
        message
    }

    /// Makes an empty message one of all bytes of a block, with one more reference to it, and these words beside it.
    ///
    /// # Errors
    /// As [`SharedBytes::to_send`]; the message is empty then.
    #[inline]
    pub fn refer_to(&mut self, bytes: &SharedBytes, words: [u64; META_WORDS]) -> Result<()> {
        self.name(bytes.held().another()?, words);
        Ok(())
    }

    #[inline(always)]
    fn name(&mut self, held: Held, [a, b, c, d, e]: [u64; META_WORDS]) {
        let named = u64::from(FORM_BLOCK) | held.line << 8;
        self.payload = [named, held.generation, a, b, c, d, e];
        let what = What::Shared;
        self.pins.0.clear();
        self.pins.0.push(Pin { held, what });
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
    /// The words beside a block, which stays in the message: `None` for any other message, and once the block was taken.
    #[inline]
    #[must_use]
    pub fn beside_block(&self) -> Option<[u64; META_WORDS]> {
        self.bytes.beside_block()
    }

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
