//! Who is killed, when and how: at a label given at the start, or from outside at a moment that nobody chose.

use std::time::{Duration, Instant};

use super::control::Control;
use super::crew::Member;

/// A failpoint that a process gets with its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Armed {
    pub(crate) label: &'static str,
    nth: u64,
    stops: bool,
    aim: Aim,
}

/// Which process a label is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Aim {
    /// The one that is given it.
    AtMember,
    /// One that it starts, by name.
    At(String),
}

impl Armed {
    pub(crate) fn text(&self) -> String {
        let what = if self.stops { "stop" } else { "kill" };
        let at = match &self.aim {
            Aim::AtMember => String::new(),
            Aim::At(name) => format!("@{name}"),
        };
        format!("{}:{}{at}={what}", self.label, self.nth)
    }

    /// Whether it kills the one that is given it.
    pub(crate) fn kills(&self) -> bool {
        !self.stops && self.aim == Aim::AtMember
    }

    /// Whether it stops the one that is given it.
    pub(crate) fn stops(&self) -> bool {
        self.stops && self.aim == Aim::AtMember
    }
}

/// All labels, if this build has them.
pub(crate) fn labels(beginnings: &[&str]) -> Vec<&'static str> {
    #[cfg(any(debug_assertions, feature = "failpoints"))]
    let all = shm_core::failpoint::LABELS;
    #[cfg(not(any(debug_assertions, feature = "failpoints")))]
    let all: &[&str] = &[];
    all.iter()
        .copied()
        .filter(|label| beginnings.iter().any(|start| label.starts_with(start)))
        .collect()
}

#[derive(Debug)]
pub(crate) struct Killer {
    rng: fastrand::Rng,
    labels: Vec<&'static str>,
    /// The labels not given yet in this turn through all of them.
    left: Vec<&'static str>,
    aim: Aim,
    /// The mean time between two blows from outside.
    pause: Duration,
    next: Instant,
    /// Whether there are blows from outside as well, other than for those that their label does not meet.
    blows: bool,
}

impl Killer {
    pub(crate) fn new(
        rng: fastrand::Rng,
        labels: Vec<&'static str>,
        blows: bool,
        pause: Duration,
        aim: Aim,
    ) -> Killer {
        Killer {
            rng,
            aim,
            pause,
            blows: blows || labels.is_empty(),
            labels,
            left: Vec::new(),
            next: Instant::now(),
        }
    }

    /// What the next process gets with it: all labels in turn, in an order of their own each time.
    pub(crate) fn arm(&mut self) -> Option<Armed> {
        if self.labels.is_empty() || (self.blows && self.rng.u8(..10) < 3) {
            return None;
        }
        if self.left.is_empty() {
            self.left = self.labels.clone();
            self.rng.shuffle(&mut self.left);
        }
        let label = self.left.pop()?;
        // What a process seldom comes by is met early or never.
        let seldom = ["attach.", "row.", "reap.", "chunk.", "lease."];
        let most = match seldom.iter().any(|start| label.starts_with(start)) {
            true => 2,
            false => *self.rng.choice(&[1, 4, 30]).unwrap_or(&1),
        };
        let nth = self.rng.u64(1..=most);
        let stops = self.rng.u8(..10) == 0;
        let is_member = self.aim == Aim::AtMember;
        Some(Armed {
            label,
            // Each that comes in the place of such a process has the label, too, and shall do something before.
            nth: if is_member { nth } else { 8 + nth },
            // Nobody would let it go on.
            stops: stops && is_member,
            aim: self.aim.clone(),
        })
    }

    /// Deals the next blow when it is due. `may` says whom it may hit.
    pub(crate) fn act(
        &mut self,
        members: &mut [Option<Member>],
        control: &Control,
        may: impl Fn(usize) -> bool,
    ) {
        let now = Instant::now();
        for member in members.iter_mut().flatten() {
            match member.stopped {
                Some((until, true)) if now >= until => member.kill(),
                Some((until, false)) if now >= until => member.resume(),
                None if member.armed.as_ref().is_some_and(Armed::stops) && member.has_stopped() => {
                    let (until, then_kill) = self.stop();
                    member.stopped = Some((until, then_kill));
                }
                _ => {}
            }
        }
        if now < self.next {
            return;
        }
        // Exponential, as moments that know nothing of each other are.
        self.next = now + self.pause.mul_f64(-(1.0 - self.rng.f64()).ln());
        // Steps it has made at least: mostly those that have done something, since a slow machine would see nothing but
        // beginnings otherwise; where labels are to kill, those that seem not to come by theirs.
        let least = match (self.blows, self.rng.u8(..4)) {
            (true, 0) => 0,
            (true, _) => 1,
            (false, _) => 300,
        };
        let mut targets: Vec<&mut Member> = members
            .iter_mut()
            .flatten()
            .filter(|member| may(member.slot) && member.stopped.is_none())
            .filter(|member| control.steps(member.slot) >= member.steps_before + least)
            .collect();
        if targets.is_empty() {
            return;
        }
        let target = targets.swap_remove(self.rng.usize(..targets.len()));
        if self.rng.u8(..8) == 0 {
            let (until, then_kill) = self.stop();
            target.stop(until, then_kill);
        } else {
            target.kill();
        }
    }

    /// Until when somebody stays stopped, and whether he is killed then.
    fn stop(&mut self) -> (Instant, bool) {
        let time = Duration::from_millis(self.rng.u64(1..80));
        (Instant::now() + time, self.rng.u8(..3) == 0)
    }
}
