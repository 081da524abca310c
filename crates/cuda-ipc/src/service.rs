//! Asking another process for what no handle carries: a descriptor of its memory, or a copy of a tensor in memory of the
//! host, where neither handle nor descriptor work between the two.
//!
//! A process that has device memory listens on a socket whose name stands in its station, in a thread of its own that
//! ends with it; a copy has a thread of its own. A visitor sends one packet and gets one: first a byte, 0 for what comes with a descriptor, else the
//! reason in words.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Seek, Write};
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
use crate::silence::{PATIENCE, SLICE};
use crate::socket::{self, LONGEST};
use crate::stream::Stream;
use crate::visited::Visited;

/// The longest name: eight words of the station.
const NAME: usize = 64;
/// In place of an answer: this process lacks something at the moment.
const COME_AGAIN: u8 = 2;
/// After which time.
const AGAIN: Duration = Duration::from_millis(10);
/// The system takes nothing for the time of a socket to be no limit.
const BRIEF: Duration = Duration::from_micros(1);

/// How long a visitor may take to say what it wants.
const HEARD_BY: Duration = Duration::from_secs(2);
/// So many visitors may say nothing at a time; of more, the eldest is left.
const SILENT: usize = 64;

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Request {
    /// [`DESCRIPTOR`] or [`COPY`].
    kind: u64,
    memory: [u64; 2],
    index: u64,
    turn: u64,
    start: u64,
    bytes: u64,
}

const REQUEST: usize = 7 * 8;
/// A descriptor of the memory.
const DESCRIPTOR: u64 = 1;
/// A copy of bytes of a block.
const COPY: u64 = 2;

impl Request {
    fn to_bytes(self) -> [u8; REQUEST] {
        let words = [
            self.kind,
            self.memory[0],
            self.memory[1],
            self.index,
            self.turn,
            self.start,
            self.bytes,
        ];
        let mut bytes = [0; REQUEST];
        for (eight, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *eight = word.to_le_bytes();
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; REQUEST] = bytes.try_into().ok()?;
        let mut words = [0; 7];
        for (word, eight) in words.iter_mut().zip(bytes.as_chunks::<8>().0) {
            *word = u64::from_le_bytes(*eight);
        }
        let [kind, line, generation, index, turn, start, bytes] = words;
        Some(Self {
            kind,
            memory: [line, generation],
            index,
            turn,
            start,
            bytes,
        })
    }
}

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

fn ask(visited: &Visited, pid: u32, request: Request, patience: Duration) -> Result<OwnedFd> {
    let outcome = ask_once(visited, pid, request, patience);
    let is_late = |error: &Error| *error.kind() == ErrorKind::TimedOut;
    if !outcome.as_ref().is_err_and(is_late) {
        visited.silence.is_over();
    }
    outcome
}

