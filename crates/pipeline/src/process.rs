//! The life of one process of a pipeline: make the stage, touch the slots, wait for the others, work until the input
//! ends.

use std::sync::Arc;

use mp_queue::{Event, Queue, Receiver, Sender, WaitPolicy};
use serde::{Deserialize, Serialize};
use shm_core::SharedBytes;
use shm_core::clock::now_ns;

use crate::board::{Board, ENDING, State, WOKEN};
use crate::card::Card;
use crate::device::{Store, make_slots, on_device, outlive_readers};
use crate::error::{Error, ErrorKind, StageError};
use crate::home::{Home, Known, Upstream, Upstreams};
use crate::intake::{Intake, Next, Sequence};
use crate::item::Item;
use crate::ledger::Ledger;
use crate::output::Output;
use crate::pool::{Pool, touch};
use crate::route::{Router, Routes};
use crate::selector::{Selector, built_in};
use crate::spec::{Layout, TensorSpec};
use crate::stage::{Context, Flow, Stage};
use crate::tally::Tally;
use crate::threads;
use crate::time_card::{Batch, Outcome as ItemOutcome};

/// What a process is given: its stage's parameters and its post.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Work<P> {
    pub(crate) params: P,
    pub(crate) post: Post,
}

impl<P> Work<P> {
    /// The same post with other parameters.
    pub(crate) fn with<Q>(self, params: Q) -> (Work<Q>, P) {
        let Self { params: old, post } = self;
        (Work { params, post }, old)
    }
}

/// The place of a process in its run: all that does not depend on the stage.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Post {
    pub(crate) step: String,
    pub(crate) step_index: u32,
    pub(crate) rank: u32,
    pub(crate) replica: usize,
    pub(crate) replicas: usize,
    pub(crate) group: usize,
    pub(crate) device: i32,
    pub(crate) restarts: u32,
    /// Whether any process of the run may be replaced.
    pub(crate) deaths_expected: bool,
    /// How it waits for items and for room.
    pub(crate) wait: WaitPolicy,
    pub(crate) upstream: Vec<Upstream>,
    /// The slots that it will read, to be looked at before the run starts.
    pub(crate) touch: Vec<SharedBytes>,
    pub(crate) input: Option<(u32, Receiver<Item>)>,
    /// The processes that put items there; none where the client does.
    pub(crate) writers: Vec<u32>,
    pub(crate) sequence: Sequence,
    pub(crate) specs: Vec<TensorSpec>,
    pub(crate) slots: Vec<SharedBytes>,
    /// A device, and how many slots of its own the process makes there.
    pub(crate) on_device: Option<(u32, usize)>,
    /// The processes of all steps behind.
    pub(crate) later: Vec<u32>,
    pub(crate) freed: Event,
    pub(crate) routes: Option<Routes>,
    pub(crate) selector: String,
    pub(crate) segments: u32,
    /// Whether the next step must be told of items that end here.
    pub(crate) tombstones: bool,
    pub(crate) board: Board,
    /// Where its time cards are written.
    pub(crate) tally: Tally,
    pub(crate) log: Sender<Batch>,
    /// Set when something changed on the board that is waited for.
    pub(crate) news: Event,
    /// Set when the run starts.
    pub(crate) go: Event,
    pub(crate) ledger: Vec<Queue<Item>>,
    /// What the process that this one replaces had begun.
    pub(crate) backlog: Vec<Item>,
}

/// What a process brings home.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Outcome {
    pub(crate) started_ns: u64,
    pub(crate) ended_ns: u64,
    pub(crate) inputs: u64,
    pub(crate) outputs: u64,
    pub(crate) result: Vec<u8>,
    /// What type that was written as.
    pub(crate) result_type: String,
}

/// Makes a selector by its name, for so many queues.
pub(crate) type MakeSelector<'a> = dyn Fn(&str, usize) -> Option<Box<dyn Selector>> + 'a;

/// Runs a stage in this process, on its device.
pub(crate) fn run_stage<S: Stage>(
    work: Work<S::Params>,
    own_selector: &MakeSelector<'_>,
) -> Result<Outcome, StageError> {
    if work.post.deaths_expected {
        crate::device::expect_deaths();
    }
    on_device(work.post.device, || run_here::<S>(work, own_selector))?
}

