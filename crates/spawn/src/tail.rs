//! The end of what a child wrote to its stderr, kept for the error that tells of its death.
//!
//! The child's stderr is a pipe. One thread of this process empties these pipes, keeps the last [`KEPT`] bytes of each,
//! and passes everything on. Whoever needs the end of the story (the supervisor, when the child is gone) reads what is
//! still in the pipe itself, so it waits for nobody; it leaves the passing on, which may block, to that thread and to
//! whoever joins.

use std::collections::HashMap;
use std::io::{PipeReader, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, epoll, poll};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::error::BoxError;
use crate::process::Output;

/// How many bytes are kept.
const KEPT: usize = 8 << 10;

/// How many bytes are read before some are passed on: a child that writes faster than this process can pass on waits,
/// as it would without the pipe.
const STEP: usize = 64 << 10;

/// One child's stderr.
#[derive(Debug)]
pub(crate) struct Tail {
    pipe: PipeReader,
    to: To,
    heard: Mutex<Heard>,
    /// Held while passing on, so that the order is kept.
    passing: Mutex<()>,
}

/// Where it is passed on to.
#[derive(Debug)]
enum To {
    Ours,
    Nowhere,
    Descriptor(OwnedFd),
}

#[derive(Debug, Default)]
struct Heard {
    kept: Vec<u8>,
    /// Read and not passed on yet.
    backlog: Vec<u8>,
    ended: bool,
}

impl Tail {
    /// A pipe whose end is kept; its writing end is for the child.
    pub(crate) fn new(to: &Output) -> Result<(Arc<Tail>, OwnedFd), BoxError> {
        let (reader, writer) = std::io::pipe()?;
        let flags = rustix::fs::fcntl_getfl(&reader)?;
        rustix::fs::fcntl_setfl(&reader, flags | OFlags::NONBLOCK)?;
        let tail = Arc::new(Tail {
            pipe: reader,
            to: match to {
                Output::Inherit => To::Ours,
                Output::Null => To::Nowhere,
                Output::Descriptor(_) => to.duplicate()?.map_or(To::Nowhere, To::Descriptor),
            },
            heard: Mutex::default(),
            passing: Mutex::default(),
        });
        relay()?.add(&tail)?;
        Ok((tail, writer.into()))
    }

    /// The last that was written. To be called when the child has ended.
    pub(crate) fn text(&self) -> Option<String> {
        self.read(16 * STEP);
        let heard = self.heard.lock();
        let text = String::from_utf8_lossy(&heard.kept).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Passes on what there is; may take as long as whoever reads it takes.
    pub(crate) fn flush(&self) {
        self.read(16 * STEP);
        self.pass();
    }

    /// Reads up to `most` bytes without waiting. Whether more can come.
    fn read(&self, most: usize) -> bool {
        let mut heard = self.heard.lock();
        let mut buffer = [0; 4096];
        let mut read = 0;
        while read < most && !heard.ended {
            match rustix::io::read(&self.pipe, &mut buffer) {
                Ok(0) => heard.ended = true,
                Ok(length) => {
                    read += length;
                    heard.take(&buffer[..length], !matches!(self.to, To::Nowhere));
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => heard.ended = true,
            }
        }
        !heard.ended
    }

    fn pass(&self) {
        let _in_order = self.passing.lock();
        let bytes = std::mem::take(&mut self.heard.lock().backlog);
        if bytes.is_empty() {
            return;
        }
        // What cannot be written has nowhere to go; the tail is kept all the same.
        match &self.to {
            To::Nowhere => {}
            To::Ours => {
                let mut stderr = std::io::stderr().lock();
                write_all(&mut stderr, rustix::stdio::stderr(), &bytes);
            }
            To::Descriptor(descriptor) => {
                let mut file = Raw(descriptor.as_fd());
                write_all(&mut file, descriptor.as_fd(), &bytes);
            }
        }
    }
}

impl Heard {
    fn take(&mut self, bytes: &[u8], pass_on: bool) {
        self.kept.extend_from_slice(bytes);
        if self.kept.len() > 2 * KEPT {
            self.kept.drain(..self.kept.len() - KEPT);
        }
        if pass_on {
            self.backlog.extend_from_slice(bytes);
        }
    }
}

struct Raw<'a>(BorrowedFd<'a>);

impl Write for Raw<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(rustix::io::write(self.0, bytes)?)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Writes all, waiting for room where the descriptor itself would not.
fn write_all(to: &mut impl Write, descriptor: BorrowedFd<'_>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match to.write(bytes) {
            Ok(0) => return,
            Ok(length) => bytes = &bytes[length..],
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                let _ = poll(
                    &mut [PollFd::from_borrowed_fd(descriptor, PollFlags::OUT)],
                    None,
                );
            }
            Err(_) => return,
        }
    }
}

