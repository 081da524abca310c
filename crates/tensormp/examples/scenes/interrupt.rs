//! Ctrl-C: stops the processes, and remembers that this is why they ended.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::error::{Error, Result};

/// The exit code of a program that ends because of Ctrl-C, as shells count.
pub(crate) const EXIT_CODE: u8 = 130;

static INTERRUPTED: AtomicBool = AtomicBool::new(false);
/// What stops the processes that run.
type Stop = Box<dyn Fn() + Send>;

static RUNNING: Mutex<Option<Stop>> = Mutex::new(None);

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
                Some(stop) => stop(),
                // Nothing runs that would have to be stopped first; what is just being started ends with this process.
                None => {
                    eprintln!("scenes: interrupted");
                    std::process::exit(EXIT_CODE.into());
                }
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
    pub(crate) fn over(stop: impl Fn() + Send + 'static) -> Self {
        let mut running = RUNNING
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if came() {
            stop();
        }
        *running = Some(Box::new(stop));
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
