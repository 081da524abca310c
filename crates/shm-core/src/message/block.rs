//! A message that is one whole shared tensor of bytes, and a few words beside it: what hands memory on that both sides know.
//!
//! It is as any other message with one handle, written without serde: its cell names the block, and five words are left.

use super::decode::{Arrived, Incoming};
use super::encode::Outgoing;
use super::parse::{FORM_BLOCK, What};
use super::pins::{Pin, Pins};
use crate::error::Result;
use crate::held::Held;
use crate::slots::META_WORDS;
use crate::storage::Storage;
use crate::tensor::SharedTensor;

/// What such a message says.
pub type Block = (SharedTensor<u8>, [u64; META_WORDS]);

impl Outgoing {
    /// A message of a tensor, with these words beside it.
    ///
    /// # Errors
    /// The tensor, where it is not all of its block in order: the message has no room to say what it is instead.
    #[expect(
        clippy::result_large_err,
        reason = "the tensor itself comes back, which is no error to be passed far"
    )]
    #[inline]
    pub fn of_block(
        tensor: SharedTensor<u8>,
        words: [u64; META_WORDS],
    ) -> Result<Self, SharedTensor<u8>> {
        let held = tensor.into_whole()?.into_held();
        let [a, b, c, d, e] = words;
        let named = u64::from(FORM_BLOCK) | held.line << 8;
        let payload = [named, held.generation, a, b, c, d, e];
        let what = What::Shared;
        let mut pins = Pins::default();
        pins.0.push(Pin { held, what });
        Ok(Self { payload, pins })
    }

    /// What [`of_block`](Self::of_block) made a message of, where it was not sent. `None` for any other message.
    #[must_use]
    pub fn into_block(mut self) -> Option<Block> {
        let [named, _, words @ ..] = self.payload;
        if named as u8 != FORM_BLOCK {
            return None;
        }
        let pin = self.pins.0.pop()?;
        whole(pin.held).ok().map(|tensor| (tensor, words))
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
                .and_then(SharedTensor::whole)
                .map(|tensor| (tensor, words)),
        )
    }
}

fn whole(held: Held) -> Result<SharedTensor<u8>> {
    SharedTensor::whole(Storage::over(held)?)
}
