//! The suite `pool`: processes with a pool of workers each, which are killed while tasks run.
//!
//! A task counts itself in a word of the arena before it does anything else, so that it is known how often it was begun.
//! Each task must have one answer: what it returned, or an error of its own, or that its worker ended, and how. A task that
//! may not be tried again must have begun at most once, and exactly once if it has an answer of its own. Then the pool must
//! have all its workers again.

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::time::Duration;

use mp_queue::{Error, ErrorKind, Pool};
use serde::{Deserialize, Serialize};
use shm_core::{AliasedTensor, Arena, SharedTensor, Tensor};

use super::control::Control;
use super::killer::Aim;
use super::orphans::name_of;
use super::parents::{Parents, settle_in};
use super::pattern::{check, element, fill};
use super::strike::{Blow, strike};
use super::suite::{Scene, Suite, Worker};
use super::traces::{check_children, check_descriptors, note_group};
use crate::Result;

const CREW: usize = 3;
const WORKERS: usize = 2;
/// Tasks that are out at a time.
const BATCH: usize = 24;

/// The suite.
#[derive(Debug)]
pub(crate) struct Pools;

impl Suite for Pools {
    fn name(&self) -> &'static str {
        "pool"
    }

    fn crew(&self) -> usize {
        CREW
    }

    fn counts(&self) -> &'static str {
        "tasks"
    }

    /// Who has a pool is killed now and then; it kills its workers meanwhile.
    fn pause(&self) -> Duration {
        Duration::from_millis(150)
    }

    fn labels(&self) -> &'static [&'static str] {
        &["lane.", "block."]
    }

    /// The first worker of each pool, and whoever comes in its place.
    fn aim(&self) -> Aim {
        Aim::At(format!("{}.0", name_of(std::process::id())))
    }

    fn open(&self, _: &Arena, _: fastrand::Rng) -> Result<Box<dyn Scene>> {
        Ok(Box::new(Parents))
    }

    fn work(&self, mut worker: Worker) -> Result<()> {
        let before = settle_in(&worker, || Ok(Pool::new(1)?.shutdown()?))?;
        while !worker.control.is_stopping() {
            let retry = if worker.rng.bool() { 2 } else { 0 };
            let pool = Pool::builder()
                .workers(WORKERS)
                .name(name_of(worker.part.parent.unsigned_abs()))
                .retry(retry)
                // They end before they have begun anything as often as chance has it.
                .crash_limit(u32::MAX)
                .init(arrive)
                .start()?;
            let at_label = std::env::var_os("TENSORMP_FAILPOINT").is_some();
            let mut batches = Batches {
                pool: &pool,
                rng: worker.rng.fork(),
                control: &worker.control,
                retry: retry.into(),
                at_label,
                killed: Mutex::new(BTreeSet::new()),
            };
            for _ in 0..worker.rng.usize(1..12) {
                if worker.control.is_stopping() {
                    break;
                }
                worker.arena.recorder().set_task("waiting for tasks");
                batches.play()?;
                worker.arena.recorder().set_task("waiting for new workers");
                while pool.pids().len() < WORKERS {
                    std::thread::sleep(Duration::from_millis(1));
                }
                worker.control.step(worker.part.slot)?;
            }
            worker.arena.recorder().set_task("ending a pool");
            match worker.rng.u8(..3) {
                0 => abandon(&mut worker.rng, pool)?,
                1 => pool.kill(),
                _ => pool.shutdown()?,
            }
            check_children()?;
            check_descriptors(&before)?;
        }
        Ok(())
    }
}

/// How a worker starts.
fn arrive(_rank: usize) {
    // If it cannot be written, nothing is wrong but that one sign of this process is missing.
    let _ = note_group(0);
}

/// What a task is to do once it has counted itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Plan {
    Return,
    Raise,
    Panic,
    Exit,
    KillItself,
}

