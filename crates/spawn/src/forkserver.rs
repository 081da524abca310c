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
//! umask, which signals are ignored, priority and CPUs, namespaces and control groups, Landlock rules, and descriptors that
//! do not close on exec.
//!
//! It has the rights of the thread that starts it: user and groups, capabilities, `no_new_privs`, filters of system calls
//! (as far as their number tells), and the directory that is seen as the root. A thread is not served by a server that has
//! others: it gets one of its own, which preloads again. One whose rights no thread of the program has any more is let go
//! when another is started.
//!
//! # What to preload
//!
//! Anything that may be copied with the memory: tables, parsed files, code that was run once. Not threads (a copy has
//! only the one that made it; a server that finds others refuses to start), not tensors or queues (the server takes no
//! part in the arena), and not CUDA or another driver that ties itself to a process. A generator of random numbers that
//! is seeded in the server goes on alike in each copy.
//!
//! What the function changes of the environment, the working directory, the umask, and of what is done at signals, is put
//! back when it has returned: a process by the server has them as one by `spawn` does. Priority, CPUs and limits stay as
//! the function leaves them.

mod running;

use std::cell::Cell;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::desk;
use crate::entry;
use crate::error::{Error, ErrorKind, Result};
use crate::fork;
use crate::image::image;
use crate::launch::{Launched, Plan};
use crate::link;
use crate::rights::{OfThreads, Rights};
use crate::start::undo;
use crate::trampoline::{Target, preload_target};
use running::Server;

/// How many children are asked for before the first answer is read: as many packets as a socket holds with ease.
const AT_ONCE: usize = 8;

/// How many other servers are started for processes that were not made because theirs ended.
const OTHERS: usize = 2;

/// The servers of this process, the one that was used last at the end. Of those that run each has other rights.
static SERVERS: Mutex<Vec<Server>> = Mutex::new(Vec::new());

thread_local! {
    /// This thread has the servers in its hands.
    static HOLDS: Cell<bool> = const { Cell::new(false) };
}

