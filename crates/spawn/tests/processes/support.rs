//! A watchdog for each test, and ways to look at processes from outside.

use std::cell::Cell;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use libtest_mimic::Trial;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};
use serde::Serialize;
use serde::de::DeserializeOwned;
use spawn::{Outcome, SpawnContext, StartMethod};

/// A hang ends the whole run after this long: far more than any test takes on a machine that does much else.
const WATCHDOG: Duration = Duration::from_secs(180);

thread_local! {
    /// The start method that the test on this thread is about.
    static METHOD: Cell<Option<StartMethod>> = const { Cell::new(None) };
}

/// Tells a scene which start method it is about.
const METHOD_OF_SCENE: &str = "SPAWN_TEST_METHOD";

/// The start method that is tested here: that of the test on this thread, or of the scene.
pub(crate) fn method() -> StartMethod {
    METHOD.get().unwrap_or_else(|| {
        let name = std::env::var(METHOD_OF_SCENE).unwrap_or_default();
        name.parse().unwrap_or_default()
    })
}

/// [`spawn::spawn`] by the start method that is tested.
pub(crate) fn spawn<F, A, R>(f: F, args: A, n: usize) -> spawn::Result<SpawnContext<R::Value>>
where
    F: Fn(usize, A) -> R + Copy + Send + 'static,
    A: Serialize + DeserializeOwned,
    R: Outcome,
{
    builder().spawn(f, args, n)
}

/// [`spawn::builder`] with the start method that is tested.
pub(crate) fn builder() -> spawn::Builder {
    spawn::builder().start_method(method())
}

/// [`spawn::builder`] with the start method by a fork server, whatever is tested.
pub(crate) fn by_server() -> spawn::Builder {
    spawn::builder().start_method(StartMethod::Forkserver)
}

/// A function of a process that matters by its start only.
pub(crate) fn nothing(_rank: usize, _: ()) {}

/// A test of one start method, under a watchdog.
pub(crate) fn test(name: &'static str, method: StartMethod, body: fn()) -> Trial {
    let name = match method {
        StartMethod::Spawn => name.to_owned(),
        other => format!("{name}_by_{other}"),
    };
    Trial::test(name.clone(), move || {
        METHOD.set(Some(method));
        guarded(&name, body);
        METHOD.set(None);
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
            end_children();
            std::process::abort();
        }
    });
    body();
    drop(done);
    let _ = watchdog.join();
}

