//! The limits of this process, which its children inherit, and of the environment.

use std::fs;

use rustix::process::{Resource, getrlimit};

use super::Line;
use super::Status::{self, Good, Problem};
use crate::output::Size;

pub(super) fn check() -> Vec<Line> {
    vec![
        descriptors(),
        address_space(),
        file_size(),
        core_dumps(),
        strategy(),
    ]
}

/// What is set, and what it may be raised to.
fn shown(resource: Resource, of: impl Fn(u64) -> String) -> (Option<u64>, String) {
    let limit = getrlimit(resource);
    let text = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), &of);
    let found = format!(
        "{} (hard limit: {})",
        text(limit.current),
        text(limit.maximum)
    );
    (limit.current, found)
}

fn bytes(number: u64) -> String {
    Size(number).to_string()
}

fn descriptors() -> Line {
    let (limit, found) = shown(Resource::Nofile, |number| number.to_string());
    Line::new(
        "file descriptors (ulimit -n)",
        Status::note_unless(limit.is_none_or(|limit| limit >= 256)),
        found,
        "An arena takes two, however many tensors there are; a program also takes some for each process that it starts or watches.",
    )
    .change("`ulimit -n 4096`, or LimitNOFILE of the service")
}

fn address_space() -> Line {
    let (limit, found) = shown(Resource::As, bytes);
    Line::new(
        "address space (ulimit -v)",
        Status::note_unless(limit.is_none()),
        found,
        "An arena reserves 64 GiB or twice the machine's memory, and less where that is not to be had; reserving takes no memory.",
    )
    .change("`ulimit -v unlimited`, or make arenas with `Arena::builder().capacity(…)`")
}

fn file_size() -> Line {
    let (limit, found) = shown(Resource::Fsize, bytes);
    Line::new(
        "file size (ulimit -f)",
        Status::note_unless(limit.is_none()),
        found,
        "An arena is one file, also where it is memory only, so it is made no larger than this.",
    )
    .change("`ulimit -f unlimited`, or make arenas with `Arena::builder().capacity(…)`")
}

fn core_dumps() -> Line {
    let (_, mut found) = shown(Resource::Core, bytes);
    if let Ok(pattern) = fs::read_to_string("/proc/sys/kernel/core_pattern") {
        found = format!("{found}; kernel.core_pattern is {:?}", pattern.trim_end());
    }
    Line::new(
        "core dumps (ulimit -c)",
        Good,
        found,
        "Arenas are left out of core dumps, so tensors are not in them and they stay small.",
    )
    .change("`ulimit -c unlimited` for dumps of everything else, `ulimit -c 0` for none")
}

fn strategy() -> Line {
    let (status, found) = match shm_core::sharing_strategy() {
        Ok(strategy) => (Good, strategy.to_string()),
        Err(error) => (Problem, error.to_string()),
    };
    Line::new(
        "sharing strategy (TENSORMP_STRATEGY)",
        status,
        found,
        "How arenas are made that a program does not choose a strategy for.",
    )
    .change("set TENSORMP_STRATEGY to one of those, or unset it for file_descriptor")
}
