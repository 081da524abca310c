//! One of the two processes of a case: the benchmark's own program, started again.
//!
//! It pins itself, then does what it is ordered to until the benchmark's process is gone.

use std::io::Write;
use std::os::fd::AsFd;

use rustix::process::{Signal, getppid, set_parent_process_death_signal};

use super::control::{self, Answer, Order};
use super::subject::{End, Link, Side};
use super::{catalogue, machine};
use crate::Result;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[arg(long)]
    side: Side,
    #[arg(long)]
    cpu: usize,
    /// The benchmark's process.
    #[arg(long)]
    parent: i32,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // An end may spin, so nothing else would stop it when the benchmark is killed. If that happened already, stop now.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    if getppid().is_none_or(|parent| parent.as_raw_nonzero().get() != args.parent) {
        return Ok(());
    }
    let pinned = machine::pin_to(args.cpu);
    let mut ends: Vec<Box<dyn End>> = Vec::new();
    let stdin = std::io::stdin();
    while let Some((order, descriptors)) = control::receive(stdin.as_fd())? {
        let done = match &pinned {
            Ok(()) => obey(args.side, &mut ends, order, descriptors),
            Err(error) => Err(error.to_string().into()),
        };
        let answer = done.map_or_else(|error| Answer::Failed(error.to_string()), Answer::Done);
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        std::io::stdout().write_all(&line)?;
        std::io::stdout().flush()?;
    }
    Ok(())
}

fn obey(
    side: Side,
    ends: &mut Vec<Box<dyn End>>,
    order: Order,
    descriptors: Vec<std::os::fd::OwnedFd>,
) -> Result<Vec<u64>> {
    match order {
        Order::Open { subject, words } => {
            let found = catalogue::find(&subject)
                .ok_or_else(|| format!("there is no subject called {subject}"))?;
            ends.push(found.open(side, Link { descriptors, words })?);
            Ok(Vec::new())
        }
        Order::Run { end, samples } => {
            let end = ends
                .get_mut(end)
                .ok_or_else(|| format!("there is no end {end}"))?;
            end.run(samples)
        }
    }
}