fn run_here<S: Stage>(
    work: Work<S::Params>,
    own_selector: &MakeSelector<'_>,
) -> Result<Outcome, StageError> {
    let Work { params, post } = work;
    let context = Context {
        step: post.step.clone(),
        rank: post.rank as usize,
        replica: post.replica,
        replicas: post.replicas,
        group: post.group,
        device: post.device,
        restarts: post.restarts,
    };
    let mut upstream = Upstreams::default();
    for Upstream { rank, freed, specs } in post.upstream {
        let layout = Arc::new(Layout::anywhere(&specs)?);
        upstream.insert(rank, Known { freed, layout });
    }
    let layout = Arc::new(Layout::anywhere(&post.specs)?);
    let own = Known {
        freed: post.freed.clone(),
        layout: Arc::clone(&layout),
    };
    upstream.insert(post.rank, own);
    let home = Arc::new(Home::new(
        (post.rank, post.step_index, post.device),
        post.board,
        upstream,
        post.log,
        Some(post.tally),
        post.tombstones,
    ));

    let is_source = post.input.is_none();
    let mut intake = post.input.map(|(lane, from)| {
        let from = from.with_policy(post.wait);
        let ledger = Ledger::new(post.ledger);
        Intake::new(
            (lane, from, post.writers),
            post.sequence,
            ledger,
            post.backlog,
        )
    });
    let (place, slots) = match post.on_device {
        None => (None, post.slots.into_iter().map(Store::Host).collect()),
        Some((device, count)) => (Some(device), make_slots(device, count, layout.bytes)?),
    };
    let pool = (!slots.is_empty()).then(|| {
        Pool::new(
            &home.board,
            post.rank,
            Arc::clone(&layout),
            post.freed,
            place,
            slots,
        )
    });
    let policy = post
        .routes
        .as_ref()
        .map(|routes| routes.policy)
        .unwrap_or_default();
    let router = match post.routes {
        Some(routes) => {
            let routes = routes.with_policy(post.wait);
            let queues = routes.queues.len();
            let name = &post.selector;
            let selector = own_selector(name, queues)
                .or_else(|| built_in(name, queues))
                .ok_or_else(|| {
                    Error::invalid(format!(
                        "step {:?} has selector {name:?}, which this program does not know",
                        context.step
                    ))
                })?;
            Some(Router::new(routes, selector))
        }
        None => None,
    };
    let mut output = Output::new(
        Arc::clone(&home),
        pool.clone(),
        router,
        post.segments,
        policy,
        post.restarts,
        is_source,
        post.wait,
    );

    home.board.set_threads(home.rank, threads::of_library());
    // What `tensormp ls` shows, until the stage says something of its own.
    let (step, replica, replicas) = (&context.step, context.replica, context.replicas);
    spawn::set_task(&match replicas {
        1 => format!("step {step:?}"),
        _ => format!("step {step:?}, replica {replica} of {replicas}"),
    });
    let mut stage = S::new(params, &context)?;
    // Dropped before the stage, and with it what it and its threads hold.
    let _panicking = Panicking(&home);
    // Each process pays for the pages of its slots now, not at the first item.
    post.touch.iter().for_each(touch);
    drop(post.touch);
    if let Some(pool) = &pool {
        pool.touch();
    }
    stage.warm_up()?;
    home.board.set_ready(home.rank);
    post.news.set();
    post.go.wait()?;

    let started_ns = now_ns();
    let mut inputs = 0;
    let worked = work_on(&mut stage, intake.as_mut(), &mut output, &home, &mut inputs)
        // Before the stage is dropped, with what it holds.
        .inspect_err(|_| home.fail());
    let result = worked.and_then(|()| {
        output.set_current(None);
        output.note_finishes();
        // Its limit is also that of its end.
        home.enter(State::Working);
        home.board.set_item(home.rank, ENDING);
        home.begin_call();
        stage.finish(&mut output)
    });
    let result = match result {
        Ok(result) => {
            let let_go = home.end_call();
            let_go.into_iter().for_each(|(item, _)| item.note(&home));
            result
        }
        Err(error) => {
            // Before the call ends, for what its threads let go of from then on.
            home.fail();
            drop(home.end_call());
            home.flush();
            return Err(error);
        }
    };
    output.put_tombstones()?;
    let outcome = Outcome {
        started_ns,
        ended_ns: now_ns(),
        inputs,
        outputs: output.published(),
        result: postcard::to_stdvec(&result)?,
        result_type: std::any::type_name::<S::Result>().to_owned(),
    };
    home.flush();
    // From there on a death takes nothing with it; but for memory on a device, which others may still read.
    let bring = || {
        if post.deaths_expected {
            home.bring(post.restarts, outcome.clone());
        }
    };
    if place.is_none() {
        bring();
    }
    shm_core::failpoint!("stage.brought");
    // Done before the queues are let go: whoever then finds nobody left knows that it is no failure.
    home.enter(State::Done);
    home.upstream.iter().for_each(|known| known.freed.set());
    drop((output, intake));
    home.flush();
    post.news.set();
    shm_core::failpoint!("stage.done");
    drop(pool);
    outlive_readers(&home.board, &post.later);
    if place.is_some() {
        bring();
    }
    Ok(outcome)
}

