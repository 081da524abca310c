//! The command `tensormp`, run against arenas of live, stopped, killed and named processes, and against what is none.

use std::path::Path;
use std::process::{Command, ExitCode, Output};

use integration_tests::main_with_scenes;
use serde_json::Value;

mod arenas;
mod machine;
mod runs;

fn main() -> ExitCode {
    main_with_scenes(
        &[arenas::PROMISES, machine::PROMISES, runs::PROMISES].concat(),
        arenas::SCENES,
    )
}

/// The command, to be given arguments.
fn tensormp() -> Command {
    Command::new(env!("CARGO_BIN_EXE_tensormp-command"))
}

/// Runs it on one directory.
fn on(directory: &Path, arguments: &[&str]) -> Output {
    let mut command = tensormp();
    command.args(arguments).arg("--dir").arg(directory);
    command.output().unwrap()
}

/// Runs it where it looks by itself.
fn everywhere(arguments: &[&str]) -> Output {
    tensormp().args(arguments).output().unwrap()
}

/// What it printed, for people, when it went well.
#[track_caller]
fn text(output: Output) -> String {
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && said.is_empty(), "{said}");
    String::from_utf8(output.stdout).unwrap()
}

/// The objects that it printed, whatever its exit code.
#[track_caller]
fn objects(output: &Output) -> Vec<Value> {
    let text = std::str::from_utf8(&output.stdout).unwrap();
    let objects = text.lines().map(serde_json::from_str);
    objects.collect::<Result<_, _>>().expect(text)
}
