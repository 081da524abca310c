//! The fork server's own side: a process with one thread that makes a copy of itself for each order.
//!
//! It has nothing that a copy must not have: no thread, no place in the arena, no socket of any child. A copy is a worker
//! whose stdin is the control socket, just as after exec, and goes the same way from there.

use std::ffi::OsStr;
use std::io::Write;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, setpgid};
use serde::{Deserialize, Serialize};

use crate::condition::Condition;
use crate::control;
use crate::entry;
use crate::fork::{self, Copied};
use crate::frame::clip;
use crate::hello::Hello;
use crate::image::image;
use crate::link;
use crate::panic;
use crate::task;
use crate::trampoline;
use crate::worker::{Call, REFUSED};

/// Room for any order: its environment is what differs from the server's.
pub(crate) const ORDER: usize = 128 << 10;

/// Room for the title of a child, and what the server's own is filled up to.
pub(crate) const TITLE: usize = 512;

/// One child, please. With it come its control socket, and then what is said to come.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Order {
    /// The command line that it shows.
    pub(crate) title: Vec<u8>,
    /// The process group that it joins; a new one of its own if there is none.
    pub(crate) group: Option<i32>,
    /// Variables that differ from those that the server was started with.
    pub(crate) environment: Vec<(Vec<u8>, Option<Vec<u8>>)>,
    /// Its stdout, its stderr and its working directory come along.
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
    pub(crate) directory: bool,
}

/// What the server says.
#[derive(Debug, Serialize, Deserialize, PartialEq, Eq)]
pub(crate) enum Answer {
    /// It has reached `init`.
    Arrived,
    /// What was to be loaded is loaded; orders are taken from now on.
    Ready,
    /// It cannot be a fork server.
    Refused { reason: String },
    /// The child, whose process descriptor comes along.
    Started { pid: i32 },
    /// There is no child: the error's number.
    Failed { errno: i32 },
}

impl Answer {
    /// The answer in a packet; `None` for what is none.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Answer> {
        postcard::from_bytes(bytes).ok()
    }
}

/// The whole life of the server. Returns in a copy, which is then a worker whose stdin is its control socket.
pub(crate) fn serve(hello: &Hello, control: OwnedFd) {
    answer(&control, &Answer::Arrived, &[]);
    entry::name_process("forkserver");
    if let Err(reason) = entry::empty_stdin().and_then(|()| prepare(hello, &control)) {
        let reason = clip(reason);
        answer(&control, &Answer::Refused { reason }, &[]);
        std::process::exit(REFUSED);
    }
    let title = fork::command_line();
    answer(&control, &Answer::Ready, &[]);
    loop {
        let (order, descriptors) = match next(&control) {
            Ok(Some(order)) => order,
            // The parent is gone.
            Ok(None) => std::process::exit(0),
            Err(reason) => {
                answer(&control, &Answer::Refused { reason }, &[]);
                std::process::exit(REFUSED);
            }
        };
        match fork::copy() {
            Ok(Copied::Child) => {
                drop(control);
                become_worker(&order, descriptors, title.as_ref());
                return;
            }
            Ok(Copied::Server { pid, pidfd }) => {
                link::failpoint!("forkserver.copied");
                drop(descriptors);
                let pid = pid.as_raw_nonzero().get();
                answer(&control, &Answer::Started { pid }, &[&pidfd]);
            }
            Err(errno) => {
                let errno = errno.raw_os_error();
                answer(&control, &Answer::Failed { errno }, &[]);
            }
        }
    }
}

/// A parent that is gone needs no answer, and the next look for an order finds out.
fn answer(control: &OwnedFd, answer: &Answer, descriptors: &[&OwnedFd]) {
    let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
    match postcard::to_stdvec(answer) {
        Ok(bytes) => drop(control::send(control.as_fd(), &bytes, &descriptors)),
        Err(error) => link::say!(error, %error, "an answer could not be encoded"),
    }
}

fn next(control: &OwnedFd) -> Result<Option<(Order, Vec<OwnedFd>)>, String> {
    let Some(packet) = control::receive(control.as_fd(), ORDER)? else {
        return Ok(None);
    };
    let order = postcard::from_bytes(&packet.bytes)
        .map_err(|error| format!("an order could not be read: {error}"))?;
    Ok(Some((order, packet.descriptors)))
}

