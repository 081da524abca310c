//! What arenas of this build look like, as one number that each arena carries in its header.
//!
//! A version is raised by people, who forget. So processes of two builds also compare this: the fingerprint of the
//! offsets (the source `layout.rs`) and of the words themselves, as this build's own functions write and read them. A
//! field that moved, a kind with another code, or slabs with other blocks make another number, and such builds refuse
//! each other. Of what is inside messages, forms and codes are part of it.

use crate::cells::Owner;
use crate::chunk::{State, Use};
use crate::class::{CLASSES, SLABS_OF};
use crate::doubt;
use crate::lease::{Entry, Kind};
use crate::line::{Counted, Mode, Tag};
use crate::message::{self, What};
use crate::object::{Array, ObjectKind};
use crate::object::{apart, place};
use crate::participant::table::{Life, RowState};
use crate::permits;
use crate::steps::{claimant, reaper_word};
use crate::tensor::{Dtype, GEOMETRY_HEAD};
use crate::word::{self, Ring};

/// What an arena of this build has in its header.
pub(crate) const FINGERPRINT: u64 = fold(of_source(include_str!("layout.rs")), OF_WORDS);

/// FNV-1a, 64 bits: where it starts, and its multiplier.
const START: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;

/// Values with no two fields alike, and all bits of a field in some of them.
const ONE: Owner = Owner {
    row: 0xa5c,
    epoch: 0x1d2b,
};
const OTHER: Owner = Owner {
    row: 0xfff,
    epoch: 0xffff,
};
const LINE: u64 = 0x2a_9b3c_4d5e;
const GENERATION: u64 = 0xe1_d2c3_b4a5;
const POSITION: u64 = 0x0123_4567_89ab_cdef;

/// The fingerprint of the words, which docs/src/wire.md states.
pub(crate) const OF_WORDS: u64 = {
    let mut hash = START;
    // Counted lines, and what is counted.
    hash = fold(hash, Counted::new(GENERATION, 0x12_3456).to_word());
    hash = fold(hash, Counted::from_word(u64::MAX).count);
    hash = fold(hash, Counted::from_word(u64::MAX).next_generation());
    hash = fold(hash, Tag::End.meta_in_object(LINE));
    hash = fold(hash, Tag::Slot.meta_in_object(LINE));
    hash = fold(hash, Tag::object_of(u64::MAX));
    let modes = [
        Mode::Exclusive,
        Mode::Shared,
        Mode::Aliased,
        Mode::Object,
        Mode::Message,
        Mode::Slots,
    ];
    let mut index = 0;
    while index < modes.len() {
        hash = fold(hash, Tag::meta_of_block(modes[index]));
        index += 1;
    }
    hash = fold(hash, claimant(ONE));
    hash = fold(hash, doubt::DOUBTFUL);
    hash = fold(hash, doubt::TAKEN | doubt::looking(ONE));
    // Leases.
    let kinds = [
        Kind::Free,
        Kind::Alloc,
        Kind::Held,
        Kind::Giving,
        Kind::Recv,
        Kind::GivingLane,
        Kind::RecvLane,
        Kind::Dropping,
        Kind::Leaving,
        Kind::Entering,
        Kind::Looking,
    ];
    index = 0;
    while index < kinds.len() {
        let entry = Entry {
            kind: kinds[index],
            epoch: ONE.epoch,
            line: LINE,
        };
        hash = fold(hash, entry.to_word());
        index += 1;
    }
    let last = Entry::from_word(u64::MAX >> 6);
    hash = fold(fold(hash, last.line), last.epoch as u64);
    // Chunks.
    let uses = [
        Use::Nothing,
        Use::Slab(0x2b),
        Use::Run(0x2d5a_7b3c),
        Use::Tail(0x1234_5678),
        Use::Leases,
    ];
    index = 0;
    while index < uses.len() {
        hash = fold(hash, State::Owned(ONE, uses[index]).to_word());
        hash = fold(hash, State::Orphan(uses[index]).to_word());
        index += 1;
    }
    hash = fold(hash, State::Owned(OTHER, Use::Nothing).to_word());
    hash = fold(hash, State::Free.to_word());
    let mut class = 0;
    while class < CLASSES {
        let slab = SLABS_OF[class];
        hash = fold(fold(hash, slab.size), slab.blocks);
        hash = fold(fold(hash, slab.lines), slab.data);
        class += 1;
    }
    // Rows.
    let lives = [Life::Free, Life::Joining, Life::Alive];
    index = 0;
    while index < lives.len() {
        let state = RowState {
            life: lives[index],
            epoch: ONE.epoch,
            pid: 0x89ab_cdef,
            tag: u16::MAX,
        };
        hash = fold(hash, state.to_word());
        index += 1;
    }
    hash = fold(hash, reaper_word(ONE, OTHER));
    // Cells.
    hash = fold(hash, word::free(POSITION));
    hash = fold(hash, word::ready(POSITION));
    hash = fold(hash, word::ready(POSITION) | word::HANDED_BACK);
    hash = fold(hash, word::closed(POSITION));
    hash = fold(hash, word::claimed(ONE, u64::MAX));
    hash = fold(hash, word::taking(ONE, POSITION, false));
    hash = fold(hash, word::taking(OTHER, POSITION, true));
    hash = fold(hash, Ring { capacity: 1 }.after(u64::MAX - 1));
    hash = fold(hash, place(1, apart(16)));
    of_messages(of_objects(hash))
};

