//! The search: every interleaving of a world's processes, with a kill before any step, and at each
//! state the question whether the world can still go on.

use std::collections::HashSet;
use std::fmt::Debug;
use std::hash::{Hash, Hasher};

use crate::memory::{self, Log, Machine, PROCESSES};

/// Steps after which a fair schedule must have come to its end.
const FAIR_STEPS: usize = 5_000;

/// A closed system of processes.
pub(crate) trait World {
    /// Where a process stands between two acts.
    type Local: Copy + Hash + Eq + Debug;
    /// What the model knows and no process does.
    type Ghost: Copy + Hash + Eq + Debug;

    fn start(&self) -> State<Self::Local, Self::Ghost>;

    /// Whether a process between two acts has one to do.
    fn is_enabled(&self, process: usize, local: Self::Local, ghost: &Self::Ghost) -> bool;

    /// Does one act on the explored memory. Must depend on nothing but its arguments and the
    /// answers of the memory.
    ///
    /// # Errors
    /// What the process saw that it should not have seen.
    fn act(&self, process: usize, local: Self::Local) -> Result<Self::Local, String>;

    /// Takes note, in the same instant as its last step, that a process went from `before` to where
    /// it now stands.
    ///
    /// # Errors
    /// What is wrong with that.
    fn settle(
        &self,
        process: usize,
        before: Self::Local,
        state: &mut State<Self::Local, Self::Ghost>,
    ) -> Result<(), String>;

    /// Kills a process that is so many steps into its act; `false`: it can't be killed.
    fn kill(&self, process: usize, state: &mut State<Self::Local, Self::Ghost>) -> bool;

    /// What must hold in every state, also in the middle of acts.
    ///
    /// # Errors
    /// What does not.
    fn check(&self, _: &State<Self::Local, Self::Ghost>) -> Result<(), String> {
        Ok(())
    }

    /// Whether all is done. Checked at the end of what is left to run.
    ///
    /// # Errors
    /// What is wrong with this end.
    fn is_final(&self, state: &State<Self::Local, Self::Ghost>) -> Result<bool, String>;
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct Process<L> {
    pub(crate) local: L,
    pub(crate) log: Log,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct State<L, G> {
    pub(crate) machine: Machine,
    pub(crate) processes: [Process<L>; PROCESSES],
    pub(crate) count: usize,
    pub(crate) ghost: G,
    pub(crate) kills_left: u8,
}

impl<L: Copy, G> State<L, G> {
    /// Puts a process between two acts.
    pub(crate) fn set(&mut self, process: usize, local: L) {
        self.processes[process] = Process {
            local,
            log: Log::EMPTY,
        };
        self.machine.asleep[process] = None;
    }
}

impl<L: Copy + Hash, G: Hash> State<L, G> {
    fn fingerprint(&self) -> u128 {
        let mut hasher = Wide::default();
        self.machine.words.hash(&mut hasher);
        self.machine.asleep.hash(&mut hasher);
        for process in &self.processes[..self.count] {
            process.local.hash(&mut hasher);
            process.log.as_slice().hash(&mut hasher);
        }
        self.ghost.hash(&mut hasher);
        hasher.write_u8(self.kills_left);
        hasher.finish_wide()
    }
}

/// What a search found.
#[derive(Debug)]
pub(crate) struct Report {
    pub(crate) states: usize,
    pub(crate) transitions: usize,
    pub(crate) fair_states: usize,
    pub(crate) ends: usize,
    /// The search stopped at the limit of states.
    pub(crate) cut_off: bool,
    pub(crate) violation: Option<String>,
}

#[derive(Copy, Clone, Debug)]
enum Action {
    Step { process: usize, choice: usize },
    Kill { process: usize },
}

struct Frame<L, G> {
    state: State<L, G>,
    /// The action that is tried next.
    next: Action,
    /// Whether any process could take a step from here.
    moved: bool,
    /// How this state was reached.
    by: Option<Action>,
}

struct Search<'w, W: World> {
    world: &'w W,
    seen: HashSet<u128, Plain>,
    fair: HashSet<u128, Plain>,
    report: Report,
}

/// Explores a world, up to so many states.
pub(crate) fn explore<W: World>(world: &W, limit: usize) -> Report {
    let mut search = Search {
        world,
        seen: HashSet::default(),
        fair: HashSet::default(),
        report: Report {
            states: 0,
            transitions: 0,
            fair_states: 0,
            ends: 0,
            cut_off: false,
            violation: None,
        },
    };
    search.run(limit);
    search.report.states = search.seen.len();
    search.report.fair_states = search.fair.len();
    search.report
}

type Stack<W> = Vec<Frame<<W as World>::Local, <W as World>::Ghost>>;

impl<W: World> Search<'_, W> {
    fn run(&mut self, limit: usize) {
        let mut stack: Stack<W> = Vec::new();
        let start = self.world.start();
        if let Err(violation) = self.enter(&mut stack, start, None) {
            self.report.violation = Some(violation);
        }
        while self.report.violation.is_none() {
            let Some(frame) = stack.last_mut() else {
                return;
            };
            if self.seen.len() > limit {
                self.report.cut_off = true;
                return;
            }
            let outcome = match frame.next {
                Action::Step { process, .. } | Action::Kill { process }
                    if process == frame.state.count =>
                {
                    let frame = stack.pop().expect("there is a last frame");
                    self.leave(&frame)
                }
                Action::Kill { process } => {
                    frame.next = Action::Step {
                        process: process + 1,
                        choice: 0,
                    };
                    let mut state = frame.state;
                    if state.kills_left > 0 && self.world.kill(process, &mut state) {
                        state.kills_left -= 1;
                        state.machine.asleep[process] = None;
                        self.enter(&mut stack, state, Some(Action::Kill { process }))
                    } else {
                        Ok(())
                    }
                }
                by @ Action::Step { process, choice } => {
                    let stepped = self.step(&frame.state, process, choice);
                    match stepped {
                        None => {
                            frame.next = Action::Kill { process };
                            Ok(())
                        }
                        Some((outcome, choices)) => {
                            frame.moved = true;
                            frame.next = if choice + 1 < choices {
                                Action::Step {
                                    process,
                                    choice: choice + 1,
                                }
                            } else {
                                Action::Kill { process }
                            };
                            outcome.and_then(|state| self.enter(&mut stack, state, Some(by)))
                        }
                    }
                }
            };
            if let Err(violation) = outcome {
                self.report.violation = Some(self.explain(&stack, &violation));
            }
        }
    }

