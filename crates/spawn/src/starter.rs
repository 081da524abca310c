//! Threads that start processes for other threads that may do something else than the supervisor's.
//!
//! A process has the rights of the thread that starts it, and dies with that thread. One that is asked for by a thread
//! whose rights the supervisor's thread does not have is therefore started by neither: the thread that asks makes
//! another, which has its rights, lives as long as whoever it starts, and starts whatever is asked for with these rights.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;

use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::process::{WaitId, WaitIdOptions, waitid};

use crate::desk::{self, STACK};
use crate::link::{self, say::aside};
use crate::rights::Rights;

type Job = Box<dyn FnOnce() + Send>;

/// The way to such a thread.
#[derive(Debug)]
struct Starter {
    /// The process that it belongs to: a forked child has the memory, but not the thread.
    owner: u32,
    rights: Rights,
    jobs: Sender<Job>,
}

/// How many there may be before those are let go of whose processes have all ended: a program may have threads with ever
/// other rights, those of ever other users, say.
const STARTERS_MAX: usize = 8;

static STARTERS: Mutex<Vec<Starter>> = Mutex::new(Vec::new());

/// What becomes of what such a thread is to do.
enum Answer<T, F> {
    Done(T),
    /// All threads of the program have been given other rights since it was made, these.
    Other(F, Rights),
}

/// Does this, which starts processes, on a thread that lives as long as they do and has the rights of the calling thread, which are these.
///
/// # Errors
/// What the system answers when there has to be another thread and it gives none.
pub(crate) fn start_with<T, F>(rights: &Rights, mut start: F) -> io::Result<T>
where
    T: Send + 'static,
    F: FnOnce() -> T + Send + 'static,
{
    let owner = std::process::id();
    let mut starters = STARTERS.lock();
    let fit = |starter: &&mut Starter| starter.owner == owner && starter.rights == *rights;
    for starter in starters.iter_mut().filter(fit) {
        match starter.ask(start)? {
            Answer::Done(done) => return Ok(done),
            Answer::Other(back, now) => {
                start = back;
                starter.rights = now;
            }
        }
    }
    if starters.len() >= STARTERS_MAX {
        starters.retain(|starter| starter.owner != owner || starter.is_needed());
    }
    let (jobs, to_do) = channel();
    thread::Builder::new()
        .name("starter".to_owned())
        .stack_size(STACK)
        .spawn(move || serve(&to_do))?;
    starters.push(Starter {
        owner,
        rights: rights.clone(),
        jobs,
    });
    let asked = starters.last().map(|starter| starter.ask(start));
    match asked.transpose()? {
        Some(Answer::Done(done)) => Ok(done),
        _ => Err(io::Error::other(
            "the rights of this thread were changed by another one meanwhile",
        )),
    }
}

impl Starter {
    /// Whether it has to live on for those that it has started.
    fn is_needed(&self) -> bool {
        let (reply, answer) = sync_channel(1);
        let look = move || {
            let _ = reply.send(has_children());
        };
        let _ = self.jobs.send(Box::new(look));
        answer.recv().unwrap_or(false)
    }

    fn ask<T, F>(&self, start: F) -> io::Result<Answer<T, F>>
    where
        T: Send + 'static,
        F: FnOnce() -> T + Send + 'static,
    {
        let (reply, answer) = sync_channel(1);
        let wanted = self.rights.clone();
        let job = Box::new(move || {
            let now = Rights::now();
            let _ = reply.send(if now == wanted {
                Answer::Done(start())
            } else {
                Answer::Other(start, now)
            });
        });
        let _ = self.jobs.send(job);
        let lost = |_| io::Error::other("the thread that was to start it has ended unexpectedly");
        answer.recv().map_err(lost)
    }
}

/// Whether a process lives, or was not waited for, that the calling thread has started: it would die with the thread.
fn has_children() -> bool {
    // Of this thread alone, whatever they signal at their end.
    let own = (libc::__WNOTHREAD | libc::__WALL) as u32;
    let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    let look = look | WaitIdOptions::from_bits_retain(own);
    !matches!(waitid(WaitId::All, look), Err(Errno::CHILD))
}

/// The thread's life: until nobody is left whom it has started and there are many others, or as long as the process's.
fn serve(jobs: &Receiver<Job>) {
    let _serving = link::serve();
    // Who tells of something here, in code of the program, must not wait for this very thread.
    desk::supervise_here();
    for job in jobs {
        aside(job);
    }
}
