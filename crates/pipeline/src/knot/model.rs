//! Small pipelines, step by step in any order, on a real board: what is found to be a knot is one, and what is one is found.
//!
//! Each process does one thing after the other that others can see, as the real ones do: it says what it does, looks into a
//! lane, takes, says that it reads, lets go. Who does the next thing is drawn, so any of them may stand still for long at any
//! point, as one that is stopped does. In between, and within a look at the lanes and the conclusion from it,
//! somebody looks for knots as the supervisor of a run does.

use std::cell::RefCell;
use std::collections::VecDeque;

use super::*;
use crate::board::Place;

/// What is left out, to see that it is missed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// Nobody is asked to look once more.
    Answers,
    /// A slot that nobody reads is never taken to be on its way.
    Reach,
    /// What is found once is certain.
    SecondLook,
    /// Who has gone on since the look need not answer.
    Seen,
}

/// Where a process is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    Begin,
    /// It says that it waits no longer, and looks into its lane.
    Pause,
    Take,
    /// It found nothing, and is seldom awake.
    Sleep,
    Hold,
    Work,
    /// It looks for a free slot.
    Slot,
    /// It waits for one: reads the question, and looks.
    Question,
    Look(u64),
    Put,
    Room,
    LetGo,
    Release,
    Done,
}

#[derive(Debug)]
struct Process {
    at: At,
    reads: Option<usize>,
    writes: Vec<usize>,
    /// Whether an output goes into each of its lanes.
    every: bool,
    /// How many inputs it keeps for good.
    keeps: usize,
    /// Whether it passes on what it gets, in the slot it is in.
    forwards: bool,
    /// Inputs that a first process makes.
    left: usize,
    input: Option<(u32, u32)>,
    output: Option<(u32, u32)>,
    to_put: Vec<usize>,
    next: usize,
}

struct World {
    rng: fastrand::Rng,
    board: Board,
    processes: Vec<Process>,
    lanes: Vec<(usize, VecDeque<(u32, u32)>)>,
    writers: Vec<Vec<u32>>,
    /// Of each slot of each process, how many messages and readers there are, and its writer.
    uses: Vec<Vec<u32>>,
    stopped: usize,
}

impl World {
    fn new(seed: u64) -> (Self, Parties) {
        let mut rng = fastrand::Rng::with_seed(seed);
        let steps = rng.usize(2..=3);
        let (mut processes, mut lanes, mut readers) = (Vec::new(), Vec::new(), Vec::new());
        let mut reads: Vec<Option<usize>> = vec![None; rng.usize(1..=2)];
        for step in 0..steps {
            let is_last = step + 1 == steps;
            // The lanes of the next step, each with its readers.
            let next: Vec<usize> = (0..rng.usize(1..=2) * usize::from(!is_last))
                .map(|_| {
                    lanes.push((rng.usize(1..=3), VecDeque::new()));
                    readers.push(Vec::new());
                    lanes.len() - 1
                })
                .collect();
            let (every, forwards) = (rng.bool(), step > 0 && rng.u8(..4) == 0);
            for &lane in &reads {
                if let Some(lane) = lane {
                    let own: &mut Vec<u32> = &mut readers[lane];
                    own.push(processes.len() as u32);
                }
                processes.push(Process {
                    at: At::Begin,
                    reads: lane,
                    writes: next.clone(),
                    every,
                    keeps: if is_last { rng.usize(..4) } else { 0 },
                    forwards: forwards && !is_last,
                    left: if lane.is_none() { 12 } else { 0 },
                    input: None,
                    output: None,
                    to_put: Vec::new(),
                    next: 0,
                });
            }
            let more = if rng.bool() { next.first() } else { None };
            reads = next.iter().chain(more).map(|&lane| Some(lane)).collect();
        }
        let slots: Vec<usize> = processes
            .iter()
            .map(
                |process| match process.writes.is_empty() || process.forwards {
                    true => 0,
                    false => rng.usize(1..=3),
                },
            )
            .collect();
        let rows: Vec<usize> = slots.iter().copied().chain([0]).collect();
        let writers: Vec<Vec<u32>> = (0..lanes.len())
            .map(|lane| {
                let ranks = 0..processes.len() as u32;
                let writes = |&rank: &u32| processes[rank as usize].writes.contains(&lane);
                ranks.filter(writes).collect()
            })
            .collect();
        let mut reach = vec![Vec::new(); processes.len()];
        for rank in (0..processes.len()).rev() {
            let direct = processes[rank]
                .writes
                .iter()
                .flat_map(|&lane| &readers[lane]);
            let mut all: Vec<u32> = direct.copied().collect();
            for other in all.clone() {
                let beyond: Vec<u32> = reach[other as usize].clone();
                all.extend(beyond);
            }
            reach[rank] = all;
        }
        let parties = Parties {
            writers: writers.clone(),
            takers: readers,
            from_client: vec![false; lanes.len()],
            reach,
        };
        let world = Self {
            rng,
            board: Board::new(&rows).unwrap(),
            processes,
            lanes,
            writers,
            uses: slots.iter().map(|&count| vec![0; count]).collect(),
            stopped: usize::MAX,
        };
        (world, parties)
    }

