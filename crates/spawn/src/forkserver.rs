//! Starting processes by a fork server: [`StartMethod::Forkserver`](crate::StartMethod::Forkserver).
//!
//! The server is this executable, run once more. It has one thread and does nothing but make a copy of itself for each
//! process that is to start, so a process costs a copy of a small process rather than loading a program, and what
//! [`preload`] has done in the server is done in all of them. The copies are children of this process, not of the
//! server: they are waited for, signalled and supervised as those by `spawn` are, and a server that is killed takes no
//! process with it; the next start makes another server.
//!
//! ```no_run
//! use spawn::{StartMethod, builder, forkserver};
//!
//! static TABLE: std::sync::OnceLock<Vec<u64>> = std::sync::OnceLock::new();
//!
//! fn warm_up() {
//!     TABLE.get_or_init(|| (0..1_000_000).map(|x| x * x).collect());
//! }
//!
//! fn look_up(rank: usize, _: ()) -> Result<u64, String> {
//!     Ok(TABLE.get().map_or(0, |table| table[rank])) // made once, in the server
//! }
//!
//! fn main() -> spawn::Result<()> {
//!     spawn::init();
//!     forkserver::preload(warm_up)?;
//!     let mut workers = builder().start_method(StartMethod::Forkserver).spawn(look_up, (), 4)?;
//!     println!("{:?}", workers.join()?);
//!     Ok(())
//! }
//! ```
//!
//! # What a process by the server has of this one
//!
//! As with `spawn`, and as they are when it is started: environment, working directory, stdout, stderr, and stdin if it is
//! given that. What has no way over a socket it has as it was when the *server* was started: the limits (`ulimit`), the
//! umask, which signals are ignored, priority and CPUs, and descriptors that do not close on exec.
//!
//! # What to preload
//!
//! Anything that may be copied with the memory: tables, parsed files, code that was run once. Not threads (a copy has
//! only the one that made it; a server that finds others refuses to start), not tensors or queues (the server takes no
//! part in the arena), and not CUDA or another driver that ties itself to a process. A generator of random numbers that
//! is seeded in the server goes on alike in each copy.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, pidfd_send_signal, waitpid};

use crate::control;
use crate::desk;
use crate::entry::{self, MARKER};
use crate::error::{Error, ErrorKind, Result};
use crate::fork;
use crate::image::image;
use crate::launch::{Launched, NO_DESCRIPTOR, Plan, advice, greet, title};
use crate::server::{Answer, ORDER, Order};
use crate::start::undo;
use crate::trampoline::{Target, preload_target};

/// How many children are asked for before the first answer is read: as many packets as a socket holds with ease.
const AT_ONCE: usize = 8;

/// The server of this process.
static SERVER: Mutex<Option<Server>> = Mutex::new(None);

/// What the next server preloads.
static PRELOAD: Mutex<Option<Target>> = Mutex::new(None);

#[derive(Debug)]
struct Server {
    /// The process that has it; a bare fork of that has no server.
    owner: u32,
    pid: u32,
    pidfd: Option<OwnedFd>,
    control: OwnedFd,
    /// The environment that it was started with.
    environment: Vec<(OsString, OsString)>,
    /// Nothing could be copied (a filter of system calls): processes are started by `spawn`.
    unable: bool,
    /// It was killed because it did not answer.
    given_up: bool,
}

/// Has the fork server run `f` before it makes its first copy: what that leaves in memory, every process finds.
///
/// `f` is a function item or a closure that captures nothing. It must have ended all threads that it started when it
/// returns; otherwise, or when it panics, starting a process fails with an error that says so. A second call before the
/// server is started replaces the first.
///
/// # Errors
///
/// When the server runs already, or [`init`](crate::init) was not called.
pub fn preload<F>(f: F) -> Result<()>
where
    F: Fn() + Copy + Send + 'static,
{
    let _ = f;
    entry::depth_of_a_child(false)?;
    let usage = |message: String| Error::new(ErrorKind::Usage, message);
    let image = image().map_err(usage)?;
    let target = preload_target::<F>(image).map_err(usage)?;
    if let Some(server) = SERVER.lock().as_ref().filter(|server| server.is_mine()) {
        return Err(usage(format!(
            "the fork server (pid {}) runs already, so `{}` cannot be preloaded any more: call `preload` before the \
             first process is started by it",
            server.pid, target.name
        )));
    }
    *PRELOAD.lock() = Some(target);
    Ok(())
}

