//! All that this crate needs from the arena: parcels of arguments, letterboxes, and the news that others wait for.
//!
//! Temporary: a memory file stands in for the arena.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::BoxError;
use crate::hello::Handle;

static ARENA: OnceLock<OwnedFd> = OnceLock::new();
static NEXT: AtomicU64 = AtomicU64::new(0);

/// Makes sure that there is an arena.
pub(crate) fn prepare() -> Result<(), BoxError> {
    if ARENA.get().is_none() {
        let file = rustix::fs::memfd_create("link", rustix::fs::MemfdFlags::CLOEXEC)?;
        let _ = ARENA.set(file);
    }
    Ok(())
}

pub(crate) fn arena_descriptor() -> Result<BorrowedFd<'static>, BoxError> {
    Ok(ARENA.get().ok_or("no arena")?.as_fd())
}

pub(crate) fn join(descriptor: OwnedFd) -> Result<Member, BoxError> {
    let _ = ARENA.set(descriptor);
    NEXT.store(u64::from(std::process::id()) << 32, Ordering::Relaxed);
    Ok(Member { row: 1, epoch: 1 })
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Member {
    pub(crate) row: u16,
    pub(crate) epoch: u16,
}

#[derive(Debug)]
pub(crate) struct News {
    pub(crate) rank: usize,
    pub(crate) pid: u32,
    pub(crate) cause: String,
}

#[derive(Clone, Debug)]
pub(crate) struct Shared;
impl Shared {
    pub(crate) fn record_failure(&self, _news: &News) {}
    pub(crate) fn record_departure(&self, _rank: usize, _pid: u32) {}
}

pub(crate) fn bury(_member: Member) {}

#[derive(Debug, Default)]
pub(crate) struct Record {
    pub(crate) task: Option<String>,
    pub(crate) panic: Option<String>,
}
pub(crate) fn record_of(_member: Member) -> Record {
    Record::default()
}
pub(crate) fn note_name(_name: &str) {}
pub(crate) fn note_panic(_text: &str) {}

#[derive(Debug)]
pub(crate) struct Parcel(Vec<u8>);

impl Parcel {
    pub(crate) fn pack<A: Serialize>(value: A) -> Result<Parcel, BoxError> {
        Ok(Parcel(postcard::to_stdvec(&value)?))
    }
    pub(crate) fn duplicate(&self) -> Result<Parcel, BoxError> {
        Ok(Parcel(self.0.clone()))
    }
    pub(crate) fn shared(&self) -> Vec<Shared> {
        Vec::new()
    }
}

#[derive(Debug)]
pub(crate) struct Mailbox(u64);

impl Mailbox {
    pub(crate) fn create() -> Result<Mailbox, BoxError> {
        Ok(Mailbox(NEXT.fetch_add(1 << 24, Ordering::Relaxed)))
    }
    pub(crate) fn open(handle: Handle) -> Result<Mailbox, BoxError> {
        Ok(Mailbox(handle[0]))
    }
    pub(crate) fn handle(&self) -> Handle {
        [self.0, 0]
    }
    pub(crate) fn post(&self, parcel: Parcel) -> Result<(), BoxError> {
        let fd = arena_descriptor()?;
        rustix::io::pwrite(fd, &parcel.0, self.0 + 8)?;
        rustix::io::pwrite(fd, &(parcel.0.len() as u64 + 1).to_ne_bytes(), self.0)?;
        Ok(())
    }
    pub(crate) fn put<T: Serialize>(&self, value: T) -> Result<(), BoxError> {
        self.post(Parcel::pack(value)?)
    }
    pub(crate) fn take<T: DeserializeOwned>(&self) -> Result<Option<T>, BoxError> {
        let fd = arena_descriptor()?;
        let mut length = [0; 8];
        if rustix::io::pread(fd, &mut length, self.0)? != 8 || length == [0; 8] {
            return Ok(None);
        }
        let mut bytes = vec![0; u64::from_ne_bytes(length) as usize - 1];
        let got = rustix::io::pread(fd, &mut bytes, self.0 + 8)?;
        if got != bytes.len() {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        Ok(Some(postcard::from_bytes(&bytes)?))
    }
}
