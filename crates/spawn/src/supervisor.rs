//! The one thread of a process that starts its children and waits for them.
//!
//! It lives as long as the process does, because a child's parent-death signal is tied to the thread that started it.
//! It sleeps in one epoll over the processes, their control sockets and an event for orders, and leaves what the news
//! mean to the context's [`Run`].

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, Timespec, epoll, eventfd};
use rustix::io::Errno;
use rustix::process::getpid;
use rustix::thread::gettid;

use crate::death::{self, OomKills, Seen};
use crate::error::{Error, ErrorKind, Result};
use crate::forkserver;
use crate::launch::{Launched, Plan, launch_server};
use crate::link::{self, Deadlock, Shared};
use crate::method::StartMethod;
use crate::run::{Options, Run};
use crate::start::{Enrolled, Start, launch_all};
use crate::story::Story;
use crate::trampoline::Target;

/// What the supervisor can be told to do.
enum Order {
    /// Start the processes of one context here, and watch them.
    Start(Start, SyncSender<Result<()>>),
    /// Watch the processes of one context, which were started elsewhere.
    Watch(Enrolled),
    /// Start a fork server.
    Serve(Option<Target>, SyncSender<Result<Launched>>),
    Stop {
        id: u32,
        kill: bool,
    },
    GiveUp {
        id: u32,
        deadlock: Deadlock,
    },
    /// Stop all contexts.
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

/// The way to the thread.
struct Desk {
    /// The process that the thread belongs to: a forked child has the memory, but not the thread.
    pid: u32,
    orders: Mutex<Vec<Order>>,
    bell: Mutex<OwnedFd>,
    epoll: OwnedFd,
    /// Cleared when the thread ends, which it does only when it panics.
    open: AtomicBool,
}

static DESK: Mutex<Option<Arc<Desk>>> = Mutex::new(None);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Starts the processes and has them watched from then on. Returns when all have been started, or none.
pub(crate) fn start(
    mut plans: Vec<Plan>,
    shared: Vec<Shared>,
    options: Options,
) -> Result<Arc<Story>> {
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
        Some(launched) => desk.order(Order::Watch(start.enrol(launched))),
        None => {
            let (reply, answer) = sync_channel(1);
            desk.order(Order::Start(start, reply));
            answer.recv().unwrap_or_else(|_| Err(ended()))?;
        }
    }
    Ok(story)
}