/// Starts the fork server now, unless it runs, and returns when it has preloaded what it was told to. Without this it is
/// started together with the first process.
///
/// # Errors
///
/// When the server does not start: [`init`](crate::init) was not called, the preloaded function panicked or left
/// threads behind, or the system refuses.
pub fn start() -> Result<()> {
    entry::depth_of_a_child(false)?;
    let mut server = SERVER.lock();
    if running(&mut server).is_none() {
        *server = Some(Server::start(HELLO)?);
    }
    Ok(())
}

/// The process id of the fork server, if one was started. It may have been killed since; then the next process that is
/// started makes another.
pub fn pid() -> Option<u32> {
    let server = SERVER.lock();
    server
        .as_ref()
        .filter(|server| server.is_mine())
        .map(|server| server.pid)
}

/// How long a server has to reach `init` when nobody says.
const HELLO: Duration = Duration::from_secs(10);

/// The server, if there is one and it has not ended.
fn running(server: &mut Option<Server>) -> Option<&mut Server> {
    drop(server.take_if(|server| !server.is_mine() || server.has_ended()));
    server.as_mut()
}

/// Starts all these processes, or none. `None`: the server cannot be copied for these here, and they are to be started
/// by the other method.
pub(crate) fn launch_all(plans: &[Plan], deadline: Duration) -> Result<Option<Vec<Launched>>> {
    // Who reads what this process would read has to be in its group, and one that was made outside of this pid namespace
    // (as for what is run in a container that lives already) has no number here by which a copy could join it.
    if plans.iter().any(|plan| plan.stdin.is_some()) && fork::own_group().is_none() {
        return Ok(None);
    }
    let mut server = SERVER.lock();
    let mut launched = Vec::with_capacity(plans.len());
    for some in plans.chunks(AT_ONCE) {
        let running = match running(&mut server) {
            Some(running) => running,
            None => server.insert(Server::start(deadline)?),
        };
        if running.unable {
            return Ok(None);
        }
        if let Err(error) = running.launch(some, deadline, &mut launched) {
            launched.into_iter().for_each(undo);
            if running.unable {
                tracing::warn!(
                    %error,
                    "the fork server cannot make children for this process (is clone3 filtered?): processes are started \
                     by \"spawn\" instead, without what was preloaded"
                );
                return Ok(None);
            }
            return Err(error);
        }
    }
    Ok(Some(launched))
}

impl Server {
    /// A server that is ready for orders.
    fn start(deadline: Duration) -> Result<Server> {
        let environment: Vec<_> = std::env::vars_os().collect();
        let preload = *PRELOAD.lock();
        let launched = desk::start_server(preload)?;
        let mut server = Server {
            owner: std::process::id(),
            pid: launched.pid,
            pidfd: launched.pidfd,
            control: launched.control,
            environment,
            unable: false,
            given_up: false,
        };
        let refused = |what: String| {
            let preloading =
                preload.map_or(String::new(), |f| format!(" that preloads `{}`", f.name));
            Error::new(
                ErrorKind::Launch,
                format!("the fork server{preloading} could not be started: {what}"),
            )
        };
        let until = Instant::now().checked_add(deadline);
        match server.hear(until).map_err(refused)? {
            (Answer::Arrived, _) => {}
            (answer, _) => return Err(refused(unexpected(answer))),
        }
        // What it preloads takes as long as it takes, as it would here.
        match server.hear(None).map_err(refused)? {
            (Answer::Ready, _) => Ok(server),
            (answer, _) => Err(refused(unexpected(answer))),
        }
    }

