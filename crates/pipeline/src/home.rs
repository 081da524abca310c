//! What all parts of one process of a pipeline share: who it is, the board, and the way home for time cards.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mp_queue::{ErrorKind as QueueErrorKind, Event, Sender};
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use shm_core::clock::now_ns;
use shm_core::patience::Patience;
use smallvec::SmallVec;

use crate::board::{Board, Place, State};
use crate::call::Call;
use crate::card::LetGo;
use crate::item::{FIRST_NEW, Item, Portion, Share};
use crate::process::Outcome;
use crate::spec::{Layout, TensorSpec};
use crate::tally::Tally;
use crate::time_card::{Batch, Entry, Sample};

/// Entries that are sent in one message at most, where they are not written into a tally.
const BATCH: usize = 64;
/// How long entries wait for others.
const PATIENCE_NS: u64 = 20_000_000;
/// A sample of the ring's use is taken so often at most.
const SAMPLE_NS: u64 = 5_000_000;
/// And so long they wait for others.
const SAMPLES_NS: u64 = 100_000_000;

/// What stands for the step of the client, which is in none.
pub(crate) const CLIENT: u32 = u32::MAX;

/// A process whose slots this one may read.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Upstream {
    pub(crate) rank: u32,
    /// Set whenever one of its slots may be free again.
    pub(crate) freed: Event,
    pub(crate) specs: Vec<TensorSpec>,
}

/// The same, as this process uses it.
#[derive(Debug)]
pub(crate) struct Known {
    pub(crate) freed: Event,
    pub(crate) layout: Arc<Layout>,
}

/// The processes whose slots this one may read, by their rank: looked at for each item.
#[derive(Debug, Default)]
pub(crate) struct Upstreams(Vec<Option<Known>>);

impl Upstreams {
    #[inline]
    pub(crate) fn get(&self, rank: u32) -> Option<&Known> {
        self.0.get(rank as usize)?.as_ref()
    }

