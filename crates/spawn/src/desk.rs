//! The way to the supervisor's thread: orders in a list, and a bell that wakes it.
//!
//! Whoever starts, stops or lets go of processes leaves an order here. Something in the program may close the bell, or
//! all descriptors: then the bell is replaced, or the order is given up and its sender told, and nobody waits for ever.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, epoll, eventfd};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, getpid, pidfd_open};
use rustix::thread::gettid;

use crate::death::{Child, OomKills};
use crate::error::{Error, ErrorKind, Result};
use crate::forkserver;
use crate::launch::{Plan, advice, launch_server};
use crate::link::{self, Deadlock, Shared, apart};
use crate::method::StartMethod;
use crate::rights::Rights;
use crate::run::{Options, Why};
use crate::start::{Enrolled, Start, launch_all};
use crate::starter;
use crate::story::Story;
use crate::supervisor::{BELL, SLICE, Supervisor};
use crate::trampoline::Target;
use crate::watched::{Firsthand, Only, Watched};

/// A fork server that was started: its process id, the process if it could be looked at, and the way to it.
pub(crate) type Served = (u32, Option<Arc<Child>>, OwnedFd);

/// What the supervisor can be told to do.
pub(crate) enum Order {
    /// Start the processes of one context here, and watch them; they come back where this thread has other rights.
    Start(Start, Rights, SyncSender<Result<Option<Start>>>),
    /// Watch the processes of one context, which were started elsewhere.
    Watch(Enrolled),
    /// Start a fork server. There is none where this thread has other rights.
    Serve(Option<Target>, Rights, SyncSender<Result<Option<Served>>>),
    /// Wait for a fork server that was started elsewhere.
    Mind(u32, Arc<Child>),
    Stop {
        id: u32,
        kill: bool,
        why: Why,
    },
    GiveUp {
        id: u32,
        deadlock: Deadlock,
    },
    /// Stop all contexts, because of a signal.
    StopAll {
        kill: bool,
    },
    Grace {
        id: u32,
        grace: Duration,
    },
    Detach {
        id: u32,
        reply: SyncSender<Result<()>>,
    },
}

/// What lies on the desk.
#[derive(Default)]
pub(crate) struct Orders {
    list: Vec<Order>,
    asleep: Asleep,
    /// The last count of out-of-memory kills, and when that was.
    counted: Option<(Instant, Arc<OomKills>)>,
}

/// When the supervisor looks at its desk next, if it is not rung.
#[derive(Clone, Copy, Debug, Default)]
enum Asleep {
    /// It is awake, and looks before it goes to sleep.
    #[default]
    No,
    Until(Instant),
    ForEver,
}

impl Orders {
    /// Takes all that is there. Until [`rest`](Orders::rest) the supervisor is awake.
    pub(crate) fn take(&mut self) -> Vec<Order> {
        self.asleep = Asleep::No;
        std::mem::take(&mut self.list)
    }

    /// The supervisor goes to sleep until then, or until something happens; unless there is something to do.
    pub(crate) fn rest(&mut self, until: Option<Instant>) -> bool {
        let rests = self.list.is_empty();
        if rests {
            self.asleep = until.map_or(Asleep::ForEver, Asleep::Until);
        }
        rests
    }

    /// Takes the order to watch that context, if it was not taken yet.
    pub(crate) fn take_started(&mut self, id: u32) -> Option<Enrolled> {
        let is_it =
            |order: &Order| matches!(order, Order::Watch(enrolled) if enrolled.story.id == id);
        let index = self.list.iter().position(is_it)?;
        match self.list.remove(index) {
            Order::Watch(enrolled) => Some(enrolled),
            _ => None,
        }
    }

    /// How many out-of-memory kills there were, not long ago; `None` if that was too long ago. Reading the counters anew
    /// for each of many quick starts would cost as much as starting.
    pub(crate) fn oom_kills(&self) -> Option<Arc<OomKills>> {
        let (at, kills) = self.counted.as_ref()?;
        (at.elapsed() < RECOUNT).then(|| Arc::clone(kills))
    }

    pub(crate) fn note_oom_kills(&mut self, kills: Arc<OomKills>) {
        self.counted = Some((Instant::now(), kills));
    }