/// Objects, their arrays, and permits.
const fn of_objects(mut hash: u64) -> u64 {
    let kinds = [
        ObjectKind::Letterbox,
        ObjectKind::Queue,
        ObjectKind::Event,
        ObjectKind::Ring,
        ObjectKind::Barrier,
        ObjectKind::Semaphore,
        ObjectKind::Mutex,
        ObjectKind::RwLock,
        ObjectKind::Condvar,
        ObjectKind::Names,
        ObjectKind::Published,
    ];
    let mut index = 0;
    while index < kinds.len() {
        hash = fold(hash, kinds[index].code());
        index += 1;
    }
    let count = 0x89ab_cdef;
    let arrays = [
        Array::None,
        Array::Cells { capacity: count },
        Array::Lane { capacity: count },
        Array::Slots { count },
        Array::Permits { count },
    ];
    index = 0;
    while index < arrays.len() {
        let (code, count) = arrays[index].code_and_count();
        hash = fold(fold(hash, code), count);
        index += 1;
    }
    let permits = permits::one_of_each(ONE, 0x89ab_cdef, u32::MAX);
    index = 0;
    while index < permits.len() {
        hash = fold(hash, permits[index]);
        index += 1;
    }
    hash
}

/// Forms of messages, kinds of handles, element types and what a geometry begins with.
const fn of_messages(mut hash: u64) -> u64 {
    hash = fold(hash, message::FORM_INLINE as u64);
    hash = fold(hash, message::FORM_SPILLED as u64);
    hash = fold(hash, message::FORM_SLOT as u64);
    hash = fold(hash, message::FORM_BLOCK as u64);
    let handles = [
        What::Exclusive,
        What::Shared,
        What::Aliased,
        What::Object,
        What::End,
        What::ExclusiveEnd,
        What::Slots,
        What::Slot,
        What::Spill,
    ];
    let mut index = 0;
    while index < handles.len() {
        hash = fold(hash, handles[index].code() as u64);
        index += 1;
    }
    index = 0;
    while index < Dtype::ALL.len() {
        hash = fold(hash, Dtype::ALL[index].code() as u64);
        hash = fold(hash, Dtype::ALL[index].size() as u64);
        index += 1;
    }
    index = 0;
    while index < GEOMETRY_HEAD.len() {
        hash = fold(hash, GEOMETRY_HEAD[index] as u64);
        index += 1;
    }
    hash
}

const fn fold(mut hash: u64, word: u64) -> u64 {
    let bytes = word.to_le_bytes();
    let mut index = 0;
    while index < bytes.len() {
        hash = (hash ^ bytes[index] as u64).wrapping_mul(PRIME);
        index += 1;
    }
    hash
}

/// The fingerprint of a source as `cargo xtask tidy` takes it: without comment lines, blank lines, indentation, and
/// everything from the unit tests on.
const fn of_source(text: &str) -> u64 {
    let mut rest = text.as_bytes();
    let mut hash = START;
    while !rest.is_empty() {
        let mut end = 0;
        while end < rest.len() && rest[end] != b'\n' {
            end += 1;
        }
        let (line, tail) = rest.split_at(end);
        rest = match tail.split_first() {
            Some((_, tail)) => tail,
            None => tail,
        };
        let line = line.trim_ascii();
        if is(line, b"#[cfg(test)]") {
            break;
        }
        if line.is_empty() || (line.len() > 1 && line[0] == b'/' && line[1] == b'/') {
            continue;
        }
        let mut index = 0;
        while index < line.len() {
            hash = (hash ^ line[index] as u64).wrapping_mul(PRIME);
            index += 1;
        }
        hash = (hash ^ b'\n' as u64).wrapping_mul(PRIME);
    }
    hash
}

const fn is(line: &[u8], text: &[u8]) -> bool {
    let mut index = 0;
    while index < line.len() && index < text.len() && line[index] == text[index] {
        index += 1;
    }
    index == line.len() && index == text.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/src/wire.md");

    #[test]
    fn the_page_about_the_wire_states_what_words_look_like() {
        let row = format!("| the words, and the blocks of slabs | `{OF_WORDS:016x}` |");
        assert!(
            PAGE.lines().any(|line| line == row),
            "a word or a slab looks different: describe it on docs/src/wire.md, raise the layout version, then put this row there:\n{row}"
        );
    }

    #[test]
    fn the_source_is_read_as_tidy_reads_it() {
        let now = of_source(include_str!("layout.rs"));
        assert!(PAGE.contains(&format!("`{now:016x}`")), "{now:016x}");
        let first = of_source("//! Layout.\nstruct A {\n    x: u64,\n}\n");
        let same = "struct A {\n\n  // A comment.\n  x: u64,\n}\n#[cfg(test)]\nmod tests {}\n";
        assert_eq!(first, of_source(same));
        assert_ne!(first, of_source("struct A {\n    x: u32,\n}\n"));
    }

    #[test]
    fn every_bit_of_a_word_makes_another_fingerprint() {
        for bit in 0..64 {
            assert_ne!(fold(START, POSITION), fold(START, POSITION ^ (1 << bit)));
        }
        assert_ne!(FINGERPRINT, OF_WORDS);
    }
}
