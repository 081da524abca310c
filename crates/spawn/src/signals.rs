//! Signals: a worker starts with none blocked and none of the usual ones ignored, whatever its host does; and a program
//! that wants its workers to end in peace when it is told to end keeps a [`Signals`].

#![allow(unsafe_code)]

use std::mem::MaybeUninit;
use std::ptr::{null, null_mut};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::thread::{self, JoinHandle};

use libc::{SIG_DFL, SIG_IGN, SIG_SETMASK, SIGCHLD, SIGINT, SIGQUIT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator;

use crate::death::signal_name;
use crate::desk;
use crate::error::{Error, ErrorKind, Result};

/// What a program is told to end by.
const ENDING: [i32; 2] = [SIGINT, SIGTERM];

/// Undoes what survives an exec: the mask of the thread that started this process, and what the host ignores. With
/// SIGTERM blocked or ignored a worker could be stopped only by SIGKILL, and with SIGCHLD ignored the system would
/// forget how the worker's own children ended. SIGHUP stays as it is, for `nohup`.
pub(crate) fn reset() {
    for signal in [SIGINT, SIGQUIT, SIGTERM, SIGCHLD] {
        let mut now = MaybeUninit::<libc::sigaction>::zeroed();
        // SAFETY: no new action is given, and the pointer is valid for writing the present one.
        if unsafe { libc::sigaction(signal, null(), now.as_mut_ptr()) } != 0 {
            continue;
        }
        // SAFETY: all zeros is a valid value of this struct, and the call has filled it.
        let now = unsafe { now.assume_init() };
        if now.sa_sigaction == SIG_IGN {
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

/// Hands SIGINT and SIGTERM of this program on to its workers, as long as it is kept; made by [`Signals::forward`].
///
/// Without it a signal does to the program what it always does, which for these two is to end it at once, and its
/// workers are ended by the system (SIGKILL). That leaves no orphan and prints nothing, and is right for most. A
/// program whose workers have something to bring to an end keeps this guard: at the first signal all contexts of the
/// program are stopped as by [`terminate`](crate::SpawnContext::terminate) (SIGTERM, grace, SIGKILL), `join` says
/// [`Interrupted`](ErrorKind::Interrupted), and the program ends as it likes; at the second signal the workers are
/// killed; at the third the program ends as if there were no guard.
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
    shared: Arc<Shared>,
    handle: iterator::Handle,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    received: AtomicI32,
    /// The default of a signal is done as if nobody handled it.
    released: Arc<AtomicBool>,
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
                "SIGINT and SIGTERM cannot be handed on to workers",
                error,
            )
        };
        let shared = Arc::new(Shared::default());
        for signal in ENDING {
            flag::register_conditional_default(signal, Arc::clone(&shared.released))
                .map_err(failed)?;
        }
        let mut signals = iterator::Signals::new(ENDING).map_err(failed)?;
        let handle = signals.handle();
        let seen = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("signals".to_owned())
            .spawn(move || {
                let mut count = 0;
                for signal in &mut signals {
                    count += 1;
                    // Pairs with the load in `received`.
                    seen.received.store(signal, Ordering::Release);
                    tracing::info!(signal = %signal_name(signal), "stopping all workers");
                    desk::stop_all(count > 1);
                    if count > 1 {
                        // Read by the handler of the next signal, in whatever thread.
                        seen.released.store(true, Ordering::SeqCst);
                    }
                }
            })
            .map_err(failed)?;
        Ok(Signals {
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
}

impl Drop for Signals {
    fn drop(&mut self) {
        // The handlers stay, and do from now on what the system would do without them.
        self.shared.released.store(true, Ordering::SeqCst);
        self.handle.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
