//! The format of messages, and taking one apart. What is read here was written by others and is checked.

use smallvec::SmallVec;

use crate::arena::Arena;
use crate::cells::PAYLOAD_WORDS;
use crate::error::{Error, ErrorKind, Result};
use crate::heap;
use crate::held;
use crate::layout::{LINE, counted};
use crate::line::{Counted, Mode, Tag};
use crate::storage::Storage;

/// Handles of a message that need no allocation of this process. More than that hardly fit a cell; and each place moves
/// with the message through every step, which costs more than all its other work.
pub(crate) const FEW: usize = 2;

/// What else a handle says; the geometry of three dimensions or so needs no allocation.
pub(crate) type Extra = SmallVec<[u8; 24]>;

/// The body of a message: on the stack when it came in a cell.
pub(crate) type Body = SmallVec<[u8; INLINE]>;

/// Bytes of a cell that table and body of an inline message may take.
pub(super) const INLINE: usize = PAYLOAD_WORDS * 8 - 4;
pub(crate) const FORM_INLINE: u8 = 1;
pub(crate) const FORM_SPILLED: u8 = 2;
/// A ring's message: one slot, and words of the ring's own.
pub(crate) const FORM_SLOT: u8 = 3;
/// Handles that one message may carry.
pub(super) const HANDLES_MAX: usize = 1 << 20;

/// What an entry of the table names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum What {
    Exclusive,
    Shared,
    Aliased,
    Object,
    End,
    ExclusiveEnd,
    Slots,
    /// A slot of a ring; only in messages of form slot.
    Slot,
    /// The block a message was spilled into.
    Spill,
}

impl What {
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Exclusive => 1,
            Self::Shared => 2,
            Self::Aliased => 3,
            Self::Object => 4,
            Self::End => 5,
            Self::ExclusiveEnd => 6,
            Self::Slots => 7,
            Self::Slot => 8,
            Self::Spill => 9,
        }
    }

    const fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::Exclusive,
            2 => Self::Shared,
            3 => Self::Aliased,
            4 => Self::Object,
            5 => Self::End,
            6 => Self::ExclusiveEnd,
            7 => Self::Slots,
            _ => return None,
        })
    }

    /// Whether its line lies in an object's block, and so is gone with the object.
    pub(crate) const fn is_in_object(self) -> bool {
        matches!(self, Self::End | Self::ExclusiveEnd | Self::Slot)
    }

    pub(super) const fn is_exclusive(self) -> bool {
        matches!(self, Self::Exclusive | Self::ExclusiveEnd)
    }

    /// Whether a line with this second word is what the entry says.
    fn matches(self, meta: u64) -> bool {
        let mode = Mode::from_meta(meta);
        match Tag::from_meta(meta) {
            Some(Tag::Block) => match self {
                Self::Exclusive => mode == Some(Mode::Exclusive),
                Self::Shared => mode == Some(Mode::Shared),
                Self::Aliased => mode == Some(Mode::Aliased),
                Self::Object => mode == Some(Mode::Object),
                Self::Slots => mode == Some(Mode::Slots),
                Self::Spill => mode == Some(Mode::Message),
                Self::End | Self::ExclusiveEnd | Self::Slot => false,
            },
            Some(Tag::End) => matches!(self, Self::End | Self::ExclusiveEnd),
            Some(Tag::Slot) => self == Self::Slot,
            None => false,
        }
    }

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Exclusive => "an exclusive tensor",
            Self::Shared => "a shared tensor",
            Self::Aliased => "an aliased tensor",
            Self::Object => "an object (queue, event, ring)",
            Self::End => "one side of a queue",
            Self::ExclusiveEnd => "one side of a lane",
            Self::Slots => "a ring's memory",
            Self::Slot => "a ring's slot",
            Self::Spill => "a message block",
        }
    }
}
/// An entry of the table: what it names, where, and what else it says (a tensor's geometry).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) what: What,
    pub(crate) line: u64,
    pub(crate) generation: u64,
    pub(crate) extra: Extra,
}

