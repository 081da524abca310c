//! A fork server that runs, as the process that started it sees it: its start, what it is asked for, and its answers.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process, waitpid};

use crate::condition;
use crate::control;
use crate::death::{self, Child};
use crate::desk;
use crate::entry::MARKER;
use crate::error::{Error, ErrorKind, Exit, Result};
use crate::fork;
use crate::launch::{Launched, NO_DESCRIPTOR, Plan, advice, greet, title};
use crate::link::{self, Patience, say};
use crate::rights::Rights;
use crate::server::{Answer, ORDER, Order};
use crate::trampoline::Target;

#[derive(Debug)]
pub(super) struct Server {
    /// The process that has it; a bare fork of that has no server.
    owner: Pid,
    pub(super) pid: u32,
    child: Option<Arc<Child>>,
    control: Arc<OwnedFd>,
    /// The environment that it was started with.
    environment: Vec<(OsString, OsString)>,
    /// What the thread could do that asked for it.
    pub(super) rights: Rights,
    /// Nothing could be copied (a filter of system calls): processes are started by `spawn`.
    pub(super) unable: bool,
    /// It was killed because it did not answer.
    given_up: bool,
    /// It has ended by itself.
    ended: bool,
    /// It has, and nobody was made of those that it was asked for and of whom it did not tell.
    pub(super) was_gone: bool,
}

/// How long a process takes to end after it has closed what it had open.
const DYING: Duration = Duration::from_secs(2);

/// The server that was started or used last, for who only asks which that is: apart from what is locked while one is started.
static SERVES: Mutex<Option<(u32, u32)>> = Mutex::new(None);

/// Its process id, in the process that started it.
pub(super) fn pid() -> Option<u32> {
    let serves = *SERVES.lock();
    serves
        .filter(|(owner, _)| *owner == std::process::id())
        .map(|(_, pid)| pid)
}

impl Drop for Server {
    fn drop(&mut self) {
        SERVES.lock().take_if(|(_, pid)| *pid == self.pid);
        if self.is_lost() {
            // What has its number is not ours to close.
            std::mem::forget(Arc::clone(&self.control));
            if self.is_mine() {
                // It ends, since nobody has the other end any more.
                desk::mind_again(self.pid);
            }
        }
    }
}

impl Server {
    /// A server that is ready for orders.
    pub(super) fn start(
        preload: Option<(Target, Duration)>,
        rights: &Rights,
        deadline: Duration,
    ) -> Result<Server> {
        let environment: Vec<_> = std::env::vars_os().collect();
        let (pid, child, control) = desk::start_server(preload.map(|(target, _)| target), rights)?;
        let mut server = Server {
            owner: getpid(),
            pid,
            child,
            control: Arc::new(control),
            environment,
            rights: rights.clone(),
            unable: false,
            given_up: false,
            ended: false,
            was_gone: false,
        };
        let refused = |what: String| {
            let preloading = preload.map_or(String::new(), |(f, _)| {
                format!(" that preloads `{}`", f.name)
            });
            Error::new(
                ErrorKind::Launch,
                format!("the fork server{preloading} could not be started: {what}"),
            )
        };
        let mut wait = Patience::new(deadline);
        match server.hear(&mut wait).map_err(refused)? {
            (Answer::Arrived, _) => {}
            (answer, _) => return Err(refused(unexpected(answer))),
        }
        let mut wait = Patience::new(deadline);
        if let Some((f, limit)) = &preload {
            if *limit > deadline && !server.speaks(&mut wait).map_err(refused)? {
                say!(
                    warn,
                    pid = server.pid,
                    "the fork server still preloads `{}`, for which processes wait; it has {limit:?}, all in all",
                    f.name
                );
            }
            wait.set_whole(*limit);
            if !server.speaks(&mut wait).map_err(refused)? {
                server.give_up();
                return Err(refused(format!(
                    "that had not returned within {limit:?}, so the server (pid {}) was killed; \
                     `forkserver::preload_within` gives it longer",
                    server.pid
                )));
            }
        }
        let arrived = server.hear(&mut wait);
        let arrived = arrived.map_err(|what| match &preload {
            Some(_) if server.ended => format!("{what} before that had returned"),
            _ => what,
        });
        match arrived.map_err(refused)? {
            (Answer::Ready, _) => {
                server.serves();
                Ok(server)
            }
            (answer, _) => Err(refused(unexpected(answer))),
        }
    }

    /// From now on it is the one that is named.
    fn serves(&self) {
        *SERVES.lock() = Some((std::process::id(), self.pid));
    }

    pub(super) fn is_mine(&self) -> bool {
        self.owner == getpid()
    }

    pub(super) fn has_ended(&self) -> bool {
        let mut look = [PollFd::new(&self.control, PollFlags::IN)];
        // It says nothing that it was not asked for: what can be read now is the end.
        self.given_up
            || self.is_lost()
            || poll(&mut look, Some(&Timespec::default()))
                .is_ok_and(|_| !look[0].revents().is_empty())
    }

    /// Something in this program closed the way to it, and its number may be somebody else's by now.
    fn is_lost(&self) -> bool {
        !control::is_one_of_a_pair_of(self.control.as_fd(), self.owner)
    }

    /// Whether it says something before that is over.
    fn speaks(&self, wait: &mut Patience) -> Result<bool, String> {
        let speaks = control::is_readable(&self.control, wait);
        speaks.map_err(|errno| format!("its socket cannot be watched: {errno}"))
    }