    /// One step of a process, if it has one to take.
    #[allow(clippy::type_complexity)]
    fn step(
        &self,
        state: &State<W::Local, W::Ghost>,
        process: usize,
        choice: usize,
    ) -> Option<(Result<State<W::Local, W::Ghost>, String>, usize)> {
        let Process { local, log } = state.processes[process];
        if state.machine.asleep[process].is_some()
            || (log.len() == 0 && !self.world.is_enabled(process, local, &state.ghost))
        {
            return None;
        }
        let stepped = memory::step(state.machine, log, process, choice, || {
            self.world.act(process, local)
        });
        let mut next = *state;
        next.machine = stepped.machine;
        next.processes[process].log = stepped.log;
        let woken = next.machine.take_woken();
        for sleeper in (0..state.count).filter(|sleeper| woken & 1 << sleeper != 0) {
            next.processes[sleeper].log.push(1);
        }
        let outcome = match stepped.end {
            None => Ok(next),
            Some(end) => end.and_then(|end| {
                next.set(process, end);
                self.world.settle(process, local, &mut next)?;
                Ok(next)
            }),
        };
        Some((outcome, stepped.choices))
    }

    /// Goes on to a state, unless it was seen before.
    fn enter(
        &mut self,
        stack: &mut Stack<W>,
        state: State<W::Local, W::Ghost>,
        by: Option<Action>,
    ) -> Result<(), String> {
        self.report.transitions += 1;
        if !self.seen.insert(state.fingerprint()) {
            return Ok(());
        }
        let fine = self.world.check(&state);
        stack.push(Frame {
            state,
            next: Action::Step {
                process: 0,
                choice: 0,
            },
            moved: false,
            by,
        });
        fine?;
        // A kill is where progress can be lost for good.
        if matches!(by, None | Some(Action::Kill { .. })) {
            self.comes_to_an_end(state)?;
        }
        Ok(())
    }

