//! The contexts whose processes are watched, and the wait of whoever joins the only process of one.
//!
//! The supervisor's thread looks after all of them. A join that waits for one process looks after that one itself
//! meanwhile: the end wakes the thread that waits for it, and not another one that wakes it then.

use std::collections::{HashMap, HashSet};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::io::Errno;

use crate::desk::Desk;
use crate::link;
use crate::run::{Run, Why};
use crate::start::{Enrolled, report};
use crate::supervisor::{token, until};

/// The contexts whose processes are watched.
#[derive(Default)]
pub(crate) struct Watched {
    pub(crate) runs: HashMap<u32, Run>,
    /// Where frames are received.
    pub(crate) buffer: Vec<u8>,
    /// There were processes not long ago. Then the desk is looked at once more before the supervisor sleeps for long:
    /// another start need not wake it.
    pub(crate) lingers: bool,
}

impl Watched {
    /// From now on these processes are watched.
    pub(crate) fn supervise(&mut self, mut enrolled: Enrolled, desk: &Desk) {
        if enrolled.watched.is_none() {
            enrolled.watch(&desk.epoll);
        }
        let Enrolled {
            members,
            shared,
            options,
            story,
            oom_before,
            watched,
            ..
        } = enrolled;
        let id = story.id;
        let oom_before = oom_before.unwrap_or_else(|| desk.oom_kills());
        let mut run = Run::new(story, members, shared, options, oom_before);
        if let Some(Err(errno)) = watched {
            link::say!(error, %errno, "these processes cannot be watched; stopping them");
            run.interrupt(true, Why::Unwatched);
        }
        // Some may be gone already, in a way that epoll does not report: no descriptor was to be had.
        let gone: HashSet<usize> = run
            .members()
            .iter()
            .filter(|member| member.pidfd.is_none())
            .map(|member| member.worker.rank)
            .collect();
        if !gone.is_empty() {
            run.look(&gone, &mut self.buffer);
        }
        self.runs.insert(id, run);
        self.lingers = true;
    }

    /// Looks at processes of one context.
    pub(crate) fn look(&mut self, id: u32, ranks: &HashSet<usize>) {
        if let Some(run) = self.runs.get_mut(&id) {
            run.look(ranks, &mut self.buffer);
        }
    }

    /// Looks at all processes, whether there is news of them or not.
    pub(crate) fn look_at_all(&mut self) {
        self.lingers = !self.runs.is_empty();
        for run in self.runs.values_mut() {
            let all = (0..run.members().len()).collect();
            run.look(&all, &mut self.buffer);
        }
        self.runs.retain(|_, run| !run.is_over());
    }

    /// Acts on what did not happen in time, in all contexts, and lets go of those that are over.
    pub(crate) fn tick(&mut self) {
        let now = Instant::now();
        for run in self.runs.values_mut() {
            if run.next_deadline().is_some_and(|at| at <= now) {
                run.tick(now, &mut self.buffer);
            }
        }
        self.runs.retain(|_, run| !run.is_over());
    }
}

/// The descriptors of a context's only process.
#[derive(Clone, Debug)]
pub(crate) struct Only {
    pub(crate) pidfd: Arc<OwnedFd>,
    pub(crate) control: Arc<OwnedFd>,
}

/// How a wait of one's own ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// There may be news, and they have been written down.
    Looked,
    /// Nothing has happened for so long.
    TimedOut,
    /// It takes the supervisor to learn more.
    Blind,
}

/// A wait for a context's only process by the thread that joins it. As long as it lasts, nothing that happens to the
/// process wakes the supervisor, which only looks now and then, as at all processes, and minds the deadlines.
///
/// Only the end of the process ends the wait. Its last word comes just before that, and so does the end of its socket,
/// which cannot be left out of what a poll of the socket tells: to be woken for them would take the processor from a
/// process that has nothing left to do but to end. One that said its last word and does not end is noticed at the next
/// slice.
pub(crate) struct Firsthand {
    desk: Arc<Desk>,
    id: u32,
    only: Only,
}