    /// One that does not answer may be stopped: it must not make a process later that nobody expects.
    fn give_up(&mut self) {
        self.given_up = true;
        if let Some(child) = &self.child {
            let _ = death::signal(&child.pidfd, self.pid, Signal::KILL);
        }
    }

    /// What is told of one that was given up.
    fn silent(&self) -> String {
        format!(
            "it (pid {}) did not answer in time and was killed (was it stopped? is `init()` the first line of `main`? a \
             longer `hello_deadline` gives it more time)",
            self.pid
        )
    }

    /// What is told of one that has ended.
    fn end(&self) -> String {
        let exit = self.child.as_ref().and_then(|child| child.ends(DYING));
        match exit {
            Some(exit) if exit != Exit::Unknown => format!("it (pid {}) {exit}", self.pid),
            _ => format!("it (pid {}) has ended", self.pid),
        }
    }

    /// The next answer.
    fn hear(&mut self, wait: &mut Patience) -> Result<(Answer, Vec<OwnedFd>), String> {
        if !self.speaks(wait)? {
            self.give_up();
            return Err(self.silent());
        }
        let Some(packet) = control::receive_any(self.control.as_fd(), ORDER)? else {
            self.ended = true;
            return Err(self.end());
        };
        let answer =
            Answer::decode(&packet.bytes).ok_or_else(|| "what it said is no answer".to_owned())?;
        Ok((answer, packet.descriptors))
    }

    /// Starts these; each that was started is in `launched` afterwards, also if one could not be: then these are the first
    /// of all.
    pub(super) fn launch(
        &mut self,
        plans: &[Plan],
        deadline: Duration,
        launched: &mut Vec<Launched>,
    ) -> Result<()> {
        self.serves();
        let environment = self.changes();
        let directory = rustix::fs::open(".", OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok();
        let mut wait = Patience::new(deadline);
        // One that is stopped takes nothing, and its socket has room for so much only.
        let step = (deadline / 8).clamp(Duration::from_millis(1), Duration::from_secs(3600));
        let _ = sockopt::set_socket_timeout(&self.control, sockopt::Timeout::Send, Some(step));
        let mut asked = Vec::with_capacity(plans.len());
        let mut failed = None;
        for plan in plans {
            match self.ask(plan, &environment, directory.as_ref(), &mut wait) {
                Ok(ours) => asked.push((plan, ours)),
                Err(error) => {
                    self.ended |= self.has_ended() && !self.given_up;
                    failed = Some((error, self.ended));
                    break;
                }
            }
        }
        link::failpoint!("forkserver.asked");
        let mut nobody = true;
        for (plan, control) in asked {
            match self.answered(plan, &mut wait) {
                Ok((pid, pidfd)) => launched.push(Launched {
                    pid,
                    pidfd: Some(pidfd),
                    control,
                }),
                Err(error) => {
                    failed.get_or_insert((error, self.ended));
                    nobody &= end_unannounced(&control, &mut wait);
                }
            }
        }
        let Some((error, at_its_end)) = failed else {
            return Ok(());
        };
        self.was_gone = at_its_end && nobody;
        Err(error)
    }

    /// Asks for a child; gives our end of its control socket.
    fn ask(
        &mut self,
        plan: &Plan,
        environment: &[(Vec<u8>, Option<Vec<u8>>)],
        directory: Option<&OwnedFd>,
        wait: &mut Patience,
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
        let sent = loop {
            match control::send(self.control.as_fd(), &bytes, &descriptors) {
                Err(Errno::AGAIN) if !wait.is_over(Instant::now()) => {}
                sent => break sent,
            }
        };
        match sent {
            Ok(()) => Ok(ours),
            Err(Errno::AGAIN) => {
                self.give_up();
                Err(plan.failed("the fork server could not be asked", self.silent()))
            }
            Err(errno) => {
                let advice = advice(&errno.into());
                let what = format!("the fork server could not be asked{advice}");
                Err(plan.failed(&what, errno))
            }
        }
    }

    /// The child that was asked for.
    fn answered(&mut self, plan: &Plan, wait: &mut Patience) -> Result<(u32, OwnedFd)> {
        let failed = |reason: String| plan.failed("the fork server gave none", reason);
        match self.hear(wait).map_err(failed)? {
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
        condition::changes(&self.environment, &now)
            .into_iter()
            .filter(|(name, _)| *name != MARKER)
            .map(|(name, value)| {
                let value = value.map(|value| value.as_bytes().to_vec());
                (name.as_bytes().to_vec(), value)
            })
            .collect()
    }
}

/// Ends a child that may have been made without an answer: its server was killed in between. It is ours to wait for, and
/// what it says by its socket comes with its process id. Whether there certainly is none that could have run anything:
/// then nobody has the other end of that socket, and the greeting in it was never read.
fn end_unannounced(control: &OwnedFd, wait: &mut Patience) -> bool {
    if control::is_readable(control, wait) != Ok(true) {
        return false;
    }
    match control::sender(control.as_fd()) {
        Ok(Some(pid)) => {
            say!(debug, pid = %pid.as_raw_nonzero(), "the fork server ended before it could tell of this process");
            let _ = kill_process(pid, Signal::KILL);
            let _ = waitpid(Some(pid), WaitOptions::empty());
            false
        }
        Ok(None) => false,
        Err(errno) => errno == Errno::CONNRESET,
    }
}

fn unexpected(answer: Answer) -> String {
    match answer {
        Answer::Refused { reason } => reason,
        other => format!("it said {other:?}, which is no answer to what it was asked"),
    }
}
