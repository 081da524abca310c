//! Signals: a worker starts with none blocked and none of the usual ones ignored, whatever its host does; and a program
//! that wants its workers to end in peace when it is told to end keeps a [`Signals`].

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle};

use libc::{SIG_DFL, SIG_IGN, SIG_SETMASK, SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM};
use parking_lot::Mutex;
use signal_hook::flag;
use signal_hook::{iterator, low_level};

use crate::death::signal_name;
use crate::desk::{self, STACK};
use crate::error::{Error, ErrorKind, Result};
use crate::link;

/// What a program is told to end by. SIGHUP where the program does not ignore it when it makes its first guard: `nohup`
/// starts it so, for it to outlive its terminal.
fn ending() -> Vec<i32> {
    let hangup = action_at(SIGHUP).is_some_and(|action| action.sa_sigaction != SIG_IGN);
    let hangup = hangup.then_some(SIGHUP);
    [SIGINT, SIGTERM].into_iter().chain(hangup).collect()
}

/// What this process does at a signal.
fn action_at(signal: i32) -> Option<libc::sigaction> {
    let mut now = MaybeUninit::<libc::sigaction>::zeroed();
    // SAFETY: no new action is given, and the pointer is valid for writing the present one.
    if unsafe { libc::sigaction(signal, null(), now.as_mut_ptr()) } != 0 {
        return None;
    }
    // SAFETY: all zeros is a valid value of this struct, and the call has filled it.
    Some(unsafe { now.assume_init() })
}

/// Undoes what survives an exec: the mask of the thread that started this process, and what the host ignores. With
/// SIGTERM blocked or ignored a worker could be stopped only by SIGKILL, and with SIGCHLD ignored the system would
/// forget how the worker's own children ended. SIGHUP stays as it is, for `nohup`.
#[inline]
pub(crate) fn reset() {
    for signal in [SIGINT, SIGQUIT, SIGTERM, SIGCHLD] {
        if action_at(signal).is_some_and(|now| now.sa_sigaction == SIG_IGN) {
            // SAFETY: the default disposition runs no code of ours.
            unsafe { libc::signal(signal, SIG_DFL) };
        }
    }
    // Last: a signal that waits since the start must find its disposition.
    let mut set = MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is valid for writing, and the call initializes what it points to.
    unsafe { libc::sigemptyset(set.as_mut_ptr()) };
    // SAFETY: the set was initialized above; no old mask is asked for.
    unsafe { libc::pthread_sigmask(SIG_SETMASK, set.as_ptr(), null_mut()) };
}

/// What this process does at each signal, and which this thread blocks: to be put back after code of the program ran.
pub(crate) struct Dispositions {
    actions: Vec<(i32, libc::sigaction)>,
    blocked: libc::sigset_t,
}

impl std::fmt::Debug for Dispositions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "of {} signals", self.actions.len())
    }
}

impl Dispositions {
    pub(crate) fn now() -> Dispositions {
        let mut actions = Vec::new();
        for signal in 1..=libc::SIGRTMAX() {
            if let Some(action) = action_at(signal) {
                actions.push((signal, action));
            }
        }
        let mut blocked = MaybeUninit::<libc::sigset_t>::zeroed();
        // SAFETY: no new mask is given, and the pointer is valid for writing the present one.
        unsafe { libc::pthread_sigmask(SIG_SETMASK, null(), blocked.as_mut_ptr()) };
        // SAFETY: all zeros is a valid value of this set, and the call fills it.
        let blocked = unsafe { blocked.assume_init() };
        Dispositions { actions, blocked }
    }

    /// To be called by the only thread of this process.
    pub(crate) fn put_back(&self) {
        for (signal, action) in &self.actions {
            // SAFETY: the action is one that this process had, of code that is still there; no old one is asked for.
            // Those that cannot be set are as they were.
            unsafe { libc::sigaction(*signal, action, null_mut()) };
        }
        // SAFETY: the set is one that this thread had; no old one is asked for.
        unsafe { libc::pthread_sigmask(SIG_SETMASK, &raw const self.blocked, null_mut()) };
    }
}

