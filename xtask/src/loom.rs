//! Run the loom models: each `crates/*/tests/loom_*.rs`, with its crate's feature `loom`, optimised.
//!
//! A model explores interleavings and weak orderings that no stress test on this processor shows. The list is what is
//! found; a new model needs no entry anywhere.

use std::fs;
use std::path::Path;

use crate::process::{self, Tally};
use crate::workspace::{cargo, root};
use crate::{Result, tidy};

pub(crate) fn run() -> Result<()> {
    let tally = models()?;
    println!("loom: {} passed in {} models", tally.passed, tally.programs);
    Ok(())
}

/// Runs all models, one crate after the other.
pub(crate) fn models() -> Result<Tally> {
    let mut all = Tally::default();
    for (package, tests) in find(&root())? {
        let mut command = cargo([
            "test",
            "--release",
            "--package",
            &package,
            "--features",
            "loom",
        ]);
        for test in &tests {
            command.args(["--test", test]);
        }
        let tally = process::run_tests(command)?;
        all.programs += tally.programs;
        all.passed += tally.passed;
    }
    Ok(all)
}

/// The models by package, both in order.
fn find(root: &Path) -> Result<Vec<(String, Vec<String>)>> {
    let mut found = Vec::new();
    for folder in tidy::folders(&root.join("crates"))? {
        let Ok(entries) = fs::read_dir(folder.join("tests")) else {
            continue;
        };
        let mut tests: Vec<String> = entries
            .filter_map(std::result::Result::ok)
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter_map(|name| name.strip_suffix(".rs").map(str::to_owned))
            .filter(|name| name.starts_with("loom_"))
            .collect();
        tests.sort();
        if !tests.is_empty() {
            // The packages are named as their folders; tidy checks it.
            let package = folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            found.push((package, tests));
        }
    }
    Ok(found)
}
