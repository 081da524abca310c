//! A worker's life: make the state, then take requests in their order, run each, reply, until there is a reason to leave.

use std::any::Any;

use shm_core::clock::now_ns;
use shm_core::message::{Incoming, Outgoing};
use shm_core::turn::Found;
use spawn::Function;

use super::job::Job;
use super::launcher::Made;
use super::link::{Ask, Ends, Form};
use crate::channel::{Channel, Got};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::Deadline;

/// How often a worker looks at its memory, at most: reading it takes some 20 µs.
const LOOK_NS: u64 = 10_000_000;

/// Below this a task is short beside looking at the clock.
const SHORT_NS: u64 = 10_000;

/// Of short tasks one in so many is timed, once so many were.
const EVERY: u64 = 8;
const UNTIL_KNOWN: u64 = 8;

/// Works until the pool closes the lane, or a limit of the orders is reached.
pub(super) fn serve<S: 'static>(mut ends: Ends, init: impl FnOnce(usize) -> Made<S>) -> Result<()> {
    ends.check()?;
    let arena = ends.bell.arena().clone();
    let mut requests = Channel::over(ends.requests.object().clone());
    requests.set_policy(ends.orders.policy);
    let replies = Channel::over(ends.replies.object().clone());
    let rank = ends.orders.rank;
    let state = init(rank).map_err(|error| {
        let text = format!("the state of worker {rank} could not be made: {error}");
        Error::new(ErrorKind::NoWorker, text).because(error)
    })?;
    let mut job = Job {
        arena,
        retires: ends.orders.retires,
        state: Box::new(state) as Box<dyn Any>,
        task: 0,
        since: None,
        nanos: 0,
        message: Incoming::default(),
        reply: Outgoing::default(),
        is_replied: false,
    };
    let mut resolved = Resolved(None);
    let mut stopwatch = Stopwatch::default();
    let mut looked = now_ns();
    for position in 0.. {
        let Some(turn) = next(&requests, &mut ends, position, &mut job.message)? else {
            return Ok(());
        };
        job.since = stopwatch.is_due(position).then(now_ns);
        run(&mut job, &mut resolved, turn == Found::Mine)?;
        stopwatch.note(position, job.nanos);
        ends.end(position);
        if !std::mem::take(&mut job.is_replied) {
            // The pool must not wait for it: ending says that something is wrong.
            return Err(crate::Error::new(
                ErrorKind::Arena(shm_core::ErrorKind::Encode),
                format!("no reply to task {} could be made", job.task),
            ));
        };
        let (end, reply) = (&mut ends.replies, &mut job.reply);
        // There is room: the pool never has more requests out than the lane of replies holds.
        let sent = replies.put_with(Deadline::Never, || end.try_put(reply));
        match sent {
            Ok(()) => {}
            Err(error) if error.is_closed() => return Ok(()),
            Err(error) => return Err(error),
        }
        ends.ring();
        if ends
            .orders
            .max_tasks
            .is_some_and(|most| position + 1 >= most)
        {
            return Ok(());
        }
        if let Some(most) = ends.orders.max_rss
            && now_ns().saturating_sub(looked) >= LOOK_NS
        {
            if anonymous_memory().is_some_and(|bytes| bytes > most) {
                return Ok(());
            }
            looked = now_ns();
        }
    }
    Ok(())
}

/// Which tasks are timed: looking at the clock twice takes as long as a short task does. All of those that are not short,
/// and some of the others.
#[derive(Default)]
struct Stopwatch {
    /// The position of the next one.
    next: u64,
}

impl Stopwatch {
    fn is_due(&self, position: u64) -> bool {
        position >= self.next
    }

    fn note(&mut self, position: u64, nanos: u64) {
        if self.is_due(position) {
            let is_short = nanos < SHORT_NS && position >= UNTIL_KNOWN;
            self.next = position + if is_short { EVERY } else { 1 };
        }
    }
}

/// The function of the last request, resolved: the next one mostly names it, too.
struct Resolved(Option<(Function<Job>, Call)>);

/// What a resolved function is called as.
type Call = fn(&mut Job);

impl Resolved {
    fn get(&mut self, function: Function<Job>) -> spawn::Result<Call> {
        match self.0 {
            Some((last, call)) if last == function => Ok(call),
            _ => {
                let call = function.resolve()?;
                self.0 = Some((function, call));
                Ok(call)
            }
        }
    }
}

/// Waits for the next request, takes its turn, then takes it out into `message`. `None` when there is a reason to leave.
fn next(
    requests: &Channel,
    ends: &mut Ends,
    position: u64,
    message: &mut Incoming,
) -> Result<Option<Found>> {
    let there = requests.object().lookout(0);
    let mut turn = None;
    loop {
        let taken = requests.get_with(Deadline::Never, || {
            if turn.is_none() && there.glance() {
                turn = Some(ends.begin(position));
            }
            match turn {
                Some(Found::Halted) => Ok(Got::Drained),
                None if !requests.is_closed() => Ok(Got::NotNow(None)),
                _ => Ok(ends.requests.try_get_into(message)?.into()),
            }
        });
        match taken {
            Ok(()) => {
                let turn = turn.unwrap_or_else(|| ends.begin(position));
                return Ok(Some(turn));
            }
            Err(error) if error.is_closed() => return Ok(None),
            // That the program hangs is for those to say who have something to do.
            Err(error) if matches!(error.kind(), ErrorKind::Deadlock(_)) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Runs one request, or passes it over; leaves the reply in the job.
fn run(job: &mut Job, resolved: &mut Resolved, begun: bool) -> Result<()> {
    let ask = job.message.take_prefix::<Ask>()?;
    job.task = ask.task;
    job.nanos = 0;
    if !begun {
        job.message = Incoming::default();
        job.reply(Form::Revoked, ());
        return Ok(());
    }
    match resolved.get(ask.function) {
        Ok(call) => call(job),
        Err(error) => {
            job.message = Incoming::default();
            job.reply(Form::Refused, error.to_string());
        }
    }
    Ok(())
}

/// Bytes of this process that are its own: neither files nor the arena's pages.
fn anonymous_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"))?;
    let kib: u64 = line.trim().trim_end_matches("kB").trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
mod tests {
    use super::{EVERY, SHORT_NS, Stopwatch, UNTIL_KNOWN, anonymous_memory};

    #[test]
    fn long_tasks_are_all_timed_and_of_short_ones_some() {
        let mut stopwatch = Stopwatch::default();
        let mut timed = |position, nanos| {
            let due = stopwatch.is_due(position);
            stopwatch.note(position, if due { nanos } else { 0 });
            due
        };
        assert!((0..=UNTIL_KNOWN).all(|position| timed(position, 100)));
        let short = UNTIL_KNOWN + 1..UNTIL_KNOWN + 1 + 10 * EVERY;
        let end = short.end;
        assert_eq!(short.filter(|&position| timed(position, 100)).count(), 10);
        // The first long one is noticed within as many, and each one after it.
        let first = (end..end + EVERY).find(|&position| timed(position, SHORT_NS));
        let first = first.expect("one of them is timed");
        assert!((first + 1..first + 50).all(|position| timed(position, SHORT_NS)));
    }

    #[test]
    fn own_memory_grows_by_what_is_touched() {
        let before = anonymous_memory().unwrap();
        let block = vec![1_u8; 64 << 20];
        let after = anonymous_memory().unwrap();
        assert!(
            after > before + (32 << 20),
            "{before} {after} {}",
            block.len()
        );
    }
}
