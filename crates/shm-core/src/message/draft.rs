//! The bytes of a message while it is written: straight into the layout of a cell, which most messages fit.

use std::cell::Cell;

use zerocopy::IntoBytes;

use super::parse::{CELL, FORM_INLINE, HEAD};
use crate::cells::PAYLOAD_WORDS;

/// Buffers up to this many bytes are kept.
const KEPT: usize = 1 << 20;

thread_local! {
    /// Buffers for messages that do not fit a cell, kept from message to message.
    static SPARE: Cell<Option<Box<Far>>> = const { Cell::new(None) };
}

/// A message that is too long for a cell.
#[derive(Default)]
struct Far {
    table: Vec<u8>,
    body: Vec<u8>,
}

/// The bytes of a message that is being written: in the layout of a cell as long as they fit it.
///
/// Where it ends is where it is sent from: to load as words what was just stored as bytes takes as long as writing it.
pub(super) struct Draft<'a> {
    near: &'a mut [u64; PAYLOAD_WORDS],
    /// Where the next byte of the body goes; [`CELL`] when it is far.
    at: usize,
    /// All of it, once it is too long for a cell.
    far: Option<Box<Far>>,
}

impl<'a> Draft<'a> {
    /// An empty one, which has no form yet.
    #[inline]
    pub(super) fn new(near: &'a mut [u64; PAYLOAD_WORDS]) -> Self {
        *near = [0; PAYLOAD_WORDS];
        Self {
            near,
            at: HEAD,
            far: None,
        }
    }

    /// What is known already.
    pub(super) fn of(
        near: &'a mut [u64; PAYLOAD_WORDS],
        table: &[u8],
        handles: usize,
        body: &[u8],
    ) -> Self {
        let mut draft = Self::new(near);
        draft.extend(body);
        draft.add_table(table, handles);
        draft
    }

    #[inline]
    fn push(&mut self, byte: u8) {
        // First, since a long message comes here for each of its bytes.
        if let Some(far) = &mut self.far {
            far.body.push(byte);
        } else if self.at < CELL {
            self.near.as_mut_bytes()[self.at] = byte;
            self.at += 1;
        } else {
            self.extend_far(&[byte]);
        }
    }

    #[inline]
    fn extend(&mut self, bytes: &[u8]) {
        let near = self.near.as_mut_bytes();
        match near.get_mut(self.at..self.at + bytes.len()) {
            Some(places) => {
                copy(places, bytes);
                self.at += bytes.len();
            }
            None => self.extend_far(bytes),
        }
    }

    #[cold]
    fn extend_far(&mut self, bytes: &[u8]) {
        self.move_far().body.extend_from_slice(bytes);
    }

    /// Moves what is there out of the cell's layout.
    #[cold]
    fn move_far(&mut self) -> &mut Far {
        self.far.get_or_insert_with(|| {
            // Where the thread's own values are being dropped there is none any more.
            let spare = SPARE.try_with(Cell::take).ok().flatten();
            let mut far = spare.unwrap_or_default();
            far.table.clear();
            far.body.clear();
            far.body
                .extend_from_slice(&self.near.as_bytes()[HEAD..self.at]);
            self.at = CELL;
            far
        })
    }

    /// The table, of so many handles, comes in front of the body.
    pub(super) fn add_table(&mut self, table: &[u8], handles: usize) {
        let fits = self.far.is_none() && table.len() + self.at <= CELL;
        if !fits {
            self.move_far().table.extend_from_slice(table);
            return;
        }
        let near = self.near.as_mut_bytes();
        near.copy_within(HEAD..self.at, HEAD + table.len());
        near[HEAD..HEAD + table.len()].copy_from_slice(table);
        // At most 52, each.
        (near[1], near[2]) = (handles as u8, table.len() as u8);
        self.at += table.len();
    }

    /// Bytes of table and body of a message that does not fit its cell.
    #[inline]
    pub(super) fn far_bytes(&self) -> Option<usize> {
        let far = self.far.as_ref()?;
        Some(far.table.len() + far.body.len())
    }

    /// Makes it the payload of a message, if it fits a cell; else its table and its body.
    #[inline]
    pub(super) fn finish(&mut self) -> Result<(), (&[u8], &[u8])> {
        if let Some(far) = &self.far {
            return Err((&far.table, &far.body));
        }
        let near = self.near.as_mut_bytes();
        near[0] = FORM_INLINE;
        near[3] = (self.at - HEAD) as u8 - near[2];
        for word in &mut *self.near {
            *word = u64::from_le(*word);
        }
        Ok(())
    }

    /// Makes it the payload of a message that lies in a block.
    pub(super) fn finish_as(&mut self, payload: [u64; PAYLOAD_WORDS]) {
        *self.near = payload;
    }
}

impl Drop for Draft<'_> {
    #[inline]
    fn drop(&mut self) {
        if let Some(far) = self.far.take() {
            keep(far);
        }
    }
}

#[cold]
fn keep(far: Box<Far>) {
    // One large message must not keep its size in memory for as long as the thread lives.
    if far.table.capacity().max(far.body.capacity()) <= KEPT {
        let _ = SPARE.try_with(|spare| spare.set(Some(far)));
    }
}

/// A postcard flavor that appends to a draft.
pub(super) struct Append<'a, 'b>(pub(super) &'a mut Draft<'b>);

impl postcard::ser_flavors::Flavor for Append<'_, '_> {
    type Output = ();

    #[inline]
    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    #[inline]
    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend(bytes);
        Ok(())
    }

    #[inline]
    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Copies a slice to one as long. Most are numbers, for which a call would be the larger part.
#[inline]
fn copy(to: &mut [u8], from: &[u8]) {
    if from.len() > 10 {
        to.copy_from_slice(from);
        return;
    }
    if let (Some((to, to_rest)), Some((from, from_rest))) = (
        to.split_first_chunk_mut::<8>(),
        from.split_first_chunk::<8>(),
    ) {
        *to = *from;
        copy_bytes(to_rest, from_rest);
    } else {
        copy_bytes(to, from);
    }
}

/// As [`copy`], for less than eight bytes.
#[inline]
fn copy_bytes(mut to: &mut [u8], mut from: &[u8]) {
    while let ([place, to_rest @ ..], [byte, from_rest @ ..]) = (to, from) {
        *place = *byte;
        (to, from) = (to_rest, from_rest);
        // Or the compiler makes it a call again.
        std::hint::black_box(());
    }
}
