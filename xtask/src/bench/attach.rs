//! What coming to an arena costs, by its size and by how many are there. One process works; the other has no part.

use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use shm_core::Arena;
use shm_core::strategy::FileSystem;

use super::crowd::Crowd;
use super::memory::Idle;
use super::subject::{Connection, End, Link, Side, Subject};
use super::{clock, mapping};
use crate::Result;

const GIB: u64 = 1 << 30;

/// Joining an arena of that capacity in which so many other processes are, the benchmark's own two aside.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Attach {
    /// By its name; else by its descriptor.
    pub(crate) named: bool,
    pub(crate) gib: u64,
    pub(crate) others: usize,
}

impl Subject for Attach {
    fn name(&self) -> String {
        let how = if self.named { "attach" } else { "join" };
        let among = match self.others {
            0 => String::new(),
            others => format!(" among {}", others + 2),
        };
        format!("{how} {}GiB{among}", self.gib)
    }

    fn metric(&self) -> &'static str {
        "attach_ns"
    }

    fn batch(&self) -> usize {
        20
    }

    fn connect(&self) -> Result<Connection> {
        let builder = Arena::builder().capacity(self.gib * GIB);
        let arena = match self.named {
            true => builder.strategy(FileSystem::new()).create()?,
            false => builder.create()?,
        };
        let crowd = Crowd::join(&arena, self.others)?;
        let mut connection = Connection::of(vec![arena.as_fd().try_clone_to_owned()?], Vec::new());
        if let Some(path) = arena.path() {
            // A path in words: its length, and a byte each.
            let path = path.as_os_str().as_bytes();
            connection.a.words = path.iter().map(|&byte| u64::from(byte)).collect();
        }
        connection.keep = Box::new((crowd, arena));
        Ok(connection)
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        if side == Side::B {
            return Ok(Box::new(Idle));
        }
        let path: Vec<u8> = link.words.iter().map(|&word| word as u8).collect();
        let [descriptor] =
            <[_; 1]>::try_from(link.descriptors).map_err(|_| "needs the arena's descriptor")?;
        Ok(Box::new(Comer {
            path: self
                .named
                .then(|| PathBuf::from(std::ffi::OsStr::from_bytes(&path))),
            descriptor,
        }))
    }
}

struct Comer {
    path: Option<PathBuf>,
    descriptor: OwnedFd,
}

impl End for Comer {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            let descriptor = self.descriptor.try_clone()?;
            let start = clock::now();
            let arena = match &self.path {
                Some(path) => Arena::attach(path)?,
                None => Arena::join(descriptor)?,
            };
            taken.push(clock::now() - start);
            if arena.participants() < 2 {
                return Err("the arena that was joined has nobody else in it".into());
            }
        }
        Ok(taken)
    }
}

/// The floor: mapping a file of that size.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Map;

impl Subject for Map {
    fn name(&self) -> String {
        "map 1GiB".to_owned()
    }

    fn metric(&self) -> &'static str {
        "map_ns"
    }

    fn batch(&self) -> usize {
        100
    }

    fn connect(&self) -> Result<Connection> {
        Ok(Connection::of(
            vec![mapping::file(GIB as usize)?],
            Vec::new(),
        ))
    }

    fn open(&self, side: Side, link: Link) -> Result<Box<dyn End>> {
        if side == Side::B {
            return Ok(Box::new(Idle));
        }
        let [file] = <[_; 1]>::try_from(link.descriptors).map_err(|_| "needs a file")?;
        Ok(Box::new(Mapper(file)))
    }
}

struct Mapper(OwnedFd);

impl End for Mapper {
    fn run(&mut self, samples: usize) -> Result<Vec<u64>> {
        let mut taken = Vec::with_capacity(samples);
        for _ in 0..samples {
            let start = clock::now();
            let words = mapping::Words::map(&self.0)?;
            taken.push(clock::now() - start);
            drop(words);
        }
        Ok(taken)
    }
}
