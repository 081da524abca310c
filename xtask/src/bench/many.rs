//! Queues with several threads on each side, and what a receiver costs that nothing comes for.

use std::time::Duration;

use mp_queue::{Queue, Receiver, Sender};
use shm_core::{Arena, SharedTensor, Tensor};

use super::payload::{self, Size};
use super::subject::{Connection, End, Link, Side, Subject};
use super::{arena, clock};
use crate::Result;

type Load = SharedTensor<u8>;

/// Messages that each producer puts for a sample.
const MESSAGES: usize = 500;
const CAPACITY: usize = 64;

/// So many producers in one process, so many consumers in the other. They wait adaptively: they share two CPUs.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Many {
    pub(crate) producers: usize,
    pub(crate) consumers: usize,
    pub(crate) size: Size,
}

impl Subject for Many {
    fn name(&self) -> String {
        format!(
            "{}:{} busy {}",
            self.producers, self.consumers, self.size.name
        )
    }

    fn metric(&self) -> &'static str {
        "ns_per_message"
    }

    fn batch(&self) -> usize {
        5
    }

    fn connect(&self) -> Result<Connection> {
        let arena = Arena::builder().create()?;
        let mut tensor = Tensor::<u8>::zeros_in(&arena, self.size.bytes)?;
        payload::mark(tensor.as_mut_slice(), 1);
        let (to, from) = Queue::<Load>::bounded_in(&arena, CAPACITY)?.split();
        arena::connect(arena, (to, tensor.freeze()), from)
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        Ok(match side {
            Side::A => {
                let (to, load) = arena::open::<(Sender<Load>, Load)>(link)?;
                Box::new(Putting {
                    to,
                    load,
                    many: *self,
                })
            }
            Side::B => {
                let from = arena::open::<Receiver<Load>>(link)?;
                Box::new(Getting { from, many: *self })
            }
        })
    }
}

struct Putting {
    to: Sender<Load>,
    load: Load,
    many: Many,
}

impl End for Putting {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let put = |to: &Sender<Load>| -> std::result::Result<(), String> {
            for _ in 0..MESSAGES {
                to.put(self.load.clone())
                    .map_err(|failed| failed.to_string())?;
            }
            Ok(())
        };
        for _ in 0..samples {
            in_threads(self.many.producers, || put(&self.to))?;
        }
        Ok(Vec::new())
    }
}

struct Getting {
    from: Receiver<Load>,
    many: Many,
}

impl End for Getting {
    /// From the first message of a sample to the last.
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let messages = self.many.producers * MESSAGES;
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            payload::check(self.from.get()?.as_slice(), 1)?;
            let start = clock::now();
            let left = std::sync::atomic::AtomicUsize::new(messages - 1);
            let get = || -> std::result::Result<(), String> {
                use std::sync::atomic::Ordering::Relaxed;
                // Each claims a message before it waits for one, so that none waits for one more than there is.
                while left
                    .fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1))
                    .is_ok()
                {
                    let load = self.from.get().map_err(|error| error.to_string())?;
                    payload::check(load.as_slice(), 1).map_err(|error| error.to_string())?;
                }
                Ok(())
            };
            in_threads(self.many.consumers, get)?;
            taken.push((clock::now() - start) / messages as u64);
        }
        Ok(taken)
    }
}

/// Does it in so many threads, each with its own handle where the work clones one.
fn in_threads(
    threads: usize,
    work: impl Fn() -> std::result::Result<(), String> + Sync,
) -> Result<()> {
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(&work)).collect();
        running.into_iter().try_for_each(|thread| {
            let outcome = thread.join().map_err(|_| "a thread panicked".to_owned())?;
            Ok(outcome?)
        })
    })
}

/// The CPU time of a process that waits for a message, in nanoseconds for each second of waiting.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Idle;

/// How long it waits for a sample.
const WAIT: Duration = Duration::from_secs(1);

impl Subject for Idle {
    fn name(&self) -> String {
        "idle receiver".into()
    }

    fn metric(&self) -> &'static str {
        "cpu_ns_per_s"
    }

    fn batch(&self) -> usize {
        1
    }

    fn connect(&self) -> Result<Connection> {
        let arena = Arena::builder().create()?;
        let (to, from) = Queue::<u32>::bounded_in(&arena, 1)?.split();
        let (back_to, back_from) = Queue::<u32>::bounded_in(&arena, 1)?.split();
        arena::connect(arena, (to, back_from), (from, back_to))
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        Ok(match side {
            Side::A => {
                let (to, from) = arena::open(link)?;
                Box::new(Watching { to, from })
            }
            Side::B => {
                let (from, to) = arena::open(link)?;
                Box::new(Waiting { from, to })
            }
        })
    }
}

struct Watching {
    to: Sender<u32>,
    from: Receiver<u32>,
}

impl End for Watching {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            let pid = self.from.get()?;
            // Until it sleeps.
            std::thread::sleep(WAIT / 10);
            let before = cpu_time(pid)?;
            std::thread::sleep(WAIT);
            taken.push(cpu_time(pid)? - before);
            self.to.put(pid).map_err(|failed| failed.to_string())?;
        }
        Ok(taken)
    }
}

struct Waiting {
    from: Receiver<u32>,
    to: Sender<u32>,
}

impl End for Waiting {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        for _ in 0..samples {
            let pid = std::process::id();
            self.to.put(pid).map_err(|failed| failed.to_string())?;
            if self.from.get()? != pid {
                return Err("another process was meant".into());
            }
        }
        Ok(Vec::new())
    }
}

/// Nanoseconds that all threads of a process have run.
fn cpu_time(pid: u32) -> Result<u64> {
    let mut sum = 0;
    for task in std::fs::read_dir(format!("/proc/{pid}/task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let ran = text.split(' ').next().unwrap_or_default();
        sum += ran.parse::<u64>()?;
    }
    Ok(sum)
}
