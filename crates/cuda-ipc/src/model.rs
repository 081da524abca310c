//! A model of the ledger: every interleaving of what three processes and the device do, with deaths and stops before any step.
//!
//! *D* records an event for others, and ends in peace or is killed. *B* records something, comes to wait for D's record in
//! the same stream or in another one, which may have the number of the first, and records something behind that, perhaps with
//! the same event. The event's origin may record it for something else. Or B's streams are a company: it waits in the one and
//! records in the other, which comes to wait for the first if the program puts something into CUDA's default stream. *C* waits for one of B's records, and says in the end
//! that it has happened or that it is lost; what counts say is judged by the function that the ledger itself uses. Each rule is
//! left out once, and that has to be noticed.

use std::collections::HashSet;

use smallvec::SmallVec;

use crate::ledger::{Said, judge};

/// What is left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Without {
    Nothing,
    /// A process that ends in peace says that its streams are done.
    Peace,
    /// It waits for them before it says so.
    Drain,
    /// A record is counted after it was made, so that no count is of one that a look at the stream does not see.
    CountLast,
    /// A number is another stream's only when all that was recorded under it has happened.
    Numbers,
    /// What a stream waits for is listed before it waits.
    List,
    /// What was recorded before a stream came to wait is not lost with it.
    Since,
    /// That a wait is over for a stream is said after the stream was said to be lost.
    LostFirst,
    /// Who is dead behind a stopped process is no reason to give up what is known to be done.
    DoneBehind,
    /// An event is recorded for something else when what was recorded with it has happened.
    Asked,
    /// A stream that has nothing to do waits for nothing, if it was told of all that is listed.
    Told,
    /// What one stream of a company waits for is listed, and lost, for the others as well.
    Company,
    /// It is over when the stream that was told to wait has come behind it, and not when another one has nothing to do.
    Own,
}

#[derive(Clone, Copy, Debug)]
struct Config {
    /// Who may be killed: D, B.
    kills: [bool; 2],
    stops: bool,
    /// Whether B waits in another stream than the one in which it recorded first, and has dropped that.
    other_stream: bool,
    /// Whether it has not, and the two are ordered by the driver.
    company: bool,
    /// Whether B records behind its wait with the event that it waited for.
    same_event: bool,
    /// Which of B's records C waits for.
    wanted: u8,
    without: Without,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Life {
    Runs,
    Stopped,
    Ended,
    Killed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Verdict {
    Over,
    Lost,
}

/// What the device has to do for B.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Op {
    Wait,
    /// For all that the other stream has to do.
    Behind,
    Record(u8),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    lives: [Life; 2],
    /// Steps that D, its other thread, and B have done.
    d: u8,
    looker: u8,
    b: u8,
    d_issued: bool,
    d_happened: bool,
    d_marked: bool,
    d_count: u64,
    d_seen: u64,
    d_done: u64,
    /// Of each stream of B: what it has to do.
    ops: [SmallVec<[Op; 3]>; 2],
    /// Which number the second stream has.
    number: usize,
    happened: [bool; 3],
    marked: [bool; 3],
    /// Whether the event that B waited for speaks of B's record now.
    renewed: bool,
    /// Or of one by its origin, which has happened.
    reused: bool,
    count: [u64; 2],
    done: [u64; 2],
    lost: [u64; 2],
    /// Upto and since of the wait that is listed, and of the one that B knows of.
    listed: Option<(u64, u64)>,
    known: Option<(u64, u64)>,
    is_lost: bool,
    /// Up to which record C waits.
    upto: Option<u64>,
    verdict: Option<Verdict>,
}

/// Adds the state that an act leads to.
type Step<'a> = &'a mut dyn FnMut(&dyn Fn(&mut State));

const D: usize = 0;
const B: usize = 1;

impl Config {
    fn begin() -> State {
        State {
            lives: [Life::Runs; 2],
            d: 0,
            looker: 0,
            b: 0,
            d_issued: false,
            d_happened: false,
            d_marked: false,
            d_count: 0,
            d_seen: 0,
            d_done: 0,
            ops: [SmallVec::new(), SmallVec::new()],
            number: 0,
            happened: [false; 3],
            marked: [false; 3],
            renewed: false,
            reused: false,
            count: [0; 2],
            done: [0; 2],
            lost: [0; 2],
            listed: None,
            known: None,
            is_lost: false,
            upto: None,
            verdict: None,
        }
    }

