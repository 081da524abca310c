//! What the loom models share: memory whose orderings can be weakened, cells in it, and a futex.
//!
//! A model that holds says little unless the same model fails once a rule is left out, so each has
//! control variants next to it.
#![allow(dead_code)] // Each model uses its part.

use std::cell::Cell;
use std::fmt::Debug;
use std::marker::PhantomData;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Once;
use std::sync::atomic::Ordering;

use loom::sync::{Condvar, Mutex};
use shm_core::cells::{CellArray, PAYLOAD_WORDS};
use shm_core::sync::{Atomic32, Atomic64, Loom, Memory};

/// What is weakened.
pub(crate) trait Variant: Debug + Send + Sync + 'static {
    /// Publications (swaps) and exchanges of words have no ordering.
    const RELAXED_PUBLICATION: bool = false;
    /// Loads have no ordering.
    const RELAXED_LOADS: bool = false;
    /// There are no fences.
    const NO_FENCES: bool = false;
    /// Handing a message back does not grow the orphan epoch.
    const NO_ORPHAN_EPOCH: bool = false;
}

macro_rules! variants {
    ($($(#[$doc:meta])* $name:ident { $($constant:ident)? })*) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub(crate) struct $name;
            impl Variant for $name {
                $(const $constant: bool = true;)?
            }
        )*
    };
}

variants! {
    /// Nothing.
    Right {}
    /// See [`Variant::RELAXED_PUBLICATION`].
    RelaxedPublication { RELAXED_PUBLICATION }
    /// See [`Variant::RELAXED_LOADS`].
    RelaxedLoads { RELAXED_LOADS }
    /// See [`Variant::NO_FENCES`].
    NoFences { NO_FENCES }
    /// See [`Variant::NO_ORPHAN_EPOCH`].
    NoOrphanEpoch { NO_ORPHAN_EPOCH }
}

/// loom's memory with a variant's orderings.
#[derive(Debug)]
pub(crate) struct Model<V>(PhantomData<V>);

impl<V: Variant> Memory for Model<V> {
    type U64 = Word<V, loom::sync::atomic::AtomicU64>;
    type U32 = Word<V, loom::sync::atomic::AtomicU32>;

    fn fence(order: Ordering) {
        if !V::NO_FENCES {
            Loom::fence(order);
        }
    }

    fn order_after_publication() {
        if !V::NO_FENCES {
            Loom::order_after_publication();
        }
    }

    fn spin_hint() {
        Loom::spin_hint();
    }
}

/// An atomic of loom's, or one that is left out of the model and always 0.
#[derive(Debug)]
pub(crate) struct Word<V, A> {
    atomic: Option<A>,
    frozen: bool,
    variant: PhantomData<V>,
}

impl<V: Variant, A> Word<V, A> {
    pub(crate) fn new(atomic: A) -> Self {
        Self {
            atomic: Some(atomic),
            frozen: false,
            variant: PhantomData,
        }
    }

    fn left_out() -> Self {
        Self {
            atomic: None,
            frozen: false,
            variant: PhantomData,
        }
    }

    fn with<T: Default>(&self, operation: impl FnOnce(&A) -> T) -> T {
        self.atomic.as_ref().map(operation).unwrap_or_default()
    }

    fn load_order(order: Ordering) -> Ordering {
        if V::RELAXED_LOADS {
            Ordering::Relaxed
        } else {
            order
        }
    }

    fn publication_order(order: Ordering) -> Ordering {
        if V::RELAXED_PUBLICATION {
            Ordering::Relaxed
        } else {
            order
        }
    }
}

macro_rules! implement {
    ($trait:ident, $value:ty, $atomic:ty) => {
        impl<V: Variant> $trait for Word<V, $atomic> {
            fn load(&self, order: Ordering) -> $value {
                self.with(|atomic| $trait::load(atomic, Self::load_order(order)))
            }
            fn store(&self, value: $value, order: Ordering) {
                self.with(|atomic| $trait::store(atomic, value, order));
            }
            fn swap(&self, value: $value, order: Ordering) -> $value {
                self.with(|atomic| $trait::swap(atomic, value, Self::publication_order(order)))
            }
            fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let atomic = self.atomic.as_ref().ok_or(<$value>::default())?;
                let success = Self::publication_order(success);
                $trait::compare_exchange(atomic, current, new, success, failure)
            }
            fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                let value = if self.frozen { 0 } else { value };
                self.with(|atomic| $trait::fetch_add(atomic, value, order))
            }
            fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                self.with(|atomic| $trait::fetch_sub(atomic, value, order))
            }
            fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                self.with(|atomic| $trait::fetch_or(atomic, value, order))
            }
            fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                self.with(|atomic| $trait::fetch_and(atomic, value, order))
            }
        }
    };
}

implement!(Atomic64, u64, loom::sync::atomic::AtomicU64);
implement!(Atomic32, u32, loom::sync::atomic::AtomicU32);

type U64<V> = <Model<V> as Memory>::U64;

pub(crate) fn word64<V: Variant>() -> U64<V> {
    Word::new(loom::sync::atomic::AtomicU64::new(0))
}

