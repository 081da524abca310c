//! Kill real processes while they work, at random and at labelled steps, and see that nothing is wrong afterwards.
//!
//! Suites: `memory` (the default: processes allocate, fill, freeze, alias, view, send and drop tensors, through queues,
//! letterboxes and names), `queue` (producers and consumers on one queue, and lanes; who got what is written down), `pool`
//! (tasks in pools whose workers are killed; each has one answer), `pipeline` (runs whose stages are killed, with and
//! without replacement; each input is accounted for), `spawn` (parents and children, by both start methods;
//! errors name what happened, and nobody outlives a parent) and `cuda` (device tensors on the emulated driver). A suite runs in rounds of a few seconds. A round is one arena, with a name or without, and a crew of processes that work in
//! it; who is killed is replaced at once. Then the killing stops, everyone left must get on, end, and leave an arena in
//! which all contents are right, no count is too low, and none is too high once the audit has given back what kills leaked;
//! and no process of the round may be left.
//!
//! Ends with 1 on any corruption, hang, orphan, or leak that stays, with the seed and what was found. The seed chooses what each
//! process does and who is killed where; when exactly, the scheduler has a say in.

mod account;
mod child;
mod control;
mod crew;
mod cuda;
mod hang;
mod killer;
mod leaving;
mod memory;
mod orphans;
mod parents;
mod pattern;
mod pipeline;
mod pool;
mod queue;
mod receipts;
mod report;
mod roles;
mod round;
mod spawning;
mod strike;
mod suite;
mod traces;

pub(crate) use child::run as run_child;
pub(crate) use suite::Part as ChildArgs;

use std::time::{Duration, Instant};

use crate::Result;
use report::{Progress, Tally};
use suite::Name;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The suites to run, one after the other.
    #[arg(value_enum, default_value = "memory")]
    suites: Vec<Name>,
    /// How long to kill, all suites together.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// End a suite after so many kills, if that comes first.
    #[arg(long, value_name = "N")]
    kills: Option<u64>,
    /// What a run chose is chosen again; without it, something new.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// How long nobody may get on before it is called a hang, in seconds.
    #[arg(long, value_name = "N", default_value_t = 60)]
    patience: u64,
    /// One object a suite instead of text.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    // Children whose parents are killed come to this process, which sees whether they live, and waits for them.
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))?;
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let share = Duration::from_secs(args.seconds) / args.suites.len().max(1) as u32;
    let mut failed = Vec::new();
    for name in &args.suites {
        let suite = name.suite();
        let mut tally = Tally::new(suite.name(), suite.counts(), seed);
        let mut progress = Progress::start();
        let deadline = Instant::now() + share;
        let mut rng = fastrand::Rng::with_seed(seed);
        while tally.is_clean() && Instant::now() < deadline {
            let left = args.kills.map(|most| most.saturating_sub(tally.kills()));
            if left == Some(0) {
                break;
            }
            let limits = round::Limits {
                until: deadline,
                kills: left.unwrap_or(u64::MAX),
                patience: Duration::from_secs(args.patience),
            };
            let played = round::play(*name, limits, rng.fork(), &mut tally, &mut progress);
            tally.tick();
            if let Err(error) = played {
                tally.problem(format!(
                    "the process that runs the rounds was told: {error}"
                ));
            }
        }
        progress.end();
        match args.json {
            true => println!("{}", tally.json()),
            false => print!("{tally}"),
        }
        if !tally.is_clean() {
            failed.push(suite.name());
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!(
        "chaos: {} did not come through; `cargo xtask chaos {} --seed {seed}` makes the same choices",
        failed.join(" and "),
        failed.join(" ")
    )
    .into())
}
