//! What a participant works on, in its row, for whoever looks after it was killed.
//!
//! There are two texts, written by turns: the one that is not the last is taken apart and made anew, and counts from when
//! its first word says so. A process that is killed in the middle of a loop that does little else leaves the whole text
//! of the turn before.

use core::sync::atomic::{Ordering, fence};

use super::table::Row;
use crate::layout::{WORD, row};

/// The bits of the first word that say how long the text is.
const LENGTH: u64 = 0xff;

/// Where one of the two begins.
fn place(which: u64) -> u64 {
    row::TASK + which * row::TASK_WORDS * WORD
}

/// Writes the text, cut at a character. To be called by one thread of the participant at a time.
pub(super) fn write(row: &Row<'_>, text: &str) {
    let mut end = text.len().min(((row::TASK_WORDS - 1) * WORD) as usize);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    // This process alone writes here, one thread after the other.
    let [zero, one] = [0, 1].map(|which| row.word(place(which)).load(Ordering::Relaxed));
    let (which, last) = last(zero, one);
    let other = 1 - which;
    let head = row.word(place(other));
    head.store(0, Ordering::Relaxed);
    // Pairs with the fence in `read`: who sees a word of the new text does not find the head of the old one afterwards.
    fence(Ordering::Release);
    for (index, bytes) in text.as_bytes()[..end].chunks(8).enumerate() {
        let mut word = [0; 8];
        word[..bytes.len()].copy_from_slice(bytes);
        row.word(place(other) + (index as u64 + 1) * WORD)
            .store(u64::from_le_bytes(word), Ordering::Relaxed);
    }
    let turn = (last & !LENGTH).wrapping_add(LENGTH + 1);
    // Pairs with the acquire in `read`: who sees the head sees the text.
    head.store(turn | end as u64, Ordering::Release);
}

/// The last whole text; an empty one if there is none, or if it is changed so often that none is found.
pub(super) fn read(row: &Row<'_>) -> String {
    for _ in 0..100 {
        // Acquire: pairs with the release of the head in `write`.
        let [zero, one] = [0, 1].map(|which| row.word(place(which)).load(Ordering::Acquire));
        let (which, head) = last(zero, one);
        let words = (1..row::TASK_WORDS).map(|index| row.word(place(which) + index * WORD));
        let text = text(head, words.map(|word| word.load(Ordering::Relaxed)));
        // Pairs with the fence in `write`.
        fence(Ordering::Acquire);
        if row.word(place(which)).load(Ordering::Relaxed) == head {
            return text;
        }
    }
    String::new()
}

/// The last whole text in a copy of a row, and where the word that it counts from is in it. Where that word is another one in
/// a later copy, it was changed while the first was made.
pub(crate) fn read_copy(words: &[u64]) -> (String, usize) {
    let [zero, one] = [0, 1].map(|which| (place(which) / WORD) as usize);
    let (which, head) = last(words[zero], words[one]);
    let start = [zero, one][which as usize];
    let rest = &words[start + 1..start + row::TASK_WORDS as usize];
    (text(head, rest.iter().copied()), start)
}

/// Which of the two counts, by their first words, and that word.
fn last(zero: u64, one: u64) -> (u64, u64) {
    if zero > one { (0, zero) } else { (1, one) }
}

/// The text of these words after that first one.
fn text(head: u64, words: impl Iterator<Item = u64>) -> String {
    let mut bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
    bytes.truncate((head & LENGTH) as usize);
    String::from_utf8_lossy(&bytes).into_owned()
}

/// There is none any more.
pub(super) fn clear(row: &Row<'_>) {
    for which in [0, 1] {
        row.word(place(which)).store(0, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Arena;

    #[test]
    fn the_last_whole_text_is_found_however_far_the_next_has_come() {
        let arena = Arena::builder().capacity(64 << 20).create().unwrap();
        let row = Row::get(arena.segment(), arena.me().row).unwrap();
        assert_eq!(read(&row), "");
        for text in ["one", "", "a longer text", &"\u{fc}".repeat(200)] {
            write(&row, text);
            let whole = &text[..text.len().min(120)];
            assert_eq!(read(&row), whole);
            // As a process leaves it that is killed while it writes the next.
            let heads = [0, 1].map(|which| row.word(place(which)).load(Ordering::Relaxed));
            let other = u64::from(heads[0] > heads[1]);
            row.word(place(other)).store(0, Ordering::Relaxed);
            row.word(place(other) + WORD)
                .store(u64::MAX, Ordering::Relaxed);
            assert_eq!(read(&row), whole);
        }
        // Whatever is there is some text.
        row.word(place(0)).store(u64::MAX, Ordering::Relaxed);
        row.word(place(1)).store(u64::MAX, Ordering::Relaxed);
        let _ = read(&row);
        write(&row, "after");
        clear(&row);
        assert_eq!(read(&row), "");
    }

    #[test]
    fn a_text_that_is_read_while_others_are_written_is_one_of_them() {
        let arena = Arena::builder().capacity(64 << 20).create().unwrap();
        let texts = ["a".repeat(120), "bc".repeat(30), "d".to_owned()];
        arena.recorder().set_task(&texts[0]);
        let done = core::sync::atomic::AtomicBool::new(false);
        let done = &done;
        std::thread::scope(|scope| {
            let writers: Vec<_> = texts
                .iter()
                .map(|text| {
                    let arena = &arena;
                    scope.spawn(move || {
                        while !done.load(Ordering::Relaxed) {
                            arena.recorder().set_task(text);
                        }
                    })
                })
                .collect();
            for _ in 0..20_000 {
                let read = arena.record_of(arena.me()).unwrap().task;
                assert!(read.is_empty() || texts.contains(&read), "{read}");
            }
            done.store(true, Ordering::Relaxed);
            writers
                .into_iter()
                .for_each(|writer| writer.join().unwrap());
        });
        let last = arena.record_of(arena.me()).unwrap().task;
        assert!(texts.contains(&last), "{last}");
    }
}
