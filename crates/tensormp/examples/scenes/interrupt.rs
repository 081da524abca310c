//! Ctrl-C: stops the processes, and remembers that this is why they ended.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tensormp::spawn_api::Stopper;

use crate::error::{Error, Result};

/// The exit code of a program that ends because of Ctrl-C, as shells count.
pub(crate) const EXIT_CODE: u8 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
static RUNNING: Mutex<Option<Stopper>> = Mutex::new(None);

/// Handles SIGINT and SIGTERM from now on.
pub(crate) fn watch() -> Result<()> {
    let mut signals = Signals::new([SIGINT, SIGTERM])
        .map_err(|error| Error::Options(format!("signals cannot be handled: {error}")))?;
    std::thread::spawn(move || {
        for _ in signals.forever() {
            INTERRUPTED.store(true, Ordering::SeqCst);
            let running = RUNNING
                .lock()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            match &*running {
                Some(stopper) => stopper.terminate(),
                // Nothing runs that would have to be stopped first.
                None => std::process::exit(EXIT_CODE.into()),
            }
        }
    });
    Ok(())
}

/// Whether a signal came.
pub(crate) fn came() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// While this lives, a signal stops these processes.
pub(crate) struct Guard;

impl Guard {
    pub(crate) fn over(stopper: Stopper) -> Self {
        let mut running = RUNNING
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if came() {
            stopper.terminate();
        }
        *running = Some(stopper);
        Self
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        *RUNNING
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = None;
    }
}