/// Kills what this process has started; what those have started, the system ends with them.
fn end_children() {
    let Ok(threads) = std::fs::read_dir("/proc/self/task") else {
        return;
    };
    for thread in threads.flatten() {
        let children = std::fs::read_to_string(thread.path().join("children"));
        for pid in children.unwrap_or_default().split_whitespace() {
            if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
    }
}

/// A `Vec` of tests from functions, each for every start method: a test is named like its function.
#[macro_export]
macro_rules! trials {
    ($($name:ident),* $(,)?) => {{
        let mut trials = Vec::new();
        for method in spawn::StartMethod::ALL {
            $(trials.push($crate::support::test(stringify!($name), method, $name));)*
        }
        trials
    }};
}

/// The same for what has nothing to do with the start method, or with one only.
#[macro_export]
macro_rules! trials_once {
    ($($name:ident),* $(,)?) => {
        vec![$($crate::support::test(stringify!($name), spawn::StartMethod::Spawn, $name)),*]
    };
}

/// This executable, to play a scene about the start method that is tested.
pub(crate) fn scene(name: &str) -> Command {
    scene_by(name, method())
}

/// This executable, to play a scene about a start method.
pub(crate) fn scene_by(name: &str, method: StartMethod) -> Command {
    let mut command = Command::new(std::env::current_exe().expect("a path of this executable"));
    command
        .args(["scene", name])
        .env(METHOD_OF_SCENE, method.to_string())
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

/// Waits until whoever plays this scene closes its stdin: what it has told of may be gone when it goes on.
pub(crate) fn wait_to_go_on() {
    let _ = std::io::stdin().read_line(&mut String::new());
}

/// Waits for the end of a program; how it ended, and what it wrote to its stderr.
pub(crate) fn end_of(mut program: Reaped) -> (ExitStatus, String) {
    let text = std::io::read_to_string(program.0.stderr.take().unwrap()).unwrap();
    (program.0.wait().unwrap(), text)
}

/// A descriptor for a process that is there.
pub(crate) fn pidfd(pid: u32) -> OwnedFd {
    let pid = Pid::from_raw(pid as i32).expect("a pid");
    pidfd_open(pid, PidfdFlags::empty()).expect("a living process")
}

/// The same, if it is there.
pub(crate) fn try_pidfd(pid: u32) -> Option<OwnedFd> {
    pidfd_open(Pid::from_raw(pid as i32)?, PidfdFlags::empty()).ok()
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
        // The same test runs for several start methods at once.
        static GATES: AtomicU64 = AtomicU64::new(0);
        let number = GATES.fetch_add(1, Ordering::Relaxed);
        let name = format!("spawn-test-{}-{number}-{name}", std::process::id());
        let path = std::env::temp_dir().join(name);
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

/// Changes the environment of a scene that has not started a thread that reads it.
pub(crate) fn set_environment(name: &str, value: Option<&str>) {
    match value {
        // SAFETY: the other threads of a scene are its watchdog and the supervisor, which wait and read no variable.
        Some(value) => unsafe { std::env::set_var(name, value) },
        // SAFETY: as above.
        None => unsafe { std::env::remove_var(name) },
    }
}

/// Makes this process ignore a signal.
pub(crate) fn ignore_signal(signal: i32) {
    set_signal(signal, libc::SIG_IGN);
}

/// Makes a signal do what it does to a program that was started in a terminal.
pub(crate) fn heed_signal(signal: i32) {
    set_signal(signal, libc::SIG_DFL);
}

fn set_signal(signal: i32, action: libc::sighandler_t) {
    assert!([libc::SIG_IGN, libc::SIG_DFL].contains(&action));
    // SAFETY: neither runs code of ours, so no handler can do what a handler must not.
    let before = unsafe { libc::signal(signal, action) };
    assert_ne!(before, libc::SIG_ERR);
}

/// A step of a filter of system calls.
fn step(code: u32, k: u32, jf: u8) -> libc::sock_filter {
    libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    }
}

fn load(offset: u32) -> libc::sock_filter {
    step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, offset, 0)
}

/// Goes on to the next line if it is that call, else skips some.
fn is(call: libc::c_long, skip: u8) -> libc::sock_filter {
    let jump = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    step(jump, call as u32, skip)
}

fn answer(errno: i32) -> libc::sock_filter {
    let answer = libc::SECCOMP_RET_ERRNO | errno as u32;
    step(libc::BPF_RET | libc::BPF_K, answer, 0)
}

/// Makes `clone3` unknown to this process and to all that it makes, and if told so also a copy of a process as its
/// sibling.
pub(crate) fn refuse_clone3(and_siblings: bool) {
    let mut program = vec![load(0), is(libc::SYS_clone3, 1), answer(libc::ENOSYS)];
    if and_siblings {
        // The lower half of the first argument.
        let low = if cfg!(target_endian = "little") {
            16
        } else {
            20
        };
        let sibling = libc::CLONE_PARENT as u32;
        program.extend([
            is(libc::SYS_clone, 3),
            load(low),
            step(libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K, sibling, 1),
            answer(libc::EPERM),
        ]);
    }
    filter(program);
}

/// Forbids a system call to all threads of this process and to all that it makes, which it also forbids to gain rights.
pub(crate) fn forbid(call: libc::c_long) {
    filter(vec![load(0), is(call, 1), answer(libc::EPERM)]);
}

/// The same, to the calling thread and to what it makes.
pub(crate) fn forbid_here(call: libc::c_long) {
    filter_with(vec![load(0), is(call, 1), answer(libc::EPERM)], 0);
}

/// All other calls pass.
fn filter(program: Vec<libc::sock_filter>) {
    filter_with(program, libc::SECCOMP_FILTER_FLAG_TSYNC);
}

fn filter_with(mut program: Vec<libc::sock_filter>, flags: libc::c_ulong) {
    program.push(step(
        libc::BPF_RET | libc::BPF_K,
        libc::SECCOMP_RET_ALLOW,
        0,
    ));
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: a flag of this process; no memory is involved.
    let no_new = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    assert_eq!(no_new, 0);
    // SAFETY: the filter points to a program of the length that it says, and both live until the kernel has copied them.
    let set = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            flags,
            &raw const filter,
        )
    };
    assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
}

