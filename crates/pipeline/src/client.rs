//! Clients: where the inputs of a pipeline come from, and at what pace.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mp_queue::{ErrorKind as QueueErrorKind, Receiver};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::board::State;
use crate::error::{Error, ErrorKind, Result};
use crate::home::Home;
use crate::item::{FULL, Item, Member};
use crate::pool::encode;
use crate::route::{Backpressure, Lane};

/// Items that the queue before the first step holds where nothing else is said; RnB's default.
const QUEUE_SIZE: usize = 500;
/// A bulk client's queue has room for all its items up to so many.
const BULK_MOST: u64 = 1 << 16;

/// The next input, already written in postcard. What waits for one asks now and then whether it has to stop.
pub(crate) type Feed = Box<dyn FnMut(&dyn Fn() -> bool) -> Option<Result<Vec<u8>>> + Send>;

/// Whether a feed ends, as far as is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ends {
    Never,
    Sometime,
    Unknown,
}

impl Ends {
    /// What an iterator says of itself.
    fn of(inputs: &impl Iterator) -> Self {
        match inputs.size_hint() {
            (usize::MAX, None) => Self::Never,
            (_, None) => Self::Unknown,
            (_, Some(_)) => Self::Sometime,
        }
    }
}

/// Where the inputs of a pipeline come from: the first step gets each as an item without tensors, whose
/// [payload](crate::Input::payload) it is. It runs in the process that starts the pipeline.
///
/// ```
/// use std::time::Duration;
/// use pipeline::Client;
///
/// let paths = ["a.y4m", "b.y4m"];
/// // A request every 5 ms on average, as independent users make them; 100 in all.
/// let client = Client::new(paths.into_iter().cycle()).poisson(Duration::from_millis(5)).count(100);
/// ```
#[must_use = "a client does nothing until it is a pipeline's"]
pub struct Client {
    pub(crate) feed: Feed,
    /// Whether the feed does.
    ends: Ends,
    pub(crate) interval: Option<Duration>,
    pub(crate) count: Option<u64>,
    pub(crate) queue_size: Option<usize>,
    pub(crate) policy: Backpressure,
    seed: Option<u64>,
}

impl Client {
    /// All that an iterator gives, each as soon as there is room.
    ///
    /// The iterator should not block for ever. A run that ends while it does waits for it as long as for a process that is
    /// told to end ([`Pipeline::grace`](crate::Pipeline::grace)), or not at all when it was stopped a second time; from then
    /// on the thread that is in the iterator is on its own, and what it gives is dropped.
    pub fn new<I>(inputs: I) -> Self
    where
        I: IntoIterator,
        I::IntoIter: Send + 'static,
        I::Item: Serialize,
    {
        let mut inputs = inputs.into_iter();
        let ends = Ends::of(&inputs);
        Self::of(Box::new(move |_| Some(encode(&inputs.next()?))), ends)
    }

    /// So many inputs without a value, all at once: a measure of throughput.
    pub fn bulk(count: u64) -> Self {
        Self::new((0..count).map(|_| ())).count(count)
    }

    /// What others put into a queue, until all who do have let go of it.
    pub fn from_queue<T>(queue: Receiver<T>) -> Self
    where
        T: Serialize + DeserializeOwned + 'static,
        Receiver<T>: Send,
    {
        let feed: Feed = Box::new(move |stopped| {
            loop {
                match queue.get_timeout(Duration::from_millis(200)) {
                    Ok(input) => return Some(encode(&input)),
                    Err(error) if *error.kind() == QueueErrorKind::TimedOut => {
                        if stopped() {
                            return None;
                        }
                    }
                    Err(error) if error.is_closed() => return None,
                    Err(error) => return Some(Err(error.into())),
                }
            }
        });
        Self::of(feed, Ends::Sometime)
    }

    fn of(feed: Feed, ends: Ends) -> Self {
        Self {
            feed,
            ends,
            interval: None,
            count: None,
            queue_size: None,
            policy: Backpressure::Block,
            seed: None,
        }
    }

    /// Spaces the inputs out as independent users would make them: the time between two is exponentially distributed with
    /// this mean. A mean of zero is as fast as there is room.
    pub fn poisson(mut self, mean: Duration) -> Self {
        self.interval = (!mean.is_zero()).then_some(mean);
        self
    }

    /// Makes the times of [`poisson`](Self::poisson) the same in each run.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// How many inputs are to be finished: where items are dropped or fail, others are offered in their place. The run ends
    /// when so many are, or there are no more; without a count when there are no more, which of an iterator without end is
    /// never. Of 0 nothing is offered: the processes start, and end.
    pub fn count(mut self, target: u64) -> Self {
        self.count = Some(target);
        self
    }