/// Hands SIGINT, SIGTERM and SIGHUP of this program on to its workers, as long as it is kept; made by
/// [`Signals::forward`]. SIGHUP stays ignored where it is when the program makes its first guard (`nohup`). A program that
/// takes it for something else, as to read its settings again, has its workers stopped by it all the same.
///
/// Without it a signal does to the program what it always does, which for these three is to end it at once, and its
/// workers are ended by the system (SIGKILL). That leaves no orphan and prints nothing, and is right for most. A
/// program whose workers have something to bring to an end keeps this guard: at the first signal all contexts of the
/// program are stopped as by [`terminate`](crate::SpawnContext::terminate) (SIGTERM, grace, SIGKILL), `join` says
/// [`Interrupted`](ErrorKind::Interrupted), and the program ends as it likes; at the second signal the workers are
/// killed; at the third the program ends as if there were no guard. Of several guards each does this, until the last is
/// dropped. A SIGHUP that comes again insists on nothing and does not count: when a terminal goes, its shell and the system may
/// both tell of it.
///
/// ```no_run
/// # fn work(_rank: usize, _: ()) {}
/// fn main() -> spawn::Result<()> {
///     spawn::init();
///     let signals = spawn::Signals::forward()?;
///     let mut workers = spawn::spawn(work, (), 4)?;
///     match workers.join() {
///         Err(_) if signals.received().is_some() => Ok(()), // stopped on request
///         other => other.map(drop),
///     }
/// }
/// ```
#[derive(Debug)]
#[must_use = "signals are handed on only as long as this is kept"]
pub struct Signals {
    /// The process that has the thread; a bare fork of it has none.
    owner: u32,
    shared: Arc<Shared>,
    handle: iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    received: AtomicI32,
    count: AtomicU32,
}

/// All guards of this process.
#[derive(Debug)]
struct Guards {
    /// How many there are.
    count: usize,
    /// Set while the default of a signal is to be done as if nobody handled it; there since the first guard. What looks
    /// at it in the handlers cannot be taken out of them and be followed by another one: the first would still act.
    released: Option<Arc<AtomicBool>>,
    /// The signals that have handlers; none before the first guard.
    signals: Vec<i32>,
}

static GUARDS: Mutex<Guards> = Mutex::new(Guards {
    count: 0,
    released: None,
    signals: Vec::new(),
});

/// How many signals this program got since its first guard, and the last of them. Written by the handlers, in whatever
/// thread, and at once: whoever looks twice sees each that came in between, also while a guard's own thread has no turn.
static SEEN: AtomicU64 = AtomicU64::new(0);
/// How many of them were SIGHUP.
static HANGUPS: AtomicU64 = AtomicU64::new(0);
static LAST: AtomicI32 = AtomicI32::new(0);

/// Tells the handlers of a signal to count it, before anything else is done about it.
fn count(signal: i32) -> std::io::Result<()> {
    let handler = move || {
        LAST.store(signal, Ordering::Relaxed);
        if signal == SIGHUP {
            // Pairs with the load in `seen_hangups`.
            HANGUPS.fetch_add(1, Ordering::Release);
        }
        // Pairs with the load in `seen`.
        SEEN.fetch_add(1, Ordering::Release);
    };
    // SAFETY: the handler may be called at any moment; it does nothing but operations on atomics, none of which takes
    // a lock, allocates or panics.
    unsafe { low_level::register(signal, handler) }.map(drop)
}

impl Guards {
    /// The flag that the handlers look at, which are told to look if they were not yet.
    fn released(&mut self) -> std::io::Result<Arc<AtomicBool>> {
        if let Some(released) = &self.released {
            return Ok(Arc::clone(released));
        }
        let released = Arc::new(AtomicBool::new(true));
        // Before there is a handler: with one, nothing is ignored.
        let signals = ending();
        for &signal in &signals {
            count(signal)?;
            flag::register_conditional_default(signal, Arc::clone(&released))?;
        }
        self.signals = signals;
        self.released = Some(Arc::clone(&released));
        Ok(released)
    }
}

