//! [`Map`]: a function over an iterator, in many processes.

use std::any::type_name;
use std::collections::VecDeque;
use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;

use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::message::Outgoing;
use spawn::Function;

use super::crew::{Crew, Request};
use super::job::Job;
use super::link::Ask;
use super::sink::{Arrived, Sink};
use crate::error::Result;
use crate::wait::Deadline;

/// The outcomes of a [`map`](super::Pool::map), in the order of its items.
///
/// It is lazy: nothing is taken from the input before the first outcome is asked for, and never more than
/// [`in_flight`](Self::in_flight) items beyond what was given out. Each item is a task of its own and fails alone. Dropped
/// early, it gives up what was not begun.
#[must_use = "a map does nothing until its outcomes are asked for"]
pub struct Map<'p, I, V> {
    crew: Arc<Crew>,
    /// One item a message, and several.
    functions: [Function<Job>; 2],
    items: Option<I>,
    sink: Arc<Sink>,
    ordered: bool,
    chunk: usize,
    in_flight: Option<usize>,
    /// How many items might be taken when that was last asked.
    last_limit: usize,
    /// Items taken and not given out.
    taken: usize,
    /// The index of the next message.
    next: u64,
    /// The messages that are out, or wait for those before them, from the oldest; how many items each has.
    window: VecDeque<Slot>,
    /// The index of the first of these.
    first: u64,
    arrivals: Vec<Arrived>,
    ready: VecDeque<Result<V>>,
    pool: PhantomData<&'p ()>,
}

/// For so many messages at a time there is room before they are counted.
const AT_ONCE: usize = 1024;

struct Slot {
    items: usize,
    /// `None`: not yet. Taken out: given out already.
    arrived: Option<Arrived>,
    given: bool,
}

impl<'p, I, V> Map<'p, I, V> {
    pub(super) fn new(crew: &Arc<Crew>, functions: [Function<Job>; 2], items: I) -> Self {
        Self {
            crew: Arc::clone(crew),
            functions,
            items: Some(items),
            sink: Arc::default(),
            ordered: true,
            chunk: 1,
            in_flight: None,
            last_limit: 0,
            taken: 0,
            next: 0,
            window: VecDeque::new(),
            first: 0,
            arrivals: Vec::new(),
            ready: VecDeque::new(),
            pool: PhantomData,
        }
    }

    /// Outcomes in the order of the items. The default.
    pub fn ordered(mut self) -> Self {
        self.ordered = true;
        self
    }

    /// Outcomes as they come.
    pub fn unordered(mut self) -> Self {
        self.ordered = false;
        self
    }

    /// Sends so many items in one message, for tasks that take less than a microsecond. They then share their fate: if the
    /// worker ends, all of the chunk are lost, and if one of them cannot be sent, none is. 1 if not set.
    pub fn chunk(mut self, items: usize) -> Self {
        self.chunk = items.max(1);
        self
    }

    /// At most so many items are taken from the input and not given out yet. If not set, as many as keep the workers busy:
    /// two for each at first, up to 128 for each when the tasks are short.
    pub fn in_flight(mut self, items: usize) -> Self {
        self.in_flight = Some(items.max(1));
        self
    }
}

