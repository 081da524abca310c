//! What joins a pool and one of its workers: a lane of requests, a lane of replies, and the pool's bell.
//!
//! Every worker has lanes of its own, made anew for each, so that what a dead one left in them is nobody else's. The
//! requests' object also has a word for each place in the lane, its *turn*: the worker takes the turn before it begins,
//! the pool revokes it to cancel, and one compare-and-swap decides who came first.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use shm_core::arena::Arena;
use shm_core::message::{Incoming, Outgoing};
use shm_core::object::{Array, LaneEnd, Object, ObjectKind};
use shm_core::sync::Shared;
use shm_core::transfer::{Found as Got, Get, Put};
use shm_core::turn::{Found, Revoked, Turn};
use spawn::Function;

use super::job::Job;
use super::sink::{keep_spare, spare};
use crate::channel::{CONSUMERS, NOT_EMPTY, PRODUCERS};
use crate::counters;
use crate::error::{Error, Result};
use crate::wait::WaitPolicy;

/// How many requests a lane holds: the most that a worker is ever given ahead.
pub(super) const DEPTH: usize = 64;

/// The front of a request; the arguments follow in the same message.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ask {
    pub(super) task: u64,
    pub(super) function: Function<Job>,
}

/// The front of a reply; what follows depends on the form.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Told {
    pub(super) task: u64,
    /// How long the task took, in nanoseconds; 0 where that was not looked at.
    pub(super) nanos: u64,
    pub(super) form: Form,
}

/// What follows the front of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Form {
    /// What the function gave: a value, or a failure.
    Answer,
    /// Nothing: the task was cancelled before its turn.
    Revoked,
    /// A text: the task could not be run, or its result could not be sent.
    Refused,
}

/// What a worker is given.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Ends {
    // Ends before the objects that they lie in.
    pub(super) requests: LaneEnd,
    pub(super) replies: LaneEnd,
    pub(super) bell: Object,
    pub(super) orders: Orders,
}

/// How a worker is to work.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Orders {
    /// Its place in the pool, from 0.
    pub(super) rank: usize,
    /// It leaves after so many tasks.
    pub(super) max_tasks: Option<u64>,
    /// It leaves after a task when it has more anonymous memory than so many bytes.
    pub(super) max_rss: Option<u64>,
    /// It may leave while the pool is there, in peace: what it replies outlives it.
    pub(super) retires: bool,
    pub(super) policy: WaitPolicy,
}

/// The pool's side of a worker.
#[derive(Debug)]
pub(super) struct Link {
    requests: LaneEnd,
    replies: LaneEnd,
    /// Where replies come to, for who looks out for them without the pool's lock.
    watched: Arc<Object>,
}

/// Makes both sides.
pub(super) fn connect(arena: &Arena, bell: &Object, orders: Orders) -> Result<(Link, Ends)> {
    let lane = |words| {
        let array = Array::Lane {
            capacity: DEPTH as u32,
        };
        Object::create(arena, ObjectKind::Queue, [array, Array::None], words)
    };
    let (requests, replies) = (
        lane(counters::WORDS + DEPTH as u64)?,
        lane(counters::WORDS)?,
    );
    for position in 0..DEPTH as u64 {
        turn_of(&requests, position).init(position);
    }
    let link = Link {
        requests: requests.lane_end(PRODUCERS)?,
        replies: replies.lane_end(CONSUMERS)?,
        watched: Arc::new(replies.clone()),
    };
    let ends = Ends {
        requests: requests.lane_end(CONSUMERS)?,
        replies: replies.lane_end(PRODUCERS)?,
        bell: bell.clone(),
        orders,
    };
    Ok((link, ends))
}

impl Link {
    /// Hands a request over, if there is room and the lane is not closed. On success the message is empty afterwards.
    pub(super) fn ask(&mut self, message: &mut Outgoing) -> Result<bool> {
        match self.requests.try_put(message)? {
            Put::Done(_) => {
                let event = self.requests.object().event(NOT_EMPTY);
                event.notify_one(|count| event.wake(count));
                Ok(true)
            }
            Put::Full | Put::Pending(_) | Put::Closed => Ok(false),
        }
    }

    /// What replies come through.
    pub(super) fn replies(&self) -> &Arc<Object> {
        &self.watched
    }

    /// The next reply, if there is one. In a box, because it goes through many hands.
    pub(super) fn reply(&mut self) -> Result<Option<Box<Incoming>>> {
        let mut message = spare();
        match self.replies.try_get_into(&mut message)? {
            Got::Message(_) => Ok(Some(message)),
            Got::Empty | Got::Pending(_) | Got::Drained => {
                keep_spare(message);
                Ok(None)
            }
        }
    }

    /// Lets the worker leave once it has done what it was given.
    pub(super) fn close(&self) {
        self.requests.object().close();
    }

    /// Takes the turn of the request at `position` away, unless the worker has begun. The worker will pass it over.
    pub(super) fn revoke(&self, position: u64) -> Revoked {
        turn_of(self.requests.object(), position).revoke(position)
    }

    /// As [`revoke`](Self::revoke), but the worker will leave rather than take the request.
    pub(super) fn halt(&self, position: u64) -> Revoked {
        turn_of(self.requests.object(), position).halt(position)
    }