/// One task.
#[derive(Debug, Serialize, Deserialize)]
struct Order {
    at: usize,
    id: u64,
    plan: Plan,
    micros: u64,
    /// How often each task of the batch was begun.
    begun: AliasedTensor<u64>,
    /// One that only one process has: the task is not tried again.
    own: Option<Tensor<u64>>,
    shared: SharedTensor<u64>,
}

/// What it returns: its place, its word, and the tensor it was given.
type Answer = (usize, u64, Option<Tensor<u64>>);

fn task(order: Order) -> Result<Answer> {
    order.begun.fetch_add(&[order.at], 1)?;
    if order.micros > 0 {
        std::thread::sleep(Duration::from_micros(order.micros));
    }
    check(!order.id, 0, order.shared.as_slice(), "a shared tensor")?;
    if let Some(own) = &order.own {
        check(order.id, 0, own.as_slice(), "a tensor")?;
    }
    match order.plan {
        Plan::Return => Ok((order.at, element(order.id, 0), order.own)),
        Plan::Raise => Err(format!("planned {}", order.id).into()),
        Plan::Panic => panic!("planned {}", order.id),
        Plan::Exit => std::process::exit(7),
        Plan::KillItself => {
            let me = rustix::process::getpid();
            rustix::process::kill_process(me, rustix::process::Signal::KILL)?;
            loop {
                std::thread::park();
            }
        }
    }
}

/// What is known of a task that was given away.
#[derive(Clone, Copy, Debug)]
struct Known {
    id: u64,
    plan: Plan,
    /// How often it may begin.
    most: u64,
    was_cancelled: bool,
    /// The plan is that of a chunk: what becomes of it is what becomes of the others.
    in_chunk: bool,
}

struct Batches<'a> {
    pool: &'a Pool,
    rng: fastrand::Rng,
    control: &'a Control,
    retry: u64,
    /// Whether the first worker kills itself somewhere.
    at_label: bool,
    /// Workers that were sent SIGKILL.
    killed: Mutex<BTreeSet<u32>>,
}

/// Ways to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Call,
    Submit,
    Map,
    Unordered,
    Chunks,
}

