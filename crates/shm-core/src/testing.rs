//! For tests that need a process of their own: the test runs itself again in a child.

use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

const MARK: &str = "SHM_CORE_TEST_CHILD";

/// Ends a child that hangs. Far longer than any test takes.
const WATCHDOG: Duration = Duration::from_secs(120);

/// The command that runs the test called `name` (with its modules) again in a child; `None` in that child.
pub(crate) fn rerun(name: &str) -> Option<Command> {
    if std::env::var_os(MARK).is_some_and(|mark| mark == name) {
        return None;
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(MARK, name);
    Some(command)
}

/// Runs a command to its end and answers what it wrote; kills it if it hangs.
pub(crate) fn output(command: &mut Command) -> Output {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
    // Opened before anyone waits for the child, so it can't be another process.
    let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let watchdog = std::thread::spawn(move || {
        let timeout = WATCHDOG.try_into().unwrap();
        let ready = poll(
            &mut [PollFd::from_borrowed_fd(pidfd.as_fd(), PollFlags::IN)],
            Some(&timeout),
        );
        if ready == Ok(0) {
            let _ = pidfd_send_signal(&pidfd, Signal::KILL);
        }
    });
    let output = child.wait_with_output().unwrap();
    watchdog.join().unwrap();
    output
}

/// Fails unless the rerun test passed, showing what it wrote.
pub(crate) fn assert_passed(output: &Output) {
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("1 passed"),
        "{}\n{text}\n{}",
        output.status,
        String::from_utf8_lossy(&output.stderr)
    );
}

/// Waits until it is so; `false` if it never gets so. For what a child that another test is just starting keeps from being
/// so: until it runs its program, it has a copy of each descriptor of this process.
pub(crate) fn gets_so(is_so: impl Fn() -> bool) -> bool {
    let begun = Instant::now();
    while !is_so() {
        if begun.elapsed() > WATCHDOG {
            return false;
        }
        std::thread::yield_now();
    }
    true
}

/// A child that reached a certain point and stays there until it is signalled, or until this value is dropped.
pub(crate) struct Held {
    child: Child,
    pidfd: OwnedFd,
}

const READY: &str = "the child is there";

impl Held {
    /// Starts a rerun test and waits until it calls [`Held::stay`].
    pub(crate) fn start(command: &mut Command) -> Self {
        let child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_raw(child.id().cast_signed()).unwrap();
        let pidfd = pidfd_open(pid, PidfdFlags::empty()).unwrap();
        let mut this = Self { child, pidfd };
        let lines = BufReader::new(this.child.stdout.as_mut().unwrap()).lines();
        // A child that fails closes its output, so this ends either way.
        assert!(
            lines.map_while(Result::ok).any(|line| line.contains(READY)),
            "the child failed"
        );
        this
    }

    /// In the child: stays until the parent is gone.
    pub(crate) fn stay() {
        println!("{READY}");
        let _ = std::io::copy(&mut std::io::stdin(), &mut std::io::sink());
    }

    /// In the child: stays, with its first thread ended.
    pub(crate) fn stay_without_main_thread() {
        let own = std::process::id();
        let main_is_zombie = move || {
            let stat = std::fs::read_to_string(format!("/proc/{own}/task/{own}/stat")).unwrap();
            stat.rsplit(')')
                .next()
                .unwrap()
                .trim_start()
                .starts_with('Z')
        };
        extern "C" fn end(_: libc::c_int) {
            // SAFETY: ends this thread only, by the system call itself, so nothing of it is unwound or freed.
            unsafe { libc::syscall(libc::SYS_exit, 0) };
        }
        let handler: extern "C" fn(libc::c_int) = end;
        // SAFETY: installs a handler that only ends the thread it runs on.
        unsafe { libc::signal(libc::SIGUSR1, handler as libc::sighandler_t) };
        // On a thread that is surely not the first one.
        let survivor = std::thread::spawn(move || {
            // SAFETY: sends the signal to this process's first thread, which the test runner leaves waiting.
            unsafe { libc::syscall(libc::SYS_tgkill, own, own, libc::SIGUSR1) };
            while !main_is_zombie() {
                std::thread::yield_now();
            }
            Self::stay();
            std::process::exit(0);
        });
        let _ = survivor.join();
    }