    /// The stream in which B waits.
    fn waiting(&self) -> usize {
        usize::from(self.other_stream)
    }

    /// The stream in which it records after that.
    fn recording(&self) -> usize {
        usize::from(self.other_stream && !self.company)
    }

    /// The number under which a record of B is counted.
    fn number_of(&self, state: &State, record: u8) -> usize {
        if record == 2 { state.number } else { 0 }
    }

    fn is_gone(state: &State, who: usize) -> bool {
        matches!(state.lives[who], Life::Ended | Life::Killed)
    }

    /// All states that one step leads to.
    fn steps(&self, from: &State) -> Vec<State> {
        let mut all = Vec::new();
        let mut step = |act: &dyn Fn(&mut State)| {
            let mut next = from.clone();
            act(&mut next);
            if next != *from {
                all.push(next);
            }
        };
        self.device(from, &mut step);
        if from.lives[D] == Life::Runs {
            self.source(from, &mut step);
        }
        if from.lives[B] == Life::Runs {
            self.between(from, &mut step);
            self.look(from, &mut step);
        }
        self.reader(from, &mut step);
        if from.d_marked && (Self::asks(from) || self.without == Without::Asked) {
            step(&|to| (to.renewed, to.reused) = (false, true));
        }
        for who in [D, B] {
            if self.kills[who] && !Self::is_gone(from, who) {
                step(&|to| to.lives[who] = Life::Killed);
            }
        }
        if self.stops && from.lives[B] == Life::Runs {
            step(&|to| to.lives[B] = Life::Stopped);
        }
        all
    }

    /// Whether the event says that it has happened: of its latest record.
    fn asks(state: &State) -> bool {
        match (state.reused, state.renewed) {
            (true, _) => true,
            (false, true) => state.happened[2],
            (false, false) => state.d_happened,
        }
    }

    fn device(&self, from: &State, step: Step<'_>) {
        if from.d_issued && !Self::is_gone(from, D) {
            step(&|to| to.d_happened = true);
        }
        for stream in 0..2 {
            let Some(&op) = from.ops[stream].first() else {
                continue;
            };
            let is_held =
                op == Op::Wait && !from.d_happened || op == Op::Behind && !from.ops[1].is_empty();
            if is_held || Self::is_gone(from, B) {
                continue;
            }
            step(&|to| {
                to.ops[stream].remove(0);
                if let Op::Record(record) = op {
                    to.happened[usize::from(record)] = true;
                }
            });
        }
    }

    fn source(&self, from: &State, step: Step<'_>) {
        let counted_last = self.without != Without::CountLast;
        match from.d {
            0 | 1 if (from.d == 0) == counted_last => step(&|to| {
                to.d += 1;
                to.d_issued = true;
            }),
            0 | 1 => step(&|to| {
                to.d += 1;
                to.d_count += 1;
            }),
            2 => step(&|to| {
                to.d += 1;
                to.d_marked = true;
            }),
            // The end in peace, which waits for the streams.
            _ if from.d_happened || self.without == Without::Drain => step(&|to| {
                if self.without != Without::Peace {
                    to.d_done = to.d_count;
                }
                to.lives[D] = Life::Ended;
            }),
            _ => {}
        }
        // Another thread waits for the stream: what was counted before has happened after.
        match from.looker {
            0 => step(&|to| {
                to.looker = 1;
                to.d_seen = to.d_count;
            }),
            1 if !from.d_issued || from.d_happened => step(&|to| {
                to.looker = 2;
                if self.without != Without::Peace {
                    to.d_done = to.d_done.max(to.d_seen);
                }
            }),
            _ => {}
        }
    }

