//! Asking the other participants for the memory they keep, when there is none left.
//!
//! A process that lacks memory raises a number in the arena's header. Each participant compares that number with the last
//! one it answered whenever it allocates or frees, and twice a second in its watcher; a new one makes it give back
//! what it keeps, and then write the number into its row. The asker waits only for those who keep something, and for no
//! longer than [`PATIENCE`]: nobody is waited for with a lock held, and who is stopped delays it once.

use core::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::slab::slab_is_unused;
use super::{Heap, Inner, free_block};
use crate::arena::Arena;
use crate::cells::Owner;
use crate::chunk::{Chunks, State, Use};
use crate::layout::{header, row};
use crate::participant::table::Row;
use crate::patience::Patience;
use crate::segment::Segment;

/// How long an allocation that would fail waits for others at most: a little longer than a watcher sleeps.
pub(crate) const PATIENCE: Duration = Duration::from_millis(600);

/// How often it looks whether somebody has answered.
const LOOK: Duration = Duration::from_millis(1);

/// A request to the other participants.
pub(crate) struct Request<'a> {
    arena: &'a Arena,
    number: u64,
    /// Those who keep something and have not answered.
    waiting_for: Vec<Owner>,
    wait: Patience,
}

impl<'a> Request<'a> {
    /// Asks, if somebody keeps something.
    pub(crate) fn send(arena: &'a Arena) -> Option<Self> {
        let segment = arena.segment();
        let mut waiting_for = keepers(segment, arena.me());
        if waiting_for.is_empty() {
            return None;
        }
        let heap = arena.heap();
        // Acquire, release: who answers it sees what we left, as we see what they leave.
        let number = segment
            .word(header::PRESSURE)
            .fetch_add(1, Ordering::AcqRel)
            .wrapping_add(1);
        heap.forgive(segment);
        let inner = heap.inner.lock();
        waiting_for.retain(|owner| inner.silent.iter().all(|(silent, _)| silent != owner));
        drop(inner);
        Some(Self {
            arena,
            number,
            waiting_for,
            wait: Patience::new(PATIENCE),
        })
    }

    /// Waits until one more has answered. `false` when all have, or the time is up.
    pub(crate) fn wait(&mut self) -> bool {
        let segment = self.arena.segment();
        let before = self.waiting_for.len();
        if before == 0 {
            return false;
        }
        loop {
            self.waiting_for
                .retain(|&owner| is_waited_for(segment, owner, self.number));
            if self.waiting_for.len() < before {
                return true;
            }
            if self.wait.is_over(Instant::now()) {
                let late = self.waiting_for.drain(..).map(|owner| (owner, self.number));
                self.arena.heap().inner.lock().silent.extend(late);
                return false;
            }
            // Two that ask each other.
            self.arena.heap().answer(segment);
            std::thread::sleep(LOOK);
        }
    }
}

/// Whether a participant is there and has not answered the request of that number.
fn is_waited_for(segment: &Segment, owner: Owner, number: u64) -> bool {
    Row::get(segment, owner.row).is_some_and(|row| {
        row.occupant().is_some_and(|(there, _)| there == owner) && {
            // Acquire: pairs with the release in `answer`; what it gave back is free.
            let answered = row.word(row::TRIMMED).load(Ordering::Acquire);
            (number.wrapping_sub(answered) as i64) > 0
        }
    })
}

/// The other participants that own chunks in which nothing is in use.
fn keepers(segment: &Segment, me: Owner) -> Vec<Owner> {
    let chunks = Chunks::new(segment);
    let mut keepers = Vec::new();
    for chunk in 0..chunks.high() {
        let State::Owned(owner, used) = chunks.state(chunk) else {
            continue;
        };
        if owner == me || keepers.contains(&owner) {
            continue;
        }
        let pinned = chunks.is_pinned(chunk);
        let unused = match used {
            Use::Run(_) => free_block(segment, Chunks::run_line(chunk)).is_some(),
            Use::Slab(class) => slab_is_unused(segment, chunk, class),
            Use::Nothing | Use::Tail(_) | Use::Leases => false,
        };
        if unused && !pinned {
            keepers.push(owner);
        }
    }
    keepers
}

impl Heap {
    /// Answers a request of others, if there is a new one.
    pub(crate) fn answer(&self, segment: &Segment) {
        let mut inner = self.inner.lock();
        inner.answer(segment, self.me);
        inner.keep_within_limit(segment, self.me);
    }

    /// Those who have answered late are waited for again.
    fn forgive(&self, segment: &Segment) {
        let late = |&mut (owner, number): &mut (Owner, u64)| is_waited_for(segment, owner, number);
        self.inner.lock().silent.retain_mut(late);
    }
}

impl Inner {
    #[inline]
    pub(super) fn answer(&mut self, segment: &Segment, me: Owner) {
        // Relaxed: if it is seen late, it is answered late.
        let asked = segment.word(header::PRESSURE).load(Ordering::Relaxed);
        if asked != self.answered {
            self.give_what_is_kept(segment, me);
        }
    }

    #[cold]
    fn give_what_is_kept(&mut self, segment: &Segment, me: Owner) {
        // Acquire: pairs with the asker's release.
        let asked = segment.word(header::PRESSURE).load(Ordering::Acquire);
        self.answered = asked;
        let bytes = self.trim(segment, me);
        if bytes > 0 {
            crate::say!(
                debug,
                bytes,
                "gave memory back because another process lacks it"
            );
        }
        crate::failpoint!("chunk.pressure.unanswered");
        if let Some(row) = Row::get(segment, me.row) {
            // Release: who sees the answer finds the chunks free.
            row.word(row::TRIMMED).store(asked, Ordering::Release);
        }
    }
}