    /// Closes the child's input, so that it ends by itself, and waits for that.
    pub(crate) fn let_go(mut self) {
        drop(self.child.stdin.take());
        self.wait_until_ended();
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        pidfd_send_signal(&self.pidfd, signal).unwrap();
    }

    /// Waits until the child has ended, without reaping it.
    pub(crate) fn wait_until_ended(&self) {
        let timeout = WATCHDOG.try_into().unwrap();
        let ready = poll(
            &mut [PollFd::from_borrowed_fd(self.pidfd.as_fd(), PollFlags::IN)],
            Some(&timeout),
        );
        assert_eq!(ready, Ok(1), "the child did not end");
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

const TMPFS: &str = "SHM_CORE_TEST_TMPFS";

/// Runs a child where a tmpfs of that size is mounted, for nobody else to see; or says why that can't be.
pub(crate) fn in_tmpfs(child: &Command, mebibytes: u64) -> Result<Output, String> {
    let directory = tempfile::tempdir().unwrap();
    let mount = format!(
        r#"mount -t tmpfs -o size={mebibytes}m,mode=700 none "${TMPFS}" || exit 99; exec "$0" "$@""#
    );
    let mut isolated = Command::new("unshare");
    isolated.args(["-m", "--propagation", "private", "sh", "-c", &mount]);
    isolated
        .arg(child.get_program())
        .args(child.get_args())
        .env(TMPFS, directory.path());
    isolated.envs(
        child
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    match Command::new("unshare").args(["-m", "true"]).output() {
        Ok(able) if able.status.success() => {}
        other => return Err(format!("no mount namespace can be made here: {other:?}")),
    }
    let output = output(&mut isolated);
    if output.status.code() == Some(99) {
        let reason = String::from_utf8_lossy(&output.stderr);
        return Err(format!("no tmpfs can be mounted here: {reason}"));
    }
    Ok(output)
}

/// Runs a child in a pid namespace of its own, which sees none of our processes; or says why that can't be.
pub(crate) fn in_pid_namespace(child: &Command) -> Result<Output, String> {
    let isolated = || {
        let mut command = Command::new("unshare");
        command.args(["-pf", "--mount-proc", "--kill-child"]);
        command
    };
    match isolated().arg("true").output() {
        Ok(able) if able.status.success() => {}
        other => return Err(format!("no pid namespace can be made here: {other:?}")),
    }
    let mut isolated = isolated();
    isolated.arg(child.get_program()).args(child.get_args());
    isolated.envs(
        child
            .get_envs()
            .filter_map(|(key, value)| Some((key, value?))),
    );
    Ok(output(&mut isolated))
}

/// In the child: where that tmpfs is.
pub(crate) fn tmpfs() -> std::path::PathBuf {
    std::env::var_os(TMPFS).unwrap().into()
}

/// A memory cgroup of our own, below the one this process is in.
pub(crate) struct Cgroup(std::path::PathBuf);

const CGROUP: &str = "SHM_CORE_TEST_CGROUP";

impl Cgroup {
    pub(crate) fn new(limit: u64) -> Result<Self, String> {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let root = std::path::Path::new("/sys/fs/cgroup");
        let v1 = root.join("memory/memory.limit_in_bytes").exists();
        let (parent, file) = if v1 {
            (root.join("memory"), "memory.limit_in_bytes")
        } else {
            (root.to_owned(), "memory.max")
        };
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let directory = parent.join(format!("shm-core-test-{}-{number}", std::process::id()));
        std::fs::create_dir(&directory)
            .map_err(|error| format!("{}: {error}", directory.display()))?;
        let this = Self(directory);
        std::fs::write(this.0.join(file), limit.to_string())
            .map_err(|error| format!("{file} in {}: {error}", this.0.display()))?;
        Ok(this)
    }

    /// Tells a child where it is.
    pub(crate) fn lend<'a>(&self, child: &'a mut Command) -> &'a mut Command {
        child.env(CGROUP, &self.0)
    }

    /// In the child: moves into it, and says where it is.
    pub(crate) fn enter() -> std::path::PathBuf {
        let place = std::path::PathBuf::from(std::env::var_os(CGROUP).unwrap());
        std::fs::write(place.join("cgroup.procs"), "0").unwrap();
        place
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir(&self.0);
    }
}
