//! Emptying an array of messages: what its last holder does.

use super::Get;
use crate::cells::Take;
use crate::error::Result;
use crate::held;
use crate::message::{Parsed, parse};
use crate::object::{Array, Object};

impl Object {
    /// Takes every message out of array `index` and releases what it holds. For the last holder of an object.
    pub(crate) fn drain(&self, index: usize) {
        let mut seen = 0;
        // Damaged cells and garbage messages end or shorten the loop; each round frees one cell.
        let rounds = match self.array(index) {
            Array::Cells { capacity } | Array::Lane { capacity } => 2 * u64::from(capacity),
            Array::None | Array::Slots { .. } | Array::Permits { .. } => return,
        };
        for _ in 0..rounds {
            match self.try_get(index, &mut seen) {
                Ok(Get::Message(message, _)) => drop(message),
                Ok(_) => break,
                Err(error) if error.is_shortage() => {
                    if !self.drain_one_unrecorded(index, &mut seen) {
                        break;
                    }
                }
                Err(error) => {
                    crate::say!(warn, %error, "a message of a dropped queue could not be released");
                }
            }
        }
    }

    /// Takes one message and releases what it holds without entries of our own, for which there is no room. A kill in
    /// between leaks what it held.
    fn drain_one_unrecorded(&self, index: usize, seen: &mut u64) -> bool {
        // Parsed while the cell still names what it holds, as by any taker.
        let parsed = if let Ok(cells) = self.cells(index) {
            let Take::At { pos, .. } = cells.take(self.arena().me(), seen) else {
                return false;
            };
            let parsed = parse(self.arena(), &cells.read(pos));
            let _ = cells.release(pos);
            parsed
        } else if let Ok(lane) = self.lane(index) {
            let pos = lane.head();
            if !lane.is_ready(pos) {
                return false;
            }
            let parsed = parse(self.arena(), &lane.read(pos));
            lane.release(pos);
            parsed
        } else {
            return false;
        };
        self.release_named(parsed);
        true
    }

    /// Gives back what a message refers to that was taken out of its cell, without entries of our own. A kill in between
    /// leaks it.
    pub(crate) fn release_named(&self, parsed: Result<Parsed>) {
        let Ok(mut parsed) = parsed else {
            return;
        };
        // Ends and slots before the objects they lie in.
        parsed
            .entries
            .sort_by_key(|entry| !entry.what.is_in_object());
        for entry in parsed.entries {
            held::release_unrecorded(self.arena(), entry.line, entry.generation);
        }
    }
}
