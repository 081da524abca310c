//! Pins: pieces of an arena whose pages must stay what they are, since a device reads or writes them by itself.
//!
//! Each chunk has six places for who has it pinned, with row and epoch. A place of a participant that is gone counts for
//! nothing: what it had on a device went with it. Nobody gives the pages of a pinned chunk back, whoever owns it.

use core::sync::atomic::Ordering;
use std::ops::Range;
use std::ptr::NonNull;

use crate::arena::Arena;
use crate::cells::Owner;
use crate::chunk::{Chunks, State, Use};
use crate::heap::locate;
use crate::layout::{CHUNK, descriptor};
use crate::participant::table::Row;
use crate::tensor::{Element, Strided};

const fn place_of(owner: Owner) -> u64 {
    (owner.row as u64 + 1) | (owner.epoch as u64) << 16
}

const fn owner_of(place: u64) -> Option<Owner> {
    match (place as u16).checked_sub(1) {
        Some(row) => Some(Owner {
            row,
            epoch: (place >> 16) as u16,
        }),
        None => None,
    }
}

/// Both places of a word, each with how far it is shifted.
fn places(word: u64) -> [(u32, u64); 2] {
    [0, 32].map(|shift| (shift, (word >> shift) & 0xffff_ffff))
}

impl Chunks<'_> {
    /// Whether a participant that is there has the chunk pinned.
    pub(crate) fn is_pinned(&self, chunk: u64) -> bool {
        descriptor::PINS.into_iter().any(|field| {
            // Acquire: pairs with the exchange in `pin`; whoever pinned held a block of the chunk meanwhile.
            let word = self.word(chunk, field).load(Ordering::Acquire);
            word != 0
                && places(word)
                    .into_iter()
                    .any(|(_, place)| self.counts(place))
        })
    }

    fn counts(&self, place: u64) -> bool {
        owner_of(place).is_some_and(|owner| {
            Row::get(self.segment, owner.row)
                .and_then(|row| row.occupant())
                .is_some_and(|(occupant, _)| occupant == owner)
        })
    }

    /// Takes a place; `false` when all are taken by participants that are there.
    fn pin(&self, chunk: u64, me: Owner) -> bool {
        descriptor::PINS.into_iter().any(|field| {
            let word = self.word(chunk, field);
            let mut seen = word.load(Ordering::Acquire);
            while let Some((shift, place)) = places(seen)
                .into_iter()
                .find(|(_, place)| !self.counts(*place))
            {
                let new = seen & !(place << shift) | place_of(me) << shift;
                // AcqRel: before the block is given back that the caller holds, so whoever finds it free sees the pin.
                match word.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return true,
                    Err(now) => seen = now,
                }
            }
            false
        })
    }

    /// Leaves one place.
    fn unpin(&self, chunk: u64, me: Owner) {
        for field in descriptor::PINS {
            let word = self.word(chunk, field);
            let mut seen = word.load(Ordering::Acquire);
            while let Some((shift, place)) = places(seen)
                .into_iter()
                .find(|(_, place)| *place == place_of(me))
            {
                let new = seen & !(place << shift);
                match word.compare_exchange(seen, new, Ordering::AcqRel, Ordering::Acquire) {
                    Ok(_) => return,
                    Err(now) => seen = now,
                }
            }
        }
    }
}

/// The pages around a tensor that stay what they are for as long as this is held, also when the tensor is gone: the whole
/// of its block, if that is a large one, or of the chunk that it shares with others, as far as there is memory there now.
///
/// ```
/// use shm_core::{Tensor, pin::Pin};
///
/// let tensor = Tensor::<u8>::zeros(100)?;
/// let pin = Pin::around(&tensor).expect("nobody else has it pinned");
/// assert!(pin.bytes() >= 100 && pin.address().unwrap().as_ptr().addr() <= tensor.as_slice().as_ptr().addr());
/// # Ok::<(), shm_core::Error>(())
/// ```
#[derive(Debug)]
pub struct Pin {
    arena: Arena,
    chunks: Range<u64>,
    offset: u64,
    bytes: u64,
}

impl Pin {
    /// Pins what lies around a tensor. `None` when too many participants have pinned it: six of each chunk.
    #[must_use]
    pub fn around<T: Element>(tensor: &Strided<T>) -> Option<Self> {
        let storage = tensor.placed().storage();
        let arena = storage.arena();
        let segment = arena.segment();
        let span = locate(segment, storage.id().0)?;
        let chunks = Chunks::new(segment);
        let count = match chunks.state(span.chunk) {
            State::Owned(_, Use::Run(count)) | State::Orphan(Use::Run(count)) => u64::from(count),
            _ => 1,
        };
        let committed = chunks
            .word(span.chunk, descriptor::COMMITTED)
            .load(Ordering::Acquire);
        let bytes = committed.min(count * CHUNK);
        let offset = chunks.offset(span.chunk);
        segment.bytes_at(offset, bytes)?;
        let all = span.chunk..span.chunk + count;
        for chunk in all.clone() {
            if !chunks.pin(chunk, arena.me()) {
                for pinned in span.chunk..chunk {
                    chunks.unpin(pinned, arena.me());
                }
                return None;
            }
        }
        Some(Self {
            arena: arena.clone(),
            chunks: all,
            offset,
            bytes,
        })
    }

    /// Where the pages begin in this process.
    #[must_use]
    pub fn address(&self) -> Option<NonNull<u8>> {
        self.arena.segment().bytes_at(self.offset, self.bytes)
    }

    /// How many bytes they are.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        if self.arena.is_forked() {
            return;
        }
        let chunks = Chunks::new(self.arena.segment());
        for chunk in self.chunks.clone() {
            chunks.unpin(chunk, self.arena.me());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Tensor;

    #[test]
    fn a_chunk_has_six_pins_and_those_of_the_dead_do_not_count() {
        let tensor = Tensor::<u8>::zeros(5 << 20).unwrap();
        let pins: Vec<_> = (0..6).map(|_| Pin::around(&tensor).unwrap()).collect();
        assert!(pins[0].bytes() >= 5 << 20);
        assert!(Pin::around(&tensor).is_none());
        let arena = pins[0].arena.clone();
        let all = pins[0].chunks.clone();
        assert_eq!(all.end - all.start, 3);
        let chunks = Chunks::new(arena.segment());
        assert!(all.clone().all(|chunk| chunks.is_pinned(chunk)));
        drop(pins);
        assert!(!all.clone().any(|chunk| chunks.is_pinned(chunk)));
        // Somebody who was there before.
        let gone = Owner {
            row: arena.me().row,
            epoch: arena.me().epoch.wrapping_add(1),
        };
        for _ in 0..6 {
            assert!(chunks.pin(all.start, gone));
        }
        assert!(!chunks.is_pinned(all.start));
        assert!(Pin::around(&tensor).is_some(), "their places are free");
    }
}