    /// Whether what lies here is seen by then.
    pub(crate) fn is_seen_by(&self, by: Instant) -> bool {
        match self.asleep {
            Asleep::No => true,
            Asleep::Until(until) => until <= by,
            Asleep::ForEver => false,
        }
    }
}

/// The way to the thread.
pub(crate) struct Desk {
    /// The process that the thread belongs to: a forked child has the memory, but not the thread.
    pid: u32,
    pub(crate) orders: Mutex<Orders>,
    pub(crate) bell: Mutex<OwnedFd>,
    pub(crate) epoll: OwnedFd,
    /// Locked before the orders, and never by a hook.
    pub(crate) watched: Mutex<Watched>,
    /// Cleared when the thread ends, which it does only when it panics.
    pub(crate) open: AtomicBool,
}

/// How old a count of out-of-memory kills may be to stand for "before the start".
const RECOUNT: Duration = Duration::from_secs(1);

/// The stack of a thread of ours: what the standard library gives to one, unless RUST_MIN_STACK says less.
pub(crate) const STACK: usize = 2 << 20;

thread_local! {
    static SUPERVISES: Cell<bool> = const { Cell::new(false) };
}

/// The calling thread is the supervisor's, or another one that does what it is told to do here.
pub(crate) fn supervise_here() {
    SUPERVISES.set(true);
}

/// Whether the calling thread is one of these, as in a hook: then nothing that it waits for would come.
pub(crate) fn is_supervisor() -> bool {
    SUPERVISES.try_with(Cell::get).unwrap_or(false)
}

/// What is told then.
pub(crate) fn not_here() -> Error {
    Error::new(
        ErrorKind::Usage,
        "this is a thread that starts or supervises the processes of this program (a function given to `on_end` runs on \
         one), so what is waited for here would never come: do it on another thread",
    )
}

static DESK: Mutex<Option<Arc<Desk>>> = Mutex::new(None);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Starts the processes and has them watched from then on. Returns when all have been started, or none.
pub(crate) fn start(
    mut plans: Vec<Plan>,
    shared: Vec<Shared>,
    options: Options,
) -> Result<Arc<Story>> {
    if is_supervisor() {
        return Err(not_here());
    }
    // The bell and fork servers have tokens that no context can have, see `token`.
    let story = Arc::new(Story::new(
        NEXT.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1),
    ));
    for plan in &mut plans {
        plan.context = story.id;
    }
    let start = Start {
        plans,
        shared,
        options,
        story: Arc::clone(&story),
    };
    let desk = desk()?;
    // Before anything runs: a process must not find the failure of those that used the same queue before it.
    start.shared.iter().for_each(Shared::adopt);
    let mut launched = None;
    if options.method == StartMethod::Forkserver
        && !start.plans.iter().any(|plan| plan.setup.needs_exec())
    {
        launched = forkserver::launch_all(&start.plans, options.hello_deadline)?;
    }
    // A child dies with the thread that started it. The main thread, too, lives as long as the process, and what it
    // starts itself starts sooner: nobody has to be woken for it.
    if launched.is_none() && gettid() == getpid() {
        launched = Some(launch_all(&start.plans)?);
    }
    match launched {
        Some(launched) => desk.watch(start.enrol(launched)),
        None => {
            let rights = Rights::now();
            let (reply, answer) = sync_channel(1);
            desk.order(Order::Start(start, rights.clone(), reply));
            if let Some(start) = answer.recv().unwrap_or_else(|_| Err(ended()))? {
                let (start, launched) = starter::start_with(&rights, move || {
                    let launched = launch_all(&start.plans);
                    (start, launched)
                })
                .map_err(no_starter)?;
                desk.watch(start.enrol(launched?));
            }
        }
    }
    Ok(story)
}

/// Starts a fork server with the rights of the calling thread, which are these. Its children have the thread that starts
/// it, which lives as long as they do, as the one that they die with.
pub(crate) fn start_server(preload: Option<Target>, rights: &Rights) -> Result<Served> {
    if is_supervisor() {
        return Err(not_here());
    }
    let (reply, answer) = sync_channel(1);
    let desk = desk()?;
    desk.order(Order::Serve(preload, rights.clone(), reply));
    if let Some(served) = answer.recv().unwrap_or_else(|_| Err(ended()))? {
        return Ok(served);
    }
    let launched = starter::start_with(rights, move || launch_server(preload.as_ref()))
        .map_err(no_starter)??;
    let child = launched.pidfd.map(|pidfd| Arc::new(Child::new(pidfd)));
    if let Some(child) = &child {
        desk.order(Order::Mind(launched.pid, Arc::clone(child)));
    }
    Ok((launched.pid, child, launched.control))
}

