//! The format of messages, and taking one apart. What is read here was written by others and is checked.

use smallvec::SmallVec;

use super::bytes::{BESIDE_BLOCK, Bytes};
use crate::arena::Arena;
use crate::cells::PAYLOAD_WORDS;
use crate::doubt;
use crate::error::{Error, ErrorKind, Result};
use crate::heap;
use crate::held;
use crate::layout::{LINE, counted};
use crate::line::{Counted, Mode, Tag};
use crate::storage::{self, Place, Storage};

/// Handles of a message that need no allocation of this process. More than that hardly fit a cell; and each place moves
/// with the message through every step.
pub(crate) const FEW: usize = 2;

/// Bytes of a payload.
pub(super) const CELL: usize = PAYLOAD_WORDS * 8;
/// Bytes in front of an inline message: its form, the number of handles, the lengths of table and body.
pub(super) const HEAD: usize = 4;
/// Bytes of a cell that table and body of an inline message may take.
pub(super) const INLINE: usize = CELL - HEAD;
pub(crate) const FORM_INLINE: u8 = 1;
pub(crate) const FORM_SPILLED: u8 = 2;
/// A ring's message: one slot, and words of the ring's own.
pub(crate) const FORM_SLOT: u8 = 3;
/// One whole shared tensor of bytes, and words of the sender's own.
pub(crate) const FORM_BLOCK: u8 = 4;
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

/// What else a handle says (a tensor's geometry): where it lies in the table.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Extra {
    at: u32,
    len: u8,
}

impl Extra {
    /// The bytes, in the table that it was found in.
    #[inline]
    pub(super) fn of(self, table: &[u8]) -> &[u8] {
        let at = self.at as usize;
        table.get(at..at + usize::from(self.len)).unwrap_or(&[])
    }
}

/// An entry of the table: what it names, where, and what else it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) what: What,
    pub(crate) line: u64,
    pub(crate) generation: u64,
    pub(crate) extra: Extra,
    /// Where its bytes lie, if it is the block of a tensor or a message.
    pub(crate) place: Place,
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

/// A number of five bytes.
#[inline]
fn wide([a, b, c, d, e]: [u8; 5]) -> u64 {
    u64::from_le_bytes([a, b, c, d, e, 0, 0, 0])
}

fn parse_table(table: &[u8], count: usize, entries: &mut SmallVec<[Entry; FEW]>) -> Result<()> {
    // Each entry has at least 12 bytes: the count cannot make us reserve more than the table justifies.
    if count > table.len() / 12 {
        return Err(malformed("more handles than its table has room for"));
    }
    entries.reserve(count);
    let mut bytes = table;
    for _ in 0..count {
        let (fixed, rest) = bytes
            .split_first_chunk::<12>()
            .ok_or_else(|| malformed("a handle is cut short"))?;
        let [code, line @ .., _, _, _, _, _, _] = *fixed;
        let [_, _, _, _, _, _, generation @ .., len] = *fixed;
        let what = What::from_code(code).ok_or_else(|| malformed("a handle of unknown kind"))?;
        let (_, after) = rest
            .split_at_checked(len.into())
            .ok_or_else(|| malformed("a handle is cut short"))?;
        entries.push(Entry {
            what,
            line: wide(line),
            generation: wide(generation),
            extra: Extra {
                // At most `HANDLES_MAX` times 267.
                at: (table.len() - rest.len()) as u32,
                len,
            },
            place: Place::default(),
        });
        bytes = after;
    }
    if bytes.is_empty() {
        Ok(())
    } else {
        Err(malformed("its table is longer than its handles"))
    }
}

pub(super) fn parse_inline(
    payload: &[u64; PAYLOAD_WORDS],
    entries: &mut SmallVec<[Entry; FEW]>,
    out: &mut Bytes,
) -> Result<()> {
    out.near = payload.map(u64::to_le);
    parse_near(entries, out)
}

/// As [`parse_inline`], of the payload that was read into `out`.
#[inline]
fn parse_near(entries: &mut SmallVec<[Entry; FEW]>, out: &mut Bytes) -> Result<()> {
    let [form, count, table, body, ..] = u64::from_le(out.near[0]).to_le_bytes();
    let (count, table, body) = (usize::from(count), usize::from(table), usize::from(body));
    if form != FORM_INLINE || table + body > INLINE {
        return Err(malformed("its lengths do not fit its cell"));
    }
    out.table = (HEAD, HEAD + table);
    out.body = (HEAD + table, HEAD + table + body);
    parse_table(out.table(), count, entries)
}

pub(super) fn parse_spilled(
    bytes: Vec<u8>,
    entries: &mut SmallVec<[Entry; FEW]>,
    out: &mut Bytes,
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
    out.table = (header.len(), header.len() + table);
    out.body = (header.len() + table, bytes.len());
    out.far = bytes;
    parse_table(out.table(), count, entries)
}

