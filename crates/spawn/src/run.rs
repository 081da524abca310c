//! One context as the supervisor runs it: the first failure counts, is told to all who wait, and stops the others.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use crate::death::{self, OomKills};
use crate::error::{Error, ErrorKind};
use crate::failure::Failure;
use crate::link::{self, Deadlock, Patience, Shared, Stopping};
use crate::member::Member;
use crate::method::StartMethod;
use crate::story::{Phase, Story};

/// How long the supervisor waits for a process that SIGKILL did not end before it reports without it. Such a process
/// hangs in the kernel (a dead file server, a driver).
const UNKILLABLE: Duration = Duration::from_secs(5);

/// How long a failure that was told waits for news of an earlier one. What a failing function drops can make its peers
/// fail, and their news may be here first.
const SETTLING: Duration = Duration::from_millis(5);

/// The same where there is reason to expect earlier news: another function is known to be panicking since before (its
/// unwinding may take a while), or the error itself says that another process is the reason.
const EXPECTING: Duration = Duration::from_millis(250);

/// What a context may choose.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Options {
    /// From SIGTERM to SIGKILL.
    pub(crate) grace: Duration,
    /// From the start to `init`.
    pub(crate) hello_deadline: Duration,
    pub(crate) method: StartMethod,
    /// A failure is told to who joins only, not to who waits for what the processes were handed.
    pub(crate) apart: bool,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            grace: Duration::from_secs(3),
            hello_deadline: Duration::from_secs(10),
            method: StartMethod::default(),
            apart: false,
        }
    }
}

/// Why the processes of a context are stopped without a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The program said so.
    Asked,
    /// Its context is gone.
    Dropped,
    /// The program got a signal that it hands on.
    Signalled,
    /// The system does not tell what happens to them.
    Unwatched,
}

impl Why {
    /// What its peers are told, and whoever joins.
    fn cause(self) -> &'static str {
        match self {
            Why::Asked => "was stopped on request (by `terminate` or `kill`)",
            Why::Dropped => {
                "was stopped because its SpawnContext was dropped (keep it and call `join`)"
            }
            Why::Signalled => {
                "was stopped because this program got SIGINT, SIGTERM or SIGHUP and hands them on"
            }
            Why::Unwatched => {
                "was stopped because the system does not report what happens to it (see the log)"
            }
        }
    }
}

/// The processes are being stopped.
#[derive(Debug)]
struct Stop {
    /// Until SIGKILL; behind it, until it is told that this did not help.
    wait: Patience,
    killed: bool,
    /// For as long as there is somebody left to stop.
    _stopping: Stopping,
}

/// The processes of a context.
#[derive(Debug)]
pub(crate) struct Run {
    story: Arc<Story>,
    members: Vec<Member>,
    /// The queues and other things that the processes were handed: waits on them end with the failure.
    shared: Vec<Shared>,
    options: Options,
    /// How many out-of-memory kills there were before.
    oom_before: Arc<OomKills>,
    /// Failures that are known while it is not settled which was the first, and the wait for that.
    pending: Vec<Failure>,
    settling: Option<Patience>,
    first: Option<Error>,
    stop: Option<Stop>,
    told: bool,
    /// The processes are asked whether they will live on without this one.
    detaching: Option<Detaching>,
    /// They do; what becomes of them is nobody's business here.
    detached: bool,
}

/// Who wants to know whether the processes will live on, and how long they may take to say so.
#[derive(Debug)]
struct Detaching {
    reply: SyncSender<Result<(), Error>>,
    wait: Patience,
}

impl Run {
    pub(crate) fn new(
        story: Arc<Story>,
        members: Vec<Member>,
        shared: Vec<Shared>,
        options: Options,
        oom_before: Arc<OomKills>,
    ) -> Run {
        Run {
            story,
            members,
            shared,
            options,
            oom_before,
            pending: Vec::new(),
            settling: None,
            first: None,
            stop: None,
            told: false,
            detaching: None,
            detached: false,
        }
    }

    pub(crate) fn members(&self) -> &[Member] {
        &self.members
    }

    /// Nothing is left to watch.
    pub(crate) fn is_over(&self) -> bool {
        self.members.iter().all(Member::has_ended)
    }

    /// Looks at the members that something happened to, and at all of them if that was a failure: the first by time
    /// may be one whose news was not read yet.
    pub(crate) fn look(&mut self, touched: &HashSet<usize>, buffer: &mut Vec<u8>) {
        let mut failures = Vec::new();
        for &rank in touched {
            if let Some(member) = self.members.get_mut(rank) {
                failures.extend(member.look(buffer, &self.oom_before));
            }
        }
        self.judge(failures, buffer);
    }