/// All servers, for as long as this is kept.
struct Held(MutexGuard<'static, Vec<Server>>);

impl Drop for Held {
    fn drop(&mut self) {
        let _ = HOLDS.try_with(|holds| holds.set(false));
    }
}

/// Waits until no other thread has them.
///
/// # Errors
/// When it is this thread that has them: what it tells meanwhile by `tracing` goes to code of the program.
fn servers() -> Result<Held> {
    if HOLDS.try_with(Cell::get).unwrap_or(false) {
        return Err(Error::new(
            ErrorKind::Usage,
            "this thread is just starting a process by the fork server (a subscriber of `tracing` hears of it on the same \
             thread), so what is waited for here would never come: do it on another thread",
        ));
    }
    let held = Held(SERVERS.lock());
    let _ = HOLDS.try_with(|holds| holds.set(true));
    Ok(held)
}

/// How many there may be.
const SERVERS_MAX: usize = 8;

/// What the next server preloads, and how long that may take.
static PRELOAD: Mutex<Option<(Target, Duration)>> = Mutex::new(None);

fn to_preload() -> Option<(Target, Duration)> {
    *PRELOAD.lock()
}

/// Has the fork server run `f` before it makes its first copy: what that leaves in memory, every process finds.
///
/// `f` is a function item or a closure that captures nothing. It must have ended all threads that it started when it
/// returns; otherwise, when it panics or ends the process, or when it has not returned after five minutes ([`preload_within`] gives it more or
/// less), starting a process fails with an error that says so. A second call before the server is started replaces the
/// first.
///
/// # Errors
///
/// When the server runs already, or [`init`](crate::init) was not called. While a start is under way on another thread, it
/// waits for that.
pub fn preload<F>(f: F) -> Result<()>
where
    F: Fn() + Copy + Send + 'static,
{
    preload_within(f, PRELOADING)
}

/// [`preload`] of what has returned before so long. Whoever starts the server waits until then: it is killed if `f` takes
/// longer, and the start fails. The `hello_deadline` of a process that is started begins when `f` has returned.
///
/// # Errors
///
/// As [`preload`].
pub fn preload_within<F>(f: F, limit: Duration) -> Result<()>
where
    F: Fn() + Copy + Send + 'static,
{
    let _ = f;
    entry::depth_of_a_child(false)?;
    let usage = |message: String| Error::new(ErrorKind::Usage, message);
    let image = image().map_err(usage)?;
    let target = preload_target::<F>(image).map_err(usage)?;
    if desk::is_supervisor() {
        return Err(desk::not_here());
    }
    let mut held = servers()?;
    look_after(&mut held.0);
    let_go_of_rights_given_away(&mut held.0);
    if let Some(server) = held.0.last() {
        return Err(usage(format!(
            "the fork server (pid {}) runs already, so `{}` cannot be preloaded any more: call `preload` before the \
             first process is started by it",
            server.pid, target.name
        )));
    }
    drop(held);
    *PRELOAD.lock() = Some((target, limit));
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
    if desk::is_supervisor() {
        return Err(desk::not_here());
    }
    server(&mut servers()?.0, &Rights::now(), HELLO).map(drop)
}

/// The process id of the fork server that was started or used last, if one was. It may have been killed since; then the next process that is
/// started makes another.
pub fn pid() -> Option<u32> {
    running::pid()
}

/// How long a server has to reach `init` when nobody says.
const HELLO: Duration = Duration::from_secs(10);

/// How long what it preloads has when nobody says.
const PRELOADING: Duration = Duration::from_secs(300);

/// Lets go of those that have ended, or are another process's.
fn look_after(servers: &mut Vec<Server>) {
    servers.retain(|server| server.is_mine() && !server.has_ended());
}

/// Lets go of those that may do what no thread of this program may do any more.
fn let_go_of_rights_given_away(servers: &mut Vec<Server>) {
    if !servers.is_empty()
        && let Some(threads) = OfThreads::now()
    {
        servers.retain(|server| threads.include(&server.rights));
    }
}

/// The server with these rights, which are the calling thread's; one is started if there is none.
fn server<'a>(
    servers: &'a mut Vec<Server>,
    rights: &Rights,
    deadline: Duration,
) -> Result<&'a mut Server> {
    look_after(servers);
    let server = match servers.iter().position(|server| server.rights == *rights) {
        Some(index) => servers.remove(index),
        None => {
            let_go_of_rights_given_away(servers);
            if servers.len() >= SERVERS_MAX {
                servers.remove(0);
            }
            Server::start(to_preload(), rights, deadline)?
        }
    };
    let last = servers.len();
    servers.push(server);
    Ok(&mut servers[last])
}

/// Starts all these processes, or none. `None`: the server cannot be copied for these here, and they are to be started
/// by the other method.
pub(crate) fn launch_all(plans: &[Plan], deadline: Duration) -> Result<Option<Vec<Launched>>> {
    // Who reads what this process would read has to be in its group, and one that was made outside of this pid namespace
    // (as for what is run in a container that lives already) has no number here by which a copy could join it.
    if plans.iter().any(|plan| plan.stdin.is_some()) && fork::own_group().is_none() {
        return Ok(None);
    }
    let mut held = servers()?;
    let servers = &mut held.0;
    let rights = Rights::now();
    let mut launched = Vec::with_capacity(plans.len());
    for some in plans.chunks(AT_ONCE) {
        let before = launched.len();
        let mut others = OTHERS;
        let outcome = loop {
            let running = match server(servers, &rights, deadline) {
                Ok(running) if running.unable => return Ok(None),
                Ok(running) => running,
                Err(error) => break Err((error, false)),
            };
            link::failpoint!("forkserver.found");
            let rest = &some[launched.len() - before..];
            match running.launch(rest, deadline, &mut launched) {
                Ok(()) => break Ok(()),
                // One that ends before it has made anybody is of no matter; what ends each of several servers is.
                Err(_) if running.was_gone && others > 0 => {
                    others -= 1;
                    servers.pop();
                }
                Err(error) => break Err((error, running.unable)),
            }
        };
        if let Err((error, unable)) = outcome {
            launched.into_iter().for_each(undo);
            if unable {
                link::say!(
                    warn,
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
