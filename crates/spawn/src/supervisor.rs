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
use rustix::process::{Signal, pidfd_send_signal};

use crate::death::{self, OomKills};
use crate::error::{Error, ErrorKind, Result};
use crate::launch::{Launched, Plan, launch};
use crate::link::{self, Deadlock, Shared};
use crate::member::Member;
use crate::run::{Options, Run};
use crate::story::{Story, after};

/// What the supervisor can be told to do.
enum Order {
    Start(Start),
    Stop { id: u32, kill: bool },
    GiveUp { id: u32, deadlock: Deadlock },
}

/// The processes of one context, to be started.
struct Start {
    plans: Vec<Plan>,
    shared: Vec<Shared>,
    options: Options,
    story: Arc<Story>,
    reply: SyncSender<Result<()>>,
}

/// The way to the thread.
struct Desk {
    /// The process that the thread belongs to: a forked child has the memory, but not the thread.
    pid: u32,
    orders: Mutex<Vec<Order>>,
    bell: OwnedFd,
    /// Cleared when the thread ends, which it does only when it panics.
    open: AtomicBool,
}

static DESK: Mutex<Option<Arc<Desk>>> = Mutex::new(None);
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Starts the processes and watches them from then on. Returns when all have been started, or none.
pub(crate) fn start(plans: Vec<Plan>, shared: Vec<Shared>, options: Options) -> Result<Arc<Story>> {
    // The bell has the only token that no context can have, see `token`.
    let story = Arc::new(Story::new(
        NEXT.fetch_add(1, Ordering::Relaxed) & (u32::MAX >> 1),
    ));
    let (reply, answer) = sync_channel(1);
    let desk = desk()?;
    desk.order(Order::Start(Start {
        plans,
        shared,
        options,
        story: Arc::clone(&story),
        reply,
    }));
    match answer.recv() {
        Ok(started) => started.map(|()| story),
        Err(_) => Err(Error::new(
            ErrorKind::Launch,
            "the thread that starts processes has ended unexpectedly",
        )),
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
    let desk = Arc::new(Desk {
        pid,
        orders: Mutex::default(),
        bell,
        open: AtomicBool::new(true),
    });
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)
        .map_err(|errno| failed("an epoll", errno.into()))?;
    epoll::add(
        &epoll,
        &desk.bell,
        epoll::EventData::new_u64(BELL),
        epoll::EventFlags::IN,
    )
    .map_err(|errno| failed("an epoll", errno.into()))?;
    let supervisor = Supervisor {
        desk: Arc::clone(&desk),
        epoll,
        runs: HashMap::new(),
        buffer: Vec::new(),
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
        // Full means that it has been rung often and will be heard.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
        // The thread may have ended just before: then nobody will take the order, and dropping it tells its sender.
        if !self.open.load(Ordering::Acquire) {
            self.orders.lock().clear();
        }
    }
}

const BELL: u64 = u64::MAX;

/// How old a count of out-of-memory kills may be to stand for "before the start".
const RECOUNT: Duration = Duration::from_secs(1);

/// Names a member in epoll. Which of its two descriptors it was does not matter: both are looked at.
fn token(id: u32, rank: usize) -> u64 {
    u64::from(id) << 32 | rank as u64
}

struct Supervisor {
    desk: Arc<Desk>,
    epoll: OwnedFd,
    runs: HashMap<u32, Run>,
    /// Where frames are received.
    buffer: Vec<u8>,
    /// The last count of out-of-memory kills, and when that was.
    counted: Option<(Instant, Arc<OomKills>)>,
}

impl Supervisor {
    fn serve(mut self) {
        let _serving = link::serve();
        let mut events = Vec::with_capacity(64);
        loop {
            let timeout = self
                .runs
                .values()
                .filter_map(Run::next_deadline)
                .min()
                .map(until);
            events.clear();
            match epoll::wait(
                &self.epoll,
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
        }
    }

    fn turn(&mut self, events: &[epoll::Event]) {
        let mut touched: HashMap<u32, HashSet<usize>> = HashMap::new();
        let mut rung = false;
        for event in events {
            let token = event.data.u64();
            if token == BELL {
                rung = true;
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
        let _ = rustix::io::read(&self.desk.bell, &mut count);
        let orders = std::mem::take(&mut *self.desk.orders.lock());
        for order in orders {
            match order {
                Order::Start(start) => self.start(start),
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
            }
        }
    }

    fn start(&mut self, start: Start) {
        let Start {
            plans,
            shared,
            options,
            story,
            reply,
        } = start;
        let mut launched = Vec::with_capacity(plans.len());
        for plan in &plans {
            match launch(plan) {
                Ok(child) => launched.push(child),
                Err(error) => {
                    launched.into_iter().for_each(undo);
                    let _ = reply.send(Err(error));
                    return;
                }
            }
        }
        let deadline = after(options.hello_deadline);
        let members: Vec<Member> = plans
            .into_iter()
            .zip(launched)
            .map(|(plan, child)| Member::new(plan.rank, plan.name, child, plan.arguments, deadline))
            .collect();
        shared.iter().for_each(Shared::adopt);
        story.begin(members.iter().map(|member| member.worker.clone()));
        let id = story.id;
        // Whoever waits is told first; the rest is done while the children start.
        let _ = reply.send(Ok(()));
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
    fn watch(&self, id: u32, run: &Run) -> Result<(), Errno> {
        for member in run.members() {
            let data = epoll::EventData::new_u64(token(id, member.worker.rank));
            for descriptor in [&member.pidfd, &member.control].into_iter().flatten() {
                epoll::add(
                    &self.epoll,
                    descriptor.as_fd(),
                    data,
                    epoll::EventFlags::IN | epoll::EventFlags::ET,
                )?;
            }
        }
        Ok(())
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.desk.open.store(false, Ordering::Release);
        self.desk.orders.lock().clear();
        for run in self.runs.values_mut() {
            run.abandon();
        }
    }
}

/// Ends a child of a context that could not be started as a whole.
fn undo(child: Launched) {
    if let Some(pidfd) = &child.pidfd {
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
        death::wait(pidfd);
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
