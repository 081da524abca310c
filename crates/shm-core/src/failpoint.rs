//! Labelled steps at which a test can kill, stop or panic the process.
//!
//! Compiled into builds with debug assertions, so that plain `cargo test` has them, and into others by the feature
//! `failpoints`; elsewhere [`failpoint!`](crate::failpoint!) is a call to an empty function, so crates above need no
//! feature of their own.
//! `TENSORMP_FAILPOINT=label[:nth][@process]=kill|stop|panic` arms one label: the `nth` time (from 1, default 1) the
//! process comes by, it sends itself SIGKILL or SIGSTOP, or panics. With a name only the process of that name does,
//! counted from when it got its name.

/// Marks a step of a protocol. The label names the place and what was just done.
#[macro_export]
#[doc(hidden)]
macro_rules! failpoint {
    ($label:literal) => {
        $crate::failpoint::hit($label)
    };
}

#[cfg(any(debug_assertions, feature = "failpoints"))]
pub use armed::{LABELS, arm, hit, named};

/// Nothing, in a build without failpoints.
#[cfg(not(any(debug_assertions, feature = "failpoints")))]
#[inline(always)]
pub const fn hit(_label: &str) {}

/// Nothing, in a build without failpoints.
#[cfg(not(any(debug_assertions, feature = "failpoints")))]
#[inline(always)]
pub const fn named(_name: &str) {}

#[cfg(any(debug_assertions, feature = "failpoints"))]
mod armed {
    use core::sync::atomic::{AtomicU64, Ordering};
    use std::sync::OnceLock;
    use std::time::Duration;

    use parking_lot::RwLock;
    use rustix::process::{Signal, getpid, kill_process};

    /// Every label in this workspace, for tests that go through them all.
    pub const LABELS: &[&str] = &[
        "attach.entered",
        "attach.opened",
        "barrier.arrived",
        "block.alloc.recorded",
        "block.alloc.counted",
        "block.drop.recorded",
        "block.drop.uncounted",
        "block.drop.leaving",
        "block.drop.left",
        "block.open.counted",
        "block.open.entering",
        "block.share.counted",
        "block.share.entering",
        "chunk.claim.one",
        "chunk.pressure.unanswered",
        "chunk.run.unformatted",
        "chunk.slab.unformatted",
        "chunk.trim.unmarked",
        "doubt.held",
        "doubt.looking",
        "doubt.taken",
        "forkserver.asked",
        "forkserver.copied",
        "forkserver.found",
        "device.ask.connected",
        "device.ready.recorded",
        "device.joint.recorded",
        "device.release.claimed",
        "device.release.recorded",
        "get.recorded",
        "get.released",
        "get.taken",
        "input.unread",
        "lane.get.recorded",
        "lane.get.released",
        "lane.put.giving",
        "lane.put.published",
        "lane.put.written",
        "lease.chunk.unlisted",
        "line.acquire.claimed",
        "line.acquire.counted",
        "line.acquire.recorded",
        "mutex.locked",
        "mutex.unlocked",
        "named.alone",
        "named.hidden",
        "named.left",
        "names.counted",
        "names.locked",
        "names.one_table",
        "names.two_tables",
        "object.unborn",
        "put.claimed",
        "put.giving",
        "put.published",
        "put.written",
        "reap.begun",
        "reap.dropped",
        "reap.freed",
        "reap.leaving",
        "reap.left",
        "reap.mended",
        "reap.returned",
        "reap.settled",
        "row.joining",
        "rwlock.claimed",
        "rwlock.reading",
        "rwlock.writing",
        "semaphore.acquired",
        "slot.borrowed",
        "slot.loaned",
        "slot.released",
        "stage.brought",
        "stage.done",
        "task.counted",
    ];

    #[derive(Clone, Debug)]
    struct Armed {
        label: String,
        nth: u64,
        process: Option<String>,
        action: String,
    }

    static ARMED: OnceLock<RwLock<Option<Armed>>> = OnceLock::new();
    static PASSED: AtomicU64 = AtomicU64::new(0);
    static NAME: RwLock<String> = RwLock::new(String::new());

    fn armed() -> &'static RwLock<Option<Armed>> {
        ARMED.get_or_init(|| {
            RwLock::new(
                std::env::var("TENSORMP_FAILPOINT")
                    .ok()
                    .as_deref()
                    .and_then(parse),
            )
        })
    }

    fn parse(text: &str) -> Option<Armed> {
        let (place, action) = text.split_once('=')?;
        let (place, process) = place
            .split_once('@')
            .map_or((place, None), |(place, process)| (place, Some(process)));
        let (label, nth) = place
            .split_once(':')
            .map_or((place, Some(1)), |(label, nth)| (label, nth.parse().ok()));
        Some(Armed {
            label: label.to_owned(),
            nth: nth?,
            process: process.map(str::to_owned),
            action: action.to_owned(),
        })
    }

    /// `features.*` is every process whose name begins so.
    fn is_named(armed: &str, name: &str) -> bool {
        armed
            .strip_suffix('*')
            .map_or(armed == name, |beginning| name.starts_with(beginning))
    }

    /// Arms a label from within the process, as the environment variable would; `None` disarms.
    pub fn arm(text: Option<&str>) {
        *armed().write() = text.and_then(parse);
        PASSED.store(0, Ordering::SeqCst);
    }

    /// Told by the flight recorder what this process is called.
    pub fn named(name: &str) {
        *NAME.write() = name.to_owned();
        PASSED.store(0, Ordering::SeqCst);
    }

    /// Called by [`failpoint!`](crate::failpoint!).
    pub fn hit(label: &str) {
        let action = match &*armed().read() {
            Some(armed)
                if armed.label == label
                    && armed
                        .process
                        .as_ref()
                        .is_none_or(|process| is_named(process, &NAME.read())) =>
            {
                if PASSED.fetch_add(1, Ordering::SeqCst) + 1 != armed.nth {
                    return;
                }
                armed.action.clone()
            }
            _ => return,
        };
        match action.as_str() {
            "panic" => panic!("failpoint {label}"),
            "stop" => {
                let _ = kill_process(getpid(), Signal::STOP);
                // The signal is the process's: another thread may take it, and this one stops a moment later.
                std::thread::sleep(Duration::from_millis(300));
            }
            _ => drop(kill_process(getpid(), Signal::KILL)),
        }
    }
}