impl Firsthand {
    /// `None` where the process has ended, or is unknown: then the supervisor is waited for.
    pub(crate) fn begin(desk: Arc<Desk>, id: u32, only: Only) -> Option<Firsthand> {
        let mut watched = desk.watched.lock();
        let started = desk.orders.lock().take_started(id);
        if let Some(enrolled) = started {
            watched.supervise(enrolled, &desk);
        }
        if !watched.runs.contains_key(&id) {
            return None;
        }
        // Something in this program may have closed them; then the first wait finds that out.
        let _ = epoll::delete(&desk.epoll, &only.pidfd);
        let _ = epoll::delete(&desk.epoll, &only.control);
        drop(watched);
        Some(Firsthand { desk, id, only })
    }

    /// Waits for news of the process, no longer than that, and writes down what they mean.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Waited {
        let timeout = until(Instant::now() + timeout);
        let mut end = [PollFd::new(&self.only.pidfd, PollFlags::IN)];
        let ended = match poll(&mut end, Some(&timeout)) {
            Ok(0) => false,
            Ok(_) if end[0].revents().contains(PollFlags::NVAL) => return Waited::Blind,
            Ok(_) => true,
            Err(Errno::INTR | Errno::AGAIN) => return Waited::Looked,
            Err(_) => return Waited::Blind,
        };
        let mut watched = self.desk.watched.lock();
        watched.look(self.id, &HashSet::from([0]));
        let next = watched.runs.get(&self.id).and_then(Run::next_deadline);
        let over = watched.runs.get(&self.id).is_none_or(Run::is_over);
        if over {
            watched.runs.remove(&self.id);
        }
        drop(watched);
        if over {
            return Waited::Looked;
        }
        // Deadlines are minded by the supervisor, which does not know of a new one while it sleeps.
        if next.is_some_and(|at| !self.desk.orders.lock().is_seen_by(at)) {
            self.desk.urge();
        }
        // It has ended and was not found to have.
        if ended {
            Waited::Blind
        } else {
            Waited::TimedOut
        }
    }
}

