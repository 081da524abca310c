//! Reading the table of names while others may change it, without taking it into one's hands.
//!
//! The newest whole table is read where it lies. Nothing keeps it there: whoever changes the table takes it out when there
//! is a newer one, and then what it refers to may go. So each step is followed by a look whether the cell still holds that
//! very table, position included. If it does after references of our own were taken, the table's were there all the while,
//! and ours are good; if not, ours are given back, and the newer table is read. A reference is taken by a swap that fails
//! unless the line still has the generation that the table says.

use core::sync::atomic::{Ordering, fence};

use super::{Entry, PATIENCE, Patience, TABLES, copy_of, damaged};
use crate::arena::Arena;
use crate::cells::CellArray;
use crate::error::{Error, ErrorKind, Result};
use crate::heap;
use crate::held::Held;
use crate::message::FORM_SPILLED;
use crate::object::Object;
use crate::sync::Shared;
use crate::word::{CellState, decode};

/// The names in the table, as it was at some moment since this was called.
pub(super) fn entries(names: &Object) -> Result<Vec<Entry>> {
    let arena = names.arena();
    let array = names.cells(TABLES)?.0;
    let mut patience = Patience::new(arena);
    loop {
        match newest(&array) {
            Newest::At(cell, word) => {
                if let Some(entries) = copy(arena, &array, cell, word)? {
                    return Ok(entries);
                }
            }
            Newest::None => return Ok(Vec::new()),
            Newest::Moving => {}
        }
        if !patience.pause() {
            return Err(Error::new(
                ErrorKind::TimedOut,
                format!(
                    "the table of names has been changed for {PATIENCE:?} whenever it was looked at; is a process stopped in it, or does one publish all the time?"
                ),
            ));
        }
    }
}

/// Which table is the newest whole one.
enum Newest {
    /// In this cell, whose word was this.
    At(u64, u64),
    /// There has never been one.
    None,
    /// None was seen, but there may be one all the same.
    Moving,
}

fn newest(array: &impl CellArray<M = Shared>) -> Newest {
    let look = || -> Vec<u64> {
        (0..array.capacity())
            .map(|cell| array.word(cell).load(Ordering::Acquire))
            .collect()
    };
    let words = look();
    let whole = (0..)
        .zip(&words)
        .filter_map(|(cell, &word)| match decode(word) {
            CellState::Ready { pos, .. } => Some((pos, cell, word)),
            _ => None,
        });
    if let Some((_, cell, word)) = whole.max() {
        return Newest::At(cell, word);
    }
    // A table may have come behind our look and gone before it. Positions never come back, so words that are the same
    // twice were so at one moment.
    let is_moving = |word: &u64| matches!(decode(*word), CellState::Taking { .. });
    if look() != words || words.iter().any(is_moving) {
        return Newest::Moving;
    }
    Newest::None
}

/// The table in a cell, with references of our own to what it names; `None` if it was taken out meanwhile.
fn copy(
    arena: &Arena,
    array: &impl CellArray<M = Shared>,
    cell: u64,
    word: u64,
) -> Result<Option<Vec<Entry>>> {
    // Acquire: what was read, or counted, before the fence, came before the word changed if it has not changed yet.
    // That goes for counts as well: one that we raised after the table's own reference was given back would have made
    // us see that its cell was emptied first.
    let is_there = || {
        fence(Ordering::Acquire);
        array.word(cell).load(Ordering::Acquire) == word
    };
    let or_gone = |error: Error| if is_there() { Err(error) } else { Ok(None) };
    let payload = array
        .payload(cell)
        .each_ref()
        .map(|word| word.load(Ordering::Relaxed));
    if !is_there() {
        return Ok(None);
    }
    // A table that does not fit its cell lies in a block, which must stay while it is read.
    let _block = match payload[0] as u8 {
        FORM_SPILLED => {
            let (line, generation) = (payload[1], payload[2]);
            if heap::locate(arena.segment(), line).is_none() {
                return or_gone(damaged());
            }
            match Held::open(arena, line, generation) {
                Ok(block) => Some(block),
                Err(error) => return or_gone(error),
            }
        }
        _ => None,
    };
    if !is_there() {
        return Ok(None);
    }
    match copy_of(arena, &payload) {
        Ok(copy) if is_there() => copy.decode().map(Some),
        Ok(_) => Ok(None),
        Err(error) => or_gone(error),
    }
}