/// Waits for a fork server whose descriptors were closed; nobody has waited for it, so its process id is its own.
pub(crate) fn mind_again(pid: u32) {
    let pidfd = Pid::from_raw(pid as i32).map(|pid| pidfd_open(pid, PidfdFlags::empty()));
    let Some(Ok(pidfd)) = pidfd.map(|pidfd| pidfd.and_then(apart)) else {
        return;
    };
    let child = Arc::new(Child::new(pidfd));
    // The desk's own may have been closed with them, which is seen when it is rung: then there is another one.
    for _ in 0..2 {
        let Ok(desk) = desk() else { return };
        desk.order(Order::Mind(pid, Arc::clone(&child)));
        if desk.open.load(Ordering::Acquire) {
            return;
        }
    }
}

fn no_starter(source: std::io::Error) -> Error {
    let advice = advice(&source);
    let what = format!(
        "this thread has other rights than the one that starts processes (no_new_privs, capabilities, filters of system \
         calls), and a thread that starts them with these could not be had{advice}"
    );
    Error::caused(ErrorKind::Launch, what, source)
}

fn ended() -> Error {
    Error::new(
        ErrorKind::Launch,
        "the thread that starts processes has ended unexpectedly, or cannot be reached (did something in this program \
         close descriptors that are not its own?)",
    )
}

/// Lets the processes of a context live on without this one.
pub(crate) fn detach(story: &Story) -> Result<()> {
    if !story.is_ours() {
        return story.wait(None, |_| ()).unwrap_or(Ok(()));
    }
    if is_supervisor() {
        return Err(not_here());
    }
    let (reply, answer) = sync_channel(1);
    desk()?.order(Order::Detach {
        id: story.id,
        reply,
    });
    // Without a run there is nobody left to detach, unless nobody takes orders at all.
    answer
        .recv()
        .unwrap_or_else(|_| story.end().unwrap_or_else(|| Err(ended())))
}

/// Sets how long the processes of a context have from SIGTERM to SIGKILL.
pub(crate) fn set_grace(story: &Story, grace: Duration) {
    if story.is_ours()
        && let Ok(desk) = desk()
    {
        let id = story.id;
        desk.order(Order::Grace { id, grace });
    }
}

/// Lets whoever joins the only process of a context watch it.
pub(crate) fn firsthand(id: u32, only: Only) -> Option<Firsthand> {
    let desk = DESK.lock().clone()?;
    let ours = desk.pid == std::process::id() && desk.open.load(Ordering::Acquire);
    ours.then(|| Firsthand::begin(desk, id, only)).flatten()
}

/// Whoever waits asks now and then: an order that is not taken, because something in this program closed what was to
/// tell of it, is told again or given up.
pub(crate) fn nudge() {
    let desk = DESK.lock().clone();
    if let Some(desk) = desk.filter(|desk| !desk.orders.lock().list.is_empty()) {
        desk.urge();
    }
}

/// Stops the processes of all contexts, because of a signal.
pub(crate) fn stop_all(kill: bool) {
    // A program that has started nothing needs no thread to stop it.
    let desk = DESK.lock().clone();
    if let Some(desk) = desk.filter(|desk| desk.pid == std::process::id()) {
        desk.order(Order::StopAll { kill });
    }
}

impl Order {
    /// Nobody will do it. Who waits for an answer hears of that by its end.
    fn abandon(self) {
        if let Order::Watch(enrolled) = self {
            enrolled.story.finish(Err(ended()));
        }
    }
}

/// Stops the processes of a context; nothing happens if they have ended.
pub(crate) fn stop(story: &Story, kill: bool, why: Why) {
    if story.is_ours()
        && let Ok(desk) = desk()
    {
        let id = story.id;
        desk.order(Order::Stop { id, kill, why });
    }
}

/// Stops the processes of a context because the wait for them could not end.
pub(crate) fn give_up(story: &Story, deadlock: Deadlock) {
    if let Ok(desk) = desk() {
        let id = story.id;
        desk.order(Order::GiveUp { id, deadlock });
    }
}

