//! The way into a process: [`init`] tells the program from its workers, and a worker never comes back from it.
//!
//! A worker's main thread becomes its watcher. It sees to it that the worker does not outlive its parent, in three ways
//! that cover each other: the kernel's parent-death signal, a comparison of the parent's id (the parent may have died
//! before the signal was armed), and the end of the control socket. The function runs on a thread of its own, so that
//! it may start a runtime or be given another stack, whatever `main` is; when it has returned, the process ends.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{self, JoinHandle};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{SocketType, sockopt};
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal,
};

use crate::control;
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{Frame, clip};
use crate::hello::Hello;
use crate::image::image;
use crate::link;
use crate::panic;
use crate::trampoline::{self, Trampoline};
use crate::worker::{Call, REFUSED};

/// Set in a worker's environment to its parent's process id. It is a hint: whether a process is a worker is decided by
/// what its stdin is.
pub(crate) const MARKER: &str = "TENSORMP_WORKER_OF";

/// How deep processes may start processes: beyond that it is a mistake that would fill the machine.
const DEEPEST: u32 = 8;

/// The stack of a worker's function: what a main thread usually has. Pages that are not used cost nothing.
const STACK: usize = 8 << 20;

/// A worker's end of the control socket; open until the process ends, because its end is the news of that.
static CONTROL: OnceLock<OwnedFd> = OnceLock::new();

static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// How deep this process is; unset in the program itself.
static DEPTH: OnceLock<u32> = OnceLock::new();

/// The first line of `main`: lets this executable be its own worker.
///
/// In the program itself it notes that it was called and returns. In a process that was made by [`spawn`](crate::spawn)
/// it runs the function, and does not return: nothing after it in `main` happens in a worker, everything before it does.
///
/// ```no_run
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     spawn::init();
///     // the program
///     Ok(())
/// }
/// ```
pub fn init() {
    if INITIALIZED.swap(true, Ordering::Relaxed) {
        return;
    }
    match role() {
        Role::Program => {}
        Role::Worker => serve(),
        Role::Broken(reason) => {
            eprintln!("this process is a worker, but {reason}");
            std::process::exit(REFUSED);
        }
    }
}

/// Checks that a child of this process would know what it is, and gives the depth that it would have.
pub(crate) fn depth_of_a_child() -> Result<u32> {
    if !INITIALIZED.load(Ordering::Relaxed) {
        let message = if std::env::var_os(MARKER).is_some() {
            "this process was started as a worker and has not called `init` yet, so what it spawns would spawn again \
             without end: make `init()` the first line of `main`"
        } else {
            "`init` was not called in this process, and a child is the same executable run again, which would not know \
             that it is one: make `init()` the first line of `main` (a test needs a `main` for that: see \"Tests\" in \
             the documentation of this crate)"
        };
        return Err(Error::new(ErrorKind::NotInitialized, message));
    }
    let depth = DEPTH.get().copied().unwrap_or(0);
    if depth >= DEEPEST {
        return Err(Error::new(
            ErrorKind::TooDeep { depth },
            format!(
                "this process is a worker of a worker, {depth} deep, and the limit is {DEEPEST}: does a spawned \
                 function spawn itself?"
            ),
        ));
    }
    Ok(depth + 1)
}

enum Role {
    Program,
    Worker,
    Broken(String),
}

/// A worker's stdin is a packet socket that its parent made. Nothing that a worker starts in other ways can be taken
/// for a worker: the marker is inherited, the stdin is not.
fn role() -> Role {
    let Some(parent) = std::env::var(MARKER)
        .ok()
        .and_then(|text| text.parse().ok())
        .and_then(Pid::from_raw)
    else {
        return Role::Program;
    };
    let stdin = rustix::stdio::stdin();
    let is_ours = sockopt::socket_type(stdin) == Ok(SocketType::SEQPACKET)
        && sockopt::socket_peercred(stdin).is_ok_and(|peer| peer.pid == parent);
    if is_ours {
        Role::Worker
    } else if getppid() == Some(parent) {
        Role::Broken(
            "its stdin is not the control socket any more: something before `init` changed it; make `init()` the first \
             line of `main`"
                .to_owned(),
        )
    } else {
        Role::Program
    }
}

/// The whole life of a worker, on its main thread.
fn serve() -> ! {
    let control = match take_stdin() {
        Ok(control) => CONTROL.get_or_init(|| control),
        Err(errno) => {
            eprintln!("this process is a worker, but its stdin could not be taken over: {errno}");
            std::process::exit(REFUSED);
        }
    };
    // Before anything can take long.
    if let Err(errno) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::debug!(%errno, "no parent-death signal; the control socket has to do");
    }
    let refused = match greet(control) {
        Ok(Some((hello, descriptors))) => match start(hello, control) {
            Ok(function) => {
                // A thread that waits for this no more is found to have ended below.
                let _ = function.ready.send(prepare(&hello, descriptors, control));
                let _serving = link::serve();
                watch(control, &function.done);
                // Joining lets the thread's own variables be dropped before the process ends.
                std::process::exit(function.thread.join().unwrap_or(REFUSED))
            }
            Err(error) => format!("the thread for its function could not be started: {error}"),
        },
        // The parent is gone: nobody waits for an explanation.
        Ok(None) => die(),
        Err(reason) => reason,
    };
    let _ = control::tell(
        control.as_fd(),
        &Frame::Refused {
            reason: clip(refused),
        },
    );
    std::process::exit(REFUSED);
}

