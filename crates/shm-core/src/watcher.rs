//! One thread per process and arena that notices the death of other participants and reaps them.
//!
//! It polls a pidfd for every row it can see, which works for processes that are no children of ours, and looks
//! for new rows twice a second. Where no pidfd is to be had (a low descriptor limit, another pid namespace) the
//! same look finds the dead. It holds the arena weakly, so it never keeps one alive.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::arena::{Arena, Inner};
use crate::cells::Owner;
use crate::participant::liveness::Verdict;
use crate::participant::table::rows;
use crate::reap;

/// How long it takes at most to notice a new participant, or the death of one without a pidfd.
const LOOK: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};

/// Ends the thread when it is dropped.
#[derive(Debug)]
pub(crate) struct Watcher {
    stop: Arc<OwnedFd>,
}

impl Watcher {
    /// Starts the thread. Without one (no thread to be had) waits still look at participants themselves.
    pub(crate) fn start(arena: &Arena) -> Option<Self> {
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok()?);
        let inner = Arc::downgrade(&arena.0);
        let told = Arc::clone(&stop);
        std::thread::Builder::new()
            .name("tensormp-watch".into())
            .stack_size(256 << 10)
            .spawn(move || watch(&inner, &told))
            .inspect_err(|error| tracing::warn!(%error, "no thread to watch other participants; their death is noticed later"))
            .ok()?;
        Some(Self { stop })
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // A full counter cannot be: this is the one write.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }
}

fn watch(inner: &Weak<Inner>, stop: &OwnedFd) {
    let mut pidfds: HashMap<Owner, OwnedFd> = HashMap::new();
    loop {
        {
            let Some(inner) = inner.upgrade() else { return };
            let arena = Arena(inner);
            look(&arena, &mut pidfds);
            // Dropping what may be the last reference here would join nothing: the watcher only gets a signal.
        }
        let mut fds: Vec<PollFd<'_>> = vec![PollFd::new(stop, PollFlags::IN)];
        fds.extend(
            pidfds
                .values()
                .map(|fd| PollFd::from_borrowed_fd(fd.as_fd(), PollFlags::IN)),
        );
        let _ = poll(&mut fds, Some(&LOOK));
        if !fds[0].revents().is_empty() {
            return;
        }
    }
}

/// Reaps the dead, and keeps a pidfd for each of the living.
fn look(arena: &Arena, pidfds: &mut HashMap<Owner, OwnedFd>) {
    let mut present = Vec::new();
    for row in rows(arena.segment()) {
        let Some((owner, state, verdict)) = reap::verdict(arena, row) else {
            continue;
        };
        if owner == arena.me() {
            continue;
        }
        if verdict == Verdict::Dead {
            arena.bury(owner);
            continue;
        }
        present.push(owner);
        if !pidfds.contains_key(&owner)
            && let Some(pid) = Pid::from_raw(state.pid as i32)
            && let Ok(fd) = pidfd_open(pid, PidfdFlags::empty())
        {
            // Judged again with the pidfd in hand: if the pid was reused in between, the row is dead.
            pidfds.insert(owner, fd);
        }
    }
    pidfds.retain(|owner, _| present.contains(owner));
}
