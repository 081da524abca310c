//! Where outcomes arrive for the thread that waits for them.

use std::any::type_name;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::task::Waker;

use parking_lot::{Condvar, Mutex};
use serde::de::DeserializeOwned;
use shm_core::message::Incoming;
use spawn::Failure;

use super::locked::Wakers;
use crate::error::{Error, ErrorKind, Result};

/// What became of one request.
#[derive(Debug)]
pub(super) struct Arrived {
    /// Which of the sink's requests.
    pub(super) index: u64,
    pub(super) task: u64,
    pub(super) pid: u32,
    /// The reply, still encoded, or why there is none.
    pub(super) outcome: Result<Box<Incoming>>,
}

impl Arrived {
    /// The value, once the reply is read as what the function gives.
    pub(super) fn value<V: DeserializeOwned>(self) -> Result<V> {
        self.value_as(type_name::<V>)
    }

    /// The same; `name` is what errors call the value.
    fn value_as<V: DeserializeOwned>(self, name: fn() -> &'static str) -> Result<V> {
        let (task, pid) = (self.task, self.pid);
        let mut message = self.outcome?;
        let outcome = message.take_as::<Result<V, Failure>, shm_core::Error>(name);
        keep_spare(message);
        outcome?.map_err(|failure| failed(task, pid, failure))
    }

    /// The values of a chunk of `count` tasks. What befell the chunk befell each of them.
    pub(super) fn values<V: DeserializeOwned>(self, count: usize) -> Vec<Result<V>> {
        let (task, pid) = (self.task, self.pid);
        match self.value_as::<Vec<Result<V, Failure>>>(type_name::<Vec<V>>) {
            Ok(values) if values.len() == count => values
                .into_iter()
                .map(|value| value.map_err(|failure| failed(task, pid, failure)))
                .collect(),
            Ok(values) => {
                let text = format!(
                    "a chunk of {count} tasks came back with {} results",
                    values.len()
                );
                let error = Error::new(ErrorKind::Arena(shm_core::ErrorKind::Decode), text);
                (0..count).map(|_| Err(error.again())).collect()
            }
            Err(error) => (0..count).map(|_| Err(error.again())).collect(),
        }
    }
}

fn failed(task: u64, pid: u32, failure: Failure) -> Error {
    match failure {
        Failure::Raised { chain, typed, .. } => {
            let text = format!(
                "task {task} (pid {pid}) returned an error: {}",
                chain.join(": ")
            );
            Error::new(ErrorKind::TaskRaised { task, pid, chain }, text).typed(typed)
        }
        Failure::Panicked {
            message, location, ..
        } => {
            let place = location
                .as_ref()
                .map(|place| format!(" at {place}"))
                .unwrap_or_default();
            let text = format!("task {task} (pid {pid}) panicked{place}: {message}");
            let kind = ErrorKind::TaskPanicked {
                task,
                pid,
                message,
                location,
            };
            Error::new(kind, text)
        }
    }
}

thread_local! {
    /// An empty message, to be used again: a new one for each reply costs more than reading most.
    static SPARE: Cell<Option<Box<Incoming>>> = const { Cell::new(None) };
    /// A sink that nobody uses, likewise.
    static SINK: Cell<Option<Arc<Sink>>> = const { Cell::new(None) };
}

/// A message to take a reply into.
pub(super) fn spare() -> Box<Incoming> {
    SPARE
        .try_with(Cell::take)
        .ok()
        .flatten()
        .unwrap_or_default()
}

/// Keeps an empty message for [`spare`].
pub(super) fn keep_spare(message: Box<Incoming>) {
    let _ = SPARE.try_with(|spare| spare.set(Some(message)));
}

/// A sink for one outcome that is waited for within `wait`.
pub(super) fn with_sink<R>(wait: impl FnOnce(&Arc<Sink>) -> R) -> R {
    let sink = SINK.try_with(Cell::take).ok().flatten().unwrap_or_default();
    let answer = wait(&sink);
    // One that is still known elsewhere may yet be told something.
    if Arc::strong_count(&sink) == 1 && sink.is_empty() {
        let _ = SINK.try_with(|spare| spare.set(Some(sink)));
    }
    answer
}

/// A place for outcomes. Pushed to under the pool's lock; its own lock is for the type system only.
#[derive(Debug, Default)]
pub(super) struct Sink(Mutex<Inside>);

#[derive(Debug, Default)]
struct Inside {
    arrived: VecDeque<Arrived>,
    /// Where the thread sleeps that waits for it, if one does.
    waiter: Option<Arc<Condvar>>,
    /// The future that waits for it, if one does.
    waker: Option<(Waker, Arc<Wakers>)>,
}

impl Sink {
    pub(super) fn push(&self, arrived: Arrived) {
        let mut inside = self.0.lock();
        inside.arrived.push_back(arrived);
        if let Some(waiter) = &inside.waiter {
            waiter.notify_all();
        }
        if let Some((waker, told)) = inside.waker.take() {
            told.add(waker);
        }
    }

    /// Has this called, once, when something arrives. Gives the one before, to be dropped without the pool's lock.
    #[cfg(feature = "tokio")]
    pub(super) fn set_waker(&self, waker: Option<(Waker, Arc<Wakers>)>) -> Option<Waker> {
        let before = std::mem::replace(&mut self.0.lock().waker, waker);
        before.map(|(waker, _)| waker)
    }

    pub(super) fn pop(&self) -> Option<Arrived> {
        self.0.lock().arrived.pop_front()
    }

    /// Moves all that arrived to the end of `to`.
    pub(super) fn drain_into(&self, to: &mut Vec<Arrived>) {
        to.extend(self.0.lock().arrived.drain(..));
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.lock().arrived.is_empty()
    }

    pub(super) fn set_waiter(&self, waiter: Option<Arc<Condvar>>) {
        self.0.lock().waiter = waiter;
    }
}