impl Drop for Firsthand {
    fn drop(&mut self) {
        // Ended, or handed back.
        if self.desk.watched.lock().runs.contains_key(&self.id) {
            let _ = report(
                &self.desk.epoll,
                token(self.id, 0),
                Some(self.only.pidfd.as_fd()),
                Some(self.only.control.as_fd()),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::process::{Child, Command};

    use rustix::process::{Pid, PidfdFlags, pidfd_open};

    use super::*;
    use crate::control;
    use crate::error::ErrorKind;
    use crate::frame::Frame;
    use crate::launch::{Arguments, Launched, Plan};
    use crate::process::Process;
    use crate::run::Options;
    use crate::setup::Setup;
    use crate::start::Start;
    use crate::story::Story;
    use crate::trampoline::{Target, target_by_name};

    fn target<F: Fn(usize, ()) + Copy + Send + 'static>(_: F) -> Target {
        target_by_name::<F, (), ()>()
    }

    /// The start of so many processes, which are not made by it.
    fn start_of(story: Arc<Story>, processes: usize) -> Start {
        let plan = |rank| Plan {
            target: target(|_, ()| ()),
            name: "gone".to_owned(),
            rank,
            context: story.id,
            depth: 1,
            arguments: Arguments::Plain(Vec::new()),
            outcome: [0; 2],
            stdin: None,
            setup: Setup::new(Process::named("gone"), "f", &[]).unwrap(),
        };
        Start {
            plans: (0..processes).map(plan).collect(),
            shared: Vec::new(),
            options: Options::default(),
            story,
        }
    }

    /// How a process is told that was gone, and reaped by the system, before it could be looked at, and that had said this.
    fn end_of_one_without_a_descriptor(said: &[Frame]) -> crate::Result<()> {
        let desk = Desk::open(std::process::id()).unwrap();
        let story = Arc::new(Story::new(7));
        let start = start_of(Arc::clone(&story), 1);
        let (ours, theirs) = control::pair().unwrap();
        for frame in said {
            control::tell(theirs.as_fd(), frame).unwrap();
        }
        drop(theirs);
        let mut enrolled = start.enrol(vec![Launched {
            pid: i32::MAX as u32,
            pidfd: None,
            control: ours,
        }]);
        // Whoever starts it has to ring: no news of it will come.
        assert!(!enrolled.watch(&desk.epoll));
        let mut watched = Watched::default();
        watched.supervise(enrolled, &desk);
        watched.tick();
        assert!(watched.runs.is_empty(), "it is watched for ever");
        story.end().expect("an end")
    }

    /// A process that does nothing, and the other end of its socket.
    fn sleeper() -> (Child, Launched, OwnedFd) {
        let sleeps = Command::new("sleep").arg("3600").spawn().unwrap();
        let pidfd = pidfd_open(Pid::from_child(&sleeps), PidfdFlags::empty());
        let (ours, theirs) = control::pair().unwrap();
        let launched = Launched {
            pid: sleeps.id(),
            pidfd: Some(pidfd.unwrap()),
            control: ours,
        };
        (sleeps, launched, theirs)
    }

    /// Two processes under supervision, the first of which has failed and says that another one is the reason, and what
    /// the second speaks by.
    fn one_that_follows(id: u32) -> (Watched, Arc<Story>, OwnedFd) {
        let story = Arc::new(Story::new(id));
        let (_, first, follows) = sleeper();
        let (_, second, other) = sleeper();
        let enrolled = start_of(Arc::clone(&story), 2).enrol(vec![first, second]);
        let mut watched = Watched::default();
        let desk = Desk::open(std::process::id()).unwrap();
        watched.supervise(enrolled, &desk);
        control::tell(follows.as_fd(), &raised(1, true, "it left")).unwrap();
        watched.look(id, &HashSet::from([0]));
        assert!(watched.runs[&id].next_deadline().is_some());
        (watched, story, other)
    }

    fn raised(at: u64, follows: bool, text: &str) -> Frame {
        Frame::Raised {
            at,
            follows,
            chain: vec![text.to_owned()],
            backtrace: None,
            typed: None,
        }
    }

    #[test]
    fn a_pause_of_the_machine_makes_no_reason_of_what_only_follows() {
        let (mut watched, story, other) = one_that_follows(9);
        let runs = watched.runs.values_mut();
        runs.for_each(|run| run.set_grace(Duration::ZERO));
        // Longer than the reason is waited for, and nobody had a turn.
        std::thread::sleep(Duration::from_millis(300));
        watched.tick();
        control::tell(other.as_fd(), &raised(2, false, "the reason")).unwrap();
        while story.end().is_none() {
            watched.look_at_all();
            watched.tick();
        }
        let error = story.end().expect("an end").unwrap_err();
        assert!(error.to_string().contains("the reason"), "{error}");
    }

    #[test]
    fn who_is_stopped_while_a_failure_is_not_settled_is_not_looked_at_without_end() {
        let (mut watched, _, _other) = one_that_follows(10);
        for run in watched.runs.values_mut() {
            run.set_grace(Duration::from_secs(3600));
            run.interrupt(false, Why::Asked);
        }
        watched.look_at_all();
        // What is left to wait for is what a process says or does, for seconds.
        let next = watched.runs[&10].next_deadline().unwrap();
        assert!(next > Instant::now());
        watched.runs.values_mut().for_each(Run::abandon);
    }

    /// A process under supervision, which has said that, and the other end of its socket.
    fn one_that_said(id: u32, frames: &[Frame]) -> (Child, Watched, Arc<Story>, OwnedFd) {
        let story = Arc::new(Story::new(id));
        let (sleeps, launched, theirs) = sleeper();
        let enrolled = start_of(Arc::clone(&story), 1).enrol(vec![launched]);
        let mut watched = Watched::default();
        watched.supervise(enrolled, &Desk::open(std::process::id()).unwrap());
        for frame in frames {
            control::tell(theirs.as_fd(), frame).unwrap();
        }
        watched.look_at_all();
        (sleeps, watched, story, theirs)
    }

    /// A look after so many seconds in which nobody had a turn.
    fn tick_after(watched: &mut Watched, now: &mut Instant, seconds: u64) {
        *now += Duration::from_secs(seconds);
        let Watched { runs, buffer, .. } = watched;
        for run in runs.values_mut() {
            run.tick(*now, buffer);
        }
    }

    #[test]
    fn a_pause_of_the_machine_is_no_reason_to_give_up_a_process() {
        let returned = || Frame::Returned {
            plain: Some(Vec::new()),
        };
        // Before `init`; with a socket that ended a moment before it does; on its way out.
        for (id, frames, ends, told) in [
            (11, vec![], false, Some("did not reach `init`")),
            (12, vec![Frame::Arrived], true, Some("socket is closed")),
            (13, vec![Frame::Arrived, returned()], false, None),
        ] {
            let (mut sleeps, mut watched, story, theirs) = one_that_said(id, &frames);
            if ends {
                drop(theirs);
                watched.look_at_all();
            }
            let mut now = Instant::now();
            tick_after(&mut watched, &mut now, 3600);
            assert!(sleeps.try_wait().unwrap().is_none(), "{frames:?}");
            let next = watched.runs[&id].next_deadline();
            assert!(next.is_some_and(|at| at > now), "{frames:?}");
            // As long as it takes where time passes.
            let mut looks = 1;
            while watched.runs[&id].next_deadline().is_some() && looks < 100 {
                tick_after(&mut watched, &mut now, 3600);
                looks += 1;
            }
            assert!(looks >= 8, "{frames:?}: {looks}");
            watched.look_at_all();
            let end = story.end();
            match told {
                Some(told) => {
                    let error = end.expect("an end").unwrap_err().to_string();
                    assert!(error.contains(told), "{error}");
                }
                None => assert!(sleeps.wait().is_ok(), "it was killed"),
            }
        }
    }

    #[test]
    fn who_is_told_to_end_is_not_killed_because_the_machine_paused() {
        let (mut sleeps, mut watched, ..) = one_that_said(14, &[Frame::Arrived]);
        let pid = Pid::from_child(&sleeps);
        // It takes its time to end.
        rustix::process::kill_process(pid, rustix::process::Signal::STOP).unwrap();
        for run in watched.runs.values_mut() {
            run.set_grace(Duration::from_secs(80));
            run.interrupt(false, Why::Asked);
        }
        let mut now = Instant::now();
        for _ in 1..8 {
            tick_after(&mut watched, &mut now, 60);
            // Behind SIGKILL it is looked at much sooner.
            let next = watched.runs[&14].next_deadline().unwrap();
            assert!(next > now + Duration::from_secs(9));
        }
        tick_after(&mut watched, &mut now, 60);
        assert!(!sleeps.wait().unwrap().success());
    }

    #[test]
    fn what_a_supervisor_looked_after_that_ends_is_killed_and_told_so() {
        let desk = Desk::open(std::process::id()).unwrap();
        let start = start_of(Arc::new(Story::new(8)), 1);
        let story = Arc::clone(&start.story);
        let (mut sleeps, launched, _theirs) = sleeper();
        let enrolled = start.enrol(vec![launched]);
        let mut watched = Watched::default();
        watched.supervise(enrolled, &desk);
        watched.runs.values_mut().for_each(Run::abandon);
        let error = story.end().expect("an end").unwrap_err();
        assert!(error.to_string().contains("so they were killed"), "{error}");
        // It was waited for.
        assert!(sleeps.try_wait().is_err());
    }

    #[test]
    fn a_process_without_a_descriptor_has_ended_and_is_told_by_what_it_said() {
        let returned = Frame::Returned {
            plain: Some(Vec::new()),
        };
        end_of_one_without_a_descriptor(&[Frame::Arrived, returned]).unwrap();
        let error = end_of_one_without_a_descriptor(&[Frame::Arrived]).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::ProcessExited { .. }),
            "{error:?}"
        );
        let error = end_of_one_without_a_descriptor(&[]).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::NeverStarted { .. }),
            "{error:?}"
        );
    }
}
