//! The end of what a child wrote to its stderr, kept for the error that tells of its death.
//!
//! The child's stderr is a pipe. One thread of this process empties these pipes, keeps the last [`KEPT`] bytes of each,
//! and passes everything on. It never waits for a reader: what would have to wait, or what cannot be asked not to, is
//! passed on by a thread of its own, so that it holds up no other. Whoever needs the end of the story (the supervisor,
//! when the child is gone) reads what is still in the pipe itself, so it waits for nobody; it leaves the passing on to
//! those threads. Whoever joins helps with it for a moment.

use std::collections::HashMap;
use std::io::{IoSlice, PipeReader};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Instant;

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, epoll, poll};
use rustix::fs::{FileType, OFlags};
use rustix::io::{Errno, ReadWriteFlags};

use crate::desk::STACK;
use crate::error::BoxError;
use crate::link::{self, Patience, apart};
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
    /// A thread of its own took what was to be passed on.
    taken: Condvar,
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
    /// A thread of its own passes on what comes.
    apart: bool,
}

/// How far what there is could be passed on without waiting.
#[derive(Debug)]
enum Passed {
    All,
    /// Its reader takes no more now.
    Full,
    /// Nobody can say beforehand whether it waits: a terminal, or a system that cannot be asked.
    Unsure,
}