fn ask_once(visited: &Visited, pid: u32, request: Request, patience: Duration) -> Result<OwnedFd> {
    let object = &visited.object;
    let late = || {
        Error::new(
            ErrorKind::TimedOut,
            format!(
                "process {pid} was asked for device memory and has not answered within {patience:?}; it may be stopped"
            ),
        )
    };
    let mut wait = Patience::new(patience);
    let may_come = |wait: &mut Patience| {
        let now = Instant::now();
        // For others who wait for it.
        visited.silence.look(now);
        !wait.is_over(now) && object.arena().is_running(visited.origin)
    };
    let length = loop {
        match object.word(station::SOCKET).load(Ordering::Acquire) as usize {
            // It had no thread for that, and looks twice a second whether it can have one.
            0 if may_come(&mut wait) => std::thread::sleep(Duration::from_millis(1)),
            0 => return Err(late()),
            length => break length,
        }
    };
    if length > NAME {
        return Err(malformed("a station that cannot be asked"));
    }
    let mut name: Vec<u8> = (0..length.div_ceil(8) as u64)
        .flat_map(|word| {
            object
                .word(station::SOCKET + 1 + word)
                .load(Ordering::Acquire)
                .to_le_bytes()
        })
        .collect();
    name.truncate(length);
    let name = String::from_utf8(name).map_err(|_| malformed("a station whose name is no text"))?;
    let failed = |errno: Errno| {
        let hint = match errno {
            // No room among those who wait to be heard.
            Errno::AGAIN => return late(),
            Errno::CONNREFUSED => {
                "; it has ended, or this process is in another network namespace (another container)"
            }
            Errno::MFILE => "; this process has no file descriptor left (`ulimit -n`)",
            Errno::PERM => "; the process there is another user's",
            _ => "",
        };
        let kind = match errno {
            // It is this process that lacks something, and may have it later: no reason for another way.
            Errno::MFILE | Errno::NFILE | Errno::NOBUFS | Errno::NOMEM => ErrorKind::System,
            _ => ErrorKind::NoPath,
        };
        Error::new(
            kind,
            format!("asking process {pid} for device memory: {errno}{hint}"),
        )
    };
    let (bytes, descriptor) = loop {
        let visit = loop {
            let next = wait.next().saturating_duration_since(Instant::now());
            match socket::visit(&name, next.clamp(BRIEF, SLICE)) {
                // Many others wait to be heard.
                Err(Errno::AGAIN) if may_come(&mut wait) => {}
                other => break other.map_err(failed)?,
            }
        };
        let since = Instant::now();
        shm_core::failpoint!("device.ask.connected");
        let answered = socket::send(&visit, &request.to_bytes(), None).and_then(|()| {
            loop {
                match socket::receive_until(&visit, wait.next().min(Instant::now() + SLICE)) {
                    Err(Errno::AGAIN) if may_come(&mut wait) => {}
                    // It has gone.
                    Ok((bytes, _)) if bytes.is_empty() => break Err(Errno::CONNREFUSED),
                    other => break other,
                }
            }
        });
        let errno = match answered {
            Ok((bytes, _)) if bytes == [COME_AGAIN] => {
                if !may_come(&mut wait) {
                    return Err(Error::new(
                        ErrorKind::System,
                        format!(
                            "process {pid} had no thread to copy device memory with for {patience:?}"
                        ),
                    ));
                }
                std::thread::sleep(AGAIN);
                continue;
            }
            Ok(answer) => break answer,
            Err(errno) => errno,
        };
        if !matches!(errno, Errno::CONNRESET | Errno::PIPE | Errno::CONNREFUSED) {
            return Err(failed(errno));
        }
        visited.has_hung_up();
        // This process was stopped, it may be, and was not waited for: it comes once more.
        if since.elapsed() < HEARD_BY || !object.arena().is_running(visited.origin) {
            return Err(failed(errno));
        }
        if !may_come(&mut wait) {
            return Err(late());
        }
    };
    match (bytes.split_first(), descriptor) {
        (Some((0, _)), Some(descriptor)) => Ok(descriptor),
        (Some((_, text)), _) => Err(Error::new(
            ErrorKind::NoPath,
            format!(
                "process {pid} was asked for device memory and says: {}",
                String::from_utf8_lossy(text)
            ),
        )),
        (None, _) => Err(failed(Errno::CONNREFUSED)),
    }
}

/// A descriptor of a memory of another process.
pub(crate) fn fetch_descriptor(
    visited: &Visited,
    pid: u32,
    memory: [u64; 2],
    patience: Duration,
) -> Result<OwnedFd> {
    ask(
        visited,
        pid,
        Request {
            kind: DESCRIPTOR,
            memory,
            index: 0,
            turn: 0,
            start: 0,
            bytes: 0,
        },
        patience,
    )
}

/// Which bytes of which block.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) index: u32,
    pub(crate) turn: u64,
    pub(crate) start: u64,
    pub(crate) bytes: u64,
}

/// A copy of bytes of a block of another process, after whoever wrote it.
pub(crate) fn fetch_copy(
    visited: &Arc<Visited>,
    pid: u32,
    memory: [u64; 2],
    part: Part,
) -> Result<Vec<u8>> {
    let patience = visited.silence.left(Instant::now());
    let descriptor = ask(
        visited,
        pid,
        Request {
            kind: COPY,
            memory,
            index: part.index.into(),
            turn: part.turn,
            start: part.start,
            bytes: part.bytes,
        },
        patience,
    )?;
    let mut bytes = vec![0; part.bytes as usize];
    File::from(descriptor)
        .read_exact(&mut bytes)
        .map_err(|error| {
            Error::new(
                ErrorKind::System,
                format!(
                    "reading a copy of {} bytes from process {pid}: {error}",
                    part.bytes
                ),
            )
        })?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_survives_its_bytes_and_another_length_is_none() {
        let request = Request {
            kind: COPY,
            memory: [7, u64::MAX],
            index: 3,
            turn: 4,
            start: 5,
            bytes: 6,
        };
        assert_eq!(Request::from_bytes(&request.to_bytes()), Some(request));
        assert_eq!(Request::from_bytes(&request.to_bytes()[1..]), None);
    }
}