impl<I, A, V> Map<'_, I, V>
where
    I: Iterator<Item = A>,
    A: Serialize + DeserializeOwned,
    V: DeserializeOwned,
{
    fn limit(&self) -> usize {
        self.in_flight.unwrap_or_else(|| {
            let state = self.crew.lock();
            let depth = self.crew.depth(&state);
            drop(state);
            let messages = 2 * depth * self.crew.options.workers;
            messages.saturating_mul(self.chunk)
        })
    }

    /// Takes items from the input and submits them, up to the limit.
    fn fill(&mut self) {
        // Not item by item: each time costs a lock and a look at all workers.
        if self.items.is_none() || self.taken > self.last_limit / 2 {
            return;
        }
        let limit = self.limit();
        self.last_limit = limit;
        // As many as there is mostly room for: a limit that is none, `usize::MAX`, is no size.
        let most = limit.saturating_sub(self.taken).div_ceil(self.chunk);
        let mut requests = Vec::with_capacity(most.min(AT_ONCE));
        while self.taken < limit {
            let most = self.chunk.min(limit - self.taken);
            let Some(items) = &mut self.items else { break };
            if self.chunk == 1 {
                match items.next() {
                    Some(item) => self.push(item, 0, 1, &mut requests),
                    None => self.items = None,
                }
            } else {
                let chunk: Vec<A> = items.take(most).collect();
                match chunk.len() {
                    0 => self.items = None,
                    count => self.push(chunk, 1, count, &mut requests),
                }
            }
        }
        self.crew.submit(requests);
    }

    /// Encodes one message.
    fn push<T: Serialize>(
        &mut self,
        args: T,
        function: usize,
        items: usize,
        requests: &mut Vec<Request>,
    ) {
        let task = self.crew.number();
        let ask = Ask {
            task,
            function: self.functions[function],
        };
        let index = self.next;
        self.next += 1;
        self.taken += items;
        let mut slot = Slot {
            items,
            arrived: None,
            given: false,
        };
        let mut message = Outgoing::default();
        match message.encode_as(&self.crew.arena, (ask, args), type_name::<A>) {
            Ok(()) => requests.push(Request {
                task,
                message,
                sink: Arc::clone(&self.sink),
                index,
                lost: 0,
            }),
            Err(failed) => {
                slot.arrived = Some(Arrived {
                    index,
                    task,
                    pid: 0,
                    outcome: Err(failed.error.into()),
                });
            }
        }
        self.window.push_back(slot);
    }

    /// Puts what arrived in its place, and makes ready what may be given out.
    fn sort(&mut self) {
        self.sink.drain_into(&mut self.arrivals);
        for arrived in std::mem::take(&mut self.arrivals) {
            let at = arrived.index.checked_sub(self.first).map(|at| at as usize);
            let Some(slot) = at.and_then(|at| self.window.get_mut(at)) else {
                continue;
            };
            if self.ordered {
                slot.arrived = Some(arrived);
            } else {
                slot.given = true;
                let items = slot.items;
                self.make_ready(arrived, items);
            }
        }
        while let Some(slot) = self.window.front_mut() {
            match slot.arrived.take() {
                Some(arrived) => {
                    let items = slot.items;
                    self.make_ready(arrived, items);
                }
                None if slot.given => {}
                None => break,
            }
            self.window.pop_front();
            self.first += 1;
        }
    }

    fn make_ready(&mut self, arrived: Arrived, items: usize) {
        if self.chunk == 1 {
            self.ready.push_back(arrived.value());
        } else {
            self.ready.extend(arrived.values(items));
        }
    }
}

impl<I, A, V> Iterator for Map<'_, I, V>
where
    I: Iterator<Item = A>,
    A: Serialize + DeserializeOwned,
    V: DeserializeOwned,
{
    type Item = Result<V>;

    fn next(&mut self) -> Option<Result<V>> {
        loop {
            self.fill();
            if self.ready.is_empty() {
                self.sort();
            }
            if let Some(outcome) = self.ready.pop_front() {
                self.taken -= 1;
                return Some(outcome);
            }
            if self.window.is_empty() {
                // The input has ended; or what was taken last has just been given out.
                self.items.as_ref()?;
                continue;
            }
            let sink = &self.sink;
            let waited = self.crew.wait_for(Deadline::Never, Some(sink), |_| {
                (!sink.is_empty()).then_some(())
            });
            if let Some(Err(error)) = waited {
                return Some(Err(error));
            }
        }
    }
}

impl<I, V> Drop for Map<'_, I, V> {
    fn drop(&mut self) {
        if !self.window.is_empty() {
            self.crew.abandon(&self.sink);
        }
    }
}

impl<I, V> fmt::Debug for Map<'_, I, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Map")
            .field("ordered", &self.ordered)
            .field("chunk", &self.chunk)
            .field("taken", &self.taken)
            .field("ready", &self.ready.len())
            .finish_non_exhaustive()
    }
}
