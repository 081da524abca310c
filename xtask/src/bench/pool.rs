//! Tasks of a pool: single calls, one at a time, and the tasks of a map. Side A has the pool; side B has nothing to do.
//!
//! The floor is the round trip of a message of the same size through two queues, between the two sides.

use mp_queue::{Pool, Queue, Receiver, Sender, WaitPolicy};
use rustix::thread::{CpuSet, sched_setaffinity};
use shm_core::Arena;

use super::floor::ROUND_TRIPS;
use super::subject::{Connection, End, Link, Side, Subject};
use super::{arena, clock, machine, python};
use crate::Result;

/// What goes there and back.
type Number = (u64, u64);

fn next((a, b): Number) -> std::result::Result<Number, String> {
    Ok((a + 1, b))
}

/// A message through a queue and its answer through another.
#[derive(Copy, Clone, Debug)]
pub(crate) struct RoundTrip;

impl Subject for RoundTrip {
    fn name(&self) -> String {
        "queue round trip".to_owned()
    }

    fn metric(&self) -> &'static str {
        "round_trip_ns"
    }

    fn batch(&self) -> usize {
        100
    }

    fn connect(&self) -> Result<Connection> {
        let arena = Arena::builder().create()?;
        let (to_b, from_a) = Queue::<Number>::bounded_in(&arena, 8)?.split();
        let (to_a, from_b) = Queue::<Number>::bounded_in(&arena, 8)?.split();
        arena::connect(arena, (to_b, from_b), (to_a, from_a))
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        let (to, from) = arena::open::<(Sender<Number>, Receiver<Number>)>(link)?;
        // The benchmark's own process has joined the arena too; adaptive waits would count it.
        let spin = WaitPolicy::Spin;
        Ok(Box::new(Trips {
            side,
            to: to.with_policy(spin),
            from: from.with_policy(spin),
        }))
    }
}

struct Trips {
    side: Side,
    to: Sender<Number>,
    from: Receiver<Number>,
}

impl End for Trips {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            if self.side == Side::B {
                for _ in 0..=ROUND_TRIPS {
                    let number = self.from.get()?;
                    self.to.put(next(number)?)?;
                }
                continue;
            }
            // The first one says that the other side is there.
            self.to.put((0, 7))?;
            self.from.get()?;
            let start = clock::now();
            for trip in 0..ROUND_TRIPS {
                self.to.put((trip, 7))?;
                check(self.from.get()?, trip)?;
            }
            taken.push((clock::now() - start) / ROUND_TRIPS);
        }
        Ok(taken)
    }
}

fn check(number: Number, before: u64) -> Result<()> {
    if number != (before + 1, 7) {
        return Err(format!("({}, 7) was to come back, not {number:?}", before + 1).into());
    }
    Ok(())
}

/// What is measured of a pool.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// One call after the other, one worker.
    Call,
    /// The tasks of a map, two workers.
    Map {
        /// Items in a message.
        chunk: usize,
    },
}

/// Tasks of a pool.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Pooled(pub(crate) Work);

/// Tasks of one map, of which each is a sample's part.
const TASKS: u64 = 4000;

impl Subject for Pooled {
    fn name(&self) -> String {
        match self.0 {
            Work::Call => "call".to_owned(),
            Work::Map { chunk: 1 } => "map".to_owned(),
            Work::Map { chunk } => format!("map chunk {chunk}"),
        }
    }

    fn metric(&self) -> &'static str {
        "task_ns"
    }

    fn batch(&self) -> usize {
        match self.0 {
            Work::Call => 100,
            Work::Map { .. } => 5,
        }
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(Vec::new(), Vec::new()))
    }

    fn open(&self, side: Side, _: Link) -> Result<Box<dyn End>> {
        if side == Side::B {
            return Ok(Box::new(Idle));
        }
        let pool = match self.0 {
            // Both sides are pinned and seem to have one CPU together; they have two, as processes that are not.
            Work::Call => Pool::builder()
                .workers(1)
                .policy(WaitPolicy::Eager)
                .init(|_| pin_beside()),
            Work::Map { .. } => Pool::builder().workers(2).init(|_| unpin()),
        };
        let pool = pool.start()?;
        if self.0 != Work::Call {
            unpin();
        }
        Ok(Box::new(Caller { work: self.0, pool }))
    }
}

/// The side that has nothing to do.
pub(super) struct Idle;

impl End for Idle {
    fn run(&mut self, _: usize) -> Result<Vec<u64>> {
        Ok(Vec::new())
    }
}

struct Caller {
    work: Work,
    pool: Pool,
}

impl End for Caller {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        // Wakes the worker, and has it come to the CPU that it may use.
        for _ in 0..1000 {
            self.pool.call(next, (0, 7))?;
        }
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            let start = clock::now();
            match self.work {
                Work::Call => {
                    for trip in 0..ROUND_TRIPS {
                        check(self.pool.call(next, (trip, 7))?, trip)?;
                    }
                    taken.push((clock::now() - start) / ROUND_TRIPS);
                }
                Work::Map { chunk } => {
                    let items = (0..TASKS).map(|number| (number, 7));
                    let outcomes = self.pool.map(next, items)?.chunk(chunk);
                    let mut expected = 0;
                    for outcome in outcomes {
                        check(outcome?, expected)?;
                        expected += 1;
                    }
                    if expected != TASKS {
                        return Err(format!("{expected} outcomes of {TASKS} tasks").into());
                    }
                    taken.push((clock::now() - start) / TASKS);
                }
            }
        }
        Ok(taken)
    }
}

/// Lets this process use all CPUs that it may. Where that fails, it is slower, which shows.
pub(super) fn unpin() {
    let mut all = CpuSet::new();
    (0..CpuSet::MAX_CPU).for_each(|cpu| all.set(cpu));
    let _ = sched_setaffinity(None, &all);
}

/// Moves this process away from the CPU that it was started on, which is the caller's.
pub(super) fn pin_beside() {
    let mine = rustix::thread::sched_getcpu();
    unpin();
    if let Ok(pins) = machine::choose_pins() {
        let _ = machine::pin_to(if pins.a == mine { pins.b } else { pins.a });
    }
}

/// Calls of Python's own pool, one after the other, one worker.
#[derive(Copy, Clone, Debug)]
pub(crate) struct PythonCall;

const SCRIPT: &str = "
import multiprocessing, sys, time

def work(pair):
    return (pair[0] + 1, pair[1])

if __name__ == '__main__':
    with multiprocessing.Pool(1) as pool:
        for line in sys.stdin:
            taken = []
            for i in range(int(line)):
                start = time.monotonic_ns()
                assert pool.apply(work, ((i, 7),)) == (i + 1, 7)
                taken.append(time.monotonic_ns() - start)
            print(*taken, flush=True)
";

impl Subject for PythonCall {
    fn name(&self) -> String {
        "python call".to_owned()
    }

    fn metric(&self) -> &'static str {
        "task_ns"
    }

    fn batch(&self) -> usize {
        50
    }

    fn prepare(&self) -> std::result::Result<(), String> {
        python::given().map(drop)
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(Vec::new(), Vec::new()))
    }

    fn open(&self, side: Side, _: Link) -> Result<Box<dyn End>> {
        if side == Side::B {
            return Ok(Box::new(Idle));
        }
        unpin();
        python::start(SCRIPT, &[])
    }
}