/// Makes all threads of this process another user's, for good.
pub(crate) fn become_user(id: u32) -> std::io::Result<()> {
    // SAFETY: the call takes numbers only.
    let groups = unsafe { libc::setresgid(id, id, id) };
    // SAFETY: as above.
    if groups != 0 || unsafe { libc::setresuid(id, id, id) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok(())
}

/// Puts a variable into the environment whose name begins with `=`, which no other call does.
pub(crate) fn put_odd_variable() {
    let text = c"=ODD=1".as_ptr().cast_mut();
    // SAFETY: the text lives as long as the program, and nobody writes to it. No other thread of a scene reads or writes
    // the environment meanwhile.
    assert_eq!(unsafe { libc::putenv(text) }, 0);
}

/// Forks this process by the C library's own call. `true` in the child; in the parent only when the child has ended.
pub(crate) fn fork_and_wait() -> bool {
    // SAFETY: the child has the thread that calls this and no other one; the C library's own locks are free in it. It
    // does what the tests are about, and ends.
    let pid = unsafe { libc::fork() };
    assert!(pid >= 0);
    if pid > 0 {
        let pid = Pid::from_raw(pid);
        rustix::process::waitpid(pid, rustix::process::WaitOptions::empty()).expect("a child");
    }
    pid == 0
}

/// The same; the child does this and ends, without what a process does at its exit.
pub(crate) fn bare_fork(child: impl FnOnce()) {
    if fork_and_wait() {
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(child));
        // SAFETY: ends this process.
        unsafe { libc::_exit(0) };
    }
}

/// Blocks the signals that end a program, in this thread and those that it starts.
pub(crate) fn block_signals() {
    let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
    // SAFETY: the pointer is valid for writing, and the call initializes what it points to.
    unsafe { libc::sigfillset(set.as_mut_ptr()) };
    // SAFETY: the set was initialized above; no old mask is asked for.
    let failed = unsafe { libc::sigprocmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut()) };
    assert_eq!(failed, 0);
}

/// Closes all descriptors of this process from that one on, whoever they belong to, as some programs do.
pub(crate) fn close_descriptors(first: u32) {
    // SAFETY: nothing is read or written through a descriptor in this process afterwards but by code that is told of
    // errors; that such code stands this is what the tests look at.
    let failed = unsafe { libc::close_range(first, u32::MAX, 0) };
    assert_eq!(failed, 0);
}

/// Closes a descriptor of this process, whoever it belongs to, and gives its number to /dev/null at once.
pub(crate) fn put_nothing_in_place_of(number: i32) {
    let null = std::fs::File::open("/dev/null").expect("/dev/null");
    // SAFETY: as above; nobody is given the new descriptor, which stays open until the process ends.
    let put = unsafe { libc::dup3(null.as_raw_fd(), number, libc::O_CLOEXEC) };
    assert_eq!(put, number);
}

/// Closes stdin, stdout and stderr of this process.
pub(crate) fn close_standard_streams() {
    // SAFETY: as above.
    let failed = unsafe { libc::close_range(0, 2, 0) };
    assert_eq!(failed, 0);
}

/// Prints a line to stderr by the C library's own means, which add what errno says.
pub(crate) fn print_as_c_would(line: &str) {
    let line = std::ffi::CString::new(line).expect("no zero byte");
    // SAFETY: the text ends with a zero byte and is valid during the call.
    unsafe { libc::perror(line.as_ptr()) };
}