    fn is_mine(&self) -> bool {
        self.owner == std::process::id()
    }

    fn has_ended(&self) -> bool {
        let mut look = [PollFd::new(&self.control, PollFlags::IN)];
        // It says nothing that it was not asked for: what can be read now is the end.
        self.given_up
            || poll(&mut look, Some(&Timespec::default()))
                .is_ok_and(|_| !look[0].revents().is_empty())
    }

    /// The next answer.
    fn hear(&mut self, until: Option<Instant>) -> Result<(Answer, Vec<OwnedFd>), String> {
        let mut look = [PollFd::new(&self.control, PollFlags::IN)];
        loop {
            match poll(&mut look, left(until).as_ref()) {
                Ok(0) => {
                    self.given_up = true;
                    // One that does not answer may be stopped: it must not make a process later that nobody expects.
                    if let Some(pidfd) = &self.pidfd {
                        let _ = pidfd_send_signal(pidfd, Signal::KILL);
                    }
                    return Err(format!(
                        "it (pid {}) did not answer in time and was killed (was it stopped? is `init()` the first line \
                         of `main`? a longer `hello_deadline` gives it more time)",
                        self.pid
                    ));
                }
                Ok(_) => break,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => return Err(format!("its socket cannot be watched: {errno}")),
            }
        }
        let Some(packet) = control::receive_any(self.control.as_fd(), ORDER)? else {
            return Err(format!("it (pid {}) has ended", self.pid));
        };
        let answer =
            Answer::decode(&packet.bytes).ok_or_else(|| "what it said is no answer".to_owned())?;
        Ok((answer, packet.descriptors))
    }

