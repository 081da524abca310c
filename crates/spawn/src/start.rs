//! The processes of one context between the plan and the supervision: all are started, or none is.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::event::epoll;
use rustix::io::Errno;
use rustix::process::Signal;

use crate::death::{self, OomKills};
use crate::error::Result;
use crate::launch::{Launched, Plan, launch};
use crate::link::{Patience, Shared};
use crate::member::Member;
use crate::run::Options;
use crate::story::Story;
use crate::supervisor::token;
use crate::watched::Only;

/// The processes of one context, to be started.
pub(crate) struct Start {
    pub(crate) plans: Vec<Plan>,
    pub(crate) shared: Vec<Shared>,
    pub(crate) options: Options,
    pub(crate) story: Arc<Story>,
}

/// The processes of one context, which run.
pub(crate) struct Enrolled {
    pub(crate) members: Vec<Member>,
    pub(crate) shared: Vec<Shared>,
    pub(crate) options: Options,
    pub(crate) story: Arc<Story>,
    /// How long they may take to reach `init`.
    pub(crate) due: Patience,
    /// How many out-of-memory kills there were before, if that was known.
    pub(crate) oom_before: Option<Arc<OomKills>>,
    /// Whether what happens to them is reported, if that was seen to.
    pub(crate) watched: Option<Result<(), Errno>>,
}

impl Enrolled {
    /// Has the epoll report what happens to them. Whether it will, for all of them.
    pub(crate) fn watch(&mut self, epoll: &OwnedFd) -> bool {
        let add = |member: &Member| {
            report(
                epoll,
                token(self.story.id, member.worker.rank),
                member.pidfd.as_ref().map(|pidfd| pidfd.as_fd()),
                member.control.as_ref().map(|control| control.as_fd()),
            )
        };
        let watched = self.members.iter().try_for_each(add);
        self.watched = Some(watched);
        watched.is_ok() && self.members.iter().all(|member| member.pidfd.is_some())
    }
}

/// Has the epoll report what happens to one process.
///
/// Edges, not levels: a descriptor that is closed here stays in the epoll as long as a forked child of the host has a
/// copy of it, and would be reported without end. A look always takes all that is there.
///
/// What a child says while it runs its function wakes nobody; it is read when there is reason to look. After the news of
/// a failure it shuts its side of the socket down, and that is reported, once, as is the end of a process that had
/// returned, moments before the other descriptor tells of it.
pub(crate) fn report(
    epoll: &OwnedFd,
    token: u64,
    pidfd: Option<BorrowedFd<'_>>,
    control: Option<BorrowedFd<'_>>,
) -> Result<(), Errno> {
    let last_word = epoll::EventFlags::RDHUP | epoll::EventFlags::ET | epoll::EventFlags::ONESHOT;
    let end = epoll::EventFlags::IN | epoll::EventFlags::ET;
    for (descriptor, flags) in [(pidfd, end), (control, last_word)] {
        if let Some(descriptor) = descriptor {
            epoll::add(epoll, descriptor, epoll::EventData::new_u64(token), flags)?;
        }
    }
    Ok(())
}

/// Starts all these processes, or none. To be called on a thread that lives as long as the process.
pub(crate) fn launch_all(plans: &[Plan]) -> Result<Vec<Launched>> {
    let mut launched = Vec::with_capacity(plans.len());
    for plan in plans {
        match launch(plan) {
            Ok(child) => launched.push(child),
            Err(error) => {
                launched.into_iter().for_each(undo);
                return Err(error);
            }
        }
    }
    Ok(launched)
}

impl Start {
    /// Notes who was started. From here on they are known to whoever asks.
    pub(crate) fn enrol(self, launched: Vec<Launched>) -> Enrolled {
        let Start {
            plans,
            shared,
            options,
            story,
        } = self;
        let due = Patience::new(options.hello_deadline);
        let members: Vec<Member> = plans
            .into_iter()
            .zip(launched)
            .map(|(plan, child)| Member::new(plan, child, due))
            .collect();
        let only = match members.as_slice() {
            [one] => one
                .pidfd
                .clone()
                .zip(one.control.clone())
                .map(|(pidfd, control)| Only { pidfd, control }),
            _ => None,
        };
        story.begin(members.iter().map(|member| member.worker.clone()), only);
        Enrolled {
            members,
            shared,
            options,
            story,
            due,
            oom_before: None,
            watched: None,
        }
    }
}

/// Ends a child of a context that could not be started as a whole.
pub(crate) fn undo(child: Launched) {
    let Launched {
        pid,
        pidfd,
        control,
    } = child;
    if let Some(pidfd) = &pidfd {
        let _ = death::signal(pidfd, pid, Signal::KILL);
        // One that cannot be signalled ends itself without this.
        drop(control);
        death::wait(pidfd);
    }
}
