//! Asking another process for what no handle carries: a descriptor of its memory, or a copy of a tensor in memory of the
//! host, where neither handle nor descriptor work between the two.
//!
//! A process that has device memory listens on a socket whose name stands in its station, in a thread of its own that
//! ends with it; a copy has a thread of its own. A visitor sends one packet and gets one: first a byte, 0 for what comes with a descriptor, else the
//! reason in words.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::Errno;
use shm_core::deadlock::Servant;
use shm_core::object::Object;
use shm_core::patience::Patience;

use crate::error::{Error, ErrorKind, Result};
use crate::hub::Hub;
use crate::layout::{malformed, station};
use crate::place::Place;
use crate::request::{COME_AGAIN, COPY, DESCRIPTOR, HEARD_BY, Request};
use crate::silence::PATIENCE;
use crate::socket::{self, LONGEST};
use crate::stream::Stream;

/// So many visitors may say nothing at a time; of more, the eldest is left.
const SILENT: usize = 64;

/// Listens for visitors from now on, and writes under which name into the station.
pub(crate) fn open(object: &Object) -> Result<()> {
    let failed = |doing: &str, errno: Errno| {
        Error::new(
            ErrorKind::System,
            format!("{doing}, so that others can ask for device memory: {errno}"),
        )
    };
    let mut random = [0; 8];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())
        .map_err(|errno| failed("naming a socket", errno))?;
    let name = format!(
        "tensormp-device-{}-{:016x}",
        std::process::id(),
        u64::from_le_bytes(random)
    );
    let listener = socket::serve(&name).map_err(|errno| failed("listening on a socket", errno))?;
    let spawned = std::thread::Builder::new()
        .name("device-service".to_owned())
        .spawn(move || serve(&listener));
    spawned.map_err(|error| {
        Error::new(
            ErrorKind::System,
            format!("starting a thread that lends device memory: {error}"),
        )
    })?;
    for (word, part) in name.as_bytes().chunks(8).enumerate() {
        let mut eight = [0; 8];
        eight[..part.len()].copy_from_slice(part);
        object
            .word(station::SOCKET + 1 + word as u64)
            .store(u64::from_le_bytes(eight), Ordering::Relaxed);
    }
    // Release: who sees the length sees the name.
    object
        .word(station::SOCKET)
        .store(name.len() as u64, Ordering::Release);
    Ok(())
}

/// Whether this process, whose station it is, listens for visitors.
pub(crate) fn is_open(object: &Object) -> bool {
    object.word(station::SOCKET).load(Ordering::Relaxed) != 0
}

fn serve(listener: &OwnedFd) {
    let _servant = Servant::enter();
    let mut silent = VecDeque::new();
    loop {
        let (speaking, may_come) = listen(listener, &mut silent);
        if may_come {
            match socket::accept(listener) {
                Ok(Some(visitor)) => {
                    silent.push_back((visitor, Patience::new(HEARD_BY)));
                    if silent.len() > SILENT {
                        silent.pop_front();
                    }
                }
                // Of another user: not served.
                Ok(None) => {}
                Err(Errno::CONNABORTED | Errno::INTR | Errno::AGAIN) => {}
                Err(errno) => {
                    tracing::warn!(%errno, "device memory can be lent by handle only from now on");
                    // No descriptors left, it may be: they come back.
                    std::thread::sleep(Duration::from_millis(100));
                }
            }
        }
        for visitor in speaking {
            if let Err(errno) = hear(visitor) {
                tracing::debug!(%errno, "a visitor left before it had its answer");
            }
        }
    }
}

/// A visitor that has said nothing, and how long it may.
type Silent = (OwnedFd, Patience);

