//! Asking another process for device memory that cannot be opened by its handle.

use std::fs::File;
use std::io::Read;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use shm_core::patience::Patience;

use crate::error::{Error, ErrorKind, Result};
use crate::layout::{malformed, station};
use crate::request::{COME_AGAIN, COPY, DESCRIPTOR, HEARD_BY, Request};
use crate::silence::SLICE;
use crate::socket;
use crate::visited::Visited;

/// The longest name: eight words of the station.
const NAME: usize = 64;
/// After which time who is told to come again does.
const AGAIN: Duration = Duration::from_millis(10);
/// The system takes nothing for the time of a socket to be no limit.
const BRIEF: Duration = Duration::from_micros(1);

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
