//! The way into a process: [`init`] tells the program from its workers, and a worker never comes back from it.
//!
//! A worker's main thread becomes its watcher. It sees to it that the worker does not outlive its parent, in three ways
//! that cover each other: the kernel's parent-death signal, a comparison of the parent's id (the parent may have died
//! before the signal was armed), and the end of the control socket. The function runs on a thread of its own, so that
//! it may start a runtime or be given another stack, whatever `main` is; when it has returned, the process ends.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, fcntl_dupfd_cloexec};
use rustix::net::{SocketType, sockopt};
use rustix::process::{
    Pid, Signal, getpid, getppid, kill_process, set_parent_process_death_signal,
};

use crate::control;
use crate::door::{self, Door};
use crate::error::{Error, ErrorKind, Result};
use crate::frame::{Frame, clip};
use crate::hello::{Hello, INLINE, SERVER};
use crate::image::image;
use crate::launch::{advice, is_a_title};
use crate::link;
use crate::panic;
use crate::server;
use crate::setup::{ORDERS, Orders};
use crate::signals;
use crate::task;
use crate::testing;
use crate::trampoline::{self, Trampoline};
use crate::worker::{Call, REFUSED};

/// Set in a worker's environment to its parent's process id. It is a hint: whether a process is a worker is decided by
/// what its stdin is.
pub(crate) const MARKER: &str = "TENSORMP_WORKER_OF";

/// How deep processes may start processes: beyond that it is a mistake that would fill the machine.
const DEEPEST: u32 = 8;

/// The stack of a worker's function: what a main thread usually has. Pages that are not used cost nothing.
const STACK: usize = 8 << 20;