    /// Starts these; each that was started is in `launched` afterwards, also if one could not be.
    fn launch(
        &mut self,
        plans: &[Plan],
        deadline: Duration,
        launched: &mut Vec<Launched>,
    ) -> Result<()> {
        let environment = self.changes();
        let directory = rustix::fs::open(".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let until = Instant::now().checked_add(deadline);
        let mut asked = Vec::with_capacity(plans.len());
        let mut failed = None;
        for plan in plans {
            match self.ask(plan, &environment, directory.as_ref()) {
                Ok(ours) => asked.push((plan, ours)),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        for (plan, control) in asked {
            match self.answered(plan, until) {
                Ok((pid, pidfd)) => launched.push(Launched {
                    pid,
                    pidfd: Some(pidfd),
                    control,
                }),
                Err(error) => {
                    failed.get_or_insert(error);
                    end_unannounced(&control, until);
                }
            }
        }
        failed.map_or(Ok(()), Err)
    }

    /// Asks for a child; gives our end of its control socket.
    fn ask(
        &self,
        plan: &Plan,
        environment: &[(Vec<u8>, Option<Vec<u8>>)],
        directory: Option<&OwnedFd>,
    ) -> Result<OwnedFd> {
        let (ours, theirs) = greet(plan)?;
        // In case that the server does not live to say who it is.
        let _ = sockopt::set_socket_passcred(&ours, true);
        let open = |stream: BorrowedFd<'static>| rustix::io::fcntl_getfd(stream).is_ok();
        let (stdout, stderr) = (rustix::stdio::stdout(), rustix::stdio::stderr());
        // As after exec: in a group of its own, unless it reads what this process would read.
        let group = plan.stdin.is_some().then(fork::own_group).flatten();
        let order = Order {
            title: title(&plan.name).into_vec(),
            group,
            environment: environment.to_vec(),
            stdout: open(stdout),
            stderr: open(stderr),
            directory: directory.is_some(),
        };
        let mut descriptors = vec![theirs.as_fd()];
        descriptors.extend(order.stdout.then_some(stdout));
        descriptors.extend(order.stderr.then_some(stderr));
        descriptors.extend(directory.map(AsFd::as_fd));
        let bytes = postcard::to_stdvec(&order)
            .map_err(|error| plan.failed("the order for it could not be encoded", error))?;
        if bytes.len() > ORDER {
            return Err(plan.failed(
                "its environment differs too much from the fork server's",
                format!("{} bytes, and there is room for {ORDER}; set what is large before the first process is \
                         started by the server, or start this one by \"spawn\"", bytes.len()),
            ));
        }
        control::send(self.control.as_fd(), &bytes, &descriptors)
            .map_err(|errno| plan.failed("the fork server could not be asked", errno))?;
        Ok(ours)
    }

    /// The child that was asked for.
    fn answered(&mut self, plan: &Plan, until: Option<Instant>) -> Result<(u32, OwnedFd)> {
        let failed = |reason: String| plan.failed("the fork server gave none", reason);
        match self.hear(until).map_err(failed)? {
            (Answer::Started { pid }, mut descriptors) => match descriptors.pop() {
                Some(pidfd) => Ok((pid.unsigned_abs(), pidfd)),
                None => {
                    // Ours to wait for, and nobody has: the id is still its own.
                    if let Some(pid) = Pid::from_raw(pid) {
                        let _ = kill_process(pid, Signal::KILL);
                        let _ = waitpid(Some(pid), WaitOptions::empty());
                    }
                    Err(plan.failed(NO_DESCRIPTOR, Errno::MFILE))
                }
            },
            (Answer::Failed { errno }, _) => {
                let errno = Errno::from_raw_os_error(errno);
                self.unable |= matches!(errno, Errno::NOSYS | Errno::PERM | Errno::INVAL);
                let what = "the fork server could not copy itself";
                let advice = advice(&errno.into());
                Err(plan.failed(&format!("{what}{advice}"), errno))
            }
            (answer, _) => Err(failed(unexpected(answer))),
        }
    }

    /// What is different in the environment since the server was started.
    fn changes(&self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let now: Vec<_> = std::env::vars_os().collect();
        if now == self.environment {
            return Vec::new();
        }
        let mut before: HashMap<_, _> = self
            .environment
            .iter()
            .map(|(name, value)| (name, value))
            .collect();
        let mut changes = Vec::new();
        for (name, value) in &now {
            if before.remove(name) != Some(value) && name != MARKER {
                changes.push((name.as_bytes().to_vec(), Some(value.as_bytes().to_vec())));
            }
        }
        let gone = before.into_keys().filter(|&name| name != MARKER);
        changes.extend(gone.map(|name| (name.as_bytes().to_vec(), None)));
        changes
    }
}

/// Ends a child that may have been made without an answer: its server was killed in between. It is ours to wait for, and
/// what it says by its socket comes with its process id. Where there is none, nobody has the other end of that socket.
fn end_unannounced(control: &OwnedFd, until: Option<Instant>) {
    let mut look = [PollFd::new(control, PollFlags::IN)];
    match poll(&mut look, left(until).as_ref()) {
        Ok(1..) => {}
        _ => return,
    }
    if let Some(pid) = control::sender(control.as_fd()) {
        tracing::debug!(pid = %pid.as_raw_nonzero(), "the fork server ended before it could tell of this process");
        let _ = kill_process(pid, Signal::KILL);
        let _ = waitpid(Some(pid), WaitOptions::empty());
    }
}

/// What is left until then, for `poll`.
fn left(until: Option<Instant>) -> Option<Timespec> {
    until.map(|until| {
        let left = until.saturating_duration_since(Instant::now());
        Timespec {
            tv_sec: left.as_secs().min(i32::MAX as u64) as i64,
            tv_nsec: left.subsec_nanos().into(),
        }
    })
}

fn unexpected(answer: Answer) -> String {
    match answer {
        Answer::Refused { reason } => reason,
        other => format!("it said {other:?}, which is no answer to what it was asked"),
    }
}