    /// How many items the queue before the first step holds; 500 where nothing is said, as in RnB, or all where they come
    /// at once and their number is known.
    pub fn queue_size(mut self, items: usize) -> Self {
        self.queue_size = Some(items);
        self
    }

    /// What happens when that queue is full.
    pub fn backpressure(mut self, policy: Backpressure) -> Self {
        self.policy = policy;
        self
    }

    /// What whoever starts a run should know of its end: that it has none, or may have none.
    #[cfg(feature = "command")]
    pub(crate) fn endless(&self) -> Option<&'static str> {
        match (self.count, self.ends) {
            (Some(_), _) | (None, Ends::Sometime) => None,
            (None, Ends::Never) => Some("the inputs never end, and no count is given"),
            (None, Ends::Unknown) => Some("no count is given, and the inputs may never end"),
        }
    }

    pub(crate) fn capacity(&self) -> usize {
        match (self.queue_size, self.interval, self.count) {
            (Some(size), ..) => size,
            (None, None, Some(count)) => count.clamp(1, BULK_MOST) as usize,
            _ => QUEUE_SIZE,
        }
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Client")
            .field("ends", &self.ends)
            .field("interval", &self.interval)
            .field("count", &self.count)
            .field("queue_size", &self.queue_size)
            .field("backpressure", &self.policy)
            .finish_non_exhaustive()
    }
}

/// What the client's thread and the run's know of each other.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// The run is over or has failed.
    pub(crate) stop: AtomicBool,
    /// All that was offered is on its way or held by somebody who waits for more: no more is needed than that.
    pub(crate) enough: AtomicBool,
    /// What the client has offered: known also while it is in its iterator, and when that has panicked.
    pub(crate) offered: AtomicU64,
    pub(crate) completed: AtomicU64,
    /// Dropped or failed.
    pub(crate) lost: AtomicU64,
}

/// Feeds the first step. `replaces` says whether items may be lost, so that others must be offered in their place.
pub(crate) fn feed(
    client: Client,
    home: &Arc<Home>,
    lane: &Lane,
    progress: &Progress,
    replaces: bool,
) -> Result<()> {
    let mut random = client
        .seed
        .map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
    let stopped = || progress.stop.load(Ordering::Relaxed);
    let mut due = Instant::now();
    let mut offered = 0;
    let mut next = client.feed;
    'inputs: while !stopped() {
        let mut waits = false;
        while client
            .count
            .is_some_and(|count| offered >= count + progress.lost.load(Ordering::Relaxed))
        {
            let over = progress.completed.load(Ordering::Relaxed)
                + progress.lost.load(Ordering::Relaxed)
                >= offered;
            // What was lost was counted before what was completed: one more look.
            let short = client
                .count
                .is_some_and(|count| offered < count + progress.lost.load(Ordering::Relaxed));
            let enough = progress.enough.load(Ordering::Relaxed);
            if !replaces || stopped() || enough || (over && !short) {
                break 'inputs;
            }
            home.flush();
            if !waits {
                home.enter(State::WaitsForOutcomes);
                waits = true;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        if waits {
            home.enter(State::Working);
        }
        let Some(payload) = next(&stopped) else { break };
        if stopped() {
            // Nobody waits for it any more, nor maybe for this thread.
            break;
        }
        if let Some(mean) = client.interval {
            // The inverse of the distribution; 1 - u is never 0.
            due += mean.mul_f64(-(1.0 - random.f64()).ln());
            while !stopped() {
                let left = due.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    break;
                }
                home.flush();
                std::thread::sleep(left.min(Duration::from_millis(50)));
            }
        }
        let item = Item {
            id: offered,
            parts: 1,
            members: vec![Member {
                root: offered,
                weight: FULL,
            }],
            payload: payload?,
            ..Item::default()
        };
        offered += 1;
        progress.offered.store(offered, Ordering::Relaxed);
        match lane.put(home, client.policy, item) {
            Ok(true) => {}
            Ok(false) => break,
            Err(_) if stopped() => break,
            Err(error) => return Err(error),
        }
    }
    home.flush();
    Ok(())
}

/// Whether a client could not go on only because the processes of the first step are gone.
pub(crate) fn follows(error: &Error) -> bool {
    let ErrorKind::Queue(kind) = error.kind() else {
        return false;
    };
    matches!(kind, QueueErrorKind::Closed | QueueErrorKind::PeerFailed(_))
}

/// The error of a client that could not go on, told with where it happened.
pub(crate) fn client_failed(error: Error) -> Error {
    let kind = match error.kind() {
        ErrorKind::QueueFull => ErrorKind::QueueFull,
        _ => ErrorKind::Process,
    };
    Error::caused(kind, "the client, which feeds the first step", error)
}