    /// Acts on what did not happen in time.
    pub(crate) fn tick(&mut self, now: Instant, buffer: &mut Vec<u8>) {
        let mut failures = Vec::new();
        let is_due = |member: &mut Member| member.due().is_some_and(|due| due.is_over(now));
        for member in &mut self.members {
            if is_due(member) {
                // It may have said what was waited for: not all that it says wakes anybody.
                failures.extend(member.look(buffer, &self.oom_before));
                if is_due(member) {
                    failures.extend(member.overdue(self.options.hello_deadline));
                }
            }
        }
        self.judge(failures, buffer);
        self.press(now);
    }

    /// The next time at which `tick` has something to do.
    pub(crate) fn next_deadline(&self) -> Option<Instant> {
        let settled = self.settling.map(|mut wait| {
            wait.set_whole(self.settling_time());
            wait
        });
        let stop = self.stop.as_ref().filter(|_| !self.told);
        let detaching = self.detaching.as_ref();
        self.members
            .iter()
            .filter_map(Member::next_look)
            .chain(stop.map(|stop| stop.wait.next()))
            .chain(settled.map(|wait| wait.next()))
            .chain(detaching.map(|detaching| detaching.wait.next()))
            .min()
    }

    fn only_daemons_are_left(&self) -> bool {
        self.detaching.is_none()
            && self
                .members
                .iter()
                .all(|member| member.is_daemon() || member.has_ended())
    }

    /// How long processes that are stopped have from SIGTERM to SIGKILL, from now on.
    pub(crate) fn set_grace(&mut self, grace: Duration) {
        self.options.grace = grace;
    }

    /// Lets the processes live on without this one. Answers when all have said that they will, or that they cannot.
    pub(crate) fn detach(&mut self, reply: SyncSender<Result<(), Error>>, buffer: &mut Vec<u8>) {
        self.members.iter().for_each(Member::ask_to_live_on);
        self.detaching = Some(Detaching {
            reply,
            wait: Patience::new(self.options.hello_deadline),
        });
        self.judge(Vec::new(), buffer);
    }

    fn answer_detaching(&mut self, now: Instant) {
        let Some(detaching) = &mut self.detaching else {
            return;
        };
        let answers: Vec<_> = self.members.iter().map(Member::lives_on).collect();
        let end = if let Some(error) = &self.first {
            Err(error.clone())
        } else if answers.iter().all(|answer| *answer == Some(true)) {
            Ok(())
        } else if !detaching.wait.is_over(now) && !answers.contains(&Some(false)) {
            return;
        } else {
            let silent = answers.iter().position(|answer| *answer != Some(true));
            let worker = self.members[silent.unwrap_or(0)].worker.clone();
            Err(Error::from_process(ErrorKind::LostContact {
                worker,
                reason: "it was told to live on without its parent and did not confirm it"
                    .to_owned(),
            }))
        };
        // Whether the context has an end that it can still tell, is up to whoever asked.
        self.detached = end.is_ok();
        if let Some(detaching) = self.detaching.take() {
            let _ = detaching.reply.send(end);
        }
        if self.detached {
            // From here on they are only waited for, so that none becomes a zombie.
            self.shared.clear();
            self.pending.clear();
            self.settling = None;
            self.story.finish(Ok(()));
        }
    }

    /// Stops all processes without a failure.
    pub(crate) fn interrupt(&mut self, kill: bool, why: Why) {
        if self.is_over() || self.detached {
            return;
        }
        if self.first.is_none() {
            self.give(self.interrupted(why), why.cause());
        }
        if kill {
            self.stop(Duration::ZERO);
        }
    }

    /// Stops all processes because they and this one wait for each other.
    pub(crate) fn give_up(&mut self, deadlock: Deadlock) {
        if self.first.is_none() && !self.is_over() {
            self.fail(ErrorKind::Deadlock { deadlock }, None);
        }
    }

    /// The supervisor itself ends: whoever waits must not wait for ever, and nobody will look after the processes.
    pub(crate) fn abandon(&mut self) {
        if self.detached {
            return;
        }
        self.members.iter_mut().for_each(Member::kill);
        self.story.finish(Err(Error::new(
            ErrorKind::Interrupted { worker: None },
            "the thread that supervises the processes has ended unexpectedly, so they were killed",
        )));
        for pidfd in self
            .members
            .iter()
            .filter_map(|member| member.pidfd.as_ref())
        {
            death::wait(pidfd);
        }
    }

