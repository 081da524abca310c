//! Run all tests, as the README says: `cargo test --workspace`.
//!
//! What follows the command goes to cargo: `cargo xtask test a_promise` runs the tests with that name,
//! `cargo xtask test -- --nocapture` shows what they print.

use crate::workspace::{TEST_COMMAND, cargo};
use crate::{Result, process};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// More arguments for cargo: a filter, or `-- --nocapture`.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    more: Vec<String>,
}

pub(crate) fn run(args: &Args) -> Result<()> {
    let mut command = cargo(&TEST_COMMAND[1..]);
    command.args(&args.more);
    process::run(command)
}
