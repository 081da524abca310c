//! A watchdog for each test, and ways to look at processes from outside.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

/// A hang ends the whole run after this long.
const WATCHDOG: Duration = Duration::from_secs(60);

/// A test under a watchdog.
pub(crate) fn test(name: &'static str, body: fn()) -> Trial {
    Trial::test(name, move || {
        guarded(name, body);
        Ok(())
    })
}

/// Runs `body`; a run that hangs is ended, and its workers with it.
pub(crate) fn guarded(name: &str, body: impl FnOnce()) {
    let (done, ended) = channel::<()>();
    let label = name.to_owned();
    let watchdog = thread::spawn(move || {
        if let Err(std::sync::mpsc::RecvTimeoutError::Timeout) = ended.recv_timeout(WATCHDOG) {
            eprintln!("{label} hangs");
            std::process::abort();
        }
    });
    body();
    drop(done);
    let _ = watchdog.join();
}

/// A `Vec` of tests from functions: a test is named like its function.
#[macro_export]
macro_rules! trials {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::support::test(stringify!($name), $name)),*]
    };
}

/// This executable, to play a scene.
pub(crate) fn scene(name: &str) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path of this executable"));
    command
        .args(["scene", name])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// Plays a scene to its end and gives what it printed; it must succeed.
pub(crate) fn play(name: &str) -> String {
    let output = scene(name).output().expect("a scene");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success(),
        "scene {name}: {}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
    text
}

/// Kills a program when a test ends early.
pub(crate) struct Reaped(pub(crate) Child);

impl Drop for Reaped {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A descriptor for a process that is there.
pub(crate) fn pidfd(pid: u32) -> OwnedFd {
    let pid = Pid::from_raw(pid as i32).expect("a pid");
    pidfd_open(pid, PidfdFlags::empty()).expect("a living process")
}

/// Waits until a process has ended. The watchdog bounds it.
pub(crate) fn wait_for_end(pidfd: &OwnedFd) {
    poll(&mut [PollFd::new(pidfd, PollFlags::IN)], None).expect("poll");
}

/// Whether a process (or a zombie of it) is there.
pub(crate) fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

/// A path that a worker can watch: it appears when [`Gate::open`] is called.
pub(crate) struct Gate(PathBuf);

impl Gate {
    pub(crate) fn new(name: &str) -> Gate {
        let path = std::env::temp_dir().join(format!("spawn-test-{}-{name}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        Gate(path)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.clone()
    }

    pub(crate) fn open(&self) {
        open_gate(&self.0);
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn open_gate(path: &Path) {
    std::fs::write(path, b"").expect("a file in the temporary directory");
}

pub(crate) fn wait_at_gate(path: &Path) {
    while !path.exists() {
        thread::sleep(Duration::from_millis(1));
    }
}

/// What a worker does that is to be stopped.
pub(crate) fn sleep_for_ever() -> ! {
    loop {
        thread::sleep(Duration::from_secs(3600));
    }
}

/// The same as a function to spawn.
pub(crate) fn sleeps(_rank: usize, _: ()) {
    sleep_for_ever();
}

/// Makes this process ignore a signal.
pub(crate) fn ignore_signal(signal: i32) {
    // SAFETY: SIG_IGN runs no code of ours, so no handler can do what a handler must not.
    let before = unsafe { libc::signal(signal, libc::SIG_IGN) };
    assert_ne!(before, libc::SIG_ERR);
}
