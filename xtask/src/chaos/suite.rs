//! What a suite is: what its processes do, and what has to be so at the end of a round. A new suite is a file with an
//! implementation of [`Suite`] and a line in [`Name`].

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::time::Duration;

use shm_core::Arena;

use super::control::Control;
use super::crew::End;
use super::killer::Aim;
use super::receipts::{Pen, Receipts};
use super::{cuda, memory, pipeline, pool, queue, spawning};
use crate::Result;

/// The suites there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Name {
    /// Tensors of all kinds, sent every way there is.
    Memory,
    /// Messages through one queue and through lanes, each accounted for.
    Queue,
    /// Tasks in pools whose workers are killed, each accounted for.
    Pool,
    /// Pipelines whose stages are killed, replaced or not, each input accounted for.
    Pipeline,
    /// Device tensors through queues, on the emulated driver.
    Cuda,
    /// Parents and children, started by each method, nested too.
    Spawn,
}

impl Name {
    pub(crate) fn suite(self) -> &'static dyn Suite {
        match self {
            Self::Memory => &memory::Memory,
            Self::Queue => &queue::Queues,
            Self::Pool => &pool::Pools,
            Self::Pipeline => &pipeline::Pipelines,
            Self::Cuda => &cuda::Cuda,
            Self::Spawn => &spawning::Spawning,
        }
    }
}

/// What a process of a crew is told on its command line.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Part {
    #[arg(long)]
    pub(crate) suite: Name,
    /// Its place in the crew.
    #[arg(long)]
    pub(crate) slot: usize,
    /// Its number among all processes of the round.
    #[arg(long)]
    pub(crate) life: u64,
    #[arg(long)]
    pub(crate) seed: u64,
    /// The arena's file, if it has a name; else it is the standard input.
    #[arg(long)]
    pub(crate) arena: Option<PathBuf>,
    /// Whether it only waits for the end of its input, and leaves.
    #[arg(long)]
    pub(crate) leaves: bool,
    /// What the suite tells it.
    #[arg(long, value_delimiter = ',')]
    pub(crate) words: Vec<u64>,
    /// The process that runs the round.
    #[arg(long)]
    pub(crate) parent: i32,
}

/// A process at work: where it is and what it was told.
#[derive(Debug)]
pub(crate) struct Worker {
    pub(crate) arena: Arena,
    pub(crate) part: Part,
    pub(crate) control: Control,
    pub(crate) pen: Pen,
    pub(crate) rng: fastrand::Rng,
}

/// What goes on in a round.
pub(crate) trait Suite: Sync {
    fn name(&self) -> &'static str;

    /// How many processes work at a time.
    fn crew(&self) -> usize;

    /// What its processes count, beside kills.
    fn counts(&self) -> &'static str {
        "messages"
    }

    /// The mean time between two blows from outside.
    fn pause(&self) -> Duration {
        Duration::from_millis(12)
    }

    /// Beginnings of the labels that its processes come by.
    fn labels(&self) -> &'static [&'static str];

    /// Which of its processes the labels are for.
    fn aim(&self) -> Aim {
        Aim::AtMember
    }

    /// Makes what the processes of a round find in the arena.
    fn open(&self, arena: &Arena, rng: fastrand::Rng) -> Result<Box<dyn Scene>>;

    /// What a process does until it is told to stop, or killed.
    fn work(&self, worker: Worker) -> Result<()>;
}

/// A round as the process that runs it sees it.
pub(crate) trait Scene {
    /// Whether nobody in this place is to be killed in this round.
    fn spares(&self, _slot: usize) -> bool {
        false
    }

    /// A process is about to start in this place; what to tell it.
    fn start(&mut self, slot: usize, life: u64) -> Result<Vec<u64>>;

    /// It has ended, by itself or killed.
    fn ended(&mut self, _slot: usize, _life: u64, _end: &End) {}

    /// The processes were told to stop, and these are still there. Called again and again.
    fn wind_down(&mut self, _running: &[usize]) -> Result<()> {
        Ok(())
    }

    /// The processes were told to stop, and those that are still there wait for one that is not: where it has to start again.
    fn missed(&self, _running: &[usize]) -> Option<usize> {
        None
    }

    /// Process groups that processes of this round noted, in which nobody may be left.
    fn groups(&self, _receipts: &Receipts) -> Result<BTreeSet<u32>> {
        Ok(BTreeSet::new())
    }

    /// All have ended. Looks at what there is and says what is wrong with it; gives back everything it holds.
    fn check(self: Box<Self>, arena: &Arena, receipts: &Receipts) -> Result<Vec<String>>;
}
