//! What blocks cost: making, dropping, cloning and sending tensors of 4 KiB while others live, one or a million, in an
//! arena of two participants or of many. One process works; the other has no part.
//!
//! One such operation takes about as long as reading the clock twice, so a sample is a group of them.

use std::hint::black_box;
use std::os::fd::AsFd;

use shm_core::letterbox::Letterbox;
use shm_core::{Arena, SharedTensor, Tensor};

use super::crowd::Crowd;
use super::memory::Idle;
use super::subject::{Connection, End, Link, Side, Subject};
use super::{clock, payload};
use crate::Result;

/// Bytes of each block.
const BLOCK: usize = 4096;
/// Operations in a sample.
const GROUP: usize = 64;
/// What a live block of 4 KiB takes: itself, its line, its lease, what of its chunk is left over.
const FOOTPRINT: u64 = 4300;

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// A block that was dropped a moment ago is made anew.
    Alloc,
    /// A block that was made a moment ago is dropped.
    Drop,
    /// Blocks made anew that were dropped long ago, all over the arena: nothing of them is in a cache.
    AllocCold,
    /// Blocks dropped that were made long ago, all over the arena.
    DropCold,
    /// One more local handle, and dropped again.
    Clone,
    /// A tensor becomes a message and comes back out of it, in one process.
    Send,
}

/// An act while so many blocks live, among so many processes.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Blocks {
    pub(crate) act: Act,
    pub(crate) live: usize,
    /// Processes that have joined, the benchmark's own two aside.
    pub(crate) others: usize,
}

impl Subject for Blocks {
    fn name(&self) -> String {
        let act = match self.act {
            Act::Alloc => "alloc",
            Act::Drop => "drop",
            Act::AllocCold => "alloc cold",
            Act::DropCold => "drop cold",
            Act::Clone => "clone",
            Act::Send => "send",
        };
        let among = match self.others {
            0 => String::new(),
            others => format!(" among {}", others + 2),
        };
        format!("{act} 4KiB at {}{among}", self.live)
    }

    fn metric(&self) -> &'static str {
        "each_ns"
    }

    fn batch(&self) -> usize {
        match self.act {
            Act::AllocCold | Act::DropCold => 200.min(self.live / GROUP / 2).max(1),
            Act::Send => 100,
            _ => 500,
        }
    }

    fn room(&self) -> u64 {
        self.live as u64 * FOOTPRINT
    }

    fn connect(&self) -> Result<Connection> {
        let arena = Arena::builder().create()?;
        let crowd = Crowd::join(&arena, self.others)?;
        let mut connection = Connection::of(vec![arena.as_fd().try_clone_to_owned()?], Vec::new());
        connection.keep = Box::new((crowd, arena));
        Ok(connection)
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        if side == Side::B {
            return Ok(Box::new(Idle));
        }
        let [descriptor] =
            <[_; 1]>::try_from(link.descriptors).map_err(|_| "needs the arena's descriptor")?;
        let arena = Arena::join(descriptor)?;
        let live = (0..self.live)
            .map(|_| block(&arena))
            .collect::<Result<_>>()?;
        Ok(Box::new(Worker {
            act: self.act,
            letterbox: Letterbox::create(&arena, 1)?,
            shared: Tensor::full_in(&arena, [BLOCK], 7)?.freeze(),
            arena,
            live,
            random: 1,
        }))
    }
}

fn block(arena: &Arena) -> Result<Tensor<u8>> {
    Ok(Tensor::uninit_in(arena, [BLOCK])?)
}

struct Worker {
    act: Act,
    arena: Arena,
    letterbox: Letterbox,
    shared: SharedTensor<u8>,
    live: Vec<Tensor<u8>>,
    random: u64,
}

impl End for Worker {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        match self.act {
            Act::Alloc | Act::Drop => (0..samples).map(|_| self.warm()).collect(),
            Act::AllocCold | Act::DropCold => self.cold(samples),
            Act::Clone => Ok((0..samples).map(|_| self.clones()).collect()),
            Act::Send => (0..samples).map(|_| self.sends()).collect(),
        }
    }
}

