//! The bytes of a message that was taken out of its cell.

use zerocopy::IntoBytes;

use super::parse::{CELL, FORM_BLOCK, FORM_INLINE, HEAD, INLINE};
use crate::cells::PAYLOAD_WORDS;
use crate::slots::META_WORDS;

/// Where in a cell the words beside a block lie.
pub(super) const BESIDE_BLOCK: (usize, usize) = (16, CELL);

/// Table and body of a message, where they came: in place when that was a cell, else a copy of the block.
pub(crate) struct Bytes {
    /// The payload of the cell. As words, since that is how it is read there: bytes that a wider load than the stores before
    /// it spans are waited for until those have left the processor.
    pub(super) near: [u64; PAYLOAD_WORDS],
    /// Empty unless the message was spilled.
    pub(super) far: Vec<u8>,
    pub(super) table: (usize, usize),
    pub(super) body: (usize, usize),
}

impl Bytes {
    pub(crate) const fn new() -> Self {
        Self {
            near: [0; PAYLOAD_WORDS],
            far: Vec::new(),
            table: (0, 0),
            body: (0, 0),
        }
    }

    #[inline]
    fn all(&self) -> &[u8] {
        if self.far.is_empty() {
            self.near.as_bytes()
        } else {
            &self.far
        }
    }

    /// What the value is read of.
    #[inline]
    pub(crate) fn body(&self) -> &[u8] {
        self.all().get(self.body.0..self.body.1).unwrap_or(&[])
    }

    /// What the handles say.
    #[inline]
    pub(super) fn table(&self) -> &[u8] {
        self.all().get(self.table.0..self.table.1).unwrap_or(&[])
    }

    /// Forgets the first bytes of the body.
    pub(super) fn skip(&mut self, bytes: usize) {
        self.body.0 += bytes;
    }

    /// Forgets everything.
    #[inline]
    pub(crate) fn clear(&mut self) {
        (self.table, self.body) = ((0, 0), (0, 0));
        if !self.far.is_empty() {
            self.far = Vec::new();
        }
    }

    /// The words beside a block, in a message of that form.
    #[inline]
    pub(super) fn beside_block(&self) -> Option<[u64; META_WORDS]> {
        let [named, _, words @ ..] = self.near.map(u64::from_le);
        (named as u8 == FORM_BLOCK && self.body == BESIDE_BLOCK).then_some(words)
    }

    /// Where the payload of a cell is to be read into, each word little endian.
    #[inline(always)]
    pub(crate) fn near(&mut self) -> &mut [u64; PAYLOAD_WORDS] {
        &mut self.near
    }

    /// How long the body is, if the payload that was read is a message in its cell that refers to nothing; which most are.
    #[inline(always)]
    pub(crate) fn bare(&self) -> Option<usize> {
        let [form, handles, table, body, ..] = u64::from_le(self.near[0]).to_le_bytes();
        let body = usize::from(body);
        (form == FORM_INLINE && handles == 0 && table == 0 && body <= INLINE).then_some(body)
    }

    /// Becomes the body, of so many bytes, of that payload.
    #[inline(always)]
    pub(crate) fn set_bare(&mut self, body: usize) {
        self.body = (HEAD, HEAD + body);
    }
}

impl Default for Bytes {
    #[inline]
    fn default() -> Self {
        Self::new()
    }
}

impl core::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Bytes")
            .field("table", &self.table())
            .field("body", &self.body())
            .finish()
    }
}