impl Signals {
    /// From now on these signals go to the workers.
    ///
    /// # Errors
    ///
    /// [`Launch`](ErrorKind::Launch) when the system gives no handler, descriptor or thread for it.
    pub fn forward() -> Result<Signals> {
        let failed = |error: std::io::Error| {
            Error::caused(
                ErrorKind::Launch,
                "SIGINT, SIGTERM and SIGHUP cannot be handed on to workers",
                error,
            )
        };
        let shared = Arc::new(Shared::default());
        let mut guards = GUARDS.lock();
        let released = guards.released().map_err(failed)?;
        let flag = Arc::clone(&released);
        let mut signals = iterator::Signals::new(&guards.signals).map_err(failed)?;
        let handle = signals.handle();
        let seen = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("signals".to_owned())
            .stack_size(STACK)
            .spawn(move || {
                let (mut count, mut hung_up) = (0, false);
                for signal in &mut signals {
                    if signal == SIGHUP && std::mem::replace(&mut hung_up, true) {
                        continue;
                    }
                    count += 1;
                    // Pairs with the load in `received`.
                    seen.received.store(signal, Ordering::Release);
                    // Pairs with the load in `count`.
                    seen.count.store(count, Ordering::Release);
                    link::say!(info, signal = %signal_name(signal), "stopping all workers");
                    desk::stop_all(count > 1);
                    if count > 1 {
                        // Read by the handler of the next signal, in whatever thread.
                        flag.store(true, Ordering::SeqCst);
                    }
                }
            })
            .map_err(failed)?;
        // From here on somebody takes them.
        guards.count += 1;
        released.store(false, Ordering::SeqCst);
        Ok(Signals {
            owner: std::process::id(),
            shared,
            handle,
            thread: Some(thread),
        })
    }

    /// The name of the last signal that came, like `SIGINT`.
    pub fn received(&self) -> Option<String> {
        // Pairs with the store in the thread.
        match self.shared.received.load(Ordering::Acquire) {
            0 => None,
            signal => Some(signal_name(signal)),
        }
    }

    /// How many SIGINT, SIGTERM and SIGHUP this program got since it made its first guard, whichever there are. What starts
    /// processes and then waits for them compares it with what it was before: a signal that came in between found no
    /// processes yet that it could have been handed on to.
    #[must_use]
    pub fn seen() -> u64 {
        // Pairs with the addition in the handler.
        SEEN.load(Ordering::Acquire)
    }

    /// How many of [these](Self::seen) were SIGHUP, of which one says as much as several. Asked after those, it has each hangup
    /// that is among them.
    #[must_use]
    pub fn seen_hangups() -> u64 {
        // Pairs with the addition in the handler.
        HANGUPS.load(Ordering::Acquire)
    }

    /// The name of the last of [these](Self::seen).
    #[must_use]
    pub fn last_seen() -> Option<String> {
        match LAST.load(Ordering::Relaxed) {
            0 => None,
            signal => Some(signal_name(signal)),
        }
    }

    /// How many came, but for a SIGHUP that came again. After the second, nothing should be waited for any more.
    #[must_use]
    pub fn count(&self) -> u32 {
        // Pairs with the store in the thread.
        self.shared.count.load(Ordering::Acquire)
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let is_copy = self.owner != std::process::id();
        // In a bare fork the lock may be that of a thread which is not there.
        let guards = if is_copy {
            GUARDS.try_lock()
        } else {
            Some(GUARDS.lock())
        };
        if let Some(mut guards) = guards {
            guards.count -= 1;
            // After the last one the handlers stay, and do what the system would do without them.
            if let Some(released) = guards.released.as_ref().filter(|_| guards.count == 0) {
                released.store(true, Ordering::SeqCst);
            }
        }
        if is_copy {
            // Neither the thread nor what wakes it is this process's own.
            std::mem::forget(self.thread.take());
            return;
        }
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
