//! How much of the slowest step's own rate a pipeline keeps when it can hardly keep up: three steps, of which the two that
//! work need one and a half CPUs together. The floor is the slower one's work without a pipeline, and in another case the work
//! of both, which tells what is the pipeline's from what is the machine's.

use mp_queue::{Queue, Receiver, Sender};
use pipeline::{
    Context, Flow, Input, Output, Pipeline, Running, Stage, StageError, Step, TensorSpec,
};
use serde::{Deserialize, Serialize};
use shm_core::Tensor;

use super::super::clock;
use super::super::pool::{Idle, unpin};
use super::super::subject::{Connection, End, Link, Side, Subject};
use super::CLIPS_15;
use super::line::Seen;
use crate::Result;

/// Rounds of the slower step's work; the faster one's is half of it.
const ROUNDS: u64 = 100_000;
/// Items of a batch.
const ITEMS: usize = 300;

/// Work that takes as long as the machine needs for it, and no less when the clock goes on without it.
fn work(rounds: u64) -> u64 {
    let mut number = 1_u64;
    for round in 0..rounds {
        number = std::hint::black_box(
            number
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(round),
        );
    }
    number
}

/// The work without a pipeline, again and again.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Bare {
    /// The slower step's.
    Alone,
    /// That of both steps that work, on two threads, each as fast as it can and nothing handed on: what the machine gives to so
    /// much work at that moment. The slower step alone needs one CPU only, and does not show that the other one is busy.
    Apart,
}

impl Subject for Bare {
    fn name(&self) -> String {
        match self {
            Self::Alone => "slowest step alone".to_owned(),
            Self::Apart => "steps apart".to_owned(),
        }
    }

    fn metric(&self) -> &'static str {
        "item_ns"
    }

    fn batch(&self) -> usize {
        1
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(Vec::new(), Vec::new()))
    }

    fn open(&self, side: Side, _: Link) -> Result<Box<dyn End>> {
        Ok(if side == Side::A {
            Box::new(*self)
        } else {
            Box::new(Idle)
        })
    }
}

impl End for Bare {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let all = |rounds| {
            for _ in 0..ITEMS {
                std::hint::black_box(work(rounds));
            }
        };
        let apart = |rounds| {
            unpin();
            all(rounds);
        };
        let taken = (0..samples).map(|_| {
            let start = clock::now();
            match self {
                Self::Alone => all(ROUNDS),
                Self::Apart => std::thread::scope(|scope| {
                    scope.spawn(|| apart(ROUNDS / 2));
                    scope.spawn(|| apart(ROUNDS));
                }),
            }
            (clock::now() - start) / ITEMS as u64
        });
        Ok(taken.collect())
    }
}

/// The pipeline.
#[derive(Debug)]
pub(crate) struct Rate {
    /// What its name says of its floor.
    pub(crate) beside: &'static str,
}

impl Subject for Rate {
    fn name(&self) -> String {
        format!("saturated 18MB{}", self.beside)
    }

    fn metric(&self) -> &'static str {
        "item_ns"
    }

    fn batch(&self) -> usize {
        1
    }

    fn room(&self) -> u64 {
        8 * CLIPS_15.bytes as u64
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(Vec::new(), Vec::new()))
    }

    fn open(&self, side: Side, _: Link) -> Result<Box<dyn End>> {
        if side == Side::B {
            return Ok(Box::new(Idle));
        }
        let (orders, to_source) = Queue::bounded(4)?.split();
        let (done, answers) = Queue::bounded(4)?.split();
        let seen = Seen(Tensor::<u64>::zeros([1025])?.alias());
        let running = Pipeline::new()
            .step(Step::of::<Feed>("feed", (to_source, seen.clone(), done)).slots(4))
            .step(Step::of::<Work>("half", (ROUNDS / 2, None)).slots(4))
            .step(Step::of::<Work>("whole", (ROUNDS, Some(seen.clone()))))
            .start()?;
        Ok(Box::new(RateEnd {
            orders,
            answers,
            seen,
            _running: running,
        }))
    }
}

struct RateEnd {
    orders: Sender<usize>,
    answers: Receiver<u64>,
    seen: Seen,
    _running: Running,
}

impl End for RateEnd {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            self.orders
                .put(ITEMS)
                .map_err(|failed| failed.to_string())?;
            let last = self.answers.get()?;
            // From the end of the first item to that of the last: without the time until the pipeline is full.
            let ends = self.seen.take(last, ITEMS)?;
            match ends[..] {
                [first, .., last] => taken.push((last - first) / (ITEMS as u64 - 1)),
                _ => return Err("a batch of no items".into()),
            }
        }
        Ok(taken)
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Feed(Receiver<usize>, Seen, Sender<u64>, u64);

impl Stage for Feed {
    type Params = (Receiver<usize>, Seen, Sender<u64>);
    type Result = ();

    fn output_spec(_: &Self::Params) -> Vec<TensorSpec> {
        vec![TensorSpec::of::<u8>([CLIPS_15.bytes])]
    }

    fn new((orders, seen, done): Self::Params, _: &Context) -> Result<Self, StageError> {
        unpin();
        Ok(Self(orders, seen, done, 0))
    }

    fn process(&mut self, _: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let Ok(count) = self.0.get() else {
            return Ok(Flow::End);
        };
        for _ in 0..count {
            let mut slot = output.loan()?;
            self.3 += 1;
            slot.set_sequence(self.3);
            output.publish(slot)?;
        }
        while self.1.count()? < self.3 {
            std::thread::sleep(std::time::Duration::from_micros(200));
        }
        self.2.put(self.3).map_err(|failed| failed.to_string())?;
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}

struct Work(u64, Option<Seen>);

impl Stage for Work {
    type Params = (u64, Option<Seen>);
    type Result = ();

    fn output_spec(params: &Self::Params) -> Vec<TensorSpec> {
        match params.1 {
            None => vec![TensorSpec::of::<u8>([CLIPS_15.bytes])],
            Some(_) => Vec::new(),
        }
    }

    fn new((rounds, seen): Self::Params, _: &Context) -> Result<Self, StageError> {
        unpin();
        Ok(Self(rounds, seen))
    }

    fn process(&mut self, input: Option<Input>, output: &mut Output) -> Result<Flow, StageError> {
        let input = input.ok_or("a step without an input")?;
        std::hint::black_box(work(self.0));
        match &self.1 {
            None => {
                let mut slot = output.loan()?;
                slot.set_sequence(input.sequence());
                output.publish(slot)?;
            }
            Some(seen) => seen.note(input.sequence(), clock::now())?,
        }
        Ok(Flow::Continue)
    }

    fn finish(self, _: &mut Output) -> Result<(), StageError> {
        Ok(())
    }
}
