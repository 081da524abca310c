//! Where a stage puts its results.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mp_queue::{ErrorKind as QueueErrorKind, WaitPolicy};
use serde::Serialize;
use shm_core::clock::now_ns;

use crate::board::{Cause, State};
use crate::card::Card;
use crate::descent::{descend, fork, say_what_is_valid};
use crate::error::{Error, ErrorKind, Result};
use crate::home::Home;
use crate::input::Input;
use crate::item::{Attached, FIRST_NEW, FULL, Item, Share};
use crate::looking::Looking;
use crate::pool::{OutputSlot, Pool, encode};
use crate::route::{Backpressure, Router};
use crate::time_card::{Entry, TimeCard};
use crate::wire::Slim;

/// How long a wait for a slot lasts before it is looked whether anybody is left to give one back.
const SLICE: Duration = Duration::from_millis(200);

/// Where a stage puts its results: it [loans](Self::loan) a slot, writes its tensors in place, and
/// [publishes](Self::publish) it.
#[derive(Debug)]
pub struct Output {
    home: Arc<Home>,
    pool: Option<Arc<Pool>>,
    router: Option<Router>,
    segments: u32,
    policy: Backpressure,
    /// The item that the stage was called for.
    current: Option<Arc<Card>>,
    published: u64,
    /// Whether the stage finishes: nothing newer comes.
    finishes: bool,
    /// Slots that were given new memory.
    renewed: u64,
    /// When the stage began to make the next output, where it makes them of nothing.
    called: u64,
    looking: Looking,
    /// Numbers for items that are new: inputs of a first step, batches, further outputs.
    next_input: Option<u64>,
    next_new: u64,
}

impl Output {
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn new(
        home: Arc<Home>,
        pool: Option<Arc<Pool>>,
        router: Option<Router>,
        segments: u32,
        policy: Backpressure,
        incarnation: u32,
        is_source: bool,
        wait: WaitPolicy,
    ) -> Self {
        // 12 bits of rank, 8 of incarnation, 32 of count: below 2^53, which JSON readers keep exact.
        let next_new = FIRST_NEW | u64::from(home.rank) << 40 | u64::from(incarnation & 0xff) << 32;
        Self {
            home,
            pool,
            router,
            segments,
            policy,
            current: None,
            published: 0,
            finishes: false,
            renewed: 0,
            called: 0,
            looking: Looking::new(wait),
            next_input: is_source.then_some(0),
            next_new,
        }
    }

    pub(crate) fn set_current(&mut self, card: Option<Arc<Card>>) {
        self.current = card;
    }

    pub(crate) fn take_current(&mut self) -> Option<Arc<Card>> {
        self.current.take()
    }

    /// The stage finishes from now on.
    pub(crate) fn note_finishes(&mut self) {
        self.finishes = true;
    }

    /// The stage is called, or goes on.
    pub(crate) fn note_works(&mut self, now: u64) {
        self.looking.works(now);
    }

    /// The stage is called without input.
    pub(crate) fn note_called(&mut self, now: u64) {
        self.called = now;
    }

    /// A free slot of this process's ring, waiting for one or doing what the step's policy says.
    ///
    /// # Errors
    /// `Deadlock` when this process holds all of them unpublished; `QueueFull` and `Dropped` as the policy says (return
    /// the latter to the caller as it is: it drops the item and goes on); `Closed` when no process of the next step is
    /// left; `PeerFailed` when a process failed; in a step without tensors or without a next step.
    pub fn loan(&mut self) -> Result<OutputSlot> {
        let pool = self.pool.clone().ok_or_else(|| {
            Error::invalid(match self.has_next() {
                true => "a slot was asked for in a step whose output_spec names no tensors; without tensors, use `send`",
                false => "a slot was asked for in the last step: nobody takes its outputs (`has_next`)",
            })
        })?;
        let asked = now_ns();
        let slot = match pool.take() {
            Some(slot) => Some(slot),
            None => self.loan_later(&pool)?,
        };
        let Some(mut slot) = slot else {
            return Err(Error::new(
                ErrorKind::Dropped,
                format!(
                    "none of the process's {} slots is free, and the policy of its step is to drop the newest item",
                    pool.len()
                ),
            ));
        };
        let now = now_ns();
        slot.acquired_ns = now;
        slot.waited_ns = now.saturating_sub(asked);
        if self.home.wants_sample(now) {
            // The one that was just taken is among them.
            self.home.note_in_use(now, pool.in_use());
        }
        Ok(slot)
    }

