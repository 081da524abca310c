//! The one thread of a process that starts its children and waits for them.
//!
//! It lives as long as the process does, because a child's parent-death signal is tied to the thread that started it.
//! It sleeps in one epoll over the processes, their control sockets and an event for orders, and leaves what the news
//! mean to the context's [`Run`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

use crate::death::Child;
use crate::desk::{Desk, Order, Served, supervise_here};
use crate::error::Result;
use crate::launch::launch_server;
use crate::link;
use crate::rights::Rights;
use crate::run::{Run, Why};
use crate::start::launch_all;
use crate::trampoline::Target;
use crate::watched::Watched;

/// The bell's token in epoll, which no context can have.
pub(crate) const BELL: u64 = u64::MAX;

/// Set in the token of a fork server; the rest is its process id.
const SERVER: u64 = 1 << 63;

/// How often all processes are looked at, news or not.
pub(crate) const SLICE: Duration = Duration::from_secs(1);

/// Names a member in epoll. Which of its two descriptors it was does not matter: both are looked at.
pub(crate) fn token(id: u32, rank: usize) -> u64 {
    u64::from(id) << 32 | rank as u64
}

/// The thread's own.
pub(crate) struct Supervisor {
    desk: Arc<Desk>,
    /// Fork servers that have not been waited for, by their tokens.
    servers: HashMap<u64, Arc<Child>>,
    /// When all processes were looked at.
    looked: Instant,
}

impl Supervisor {
    pub(crate) fn new(desk: Arc<Desk>) -> Supervisor {
        Supervisor {
            desk,
            servers: HashMap::new(),
            looked: Instant::now(),
        }
    }

    /// The thread's life: as long as the process's.
    pub(crate) fn serve(mut self) {
        let _serving = link::serve();
        supervise_here();
        let mut events = Vec::with_capacity(64);
        loop {
            // Descriptors that something in this program closed give no news; a look now and then finds what they hide.
            let watched = self.desk.watched.lock();
            let slice = (watched.lingers || !watched.runs.is_empty()).then(|| self.looked + SLICE);
            let deadline = watched
                .runs
                .values()
                .filter_map(Run::next_deadline)
                .chain(slice)
                .min();
            // Before the contexts are let go of: whoever adds one must know for how long nobody minds its deadlines.
            let rests = self.desk.orders.lock().rest(deadline);
            drop(watched);
            let timeout = if rests {
                deadline.map(until)
            } else {
                Some(Timespec::default())
            };
            events.clear();
            match epoll::wait(
                &self.desk.epoll,
                rustix::buffer::spare_capacity(&mut events),
                timeout.as_ref(),
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    link::say!(error, %errno, "the supervisor cannot wait for its processes any more");
                    return;
                }
            }
            self.turn(&events);
            if self.looked.elapsed() >= SLICE {
                self.looked = Instant::now();
                self.desk.watched.lock().look_at_all();
            }
        }
    }

    fn turn(&mut self, events: &[epoll::Event]) {
        let mut touched: HashMap<u32, HashSet<usize>> = HashMap::new();
        let desk = Arc::clone(&self.desk);
        let mut watched = desk.watched.lock();
        // What there are news of may have been started without a ring.
        self.take_orders(&mut watched);
        for event in events {
            let token = event.data.u64();
            if token == BELL {
                let mut count = [0; 8];
                let _ = rustix::io::read(&*self.desk.bell.lock(), &mut count);
                // Whoever rang left something, before or after the look above.
                self.take_orders(&mut watched);
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
            watched.look(id, &ranks);
        }
        watched.tick();
    }

    fn take_orders(&mut self, watched: &mut Watched) {
        let orders = self.desk.orders.lock().take();
        for order in orders {
            match order {
                Order::Start(start, rights, reply) if rights != Rights::now() => {
                    let _ = reply.send(Ok(Some(start)));
                }
                Order::Start(start, _, reply) => match launch_all(&start.plans) {
                    Ok(launched) => {
                        let enrolled = start.enrol(launched);
                        // Whoever waits is told first; the rest is done while the children start.
                        let _ = reply.send(Ok(None));
                        watched.supervise(enrolled, &self.desk);
                    }
                    Err(error) => drop(reply.send(Err(error))),
                },
                Order::Watch(enrolled) => watched.supervise(enrolled, &self.desk),
                Order::Serve(_, rights, reply) if rights != Rights::now() => {
                    let _ = reply.send(Ok(None));
                }
                Order::Serve(preload, _, reply) => {
                    let _ = reply.send(self.serve_forks(preload).map(Some));
                }
                Order::Mind(pid, child) => self.mind(pid, child),
                Order::Stop { id, kill, why } => {
                    if let Some(run) = watched.runs.get_mut(&id) {
                        run.interrupt(kill, why);
                    }
                }
                Order::GiveUp { id, deadlock } => {
                    if let Some(run) = watched.runs.get_mut(&id) {
                        run.give_up(deadlock);
                    }
                }
                Order::StopAll { kill } => {
                    for run in watched.runs.values_mut() {
                        run.interrupt(kill, Why::Signalled);
                    }
                }
                Order::Grace { id, grace } => {
                    if let Some(run) = watched.runs.get_mut(&id) {
                        run.set_grace(grace);
                    }
                }
                // Without a run the reply is dropped: all have ended.
                Order::Detach { id, reply } => {
                    if let Some(run) = watched.runs.get_mut(&id) {
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
                        run.detach(reply, &mut watched.buffer);
                    }
                }
            }
        }
    }

    /// Starts a fork server, and sees to it that it is waited for whenever it ends.
    fn serve_forks(&mut self, preload: Option<Target>) -> Result<Served> {
        let launched = launch_server(preload.as_ref())?;
        let child = launched.pidfd.map(|pidfd| Arc::new(Child::new(pidfd)));
        if let Some(child) = &child {
            self.mind(launched.pid, Arc::clone(child));
        }
        Ok((launched.pid, child, launched.control))
    }

    /// From now on it is waited for.
    fn mind(&mut self, pid: u32, child: Arc<Child>) {
        let token = SERVER | u64::from(pid);
        let (data, flags) = (epoll::EventData::new_u64(token), epoll::EventFlags::IN);
        let edge = flags | epoll::EventFlags::ET;
        if let Err(errno) = epoll::add(&self.desk.epoll, &child.pidfd, data, edge) {
            link::say!(warn, %errno, "the fork server cannot be watched; it stays a zombie when it ends");
        }
        self.servers.insert(token, child);
    }

    fn wait_for_server(&mut self, token: u64) {
        if self
            .servers
            .get(&token)
            .is_some_and(|child| child.look().is_some())
        {
            link::say!(debug, "the fork server has ended");
            if let Some(child) = self.servers.remove(&token) {
                // Whoever asked for it may keep it open.
                let _ = epoll::delete(&self.desk.epoll, &child.pidfd);
            }
        }
    }
}

impl Drop for Supervisor {
    fn drop(&mut self) {
        self.desk.open.store(false, Ordering::Release);
        self.desk.abandon();
        for run in self.desk.watched.lock().runs.values_mut() {
            run.abandon();
        }
    }
}

pub(crate) fn until(deadline: Instant) -> Timespec {
    // Rounded up by the smallest step, so that the deadline has passed when the wait ends.
    let left = deadline.saturating_duration_since(Instant::now()) + Duration::from_nanos(1);
    Timespec {
        tv_sec: left.as_secs().min(i32::MAX as u64) as i64,
        tv_nsec: left.subsec_nanos().into(),
    }
}
