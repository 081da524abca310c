//! One round: an arena, a crew that works in it, kills, and what has to be so afterwards.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use shm_core::Arena;
use shm_core::audit::{Audit, Difference};

use super::control::Control;
use super::crew::{End, Ground, Member};
use super::killer::{Aim, Armed, Killer, labels};
use super::receipts::Receipts;
use super::report::{Progress, Tally};
use super::suite::{Name, Scene, Suite};
use super::{hang, leaving, orphans};
use crate::Result;

/// Address space of a round's arena.
const CAPACITY: u64 = 2 << 30;
/// A look at all processes.
const LOOK: Duration = Duration::from_millis(2);
/// Steps that everyone left must make before the round may end.
const HEALTHY: u64 = 3;

/// When a round ends, and when it hangs.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) until: Instant,
    pub(crate) kills: u64,
    pub(crate) patience: Duration,
}

struct Round<'a> {
    ground: Ground<'a>,
    scene: Box<dyn Scene>,
    control: Control,
    members: Vec<Option<Member>>,
    killer: Killer,
    rng: fastrand::Rng,
    next_life: u64,
    /// Whether this process buries those that it waited for, or leaves that to the crew.
    buries: bool,
    tally: &'a mut Tally,
}

pub(crate) fn play(
    name: Name,
    limits: Limits,
    mut rng: fastrand::Rng,
    tally: &mut Tally,
    progress: &mut Progress,
) -> Result<()> {
    let suite = name.suite();
    tally.rounds += 1;
    let named = rng.bool();
    let builder = Arena::builder().capacity(CAPACITY);
    let arena = match named {
        true => builder.name(format!("chaos-{}-{}", std::process::id(), tally.rounds)),
        false => builder.strategy("file_descriptor"),
    }
    .create()?;
    let path = arena.path();
    // What names take stays for as long as the arena.
    Control::create(&arena, 0)?.remove(&arena)?;
    let at_first = arena.stats().live;
    let messages = crew_works(name, suite, limits, rng, tally, progress, &arena)?;
    tally.messages += messages;
    if tally.is_clean() {
        look_around(&arena, at_first, tally);
    }
    drop(arena);
    if named && tally.is_clean() {
        leaving::play(limits.patience, tally)?;
    }
    if let Some(path) = path.filter(|path| path.exists()) {
        tally.files_left += 1;
        tally.problem(format!("{} was left behind", path.display()));
        let _ = std::fs::remove_file(path);
    }
    Ok(())
}

/// Answers how many messages there were.
fn crew_works(
    name: Name,
    suite: &dyn Suite,
    limits: Limits,
    mut rng: fastrand::Rng,
    tally: &mut Tally,
    progress: &mut Progress,
    arena: &Arena,
) -> Result<u64> {
    let (receipts, log) = (Receipts::create()?, Receipts::create()?);
    let at_labels = labels(suite.labels());
    let marker = format!("{}-{}", std::process::id(), tally.rounds);
    let mut round = Round {
        ground: Ground {
            suite: name,
            marker: marker.clone(),
            arena,
            place: arena.path(),
            receipts: &receipts,
            log: &log,
        },
        scene: suite.open(arena, rng.fork())?,
        control: Control::create(arena, suite.crew())?,
        members: (0..suite.crew()).map(|_| None).collect(),
        // Now and then only at labels, so that each death is known to the step.
        killer: Killer::new(
            rng.fork(),
            at_labels.clone(),
            rng.u8(..6) > 0,
            suite.pause(),
            suite.aim(),
        ),
        buries: rng.bool(),
        next_life: 1,
        tally,
        rng,
    };
    let length = Duration::from_millis(round.rng.u64(1000..3000));
    let end = limits.until.min(Instant::now() + length);
    let before = round.tally.kills();
    while Instant::now() < end
        && round.tally.is_clean()
        && round.tally.kills() + round.control.kills() - before < limits.kills
    {
        round.look(true)?;
        let Round {
            killer,
            members,
            scene,
            control,
            ..
        } = &mut round;
        killer.act(members, control, |slot| !scene.spares(slot));
        progress.show(round.tally, round.control.messages());
        std::thread::sleep(LOOK);
    }
    round.finish(limits.patience)?;
    let Round {
        scene,
        control,
        tally,
        members,
        ..
    } = round;
    // Those that hang are killed here.
    drop(members);
    let signs = orphans::Signs {
        marker,
        name: orphans::name_of(std::process::id()),
        groups: scene.groups(&receipts)?,
    };
    for orphan in orphans::wait(&signs, limits.patience) {
        tally.orphans += 1;
        tally.problem(format!("an orphan: {orphan}"));
    }
    let zombies = orphans::reap(None)? as u64;
    if zombies > 0 {
        tally.zombies += zombies;
        tally.problem(format!("{zombies} dead processes could not be waited for"));
    }
    tally.children_killed += control.kills();
    tally.children_at_labels += control.kills_at_labels();
    tally.stops += control.children_stopped();
    arena.bury_the_dead();
    let messages = control.messages();
    if tally.is_clean() {
        match scene.check(arena, &receipts) {
            Ok(wrong) => {
                tally.corruptions += wrong.len() as u64;
                for text in wrong {
                    tally.problem(text);
                }
            }
            Err(error) => tally.problem(format!("the check at the end: {error}")),
        }
    }
    control.remove(arena)?;
    let reached: BTreeSet<_> = tally.killed_at_labels.keys().copied().collect();
    tally.labels_never_reached = at_labels
        .into_iter()
        .filter(|label| !reached.contains(label))
        // Who dies at a label that is for others is counted by them, without the label.
        .filter(|_| suite.aim() == Aim::AtMember)
        .collect();
    if !tally.is_clean() {
        let said = log.text();
        if !said.is_empty() {
            tally.problem(format!("the processes said:\n{said}"));
        }
    }
    Ok(messages)
}