/// Everything a payload refers to, and its body; used by takers, reapers and the audit alike.
#[derive(Default)]
pub(crate) struct Parsed {
    pub(crate) entries: SmallVec<[Entry; FEW]>,
    pub(crate) bytes: Bytes,
}

/// Takes a payload apart. The references it names are the message's own while its cell holds it.
pub(crate) fn parse(arena: &Arena, payload: &[u64; PAYLOAD_WORDS]) -> Result<Parsed> {
    let mut parsed = Parsed::default();
    parsed.bytes.near = payload.map(u64::to_le);
    parse_into(arena, &mut parsed.entries, &mut parsed.bytes)?;
    Ok(parsed)
}

/// Whether the message with this payload, which may be gone by now, names that line. One that can't be parsed gives nobody a
/// reference.
pub(crate) fn names(
    arena: &Arena,
    payload: &[u64; PAYLOAD_WORDS],
    (line, generation): (u64, u64),
) -> bool {
    let (mut entries, mut bytes) = (SmallVec::new(), Bytes::new());
    let outcome = match payload[0] as u8 {
        FORM_INLINE => parse_inline(payload, &mut entries, &mut bytes),
        FORM_SPILLED if (payload[1], payload[2]) == (line, generation) => return true,
        FORM_SPILLED => {
            let length = usize::try_from(payload[3]).unwrap_or(usize::MAX);
            match Storage::read_foreign(arena, payload[1], length) {
                Some(copy) => parse_spilled(copy, &mut entries, &mut bytes),
                None => return false,
            }
        }
        FORM_BLOCK => return (payload[0] >> 8, payload[1]) == (line, generation),
        _ => return false,
    };
    outcome.is_ok()
        && entries
            .iter()
            .any(|entry| (entry.line, entry.generation) == (line, generation))
}

/// As [`parse`], of the payload that was read into `out`: a message is larger than what most have to say, and moving it
/// costs more than reading it. After an error there may be something in them.
pub(crate) fn parse_into(
    arena: &Arena,
    entries: &mut SmallVec<[Entry; FEW]>,
    out: &mut Bytes,
) -> Result<()> {
    let [first, second, third, fourth, ..] = out.near.each_ref().map(|word| u64::from_le(*word));
    match first as u8 {
        FORM_INLINE => parse_near(entries, out)?,
        FORM_SPILLED => {
            let mut spill = Entry {
                what: What::Spill,
                line: second,
                generation: third,
                extra: Extra::default(),
                place: Place::default(),
            };
            check(arena, &mut spill)?;
            let length = usize::try_from(fourth).map_err(|_| malformed("a length is too large"))?;
            let bytes = Storage::read_foreign(arena, spill.line, length)
                .ok_or_else(|| malformed("it is longer than its block"))?;
            entries.push(spill);
            parse_spilled(bytes, entries, out)?;
        }
        FORM_SLOT => entries.push(Entry {
            what: What::Slot,
            line: first >> 8,
            generation: second,
            extra: Extra::default(),
            place: Place::default(),
        }),
        FORM_BLOCK => {
            out.body = BESIDE_BLOCK;
            entries.push(Entry {
                what: What::Shared,
                line: first >> 8,
                generation: second,
                extra: Extra::default(),
                place: Place::default(),
            });
        }
        _ => return Err(malformed("it has an unknown form")),
    }
    for entry in entries.iter_mut() {
        check(arena, entry)?;
    }
    check_counts(arena, entries)
}

/// Checks that no line is named more often than it is counted: each name becomes a reference, and one too many would
/// free the block while others use it.
#[inline]
fn check_counts(arena: &Arena, entries: &[Entry]) -> Result<()> {
    if entries.len() < 2 {
        return Ok(());
    }
    check_each_count(arena, entries)
}

fn check_each_count(arena: &Arena, entries: &[Entry]) -> Result<()> {
    let count = |entry: &Entry| {
        let word = arena
            .segment()
            .word(entry.line * LINE + counted::WORD)
            .load(core::sync::atomic::Ordering::Acquire);
        Counted::from_word(word).count
    };
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

/// Checks that an entry names something that is there, in that generation, counted, and of that kind; what is exclusive is
/// counted once. Whoever looks whether anybody holds it is told that somebody does.
#[inline]
fn check(arena: &Arena, entry: &mut Entry) -> Result<()> {
    let segment = arena.segment();
    let known = match entry.what {
        What::End | What::ExclusiveEnd | What::Slot => heap::in_object(segment, entry.line),
        What::Object | What::Slots => heap::locate(segment, entry.line).is_some(),
        What::Exclusive | What::Shared | What::Aliased | What::Spill => {
            storage::place(segment, entry.line)
                .map(|place| entry.place = place)
                .is_some()
        }
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
    if entry.what == What::Exclusive && word.count != 1 {
        return Err(malformed("an exclusive tensor has another holder"));
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
    doubt::touch(segment.word(entry.line * LINE + counted::DOUBT));
    Ok(())
}