    fn leave(&mut self, frame: &Frame<W::Local, W::Ghost>) -> Result<(), String> {
        if self.world.is_final(&frame.state)? {
            self.report.ends += 1;
            Ok(())
        } else if frame.moved {
            Ok(())
        } else {
            Err(format!(
                "nobody can go on and it is not the end: {:#?}",
                Brief(&frame.state)
            ))
        }
    }

    /// Lets all take turns until the end.
    fn comes_to_an_end(&mut self, mut state: State<W::Local, W::Ghost>) -> Result<(), String> {
        let mut passed = HashSet::new();
        for _ in 0..FAIR_STEPS {
            let here = state.fingerprint();
            if self.world.is_final(&state)? || self.fair.contains(&here) {
                self.fair.extend(passed);
                return Ok(());
            }
            let mut moved = false;
            for process in 0..state.count {
                if let Some((outcome, _)) = self.step(&state, process, 0) {
                    state = outcome?;
                    self.world.check(&state)?;
                    moved = true;
                }
            }
            // Where it was before, it will be again for ever.
            if !moved || !passed.insert(here) {
                return Err(format!("taking turns leads nowhere: {:#?}", Brief(&state)));
            }
        }
        Err(format!(
            "taking turns does not come to an end: {:#?}",
            Brief(&state)
        ))
    }

    fn explain(&self, stack: &Stack<W>, violation: &str) -> String {
        let mut text = format!("{violation}\nafter:\n");
        for frame in stack {
            let Some(by) = frame.by else { continue };
            let (Action::Step { process, .. } | Action::Kill { process }) = by;
            let process = &frame.state.processes[process];
            text += &format!(
                "  {by:?} -> {:?} {:x?}\n",
                process.local,
                process.log.as_slice()
            );
        }
        text
    }
}

/// A state in few lines.
struct Brief<'s, L, G>(&'s State<L, G>);

impl<L: Debug, G: Debug> Debug for Brief<'_, L, G> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let State {
            machine,
            processes,
            count,
            ghost,
            ..
        } = self.0;
        writeln!(f, "words {:x?}", machine.words)?;
        writeln!(f, "asleep {:?}", machine.asleep)?;
        for process in &processes[..*count] {
            writeln!(f, "{:?} {:x?}", process.local, process.log.as_slice())?;
        }
        writeln!(f, "{ghost:?}")
    }
}

/// A hash of 128 bits, wide enough that two of some million states do not share one.
#[derive(Copy, Clone)]
struct Wide(u64, u64);

impl Default for Wide {
    fn default() -> Self {
        Self(0x9e37_79b9_7f4a_7c15, 0xc2b2_ae3d_27d4_eb4f)
    }
}

impl Wide {
    fn mix(&mut self, value: u64) {
        let product = u128::from(self.0 ^ value) * 0x2d35_8dcc_aa6c_78a5_u128;
        self.0 = (product as u64) ^ ((product >> 64) as u64).rotate_left(17);
        let product = u128::from(self.1.rotate_left(29) ^ value) * 0x8bb8_4b93_962e_acc9_u128;
        self.1 = (product as u64) ^ ((product >> 64) as u64).rotate_left(23);
    }

    fn finish_wide(mut self) -> u128 {
        self.mix(0x5851_f42d_4c95_7f2d);
        self.mix(0x1405_7b7e_f767_814f);
        u128::from(self.0) << 64 | u128::from(self.1)
    }
}

impl Hasher for Wide {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, value: u8) {
        self.mix(value.into());
    }
    fn write_u64(&mut self, value: u64) {
        self.mix(value);
    }
    fn write_usize(&mut self, value: usize) {
        self.mix(value as u64);
    }
    fn write_isize(&mut self, value: isize) {
        self.mix(value as u64);
    }
}

/// Fingerprints are hashes already.
#[derive(Copy, Clone, Default)]
struct Plain(u64);

impl std::hash::BuildHasher for Plain {
    type Hasher = Self;
    fn build_hasher(&self) -> Self {
        *self
    }
}

impl Hasher for Plain {
    fn finish(&self) -> u64 {
        self.0
    }
    fn write(&mut self, _: &[u8]) {
        unreachable!("only fingerprints are hashed");
    }
    fn write_u128(&mut self, value: u128) {
        self.0 = value as u64;
    }
}
