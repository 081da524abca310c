//! A `main` for tests with child processes: each test is a process of its own, under a watchdog.
//!
//! The executable runs itself again for each test, so a test has an arena of its own, may change limits and signals of
//! its process, and can be ended when it hangs. What it starts inherits a mark in the environment, by which leftovers
//! are found; they fail the test, as do a count in the arena that does not fit and a new file in /dev/shm.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::io::{Read, Seek};
use std::process::{Command, ExitCode, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Completion, Failed, Trial};
use tensormp::Arena;
use tensormp::shm_core::audit::Audit;

use crate::look;

/// A test that has not ended by then hangs. Far more than any takes on a machine that does much else.
const WATCHDOG: Duration = Duration::from_secs(180);
/// How long what a test has killed, or left to the kernel to kill, may take to be gone.
const FAREWELL: Duration = Duration::from_secs(20);
/// The argument that makes this executable one test.
const ALONE: &str = "--alone";
/// The environment variable by which a test's processes are known.
pub(crate) const MARK: &str = "INTEGRATION_TEST";

/// The exit code of a test that found out that it cannot run here, as automake has it.
const SKIPPED: i32 = 77;

static LEAKS: AtomicUsize = AtomicUsize::new(0);

/// A test: its name, which reads like a promise, and what it does.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// As it is printed and filtered.
    pub name: &'static str,
    /// Panics where the promise is broken.
    pub body: fn(),
}

/// An array of [`Test`]s from functions: a test is named like its function.
#[macro_export]
macro_rules! tests {
    ($($name:ident),* $(,)?) => {
        [$($crate::Test { name: stringify!($name), body: $name }),*]
    };
}

/// The test that calls this kills processes, which may leave so many counts in the arena too high.
pub fn allow_leaks(most: usize) {
    LEAKS.store(most, Ordering::Relaxed);
}

/// The `main` of a suite.
pub fn main(tests: &[Test]) -> ExitCode {
    main_with_scenes(tests, &[])
}

/// The `main` of a suite whose tests [`play`] scenes.
pub fn main_with_scenes(tests: &[Test], scenes: &[Test]) -> ExitCode {
    tensormp::init();
    let mut words = std::env::args().skip(1);
    if words.next().as_deref() == Some(ALONE) {
        let name = words.next().unwrap_or_default();
        let test = tests.iter().chain(scenes).find(|test| test.name == name);
        (test.expect("a test of this suite").body)();
        look_around();
        return ExitCode::SUCCESS;
    }
    let trials = tests
        .iter()
        .map(|&Test { name, .. }| Trial::ignorable_test(name, move || run(name)))
        .collect();
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// A program of its own that plays a scene of this suite: to be given an environment, killed, or looked at.
///
/// # Panics
/// When this executable cannot be found.
#[must_use]
pub fn play(scene: &str) -> Command {
    let this = std::env::current_exe().expect("a path of this executable");
    let mut command = Command::new(this);
    command.args([ALONE, scene]).stdin(Stdio::null());
    command
}

/// What the counts say once nothing changes any more and all that died are buried: threads that were told to end may be in the
/// middle of giving something back, and a process that buried another may have been killed over it. What is wrong for good
/// is still wrong after this time.
fn settled(leaks: usize) -> Audit {
    let arena = Arena::current().expect("an arena");
    let end = Instant::now() + FAREWELL;
    loop {
        arena.bury_the_dead();
        let audit = arena.audit();
        let is_right = audit.missing.is_empty() && audit.leaked.len() <= leaks;
        if is_right || Instant::now() >= end {
            return audit;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// In the test's own process, when its body has returned: everything is as it was.
fn look_around() {
    let mut children = look::children();
    // It lives as long as its program.
    let server = tensormp::forkserver::pid();
    children.retain(|&child| Some(child) != server);
    assert!(children.is_empty(), "processes are left: {children:?}");
    let audit = settled(LEAKS.load(Ordering::Relaxed));
    assert!(audit.missing.is_empty(), "counts too low: {audit:?}");
    assert!(
        audit.leaked.len() <= LEAKS.load(Ordering::Relaxed),
        "counts too high: {audit:?}"
    );
}

/// One test as a process of its own.
fn run(name: &'static str) -> Result<Completion, Failed> {
    let mark = format!("{name}.{}", std::process::id());
    let before = shared_files();
    let mut output = File::from(rustix::fs::memfd_create(
        "output",
        rustix::fs::MemfdFlags::CLOEXEC,
    )?);
    let mut child = Command::new(std::env::current_exe()?)
        .args([ALONE, name])
        .env(MARK, &mark)
        // Many tests panic in children on purpose, and symbols take long to read.
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .spawn()?;
    let deadline = Instant::now() + WATCHDOG;
    let mut skipped = false;
    let mut verdict = if look::ends_before(&look::pidfd(child.id()), deadline) {
        let status = child.wait()?;
        skipped = status.code() == Some(SKIPPED);
        judge(status)
    } else {
        let story = look::story_of(&mark);
        let _ = child.kill();
        child.wait()?;
        Err(format!(
            "hangs: not ended after {WATCHDOG:?}; its processes and threads:\n{story}"
        ))
    };
    let hung = verdict
        .as_ref()
        .is_err_and(|text| text.starts_with("hangs"));
    let patience = if hung { Duration::ZERO } else { FAREWELL };
    let left = look::leftovers(&mark, Instant::now() + patience);
    if !left.is_empty() && !hung {
        verdict = verdict.and(Err(format!("left processes behind:\n{}", left.join("\n"))));
    }
    let files = files_left(&before, Instant::now() + FAREWELL);
    if !files.is_empty() {
        verdict = verdict.and(Err(format!("left files in /dev/shm: {files:?}")));
    }
    let mut said = Vec::new();
    let _ = output.rewind();
    let _ = output.read_to_end(&mut said);
    let said = String::from_utf8_lossy(&said);
    match verdict {
        Ok(()) if skipped => Ok(Completion::ignored_with(said.trim())),
        Ok(()) => Ok(Completion::Completed),
        Err(text) => Err(format!("{text}\n--- it said:\n{said}").into()),
    }
}

fn judge(status: ExitStatus) -> Result<(), String> {
    match status.success() || status.code() == Some(SKIPPED) {
        true => Ok(()),
        false => Err(format!("failed: {status}")),
    }
}

fn shared_files() -> BTreeSet<OsString> {
    let Ok(files) = std::fs::read_dir("/dev/shm") else {
        return BTreeSet::new();
    };
    files.flatten().map(|file| file.file_name()).collect()
}

/// The files that are new since `before` and stay, though no process has them open. Others on this machine may make
/// files there as well: theirs are in use, or soon gone.
fn files_left(before: &BTreeSet<OsString>, deadline: Instant) -> Vec<OsString> {
    let mut suspects: BTreeSet<_> = shared_files().difference(before).cloned().collect();
    while !suspects.is_empty() {
        let there = shared_files();
        suspects.retain(|name| there.contains(name) && !look::is_held(name));
        if Instant::now() >= deadline {
            break;
        }
        std::thread::sleep(Duration::from_millis(50));
    }
    suspects.into_iter().collect()
}