    fn judge(&mut self, failures: Vec<Failure>, buffer: &mut Vec<u8>) {
        self.pending.extend(failures);
        // Stopped without a failure: only daemons are left, and how they end is their own business.
        if self.first.is_some() || self.detached || self.stop.is_some() {
            self.pending.clear();
            // With nothing to settle there is nothing to look for.
            self.settling = None;
        }
        if !self.pending.is_empty() {
            for member in &mut self.members {
                self.pending.extend(member.look(buffer, &self.oom_before));
            }
            let whole = self.settling_time();
            let settling = self.settling.get_or_insert_with(|| Patience::new(whole));
            settling.set_whole(whole);
            if settling.is_over(Instant::now()) {
                // Stable: of several processes that ended without a word the one that was looked at first counts.
                self.pending.sort_by_key(Failure::order);
                let first = self.pending.swap_remove(0);
                self.pending.clear();
                self.settling = None;
                self.fail(first.kind, first.typed);
            }
        }
        for member in &mut self.members {
            member.settle(&self.shared);
            if let Some(value) = member.take_value() {
                self.story.keep(member.worker.rank, value);
            }
            let phase = if member.has_ended() && member.has_returned() {
                Phase::Finished
            } else if member.has_ended() {
                Phase::Ended
            } else if member.has_returned() {
                Phase::Returned
            } else if member.is_running() {
                Phase::Running
            } else {
                continue;
            };
            self.story.note(member.worker.rank, phase);
        }
        if self.is_over() {
            self.tell();
        } else if self.stop.is_none() && self.pending.is_empty() && self.only_daemons_are_left() {
            link::say!(debug, "only daemons are left; stopping them");
            self.stop(self.options.grace);
        }
        self.answer_detaching(Instant::now());
    }

    /// How long what is pending waits for an earlier failure to be told.
    fn settling_time(&self) -> Duration {
        let (follows, earliest) = self
            .pending
            .iter()
            .map(Failure::order)
            .min()
            .unwrap_or_default();
        // The end of a process without a word counts as the earliest of all.
        if earliest == 0 || !self.members.iter().any(Member::is_undecided) {
            Duration::ZERO
        } else if follows
            || self
                .members
                .iter()
                .filter_map(Member::panicking_since)
                .any(|at| at < earliest)
        {
            EXPECTING
        } else {
            SETTLING
        }
    }

    /// The first failure: keeps it, tells all who wait for these processes, stops the others.
    fn fail(&mut self, kind: ErrorKind, typed: Option<(String, Vec<u8>)>) {
        let cause = kind.cause();
        self.give(Error::told(kind, typed), &cause);
    }

    fn give(&mut self, error: Error, cause: &str) {
        link::say!(debug, %error, "stopping the other processes");
        // Before anybody else can act on it.
        self.story
            .note_failure(error.worker().map(|worker| worker.rank));
        // Stopped on request, or because of a deadlock: any that still runs can stand for all.
        let running = self.members.iter().find(|member| !member.has_ended());
        let stands = running
            .or(self.members.first())
            .map(|member| &member.worker);
        if let Some(worker) = error.worker().or(stands) {
            for object in &self.shared {
                object.record_failure(worker, cause);
            }
        }
        self.first = Some(error);
        self.stop(self.options.grace);
    }

    /// The sentence names a process: with all of them it would be long.
    fn interrupted(&self, why: Why) -> Error {
        let mut running = self.members.iter().filter(|member| !member.has_ended());
        let cause = why.cause();
        let message = match (running.next(), running.count()) {
            (None, _) => cause.to_owned(),
            (Some(first), 0) => format!("{} {cause}", first.worker),
            (Some(first), others) => format!("{}, with {others} more, {cause}", first.worker),
        };
        Error::new(ErrorKind::Interrupted { worker: None }, message)
    }

    fn stop(&mut self, grace: Duration) {
        match &mut self.stop {
            Some(stop) if stop.killed => {}
            Some(stop) => {
                let whole = stop.wait.spent().saturating_add(grace);
                stop.wait.set_whole(whole.min(stop.wait.whole()));
            }
            None => {
                self.stop = Some(Stop {
                    wait: Patience::new(grace),
                    killed: false,
                    _stopping: Stopping::begin(),
                });
                if !grace.is_zero() {
                    for member in &mut self.members {
                        member.terminate();
                    }
                }
            }
        }
        self.press(Instant::now());
    }

    /// Grace has ended: SIGKILL. And if even that does not help: report without those that hang.
    fn press(&mut self, now: Instant) {
        let Some(stop) = &mut self.stop else { return };
        if !stop.wait.is_over(now) {
            return;
        }
        if !stop.killed {
            stop.killed = true;
            stop.wait = Patience::new_at(UNKILLABLE, now);
            for member in &mut self.members {
                member.kill();
            }
        } else if !self.told {
            for member in self.members.iter().filter(|member| !member.has_ended()) {
                link::say!(error, worker = %member.worker, "it does not end after SIGKILL; it hangs in the kernel");
            }
            self.tell();
        }
    }

    fn tell(&mut self) {
        if !std::mem::replace(&mut self.told, true) {
            // Whoever shared something with these processes learnt how it ended; nothing here keeps it any longer.
            self.shared.clear();
            self.story.finish(self.first.clone().map_or(Ok(()), Err));
        }
    }
}
