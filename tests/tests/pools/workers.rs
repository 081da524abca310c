//! The two kinds of workers that the suite runs over.

use tensormp::mp_queue::pool::Builder;
use tensormp::prelude::*;

pub(crate) trait Workers {
    fn builder() -> Builder;

    fn pool(workers: usize) -> Pool {
        Self::builder().workers(workers).start().unwrap()
    }
}

pub(crate) enum Processes {}

pub(crate) enum Threads {}

impl Workers for Processes {
    fn builder() -> Builder {
        Pool::builder()
    }
}

impl Workers for Threads {
    fn builder() -> Builder {
        Pool::builder().threads()
    }
}

/// Waits until threads have ended that a pool had to leave alone: what they hold is given back then.
pub(crate) fn see_threads_off() {
    let is_worker = |thread: &std::fs::DirEntry| {
        std::fs::read_to_string(thread.path().join("comm"))
            .is_ok_and(|name| name.starts_with("worker."))
    };
    while std::fs::read_dir("/proc/self/task")
        .unwrap()
        .flatten()
        .any(|thread| is_worker(&thread))
    {
        std::thread::yield_now();
    }
}

/// Tests that run with either kind, from functions generic over it.
macro_rules! with_both {
    ($($name:ident),* $(,)?) => {
        &[$(
            integration_tests::Test {
                name: concat!("processes::", stringify!($name)),
                body: $name::<crate::workers::Processes>,
            },
            integration_tests::Test {
                name: concat!("threads::", stringify!($name)),
                body: $name::<crate::workers::Threads>,
            },
        )*]
    };
}

pub(crate) use with_both;