/// Does what is to be done once for all children, and checks that nothing is left that a copy must not have.
fn prepare(hello: &Hello, control: &OwnedFd) -> Result<(), String> {
    one_thread(
        "something that runs before `init` (a runtime, as that of `#[tokio::main]`? a library's constructor?)",
    )?;
    if hello.offset != 0 {
        let preload = trampoline::resolve(image()?, hello)?;
        let call = Call {
            hello,
            plain: &[],
            control: control.as_fd(),
        };
        let condition = Condition::now();
        task::without(|| catch_unwind(AssertUnwindSafe(|| preload(&call)))).map_err(|payload| {
            format!("preloading panicked: {}", panic::caught(payload).message)
        })?;
        one_thread("the preloaded function")?;
        condition
            .put_back()
            .map_err(|errno| format!("its environment could not be put back: {errno}"))?;
        if link::has_arena() {
            return Err(
                "the preloaded function made a tensor, a queue or another thing of the arena: a child could not have it, \
                 since it is no copy's own. Make it in the program and hand it over"
                    .to_owned(),
            );
        }
        // What is buffered here would be written by each copy once more.
        let _ = std::io::stdout().flush();
    }
    Ok(())
}

/// So long a thread may be listed after it was joined, as the system takes its end apart, or without the name that it is
/// about to give itself.
const SETTLING: Duration = Duration::from_millis(100);

fn one_thread(who: &str) -> Result<(), String> {
    let mut settling = link::Patience::new(SETTLING);
    loop {
        let count = fork::threads().map_err(|errno| {
            format!("its threads could not be counted in /proc/self/task: {errno}")
        })?;
        if count == 1 {
            return Ok(());
        }
        if settling.is_over(Instant::now()) {
            break;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    Err(format!(
        "{who} left threads running ({}): a copy of the process would not have them, but whatever they hold locked. Let \
         it end them, or start these processes by \"spawn\"",
        fork::other_threads().join(", ")
    ))
}

/// Makes this copy what a child of the parent would be after exec. What cannot be done is told as any other refusal.
fn become_worker(order: &Order, descriptors: Vec<OwnedFd>, title: Option<&Range<usize>>) {
    let mut descriptors = descriptors.into_iter();
    let Some(socket) = descriptors.next() else {
        // Nobody could be told: the parent sees that nobody holds the other end.
        std::process::exit(REFUSED);
    };
    if let Err(reason) = resemble(order, &mut descriptors, title) {
        entry::refuse(&socket, reason);
    }
    if let Err(errno) = rustix::stdio::dup2_stdin(&socket) {
        entry::refuse(
            &socket,
            format!("its stdin could not be put in place: {errno}"),
        );
    }
}

/// What a program finds in place of a stdout or stderr that was closed when it was run.
fn nowhere() -> Result<OwnedFd, Errno> {
    let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
    rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())
}

fn resemble(
    order: &Order,
    descriptors: &mut impl Iterator<Item = OwnedFd>,
    title: Option<&Range<usize>>,
) -> Result<(), String> {
    let failed = |what: &str, errno: Errno| format!("{what}: {errno}");
    let mut take = |promised: bool| {
        if !promised {
            return Ok(None);
        }
        let missing = || "a descriptor that the order promises is missing".to_owned();
        descriptors.next().map(Some).ok_or_else(missing)
    };
    let stdout = take(order.stdout)?.map_or_else(nowhere, Ok);
    stdout
        .and_then(|stdout| rustix::stdio::dup2_stdout(&stdout))
        .map_err(|errno| failed("its stdout could not be put in place", errno))?;
    let stderr = take(order.stderr)?.map_or_else(nowhere, Ok);
    stderr
        .and_then(|stderr| rustix::stdio::dup2_stderr(&stderr))
        .map_err(|errno| failed("its stderr could not be put in place", errno))?;
    if let Some(directory) = take(order.directory)? {
        rustix::process::fchdir(&directory)
            .map_err(|errno| failed("its working directory could not be entered", errno))?;
    }
    setpgid(None, order.group.and_then(Pid::from_raw))
        .map_err(|errno| failed("its process group could not be joined", errno))?;
    for (name, value) in &order.environment {
        let value = value.as_deref().map(OsStr::from_bytes);
        fork::set_environment(OsStr::from_bytes(name), value)
            .map_err(|errno| failed("its environment could not be set", errno))?;
    }
    if let Some(title) = title {
        fork::set_title(title, &order.title)
            .map_err(|errno| failed("its command line could not be set", errno))?;
    }
    Ok(())
}
