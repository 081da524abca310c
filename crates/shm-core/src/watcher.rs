//! One thread per process and arena that notices the death of other participants and reaps them.
//!
//! It polls a pidfd for every row it can see, which works for processes that are no children of ours, and looks
//! for new rows, and whether somebody lacks memory, twice a second. Where no pidfd is to be had (a low descriptor limit, another pid namespace) the
//! same look finds the dead. It holds the arena weakly, so it never keeps one alive.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Weak};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use crate::arena::{Arena, Inner};
use crate::cells::Owner;
use crate::deadlock::Servant;
use crate::descriptor::apart;
use crate::participant::liveness::Verdict;
use crate::participant::table::{Life, rows};
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
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.and_then(apart).ok()?);
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
    let _serving = Servant::enter();
    let mut pidfds: HashMap<Owner, OwnedFd> = HashMap::new();
    loop {
        {
            let Some(inner) = inner.upgrade() else { return };
            let arena = Arena(inner);
            look(&arena, &mut pidfds);
            arena.heap().answer(arena.segment());
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
        // Whose pidfd is ready is judged by the next look, and polled no more: its row may stay for a while (another
        // process is reaping it), and a poll that is always ready would spin.
        let ended: Vec<bool> = fds[1..].iter().map(|fd| !fd.revents().is_empty()).collect();
        drop(fds);
        let mut ended = ended.into_iter();
        pidfds.retain(|_, _| !ended.next().unwrap_or(false));
    }
}

/// Reaps the dead, and keeps a pidfd for each of the living.
fn look(arena: &Arena, pidfds: &mut HashMap<Owner, OwnedFd>) {
    let mut present = Vec::new();
    for row in rows(arena.segment()) {
        // A pidfd that is not ready says all there is to say, at no cost.
        if let Some((owner, _)) = row.occupant()
            && (owner == arena.me() || pidfds.contains_key(&owner))
        {
            present.push(owner);
            continue;
        }
        let Some((owner, state, verdict)) = reap::verdict(arena, row) else {
            continue;
        };
        if verdict == Verdict::Dead {
            arena.bury_for_certain(owner);
            continue;
        }
        // Judged again with the pidfd in hand: who is alive after it was opened was alive when it was, so the pidfd
        // is of that process. A row that is still JOINING has no identity to judge by.
        if verdict == Verdict::Alive
            && state.life == Life::Alive
            && let Some(pid) = i32::try_from(state.pid).ok().and_then(Pid::from_raw)
            && let Ok(fd) = pidfd_open(pid, PidfdFlags::empty())
            && reap::verdict(arena, row)
                .is_some_and(|(again, _, verdict)| again == owner && verdict == Verdict::Alive)
            && reap::is_of_our_namespace(row)
        {
            present.push(owner);
            pidfds.insert(owner, fd);
        }
    }
    pidfds.retain(|owner, _| present.contains(owner));
}
