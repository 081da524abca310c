//! The processes of one context between the plan and the supervision: all are started, or none is.

use std::sync::Arc;

use rustix::process::{Signal, pidfd_send_signal};

use crate::death;
use crate::error::Result;
use crate::launch::{Launched, Plan, launch};
use crate::link::Shared;
use crate::member::Member;
use crate::run::Options;
use crate::story::{Story, after};

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
        let deadline = after(options.hello_deadline);
        let members: Vec<Member> = plans
            .into_iter()
            .zip(launched)
            .map(|(plan, child)| Member::new(plan, child, deadline))
            .collect();
        story.begin(members.iter().map(|member| member.worker.clone()));
        Enrolled {
            members,
            shared,
            options,
            story,
        }
    }
}

/// Ends a child of a context that could not be started as a whole.
pub(crate) fn undo(child: Launched) {
    if let Some(pidfd) = &child.pidfd {
        let _ = pidfd_send_signal(pidfd, Signal::KILL);
        death::wait(pidfd);
    }
}
