//! The command `tensormp`: which arenas there are, what can be removed, what this machine can do, and what a run came to.
//!
//! Each subcommand is a file. It says what it found through [`output::Out`], for people or as JSON, and answers whether
//! all went well.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

mod directories;
mod doctor;
mod gc;
mod ls;
mod output;
mod report;

use output::{Out, Stopped};

const EXIT_CODES: &str = "\
Exit codes:
  0  all went well
  1  ls, gc, report: something could not be read, removed or written; doctor: tensormp cannot work here
  2  the command line was not understood";

/// Looks at the shared memory of tensormp on this machine, and at runs of its pipelines.
#[derive(Debug, Parser)]
#[command(name = "tensormp", version, after_help = EXIT_CODES, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists this user's arenas: their memory, and who takes part in them.
    ///
    /// Named arenas are found by their files, the others by the processes that have them open or mapped. Looking
    /// changes nothing: no arena is joined, mapped or written to. Sizes: live is memory of tensors and queues that
    /// somebody holds, cached is kept for the next ones, committed is both.
    #[command(after_help = "\
With --json, each line is one arena:
  {\"strategy\", \"path\", \"holders\": [pid…], \"id\", \"capacity\", \"taken\", \"committed\", \"live\", \"cached\",
   \"blocks\", \"inhabited\", \"participants\": [{\"pid\", \"pid_is_ours\", \"name\", \"command\", \"state\", \"stopped\",
   \"leaving\", \"blocks\", \"bytes\", \"task\"}…]}
where path is null without a name, sizes are bytes, and state is alive, dead or unknown. A file that could not be read
has {\"strategy\", \"path\", \"holders\", \"error\"}.

Exit codes:
  0  all went well
  1  a directory could not be read
  2  the command line was not understood")]
    Ls(Where),
    /// Removes the files of this user's named arenas that nobody lives in, and says what it did.
    ///
    /// These are left when all processes of an arena were killed. An arena is kept while there is any doubt about its
    /// participants. Arenas without a name leave no files.
    #[command(after_help = "\
With --json, each line is one arena:
  {\"path\", \"action\", \"why\", \"taken\", \"participants\": [pid…]}
where action is removed, would remove, or kept; why is abandoned, unfinished, damaged, inhabited, busy, or other version; taken
is bytes of memory; participants are those not known to be dead.

Exit codes:
  0  all went well
  1  something could not be read or removed
  2  the command line was not understood")]
    Gc {
        /// Say what would be removed, and remove nothing.
        #[arg(long)]
        dry_run: bool,
        #[command(flatten)]
        place: Where,
    },
    /// Checks what tensormp needs of this machine: the kernel, limits, memory, CUDA.
    ///
    /// Each line is ok, a note (it works, with less), or a problem (it does not work). Notes and problems come with what they
    /// mean and how to change that. Two small arenas are made for it and removed again.
    #[command(after_help = "\
With --json, each line is one check:
  {\"area\", \"check\", \"status\": \"ok\" | \"note\" | \"problem\", \"found\", \"means\", \"change\"}
where change is null if there is nothing to change.

Exit codes:
  0  tensormp works here, perhaps with notes
  1  a problem stops it from working
  2  the command line was not understood")]
    Doctor {
        /// Also of what is ok, say what it means and how to change it.
        #[arg(long, short)]
        verbose: bool,
        #[command(flatten)]
        form: Form,
    },
    /// Renders the run of a pipeline anew, or compares two runs.
    ///
    /// A run directory is what a pipeline's `run --out DIR` leaves. Its table is printed, and summary.txt, summary.json,
    /// trace.json (for Perfetto) and report.html are written into it. With two directories, nothing is written: the second
    /// is held against the first.
    #[command(after_help = "\
With --json, one object: {\"summary\", \"files\"} for one run, {\"a\", \"b\"} with a summary each for two, {\"error\"} where
there is none. A summary has termination, seconds, items, throughput, latency, steps and bottleneck; durations are nanoseconds.

Exit codes:
  0  all went well
  1  a directory holds no run, or could not be written to
  2  the command line was not understood")]
    Report {
        /// The run directory.
        directory: PathBuf,
        /// Another one to compare it with.
        other: Option<PathBuf>,
        #[command(flatten)]
        form: Form,
    },
}

#[derive(Args, Clone, Copy, Debug)]
struct Form {
    /// Print JSON, one object a line.
    #[arg(long)]
    json: bool,
}

#[derive(Args, Debug)]
struct Where {
    /// Only what is in this directory, instead of what is in /dev/shm and mounted hugetlbfs and what processes have open;
    /// may be given several times.
    #[arg(long = "dir", value_name = "DIR")]
    directories: Vec<PathBuf>,
    #[command(flatten)]
    form: Form,
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match &cli.command {
        Command::Ls(place) => ls::run(place, &mut Out::new(place.form.json)),
        Command::Gc { dry_run, place } => gc::run(place, *dry_run, &mut Out::new(place.form.json)),
        Command::Doctor { verbose, form } => doctor::run(*verbose, &mut Out::new(form.json)),
        Command::Report {
            directory,
            other,
            form,
        } => report::run(directory, other.as_ref(), &mut Out::new(form.json)),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        // Who reads the output has seen enough: `tensormp ls | head`.
        Err(Stopped::NobodyReads) => ExitCode::SUCCESS,
        Err(Stopped::Unwritable(error)) => {
            output::complain(format_args!("the output could not be written: {error}"));
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent_and_says_its_exit_codes() {
        let mut cli = Cli::command();
        cli.clone().debug_assert();
        for command in ["ls", "gc", "doctor", "report"] {
            let help = cli
                .find_subcommand_mut(command)
                .map(|command| command.render_long_help().to_string());
            assert!(
                help.is_some_and(|help| help.contains("Exit codes:") && help.contains("--json"))
            );
        }
    }
}
