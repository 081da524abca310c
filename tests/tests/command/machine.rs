//! `doctor`, and how the command meets a reader that goes away or arguments that are none.

use std::path::Path;
use std::process::{Command, Stdio};

use integration_tests::{Test, tests};

use crate::{objects, on, tensormp, text};

pub(crate) const PROMISES: &[Test] = &tests![
    where_tensormp_works_the_doctor_finds_no_problem,
    what_stops_tensormp_is_a_problem_and_says_what_to_do,
    a_strategy_that_nobody_has_is_a_problem,
    a_reader_that_goes_away_is_no_error,
    a_directory_that_cannot_be_read_is_told_and_the_others_are_searched,
    the_exit_codes_are_as_the_help_says,
];

fn where_tensormp_works_the_doctor_finds_no_problem() {
    // This test has an arena, so it works.
    let output = tensormp().args(["doctor", "--json"]).output().unwrap();
    let lines = objects(&output);
    for line in &lines {
        assert!(
            ["ok", "note"].contains(&line["status"].as_str().unwrap()),
            "{line}"
        );
        for field in ["area", "check", "found", "means"] {
            assert!(
                line[field].as_str().is_some_and(|text| !text.is_empty()),
                "{line}"
            );
        }
        let change = &line["change"];
        assert!(change.is_null() || change.as_str().is_some_and(|text| !text.is_empty()));
    }
    assert!(output.status.success());
    let find = |check: &str| lines.iter().find(|line| line["check"] == check);
    for check in [
        "memfd and its seals",
        "pidfd",
        "futex between processes",
        "an arena without a name",
    ] {
        assert_eq!(find(check).expect(check)["status"], "ok");
    }
    // What is as it should be needs no advice, unless somebody asks.
    for verbose in [false, true] {
        let asked = verbose.then_some("--verbose");
        let told = text(tensormp().arg("doctor").args(asked).output().unwrap());
        assert!(told.contains("tensormp works here"), "{told}");
        let changes = lines
            .iter()
            .filter(|line| !line["change"].is_null() && (verbose || line["status"] != "ok"));
        assert_eq!(told.matches("To change it: ").count(), changes.count());
    }
}

/// Runs the doctor with a limit of the shell.
fn limited(limit: &str) -> std::process::Output {
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{limit} && exec \"$0\" doctor --json")]);
    shell.arg(tensormp().get_program()).output().unwrap()
}

fn what_stops_tensormp_is_a_problem_and_says_what_to_do() {
    for (limit, note, what) in [
        ("ulimit -v 600000", "address space (ulimit -v)", "ulimit -v"),
        ("ulimit -f 1000", "file size (ulimit -f)", "ulimit -f"),
    ] {
        let output = limited(limit);
        let lines = objects(&output);
        let find = |check: &str| {
            lines
                .iter()
                .find(|line| line["check"] == check)
                .expect(check)
        };
        let arena = find("an arena without a name");
        assert_eq!(arena["status"], "problem");
        assert!(arena["found"].as_str().unwrap().contains(what), "{arena}");
        assert_eq!(find(note)["status"], "note");
        assert_eq!(output.status.code(), Some(1), "{limit}");
    }
}

fn a_strategy_that_nobody_has_is_a_problem() {
    let mut command = tensormp();
    let output = command
        .arg("doctor")
        .env("TENSORMP_STRATEGY", "file_descripter")
        .output()
        .unwrap();
    let told = String::from_utf8(output.stdout).unwrap();
    assert!(
        told.contains("tensormp does not work here; problems: 1"),
        "{told}"
    );
    assert!(told.contains("file_descriptor, file_system"), "{told}");
    assert_eq!(output.status.code(), Some(1));
}

fn a_reader_that_goes_away_is_no_error() {
    let directory = tempfile::tempdir().unwrap();
    let _arena = tensormp::Arena::current().unwrap();
    for arguments in [
        &["ls"][..],
        &["ls", "--json"],
        &["gc"],
        &["doctor"],
        &["doctor", "--json"],
        &["--help"],
    ] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        let mut command = tensormp();
        command
            .args(arguments)
            .stdout(writer)
            .stderr(Stdio::piped());
        if ["ls", "gc"].contains(&arguments[0]) {
            command.arg("--dir").arg(directory.path());
        }
        let output = command.output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.success() && said.is_empty(),
            "{arguments:?}: {said}"
        );
    }
}

fn a_directory_that_cannot_be_read_is_told_and_the_others_are_searched() {
    let directory = tempfile::tempdir().unwrap();
    let arena = tensormp::Arena::builder()
        .name("command")
        .directory(directory.path());
    let _arena = arena.capacity(1 << 30).create().unwrap();
    for command in ["ls", "gc"] {
        let output = on(directory.path(), &[command, "--dir", "/nowhere", "--json"]);
        assert_eq!(output.status.code(), Some(1));
        assert!(String::from_utf8_lossy(&output.stderr).contains("/nowhere cannot be read"));
        assert!(objects(&output).iter().any(|object| {
            object["path"]
                .as_str()
                .is_some_and(|path| Path::new(path).starts_with(directory.path()))
        }));
    }
}

fn the_exit_codes_are_as_the_help_says() {
    for wrong in [
        &["dance"][..],
        &[],
        &["ls", "--dry-run"],
        &["doctor", "--dir", "/"],
    ] {
        let output = tensormp().args(wrong).output().unwrap();
        assert_eq!(output.status.code(), Some(2), "{wrong:?}");
    }
    for command in ["ls", "gc", "doctor"] {
        let help = text(tensormp().args([command, "--help"]).output().unwrap());
        assert!(help.contains("Exit codes:"), "{help}");
    }
}