impl Batches<'_> {
    /// One batch with all its answers, and blows at the workers meanwhile. The error says what is wrong.
    fn play(&mut self) -> Result<()> {
        let ways = [
            Way::Call,
            Way::Submit,
            Way::Map,
            Way::Unordered,
            Way::Chunks,
        ];
        let way = *self.rng.choice(ways.iter()).unwrap_or(&Way::Call);
        let (orders, mut known, begun) = draw(&mut self.rng, way, self.retry)?;
        let blows: Vec<_> = (0..self.rng.usize(0..=3))
            .map(|_| {
                let after = Duration::from_micros(self.rng.u64(0..8000));
                let blow = match self.rng.u8(..8) {
                    0 => Blow::Pause(Duration::from_millis(self.rng.u64(1..30))),
                    _ => Blow::Kill,
                };
                (after, blow, self.rng.usize(..WORKERS))
            })
            .collect();
        let cancelled: Vec<_> = (0..orders.len()).map(|_| self.rng.u8(..16) == 0).collect();
        let (pool, control, killed) = (self.pool, self.control, &self.killed);
        let answers = std::thread::scope(|scope| {
            let striker = scope.spawn(move || {
                for (after, blow, which) in blows {
                    std::thread::sleep(after);
                    let Some(&pid) = pool.pids().get(which) else {
                        continue;
                    };
                    // First, since the pool may tell of it at once.
                    if blow == Blow::Kill
                        && let Ok(mut killed) = killed.lock()
                    {
                        killed.insert(pid);
                    }
                    strike(pid, blow, control);
                }
            });
            let answers = ask(pool, way, orders, &cancelled, &mut known);
            // A panic of it says itself what is wrong; the blows are over then.
            let _ = striker.join();
            answers
        })?;
        if answers.len() != known.len() {
            return Err(format!("{} answers to {} tasks", answers.len(), known.len()).into());
        }
        let (mut seen, mut own) = (BTreeSet::new(), BTreeSet::new());
        for (at, answer) in answers.into_iter().enumerate() {
            self.control.message()?;
            // Out of order, only an answer with a value says whose it is.
            let whose = match (&answer, way) {
                (Ok((whose, ..)), Way::Unordered) => Some(*whose),
                (Err(_), Way::Unordered) => None,
                _ => Some(at),
            };
            if let Some(whose) = whose
                && !seen.insert(whose)
            {
                return Err(format!("task {whose} of a batch has two answers, by {way:?}").into());
            }
            let is_own = self
                .judge(&known, whose, answer, way)
                .map_err(|text| format!("{text}; by {way:?}, retry {}", self.retry))?;
            own.extend(whose.filter(|_| is_own));
        }
        for (at, known) in known.iter().enumerate() {
            let times = begun.load(&[at])?;
            let least = u64::from(own.contains(&at));
            if times > known.most || times < least {
                return Err(format!(
                    "a task was begun {times} times instead of {least} to {}: {known:?}, by {way:?}",
                    known.most
                )
                .into());
            }
        }
        Ok(())
    }

    /// Whether this answer is one that the task made itself, or why it may not be.
    fn judge(
        &self,
        known: &[Known],
        whose: Option<usize>,
        answer: Result<Answer, Error>,
        way: Way,
    ) -> Result<bool, String> {
        let mine = whose.map(|at| known[at]);
        // Of somebody in the batch, if it is not known of whom.
        let may = |fits: &dyn Fn(&Known) -> bool| match &mine {
            Some(one) => fits(one),
            None => known.iter().any(fits),
        };
        let error = match answer {
            Ok((at, word, own)) => {
                let one = mine.unwrap_or(known[at]);
                if whose != Some(at) || one.plan != Plan::Return {
                    return Err(format!("a value of task {at} came for {whose:?}, {one:?}"));
                }
                check(one.id, 0, &[word], "a value").map_err(|error| error.to_string())?;
                if let Some(own) = own {
                    check(one.id, 0, own.as_slice(), "a result")
                        .map_err(|error| error.to_string())?;
                }
                return Ok(true);
            }
            Err(error) => error,
        };
        let fits = match error.kind() {
            ErrorKind::TaskRaised { chain, .. } => {
                let text = chain.concat();
                may(&|one| one.plan == Plan::Raise && text.contains(&format!("planned {}", one.id)))
            }
            ErrorKind::TaskPanicked { message, .. } => may(&|one| {
                one.plan == Plan::Panic && message.contains(&format!("planned {}", one.id))
            }),
            ErrorKind::TaskCancelled { .. } => may(&|one| one.was_cancelled),
            ErrorKind::TaskLost { pid, cause, .. } => {
                let was_hit = self.killed.lock().is_ok_and(|killed| killed.contains(pid));
                // One of a chunk takes the others with it.
                let by_itself = |plan| match &mine {
                    Some(one) if !one.in_chunk => one.plan == plan,
                    _ => known.iter().any(|one| one.plan == plan),
                };
                let killed = was_hit || self.at_label || by_itself(Plan::KillItself);
                if cause.contains("SIGKILL") && !was_hit {
                    let _ = match by_itself(Plan::KillItself) {
                        true => self.control.kill(),
                        false => self.control.kill_at_label(),
                    };
                }
                let tells = std::error::Error::source(&error)
                    .and_then(|source| source.downcast_ref::<spawn::Error>())
                    .and_then(spawn::Error::worker)
                    .is_some_and(|worker| worker.pid == *pid);
                // For those of a chunk the error is told again, without what is below it.
                (tells || way == Way::Chunks)
                    && (cause.contains("SIGKILL") && killed
                        || cause.contains("exited with code 7") && by_itself(Plan::Exit))
            }
            _ => false,
        };
        if fits {
            let kind = error.kind();
            return Ok(matches!(
                kind,
                ErrorKind::TaskRaised { .. } | ErrorKind::TaskPanicked { .. }
            ));
        }
        Err(format!("told: {error} ({:?}), of {mine:?}", error.kind()))
    }
}