    /// No slot is free at once. `None`: the item is to be dropped.
    fn loan_later(&mut self, pool: &Arc<Pool>) -> Result<Option<OutputSlot>> {
        let home = Arc::clone(&self.home);
        let home = &home;
        if pool.is_all_loaned() {
            home.board.set_cause(home.rank, Cause::Deadlock);
            return Err(Error::new(
                ErrorKind::Deadlock,
                format!(
                    "process {} holds all {} slots of its ring (slots 0 to {}) unpublished and wants one more; publish or \
                     drop one first, or give the step more slots",
                    home.rank,
                    pool.len(),
                    pool.len().saturating_sub(1)
                ),
            ));
        }
        match self.policy {
            Backpressure::Block => {}
            Backpressure::Fail => {
                home.board.set_cause(home.rank, Cause::QueueFull);
                return Err(Error::new(
                    ErrorKind::QueueFull,
                    format!(
                        "all {} slots of process {} are in use, and the policy of its step is to fail",
                        pool.len(),
                        home.rank
                    ),
                ));
            }
            // What comes last has nothing behind it that it would hold up.
            Backpressure::DropNewest if self.finishes => {}
            Backpressure::DropNewest => return Ok(None),
            Backpressure::DropOldest => {
                while self
                    .router
                    .as_ref()
                    .is_some_and(|router| router.displace(home))
                {
                    if let Some(slot) = pool.take() {
                        return Ok(Some(slot));
                    }
                }
            }
        }
        home.enter(State::WaitsForSlot);
        let answer = match self.looking.slot(pool) {
            Some(slot) => Ok(Some(slot)),
            None => self.sleep_for_slot(pool),
        };
        let now = now_ns();
        home.board.enter_at(home.rank, State::Working, now);
        self.looking.works(now);
        answer
    }

    fn sleep_for_slot(&mut self, pool: &Arc<Pool>) -> Result<Option<OutputSlot>> {
        let home = Arc::clone(&self.home);
        let mut lost = Vec::new();
        let mut looked = Instant::now();
        loop {
            let question = home.board.asked(home.rank);
            // Cleared before the look: what is freed afterwards sets it again.
            pool.freed.clear();
            if let Some(router) = &self.router {
                router.drain_abandoned(&home);
            }
            if let Some(slot) = pool.take() {
                break Ok(Some(slot));
            }
            if self.is_abandoned() {
                break Err(mp_queue::Error::new(
                    QueueErrorKind::Closed,
                    "waiting for a slot: the processes of the next step have all had enough",
                )
                .into());
            }
            let seen = self.lost_slots(pool);
            if seen.is_empty() {
                home.board.answer(home.rank, question);
            }
            let nowhere = pool.nowhere(&home.board);
            if pool.renew(&home.board, |slot| nowhere.contains(&slot))? {
                continue;
            }
            if looked.elapsed() >= SLICE {
                looked = Instant::now();
                home.flush();
                let is_lost = |slot: u32| seen.contains(&slot) && lost.contains(&slot);
                if pool.renew(&home.board, is_lost)? {
                    self.renewed += 1;
                }
                lost = seen;
            }
            match pool.freed.wait_timeout(SLICE) {
                Ok(()) => {}
                Err(error) if *error.kind() == QueueErrorKind::TimedOut => {}
                Err(error) => break Err(error.into()),
            }
        }
    }