#[cold]
pub(super) fn malformed(why: &str) -> Error {
    Error::new(
        ErrorKind::Decode,
        format!(
            "a message is malformed ({why}); a participant wrote where it must not, or its version differs"
        ),
    )
}

#[inline]
fn parse_table(mut bytes: &[u8], count: usize, entries: &mut SmallVec<[Entry; FEW]>) -> Result<()> {
    // Each entry has at least 12 bytes: the count cannot make us reserve more than the table justifies.
    if count > bytes.len() / 12 {
        return Err(malformed("more handles than its table has room for"));
    }
    entries.reserve(count);
    for _ in 0..count {
        let (fixed, rest) = bytes
            .split_first_chunk::<12>()
            .ok_or_else(|| malformed("a handle is cut short"))?;
        let what =
            What::from_code(fixed[0]).ok_or_else(|| malformed("a handle of unknown kind"))?;
        let wide = |five: &[u8]| {
            five.iter()
                .rev()
                .fold(0, |sum, &byte| (sum << 8) | u64::from(byte))
        };
        let extra = usize::from(fixed[11]);
        if extra > rest.len() {
            return Err(malformed("a handle is cut short"));
        }
        let (extra, rest) = rest.split_at(extra);
        entries.push(Entry {
            what,
            line: wide(&fixed[1..6]),
            generation: wide(&fixed[6..11]),
            extra: extra.into(),
        });
        bytes = rest;
    }
    if bytes.is_empty() {
        Ok(())
    } else {
        Err(malformed("its table is longer than its handles"))
    }
}

#[inline]
pub(super) fn parse_inline(
    bytes: &[u8; PAYLOAD_WORDS * 8],
    entries: &mut SmallVec<[Entry; FEW]>,
    out: &mut Body,
) -> Result<()> {
    let (table, body) = (usize::from(bytes[2]), usize::from(bytes[3]));
    if bytes[0] != FORM_INLINE || table + body > INLINE {
        return Err(malformed("its lengths do not fit its cell"));
    }
    parse_table(&bytes[4..4 + table], usize::from(bytes[1]), entries)?;
    out.extend_from_slice(&bytes[4 + table..4 + table + body]);
    Ok(())
}

pub(super) fn parse_spilled(
    bytes: &[u8],
    entries: &mut SmallVec<[Entry; FEW]>,
    out: &mut Body,
) -> Result<()> {
    let (header, rest) = bytes
        .split_first_chunk::<24>()
        .ok_or_else(|| malformed("its header is cut short"))?;
    let field = |at: usize| {
        let mut word = [0; 8];
        word.copy_from_slice(&header[at..at + 8]);
        usize::try_from(u64::from_le_bytes(word)).map_err(|_| malformed("a length is too large"))
    };
    let (count, table, body) = (field(0)?, field(8)?, field(16)?);
    if table.checked_add(body) != Some(rest.len()) || count > HANDLES_MAX {
        return Err(malformed("its lengths do not add up"));
    }
    parse_table(&rest[..table], count, entries)?;
    out.extend_from_slice(&rest[table..]);
    Ok(())
}

/// Everything a payload refers to, and its body; used by takers, reapers and the audit alike.
#[derive(Default)]
pub(crate) struct Parsed {
    pub(crate) entries: SmallVec<[Entry; FEW]>,
    pub(crate) body: Body,
}

/// Takes a payload apart. The references it names are the message's own while its cell holds it.
pub(crate) fn parse(arena: &Arena, payload: &[u64; PAYLOAD_WORDS]) -> Result<Parsed> {
    let mut parsed = Parsed::default();
    parse_into(arena, payload, &mut parsed.entries, &mut parsed.body)?;
    Ok(parsed)
}

