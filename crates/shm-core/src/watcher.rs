//! One thread per process and arena that notices the death of other participants and reaps them.
//!
//! It polls a pidfd for every row it can see, which works for processes that are no children of ours, and looks
//! for new rows, and whether somebody lacks memory, twice a second. Where no pidfd is to be had (a low descriptor limit, another pid namespace) the
//! same look finds the dead.
//!
//! It holds the arena weakly while it sleeps. While it looks it holds a handle like any other, which would make it the one
//! that leaves the arena, a little later, if the program dropped its last handle meanwhile. So whoever drops the last one
//! but the watcher's waits for the end of the look ([`Gate`]): when the drop returns, this process has left.

use core::cell::Cell;
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Condvar, Mutex};
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

/// How long the eldest participant has to bury a dead one before the others do.
///
/// Who dies while it buries may leak a count, and those who die together are mostly younger ones: the processes that a
/// program stops because one of them failed, or all at once, would die burying each other.
const ELDEST_FIRST: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// The watcher of an arena, once one could be started.
#[derive(Debug, Default)]
pub(crate) struct Watching {
    started: OnceLock<Watcher>,
    /// Whether it was tried in vain.
    refused: Mutex<bool>,
}

impl Watching {
    /// Starts the watcher, if it does not run yet. What a process lacks at one moment it may have later, so whoever waits asks
    /// for it again and again.
    #[inline]
    pub(crate) fn begin(&self, arena: &Arena) {
        if self.started.get().is_none() {
            self.start(arena);
        }
    }

    #[cold]
    fn start(&self, arena: &Arena) {
        // Not waited for: another thread starts it, or a bare fork was made while one did.
        let Some(mut refused) = self.refused.try_lock() else {
            return;
        };
        if self.started.get().is_some() || arena.is_forked() {
            return;
        }
        match Watcher::start(arena, !*refused) {
            Some(watcher) => *refused = self.started.set(watcher).is_err(),
            None => *refused = true,
        }
    }

    /// In a bare fork: the eventfd behind it is the parent's as well, and writing to it would end the parent's thread.
    pub(crate) fn forget(&mut self) {
        core::mem::forget(self.started.take());
    }

    /// Ends it, as SIGKILL ends all threads.
    #[cfg(test)]
    pub(crate) fn end(&self) {
        if let Some(watcher) = self.started.get() {
            watcher.end();
        }
    }
}

/// Ends the thread when it is dropped.
#[derive(Debug)]
struct Watcher {
    stop: Arc<OwnedFd>,
}

impl Watcher {
    /// Starts the thread. Without one (no thread to be had) waits still look at participants themselves; it is told `aloud`.
    fn start(arena: &Arena, aloud: bool) -> Option<Self> {
        let stop = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        let stop = Arc::new(stop.and_then(apart).ok()?);
        let inner = Arc::downgrade(&arena.0);
        let gate = Arc::clone(&arena.0.gate);
        let told = Arc::clone(&stop);
        let me = arena.me();
        std::thread::Builder::new()
            .name("tensormp-watch".into())
            .stack_size(256 << 10)
            .spawn(move || watch(me, &inner, &gate, &told))
            .inspect_err(|error| {
                if aloud {
                    crate::say!(warn, %error, "no thread to watch other participants; their death is noticed later");
                }
            })
            .ok()?;
        Some(Self { stop })
    }
}

#[cfg(test)]
impl Watcher {
    /// Ends the thread and waits for that.
    fn end(&self) {
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        while Arc::strong_count(&self.stop) > 1 {
            std::thread::yield_now();
        }
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // A full counter cannot be: this is the one write.
        let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
    }
}

thread_local! {
    /// Whether this is the thread of a watcher.
    static WATCHES: Cell<bool> = const { Cell::new(false) };
}

/// Keeps the looks of the watcher and the leaving of this process apart.
///
/// Two threads that drop the last two handles at the same instant, in the middle of a look, may each take the other's for
/// one that stays; then it is the watcher that leaves, when its look is over.
#[derive(Debug, Default)]
pub(crate) struct Gate {
    looking: AtomicBool,
    /// Handles of the watcher.
    own: AtomicUsize,
    lock: Mutex<()>,
    over: Condvar,
}

impl Gate {
    /// Whether the watcher holds a handle. A hint: who sees it late is a thread of which another will be the last.
    #[inline]
    pub(crate) fn is_looking(&self) -> bool {
        self.looking.load(Ordering::Relaxed)
    }

