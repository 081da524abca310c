//! Routes: the queues that a process puts its outputs into, and what happens when one is full.

use std::time::Duration;

use mp_queue::{Deadline, ErrorKind as QueueErrorKind, Receiver, Sender, WaitPolicy};
use serde::{Deserialize, Serialize};
use shm_core::SharedBytes;
use shm_core::clock::now_ns;

use crate::board::{Cause, State};
use crate::error::{Error, ErrorKind, Result};
use crate::home::{CLIENT, Home};
use crate::item::{Item, divide};
use crate::selector::{Outgoing, Selector};
use crate::time_card::{Entry, Outcome, TimeCard};
use crate::wire::{self, Slim};

/// What happens when there is no room: no free slot, or a queue at its capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Backpressure {
    /// The producer waits.
    #[default]
    Block,
    /// The run ends, as RnB's does: [`Termination::QueueFull`](crate::Termination::QueueFull).
    Fail,
    /// The item that there is no room for is dropped; what a stage publishes when it [finishes](crate::Stage::finish) waits for
    /// a slot, since nothing newer comes.
    DropNewest,
    /// The item that has waited longest in the queue is dropped.
    DropOldest,
}

/// Who gets an output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Delivery {
    /// One process of those that read the queue, as in RnB.
    #[default]
    One,
    /// Every process that reads the queue. A slot is free when the last of them is done with it; one that has ended counts
    /// as done.
    Every,
}

/// The way to one reader, or to those that share a queue.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Lane {
    pub(crate) to: Sender<Item>,
    /// To take the oldest out, where that is the policy, and what a reader has left, where each has a lane of its own.
    pub(crate) from: Option<Receiver<Item>>,
    /// The processes that read it.
    pub(crate) readers: Vec<u32>,
    /// Which one it is.
    pub(crate) index: u32,
}

/// What a process is told of its routes: for each of its queues the lanes.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Routes {
    pub(crate) queues: Vec<Vec<Lane>>,
    pub(crate) policy: Backpressure,
}

impl Routes {
    /// The same, waiting for room in another way.
    pub(crate) fn with_policy(mut self, policy: WaitPolicy) -> Self {
        for lane in self.queues.iter_mut().flatten() {
            lane.to = lane.to.clone().with_policy(policy);
        }
        self
    }
}

/// An item that could not be put now.
struct Refused {
    error: mp_queue::Error,
    item: Option<Item>,
}

impl Lane {
    /// Whether nobody reads it any more, though nothing failed.
    fn is_abandoned(&self, home: &Home) -> bool {
        self.readers
            .iter()
            .all(|&reader| home.board.is_done(reader))
    }

    fn try_put(&self, item: Item) -> Result<(), Box<Refused>> {
        wire::put(&self.to, item, Deadline::Now)
            .map_err(|(error, item)| Box::new(Refused { error, item }))
    }

    /// Puts what is slim, with one more reference to its slot's memory: at once where there is room. `false` when nobody reads
    /// the lane any more.
    #[inline]
    pub(crate) fn put_slim(
        &self,
        home: &Home,
        policy: Backpressure,
        mut slim: Slim,
        memory: &SharedBytes,
    ) -> Result<bool> {
        let item = if self.is_abandoned(home) {
            slim.with(memory.to_send()?)
        } else {
            slim.enqueued = now_ns();
            match wire::put_slim(&self.to, &slim, memory, Deadline::Now) {
                Ok(()) => return Ok(true),
                Err((error, item)) => item.ok_or(error)?,
            }
        };
        self.put(home, policy, item)
    }

    /// Puts an item, waiting for room. `false` when nobody reads the lane any more.
    pub(crate) fn put(&self, home: &Home, policy: Backpressure, mut item: Item) -> Result<bool> {
        let mut waited = false;
        let answer = loop {
            if self.is_abandoned(home) {
                note_dropped(home, item);
                break Ok(false);
            }
            item.enqueued = now_ns();
            let Refused { error, item: back } = match self.try_put(item) {
                Ok(()) => break Ok(true),
                Err(refused) => *refused,
            };
            let Some(back) = back else {
                break Err(error.into());
            };
            item = back;
            if self.is_abandoned(home) {
                continue;
            }
            if *error.kind() != QueueErrorKind::Full {
                break Err(error.into());
            }
            match policy {
                Backpressure::Fail => {
                    home.board.set_cause(home.rank, Cause::QueueFull);
                    break Err(Error::new(
                        ErrorKind::QueueFull,
                        format!(
                            "{} is full ({} items), and its policy is to fail",
                            match home.step {
                                CLIENT => "its queue".to_owned(),
                                step => format!("the queue behind step {step}"),
                            },
                            self.to.capacity()
                        ),
                    ));
                }
                Backpressure::DropNewest => {
                    note_dropped(home, item);
                    break Ok(true);
                }
                Backpressure::DropOldest => {
                    if !self.displace(home) {
                        std::thread::yield_now();
                    }
                    continue;
                }
                Backpressure::Block => {}
            }
            if !waited {
                waited = true;
                home.enter(State::WaitsForRoom(self.index));
            }
            item.enqueued = now_ns();
            // Looks now and then whether anybody is left to make room.
            match wire::put(&self.to, item, Deadline::after(Duration::from_millis(200))) {
                Ok(()) => break Ok(true),
                Err(failed) => {
                    home.flush();
                    match failed {
                        (_, Some(back)) => item = back,
                        (error, None) => break Err(error.into()),
                    }
                }
            }
        };
        if waited {
            home.enter(State::Working);
        }
        answer
    }