    fn place((rank, slot): (u32, u32)) -> Place {
        let turn = 0;
        Place { rank, slot, turn }
    }

    fn free_slot(&mut self, rank: usize) -> bool {
        let free = self.uses[rank].iter().position(|&uses| uses == 0);
        if let Some(slot) = free {
            self.uses[rank][slot] = 1;
            self.processes[rank].output = Some((rank as u32, slot as u32));
        }
        free.is_some()
    }

    fn begin_to_put(&mut self, rank: usize) -> At {
        let process = &mut self.processes[rank];
        process.to_put = process.writes.clone();
        if !process.every {
            process.next += 1;
            process.to_put = vec![process.writes[process.next % process.writes.len()]];
        }
        At::Put
    }

    fn put(&mut self, rank: usize, lane: usize) -> bool {
        let (capacity, queue) = &mut self.lanes[lane];
        if queue.len() >= *capacity {
            return false;
        }
        if let Some(slot) = self.processes[rank].output {
            queue.push_back(slot);
            self.uses[slot.0 as usize][slot.1 as usize] += 1;
        }
        true
    }

    fn use_less(&mut self, slot: Option<(u32, u32)>) {
        if let Some((rank, slot)) = slot {
            self.uses[rank as usize][slot as usize] -= 1;
        }
    }

    /// One process does one thing.
    fn step(&mut self, rank: usize) {
        let board = self.board.clone();
        let me = rank as u32;
        let process = &self.processes[rank];
        let (reads, is_last) = (process.reads, process.writes.is_empty());
        let (input, output) = (process.input, process.output);
        let (at, left, keeps, forwards) =
            (process.at, process.left, process.keeps, process.forwards);
        let to_put = process.to_put.last().copied();
        let waits = reads.map(|lane| State::WaitsForInput(lane as u32));
        let next = match at {
            At::Begin => match waits {
                Some(waits) => {
                    board.enter(me, waits);
                    At::Pause
                }
                None if left == 0 => {
                    board.enter(me, State::Done);
                    At::Done
                }
                None => {
                    self.processes[rank].left -= 1;
                    board.enter(me, State::Working);
                    At::Slot
                }
            },
            At::Pause => {
                board.show(me, State::Pauses);
                At::Take
            }
            At::Take => {
                let lane = reads.unwrap_or(0);
                let done = |&writer: &u32| self.processes[writer as usize].at == At::Done;
                let ended = self.writers[lane].iter().all(done);
                match self.lanes[lane].1.pop_front() {
                    Some(slot) => {
                        self.processes[rank].input = Some(slot);
                        At::Hold
                    }
                    None if ended => {
                        board.enter(me, State::Done);
                        At::Done
                    }
                    None => {
                        waits.into_iter().for_each(|waits| board.show(me, waits));
                        At::Sleep
                    }
                }
            }
            At::Sleep => {
                let lane = reads.unwrap_or(0);
                let done = |&writer: &u32| self.processes[writer as usize].at == At::Done;
                let is_woken =
                    !self.lanes[lane].1.is_empty() || self.writers[lane].iter().all(done);
                if is_woken || self.rng.u8(..16) == 0 {
                    At::Pause
                } else {
                    At::Sleep
                }
            }
            At::Hold => {
                input
                    .into_iter()
                    .for_each(|slot| board.hold(Self::place(slot), me));
                At::Work
            }
            At::Work => {
                board.enter(me, State::Working);
                if is_last && keeps > 0 {
                    self.processes[rank].keeps -= 1;
                    self.processes[rank].input = None;
                    At::Begin
                } else if is_last {
                    At::LetGo
                } else if forwards {
                    // The reference goes along.
                    input
                        .into_iter()
                        .for_each(|slot| board.let_go(Self::place(slot), me));
                    (self.processes[rank].output, self.processes[rank].input) = (input, None);
                    self.begin_to_put(rank)
                } else {
                    At::Slot
                }
            }
            At::Slot if self.free_slot(rank) => self.begin_to_put(rank),
            At::Slot => {
                board.enter(me, State::WaitsForSlot);
                At::Question
            }
            At::Question => At::Look(board.asked(me)),
            At::Look(_) if self.free_slot(rank) => {
                board.enter(me, State::Working);
                self.begin_to_put(rank)
            }
            At::Look(question) => {
                board.answer(me, question);
                At::Question
            }
            At::Put | At::Room => match to_put {
                None => {
                    self.use_less(output);
                    self.processes[rank].output = None;
                    if input.is_some() {
                        At::LetGo
                    } else {
                        At::Begin
                    }
                }
                Some(lane) if self.put(rank, lane) => {
                    board.enter(me, State::Working);
                    self.processes[rank].to_put.pop();
                    At::Put
                }
                Some(_) if at == At::Room => At::Room,
                Some(lane) => {
                    board.enter(me, State::WaitsForRoom(lane as u32));
                    At::Room
                }
            },
            At::LetGo => {
                input
                    .into_iter()
                    .for_each(|slot| board.let_go(Self::place(slot), me));
                At::Release
            }
            At::Release => {
                self.use_less(input);
                self.processes[rank].input = None;
                At::Begin
            }
            At::Done => At::Done,
        };
        self.processes[rank].at = next;
    }

