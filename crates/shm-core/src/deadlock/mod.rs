//! Waits that can never end: noticed, and told as an error that names who waits where.
//!
//! A thread that waits without a deadline writes down in its process's row what it waits for. A process is *stuck* when
//! every thread of it that does the user's work waits so. A wait can end only by somebody who holds what it waits on (a
//! queue's sender, an event's handle), or for a join, by one of the processes that are waited for. So when all of those are
//! stuck as well, and none of *their* waits can be ended from outside of the same group, nothing will ever happen again.
//!
//! Doubt is never a deadlock. A process with one thread that does something else, or waits with a deadline, is not stuck;
//! neither is one of another pid namespace, whose threads cannot be counted. A reference that no participant holds travels in
//! a message or has a name, so somebody may get it. Wakes that are under way show in an event's sequence. And what is found
//! must be found twice, half a second apart, without a change of any of the waits in between.

use core::fmt;
use core::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::arena::Arena;
use crate::cells::Owner;
use crate::clock::now_ns;
use crate::failure::Named;
use crate::layout::{WORD, row};
use crate::object::Object;
use crate::participant::table::Row;
use crate::patience::Patience;

mod group;
mod scan;
mod told;

use scan::Snapshot;

/// Threads of this process that serve the library: they do nothing that could end a wait of somebody else.
static SERVANTS: AtomicU32 = AtomicU32::new(0);

/// See [`set_long_wait`].
static LONG_MS: AtomicU64 = AtomicU64::new(10_000);

/// From how long a wait on is long, for all waits of this process: it is then told once, as a `tracing` warning.
pub fn set_long_wait(limit: Duration) {
    LONG_MS.store(
        limit.as_millis().try_into().unwrap_or(u64::MAX),
        Ordering::Relaxed,
    );
}

/// From how long a wait on is long.
#[must_use]
pub fn long_wait() -> Duration {
    Duration::from_millis(LONG_MS.load(Ordering::Relaxed))
}

/// How long a wait has lasted before the first look for a deadlock.
const FIRST_LOOK: Duration = Duration::from_secs(1);
/// How far apart looks get.
const LOOKS_APART: Duration = Duration::from_secs(30);
/// How far apart those of a wait for processes get, which is the one to tell of what it is part of.
const JOINS_APART: Duration = Duration::from_secs(2);
/// How long a deadlock must have stood before others tell of one that a wait for processes is part of. That one has
/// looked twice by then, unless it could not.
const DEFERENCE: Duration = Duration::from_secs(4);

/// Says that the current thread serves the library and does none of the user's work, until it is dropped.
#[derive(Debug)]
pub struct Servant(());

impl Servant {
    /// This thread serves from now on.
    #[must_use]
    pub fn enter() -> Self {
        SERVANTS.fetch_add(1, Ordering::Relaxed);
        Self(())
    }
}

impl Drop for Servant {
    fn drop(&mut self) {
        SERVANTS.fetch_sub(1, Ordering::Relaxed);
    }
}

/// What a thread waits for.
#[derive(Clone, Copy, Debug)]
pub enum WaitFor<'a> {
    /// A notification of event `event` of this object, registered at this sequence.
    Change {
        /// The object.
        object: &'a Object,
        /// The event, 0 or 1.
        event: u64,
        /// What [`Registered::seq`](crate::event::Registered) says.
        seq: u32,
    },
    /// The end of so many processes of a context.
    Processes {
        /// The context's number in this process.
        context: u32,
        /// How many of its processes still run.
        running: u32,
    },
}

/// Kinds of a wait entry.
pub(crate) const CHANGE: u64 = 1;
pub(crate) const PROCESSES: u64 = 2;

/// A wait without a deadline, written down for others to see until this is dropped.
#[derive(Debug)]
pub struct Waiting {
    arena: Arena,
    entry: Option<u64>,
    since: Instant,
    next_look: Instant,
    apart: Duration,
    /// It is a wait for processes.
    joins: bool,
    last: Option<(Patience, Snapshot)>,
}

/// The words of entry `entry` of a row.
pub(crate) fn entry_words<'a>(row: &Row<'a>, entry: u64) -> [&'a AtomicU64; 4] {
    core::array::from_fn(|word| row.word(row::WAITS + (entry * 4 + word as u64) * WORD))
}

impl Waiting {
    /// Begins a wait in this arena. Nothing is written down before [`on`](Self::on).
    #[must_use]
    pub fn begin(arena: &Arena) -> Self {
        let since = Instant::now();
        Self {
            arena: arena.clone(),
            entry: None,
            since,
            next_look: since + FIRST_LOOK,
            apart: FIRST_LOOK,
            joins: false,
            last: None,
        }
    }

    /// Writes down what this thread is about to sleep for; again before each sleep.
    pub fn on(&mut self, what: WaitFor<'_>) {
        // A fork would write into its parent's row.
        if self.arena.is_forked() {
            return;
        }
        let Some(row) = Row::get(self.arena.segment(), self.arena.me().row) else {
            return;
        };
        row.word(row::SERVANTS)
            .store(SERVANTS.load(Ordering::Relaxed).into(), Ordering::Relaxed);
        let Some(entry) = self.entry.or_else(|| claim(&row)) else {
            return;
        };
        let first = self.entry.replace(entry).is_none();
        let [state, subject, detail, since] = entry_words(&row, entry);
        let (kind, of, how) = match what {
            WaitFor::Change { object, event, seq } => {
                (CHANGE, object.held.line, u64::from(seq) | event << 32)
            }
            WaitFor::Processes { context, running } => (PROCESSES, context.into(), running.into()),
        };
        self.joins = kind == PROCESSES;
        if first {
            since.store(now_ns(), Ordering::Relaxed);
        }
        let seen = state.load(Ordering::Relaxed);
        let same = seen & 0xf == kind
            && subject.load(Ordering::Relaxed) == of
            && detail.load(Ordering::Relaxed) == how;
        if same {
            return;
        }
        // Kind 15 while the words do not belong together; the version tells whoever looks that they have changed.
        let version = (seen >> 4).wrapping_add(1) << 4;
        state.store(version | 0xf, Ordering::Release);
        subject.store(of, Ordering::Release);
        detail.store(how, Ordering::Release);
        state.store(version | kind, Ordering::Release);
    }