/// Waits for visitors to come or to speak: those that speak, and whether somebody comes. One that says nothing keeps nobody,
/// and is left when its time is over.
fn listen(listener: &OwnedFd, silent: &mut VecDeque<Silent>) -> (Vec<OwnedFd>, bool) {
    let now = Instant::now();
    let left = silent.iter().map(|(_, wait)| wait.next()).min();
    let left = left.map(|next| next.saturating_duration_since(now));
    let left = left.and_then(|left| Timespec::try_from(left).ok());
    let visitors = silent.iter().map(|(visitor, _)| visitor);
    let mut all: Vec<_> = std::iter::once(listener)
        .chain(visitors)
        .map(|one| PollFd::new(one, PollFlags::IN))
        .collect();
    if poll(&mut all, left.as_ref()).is_err() {
        return (Vec::new(), false);
    }
    let ready: Vec<_> = all.iter().map(|one| !one.revents().is_empty()).collect();
    let mut ready = ready.into_iter();
    let may_come = ready.next() == Some(true);
    let now = Instant::now();
    let mut speaking = Vec::new();
    for (visitor, mut wait) in std::mem::take(silent) {
        if ready.next() == Some(true) {
            speaking.push(visitor);
        } else if !wait.is_over(now) {
            silent.push_back((visitor, wait));
        }
    }
    (speaking, may_come)
}

/// What a visitor asks for is answered at once, but for copies, which wait for whoever writes the tensor: those are made in
/// threads of their own.
fn hear(visitor: OwnedFd) -> Result<(), Errno> {
    // One that stops in the middle must not keep the others.
    socket::limit(&visitor, HEARD_BY)?;
    let (bytes, _) = socket::receive(&visitor)?;
    let request = Request::from_bytes(&bytes);
    if request.is_some_and(|request| request.kind == COPY) {
        let thread = std::thread::Builder::new().name("device-copy".to_owned());
        let visitor = Arc::new(visitor);
        let theirs = visitor.clone();
        let copy = move || {
            let _servant = Servant::enter();
            if let Err(errno) = answer(&theirs, request) {
                tracing::debug!(%errno, "a visitor left before it had its copy");
            }
        };
        return thread.spawn(copy).map(drop).or_else(|error| {
            tracing::warn!(%error, "no thread to copy device memory for another process, which comes again");
            socket::send(&visitor, &[COME_AGAIN], None)
        });
    }
    answer(&visitor, request)
}

fn answer(visitor: &OwnedFd, request: Option<Request>) -> Result<(), Errno> {
    let outcome = request
        .ok_or_else(|| malformed("a request of another length"))
        .and_then(fulfil);
    match outcome {
        Ok(descriptor) => socket::send(visitor, &[0], Some(descriptor.as_fd())),
        Err(error) => {
            let mut text = vec![1];
            text.extend_from_slice(error.to_string().as_bytes());
            text.truncate(LONGEST);
            socket::send(visitor, &text, None)
        }
    }
}

fn fulfil(request: Request) -> Result<OwnedFd> {
    let hub = Hub::get()?;
    let memory = hub
        .memory(request.memory)
        .ok_or_else(|| malformed("a memory that this process does not have"))?;
    if request.kind == DESCRIPTOR {
        return memory.descriptor(hub);
    }
    let index = u32::try_from(request.index)
        .ok()
        .filter(|index| *index < memory.count)
        .ok_or_else(|| malformed("a block that the memory does not have"))?;
    let end = request.start.checked_add(request.bytes);
    if request.kind != COPY || end.is_none_or(|end| end > memory.stride) {
        return Err(malformed("a request that does not fit the block"));
    }
    let device = memory.device;
    let place = Place::Home(memory.clone(), hub.station()?);
    // Who asked holds the tensor, but may have died since.
    let copying = memory.begin_copy(index, || place.turn(index) == request.turn);
    let Some(_copying) = copying else {
        return Err(malformed("a block that was given to somebody else since"));
    };
    // This thread waits, and no stream: were the writer killed, memory of this process would stay behind that. Nobody waits for
    // the answer any longer than that.
    place.wait_for_writer(index, PATIENCE)?;
    let mut bytes = vec![0; request.bytes as usize];
    let from = place.address_of(index)? + request.start;
    // A stream of its own: the user's are the user's, and may be held up.
    let stream = Stream::new(device)?;
    hub.driver.read(stream.raw()?, &mut bytes, from)?;
    let failed = |error: std::io::Error| {
        Error::new(
            ErrorKind::System,
            format!(
                "a copy of {} bytes for another process: {error}",
                request.bytes
            ),
        )
    };
    let file =
        memfd_create("device-copy", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let mut file = File::from(file);
    file.write_all(&bytes).map_err(failed)?;
    file.rewind().map_err(failed)?;
    Ok(file.into())
}
