//! `cargo xtask fuzz`, run as a program: the kept inputs, and a few new ones.

use std::path::Path;
use std::process::Command;

fn fuzz(args: impl IntoIterator<Item = impl AsRef<std::ffi::OsStr>>) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("fuzz")
        .args(args)
        .output()
        .unwrap();
    let (told, errors) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8_lossy(&output.stderr),
    );
    assert!(output.status.success(), "{told}\n{errors}");
    told
}

#[test]
fn no_kept_input_does_harm() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/inputs/fuzz");
    let entries = std::fs::read_dir(folder).unwrap();
    let files: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    assert!(files.len() >= 30, "{files:?}");
    let told = fuzz([Path::new("--replay").to_owned()].into_iter().chain(files));
    // They were kept because something was wrong with them.
    let refused = told
        .lines()
        .filter(|line| line.contains(": refused: "))
        .count();
    assert!(refused >= 10, "{told}");
}

#[test]
fn new_inputs_do_no_harm() {
    let told = fuzz(["--inputs", "10", "--seed", "9", "--seconds", "40"]);
    for target in ["attach", "message", "names", "structures", "device"] {
        let start = format!("fuzz {target}: seed 9, ");
        assert!(told.lines().any(|line| line.starts_with(&start)), "{told}");
    }
}

#[test]
fn a_file_that_is_no_input_is_an_error_that_names_it() {
    let output = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .args(["fuzz", "--replay", "/nonexistent/input.json"])
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && errors.contains("/nonexistent/input.json"),
        "{errors}"
    );
}