/// A worker's process id, and its end of the control socket.
static CONTROL: OnceLock<(u32, &'static OwnedFd)> = OnceLock::new();

/// Which participant started a worker, and the number of the context there that it belongs to.
static SUPERVISOR: OnceLock<(link::Member, u32)> = OnceLock::new();

/// A worker's function, once the process is what the greeting says.
static READY: OnceLock<Trampoline> = OnceLock::new();

/// A worker's name.
static NAME: OnceLock<String> = OnceLock::new();
/// What a parent says to a child that shall outlive it.
pub(crate) const DETACH: &[u8] = b"detach";

pub(crate) static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// `init` was called where it cannot be the first line of `main`.
static ASTRAY: AtomicBool = AtomicBool::new(false);

/// What to do about that.
const NOT_IN_A_TEST: &str = "`init()` was called on another thread than that of `main`: make it the first line of `main`. \
                             In a test of the standard harness, where each worker would run the other tests, make \
                             `init_in_test!()` (of `tensormp` or `spawn`) the first line of the test";

/// What to do where that is forgotten in one test of several.
const FORGOTTEN: &str = "`init_in_test!()` (of `tensormp` or `spawn`) is not the first line of this test. It is that of \
                         another one here, so a worker would come to `init` by way of that, but this test would fail \
                         when it is run alone: add the line";

/// How deep this process is; unset in the program itself.
static DEPTH: OnceLock<u32> = OnceLock::new();

/// The first line of `main`: lets this executable be its own worker.
///
/// In the program itself it notes that it was called and returns. In a process that was made by [`spawn`](crate::spawn)
/// it runs the function, and does not return: nothing after it in `main` happens in a worker, everything before it does.
///
/// In a `#[test]` of the standard harness it is [`init_in_test!`](crate::init_in_test) that belongs there: each worker
/// would run the other tests before it came here. So a call on another thread than that of `main` does nothing, and what
/// is spawned then is an error that says so.
///
/// ```no_run
/// fn main() -> Result<(), Box<dyn std::error::Error>> {
///     spawn::init();
///     // the program
///     Ok(())
/// }
/// ```
pub fn init() {
    init_with(&[]);
}

/// [`init`] for an executable that is the worker of other programs too: they find these functions by name. What
/// [`worker_main!`](crate::worker_main) calls.
pub fn init_with(doors: &[Door]) {
    let is_main_thread = rustix::thread::gettid() == getpid();
    if !is_main_thread {
        testing::note_init();
    }
    if is_main_thread || INITIALIZED.load(Ordering::Relaxed) {
        return enter(doors);
    }
    ASTRAY.store(true, Ordering::Relaxed);
    if matches!(role(), Role::Worker) {
        // What it was started for is told; other tests may run in it already.
        match take_stdin() {
            Ok(control) => refuse(&control, NOT_IN_A_TEST.to_owned()),
            Err(_) => std::process::exit(REFUSED),
        }
    }
}

/// [`init_with`], whatever thread this is.
pub(crate) fn enter(doors: &[Door]) {
    if INITIALIZED.swap(true, Ordering::Relaxed) {
        return;
    }
    match role() {
        Role::Program => {}
        Role::Worker => serve(doors),
        Role::Broken(reason) => {
            eprintln!("this process is a worker, but {reason}");
            std::process::exit(REFUSED);
        }
    }
}

/// Checks that a child of this process would know what it is, and gives the depth that it would have. A child that is
/// another executable knows by itself, unless this process is one that did not.
pub(crate) fn depth_of_a_child(foreign: bool) -> Result<u32> {
    let marked = || std::env::var_os(MARKER).is_some();
    if !INITIALIZED.load(Ordering::Relaxed) && (!foreign || marked()) {
        let message = if marked() {
            "this process was started as a worker and has not called `init` yet, so what it spawns would spawn again \
             without end: make `init()` the first line of `main`"
        } else if ASTRAY.load(Ordering::Relaxed) {
            NOT_IN_A_TEST
        } else {
            "`init` was not called in this process, and a child is the same executable run again, which would not know \
             that it is one: make `init()` the first line of `main`, or `init_in_test!()` that of a test"
        };
        return Err(Error::new(ErrorKind::NotInitialized, message));
    }
    if !foreign && testing::is_forgotten() {
        let message = if testing::has_called_init() {
            NOT_IN_A_TEST
        } else {
            FORGOTTEN
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

pub(crate) enum Role {
    Program,
    Worker,
    Broken(String),
}

/// A worker's stdin is a packet socket that its parent made. Nothing that a worker starts in other ways can be taken
/// for a worker: the marker is inherited, the stdin is not.
pub(crate) fn role() -> Role {
    let Some(parent) = std::env::var(MARKER)
        .ok()
        .and_then(|text| text.parse().ok())
        .and_then(Pid::from_raw)
    else {
        return Role::Program;
    };
    let stdin = rustix::stdio::stdin();
    // A parent in another pid namespace has no id here, nor has the other end of the socket; then it alone has to tell.
    let is_elsewhere = getppid().is_none();
    let is_ours = sockopt::socket_type(stdin) == Ok(SocketType::SEQPACKET)
        && (is_elsewhere || sockopt::socket_peercred(stdin).is_ok_and(|peer| peer.pid == parent));
    if is_ours {
        Role::Worker
    } else if getppid() == Some(parent) && is_titled() {
        Role::Broken(
            "its stdin is not the control socket any more: something before `init` changed it; make `init()` the first \
             line of `main`"
                .to_owned(),
        )
    } else {
        Role::Program
    }
}

/// Whether this process has a title as a worker gets it. What a worker started in other ways, and left behind, may have
/// become the child of the worker's parent: the first process of a container inherits all orphans.
fn is_titled() -> bool {
    std::env::args_os()
        .next()
        .is_some_and(|title| is_a_title(&title))
}

/// The whole life of a worker, on its main thread. That of a fork server begins the same way, and each of its copies
/// comes back to the beginning.
fn serve(doors: &[Door]) -> ! {
    signals::reset();
    loop {
        let control = match take_stdin() {
            Ok(control) => control,
            Err(errno) => {
                eprintln!(
                    "this process is a worker, but its stdin could not be taken over: {errno}"
                );
                std::process::exit(REFUSED);
            }
        };
        // Before anything can take long.
        if let Err(errno) = set_parent_process_death_signal(Some(Signal::KILL)) {
            link::say!(debug, %errno, "no parent-death signal; the control socket has to do");
        }
        match greet(&control) {
            Ok(Some(Greeted { hello, .. })) if hello.role == SERVER => {
                server::serve(&hello, control);
            }
            Ok(Some(greeting)) => {
                let _ = DEPTH.set(greeting.hello.depth);
                // Open until the process ends, because its end is the news of that.
                let control: &'static OwnedFd = Box::leak(Box::new(control));
                work(greeting, doors, control)
            }
            // The parent is gone: nobody waits for an explanation.
            Ok(None) => die(),
            Err(reason) => refuse(&control, reason),
        }
    }
}

/// Runs the function on a thread of its own, which ends the process, and watches the parent meanwhile.
fn work(mut greeting: Greeted, doors: &[Door], control: &'static OwnedFd) -> ! {
    let name = greeting.hello.name();
    let _ = CONTROL.set((std::process::id(), control));
    let _ = NAME.set(name.clone());
    let _ = SUPERVISOR.set((greeting.hello.supervisor(), greeting.hello.context));
    // Until the process ends.
    let _serving = link::serve();
    name_process(&name);
    // Nice values and processors are inherited by threads, so before there is another one.
    if let Err(reason) = greeting.orders.follow() {
        refuse(control, reason);
    }
    let hello = greeting.hello;
    let plain = std::mem::take(&mut greeting.plain);
    let started = thread::Builder::new()
        .name(name)
        .stack_size(STACK)
        .spawn(move || {
            // A panic of ours, not of the function, must not leave the process waiting for its parent.
            let code = catch_unwind(AssertUnwindSafe(|| run(&hello, &plain, control)));
            // Runs the exit handlers, and before them drops this thread's own variables.
            std::process::exit(code.unwrap_or(REFUSED))
        });
    if let Err(error) = started {
        let advice = advice(&error);
        let reason = format!("the thread for its function could not be started{advice}: {error}");
        refuse(control, reason);
    }
    // While the thread comes up, which takes longer than this.
    match catch_unwind(AssertUnwindSafe(|| prepare(greeting, doors, control))) {
        Ok(Ok(trampoline)) => drop(READY.set(trampoline)),
        Ok(Err(reason)) => refuse(control, reason),
        Err(_) => std::process::exit(REFUSED),
    }
    watch(control)
}

/// Runs the function once all is ready for it. Gives the exit code.
fn run(hello: &Hello, plain: &[u8], control: &'static OwnedFd) -> i32 {
    let call = Call {
        hello,
        plain,
        control: control.as_fd(),
    };
    let trampoline = READY.wait();
    panic::enter_function();
    testing::is_no_test();
    trampoline(&call)
}

/// Tells the parent why this process does not run its function, and ends it.
pub(crate) fn refuse(control: &OwnedFd, reason: String) -> ! {
    let reason = clip(reason);
    let _ = control::tell_last(control.as_fd(), &Frame::Refused { reason });
    std::process::exit(REFUSED)
}

/// Another descriptor for the control socket, which is to be moved away from fd 0.
fn take_stdin() -> Result<OwnedFd, Errno> {
    fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)
}

/// Puts /dev/null where the control socket was, so that the function finds an empty stdin and what it starts does not
/// inherit the socket.
pub(crate) fn empty_stdin() -> Result<(), String> {
    let flags = rustix::fs::OFlags::RDONLY;
    rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty())
        .and_then(|null| rustix::stdio::dup2_stdin(&null))
        .map_err(|errno| format!("/dev/null could not be put in place of its stdin: {errno}"))
}

/// What a parent said, and what came with it.
struct Greeted {
    hello: Hello,
    orders: Orders,
    /// The arguments, if they came along.
    plain: Vec<u8>,
    descriptors: Vec<OwnedFd>,
}

/// Reads the greeting and what came with it. `None`: there is no parent.
fn greet(control: &OwnedFd) -> Result<Option<Greeted>, String> {
    let Some(packet) = control::receive(control.as_fd(), size_of::<Hello>() + ORDERS + INLINE)?
    else {
        return Ok(None);
    };
    let (hello, rest) = packet
        .bytes
        .split_at(packet.bytes.len().min(size_of::<Hello>()));
    let hello = Hello::read(hello)?;
    let (orders, plain) = match hello.role {
        SERVER => (Orders::default(), rest),
        _ => Orders::read(rest)?,
    };
    // A parent in another pid namespace has no id here; then the socket alone has to tell.
    if getppid().is_some_and(|parent| parent.as_raw_nonzero().get().unsigned_abs() != hello.parent)
    {
        return Ok(None);
    }
    testing::reach_by(&orders.arguments);
    Ok(Some(Greeted {
        hello,
        orders,
        plain: plain.to_vec(),
        descriptors: packet.descriptors,
    }))
}

/// Makes the process what the greeting says (its stdin, its place in the arena), and finds its function.
fn prepare(
    greeting: Greeted,
    doors: &[Door],
    control: &'static OwnedFd,
) -> Result<Trampoline, String> {
    let Greeted {
        hello,
        orders,
        descriptors,
        ..
    } = greeting;
    let trampoline = match &orders.door {
        Some(name) => door::find(doors, name)?,
        None => trampoline::resolve(image()?, &hello)?,
    };
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
    } else {
        empty_stdin()?;
    }
    if orders.stdout {
        let Some(stdout) = descriptors.next() else {
            return Err("the greeting came without the stdout that it promises".to_owned());
        };
        rustix::stdio::dup2_stdout(&stdout)
            .map_err(|errno| format!("its stdout could not be put in place: {errno}"))?;
    }
    link::expect(arena, has_joined)
        .map_err(|error| format!("it has no use for the arena: {error}"))?;
    task::note_early();
    panic::install_hook();
    // A parent that is gone needs no news; the watcher finds that out.
    let _ = control::tell(control.as_fd(), &Frame::Arrived);
    Ok(trampoline)
}

/// Where a worker talks to its parent. A bare fork of it has the descriptor, but what it does is not the worker's doing.
pub(crate) fn control() -> Option<BorrowedFd<'static>> {
    CONTROL
        .get()
        .filter(|_| !is_bare_fork())
        .map(|(_, control)| control.as_fd())
}