    /// The requests that a worker that is gone has not taken. `None` while its end is not free yet.
    pub(super) fn take_back(&self) -> Result<Option<Vec<Incoming>>> {
        let mut end = match self.requests.object().lane_end(CONSUMERS) {
            Ok(end) => end,
            Err(error) if *error.kind() == shm_core::ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let mut messages = Vec::new();
        for _ in 0..DEPTH {
            match end.try_get()? {
                Get::Message(message, _) => messages.push(message),
                Get::Empty | Get::Pending(_) | Get::Drained => break,
            }
        }
        Ok(Some(messages))
    }
}

/// The turn of the request at `position`, in a word behind those in which the lane keeps count.
fn turn_of(requests: &Object, position: u64) -> Turn<'_, Shared> {
    Turn(requests.word(counters::WORDS + position % DEPTH as u64))
}

impl Ends {
    /// Checks that what arrived belongs together.
    pub(super) fn check(&self) -> Result<()> {
        let fits = self.requests.is_of(self.requests.object(), CONSUMERS)
            && self.replies.is_of(self.replies.object(), PRODUCERS)
            && self.requests.object().word_count() == counters::WORDS + DEPTH as u64;
        self.bell.expect(ObjectKind::Event)?;
        if fits {
            return Ok(());
        }
        let text = "a worker was given the ends of lanes that do not belong to a pool";
        Err(Error::new(
            crate::ErrorKind::Arena(shm_core::ErrorKind::Decode),
            text,
        ))
    }

    /// Takes the turn of the request at `position`, once that is there and before it is taken out: the pool may then
    /// still get back what it has halted.
    pub(super) fn begin(&self, position: u64) -> Found {
        turn_of(self.requests.object(), position).begin(position)
    }

    /// Opens the place for the request that will come to it next; before the reply, after which that may come.
    pub(super) fn end(&self, position: u64) {
        turn_of(self.requests.object(), position).end(position + DEPTH as u64);
    }

    /// Tells the pool that a reply is there. After its publication, which is sequentially consistent.
    pub(super) fn ring(&self) {
        ring(&self.bell);
    }
}

/// Wakes whoever of the pool waits for replies. Everybody: who is woken first may be about to leave.
pub(super) fn ring(bell: &Object) {
    let event = bell.event(0);
    event.notify_all(|count| event.wake(count));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn linked() -> (Link, Ends) {
        let arena = Arena::current().unwrap();
        let bell =
            Object::create(&arena, ObjectKind::Event, [Array::None, Array::None], 1).unwrap();
        let orders = Orders {
            rank: 0,
            max_tasks: None,
            retires: false,
            max_rss: None,
            policy: WaitPolicy::Adaptive,
        };
        connect(&arena, &bell, orders).unwrap()
    }

    #[test]
    fn a_turn_is_begun_or_revoked_and_never_both() {
        let (link, ends) = linked();
        for position in 0..3 * DEPTH as u64 {
            if position % 2 == 0 {
                assert_eq!(ends.begin(position), Found::Mine);
                assert_eq!(link.revoke(position), Revoked::Begun);
            } else {
                assert_eq!(link.revoke(position), Revoked::InTime);
                assert_eq!(ends.begin(position), Found::Revoked);
            }
            ends.end(position);
            assert_eq!(link.revoke(position), Revoked::Over);
        }
        assert_eq!(link.halt(3 * DEPTH as u64), Revoked::InTime);
        assert_eq!(ends.begin(3 * DEPTH as u64), Found::Halted);
    }

    #[test]
    fn what_a_lane_counts_of_its_waits_changes_no_turn() {
        let (link, ends) = linked();
        let object = link.requests.object();
        for counter in [counters::SPINS, counters::PARKS, counters::WAKES] {
            counters::note(object, counter);
        }
        assert_eq!(counters::stats(object).parks, 1);
        for position in 0..DEPTH as u64 {
            assert_eq!(ends.begin(position), Found::Mine, "at {position}");
        }
    }

    #[test]
    fn requests_that_were_not_taken_come_back_and_can_be_passed_on() {
        let arena = Arena::current().unwrap();
        let (mut link, mut ends) = linked();
        for number in 0..5_u32 {
            let tensor = shm_core::Tensor::full(300, number).unwrap();
            let text = "x".repeat(number as usize * 40);
            let mut message = shm_core::message::encode(&arena, (number, (text, tensor))).unwrap();
            assert!(link.ask(&mut message).unwrap());
        }
        assert!(link.take_back().unwrap().is_none(), "its end is held");
        let taken = ends.requests.try_get().unwrap();
        assert!(matches!(taken, Get::Message(..)));
        drop((taken, ends));
        let back = link.take_back().unwrap().unwrap();
        let (mut next, mut ends) = linked();
        for message in back {
            assert!(next.ask(&mut message.forward(&arena).unwrap()).unwrap());
        }
        for expected in 1..5_u32 {
            let Get::Message(mut message, _) = ends.requests.try_get().unwrap() else {
                panic!("message {expected} is missing");
            };
            let number = message.take_prefix::<u32>().unwrap();
            let (text, tensor): (String, shm_core::Tensor<u32>) = message.decode().unwrap();
            assert_eq!((number, text.len()), (expected, expected as usize * 40));
            assert_eq!(tensor.as_slice(), [expected; 300]);
        }
    }
}