/// Moves the control socket away from fd 0 and puts /dev/null there, so that the function finds an empty stdin and what
/// it starts does not inherit the socket.
fn take_stdin() -> Result<OwnedFd, Errno> {
    let control = fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let null = rustix::fs::open(
        "/dev/null",
        rustix::fs::OFlags::RDONLY,
        rustix::fs::Mode::empty(),
    )?;
    rustix::stdio::dup2_stdin(&null)?;
    Ok(control)
}

/// Reads the greeting and what came with it. `None`: there is no parent.
fn greet(control: &OwnedFd) -> Result<Option<(Hello, Vec<OwnedFd>)>, String> {
    let Some(packet) = control::receive(control.as_fd(), size_of::<Hello>())? else {
        return Ok(None);
    };
    let hello = Hello::read(&packet.bytes)?;
    // A parent in another pid namespace has no id here; then the socket alone has to tell.
    if getppid().is_some_and(|parent| parent.as_raw_nonzero().get().unsigned_abs() != hello.parent)
    {
        return Ok(None);
    }
    let _ = DEPTH.set(hello.depth);
    Ok(Some((hello, packet.descriptors)))
}

/// The thread that runs the function.
struct Function {
    /// Where it waits for the process to be what the greeting says.
    ready: Sender<Result<Trampoline, String>>,
    /// An event descriptor, readable when the function is over.
    done: Arc<OwnedFd>,
    /// Gives the exit code.
    thread: JoinHandle<i32>,
}

/// Starts the function's thread. It comes up while the main thread prepares the process, and waits for that.
fn start(hello: Hello, control: &'static OwnedFd) -> std::io::Result<Function> {
    let (ready, prepared) = channel::<Result<Trampoline, String>>();
    let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
    let signal = Signaler(Arc::clone(&done));
    let thread = thread::Builder::new()
        .name(hello.name())
        .stack_size(STACK)
        .spawn(move || {
            let _signal = signal;
            let call = Call {
                hello: &hello,
                control: control.as_fd(),
            };
            match prepared
                .recv()
                .unwrap_or_else(|_| Err("its main thread has ended".to_owned()))
            {
                Ok(trampoline) => {
                    panic::enter_function();
                    trampoline(&call)
                }
                Err(reason) => call.refuse(reason),
            }
        })?;
    Ok(Function {
        ready,
        done,
        thread,
    })
}

/// Tells the watcher that the function is over, however that came.
struct Signaler(Arc<OwnedFd>);

impl Drop for Signaler {
    fn drop(&mut self) {
        // The counter of an event that is written once cannot overflow, the only way in which this can fail.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }
}

/// Makes the process what the greeting says (its stdin, its name, its place in the arena), and finds its function.
fn prepare(
    hello: &Hello,
    descriptors: Vec<OwnedFd>,
    control: &'static OwnedFd,
) -> Result<Trampoline, String> {
    let trampoline = trampoline::resolve(image()?, hello)?;
    let mut descriptors = descriptors.into_iter();
    let Some(arena) = descriptors.next() else {
        return Err("the greeting came without the arena's descriptor".to_owned());
    };
    if hello.stdin == 1 {
        let Some(stdin) = descriptors.next() else {
            return Err("the greeting came without the stdin that it promises".to_owned());
        };
        rustix::stdio::dup2_stdin(&stdin)
            .map_err(|errno| format!("its stdin could not be put in place: {errno}"))?;
    }
    name_process(&hello.name());
    let member =
        link::join(arena).map_err(|error| format!("it could not join the arena: {error}"))?;
    link::note_name(&hello.name());
    panic::install_hook(control.as_fd());
    // A parent that is gone needs no news; the watcher finds that out.
    let _ = control::tell(
        control.as_fd(),
        &Frame::Arrived {
            row: member.row,
            epoch: member.epoch,
        },
    );
    Ok(trampoline)
}

/// Returns when the function is over. When the parent is gone before, ends the process.
fn watch(control: &OwnedFd, done: &OwnedFd) {
    loop {
        let mut watched = [
            PollFd::new(done, PollFlags::IN),
            PollFd::new(control, PollFlags::IN),
        ];
        match poll(&mut watched, None) {
            Ok(_) => {}
            Err(Errno::INTR | Errno::AGAIN) => continue,
            // Not to be able to watch is no reason to end: the parent-death signal is still armed.
            Err(_) => return,
        }
        if !watched[0].revents().is_empty() {
            return;
        }
        // The parent says nothing yet that this version understands; what it says is read and left.
        if matches!(control::receive(control.as_fd(), 64), Ok(None)) {
            die();
        }
    }
}

/// Ends this process as the parent-death signal would: no destructor, no exit handler, no core dump. The function may
/// be in the middle of anything, and there is nobody to wait for it.
fn die() -> ! {
    let _ = kill_process(getpid(), Signal::KILL);
    // SIGKILL cannot be refused; the compiler does not know.
    std::process::abort();
}

/// The name that `top`, `ps` and a debugger show: that of the main thread. Without it they would show `exe`.
fn name_process(name: &str) {
    let text: Vec<u8> = name.bytes().filter(|&byte| byte != 0).collect();
    if let Ok(text) = std::ffi::CString::new(text) {
        let _ = rustix::thread::set_name(&text);
    }
}

/// This process's own stdin, for a child that is given it.
pub(crate) fn own_stdin() -> std::io::Result<OwnedFd> {
    rustix::stdio::stdin().try_clone_to_owned()
}