impl Worker {
    fn warm(&self) -> Result<u64> {
        let mut group = Vec::with_capacity(GROUP);
        let start = clock::now();
        for _ in 0..GROUP {
            group.push(block(&self.arena)?);
        }
        let made = clock::now();
        drop(black_box(group));
        let dropped = clock::now();
        let taken = match self.act {
            Act::Alloc => made - start,
            _ => dropped - made,
        };
        Ok(taken / GROUP as u64)
    }

    fn cold(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        let mut groups: Vec<Vec<Tensor<u8>>> = (0..samples)
            .map(|_| (0..GROUP).map(|_| self.any_live()).collect())
            .collect();
        for group in &mut groups {
            let start = clock::now();
            group.clear();
            if self.act == Act::DropCold {
                taken.push((clock::now() - start) / GROUP as u64);
            }
        }
        for mut group in groups {
            let start = clock::now();
            for _ in 0..GROUP {
                group.push(block(&self.arena)?);
            }
            if self.act == Act::AllocCold {
                taken.push((clock::now() - start) / GROUP as u64);
            }
            self.live.append(&mut group);
        }
        Ok(taken)
    }

    /// Any one of the live blocks, no longer among them.
    fn any_live(&mut self) -> Tensor<u8> {
        self.random = self
            .random
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let index = (self.random >> 33) as usize % self.live.len();
        self.live.swap_remove(index)
    }

    fn clones(&self) -> u64 {
        let start = clock::now();
        for _ in 0..GROUP {
            drop(black_box(self.shared.clone()));
        }
        (clock::now() - start) / GROUP as u64
    }

    fn sends(&self) -> Result<u64> {
        let mut came = None;
        let start = clock::now();
        for _ in 0..GROUP {
            self.letterbox
                .send(self.shared.clone())
                .map_err(|failed| failed.error)?;
            came = self.letterbox.try_recv::<SharedTensor<u8>>()?;
        }
        let taken = (clock::now() - start) / GROUP as u64;
        let came = came.ok_or("a tensor that was sent did not come")?;
        if came.as_slice() != [7; BLOCK] {
            return Err("a tensor came that was not sent".into());
        }
        Ok(taken)
    }
}

/// The floors: the same by the system's allocator and by a count of this process.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Local {
    Malloc,
    Free,
    Arc,
}

impl Subject for Local {
    fn name(&self) -> String {
        match self {
            Local::Malloc => "malloc 4KiB",
            Local::Free => "free 4KiB",
            Local::Arc => "arc clone",
        }
        .to_owned()
    }

    fn metric(&self) -> &'static str {
        "each_ns"
    }

    fn batch(&self) -> usize {
        500
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(Vec::new(), Vec::new()))
    }

    fn open(&self, side: Side, _link: Link) -> Result<Box<dyn End>> {
        Ok(if side == Side::A {
            Box::new(LocalWorker(*self))
        } else {
            Box::new(Idle)
        })
    }
}

struct LocalWorker(Local);

impl End for LocalWorker {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let shared = std::sync::Arc::new(payload::LARGE);
        let sample = |_| {
            let mut group: Vec<Vec<u8>> = Vec::with_capacity(GROUP);
            let start = clock::now();
            match self.0 {
                Local::Arc => (0..GROUP).for_each(|_| drop(black_box(shared.clone()))),
                _ => (0..GROUP).for_each(|_| group.push(black_box(Vec::with_capacity(BLOCK)))),
            }
            let made = clock::now();
            drop(black_box(group));
            let taken = match self.0 {
                Local::Free => clock::now() - made,
                _ => made - start,
            };
            // Below a nanosecond each is a nanosecond: a ratio needs a floor.
            (taken / GROUP as u64).max(1)
        };
        Ok((0..samples).map(sample).collect())
    }
}