    /// Slots that are on no way and that nobody reads, as far as can be seen, though they are not free: a process that was
    /// killed may leave one count too high. Looked for only as often as processes have died.
    fn lost_slots(&self, pool: &Pool) -> Vec<u32> {
        let is_empty = self.router.as_ref().is_some_and(Router::is_empty);
        if self.home.board.deaths() <= self.renewed || !is_empty {
            return Vec::new();
        }
        pool.unread(&self.home.board)
    }

    /// Hands a slot over to the next step, as made of the input that the stage was called for.
    ///
    /// # Errors
    /// `Closed` when no process of the next step is left; `QueueFull` as the policy says; `PeerFailed`; for a slot of
    /// another process.
    pub fn publish(&mut self, slot: OutputSlot) -> Result<()> {
        let current = self.current.clone();
        self.publish_slot(slot, current.as_ref().as_slice())
    }

    /// Hands a slot over as made of these inputs, for instance those of a batch.
    ///
    /// # Errors
    /// As [`publish`](Self::publish).
    pub fn publish_for(&mut self, slot: OutputSlot, inputs: &[Input]) -> Result<()> {
        let cards: Vec<_> = inputs.iter().map(Input::card).collect();
        self.publish_slot(slot, &cards)
    }

    fn publish_slot(&mut self, mut slot: OutputSlot, cards: &[&Arc<Card>]) -> Result<()> {
        if !self.pool.as_ref().is_some_and(|pool| slot.is_of(pool)) {
            return Err(Error::invalid(
                "a slot of one step was to be published in another; copy it into a slot of that one",
            ));
        }
        if self.put_slim(&mut slot, cards)? {
            return Ok(());
        }
        let (sequence, tag) = (slot.sequence, slot.tag);
        let acquired = (slot.acquired_ns, slot.waited_ns);
        let beside = (
            sequence,
            tag,
            std::mem::take(&mut slot.payload),
            slot.attached.take(),
        );
        let shares = slot.into_share()?.into_iter().collect();
        self.put(shares, beside, cards, acquired)
    }

    /// Hands over what most outputs are, by the shortest way: all of a slot and nothing beside it, of one input or of none,
    /// where there is one way to go. `false`, and nothing is done, where it is anything else.
    #[inline]
    fn put_slim(&mut self, slot: &mut OutputSlot, cards: &[&Arc<Card>]) -> Result<bool> {
        let Some(router) = self.router.as_ref().filter(|_| self.segments <= 1) else {
            return Ok(false);
        };
        let (Some(lane), true) = (router.only(), slot.is_slim()) else {
            return Ok(false);
        };
        let (id, weight) = match (cards, &mut self.next_input) {
            ([], Some(next)) => {
                *next += 1;
                (*next - 1, FULL.trailing_zeros() as u8)
            }
            ([one], _) => match one.derive_slim() {
                Some(known) => known,
                None => return Ok(false),
            },
            _ => return Ok(false),
        };
        let slim = Slim {
            id,
            sequence: slot.sequence,
            tag: slot.tag,
            enqueued: 0,
            weight,
            place: slot.place(),
        };
        let acquired = (slot.acquired_ns, slot.waited_ns);
        let Some(memory) = slot.freeze() else {
            return Ok(true);
        };
        if cards.is_empty() {
            self.home.note_offered();
        }
        let put = lane
            .put_slim(&self.home, router.routes.policy, slim, memory)
            .and_then(|taken| router.settle(&self.home, taken));
        self.note_put(put, id, cards, acquired)?;
        Ok(true)
    }

    /// Sends a value without tensors, as made of the input that the stage was called for.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); when the value cannot be written.
    pub fn send<P: Serialize>(&mut self, payload: &P) -> Result<()> {
        let current = self.current.clone();
        let cards: Vec<_> = current.iter().collect();
        let beside = (0, 0, encode(payload)?, None);
        self.put(Vec::new(), beside, &cards, (0, 0))
    }

    /// Sends a value without tensors, as made of these inputs.
    ///
    /// # Errors
    /// As [`send`](Self::send).
    pub fn send_for<P: Serialize>(&mut self, payload: &P, inputs: &[Input]) -> Result<()> {
        let cards: Vec<_> = inputs.iter().map(Input::card).collect();
        let beside = (0, 0, encode(payload)?, None);
        self.put(Vec::new(), beside, &cards, (0, 0))
    }

