//! The bytes behind tensors: this process's share in one counted block.

use core::ptr::NonNull;
use core::sync::atomic::Ordering;

use crate::arena::Arena;
use crate::error::Result;
use crate::heap;
use crate::held::{self, Held};
use crate::layout::{LINE, counted};
use crate::line::{Mode, Tag};
use crate::segment::Segment;

/// A block of bytes. Clones are local; the last one gives this process's reference back.
#[derive(Clone, Debug)]
pub(crate) struct Storage {
    held: Held,
    data: NonNull<u8>,
    len: usize,
}

// SAFETY: the pointer is into the arena's mapping, which `held` keeps alive and which any thread may reach; who may
// read or write there is decided by the tensor types above, not by this handle.
unsafe impl Send for Storage {}
// SAFETY: as for `Send`; nothing here reads or writes the bytes except the methods of message blocks, whose block no
// one else writes.
unsafe impl Sync for Storage {}

impl Storage {
    /// A new block of `bytes` bytes, at least 64-byte aligned. Recycled memory keeps its old content.
    #[inline]
    pub(crate) fn allocate(arena: &Arena, bytes: usize, mode: Mode) -> Result<Self> {
        let (held, data) = Held::allocate_at(arena, bytes as u64, mode)?;
        match arena.segment().bytes_at(data, bytes as u64) {
            Some(data) => Ok(Self {
                held,
                data,
                len: bytes,
            }),
            None => Err(held::stale(held.line, held.generation)),
        }
    }

    /// The block behind a held reference. Where it lies follows from its chunk; its length is checked against it.
    #[inline]
    pub(crate) fn over(held: Held) -> Result<Self> {
        let segment = held.arena().segment();
        let (data, len) =
            range(segment, held.line).ok_or_else(|| held::stale(held.line, held.generation))?;
        Ok(Self { data, len, held })
    }

    /// As [`over`](Self::over), for a block that [`place`] has found, while its reference was held.
    #[inline]
    pub(crate) fn placed(held: Held, place: Place) -> Result<Self> {
        let data = held.arena().segment().bytes_at(place.data, place.len);
        match data {
            Some(data) => Ok(Self {
                data,
                len: place.len as usize,
                held,
            }),
            None => Err(held::stale(held.line, held.generation)),
        }
    }

    /// The same block by a reference of its own.
    ///
    /// # Errors
    /// As [`Held::another`].
    #[inline]
    pub(crate) fn another(&self) -> Result<Self> {
        Ok(Self {
            held: self.held.another()?,
            ..*self
        })
    }

    pub(crate) fn as_ptr(&self) -> *mut u8 {
        self.data.as_ptr()
    }

    /// Bytes that were asked for.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn arena(&self) -> &Arena {
        self.held.arena()
    }

    pub(crate) fn held(&self) -> &Held {
        &self.held
    }

    pub(crate) fn into_held(self) -> Held {
        self.held
    }

    fn meta(&self) -> &core::sync::atomic::AtomicU64 {
        self.arena()
            .segment()
            .word(self.held.line * LINE + counted::META)
    }

    /// Who may touch the block.
    pub(crate) fn mode(&self) -> Mode {
        Mode::from_meta(self.meta().load(Ordering::Acquire)).unwrap_or(Mode::Message)
    }

    /// The sole holder changes who may touch the block.
    pub(crate) fn set_mode(&self, mode: Mode) {
        if self.arena().is_forked() {
            // A fork holds nothing; its parent's tensor stays what it is.
            return;
        }
        self.meta()
            .store(Tag::meta_of_block(mode), Ordering::Release);
    }

    /// Makes the block read-only for good. Called by its one holder.
    pub(crate) fn freeze(&self) {
        self.set_mode(Mode::Shared);
    }

    /// Makes the block exclusive again if nobody else holds it, here or elsewhere.
    pub(crate) fn try_thaw(&self) -> bool {
        let sole = !self.arena().is_forked() && self.held.is_sole();
        if sole {
            self.set_mode(Mode::Exclusive);
        }
        sole
    }

    /// Which block this is: line and generation.
    pub(crate) fn id(&self) -> (u64, u64) {
        (self.held.line, self.held.generation)
    }

    /// Writes into a block that is not shared yet.
    pub(crate) fn write_bytes(&self, at: usize, bytes: &[u8]) {
        assert!(
            at + bytes.len() <= self.len,
            "{} bytes at {at} of a block of {}",
            bytes.len(),
            self.len
        );
        // SAFETY: the range lies in the block, as just checked, and in bounds of the mapping.
        let target = unsafe { self.data.as_ptr().add(at) };
        // SAFETY: the block is a message block that only its maker knows until it is sent, so nobody reads or writes
        // it meanwhile; `bytes` is an ordinary slice outside of it.
        unsafe { core::ptr::copy_nonoverlapping(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Copies bytes out of a message block.
    pub(crate) fn read_bytes(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(
            at + len <= self.len,
            "{len} bytes at {at} of a block of {}",
            self.len
        );
        // SAFETY: the range lies in the block, as just checked.
        let start = unsafe { self.data.add(at) };
        copy_out(start, len)
    }

    /// Copies `len` bytes out of a message block that a cell holds, if it has as many.
    pub(crate) fn read_foreign(arena: &Arena, line: u64, len: usize) -> Option<Vec<u8>> {
        let (data, size) = range(arena.segment(), line)?;
        (len <= size).then(|| copy_out(data, len))
    }
}

/// Where the bytes of a block lie in the arena, and how many they are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Place {
    data: u64,
    len: u64,
}

/// Where the block of a line lies; `None` unless that adds up.
#[inline]
pub(crate) fn place(segment: &Segment, line: u64) -> Option<Place> {
    let span = heap::locate(segment, line)?;
    let len = segment
        .word(line * LINE + counted::LENGTH)
        .load(Ordering::Acquire);
    let data = span.data;
    (len <= span.capacity).then_some(Place { data, len })
}

/// Where the block of a line lies, and how many bytes it has; `None` unless that adds up.
fn range(segment: &Segment, line: u64) -> Option<(NonNull<u8>, usize)> {
    let Place { data, len } = place(segment, line)?;
    Some((segment.bytes_at(data, len)?, usize::try_from(len).ok()?))
}

fn copy_out(start: NonNull<u8>, len: usize) -> Vec<u8> {
    let mut bytes = Vec::<u8>::with_capacity(len);
    // SAFETY: `len` bytes from `start` lie in a block of the mapping, and the vector has room for as many. The block
    // is a sent message, which no participant writes; a broken one that does makes the copy arbitrary bytes, which
    // the parser checks.
    unsafe { core::ptr::copy_nonoverlapping(start.as_ptr(), bytes.as_mut_ptr(), len) };
    // SAFETY: the copy initialised them.
    unsafe { bytes.set_len(len) };
    bytes
}