/// The thread that empties the pipes.
struct Relay {
    pid: u32,
    epoll: OwnedFd,
    tails: Mutex<(u64, HashMap<u64, Arc<Tail>>)>,
}

static RELAY: Mutex<Option<Arc<Relay>>> = Mutex::new(None);

fn relay() -> Result<Arc<Relay>, BoxError> {
    let mut current = RELAY.lock();
    let pid = std::process::id();
    if let Some(relay) = current.as_ref().filter(|relay| relay.pid == pid) {
        return Ok(Arc::clone(relay));
    }
    let relay = Arc::new(Relay {
        pid,
        epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
        tails: Mutex::default(),
    });
    let served = Arc::clone(&relay);
    thread::Builder::new()
        .name("stderr-relay".to_owned())
        .spawn(move || served.serve())?;
    *current = Some(Arc::clone(&relay));
    Ok(relay)
}

impl Relay {
    fn add(&self, tail: &Arc<Tail>) -> Result<(), Errno> {
        let mut tails = self.tails.lock();
        let id = tails.0;
        tails.0 += 1;
        epoll::add(
            &self.epoll,
            &tail.pipe,
            epoll::EventData::new_u64(id),
            epoll::EventFlags::IN,
        )?;
        tails.1.insert(id, Arc::clone(tail));
        Ok(())
    }

    fn serve(&self) {
        let mut events = Vec::with_capacity(16);
        loop {
            events.clear();
            match epoll::wait(
                &self.epoll,
                rustix::buffer::spare_capacity(&mut events),
                None,
            ) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "what workers write to their stderr is not passed on any more");
                    return;
                }
            }
            for event in &events {
                let id = event.data.u64();
                let Some(tail) = self.tails.lock().1.get(&id).cloned() else {
                    continue;
                };
                let more = tail.read(STEP);
                tail.pass();
                if !more {
                    let _ = epoll::delete(&self.epoll, &tail.pipe);
                    self.tails.lock().1.remove(&id);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn the_end_is_kept_and_all_of_it_is_passed_on_in_order() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let (tail, child) = Tail::new(&writer.into()).unwrap();
        let text: String = (0..5000).map(|line| format!("line {line}\n")).collect();
        let copy = text.clone();
        let writing = thread::spawn(move || {
            std::fs::File::from(child)
                .write_all(copy.as_bytes())
                .unwrap();
        });
        let passing = {
            let tail = Arc::clone(&tail);
            thread::spawn(move || {
                writing.join().unwrap();
                tail.flush();
                assert!(tail.text().unwrap().ends_with("line 4999"));
                assert!(tail.text().unwrap().len() <= 2 * KEPT);
            })
        };
        let mut passed = vec![0; text.len()];
        reader.read_exact(&mut passed).unwrap();
        assert!(passed == text.as_bytes());
        passing.join().unwrap();
    }

    #[test]
    fn what_goes_nowhere_is_kept_all_the_same() {
        let (tail, child) = Tail::new(&Output::Null).unwrap();
        std::fs::File::from(child).write_all(b"why\n").unwrap();
        assert_eq!(tail.text().as_deref(), Some("why"));
        assert!(tail.heard.lock().backlog.is_empty());
    }
}