    /// A handle was cloned during a look.
    #[cold]
    pub(crate) fn cloned(&self) {
        if WATCHES.get() {
            self.own.fetch_add(1, Ordering::AcqRel);
        }
    }

    /// A handle is about to be dropped during a look.
    #[cold]
    pub(crate) fn dropped(arena: &Arena) {
        // In a fork there is no watcher that could end its look.
        if arena.is_forked() {
            return;
        }
        let gate = &arena.0.gate;
        if WATCHES.get() {
            // One that another thread made may be dropped here, too: that takes none of the watcher's own away.
            let fewer = |own: usize| (own > 1).then(|| own - 1);
            let _ = gate
                .own
                .fetch_update(Ordering::AcqRel, Ordering::Acquire, fewer);
            return;
        }
        let is_last =
            || Arc::strong_count(&arena.0) <= gate.own.load(Ordering::Acquire).wrapping_add(1);
        if is_last() {
            let mut locked = gate.lock.lock();
            while gate.is_looking() && is_last() {
                gate.over.wait(&mut locked);
            }
        }
    }

    /// Does something with a handle that the program does not have to wait for unless it drops its last one.
    fn look(self: &Arc<Self>, inner: &Weak<Inner>, act: impl FnOnce(&Arena)) -> bool {
        self.own.store(1, Ordering::Release);
        self.looking.store(true, Ordering::Release);
        let arena = inner.upgrade().map(Arena);
        let is_there = arena.is_some();
        if let Some(arena) = arena {
            act(&arena);
            // Counted until the look is over, also when the handle is gone: whoever comes in between waits.
            self.own.fetch_add(1, Ordering::AcqRel);
        }
        // After the handle is gone: whoever waited drops the last one then.
        let locked = self.lock.lock();
        self.looking.store(false, Ordering::Release);
        drop(locked);
        self.over.notify_all();
        is_there
    }
}

fn watch(me: Owner, inner: &Weak<Inner>, gate: &Arc<Gate>, stop: &OwnedFd) {
    WATCHES.set(true);
    let _serving = Servant::enter();
    let mut pidfds: HashMap<Owner, OwnedFd> = HashMap::new();
    loop {
        let is_there = gate.look(inner, |arena| {
            look(arena, &mut pidfds);
            arena.heap().answer(arena.segment());
            arena.0.looks.lock().iter().for_each(|act| act());
            // Should its handle be the last after all: dropping it joins nothing, the watcher only gets a signal.
        });
        if !is_there {
            return;
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
        let mut each = ended.iter();
        pidfds.retain(|_, _| !each.next().is_some_and(|&ended| ended));
        // The living are those whose pidfds are left.
        let is_eldest = pidfds.keys().all(|other| me.row < other.row);
        if ended.contains(&true) && !is_eldest {
            let mut stop = [PollFd::new(stop, PollFlags::IN)];
            let _ = poll(&mut stop, Some(&ELDEST_FIRST));
        }
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
    // In the order of rows: of a thousand processes each looks for all others here, twice a second.
    let is_present = |owner: &Owner| {
        let at = present.binary_search_by_key(&owner.row, |one| one.row);
        at.is_ok_and(|at| present[at] == *owner)
    };
    pidfds.retain(|owner, _| is_present(owner));
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;
    use std::time::Duration;

    use parking_lot::Mutex;

    use crate::Arena;

    #[test]
    fn a_handle_that_another_thread_made_and_the_watcher_drops_holds_nobody_up() {
        static HANDED: Mutex<Vec<Arena>> = Mutex::new(Vec::new());
        static DROPPED: AtomicBool = AtomicBool::new(false);
        static GO_ON: AtomicBool = AtomicBool::new(false);
        fn drop_and_wait() {
            let handed = std::mem::take(&mut *HANDED.lock());
            if handed.is_empty() {
                return;
            }
            drop(handed);
            DROPPED.store(true, Ordering::Release);
            while !GO_ON.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let arena = Arena::builder().capacity(128 << 20).create().unwrap();
        HANDED.lock().extend((0..4).map(|_| arena.clone()));
        arena.at_each_look(drop_and_wait);
        while !DROPPED.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        // In the middle of the look, which waits for this thread in its turn.
        let (said, told) = mpsc::channel();
        let one = arena.clone();
        std::thread::spawn(move || {
            drop(one);
            said.send(()).unwrap();
        });
        let outcome = told.recv_timeout(Duration::from_secs(60));
        GO_ON.store(true, Ordering::Release);
        assert_eq!(outcome, Ok(()));
    }
}