    /// Passes inputs on to the next step as one item, in the slots they are in: nothing is copied. The sequence, tag and
    /// payload are those of the first.
    ///
    /// # Errors
    /// As [`publish`](Self::publish); for no inputs.
    pub fn forward(&mut self, inputs: Vec<Input>) -> Result<()> {
        let cards: Vec<_> = inputs
            .iter()
            .map(|input| Arc::clone(input.card()))
            .collect();
        let mut shares = Vec::new();
        let mut beside = None;
        for input in inputs {
            let (of_one, of_it) = input.take_apart()?;
            shares.extend(of_one);
            beside.get_or_insert(of_it);
        }
        let beside = beside.ok_or_else(|| Error::invalid("0 inputs were to be passed on"))?;
        self.put(shares, beside, &cards.iter().collect::<Vec<_>>(), (0, 0))
    }

    fn put(
        &mut self,
        shares: Vec<Share>,
        (sequence, tag, payload, attached): Beside,
        cards: &[&Arc<Card>],
        acquired: (u64, u64),
    ) -> Result<()> {
        let Some(router) = &mut self.router else {
            return Err(Error::invalid(
                "the last step of a pipeline has no queue to put outputs into; add a step after it",
            ));
        };
        let mut whole = Item {
            parts: 1,
            sequence,
            tag,
            payload,
            attached,
            shares,
            ..Item::default()
        };
        descend(
            &mut whole,
            cards,
            &mut self.next_new,
            self.next_input.as_mut(),
        );
        if self.segments > 1 || router.selects() {
            say_what_is_valid(&self.home, &mut whole);
        }
        let queue = router.select(&whole);
        let id = whole.id;
        if cards.is_empty() {
            self.home.note_offered();
        }
        let put = if self.segments > 1 {
            router.put(&self.home, queue, fork(whole, self.segments))
        } else {
            router.put(&self.home, queue, [whole])
        };
        self.note_put(put, id, cards, acquired)
    }

    /// Notes that an output was put, and when.
    fn note_put(
        &mut self,
        put: Result<()>,
        id: u64,
        cards: &[&Arc<Card>],
        (acquired, waited): (u64, u64),
    ) -> Result<()> {
        put?;
        let now = now_ns();
        if cards.is_empty() {
            // A first step has no input whose card this could be.
            self.home.note(Entry {
                card: TimeCard {
                    item: id,
                    step: self.home.step,
                    rank: self.home.rank,
                    device: self.home.device,
                    started: self.called,
                    slot_acquired: acquired,
                    slot_wait: waited,
                    finished: now,
                    published: now,
                    ..TimeCard::default()
                },
                ended: Vec::new(),
            });
            self.called = now;
        }
        for card in cards {
            card.edit(|card| {
                card.published = now;
                if acquired != 0 {
                    card.slot_acquired = acquired;
                    card.slot_wait += waited;
                }
            });
        }
        self.published += 1;
        self.home.board.set_outputs(self.home.rank, self.published);
        Ok(())
    }

    pub(crate) fn put_tombstones(&self) -> Result<()> {
        let gone = self.home.take_tombstones();
        match &self.router {
            Some(router) if !gone.is_empty() => router.put_gone(&self.home, gone),
            _ => Ok(()),
        }
    }

    /// Whether there is a next step.
    #[must_use]
    pub fn has_next(&self) -> bool {
        self.router.is_some()
    }

    /// Outputs that this process has published.
    #[must_use]
    pub fn published(&self) -> u64 {
        self.published
    }

    /// Whether the next step wants no more.
    pub(crate) fn is_abandoned(&self) -> bool {
        self.router
            .as_ref()
            .is_some_and(|router| router.is_abandoned(&self.home))
    }
}

/// What goes beside the slots: sequence, tag, payload, and what is attached.
pub(crate) type Beside = (u64, u64, Vec<u8>, Option<Box<Attached>>);