    pub(crate) fn insert(&mut self, rank: u32, known: Known) {
        let at = rank as usize;
        if self.0.len() <= at {
            self.0.resize_with(at + 1, || None);
        }
        self.0[at] = Some(known);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &Known> {
        self.0.iter().flatten()
    }
}

thread_local! {
    /// Whether this thread calls the stage.
    static CALLS: Cell<bool> = const { Cell::new(false) };
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Home {
    pub(crate) rank: u32,
    pub(crate) step: u32,
    pub(crate) device: i32,
    pub(crate) board: Board,
    pub(crate) upstream: Upstreams,
    /// Whether a step behind restores the order, and is to know of each item what has become of it.
    pub(crate) is_ordered: bool,
    /// Set when the process ends in failure: what it has is unfinished, and no card says otherwise.
    failing: AtomicBool,
    /// Where cards are written, for all but the client, which shares the life of who reads them.
    tally: Option<Tally>,
    /// How many parts of a slot it has.
    parts: Mutex<HashMap<Place, u32>>,
    /// What the stage has let go of since it was called, and whether on the thread that called it.
    call: Call<(LetGo, bool)>,
    log: Mutex<Log>,
}

#[derive(Debug)]
struct Log {
    to: Sender<Batch>,
    batch: Batch,
    since: u64,
    sampled: u64,
    /// Place holders for items that ended here, for a step that restores the order.
    tombstones: Option<Vec<Item>>,
}

impl Home {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        (rank, step, device): (u32, u32, i32),
        board: Board,
        upstream: Upstreams,
        to: Sender<Batch>,
        tally: Option<Tally>,
        tombstones: bool,
    ) -> Self {
        Self {
            rank,
            step,
            device,
            board,
            upstream,
            is_ordered: tombstones,
            failing: AtomicBool::new(false),
            tally,
            parts: Mutex::default(),
            call: Call::default(),
            log: Mutex::new(Log {
                to,
                batch: Batch {
                    rank,
                    ..Batch::default()
                },
                since: 0,
                sampled: 0,
                tombstones: tombstones.then(Vec::new),
            }),
        }
    }

    pub(crate) fn enter(&self, state: State) {
        self.board.enter(self.rank, state);
    }

    /// Notes that this process reads a slot, or a part of it: it may have several of those, and reads it until it has let go
    /// of all.
    pub(crate) fn hold(&self, place: Place, is_part: bool) {
        // Locked until it is noted: what is noted is what is counted.
        let mut parts = is_part.then(|| self.parts.lock());
        if let Some(parts) = &mut parts {
            *parts.entry(place).or_default() += 1;
        }
        self.board.hold(place, self.rank);
    }

    /// Notes that it has let go of what it [holds](Self::hold).
    pub(crate) fn let_go(&self, place: Place, is_part: bool) {
        if !is_part {
            return self.board.let_go(place, self.rank);
        }
        let mut parts = self.parts.lock();
        if let Some(count) = parts.get_mut(&place) {
            *count -= 1;
            if *count > 0 {
                return;
            }
            parts.remove(&place);
        }
        self.board.let_go(place, self.rank);
    }

    /// Lets go of references to slots that were not read, and wakes whose they are.
    pub(crate) fn give_back(&self, shares: Vec<Share>) {
        let owners: SmallVec<[u32; 4]> = shares.iter().map(|share| share.rank).collect();
        // Before whoever is woken looks.
        drop(shares);
        for owner in owners {
            if let Some(known) = self.upstream.get(owner) {
                known.freed.set();
            }
        }
    }

    /// From now on nothing that is dropped counts as done.
    pub(crate) fn fail(&self) {
        self.failing.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_failing(&self) -> bool {
        self.failing.load(Ordering::Relaxed)
    }

    /// The stage is called, on this thread.
    pub(crate) fn begin_call(&self) {
        CALLS.set(true);
        self.call.begin();
    }

    /// The stage has returned: what it has let go of meanwhile, and whether on this thread, to be [noted](LetGo::note) unless
    /// it failed.
    pub(crate) fn end_call(&self) -> Vec<(LetGo, bool)> {
        self.call.end()
    }

    /// Noted until what this gives is dropped: this thread, if it is not the one that calls the stage, lets go of an input.
    pub(crate) fn let_go_aside(self: &Arc<Self>) -> Option<LettingGo> {
        if CALLS.get() {
            // The board says what that one does.
            return None;
        }
        self.board.let_go_aside(self.rank, 1);
        Some(LettingGo(Arc::clone(self)))
    }

    /// An item was let go of.
    pub(crate) fn let_go_of(&self, item: LetGo) {
        if let Some((item, _)) = self.call.keep((item, CALLS.get())) {
            item.note(self);
        }
    }

    /// Notes what became of an item.
    pub(crate) fn note(&self, entry: Entry) {
        let mut log = self.log.lock();
        if self.tally.as_ref().is_some_and(|tally| tally.write(&entry)) {
            return;
        }
        log.batch.entries.push(entry);
        let now = now_ns();
        if log.batch.entries.len() == 1 {
            log.since = now;
        }
        // A process may be killed at any moment, and its cards are to be known then.
        if self.tally.is_some()
            || log.batch.entries.len() >= BATCH
            || now.saturating_sub(log.since) >= PATIENCE_NS
        {
            log.send();
        }
    }

    pub(crate) fn note_offered(&self) {
        match &self.tally {
            // Only who puts a process's outputs counts them there, which one thread does at a time.
            Some(tally) => tally.offer(),
            None => self.log.lock().batch.offered += 1,
        }
    }

    /// Whether it is time to say how many slots are in use.
    pub(crate) fn wants_sample(&self, now: u64) -> bool {
        now.saturating_sub(self.log.lock().sampled) >= SAMPLE_NS
    }

    pub(crate) fn note_in_use(&self, now: u64, in_use: u32) {
        let mut log = self.log.lock();
        log.sampled = now;
        log.batch.samples.push(Sample { t: now, in_use });
        let first = log.batch.samples.first().map_or(now, |sample| sample.t);
        if now.saturating_sub(first) >= SAMPLES_NS {
            log.send();
        }
    }

    /// An item ended here without an output. One with a number of its own nobody waits for.
    pub(crate) fn note_gone(&self, id: u64, portion: Portion) {
        if id >= FIRST_NEW {
            return;
        }
        if let Some(tombstones) = &mut self.log.lock().tombstones {
            let Portion {
                part,
                parts,
                copy,
                copies,
            } = portion;
            tombstones.push(Item {
                id,
                part,
                parts,
                copy,
                copies,
                gone: true,
                ..Item::default()
            });
        }
    }

    pub(crate) fn take_tombstones(&self) -> Vec<Item> {
        match &mut self.log.lock().tombstones {
            Some(tombstones) if !tombstones.is_empty() => std::mem::take(tombstones),
            _ => Vec::new(),
        }
    }

    /// Sends what there is, before the process waits or ends.
    pub(crate) fn flush(&self) {
        self.log.lock().send();
    }

    /// Sends what the process brings home, which nobody can take away from it then.
    pub(crate) fn bring(&self, restarts: u32, outcome: Outcome) {
        let mut log = self.log.lock();
        log.batch.outcome = Some(Box::new((restarts, outcome)));
        if log.send() {
            self.board.set_brought(self.rank);
        }
    }
}

/// A thread of the program's own lets go of an input. Its process may wait meanwhile, and the input's slot is read by nobody
/// any more, and not free yet: without this note whoever looks for knots would take it to be in a queue.
#[derive(Debug)]
pub(crate) struct LettingGo(Arc<Home>);

impl Drop for LettingGo {
    fn drop(&mut self) {
        self.0.board.let_go_aside(self.0.rank, -1);
    }
}

impl Log {
    /// Whether it was sent, or there was nothing to be sent.
    fn send(&mut self) -> bool {
        let batch = &mut self.batch;
        if batch.entries.is_empty()
            && batch.samples.is_empty()
            && batch.offered == 0
            && batch.outcome.is_none()
        {
            return true;
        }
        let rank = batch.rank;
        let full = std::mem::replace(
            batch,
            Batch {
                rank,
                ..Batch::default()
            },
        );
        // Whoever started the run reads all the time. If it is gone, this process is about to be, too.
        let mut wait = Patience::new(Duration::from_secs(10));
        let mut next = Some(full);
        while let Some(full) = next.take() {
            let now = Instant::now();
            let Err(error) = self
                .to
                .put_timeout(full, wait.next().saturating_duration_since(now))
            else {
                return true;
            };
            let is_late = *error.kind() == QueueErrorKind::TimedOut;
            if !is_late || wait.is_over(Instant::now()) {
                tracing::warn!(%error, "time cards are lost");
            } else {
                next = error.into_value();
            }
        }
        false
    }
}