    fn between(&self, from: &State, step: Step<'_>) {
        let waiting = self.waiting();
        match from.b {
            0 => step(&|to| {
                to.b += 1;
                to.ops[0].push(Op::Record(1));
            }),
            1 | 6 => {
                let record = if from.b == 1 { 1 } else { 2 };
                step(&|to| {
                    to.b += 1;
                    to.count[self.number_of(to, record)] += 1;
                });
            }
            2 | 7 => {
                let record = if from.b == 2 { 1 } else { 2 };
                step(&|to| {
                    to.b += 1;
                    to.marked[record] = true;
                });
            }
            3 if from.d_marked => step(&|to| {
                to.b += 1;
                let is_done = to.count[0] <= to.done[0] || self.without == Without::Numbers;
                to.number = usize::from(self.other_stream && !self.company && !is_done);
                to.known = Some((to.d_count, to.count[to.number]));
                if !matches!(self.without, Without::List | Without::Company) {
                    to.listed = to.known;
                }
            }),
            4 => step(&|to| {
                to.b += 1;
                to.ops[waiting].push(Op::Wait);
            }),
            5 => {
                let mut record = |behind: Option<Op>| {
                    step(&|to| {
                        to.b += 1;
                        to.ops[0].extend(behind);
                        to.ops[self.recording()].push(Op::Record(2));
                        (to.renewed, to.reused) = (self.same_event, to.reused && !self.same_event);
                    });
                };
                // What waits for an event comes before what is recorded with it.
                if !(self.company && self.same_event) {
                    record(None);
                }
                if self.company {
                    record(Some(Op::Behind));
                }
            }
            _ if from.ops.iter().all(|ops| ops.is_empty()) => step(&|to| {
                to.done = to.count;
                to.lives[B] = Life::Ended;
            }),
            _ => {}
        }
    }

    /// B looks at what it waits for, and how far its streams are.
    fn look(&self, from: &State, step: Step<'_>) {
        let waiting = self.waiting();
        // The stream that has the number is asked.
        let asked = if from.b > 3 && from.number == 0 {
            self.recording()
        } else {
            0
        };
        for (number, stream) in [(0, asked), (1, waiting)] {
            if from.ops[stream].is_empty() && !(number == 1 && from.number == 0) {
                step(&|to| to.done[number] = to.count[number]);
            }
        }
        // It is listed between these two steps, and the stream not told.
        let is_told = from.b != 4 || self.without == Without::Told;
        let is_over =
            from.ops[waiting].is_empty() || self.without == Without::Own && from.ops[0].is_empty();
        if is_over && is_told {
            step(&|to| (to.known, to.listed) = (None, None));
        }
        let Some((upto, since)) = from.known.filter(|_| from.b > 4) else {
            return;
        };
        let lost = if self.without == Without::Since {
            1
        } else {
            since + 1
        };
        if Self::asks(from) || judge(from.d_done, 0, upto) == Said::Over {
            step(&|to| {
                to.known = None;
                to.listed = None;
            });
        } else if Self::is_gone(from, D) && !from.is_lost {
            if self.without == Without::LostFirst {
                step(&|to| to.listed = None);
            }
            step(&|to| {
                to.is_lost = true;
                if self.without != Without::Company {
                    to.lost[to.number] = lost;
                }
            });
        }
    }