/// Whether this process was forked from a worker by other means than this crate, and is none itself.
pub(crate) fn is_bare_fork() -> bool {
    CONTROL
        .get()
        .is_some_and(|&(pid, _)| pid != std::process::id())
}

/// Tells the parent which participant of the arena this process is, and the arena what this process is called.
fn has_joined(me: link::Member) {
    if let Some(control) = control() {
        let (row, epoch) = (me.row, me.epoch);
        let _ = control::tell(control, &Frame::Joined { row, epoch });
    }
    if let Some(name) = NAME.get() {
        link::note_name(name);
    }
    if let Some(&(supervisor, context)) = SUPERVISOR.get() {
        link::note_context(supervisor, context);
    }
}

/// Ends the process when the parent is gone. That it ends when the function is over is the other thread's doing.
fn watch(control: &OwnedFd) -> ! {
    let mut detached = false;
    loop {
        match poll(&mut [PollFd::new(control, PollFlags::IN)], None) {
            Ok(_) => {}
            Err(Errno::INTR | Errno::AGAIN) => continue,
            // Not to be able to watch is no reason to end: the parent-death signal is still armed.
            Err(errno) => {
                link::say!(warn, %errno, "the control socket cannot be watched any more");
                rest();
            }
        }
        match control::receive(control.as_fd(), 64) {
            Ok(Some(packet)) if packet.bytes == DETACH => {
                // By the same thread that armed it.
                let disarmed = set_parent_process_death_signal(None).is_ok();
                detached |= disarmed;
                let _ = control::tell(control.as_fd(), &Frame::Detached { disarmed });
            }
            // What a later version may say is read and left.
            Ok(Some(_)) => {}
            Ok(None) if detached => rest(),
            Ok(None) => die(),
            // The function closed the socket. The parent sees that too, and decides.
            Err(reason) => {
                link::say!(warn, %reason, "the parent cannot be watched any more");
                rest();
            }
        }
    }
}

/// Leaves the end of the process to its function.
fn rest() -> ! {
    loop {
        thread::park();
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
pub(crate) fn name_process(name: &str) {
    let text: Vec<u8> = name.bytes().filter(|&byte| byte != 0).collect();
    if let Ok(text) = std::ffi::CString::new(text) {
        let _ = rustix::thread::set_name(&text);
    }
}

/// This process's own stdin, for a child that is given it.
pub(crate) fn own_stdin() -> std::io::Result<OwnedFd> {
    rustix::stdio::stdin().try_clone_to_owned()
}