    fn steps(&mut self, count: usize) {
        // Now and then one of them stands still for a while.
        if self.rng.u8(..100) == 0 {
            self.stopped = self.rng.usize(..self.processes.len() * 2);
        }
        for _ in 0..count {
            let rank = self.rng.usize(..self.processes.len());
            if rank != self.stopped {
                self.step(rank);
            }
        }
    }

    /// Each of them goes on for so long, if it can.
    fn rounds(&mut self, count: usize) {
        for _ in 0..count {
            (0..self.processes.len()).for_each(|rank| self.step(rank));
        }
    }

    fn serials(&self) -> Vec<u64> {
        let ranks = 0..self.processes.len() as u32;
        ranks.map(|rank| self.board.since(rank).1).collect()
    }

    /// Whether everybody stands still, and not all are done.
    fn stands_still(&mut self) -> bool {
        let before = self.serials();
        self.rounds(6);
        before == self.serials() && self.processes.iter().any(|process| process.at != At::Done)
    }
}

/// Plays one world. What was found, and whether it was wrong.
fn play(seed: u64, without: Without) -> (bool, bool) {
    let (world, mut parties) = World::new(seed);
    if without == Without::Reach {
        parties.reach.iter_mut().for_each(Vec::clear);
    }
    let world = RefCell::new(world);
    let board = world.borrow().board.clone();
    let (mut known, mut question) = (Vec::new(), 0);
    let mut idle = 0;
    for turn in 1..=600 {
        let most = [2, 12, 60][world.borrow_mut().rng.usize(..3)];
        world.borrow_mut().steps(most);
        let is_empty = |lane: usize| {
            world.borrow_mut().steps(2);
            world.borrow().lanes[lane].1.is_empty()
        };
        let is_full = |lane: usize| {
            world.borrow_mut().steps(2);
            let (capacity, queue) = &world.borrow().lanes[lane];
            queue.len() >= *capacity
        };
        let knot = find(&board, &parties, is_empty, is_full, true);
        let again = knot == known || without == Without::SecondLook;
        // Others go on before it is concluded what that means.
        world.borrow_mut().steps(2);
        let is_asked =
            |rank: &u32| without != Without::Seen || board.state(*rank) == State::WaitsForSlot;
        let waits: Vec<u32> = waits_for_slots(&knot).filter(is_asked).collect();
        let answered = waits.iter().all(|&rank| board.answered(rank) >= question);
        if !knot.is_empty() && again && (answered || without == Without::Answers) {
            // Whatever happens now, nobody of it goes on.
            world.borrow_mut().rounds(60);
            let moved = knot.iter().any(|one| board.since(one.rank).1 != one.serial);
            return (true, moved);
        }
        if knot != known {
            question += 1;
            waits.iter().for_each(|&rank| board.ask(rank, question));
            known = knot;
        }
        // Everybody goes on for that, so it is not looked at often.
        if idle > 0 || (turn % 100 == 0 && world.borrow_mut().stands_still()) {
            idle += 1;
        }
        // Long since it has to be found.
        if idle > 200 {
            return (false, true);
        }
    }
    (false, false)
}

#[test]
fn what_is_found_in_small_worlds_is_a_knot_and_every_knot_is_found() {
    let mut found = 0;
    for seed in 0..1000 {
        let (is_knot, is_wrong) = play(seed, Without::Nothing);
        assert!(
            !is_wrong,
            "seed {seed}: {}",
            if is_knot { "not one" } else { "not found" }
        );
        found += u32::from(is_knot);
    }
    assert!(found > 100, "{found} knots");
}

#[test]
fn each_rule_is_missed_where_it_is_left_out() {
    for without in [
        Without::Answers,
        Without::Reach,
        Without::SecondLook,
        Without::Seen,
    ] {
        let wrong = (0..3_000).find(|&seed| play(seed, without) == (true, true));
        assert!(wrong.is_some(), "{without:?}");
    }
}