    fn reader(&self, from: &State, step: Step<'_>) {
        let wanted = usize::from(self.wanted);
        let number = self.number_of(from, self.wanted);
        let Some(upto) = from.upto else {
            if from.marked[wanted] {
                step(&|to| to.upto = Some(to.count[number]));
            }
            return;
        };
        if from.verdict.is_some() {
            return;
        }
        let say = |verdict| move |to: &mut State| to.verdict = Some(verdict);
        let said = judge(from.done[number], from.lost[number], upto);
        if said == Said::Over || from.happened[wanted] {
            step(&say(Verdict::Over));
        } else if said == Said::Lost || Self::is_gone(from, B) {
            step(&say(Verdict::Lost));
        } else if let Some((theirs, since)) = from.listed
            && from.lives[B] == Life::Stopped
            && number == from.number
            && since < upto
            && Self::is_gone(from, D)
            && (judge(from.d_done, 0, theirs) != Said::Over || self.without == Without::DoneBehind)
        {
            step(&say(Verdict::Lost));
        }
    }

    /// What is wrong with a state, of which it is known whether it leads to others.
    fn wrong(&self, state: &State, is_end: bool) -> Option<&'static str> {
        let has_happened = state.happened[usize::from(self.wanted)];
        let killed = state.lives.map(|life| life == Life::Killed);
        // Who came when the stream had recorded more cannot tell which of the two it waits for.
        let may_be_behind = self.wanted == 2 || state.upto == Some(2);
        let may_be_lost = killed[B] || (may_be_behind && killed[D]);
        match state.verdict {
            Some(Verdict::Over) if !has_happened => Some("over, and has not happened"),
            Some(Verdict::Lost) if !may_be_lost => Some("lost, and nobody was killed for it"),
            None if is_end && state.upto.is_some() => Some("waits for ever"),
            _ if state.d_done > u64::from(state.d_happened) => Some("done, and is not"),
            _ => None,
        }
    }

    /// Looks at everything that can happen; how many states there are, or what is wrong.
    fn explore(&self) -> Result<usize, &'static str> {
        let begin = Self::begin();
        let mut seen = HashSet::from([begin.clone()]);
        let mut open = vec![begin];
        while let Some(state) = open.pop() {
            let next = self.steps(&state);
            if let Some(wrong) = self.wrong(&state, next.is_empty()) {
                return Err(wrong);
            }
            for state in next {
                if seen.insert(state.clone()) {
                    open.push(state);
                }
            }
        }
        Ok(seen.len())
    }
}

/// One of 128 worlds.
fn world(bits: u8, without: Without) -> Config {
    let bit = |at: u8| bits >> at & 1 == 1;
    Config {
        kills: [bit(0), bit(1)],
        stops: bit(2),
        other_stream: bit(3) || bit(6),
        company: bit(6),
        same_event: bit(4),
        wanted: 1 + u8::from(bit(5)),
        without,
    }
}

#[test]
fn nothing_that_happens_is_called_lost_and_nothing_that_never_does_is_waited_for() {
    let mut states = 0;
    // Who is killed needs not be stopped as well, and a company has two streams.
    for bits in (0..128).filter(|bits| bits & 6 != 6 && bits & 72 != 72) {
        let config = world(bits, Without::Nothing);
        match config.explore() {
            Ok(count) => states += count,
            Err(wrong) => panic!("{config:?}: {wrong}"),
        }
    }
    assert!(states > 10_000, "{states}");
}

#[test]
fn each_rule_that_is_left_out_is_noticed() {
    let lost = "lost, and nobody was killed for it";
    for (without, bits, wanted) in [
        (Without::Peace, 50, lost),
        (Without::Drain, 46, "done, and is not"),
        (Without::CountLast, 4, "done, and is not"),
        (Without::Numbers, 24, "over, and has not happened"),
        (Without::List, 37, "waits for ever"),
        (Without::Since, 1, lost),
        (Without::LostFirst, 37, "waits for ever"),
        (Without::DoneBehind, 44, lost),
        (Without::Asked, 33, "waits for ever"),
        (Without::Told, 33, "waits for ever"),
        (Without::Company, 97, "waits for ever"),
        (Without::Own, 97, "waits for ever"),
    ] {
        let found = world(bits, without).explore();
        assert_eq!(found, Err(wanted), "{without:?}");
    }
}