    /// Drops the oldest item of the lane.
    fn displace(&self, home: &Home) -> bool {
        let oldest = self
            .from
            .as_ref()
            .map(|from| wire::get(from, Deadline::Now));
        let Some(Ok(oldest)) = oldest else {
            return false;
        };
        note_dropped(home, oldest);
        true
    }
}

/// Accounts for an item that goes nowhere, and gives its slots back.
pub(crate) fn note_dropped(home: &Home, mut item: Item) {
    home.give_back(std::mem::take(&mut item.shares));
    let (id, portion) = (item.id, item.portion());
    let card = TimeCard {
        item: item.id,
        part: item.part,
        parents: item.parents,
        step: home.step,
        rank: home.rank,
        device: home.device,
        enqueued: item.enqueued,
        outcome: Outcome::Dropped,
        ..TimeCard::default()
    };
    home.note_gone(id, portion);
    home.note(Entry {
        card,
        ended: item.members,
    });
}

/// See the module.
pub(crate) struct Router {
    pub(crate) routes: Routes,
    selector: Box<dyn Selector>,
}

impl Router {
    pub(crate) fn new(routes: Routes, selector: Box<dyn Selector>) -> Self {
        Self { routes, selector }
    }

    /// Whether nobody reads any of the queues any more, though nothing failed.
    pub(crate) fn is_abandoned(&self, home: &Home) -> bool {
        let mut lanes = self.routes.queues.iter().flatten();
        lanes.all(|lane| lane.is_abandoned(home))
    }

    /// Whether there is a choice of queues.
    pub(crate) fn selects(&self) -> bool {
        self.routes.queues.len() > 1
    }

    /// The one lane that everything goes into, if there is no other.
    pub(crate) fn only(&self) -> Option<&Lane> {
        let [lanes] = &self.routes.queues[..] else {
            return None;
        };
        let [lane] = &lanes[..] else { return None };
        Some(lane)
    }

    /// The index of the queue that an output goes into.
    pub(crate) fn select(&mut self, item: &Item) -> usize {
        let queues = self.routes.queues.len();
        if queues <= 1 {
            return 0;
        }
        let waiting = |lanes: &Vec<Lane>| -> u64 {
            let each = lanes.iter().map(|lane| lane.to.len() as u64);
            each.sum()
        };
        let waiting = self.routes.queues.iter().map(waiting).collect();
        let output = Outgoing::new(item, waiting);
        self.selector.select(&output).min(queues - 1)
    }

    /// Puts the segments of one output into a queue.
    pub(crate) fn put(
        &mut self,
        home: &Home,
        index: usize,
        items: impl IntoIterator<Item = Item>,
    ) -> Result<()> {
        let policy = self.routes.policy;
        let lanes = self.routes.queues.get(index).ok_or_else(|| {
            Error::invalid(
                "the last step of a pipeline has no queue to put outputs into; add a step after it",
            )
        })?;
        let mut taken = false;
        for item in items {
            taken |= put_into(home, lanes, policy, item)?;
        }
        self.settle(home, taken)
    }

    /// Whether what was put has gone anywhere, or could have.
    pub(crate) fn settle(&self, home: &Home, taken: bool) -> Result<()> {
        if taken || !self.is_abandoned(home) {
            return Ok(());
        }
        Err(mp_queue::Error::new(
            QueueErrorKind::Closed,
            "the processes of the next step have all had enough",
        )
        .into())
    }

    /// Puts place holders where an item will not come. Whoever restores the order is one process, to which all ways lead: one
    /// for each suffices, on a way where there is room.
    pub(crate) fn put_gone(&self, home: &Home, gone: Vec<Item>) -> Result<()> {
        let has_room = |lane: &&Lane| lane.to.len() < lane.to.capacity();
        for item in gone {
            let lanes = self.routes.queues.iter().flatten();
            let mut read = lanes.filter(|lane| !lane.is_abandoned(home));
            let lane = read.clone().find(has_room).or_else(|| read.next());
            if let Some(lane) = lane {
                lane.put(home, Backpressure::Block, item)?;
            }
        }
        Ok(())
    }

    /// Takes back what waits for readers that have had enough, since its slots would wait with it.
    pub(crate) fn drain_abandoned(&self, home: &Home) {
        for lane in self.routes.queues.iter().flatten() {
            if lane.is_abandoned(home) {
                while lane.displace(home) {}
            }
        }
    }

    /// Whether nothing is on its way from here.
    pub(crate) fn is_empty(&self) -> bool {
        let mut lanes = self.routes.queues.iter().flatten();
        lanes.all(|lane| lane.to.is_empty())
    }

    /// Drops the oldest item that waits in any of the queues, to free its slot.
    pub(crate) fn displace(&self, home: &Home) -> bool {
        let mut lanes = self.routes.queues.iter().flatten();
        lanes.any(|lane| lane.displace(home))
    }
}

fn put_into(home: &Home, lanes: &[Lane], policy: Backpressure, item: Item) -> Result<bool> {
    if let [only] = lanes {
        return only.put(home, policy, item);
    }
    let n = u32::try_from(lanes.len()).unwrap_or(u32::MAX);
    let mut taken = false;
    for (nth, (lane, members)) in lanes.iter().zip(divide(&item.members, n)).enumerate() {
        let copy = match home.is_ordered {
            true => item.copy_for(nth as u32, n),
            false => item.clone(),
        };
        taken |= lane.put(home, policy, Item { members, ..copy })?;
    }
    Ok(taken)
}

impl std::fmt::Debug for Router {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Router")
            .field("routes", &self.routes)
            .finish_non_exhaustive()
    }
}