fn desk() -> Result<Arc<Desk>> {
    let mut current = DESK.lock();
    let pid = std::process::id();
    if let Some(desk) = current
        .as_ref()
        .filter(|desk| desk.pid == pid && desk.open.load(Ordering::Acquire))
    {
        return Ok(Arc::clone(desk));
    }
    let desk = Arc::new(Desk::open(pid)?);
    let supervisor = Supervisor::new(Arc::clone(&desk));
    thread::Builder::new()
        .name("supervisor".to_owned())
        .stack_size(STACK)
        .spawn(move || supervisor.serve())
        .map_err(|error| missing("a thread", error))?;
    // The one before, if there is one, is never dropped: it was given up because its descriptors were closed behind our
    // back, or is that of the process that this one was forked from. Their numbers may be somebody else's by now.
    std::mem::forget(current.replace(Arc::clone(&desk)));
    Ok(desk)
}

fn missing(what: &str, source: std::io::Error) -> Error {
    let advice = advice(&source);
    let what = format!("the thread that starts processes needs {what}{advice}");
    Error::caused(ErrorKind::Launch, what, source)
}

impl Desk {
    /// A desk at which nobody sits yet.
    pub(crate) fn open(pid: u32) -> Result<Desk> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .and_then(apart)
            .map_err(|errno| missing("an event descriptor", errno.into()))?;
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
            .and_then(apart)
            .map_err(|errno| missing("an epoll", errno.into()))?;
        epoll::add(
            &epoll,
            &bell,
            epoll::EventData::new_u64(BELL),
            epoll::EventFlags::IN,
        )
        .map_err(|errno| missing("an epoll", errno.into()))?;
        Ok(Desk {
            pid,
            orders: Mutex::default(),
            bell: Mutex::new(bell),
            epoll,
            watched: Mutex::default(),
            open: AtomicBool::new(true),
        })
    }

    fn order(&self, order: Order) {
        self.orders.lock().list.push(order);
        self.urge();
    }

    /// Has processes watched that were started by this thread. The supervisor need not be woken for it, which would cost
    /// as much as some of the start: what happens to them wakes it, and then it looks at its desk first.
    fn watch(&self, mut enrolled: Enrolled) {
        let mut orders = self.orders.lock();
        enrolled.oom_before = orders.oom_kills();
        // Under the lock: news that come before the order is there find it when they are read.
        let watched = enrolled.watch(&self.epoll);
        let silent = watched && enrolled.oom_before.is_some() && {
            let slice = Instant::now() + SLICE;
            orders.is_seen_by(slice.min(enrolled.due.next()))
        };
        orders.list.push(Order::Watch(enrolled));
        drop(orders);
        if !silent {
            self.urge();
        } else if !self.open.load(Ordering::Acquire) {
            self.abandon();
        }
    }

    /// Has the orders taken, or given up.
    pub(crate) fn urge(&self) {
        if let Err(errno) = self.ring() {
            link::say!(error, %errno, "the thread that supervises processes cannot be rung any more");
            self.open.store(false, Ordering::Release);
        }
        // The thread may have ended just before: then nobody will take the order, and dropping it tells its sender.
        if !self.open.load(Ordering::Acquire) {
            self.abandon();
        }
    }

    fn ring(&self) -> Result<(), Errno> {
        let mut bell = self.bell.lock();
        match rustix::io::write(&*bell, &1_u64.to_ne_bytes()) {
            // Full means that it has been rung often and will be heard.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            // Something in this program closed it, so what has its number is not ours to close.
            Err(_) => {
                let another = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
                let another = apart(another)?;
                epoll::add(
                    &self.epoll,
                    &another,
                    epoll::EventData::new_u64(BELL),
                    epoll::EventFlags::IN,
                )?;
                std::mem::forget(std::mem::replace(&mut *bell, another));
                Ok(())
            }
        }
    }

    /// How many out-of-memory kills there were not long ago.
    pub(crate) fn oom_kills(&self) -> Arc<OomKills> {
        let known = self.orders.lock().oom_kills();
        known.unwrap_or_else(|| {
            let kills = Arc::new(OomKills::read());
            self.orders.lock().note_oom_kills(Arc::clone(&kills));
            kills
        })
    }

    pub(crate) fn abandon(&self) {
        let orders = self.orders.lock().take();
        orders.into_iter().for_each(Order::abandon);
    }
}
