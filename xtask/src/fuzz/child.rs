//! The process that runs one input.

use std::io::Read;

use rustix::process::{
    Resource, Rlimit, Signal, getppid, set_parent_process_death_signal, setrlimit,
};

use super::input::{Input, Target};
use super::run::REFUSED;
use super::{ChildArgs, scene};
use crate::Result;

/// Address space: an allocation in proportion to a number from the arena does not fit.
const MEMORY: u64 = 1 << 30;

pub(crate) fn run(args: &ChildArgs) -> Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != args.parent) {
        return Ok(());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let input: Input = serde_json::from_str(&text)?;
    // The emulated driver sets addresses aside, as a driver does; what is written to counts.
    let memory = match input.target {
        Target::Device => Resource::Data,
        _ => Resource::As,
    };
    for (resource, most) in [(memory, MEMORY), (Resource::Core, 0)] {
        let limit = Rlimit {
            current: Some(most),
            maximum: Some(most),
        };
        setrlimit(resource, limit)?;
    }
    if scene::play(&input, &args.folder)? > 0 {
        std::process::exit(REFUSED.into());
    }
    Ok(())
}