impl Round<'_> {
    /// Sees who has ended, and starts another in that place.
    fn look(&mut self, armed: bool) -> Result<()> {
        for slot in 0..self.members.len() {
            self.see(slot)?;
            if self.members[slot].is_none() && self.tally.is_clean() {
                self.start(slot, armed)?;
            }
        }
        Ok(())
    }

    fn start(&mut self, slot: usize, armed: bool) -> Result<()> {
        let life = self.next_life;
        self.next_life += 1;
        let words = self.scene.start(slot, life)?;
        let may = armed && !self.scene.spares(slot);
        let armed = if may { self.killer.arm() } else { None };
        let seed = self.rng.u64(..);
        let mut member = self.ground.start(slot, life, seed, &words, armed)?;
        member.steps_before = self.control.steps(slot);
        self.members[slot] = Some(member);
        self.tally.processes += 1;
        Ok(())
    }

    /// Whether the place is empty now.
    fn see(&mut self, slot: usize) -> Result<bool> {
        let Some(member) = &mut self.members[slot] else {
            return Ok(true);
        };
        let Some(end) = member.ended()? else {
            return Ok(false);
        };
        let (pid, life) = (member.pid(), member.life);
        self.tally.stops += u64::from(member.stopped.is_some());
        self.members[slot] = None;
        if self.buries
            && let Some(owner) = self.ground.arena.participant_of_pid(pid)
        {
            self.ground.arena.bury(owner);
        }
        self.scene.ended(slot, life, &end);
        match end {
            End::Done => {}
            End::Killed => self.tally.killed_at_random += 1,
            End::AtLabel(label) => *self.tally.killed_at_labels.entry(label).or_default() += 1,
            End::Corrupt => {
                self.tally.corruptions += 1;
                self.tally
                    .problem(format!("life {life} found wrong contents"));
            }
            End::Wrong(text) => {
                self.tally.crashes += 1;
                self.tally.problem(text);
            }
        }
        Ok(true)
    }

    /// The killing is over: everyone gets on, and then everyone ends.
    fn finish(&mut self, patience: Duration) -> Result<()> {
        for member in self.members.iter_mut().flatten() {
            member.resume();
        }
        let marks: Vec<_> = (0..self.members.len())
            .map(|slot| (self.life_in(slot), self.control.steps(slot)))
            .collect();
        let start = Instant::now();
        let still = |round: &Self| {
            marks.iter().enumerate().any(|(slot, &(life, steps))| {
                round.life_in(slot) == life && round.control.steps(slot) < steps + HEALTHY
            })
        };
        while self.tally.is_clean() && still(self) {
            if start.elapsed() >= patience {
                return self.hang("nobody was killed any more, and yet somebody did not get on");
            }
            self.look(false)?;
            self.resume_stopped();
            std::thread::sleep(LOOK);
        }
        self.control.stop()?;
        let mut last = (Instant::now(), usize::MAX);
        loop {
            let mut running = Vec::new();
            for slot in 0..self.members.len() {
                if !self.see(slot)? {
                    running.push(slot);
                }
            }
            if running.is_empty() || !self.tally.is_clean() {
                return Ok(());
            }
            if running.len() != last.1 {
                last = (Instant::now(), running.len());
            }
            if last.0.elapsed() >= patience {
                return self.hang("everyone was told to stop, and somebody did not");
            }
            self.resume_stopped();
            match self.scene.missed(&running) {
                Some(slot) => self.start(slot, false)?,
                None => self.scene.wind_down(&running)?,
            }
            std::thread::sleep(LOOK);
        }
    }

    fn life_in(&self, slot: usize) -> Option<u64> {
        self.members[slot].as_ref().map(|member| member.life)
    }

    fn resume_stopped(&mut self) {
        for member in self.members.iter_mut().flatten() {
            if member.armed.as_ref().is_some_and(Armed::stops) && member.has_stopped() {
                self.tally.stops += 1;
                member.resume();
            }
        }
    }

    fn hang(&mut self, why: &str) -> Result<()> {
        self.tally.hangs += 1;
        let story = hang::story(self.ground.arena, self.members.iter().flatten());
        self.tally.problem(format!("hang: {why}\n{story}"));
        Ok(())
    }
}

/// Nobody else is there: counts, memory, rows.
fn look_around(arena: &Arena, at_first: u64, tally: &mut Tally) {
    arena.bury_the_dead();
    let found = arena.audit();
    tally.leaks_before_audit += sum(&found.leaked);
    let mut missing = found.missing.len() as u64;
    // What is given back may itself have held something that is counted too often.
    for _ in 0..64 {
        if arena.repair_leaks_of_the_dead().leaked.is_empty() {
            break;
        }
    }
    let Audit {
        leaked,
        missing: after,
        ..
    } = arena.audit();
    missing += after.len() as u64;
    tally.leaks_after_audit += sum(&leaked);
    tally.counts_too_low += missing;
    if missing > 0 || !leaked.is_empty() {
        tally.problem(format!(
            "counts are off: at first {found:?}, after the repair {leaked:?} too high and {after:?} too low"
        ));
    }
    arena.trim();
    let stats = arena.stats();
    if stats.live != at_first || stats.participants != 1 {
        tally.problem(format!(
            "nobody holds anything, and yet {} bytes are live instead of {at_first}, in {} blocks, with {} participants",
            stats.live, stats.blocks, stats.participants
        ));
    }
}

fn sum(leaked: &[Difference]) -> u64 {
    leaked.iter().map(|line| line.count - line.holders).sum()
}
