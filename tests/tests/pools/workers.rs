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
