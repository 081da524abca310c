//! A worker's life: make the state, then take requests in their order, run each, reply, until there is a reason to leave.

use std::any::Any;

use shm_core::clock::now_ns;
use shm_core::message::Incoming;
use shm_core::turn::Found;

use super::job::{Job, refusal};
use super::launcher::Made;
use super::link::{Ask, Ends, Form, Told};
use crate::channel::{Channel, Got};
use crate::error::{Error, ErrorKind, Result};
use crate::wait::Deadline;

/// How often a worker looks at its memory, at most: reading it takes some 20 µs.
const LOOK_NS: u64 = 10_000_000;

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
        state: Box::new(state) as Box<dyn Any>,
        task: 0,
        since: 0,
        message: None,
        reply: None,
    };
    let mut looked = now_ns();
    for position in 0.. {
        let Some((message, turn)) = next(&requests, &mut ends, position)? else {
            return Ok(());
        };
        run(&mut job, message, turn == Found::Mine)?;
        ends.end(position);
        let Some(mut reply) = job.reply.take() else {
            // The pool must not wait for it: ending says that something is wrong.
            return Err(crate::Error::new(
                ErrorKind::Arena(shm_core::ErrorKind::Encode),
                format!("no reply to task {} could be made", job.task),
            ));
        };
        let end = &mut ends.replies;
        // There is room: the pool never has more requests out than the lane of replies holds.
        let sent = replies.put_with(Deadline::Never, || end.try_put(&mut reply));
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

/// Waits for the next request, takes its turn, then takes it out. `None` when there is a reason to leave.
fn next(
    requests: &Channel,
    ends: &mut Ends,
    position: u64,
) -> Result<Option<(Box<Incoming>, Found)>> {
    let object = requests.object().clone();
    let there = object.lookout(0);
    let mut turn = None;
    loop {
        let message = requests.get_with(Deadline::Never, || {
            if turn.is_none() && there.glance() {
                turn = Some(ends.begin(position));
            }
            match turn {
                Some(Found::Halted) => Ok(Got::Drained),
                None if !requests.is_closed() => Ok(Got::NotNow(None)),
                _ => Ok(ends.requests.try_get()?.into()),
            }
        });
        match message {
            Ok(message) => {
                let turn = turn.unwrap_or_else(|| ends.begin(position));
                return Ok(Some((Box::new(message), turn)));
            }
            Err(error) if error.is_closed() => return Ok(None),
            // That the program hangs is for those to say who have something to do.
            Err(error) if matches!(error.kind(), ErrorKind::Deadlock(_)) => {}
            Err(error) => return Err(error),
        }
    }
}

/// Runs one request, or passes it over; leaves the reply in the job.
fn run(job: &mut Job, mut message: Box<Incoming>, begun: bool) -> Result<()> {
    let ask = message.take_prefix::<Ask>()?;
    job.task = ask.task;
    job.since = now_ns();
    if !begun {
        drop(message);
        let told = Told {
            task: job.task,
            nanos: 0,
            form: Form::Revoked,
        };
        job.reply = shm_core::message::encode(&job.arena, told).ok();
        return Ok(());
    }
    match ask.function.resolve() {
        Ok(call) => {
            job.message = Some(message);
            call(job);
        }
        Err(error) => job.reply = refusal(job, error.to_string()),
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
    use super::anonymous_memory;

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
