//! Where the workspace lies, and which cargo to call.

use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// How the README says the tests are run. `tidy` checks that the README does say so.
pub(crate) const TEST_COMMAND: [&str; 3] = ["cargo", "test", "--workspace"];

/// The root of the repository.
pub(crate) fn root() -> PathBuf {
    // Set by `cargo run`, and right even where the folder was moved since xtask was built.
    let manifest = env::var_os("CARGO_MANIFEST_DIR")
        .unwrap_or_else(|| OsString::from(env!("CARGO_MANIFEST_DIR")));
    Path::new(&manifest)
        .parent()
        .map(Path::to_path_buf)
        .unwrap_or_default()
}

/// A cargo command, run at the root with the cargo that runs us.
pub(crate) fn cargo(args: impl IntoIterator<Item = impl Into<OsString>>) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo")));
    command
        .args(args.into_iter().map(Into::into))
        .current_dir(root());
    command
}