    /// Looks for a deadlock, if it is time; to be called after each sleep that nobody ended.
    ///
    /// One that stuck processes and a wait for them are part of is told by the wait for them: whoever started the
    /// processes learns the most from it, and stops them. The others tell only if that wait does not.
    #[must_use]
    pub fn look(&mut self) -> Option<Deadlock> {
        let now = Instant::now();
        if now < self.next_look || self.entry.is_none() || self.arena.is_forked() {
            return None;
        }
        let found = group::stuck_with(&self.arena, self.arena.me());
        let Some(group::Found { snapshot, joined }) = found else {
            self.last = None;
            let farthest = if self.joins { JOINS_APART } else { LOOKS_APART };
            self.apart = (self.apart * 2).min(farthest);
            self.next_look = now + self.apart;
            return None;
        };
        // A second look soon: only what has not changed at all is a deadlock.
        self.next_look = now + Duration::from_millis(450);
        let Some((wait, _)) = self.last.as_mut().filter(|(_, last)| *last == snapshot) else {
            self.last = Some((Patience::new_at(DEFERENCE, now), snapshot));
            return None;
        };
        let leave_it = joined && !wait.is_over(now) && !self.joins;
        (!leave_it).then(|| snapshot.tell(&self.arena))
    }

    /// How long this wait has lasted.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        self.since.elapsed()
    }

    /// Waits of processes of this participant's context `context`, without a deadline, for messages from queues whose
    /// senders this process holds still, it alone: what they wait for, if nobody puts it, is that those are dropped.
    #[must_use]
    pub fn on_our_senders(&self, context: u32) -> Vec<Wait> {
        scan::on_our_senders(&self.arena, context)
    }
}

/// A free entry of the own row: other threads of this process look for one, too.
fn claim(row: &Row<'_>) -> Option<u64> {
    (0..row::WAIT_ENTRIES).find(|&entry| {
        let [state, ..] = entry_words(row, entry);
        let seen = state.load(Ordering::Relaxed);
        seen & 0xf == 0
            && state
                .compare_exchange(
                    seen,
                    (seen >> 4).wrapping_add(1) << 4 | 0xf,
                    Ordering::AcqRel,
                    Ordering::Relaxed,
                )
                .is_ok()
    })
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(entry) = self.entry
            && !self.arena.is_forked()
            && let Some(row) = Row::get(self.arena.segment(), self.arena.me().row)
        {
            let [state, ..] = entry_words(&row, entry);
            let seen = state.load(Ordering::Relaxed);
            state.store((seen >> 4).wrapping_add(1) << 4, Ordering::Release);
        }
    }
}

impl Arena {
    /// Writes down that this participant belongs to context `context` of `supervisor`, so that a wait of that one for
    /// this one is understood by others.
    pub fn note_supervisor(&self, supervisor: Owner, context: u32) {
        let me = self.me();
        if let Some(row) = Row::get(self.segment(), me.row).filter(|_| !self.is_forked()) {
            row.word(row::CONTEXT).store(
                scan::context_word(supervisor, context, me),
                Ordering::Release,
            );
        }
    }

    /// Writes down that so many contexts of this participant are about to end because they are being stopped: a wait for
    /// them is no deadlock.
    pub fn note_stopping(&self, contexts: u64) {
        if let Some(row) = Row::get(self.segment(), self.me().row).filter(|_| !self.is_forked()) {
            row.word(row::STOPPING).store(contexts, Ordering::Release);
        }
    }
}

/// Processes that wait for each other, so that none of them will ever go on.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Deadlock {
    /// Who waits where; the one that noticed it is the first.
    pub waits: Vec<Wait>,
}

/// One wait of a [`Deadlock`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Wait {
    /// The process.
    pub pid: u32,
    /// Its name; empty where it has none.
    pub name: String,
    /// What it waits for, with the place where that was made.
    pub what: String,
    /// For how long.
    pub for_ns: u64,
    /// What would have ended it; empty where there is nothing to say.
    advice: &'static str,
}

impl fmt::Display for Wait {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = Named(&self.name, self.pid);
        let seconds = Duration::from_nanos(self.for_ns).as_secs_f64();
        write!(f, "{who} has waited {seconds:.1} s for {}", self.what)
    }
}

impl fmt::Display for Deadlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("deadlock: ")?;
        for (index, wait) in self.waits.iter().enumerate() {
            write!(f, "{}{wait}", if index == 0 { "" } else { "; " })?;
        }
        f.write_str(". Nobody else can end these waits")?;
        for (index, wait) in self.waits.iter().enumerate() {
            let told = self.waits[..index]
                .iter()
                .any(|before| before.advice == wait.advice);
            if !told && !wait.advice.is_empty() {
                write!(f, ". {}", wait.advice)?;
            }
        }
        f.write_str(". Or wait with a timeout")
    }
}

impl std::error::Error for Deadlock {}
