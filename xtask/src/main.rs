//! The one front door for contributors: `cargo xtask COMMAND`.
//!
//! Each command is one file (or one folder), and that file's opening comment is the command's help. What a command needs
//! from the others is in `process` and `workspace`.

#![deny(unsafe_code)]

mod bench;
mod chaos;
mod ci;
mod fuzz;
mod gpu;
mod help;
mod loom;
mod process;
mod test;
mod tidy;
mod workspace;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// What went wrong, as one readable line or a few.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// The one front door for contributors.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(about = help::first_sentence(include_str!("test.rs")), long_about = help::whole(include_str!("test.rs")))]
    Test(test::Args),
    #[command(about = help::first_sentence(include_str!("ci.rs")), long_about = help::whole(include_str!("ci.rs")))]
    Ci,
    #[command(about = help::first_sentence(include_str!("tidy/mod.rs")), long_about = help::whole(include_str!("tidy/mod.rs")))]
    Tidy,
    #[command(about = help::first_sentence(include_str!("loom.rs")), long_about = help::whole(include_str!("loom.rs")))]
    Loom,
    #[command(about = help::first_sentence(include_str!("bench/mod.rs")), long_about = help::whole(include_str!("bench/mod.rs")))]
    Bench(bench::Args),
    /// One of the two processes that `bench` measures; not for people.
    #[command(hide = true)]
    BenchEnd(bench::EndArgs),
    #[command(about = help::first_sentence(include_str!("chaos/mod.rs")), long_about = help::whole(include_str!("chaos/mod.rs")))]
    Chaos(chaos::Args),
    /// One of the processes of a round of `chaos`; not for people.
    #[command(hide = true)]
    ChaosChild(chaos::ChildArgs),
    #[command(about = help::first_sentence(include_str!("fuzz/mod.rs")), long_about = help::whole(include_str!("fuzz/mod.rs")))]
    Fuzz(fuzz::Args),
    #[command(about = help::first_sentence(include_str!("gpu.rs")), long_about = help::whole(include_str!("gpu.rs")))]
    Gpu(gpu::Args),
    /// The process that runs one input of `fuzz`; not for people.
    #[command(hide = true)]
    FuzzChild(fuzz::ChildArgs),
    /// A process that joins an arena and stays, while `bench` measures; not for people.
    #[command(hide = true)]
    BenchMember(bench::MemberArgs),
}

fn main() -> ExitCode {
    if bench::is_nothing() {
        return ExitCode::SUCCESS;
    }
    // A process of `chaos cuda` uses the emulated devices of who started it.
    if let Err(error) = cuda_emulator::inherit() {
        eprintln!("xtask: {error}");
        return ExitCode::FAILURE;
    }
    // The processes that `bench spawn` starts, and the workers of its pools, are this program.
    spawn::init();
    let done = match Cli::parse().command {
        Command::Test(args) => test::run(&args),
        Command::Ci => ci::run(),
        Command::Tidy => tidy::run(),
        Command::Loom => loom::run(),
        Command::Bench(args) => bench::run(&args),
        Command::BenchEnd(args) => bench::run_end(&args),
        Command::Chaos(args) => chaos::run(&args),
        Command::ChaosChild(args) => chaos::run_child(&args),
        Command::Fuzz(args) => fuzz::run(&args),
        Command::FuzzChild(args) => fuzz::run_child(&args),
        Command::BenchMember(args) => bench::run_member(&args),
        Command::Gpu(args) => match gpu::run(&args) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::Cli;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn each_command_explains_itself() {
        for command in Cli::command()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
        {
            let about = command
                .get_about()
                .map(ToString::to_string)
                .unwrap_or_default();
            assert!(about.len() > 10, "`{}` has no help", command.get_name());
        }
    }
}
