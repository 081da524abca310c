//! Labelled steps at which a test can kill, stop or panic the process.
//!
//! Compiled in by the feature `failpoints` only; without it [`failpoint!`](crate::failpoint) is nothing.
//! `TENSORMP_FAILPOINT=label[:nth]=kill|stop|panic` arms one label: the `nth` time (from 1, default 1) the
//! process comes by, it sends itself SIGKILL or SIGSTOP, or panics.

/// Marks a step of a protocol. The label names the place and what was just done.
#[macro_export]
#[doc(hidden)]
macro_rules! failpoint {
    ($label:literal) => {
        #[cfg(feature = "failpoints")]
        $crate::failpoint::hit($label);
    };
}

#[cfg(feature = "failpoints")]
pub use armed::{LABELS, arm, hit};

#[cfg(feature = "failpoints")]
mod armed {
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::sync::OnceLock;

    use parking_lot::Mutex;
    use rustix::process::{Signal, getpid, kill_process};

    /// Every label in this workspace, for tests that go through them all.
    pub const LABELS: &[&str] = &[
        "block.alloc.recorded",
        "block.alloc.counted",
        "block.drop.recorded",
        "block.drop.uncounted",
        "block.drop.cleared",
        "put.claimed",
        "put.written",
        "put.giving",
        "put.published",
        "get.taken",
        "get.recorded",
        "get.released",
        "lane.put.written",
        "lane.put.giving",
        "lane.put.published",
        "lane.get.recorded",
        "lane.get.released",
        "slot.loaned",
        "slot.borrowed",
        "slot.released",
    ];

    #[derive(Clone, Debug)]
    struct Armed {
        label: String,
        nth: u64,
        action: String,
    }

    static ARMED: OnceLock<Mutex<Option<Armed>>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);

    fn armed() -> &'static Mutex<Option<Armed>> {
        ARMED.get_or_init(|| {
            Mutex::new(
                std::env::var("TENSORMP_FAILPOINT")
                    .ok()
                    .as_deref()
                    .and_then(parse),
            )
        })
    }

    fn parse(text: &str) -> Option<Armed> {
        let (place, action) = text.split_once('=')?;
        let (label, nth) = place
            .split_once(':')
            .map_or((place, Some(1)), |(label, nth)| (label, nth.parse().ok()));
        Some(Armed {
            label: label.to_owned(),
            nth: nth?,
            action: action.to_owned(),
        })
    }

    /// Arms a label from within the process, as the environment variable would; `None` disarms.
    pub fn arm(text: Option<&str>) {
        *armed().lock() = text.and_then(parse);
        PASSED.store(0, Ordering::SeqCst);
    }

    /// Called by [`failpoint!`](crate::failpoint).
    pub fn hit(label: &str) {
        let armed = armed().lock().clone();
        let Some(armed) = armed.filter(|armed| armed.label == label) else {
            return;
        };
        if PASSED.fetch_add(1, Ordering::SeqCst) + 1 != armed.nth {
            return;
        }
        match armed.action.as_str() {
            "panic" => panic!("failpoint {label}"),
            "stop" => drop(kill_process(getpid(), Signal::STOP)),
            _ => drop(kill_process(getpid(), Signal::KILL)),
        }
    }
}
