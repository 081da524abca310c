//! From the number of a line to the block it heads, or lies in: the check of every handle that comes from outside.

use core::sync::atomic::Ordering;

use crate::cells::Owner;
use crate::chunk::{Chunks, State, Use};
use crate::class::SLABS;
use crate::layout::{CHUNK, LINE, counted, descriptor};
use crate::line::{Mode, Tag};
use crate::prefetch::prefetch;
use crate::segment::Segment;

/// Where a block's bytes are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    /// Offset of the first byte.
    pub(crate) data: u64,
    /// Bytes the block can hold without committing more.
    pub(crate) capacity: u64,
    /// The chunk the block lies (or begins) in.
    pub(crate) chunk: u64,
    /// Number of the block's counted line.
    pub(crate) line: u64,
    /// Which block of its slab it is; `None` for a run.
    pub(crate) index: Option<u64>,
}

/// Finds the block whose counted line has number `line`; `None` for anything that is no block now.
pub(crate) fn locate(segment: &Segment, line: u64) -> Option<Span> {
    let chunks = Chunks::new(segment);
    let offset = line.checked_mul(LINE)?;
    if let Some(chunk) = chunks.run_of_line(offset) {
        let (State::Owned(_, Use::Run(count)) | State::Orphan(Use::Run(count))) =
            chunks.state(chunk)
        else {
            return None;
        };
        let end = chunk.checked_add(u64::from(count))?;
        if count == 0 || end > chunks.high() {
            return None;
        }
        let committed = chunks
            .word(chunk, descriptor::COMMITTED)
            .load(Ordering::Acquire);
        let capacity = committed.min(u64::from(count) * CHUNK);
        return Some(Span {
            data: chunks.offset(chunk),
            capacity,
            chunk,
            line,
            index: None,
        });
    }
    let chunk = chunks.of_offset(offset)?;
    let (State::Owned(_, Use::Slab(class)) | State::Orphan(Use::Slab(class))) = chunks.state(chunk)
    else {
        return None;
    };
    let slab = SLABS.get(class as usize)?;
    let index = (offset - chunks.offset(chunk)).checked_sub(slab.lines)? / LINE;
    let bump = chunks
        .word(chunk, descriptor::BUMP)
        .load(Ordering::Acquire)
        .min(slab.blocks);
    let committed = chunks
        .word(chunk, descriptor::COMMITTED)
        .load(Ordering::Acquire);
    let within = slab.data + index * slab.size;
    // The owner commits a block before it raises the mark; a mark that was not raised by the owner proves nothing.
    (index < bump && within + slab.size <= committed).then(|| Span {
        data: chunks.offset(chunk) + within,
        capacity: slab.size,
        chunk,
        line,
        index: Some(index),
    })
}

/// Where the bytes of an own block begin that was on the list of this class, or of a run: what [`locate`] finds, of which
/// all but the committed bytes is known already.
#[inline]
pub(super) fn data_of(segment: &Segment, class: Option<u32>, line: u64) -> Option<u64> {
    let chunks = Chunks::new(segment);
    let offset = line * LINE;
    let Some(slab) = class.and_then(|class| SLABS.get(class as usize)) else {
        return Some(chunks.offset(Chunks::chunk_of_run_line(offset)));
    };
    let chunk = offset.checked_sub(chunks.offset(0))? / CHUNK;
    let start = chunks.offset(chunk);
    let within = slab.data + (offset - start).checked_sub(slab.lines)? / LINE * slab.size;
    let committed = chunks
        .word(chunk, descriptor::COMMITTED)
        .load(Ordering::Relaxed);
    (within + slab.size <= committed).then_some(start + within)
}

/// Brings nearer what tells about the block of a line.
pub(crate) fn prefetch_block(segment: &Segment, line: u64) {
    let offset = line * LINE;
    prefetch(segment.word(offset));
    let start = crate::layout::chunks_start(segment.capacity());
    if let Some(within) = offset.checked_sub(start) {
        prefetch(segment.word(Chunks::descriptor(within / CHUNK)));
    }
}

/// The block whose bytes hold the line with number `line`.
pub(crate) fn block_around(segment: &Segment, line: u64) -> Option<Span> {
    let chunks = Chunks::new(segment);
    let offset = line.checked_mul(LINE)?;
    let chunk = chunks.of_offset(offset)?;
    match chunks.state(chunk) {
        State::Owned(_, Use::Slab(class)) | State::Orphan(Use::Slab(class)) => {
            let slab = SLABS.get(class as usize)?;
            let index = (offset - chunks.offset(chunk)).checked_sub(slab.data)? / slab.size;
            locate(segment, (chunks.offset(chunk) + slab.lines) / LINE + index)
        }
        State::Owned(_, Use::Run(_)) | State::Orphan(Use::Run(_)) => {
            locate(segment, Chunks::run_line(chunk))
        }
        State::Owned(_, Use::Tail(distance)) | State::Orphan(Use::Tail(distance)) => {
            let head = chunk.checked_sub(u64::from(distance))?;
            locate(segment, Chunks::run_line(head))
        }
        _ => None,
    }
    .filter(|span| offset >= span.data && offset + LINE <= span.data + span.capacity)
}

/// Whether a line lies in the bytes of an object and says that it belongs to that object: an end or a slot.
pub(crate) fn in_object(segment: &Segment, line: u64) -> bool {
    let Some(around) = block_around(segment, line) else {
        return false;
    };
    let meta = segment
        .word(line * LINE + counted::META)
        .load(Ordering::Acquire);
    if !matches!(Tag::from_meta(meta), Some(Tag::End | Tag::Slot)) {
        return false;
    }
    let object = Tag::object_of(meta);
    locate(segment, object) == Some(around)
        && Mode::from_meta(
            segment
                .word(object * LINE + counted::META)
                .load(Ordering::Acquire),
        ) == Some(Mode::Object)
}
/// Who owns the chunk a block lies in, if it is owned.
pub(crate) fn owner_of_line(segment: &Segment, line: u64) -> Option<Owner> {
    match Chunks::new(segment).state(chunk_of_line(segment, line)?) {
        State::Owned(owner, _) => Some(owner),
        _ => None,
    }
}

pub(super) fn chunk_of_line(segment: &Segment, line: u64) -> Option<u64> {
    let chunks = Chunks::new(segment);
    let offset = line.checked_mul(LINE)?;
    chunks
        .run_of_line(offset)
        .or_else(|| chunks.of_offset(offset))
}