/// As [`parse`], into what is empty: a message is larger than what most have to say, and moving it costs more than reading
/// it. After an error there may be something in them.
#[inline]
pub(crate) fn parse_into(
    arena: &Arena,
    payload: &[u64; PAYLOAD_WORDS],
    entries: &mut SmallVec<[Entry; FEW]>,
    body: &mut Body,
) -> Result<()> {
    let bytes = bytes_of(payload);
    match bytes[0] {
        FORM_INLINE => parse_inline(&bytes, entries, body)?,
        FORM_SPILLED => {
            let spill = Entry {
                what: What::Spill,
                line: payload[1],
                generation: payload[2],
                extra: SmallVec::new(),
            };
            check(arena, &spill)?;
            let length =
                usize::try_from(payload[3]).map_err(|_| malformed("a length is too large"))?;
            let bytes = Storage::read_foreign(arena, spill.line, length)
                .ok_or_else(|| malformed("it is longer than its block"))?;
            entries.push(spill);
            parse_spilled(&bytes, entries, body)?;
        }
        FORM_SLOT => entries.push(Entry {
            what: What::Slot,
            line: payload[0] >> 8,
            generation: payload[1],
            extra: SmallVec::new(),
        }),
        _ => return Err(malformed("it has an unknown form")),
    }
    for entry in entries.iter() {
        check(arena, entry)?;
    }
    check_counts(arena, entries)
}

/// Checks that no line is named more often than it is counted: each name becomes a reference, and one too many would
/// free the block while others use it. What is exclusive is counted once.
#[inline]
fn check_counts(arena: &Arena, entries: &[Entry]) -> Result<()> {
    let count = |entry: &Entry| {
        let word = arena
            .segment()
            .word(entry.line * LINE + counted::WORD)
            .load(core::sync::atomic::Ordering::Acquire);
        Counted::from_word(word).count
    };
    let once = |entry: &Entry| entry.what == What::Exclusive && count(entry) != 1;
    if entries.iter().any(once) {
        return Err(malformed("an exclusive tensor has another holder"));
    }
    if entries.len() < 2 {
        return Ok(());
    }
    let mut lines: SmallVec<[(u64, usize); 4]> = entries
        .iter()
        .enumerate()
        .map(|(index, entry)| (entry.line, index))
        .collect();
    lines.sort_unstable();
    let too_often = lines
        .chunk_by(|one, other| one.0 == other.0)
        .any(|same| same.len() > 1 && count(&entries[same[0].1]) < same.len() as u64);
    if too_often {
        return Err(malformed("a handle occurs more often than it is counted"));
    }
    Ok(())
}

/// Checks that an entry names something that is there, in that generation, counted, and of that kind.
#[inline]
fn check(arena: &Arena, entry: &Entry) -> Result<()> {
    let segment = arena.segment();
    let known = match entry.what {
        What::End | What::ExclusiveEnd | What::Slot => heap::in_object(segment, entry.line),
        _ => heap::locate(segment, entry.line).is_some(),
    };
    if !known {
        return Err(malformed("a handle points nowhere"));
    }
    let word = Counted::from_word(
        segment
            .word(entry.line * LINE + counted::WORD)
            .load(core::sync::atomic::Ordering::Acquire),
    );
    if word.generation != entry.generation || word.count == 0 {
        return Err(held::stale(entry.line, entry.generation));
    }
    let meta = segment
        .word(entry.line * LINE + counted::META)
        .load(core::sync::atomic::Ordering::Acquire);
    if !entry.what.matches(meta) {
        return Err(Error::wrong_mode(
            "something else now",
            "what its handle says",
        ));
    }
    Ok(())
}

#[inline]
pub(super) fn bytes_of(words: &[u64; PAYLOAD_WORDS]) -> [u8; PAYLOAD_WORDS * 8] {
    let mut bytes = [0; PAYLOAD_WORDS * 8];
    for (word, chunk) in words.iter().zip(bytes.chunks_exact_mut(8)) {
        chunk.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

#[inline]
pub(super) fn words_of(bytes: &[u8; PAYLOAD_WORDS * 8]) -> [u64; PAYLOAD_WORDS] {
    let mut words = [0; PAYLOAD_WORDS];
    for (word, chunk) in words.iter_mut().zip(bytes.chunks_exact(8)) {
        let mut eight = [0; 8];
        eight.copy_from_slice(chunk);
        *word = u64::from_le_bytes(eight);
    }
    words
}