/// Leaves tasks behind with a pool that is dropped: each was done, or is told so.
fn abandon(rng: &mut fastrand::Rng, pool: Pool) -> Result<()> {
    let (orders, known, _) = draw(rng, Way::Submit, 0)?;
    let mut tasks = Vec::new();
    for order in orders {
        tasks.push(pool.submit(task, order)?);
    }
    std::thread::sleep(Duration::from_micros(rng.u64(..3000)));
    drop(pool);
    for (task, known) in tasks.into_iter().zip(known) {
        match task.wait() {
            Ok((_, word, _)) => check(known.id, 0, &[word], "a value")?,
            Err(error) if error.is_closed() => {}
            Err(error) => match error.kind() {
                ErrorKind::TaskRaised { .. }
                | ErrorKind::TaskPanicked { .. }
                | ErrorKind::TaskLost { .. } => {}
                _ => return Err(format!("told at the end of a pool: {error}").into()),
            },
        }
    }
    Ok(())
}

/// Tasks, what is known of each, and the words in which they count themselves.
fn draw(
    rng: &mut fastrand::Rng,
    way: Way,
    retry: u64,
) -> Result<(Vec<Order>, Vec<Known>, AliasedTensor<u64>)> {
    let count = rng.usize(1..=BATCH);
    let begun = Tensor::zeros(count)?.alias();
    let slow = rng.bool();
    let (mut orders, mut known) = (Vec::new(), Vec::new());
    for at in 0..count {
        let id = rng.u64(..);
        let plan = match rng.u8(..40) {
            0 => Plan::Raise,
            1 => Plan::Panic,
            2 => Plan::Exit,
            3 => Plan::KillItself,
            _ => Plan::Return,
        };
        let own = if rng.u8(..3) == 0 {
            let mut own = Tensor::uninit(1 + at % 7)?;
            fill(id, own.as_mut_slice());
            Some(own)
        } else {
            None
        };
        let mut shared = Tensor::uninit(20)?;
        fill(!id, shared.as_mut_slice());
        known.push(Known {
            id,
            plan,
            most: if own.is_some() && way != Way::Chunks {
                1
            } else {
                1 + retry
            },
            was_cancelled: false,
            in_chunk: way == Way::Chunks,
        });
        orders.push(Order {
            at,
            id,
            plan,
            micros: if slow { rng.u64(..3000) } else { 0 },
            begun: begun.clone(),
            own,
            shared: shared.freeze(),
        });
    }
    Ok((orders, known, begun))
}

/// Gives all of them to the pool and waits for the answers, in the order of the tasks if there is one.
fn ask(
    pool: &Pool,
    way: Way,
    orders: Vec<Order>,
    cancelled: &[bool],
    known: &mut [Known],
) -> Result<Vec<Result<Answer, Error>>> {
    Ok(match way {
        Way::Call => orders
            .into_iter()
            .map(|order| pool.call(task, order))
            .collect(),
        Way::Submit => {
            let mut tasks = Vec::new();
            for order in orders {
                tasks.push(pool.submit(task, order)?);
            }
            for ((task, &cancel), known) in tasks.iter().zip(cancelled).zip(known) {
                known.was_cancelled = cancel && task.cancel();
            }
            tasks.into_iter().map(|task| task.wait()).collect()
        }
        Way::Map => pool.map(task, orders)?.collect(),
        Way::Unordered => pool.map(task, orders)?.unordered().collect(),
        Way::Chunks => pool.map(task, orders)?.chunk(4).collect(),
    })
}
