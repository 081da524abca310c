//! Starting a process: from the call to its function's result, with the process waited for.
//!
//! Side A starts them, side B has nothing to do. The floor is this same program run again with nothing done in it,
//! ended, and waited for. Both may use all CPUs, since a process that starts another has more than one in use.

use std::process::Command;
use std::time::Instant;

use rustix::thread::{CpuSet, sched_setaffinity};
use spawn::StartMethod;

use super::peer::{self, Program};
use super::subject::{Connection, End, Link, Side, Subject};
use crate::Result;

/// The argument with which this program ends at once.
pub(crate) const NOTHING: &str = "--nothing";

/// What a large parent has touched, as far as there is room.
const LARGE: u64 = 8 << 30;

/// Samples in a batch.
const BATCH: usize = 20;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Way {
    /// This program run again, ended, waited for.
    Again,
    Method(StartMethod),
}

/// A way to start processes, from a parent that has touched much memory or not.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Start {
    pub(crate) way: Way,
    pub(crate) large: bool,
}

impl Subject for Start {
    fn name(&self) -> String {
        let way = match self.way {
            Way::Again => "run again".to_owned(),
            Way::Method(method) => method.to_string(),
        };
        if self.large {
            format!("{way} 8GiB")
        } else {
            way
        }
    }

    fn metric(&self) -> &'static str {
        "start_to_joined_ns"
    }

    fn batch(&self) -> usize {
        BATCH
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(Vec::new(), Vec::new()))
    }

    fn open(&self, side: Side, _: Link) -> Result<Box<dyn End>> {
        if side == Side::B {
            return Ok(Box::new(Idle));
        }
        unpin()?;
        let touched = if self.large { touch()? } else { Vec::new() };
        Ok(Box::new(Starter {
            way: self.way,
            _touched: touched,
        }))
    }
}

/// The side that has nothing to do.
struct Idle;

impl End for Idle {
    fn run(&mut self, _: usize) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }
}

struct Starter {
    way: Way,
    /// Only to be there.
    _touched: Vec<u8>,
}

fn double(_rank: usize, x: u64) -> std::result::Result<u64, String> {
    Ok(2 * x)
}

impl End for Starter {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            let start = Instant::now();
            match self.way {
                Way::Again => {
                    let status = Command::new("/proc/self/exe").arg(NOTHING).status()?;
                    if !status.success() {
                        return Err(format!("running this program again: {status}").into());
                    }
                }
                Way::Method(method) => {
                    let mut context = spawn::builder().start_method(method).spawn(double, 21, 1)?;
                    if context.join()? != [42] {
                        return Err("a process did not double 21".into());
                    }
                }
            }
            taken.push(u64::try_from(start.elapsed().as_nanos())?);
        }
        Ok(taken)
    }
}

/// Lets this process use all CPUs that it may.
pub(crate) fn unpin() -> Result<()> {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    Ok(sched_setaffinity(None, &all)?)
}

/// Memory of which each page is in use: as much as wanted, or what three quarters of the free memory allow.
fn touch() -> Result<Vec<u8>> {
    let info = std::fs::read_to_string("/proc/meminfo")?;
    let free = info
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))
        .and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok())
        .ok_or("/proc/meminfo does not say how much memory is free")?;
    let bytes = LARGE.min(free * 1024 / 4 * 3);
    if bytes < LARGE {
        eprintln!(
            "there is room for {} MiB only: that much is touched",
            bytes >> 20
        );
    }
    let mut touched = vec![0_u8; usize::try_from(bytes)?];
    touched.iter_mut().step_by(4096).for_each(|byte| *byte = 1);
    Ok(touched)
}

/// Starting a process, or calling a pool, by another crate, in a program of its own, which no other build needs.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Peer {
    /// What it is called, and ordered by.
    pub(crate) order: &'static str,
    pub(crate) name: &'static str,
    /// What a time is called.
    pub(crate) metric: &'static str,
}

impl Subject for Peer {
    fn name(&self) -> String {
        self.name.to_owned()
    }

    fn metric(&self) -> &'static str {
        self.metric
    }

    fn batch(&self) -> usize {
        BATCH
    }

    fn prepare(&self) -> std::result::Result<(), String> {
        peer::build("procspawn")
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(Vec::new(), Vec::new()))
    }

    fn open(&self, side: Side, _: Link) -> Result<Box<dyn End>> {
        if side == Side::B {
            return Ok(Box::new(Idle));
        }
        unpin()?;
        Ok(Box::new(Ordered {
            order: self.order,
            program: Program::start(peer::program("procspawn"))?,
        }))
    }
}

/// The peer's program, and what it is told to do.
struct Ordered {
    order: &'static str,
    program: Program,
}

impl End for Ordered {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let times = self.program.order(&format!("{} {samples}", self.order))?;
        if times.len() != samples {
            return Err(format!("the peer gave {} of {samples} times", times.len()).into());
        }
        Ok(times)
    }
}