/// Starts a fork server, whose children have the supervisor's thread as the one that they die with.
pub(crate) fn start_server(preload: Option<Target>) -> Result<Launched> {
    let (reply, answer) = sync_channel(1);
    desk()?.order(Order::Serve(preload, reply));
    answer.recv().unwrap_or_else(|_| Err(ended()))
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

/// Whoever waits asks now and then: an order that is not taken, because something in this program closed what was to
/// tell of it, is told again or given up.
pub(crate) fn nudge() {
    let desk = DESK.lock().clone();
    if let Some(desk) = desk.filter(|desk| !desk.orders.lock().is_empty()) {
        desk.urge();
    }
}

/// Stops the processes of all contexts.
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
pub(crate) fn stop(story: &Story, kill: bool) {
    if story.is_ours()
        && let Ok(desk) = desk()
    {
        desk.order(Order::Stop { id: story.id, kill });
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
    let failed = |what: &str, source: std::io::Error| {
        Error::caused(
            ErrorKind::Launch,
            format!("the thread that starts processes needs {what}"),
            source,
        )
    };
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|errno| failed("an event descriptor", errno.into()))?;
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
        .map_err(|errno| failed("an epoll", errno.into()))?;
    epoll::add(
        &epoll,
        &bell,
        epoll::EventData::new_u64(BELL),
        epoll::EventFlags::IN,
    )
    .map_err(|errno| failed("an epoll", errno.into()))?;
    let desk = Arc::new(Desk {
        pid,
        orders: Mutex::default(),
        bell: Mutex::new(bell),
        epoll,
        open: AtomicBool::new(true),
    });
    let supervisor = Supervisor {
        desk: Arc::clone(&desk),
        runs: HashMap::new(),
        buffer: Vec::new(),
        servers: HashMap::new(),
        looked: Instant::now(),
        counted: None,
    };
    thread::Builder::new()
        .name("supervisor".to_owned())
        .spawn(move || supervisor.serve())
        .map_err(|error| failed("a thread", error))?;
    *current = Some(Arc::clone(&desk));
    Ok(desk)
}

impl Desk {
    fn order(&self, order: Order) {
        self.orders.lock().push(order);
        self.urge();
    }

    /// Has the orders taken, or given up.
    fn urge(&self) {
        if let Err(errno) = self.ring() {
            tracing::error!(%errno, "the thread that supervises processes cannot be rung any more");
            self.open.store(false, Ordering::Release);
        }
        // The thread may have ended just before: then nobody will take the order, and dropping it tells its sender.
        if !self.open.load(Ordering::Acquire) {
            self.abandon();
        }
    }
}

impl Desk {
    fn ring(&self) -> Result<(), Errno> {
        let mut bell = self.bell.lock();
        match rustix::io::write(&*bell, &1_u64.to_ne_bytes()) {
            // Full means that it has been rung often and will be heard.
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => Ok(()),
            // Something in this program closed it, so what has its number is not ours to close.
            Err(_) => {
                let another = eventfd(1, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
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

    fn abandon(&self) {
        let orders = std::mem::take(&mut *self.orders.lock());
        orders.into_iter().for_each(Order::abandon);
    }
}

const BELL: u64 = u64::MAX;

/// Set in the token of a fork server; the rest is its process id.
const SERVER: u64 = 1 << 63;

/// How often all processes are looked at, news or not.
const SLICE: Duration = Duration::from_secs(1);

/// How old a count of out-of-memory kills may be to stand for "before the start".
const RECOUNT: Duration = Duration::from_secs(1);

/// Names a member in epoll. Which of its two descriptors it was does not matter: both are looked at.
fn token(id: u32, rank: usize) -> u64 {
    u64::from(id) << 32 | rank as u64
}

struct Supervisor {
    desk: Arc<Desk>,
    runs: HashMap<u32, Run>,
    /// Where frames are received.
    buffer: Vec<u8>,
    /// Fork servers that have not been waited for, by their tokens.
    servers: HashMap<u64, OwnedFd>,
    /// When all processes were looked at.
    looked: Instant,
    /// The last count of out-of-memory kills, and when that was.
    counted: Option<(Instant, Arc<OomKills>)>,
}

impl Supervisor {
    fn serve(mut self) {
        let _serving = link::serve();
        let mut events = Vec::with_capacity(64);
        loop {
            // Descriptors that something in this program closed give no news; a look now and then finds what they hide.
            let slice = (!self.runs.is_empty()).then(|| self.looked + SLICE);
            let timeout = self
                .runs
                .values()
                .filter_map(Run::next_deadline)
                .chain(slice)
                .min()
                .map(until);
            events.clear();
            match epoll::wait(
                &self.desk.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "the supervisor cannot wait for its processes any more");
                    return;
                }
            }
            self.turn(&events);
            if self.looked.elapsed() >= SLICE {
                self.looked = Instant::now();
                for run in self.runs.values_mut() {
                    let all = (0..run.members().len()).collect();
                    run.look(&all, &mut self.buffer);
                }
                self.runs.retain(|_, run| !run.is_over());
            }
        }
    }

    fn turn(&mut self, events: &[epoll::Event]) {
        let mut touched: HashMap<u32, HashSet<usize>> = HashMap::new();
        let mut rung = false;
        for event in events {
            let token = event.data.u64();
            if token == BELL {
                rung = true;
            } else if token & SERVER != 0 {
                self.wait_for_server(token);
            } else {
                touched
                    .entry((token >> 32) as u32)
                    .or_default()
                    .insert((token & u64::from(u32::MAX)) as usize);
            }
        }
        for (id, ranks) in touched {
            if let Some(run) = self.runs.get_mut(&id) {
                run.look(&ranks, &mut self.buffer);
            }
        }
        let now = Instant::now();
        for run in self
            .runs
            .values_mut()
            .filter(|run| run.next_deadline().is_some_and(|at| at <= now))
        {
            run.tick(now, &mut self.buffer);
        }
        if rung {
            self.take_orders();
        }
        self.runs.retain(|_, run| !run.is_over());
    }

    fn take_orders(&mut self) {
        let mut count = [0; 8];
        let _ = rustix::io::read(&*self.desk.bell.lock(), &mut count);
        let orders = std::mem::take(&mut *self.desk.orders.lock());
        for order in orders {
            match order {
                Order::Start(start, reply) => match launch_all(&start.plans) {
                    Ok(launched) => {
                        let enrolled = start.enrol(launched);
                        // Whoever waits is told first; the rest is done while the children start.
                        let _ = reply.send(Ok(()));
                        self.supervise(enrolled);
                    }
                    Err(error) => drop(reply.send(Err(error))),
                },
                Order::Watch(enrolled) => self.supervise(enrolled),
                Order::Serve(preload, reply) => drop(reply.send(self.serve_forks(preload))),
                Order::Stop { id, kill } => {
                    if let Some(run) = self.runs.get_mut(&id) {
                        run.interrupt(kill);
                    }
                }
                Order::GiveUp { id, deadlock } => {
                    if let Some(run) = self.runs.get_mut(&id) {
                        run.give_up(deadlock);
                    }
                }
                Order::StopAll { kill } => {
                    for run in self.runs.values_mut() {
                        run.interrupt(kill);
                    }
                }
                Order::Grace { id, grace } => {
                    if let Some(run) = self.runs.get_mut(&id) {
                        run.set_grace(grace);
                    }
                }
                // Without a run the reply is dropped: all have ended.
                Order::Detach { id, reply } => {
                    if let Some(run) = self.runs.get_mut(&id) {
                        // Their answers are words that somebody waits for.
                        let all_words = epoll::EventFlags::IN
                            | epoll::EventFlags::RDHUP
                            | epoll::EventFlags::ET;
                        for member in run.members() {
                            if let Some(control) = &member.control {
                                let data = epoll::EventData::new_u64(token(id, member.worker.rank));
                                let _ = epoll::modify(&self.desk.epoll, control, data, all_words);
                            }
                        }
                        run.detach(reply, &mut self.buffer);
                    }
                }
            }
        }
    }

    fn supervise(&mut self, enrolled: Enrolled) {
        let Enrolled {
            members,
            shared,
            options,
            story,
        } = enrolled;
        let id = story.id;
        let mut run = Run::new(story, members, shared, options, self.oom_kills());
        let watched = self.watch(id, &run);
        if let Err(errno) = watched {
            tracing::error!(%errno, "these processes cannot be watched; stopping them");
            run.interrupt(true);
        }
        // Some may be gone already, in a way that epoll does not report (no descriptor was to be had).
        let all = (0..run.members().len()).collect();
        run.look(&all, &mut self.buffer);
        self.runs.insert(id, run);
    }

    /// Starts a fork server, and sees to it that it is waited for whenever it ends.
    fn serve_forks(&mut self, preload: Option<Target>) -> Result<Launched> {
        let mut launched = launch_server(preload.as_ref())?;
        // It is watched by the descriptor that stays here; whoever asked for it signals it by the other.
        let ours = launched.pidfd.take();
        launched.pidfd = ours.as_ref().and_then(|ours| ours.try_clone().ok());
        if let Some(ours) = ours {
            let token = SERVER | u64::from(launched.pid);
            let (data, flags) = (epoll::EventData::new_u64(token), epoll::EventFlags::IN);
            let edge = flags | epoll::EventFlags::ET;
            if let Err(errno) = epoll::add(&self.desk.epoll, &ours, data, edge) {
                tracing::warn!(%errno, "the fork server cannot be watched; it stays a zombie when it ends");
            }
            self.servers.insert(token, ours);
        }
        Ok(launched)
    }

    fn wait_for_server(&mut self, token: u64) {
        if let Some(pidfd) = self.servers.get(&token)
            && !matches!(death::look(pidfd), Seen::Alive)
        {
            tracing::debug!("the fork server has ended");
            self.servers.remove(&token);
        }
    }

    /// How many out-of-memory kills there were, not long ago. Reading the counters anew for each of many quick starts
    /// would cost as much as starting.
    fn oom_kills(&mut self) -> Arc<OomKills> {
        match &self.counted {
            Some((at, kills)) if at.elapsed() < RECOUNT => Arc::clone(kills),
            _ => {
                let kills = Arc::new(OomKills::read());
                self.counted = Some((Instant::now(), Arc::clone(&kills)));
                kills
            }
        }
    }

    /// Edges, not levels: a descriptor that is closed here stays in the epoll as long as a forked child of the host
    /// has a copy of it, and would be reported without end. A look always takes all that is there.
    ///
    /// What a child says while it runs its function wakes nobody; it is read when there is reason to look. It shuts
    /// its side of the socket down after its last word, and that is reported, once: its end is seen by the other
    /// descriptor.
    fn watch(&self, id: u32, run: &Run) -> Result<(), Errno> {
        let last_word =
            epoll::EventFlags::RDHUP | epoll::EventFlags::ET | epoll::EventFlags::ONESHOT;
        let end = epoll::EventFlags::IN | epoll::EventFlags::ET;
        for member in run.members() {
            let data = epoll::EventData::new_u64(token(id, member.worker.rank));
            for (descriptor, flags) in [(&member.pidfd, end), (&member.control, last_word)] {
                if let Some(descriptor) = descriptor {
                    epoll::add(&self.desk.epoll, descriptor.as_fd(), data, flags)?;
                }
            }
        }
        Ok(())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.desk.open.store(false, Ordering::Release);
        self.desk.abandon();
        for run in self.runs.values_mut() {
            run.abandon();
        }
    }
}

fn until(deadline: Instant) -> Timespec {
    // Rounded up by the smallest step, so that the deadline has passed when the wait ends.
    let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_nanos(1);
    Timespec {
        tv_sec: left.as_secs().min(i32::MAX as u64) as i64,
        tv_nsec: left.subsec_nanos().into(),
    }
}
