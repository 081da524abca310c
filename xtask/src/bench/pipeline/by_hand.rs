//! The same hand-over made by hand, from side A to side B: a tensor of its own through a queue, or an index through a queue
//! and an event for each tensor, as RnB does it.

use mp_queue::{Event, Queue, Receiver, Sender, WaitPolicy};
use shm_core::{AliasedTensor, Arena, Tensor};

use super::super::subject::{Connection, End, Link, Side, Subject};
use super::super::{arena, clock, payload, payload::Size};
use super::{Load, PAUSE_NS, WORK_NS, later, spend};
use crate::Result;

/// Tensors of the second way.
const TENSORS: usize = 4;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Handed {
    /// A new tensor for each item.
    Queue,
    /// An index, and an event for each tensor, which says that it is free. The output was written where it travels.
    Rnb,
    /// The same where the output is copied into the tensor that travels, as RnB does when a model is done.
    RnbCopied,
}

#[derive(Copy, Clone, Debug)]
pub(crate) struct ByHand {
    pub(crate) way: Handed,
    pub(crate) load: Load,
    pub(crate) size: Size,
}

/// When it was finished, its number, which tensor, and where the way says so the tensor.
type Message = (u64, u64, usize, Option<Tensor<u8>>);

/// The tensors, in words; whether each is free; and how many items were handled.
type Shared = (Vec<AliasedTensor<u64>>, Vec<Event>, AliasedTensor<u64>);

impl Subject for ByHand {
    fn name(&self) -> String {
        let way = match self.way {
            Handed::Queue => "queue",
            Handed::Rnb => "rnb",
            Handed::RnbCopied => "rnb copied",
        };
        format!("{way} {} {}", self.load.name(), self.size.name)
    }

    fn key(&self) -> String {
        format!("pipeline {}", self.name())
    }

    fn metric(&self) -> &'static str {
        "finish_to_start_ns"
    }

    fn batch(&self) -> usize {
        match self.way {
            Handed::RnbCopied => 20,
            _ => self.load.batch(),
        }
    }

    fn room(&self) -> u64 {
        (self.size.bytes * (TENSORS + 1)) as u64
    }

    fn connect(&self) -> Result<Connection> {
        let arena = Arena::builder().create()?;
        let (to, from) = Queue::<Message>::bounded_in(&arena, TENSORS)?.split();
        let of_rnb = if self.way == Handed::Queue {
            0
        } else {
            TENSORS
        };
        let mut shared: Shared = (
            Vec::new(),
            Vec::new(),
            Tensor::<u64>::zeros_in(&arena, 1)?.alias(),
        );
        for _ in 0..of_rnb {
            shared
                .0
                .push(Tensor::<u64>::zeros_in(&arena, self.size.bytes / 8)?.alias());
            shared.1.push(Event::new_in(&arena)?);
        }
        shared.1.iter().for_each(Event::set);
        arena::connect(arena, (to, shared.clone()), (from, shared))
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        let policy = match self.load {
            Load::Parked => WaitPolicy::Park,
            Load::Busy | Load::Full => WaitPolicy::Spin,
        };
        if side == Side::B {
            let (from, shared) = arena::open::<(Receiver<Message>, Shared)>(link)?;
            return Ok(Box::new(To {
                case: *self,
                from: from.with_policy(policy),
                shared,
            }));
        }
        let (to, shared) = arena::open::<(Sender<Message>, Shared)>(link)?;
        Ok(Box::new(From {
            case: *self,
            to: to.with_policy(policy),
            shared,
            // Not zeroes: those would be pages that were never touched.
            result: vec![1; self.size.bytes / 8],
            rng: fastrand::Rng::with_seed(7),
            sent: 0,
        }))
    }
}

struct From {
    case: ByHand,
    to: Sender<Message>,
    shared: Shared,
    /// What a stage would have made, elsewhere.
    result: Vec<u64>,
    rng: fastrand::Rng,
    sent: u64,
}

impl End for From {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let (tensors, free, seen) = &self.shared;
        let mut due = clock::now();
        for _ in 0..samples {
            self.sent += 1;
            let index = self.sent as usize % TENSORS;
            let mut own = None;
            let wait_until_free = || -> Result<()> {
                free[index].wait()?;
                free[index].clear();
                Ok(())
            };
            match self.case.way {
                Handed::Queue => {
                    let mut tensor =
                        Tensor::<u8>::uninit_in(self.to.arena(), [self.case.size.bytes])?;
                    payload::mark(tensor.as_mut_slice(), self.sent);
                    own = Some(tensor);
                }
                Handed::Rnb => {
                    wait_until_free()?;
                    for end in [0, tensors[index].len() - 1] {
                        tensors[index].store(&[end], self.sent)?;
                    }
                }
                Handed::RnbCopied => {
                    let last = self.result.len() - 1;
                    (self.result[0], self.result[last]) = (self.sent, self.sent);
                }
            }
            match self.case.load {
                Load::Busy => {
                    while seen.load(&[0])? + 1 < self.sent {}
                    spend(PAUSE_NS);
                }
                Load::Parked => {
                    while seen.load(&[0])? + 1 < self.sent {}
                    clock::settle();
                }
                Load::Full => {
                    while clock::now() < due {}
                    due += later(&mut self.rng);
                }
            }
            let finished = clock::now();
            if self.case.way == Handed::RnbCopied {
                wait_until_free()?;
                tensors[index].copy_from_slice(&self.result)?;
            }
            self.to
                .put((finished, self.sent, index, own))
                .map_err(|failed| failed.to_string())?;
        }
        Ok(Vec::new())
    }
}

struct To {
    case: ByHand,
    from: Receiver<Message>,
    shared: Shared,
}

impl End for To {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let (tensors, free, seen) = &self.shared;
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            let (finished, number, index, own) = self.from.get()?;
            let now = clock::now();
            match own {
                Some(tensor) => payload::check(tensor.as_slice(), number)?,
                None => {
                    for end in [0, tensors[index].len() - 1] {
                        let seen = tensors[index].load(&[end])?;
                        if seen != number {
                            return Err(format!("item {number}: its tensor holds {seen}").into());
                        }
                    }
                }
            }
            if self.case.load == Load::Full {
                spend(WORK_NS);
            }
            if let Some(free) = free.get(index) {
                free.set();
            }
            seen.fetch_add(&[0], 1)?;
            taken.push(now.saturating_sub(finished));
        }
        Ok(taken)
    }
}