impl Tail {
    /// A pipe whose end is kept; its writing end is for the child.
    pub(crate) fn new(to: &Output) -> Result<(Arc<Tail>, OwnedFd), BoxError> {
        let (reader, writer) = std::io::pipe()?;
        // In a program that closed a standard stream they would have its number.
        let reader = PipeReader::from(apart(reader.into())?);
        let writer = apart(writer.into())?;
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
            taken: Condvar::new(),
            passing: Mutex::default(),
        });
        watch(&tail)?;
        Ok((tail, writer))
    }

    /// The last that was written. To be called when the child has ended.
    pub(crate) fn text(&self) -> Option<String> {
        self.read(16 * STEP);
        let heard = self.heard.lock();
        let text = String::from_utf8_lossy(&heard.kept).trim().to_owned();
        (!text.is_empty()).then_some(text)
    }

    /// Passes on what there is, as far as whoever reads it takes it within a wait that may have begun before. The rest is
    /// passed on by a thread of ours: that of all tails knows of this one until all that came is passed on.
    pub(crate) fn flush(self: &Arc<Self>, wait: &mut Patience) {
        self.read(16 * STEP);
        loop {
            let Some(in_order) = self.passing.try_lock_until(wait.next()) else {
                if wait.is_over(Instant::now()) {
                    return;
                }
                continue;
            };
            match self.pass_at_once() {
                Passed::All => return,
                Passed::Full => {
                    let now = Instant::now();
                    if wait.is_over(now) {
                        return;
                    }
                    let left = wait.next().saturating_duration_since(now);
                    let Ok(left) = Timespec::try_from(left) else {
                        return;
                    };
                    let mut look = [PollFd::from_borrowed_fd(self.reader(), PollFlags::OUT)];
                    let _ = poll(&mut look, Some(&left));
                }
                Passed::Unsure => {
                    drop(in_order);
                    if self.pass_apart().is_err() {
                        return;
                    }
                    let mut heard = self.heard.lock();
                    while !heard.backlog.is_empty() {
                        let look = self.taken.wait_until(&mut heard, wait.next());
                        if look.timed_out() && wait.is_over(Instant::now()) {
                            return;
                        }
                    }
                }
            }
        }
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

    /// Passes on what there is, at the pace of whoever reads it.
    fn pass(&self) {
        let _in_order = self.passing.lock();
        let bytes = std::mem::take(&mut self.heard.lock().backlog);
        self.taken.notify_all();
        if !bytes.is_empty() {
            write_all(self.reader(), &bytes);
        }
    }

    /// Passes on what there is as far as that waits for nobody. For who holds `passing`.
    fn pass_at_once(&self) -> Passed {
        let mut heard = self.heard.lock();
        while !heard.backlog.is_empty() {
            match write_at_once(self.reader(), &heard.backlog) {
                Ok(0) => heard.backlog.clear(),
                Ok(written) => drop(heard.backlog.drain(..written)),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    let mut look = [PollFd::from_borrowed_fd(self.reader(), PollFlags::OUT)];
                    let room = poll(&mut look, Some(&Timespec::default())) != Ok(0);
                    return if room { Passed::Unsure } else { Passed::Full };
                }
                Err(Errno::NOTSUP | Errno::NOSYS | Errno::INVAL | Errno::PERM) => {
                    return Passed::Unsure;
                }
                // What cannot be written has nowhere to go; the tail is kept all the same.
                Err(_) => heard.backlog.clear(),
            }
        }
        Passed::All
    }

    /// Lets a thread of its own pass on all that comes.
    fn pass_apart(self: &Arc<Self>) -> std::io::Result<()> {
        let mut heard = self.heard.lock();
        if !heard.apart {
            let tail = Arc::clone(self);
            thread::Builder::new()
                .name("stderr-relay".to_owned())
                .stack_size(STACK)
                .spawn(move || {
                    let _serving = link::serve();
                    tail.keep_passing();
                })?;
            heard.apart = true;
        }
        Ok(())
    }

    /// Where it goes. Not by way of the standard library's lock: a program may hold that while it waits for its processes.
    fn reader(&self) -> BorrowedFd<'_> {
        match &self.to {
            To::Nowhere | To::Ours => rustix::stdio::stderr(),
            To::Descriptor(descriptor) => descriptor.as_fd(),
        }
    }

    /// Passes on all that comes, at the pace of whoever reads it, until nothing can come any more.
    fn keep_passing(&self) {
        loop {
            let more = self.read(STEP);
            self.pass();
            if !more {
                return;
            }
            let _ = poll(&mut [PollFd::new(&self.pipe, PollFlags::IN)], None);
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

/// Writes what can be written without waiting for a reader, whatever the flags of the descriptor, which is shared with
/// others. A look before a plain write would not do: another writer of the same pipe may fill it in between.
fn write_at_once(to: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize, Errno> {
    // A file has no reader to wait for; some file systems cannot be asked.
    if rustix::fs::fstat(to).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_file()) {
        return rustix::io::write(to, bytes);
    }
    // As `write` does, at the place where the descriptor is.
    let place = u64::MAX;
    rustix::io::pwritev2(to, &[IoSlice::new(bytes)], place, ReadWriteFlags::NOWAIT)
}

/// Writes all, waiting for room where the descriptor itself would not.
fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) {
    while !bytes.is_empty() {
        match rustix::io::write(to, bytes) {
            Ok(0) => return,
            Ok(length) => bytes = &bytes[length..],
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => {
                let mut look = [PollFd::from_borrowed_fd(to, PollFlags::OUT)];
                let _ = poll(&mut look, None);
            }
            Err(_) => return,
        }
    }
}

/// The thread that empties the pipes.
struct Relay {
    pid: u32,
    /// Whether its descriptor is still its own.
    open: AtomicBool,
    epoll: OwnedFd,
    tails: Mutex<(u64, HashMap<u64, Arc<Tail>>)>,
}

static RELAY: Mutex<Option<Arc<Relay>>> = Mutex::new(None);

fn relay() -> Result<Arc<Relay>, BoxError> {
    let mut current = RELAY.lock();
    let pid = std::process::id();
    if let Some(relay) = current
        .as_ref()
        .filter(|relay| relay.pid == pid && relay.open.load(Ordering::Acquire))
    {
        return Ok(Arc::clone(relay));
    }
    let relay = Arc::new(Relay {
        pid,
        open: AtomicBool::new(true),
        epoll: apart(epoll::create(epoll::CreateFlags::CLOEXEC)?)?,
        tails: Mutex::default(),
    });
    let served = Arc::clone(&relay);
    thread::Builder::new()
        .name("stderr-relay".to_owned())
        .stack_size(STACK)
        .spawn(move || served.serve())?;
    // The one before is never dropped: its descriptor was closed behind our back, or is that of the process that this one
    // was forked from. Its number may be somebody else's by now.
    std::mem::forget(current.replace(Arc::clone(&relay)));
    Ok(relay)
}

/// Has a tail read by the thread that empties the pipes, or by another one if the program closed what that one has.
fn watch(tail: &Arc<Tail>) -> Result<(), BoxError> {
    let served = relay()?;
    match served.add(tail) {
        Err(Errno::BADF | Errno::INVAL) => {
            served.give_up();
            Ok(relay()?.add(tail)?)
        }
        other => Ok(other?),
    }
}

impl Relay {
    fn give_up(&self) {
        // Release: pairs with the look of the next that needs one. The tails it knows of are not dropped: the numbers of
        // their pipes may be somebody else's, too.
        self.open.store(false, Ordering::Release);
        std::mem::take(&mut self.tails.lock().1)
            .into_values()
            .for_each(std::mem::forget);
    }

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
        let _serving = link::serve();
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
                    link::say!(error, %errno, "what workers that run write to their stderr is not passed on any more");
                    self.give_up();
                    return;
                }
            }
            for event in &events {
                let id = event.data.u64();
                let Some(tail) = self.tails.lock().1.get(&id).cloned() else {
                    continue;
                };
                let more = tail.read(STEP);
                // Somebody who has it for longer than a moment is its own thread.
                let passing = tail.passing.try_lock();
                let all = passing.is_some() && matches!(tail.pass_at_once(), Passed::All);
                drop(passing);
                if all && more && !tail.heard.lock().apart {
                    continue;
                }
                let _ = epoll::delete(&self.epoll, &tail.pipe);
                self.tails.lock().1.remove(&id);
                if all {
                    continue;
                }
                if let Err(error) = tail.pass_apart() {
                    link::say!(warn, %error, "what one worker writes to its stderr holds up what others do");
                    tail.keep_passing();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::time::Duration;

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
                tail.flush(&mut Patience::new(Duration::from_secs(1)));
                assert!(tail.text().unwrap().ends_with("line 4999"));
                assert!(tail.text().unwrap().len() <= 2 * KEPT);
            })
        };
        let mut passed = vec![0; text.len()];
        reader.read_exact(&mut passed).unwrap();
        assert!(passed == text.as_bytes());
        passing.join().unwrap();
    }

    /// A tail that passes on to there, and has something to pass on.
    fn full_tail(to: impl Into<Output>) -> Arc<Tail> {
        let (tail, child) = Tail::new(&to.into()).unwrap();
        std::fs::File::from(child).write_all(&TEXT).unwrap();
        tail
    }

    static TEXT: [u8; 60 << 10] = [b'x'; 60 << 10];

    #[test]
    fn those_that_fill_one_pipe_together_wait_for_its_reader_no_longer_than_they_want() {
        for _ in 0..20 {
            let (mut reader, writer) = std::io::pipe().unwrap();
            let writing: Vec<_> = (0..4)
                .map(|_| {
                    let tail = full_tail(writer.try_clone().unwrap());
                    thread::spawn(move || tail.flush(&mut Patience::new(Duration::from_millis(2))))
                })
                .collect();
            drop(writer);
            // Nobody reads meanwhile.
            writing.into_iter().for_each(|one| one.join().unwrap());
            // Nothing was lost all the same.
            let mut read = Vec::new();
            reader.read_to_end(&mut read).unwrap();
            assert_eq!(read.len(), 4 * TEXT.len());
        }
    }

    #[test]
    fn a_terminal_that_shows_nothing_holds_up_nobody() {
        use rustix::pty;
        let flags = pty::OpenptFlags::RDWR | pty::OpenptFlags::NOCTTY | pty::OpenptFlags::CLOEXEC;
        let screen = match pty::openpt(flags) {
            Ok(screen) => screen,
            Err(errno) => return eprintln!("skipped: no terminal can be made: {errno}"),
        };
        pty::grantpt(&screen).unwrap();
        pty::unlockpt(&screen).unwrap();
        let inside = pty::ioctl_tiocgptpeer(&screen, flags).unwrap();
        let tails = [full_tail(inside.try_clone().unwrap()), full_tail(inside)];
        for tail in &tails {
            tail.flush(&mut Patience::new(Duration::from_millis(2)));
            assert!(tail.text().unwrap().len() >= KEPT);
        }
        let mut shown = vec![0; 2 * TEXT.len()];
        std::fs::File::from(screen).read_exact(&mut shown).unwrap();
        tails.iter().for_each(|tail| {
            tail.flush(&mut Patience::new(Duration::from_secs(60)));
            assert!(tail.heard.lock().backlog.is_empty());
        });
    }

    #[test]
    fn what_goes_nowhere_is_kept_all_the_same() {
        let (tail, child) = Tail::new(&Output::Null).unwrap();
        std::fs::File::from(child).write_all(b"why\n").unwrap();
        assert_eq!(tail.text().as_deref(), Some("why"));
        assert!(tail.heard.lock().backlog.is_empty());
    }
}
