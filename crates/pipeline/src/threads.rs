//! Threads of the program's own in the process of a stage, which may let go of inputs while the thread that calls the stage
//! waits.
//!
//! Who waits for an input or a slot, and holds inputs, is stuck only if nobody else in its process lets go of them. What a
//! thread will do nobody knows, so any that is not the library's may.

use std::fs;

/// Threads of the crates below, which have nothing to do with inputs.
const SERVANTS: [&str; 4] = [
    "tensormp-watch",
    "tensormp-ear",
    "device-close",
    "device-service",
];
/// How the names of a device driver's threads begin.
const DRIVER: &str = "cuda-Evt";

/// How many threads a process has, but for those that serve the library; 0 where that can't be seen.
pub(crate) fn count(pid: u32) -> u64 {
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return 0;
    };
    let names = threads.map(|thread| fs::read_to_string(thread?.path().join("comm")));
    // One that has just ended has no name.
    let others = names
        .filter_map(Result::ok)
        .map(|name| name.trim_end().to_owned())
        .filter(|name| !SERVANTS.contains(&name.as_str()) && !name.starts_with(DRIVER));
    others.count() as u64
}

/// How many of those are the library's, asked on the thread that calls the stage: that one, and the first, which waits for it.
pub(crate) fn of_library() -> u64 {
    let here = fs::read_link("/proc/thread-self").unwrap_or_default();
    let mut parts = here.iter();
    let (process, thread) = (parts.next(), parts.next_back());
    match process.is_some() && process == thread {
        true => 1,
        false => 2,
    }
}

/// Whether a process has threads of the program's own, of which `of_library` are not.
pub(crate) fn any_more(of_library: u64, count: u64) -> bool {
    count == 0 || count > of_library
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_more_is_seen() {
        let pid = std::process::id();
        let (stop, stopped) = std::sync::mpsc::channel::<()>();
        let (say, said) = std::sync::mpsc::channel();
        let thread = std::thread::spawn(move || {
            say.send((of_library(), count(pid))).unwrap();
            stopped.recv().ok();
        });
        let (of_library, with_it) = said.recv().unwrap();
        assert_eq!(of_library, 2, "it is not the first thread");
        // Others come and go, as tests do.
        assert!(with_it >= 2, "{with_it}");
        drop(stop);
        thread.join().unwrap();
        assert_eq!(count(u32::MAX), 0);
    }

    #[test]
    fn what_cannot_be_seen_may_be_there() {
        assert!(!any_more(2, 2) && !any_more(2, 1));
        assert!(any_more(2, 3) && any_more(1, 2) && any_more(2, 0));
    }
}
