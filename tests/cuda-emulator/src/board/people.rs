//! The processes of a board: who is there, who has died, and what a driver takes back then.

use std::fs::{self, File};
use std::sync::atomic::Ordering;

use super::tables::{Person, Tables};
use super::{Board, PROCESSES, map};
use crate::code::{self, Answer, refuse};

/// When a process started, in ticks since the machine did; none when it is not there, or only waits to be collected.
///
/// A process whose first thread has ended is a zombie by this file while its other threads still end, and so still has what
/// it had open: it is there until they are gone, as a driver sees it.
pub(crate) fn start_time(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may hold anything, parentheses too.
    let mut fields = stat.rsplit_once(") ")?.1.split(' ');
    let state = fields.next()?;
    let threads: u32 = fields.nth(16)?.parse().ok()?;
    if matches!(state, "Z" | "X") && threads <= 1 {
        return None;
    }
    fields.nth(1)?.parse().ok()
}

/// Whether that very process is there.
pub(crate) fn is_alive(pid: u32, start: u64) -> bool {
    start_time(pid) == Some(start)
}

impl Tables {
    /// A row for this process.
    pub(crate) fn enter(&mut self, board: &Board, file: &File) -> Answer<(usize, u64)> {
        self.bury(board, file);
        let pid = std::process::id();
        let Some(row) = self.processes.iter().position(|person| person.pid == 0) else {
            return refuse(
                code::OPERATING_SYSTEM,
                format!("{PROCESSES} processes use the emulated devices already"),
            );
        };
        let serial = self.people;
        self.people += 1;
        let start = start_time(pid).unwrap_or(0);
        for count in &board.words.processes[row].calls {
            count.store(0, Ordering::Relaxed);
        }
        self.processes[row] = Person { pid, start, serial };
        Ok((row, serial))
    }

    /// Takes back what dead processes had.
    pub(crate) fn bury(&mut self, board: &Board, file: &File) {
        for row in 0..PROCESSES {
            let person = self.processes[row];
            if person.pid != 0 && !is_alive(person.pid, person.start) {
                self.leave(board, file, row);
            }
        }
    }

    /// Takes back what the process in that row had: a driver does, whether it was killed or has ended.
    pub(crate) fn leave(&mut self, board: &Board, file: &File, row: usize) {
        let owner = row as u32 + 1;
        for (slot, stream) in self.streams.iter_mut().enumerate() {
            if stream.owner == owner {
                stream.owner = 0;
                let torn = board.words.done(slot) != stream.issued;
                board.words.turn(slot, stream.issued, torn);
                // Its work is over, finished or not: nothing of it can collide with what comes.
                let clock = stream.clock;
                self.host.join(&clock);
            }
        }
        for event in self.known_events() {
            let it = &mut self.events[event];
            if !it.live {
                continue;
            }
            it.importers[row] = 0;
            if it.owner == owner {
                it.owner = 0;
            }
            if it.owner == 0 && it.importers.iter().all(|&count| count == 0) {
                self.close_event(event);
            }
        }
        for index in self.known_allocations() {
            let it = &mut self.allocations[index];
            if !it.live {
                continue;
            }
            it.importers[row] = 0;
            if it.owner == owner {
                it.owner = 0;
            }
            if it.owner == 0 && !it.is_imported() {
                let is_heap = it.what != super::What::Virtual as u8;
                let (offset, size) = self.forget(board, index);
                if is_heap {
                    map::forget(file, offset, size);
                }
            }
        }
        let counts = &board.words.processes[row].calls;
        for (total, count) in self.past_calls.iter_mut().zip(counts) {
            *total += count.swap(0, Ordering::Relaxed);
        }
        self.processes[row].pid = 0;
    }
}
