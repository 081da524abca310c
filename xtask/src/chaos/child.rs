//! A process of a crew: it comes into the arena and does what its suite says.

use std::os::fd::AsFd;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use shm_core::Arena;

use super::control::Control;
use super::leaving;
use super::pattern::{CORRUPT, Corrupt};
use super::receipts::Pen;
use super::suite::{Part, Worker};
use crate::Result;

pub(crate) fn run(part: &Part) -> Result<()> {
    // It may wait for ever, so nothing else would stop it when the round is killed. If that happened already, stop now.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != part.parent) {
        return Ok(());
    }
    let done = work(part.clone());
    match done {
        Ok(()) => Ok(()),
        Err(error) => {
            eprintln!("process {} in place {}: {error}", part.life, part.slot);
            let code = if error.is::<Corrupt>() { CORRUPT } else { 1 };
            std::process::exit(code.into());
        }
    }
}

fn work(part: Part) -> Result<()> {
    let mut rng = fastrand::Rng::with_seed(part.seed);
    let arena = match &part.arena {
        Some(place) => Arena::attach(place)?,
        None => Arena::join(std::io::stdin().as_fd().try_clone_to_owned()?)?,
    };
    if part.leaves {
        leaving::leave(arena);
        return Ok(());
    }
    let recorder = arena.recorder();
    recorder.set_name(&format!("{}.{}", part.slot, part.life));
    recorder.set_task("opening the control words");
    if rng.bool() {
        arena.watch();
    }
    let control = Control::open(&arena)?;
    let suite = part.suite.suite();
    suite.work(Worker {
        arena,
        control,
        pen: Pen,
        rng,
        part,
    })
}
