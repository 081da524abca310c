//! Feed arenas that a hostile hand has changed to everything that reads them: each must be an error, never a crash.
//!
//! Targets: `attach` (the file of an arena, cut, stretched or changed), `message` (messages changed in their cells and
//! blocks), `names` (the table of published names and what it leads to), `structures` (any word of the arena, once or
//! again and again while others use it) and `device` (what processes say to one another of tensors on devices). An input is a valid arena, made anew each time, and a few changes to it; it runs
//! in a process of its own, which may crash, hang or ask for too much memory without harm to the others. What does is
//! kept as a small file; those from which something was learnt live in tests/inputs/fuzz and are run again by a test.

mod child;
mod device;
mod input;
mod pokes;
mod run;
mod scene;
mod value;

pub(crate) use child::run as run_child;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use crate::workspace::root;
use crate::{Error, Result};
use input::{Input, Target};
use run::Outcome;

/// A target is left after so many inputs that did harm: more of them say little more.
const ENOUGH: usize = 5;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The targets; without any, all of them.
    #[arg(value_enum)]
    targets: Vec<Target>,
    /// How long to go on, all targets together.
    #[arg(long, value_name = "N", default_value_t = 60)]
    seconds: u64,
    /// End a target after so many inputs, if that comes first.
    #[arg(long, value_name = "N")]
    inputs: Option<u64>,
    /// What a run tried is tried again; without it, something new.
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
    /// Run these kept inputs instead.
    #[arg(long, value_name = "FILE", num_args = 1..)]
    replay: Vec<PathBuf>,
}

/// What an input to `fuzz-child` is read from: its standard input.
#[derive(Debug, clap::Args)]
pub(crate) struct ChildArgs {
    /// The process that runs it.
    #[arg(long)]
    pub(crate) parent: i32,
    /// Where it may make files.
    #[arg(long)]
    pub(crate) folder: PathBuf,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    if !args.replay.is_empty() {
        return replay(&args.replay);
    }
    let seed = args.seed.unwrap_or_else(|| fastrand::u64(..));
    let targets = match args.targets.is_empty() {
        true => Target::all(),
        false => args.targets.clone(),
    };
    let share = Duration::from_secs(args.seconds) / targets.len().max(1) as u32;
    let mut kept = Vec::new();
    for target in targets {
        // Of its own for each target, so that one alone tries the same.
        let mut rng = fastrand::Rng::with_seed(seed);
        let end = Instant::now() + share;
        let (mut tried, mut refused, mut found) = (0_u64, 0_u64, Vec::new());
        while Instant::now() < end
            && found.len() < ENOUGH
            && args.inputs.is_none_or(|most| tried < most)
        {
            let input = Input::random(target, &mut rng);
            tried += 1;
            match run::run(&input)? {
                Outcome::Well { refused: some } => refused += u64::from(some.is_some()),
                Outcome::Harm(what) => found.push((keep(&input)?, what)),
            }
        }
        println!(
            "fuzz {}: seed {seed}, {tried} inputs, {refused} of them refused somewhere, {} did harm",
            target.name(),
            found.len()
        );
        for (path, what) in &found {
            println!("  {}: {what}", path.display());
        }
        kept.extend(found);
    }
    verdict(kept.len())
}

fn verdict(harmful: usize) -> Result<()> {
    match harmful {
        0 => Ok(()),
        count => Err(format!("{count} inputs did harm").into()),
    }
}

fn replay(files: &[PathBuf]) -> Result<()> {
    let mut harmful = 0;
    for file in files {
        let with_name = |error: &dyn std::fmt::Display| -> Error {
            format!("{}: {error}", file.display()).into()
        };
        let text = std::fs::read_to_string(file).map_err(|error| with_name(&error))?;
        let input: Input = serde_json::from_str(&text).map_err(|error| with_name(&error))?;
        match run::run(&input)? {
            Outcome::Well { refused } => {
                let what = refused.map_or_else(
                    || "taken as it is".to_owned(),
                    |text| format!("refused: {text}"),
                );
                println!("{}: {what}", file.display());
            }
            Outcome::Harm(what) => {
                harmful += 1;
                println!("{}: {what}", file.display());
            }
        }
    }
    verdict(harmful)
}

/// Writes an input that did harm to a file.
fn keep(input: &Input) -> Result<PathBuf> {
    let folder = root().join("target/fuzz");
    std::fs::create_dir_all(&folder)?;
    let text = serde_json::to_string(input)?;
    // FNV-1a: a name that tells inputs apart.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let path = folder.join(format!("{}-{hash:016x}.json", input.target.name()));
    std::fs::write(&path, text + "\n")?;
    Ok(path)
}