/// When a panic comes by here, nothing that is dropped from then on counts as done, on whatever thread.
struct Panicking<'a>(&'a Home);

impl Drop for Panicking<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail();
        }
    }
}

/// Calls the stage for each item, until there are no more, or nobody wants its outputs.
fn work_on<S: Stage>(
    stage: &mut S,
    mut intake: Option<&mut Intake>,
    output: &mut Output,
    home: &Arc<Home>,
    inputs: &mut u64,
) -> Result<(), StageError> {
    loop {
        let mut input = None;
        if let Some(intake) = &mut intake {
            match intake.next(home, stage.wake_at(), &mut input)? {
                Next::Item => {}
                Next::Gone => {
                    output.put_tombstones()?;
                    continue;
                }
                Next::Nothing => {
                    home.enter(State::Working);
                    home.board.set_item(home.rank, WOKEN);
                    output.set_current(None);
                    home.begin_call();
                    let answer = stage.woken(output);
                    if settle(answer, None, output, home)? == Flow::End {
                        return Ok(());
                    }
                    output.put_tombstones()?;
                    continue;
                }
                Next::End => return Ok(()),
            }
        }
        output.set_current(input.as_ref().map(|input| Arc::clone(input.card())));
        // The last thing before the stage is called: what comes before it is hand-over.
        let now = now_ns();
        home.board.enter_at(home.rank, State::Working, now);
        output.note_works(now);
        match &mut input {
            Some(input) => {
                input.is_taken(now);
                *inputs += 1;
                home.board.set_item(home.rank, input.card().item);
                home.board.set_inputs(home.rank, *inputs);
            }
            None => output.note_called(now),
        }
        home.begin_call();
        let answer = stage.process(input, output);
        let card = output.take_current();
        if settle(answer, card.map(|card| (card, now)), output, home)? == Flow::End {
            return Ok(());
        }
        output.put_tombstones()?;
    }
}

/// What a stage's answer means; beside the card, when the stage was called. The card is let go, as what the stage let go of
/// is noted, only once it is known whether the process fails.
fn settle(
    answer: Result<Flow, StageError>,
    card: Option<(Arc<Card>, u64)>,
    output: &Output,
    home: &Home,
) -> Result<Flow, StageError> {
    let card = card.map(|(card, started)| {
        card.edit(|card| {
            (card.started, card.finished) = (started, now_ns());
            if card.dequeued == 0 {
                card.dequeued = started;
            }
        });
        card
    });
    let (flow, is_dropped) = match answer {
        Ok(flow) => (flow, false),
        Err(error) if is_dropped(&*error) => (Flow::Continue, true),
        // The next step has had enough: that is an end like any other. (Had it died, its death would fail the run.)
        Err(_) if output.is_abandoned() => (Flow::End, true),
        Err(error) => {
            // Before the call ends, for what its threads let go of from then on.
            home.fail();
            drop(home.end_call());
            return Err(error);
        }
    };
    let let_go = home.end_call();
    if let (Some(card), true) = (&card, is_dropped) {
        card.edit(|card| card.outcome = ItemOutcome::Dropped);
    }
    for (mut item, is_of_call) in let_go {
        // What its threads had was not what there was no slot for.
        if is_dropped && is_of_call {
            item.is_dropped();
        }
        item.note(home);
    }
    Ok(flow)
}

/// Whether an error, or what is below it, only says that there was no slot for an item.
fn is_dropped(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if error
            .downcast_ref::<Error>()
            .is_some_and(|error| *error.kind() == ErrorKind::Dropped)
        {
            return true;
        }
        next = error.source();
    }
    false
}