/// A word that is left out of the model: whatever is written, it holds 0.
pub(crate) fn left_out64<V: Variant>() -> U64<V> {
    Word::left_out()
}

pub(crate) fn word32<V: Variant>() -> <Model<V> as Memory>::U32 {
    Word::new(loom::sync::atomic::AtomicU32::new(0))
}

/// Cells whose payload is one word; the others are left out.
#[derive(Debug)]
pub(crate) struct ModelCells<V: Variant> {
    words: Vec<U64<V>>,
    payloads: Vec<[U64<V>; PAYLOAD_WORDS]>,
    tail: U64<V>,
    head: U64<V>,
    orphan_epoch: U64<V>,
    closed: U64<V>,
}

impl<V: Variant> ModelCells<V> {
    /// Without the closed flag, which costs a branch for each look at it.
    pub(crate) fn new(capacity: usize) -> Self {
        let payload = |_| {
            std::array::from_fn(|index| {
                if index == 0 {
                    word64()
                } else {
                    Word::left_out()
                }
            })
        };
        Self {
            words: (0..capacity).map(|_| word64()).collect(),
            payloads: (0..capacity).map(payload).collect(),
            tail: word64(),
            head: word64(),
            orphan_epoch: Word {
                frozen: V::NO_ORPHAN_EPOCH,
                ..word64()
            },
            closed: Word::left_out(),
        }
    }

    pub(crate) fn closable(capacity: usize) -> Self {
        Self {
            closed: word64(),
            ..Self::new(capacity)
        }
    }
}

impl<V: Variant> CellArray for &ModelCells<V> {
    type M = Model<V>;

    fn capacity(&self) -> u64 {
        self.words.len() as u64
    }
    fn word(&self, index: u64) -> &U64<V> {
        &self.words[index as usize]
    }
    fn payload(&self, index: u64) -> &[U64<V>; PAYLOAD_WORDS] {
        &self.payloads[index as usize]
    }
    fn tail(&self) -> &U64<V> {
        &self.tail
    }
    fn head(&self) -> &U64<V> {
        &self.head
    }
    fn orphan_epoch(&self) -> &U64<V> {
        &self.orphan_epoch
    }
    fn closed(&self) -> &U64<V> {
        &self.closed
    }
}

/// The kernel's wait queue of one word. Its lock is the kernel's: the word is compared, and the
/// sleeper enqueued, in one go.
///
/// No sleep ends by itself. After the last notification the model says [`over`](Self::over), and
/// whoever sleeps then has lost its wake. (A deadlock would tell the same, but loom cannot always
/// unwind from one.)
#[derive(Debug)]
pub(crate) struct Futex {
    queue: Mutex<Queue>,
    condvar: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    asleep: u32,
    woken: u32,
    over: bool,
}

impl Futex {
    pub(crate) fn new() -> Self {
        Self {
            queue: Mutex::new(Queue::default()),
            condvar: Condvar::new(),
        }
    }

    /// Sleeps while the word has this value; `false`: no wake will ever come.
    pub(crate) fn sleep_while(&self, word: &impl Atomic32, value: u32) -> bool {
        let mut queue = self.queue.lock().expect("no thread panicked");
        if word.load(Ordering::Relaxed) != value {
            return true;
        }
        queue.asleep += 1;
        while queue.woken == 0 && !queue.over {
            queue = self.condvar.wait(queue).expect("no thread panicked");
        }
        let woken = queue.woken > 0;
        if woken {
            queue.woken -= 1;
        }
        woken
    }

    pub(crate) fn wake(&self, how_many: u32) -> u32 {
        let mut queue = self.queue.lock().expect("no thread panicked");
        let woken = how_many.min(queue.asleep);
        queue.asleep -= woken;
        queue.woken += woken;
        if woken > 0 {
            self.condvar.notify_all();
        }
        woken
    }

    pub(crate) fn over(&self) {
        self.queue.lock().expect("no thread panicked").over = true;
        self.condvar.notify_all();
    }
}

/// Runs a model with so many preemptions at most.
pub(crate) fn check(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    let executions = std::sync::Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let count = executions.clone();
    let start = std::time::Instant::now();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| {
        builder.check(move || {
            count.fetch_add(1, Ordering::Relaxed);
            model();
        });
    }));
    println!(
        "{} executions, {:.1?}",
        executions.load(Ordering::Relaxed),
        start.elapsed()
    );
    if let Err(violation) = outcome {
        panic::resume_unwind(violation);
    }
}

thread_local! {
    /// Whether this thread's panics are what the test wants, so that nobody needs to read them.
    static EXPECTED: Cell<bool> = const { Cell::new(false) };
}

/// Checks that a control variant is noticed.
pub(crate) fn check_fails(preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    static QUIET: Once = Once::new();
    QUIET.call_once(|| {
        let hook = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if !EXPECTED.get() {
                hook(info);
            }
        }));
    });
    EXPECTED.set(true);
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| check(preemptions, model)));
    EXPECTED.set(false);
    assert!(outcome.is_err(), "the model did not notice what is missing");
}
