//! Streams: a thread each that works through a queue, so that a missing wait shows.
//!
//! An operation gets its number, its clock and its checks when it is issued; its thread does the work later.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;

use crate::board::{Clock, Kind, Progress, Ticket, Touch, What};
use crate::calls::Call;
use crate::code::{self, Answer, refuse};
use crate::process::{Local, Process};
use crate::raw::{self, HostFunction};
use crate::space::Target;

/// The flag of a stream that takes no part in the default stream's order.
const NON_BLOCKING: u32 = 1;

pub(crate) struct Stream {
    pub(crate) device: usize,
    pub(crate) slot: usize,
    generation: u32,
    /// No other stream of the process ever has it.
    pub(crate) id: u64,
    /// Whether it waits for the default stream, and the other way round.
    pub(crate) blocking: bool,
    queue: Mutex<Queue>,
    ready: Condvar,
}

#[derive(Default)]
struct Queue {
    items: VecDeque<Item>,
    closed: bool,
}

struct Item {
    sequence: u32,
    /// What has to be finished first.
    after: Vec<Ticket>,
    work: Work,
}

/// Bytes that a stream reads or writes.
#[derive(Debug)]
pub(crate) enum Place {
    Device(Target, u64),
    Host(usize),
    /// The host's bytes as they were when the call was made.
    Staged(Vec<u8>),
}

/// How a stream compares a word with the value it waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Until {
    AtLeast,
    Equal,
    AnyBit,
    NotAllBits,
}

#[derive(Debug)]
pub(crate) enum Work {
    /// Only the order matters.
    Nothing,
    Copy {
        to: Place,
        from: Place,
        len: usize,
    },
    Fill {
        to: Place,
        pattern: Vec<u8>,
        len: usize,
    },
    Call(HostFunction, usize),
    Free(Target),
    Store {
        to: Place,
        value: u64,
        wide: bool,
    },
    Await {
        at: Place,
        value: u64,
        wide: bool,
        until: Until,
    },
}

/// An operation that is about to be issued.
#[derive(Debug)]
pub(crate) struct Issue {
    pub(crate) call: Call,
    pub(crate) work: Work,
    /// Device bytes that it touches.
    pub(crate) touches: Vec<(Target, (u64, u64), Touch)>,
    /// What it has to come after, besides what its stream did.
    pub(crate) after: Option<(Ticket, Clock)>,
}

impl Issue {
    pub(crate) fn new(call: Call, work: Work) -> Self {
        Self {
            call,
            work,
            touches: Vec::new(),
            after: None,
        }
    }
}

impl Stream {
    pub(crate) fn open(process: &'static Process, device: usize, flags: u32) -> Answer<Arc<Self>> {
        let (slot, generation) = process
            .board
            .lock()
            .open_stream(process.board, process.row)?;
        static IDS: AtomicU64 = AtomicU64::new(1);
        let stream = Arc::new(Self {
            device,
            slot,
            generation,
            id: IDS.fetch_add(1, Ordering::Relaxed),
            blocking: flags & NON_BLOCKING == 0,
            queue: Mutex::default(),
            ready: Condvar::new(),
        });
        let working = Arc::clone(&stream);
        let thread = thread::Builder::new().name(format!("emulated-{slot}"));
        match thread.spawn(move || working.run(process)) {
            Ok(_) => Ok(stream),
            Err(error) => {
                process.board.lock().streams[slot].owner = 0;
                refuse(
                    code::OUT_OF_MEMORY,
                    format!("a thread for the stream: {error}"),
                )
            }
        }
    }

    pub(crate) fn flags(&self) -> u32 {
        if self.blocking { 0 } else { NON_BLOCKING }
    }

    /// No more comes. What was issued is still done.
    pub(crate) fn close(&self) {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.closed = true;
        self.ready.notify_one();
    }

    /// Where the stream stands now: its latest operation, and the clock after it.
    pub(crate) fn latest(&self, process: &Process) -> (Ticket, Clock) {
        let tables = process.board.lock();
        let row = &tables.streams[self.slot];
        (self.ticket(row.issued), row.clock)
    }

    fn ticket(&self, sequence: u32) -> Ticket {
        Ticket {
            stream: self.slot as u16,
            generation: self.generation,
            sequence,
        }
    }

    fn run(&self, process: &'static Process) {
        raw::block_signals();
        while let Some(item) = self.next() {
            for ticket in item.after {
                process.wait_ticket(ticket);
            }
            process.board.words.pass_hold();
            if !matches!(item.work, Work::Nothing) && !process.knobs.delay.is_zero() {
                thread::sleep(process.knobs.delay);
            }
            if process.check_device(self.device).is_ok() {
                self.work(process, item.work);
            }
            process.board.words.finish(self.slot, item.sequence);
        }
        process.board.lock().streams[self.slot].owner = 0;
    }

    fn next(&self) -> Option<Item> {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(item) = queue.items.pop_front() {
                return Some(item);
            }
            if queue.closed {
                return None;
            }
            queue = self
                .ready
                .wait(queue)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn work(&self, process: &Process, work: Work) {
        let find = |place: &Place| match place {
            Place::Device(target, offset) => self.find(process, target, *offset),
            Place::Host(at) => Some(*at),
            Place::Staged(bytes) => Some(bytes.as_ptr() as usize),
        };
        match work {
            Work::Nothing => {}
            Work::Copy { to, from, len } => {
                if let (Some(to), Some(from)) = (find(&to), find(&from)) {
                    raw::copy(to, from, len);
                }
            }
            Work::Fill { to, pattern, len } => {
                if let Some(to) = find(&to) {
                    raw::fill(to, &pattern, len);
                }
            }
            Work::Call(function, data) => {
                function(std::ptr::with_exposed_provenance_mut::<c_void>(data))
            }
            Work::Free(target) => crate::memory::release(process, target),
            Work::Store { to, value, wide } => {
                if let Some(to) = find(&to) {
                    raw::store_word(to, value, wide);
                }
            }
            Work::Await {
                at,
                value,
                wide,
                until,
            } => {
                while let Some(at) = find(&at)
                    && !until.holds(raw::load_word(at, wide), value, wide)
                {
                    thread::sleep(std::time::Duration::from_micros(50));
                }
            }
        }
    }

    /// The memory of a target, when it is still the same: a driver would read what is there now.
    fn find(&self, process: &Process, target: &Target, offset: u64) -> Option<usize> {
        if process.board.words.lives(target.index, target.generation) {
            return Some(target.data + offset as usize);
        }
        process.report(
            Kind::UseAfterFree,
            &format!(
                "stream {} of process {} works on an allocation of device {} that was freed in the meantime",
                self.slot, process.pid, target.device
            ),
        );
        process.break_device(self.device, code::ILLEGAL_ADDRESS);
        None
    }
}

impl Until {
    pub(crate) fn holds(self, word: u64, value: u64, wide: bool) -> bool {
        match self {
            Self::AtLeast if wide => word.wrapping_sub(value).cast_signed() >= 0,
            Self::AtLeast => (word as u32).wrapping_sub(value as u32).cast_signed() >= 0,
            Self::Equal => word == value,
            Self::AnyBit => word & value != 0,
            Self::NotAllBits if wide => !(word | value) != 0,
            Self::NotAllBits => !(word as u32 | value as u32) != 0,
        }
    }
}

impl Local {
    /// The stream of a handle; zero and 1 are the default stream of the current context's device.
    pub(crate) fn stream(
        &mut self,
        process: &'static Process,
        handle: usize,
        current: usize,
    ) -> Answer<Arc<Stream>> {
        if handle > 1 {
            return match self.streams.get(&handle) {
                Some(stream) => Ok(Arc::clone(stream)),
                None => refuse(
                    code::INVALID_HANDLE,
                    "the stream was destroyed, or never was one of this process",
                ),
            };
        }
        if let Some(stream) = &self.contexts[current].default_stream {
            return Ok(Arc::clone(stream));
        }
        let stream = Stream::open(process, current, 0)?;
        self.contexts[current].default_stream = Some(Arc::clone(&stream));
        Ok(stream)
    }

    /// All streams of a device.
    pub(crate) fn streams_of(&self, device: usize) -> Vec<Arc<Stream>> {
        let named = self
            .streams
            .values()
            .filter(|stream| stream.device == device);
        named
            .chain(&self.contexts[device].default_stream)
            .cloned()
            .collect()
    }

    fn is_default(&self, stream: &Arc<Stream>) -> bool {
        let default = self.contexts[stream.device].default_stream.as_ref();
        default.is_some_and(|default| Arc::ptr_eq(default, stream))
    }

    /// Streams whose work so far comes before what is put into this one next, though nobody says so: the legacy default
    /// stream comes after the blocking streams of its device, and they after it.
    fn before(&self, stream: &Arc<Stream>) -> Vec<&Arc<Stream>> {
        if self.is_default(stream) {
            let all = self.streams.values();
            return all
                .filter(|other| other.blocking && other.device == stream.device)
                .collect();
        }
        let default = self.contexts[stream.device].default_stream.as_ref();
        default.filter(|_| stream.blocking).into_iter().collect()
    }

    /// What the legacy default stream waits for, and the manual does not say that it comes after it: what is left of blocking
    /// streams that were destroyed.
    fn left_before(&self, stream: &Arc<Stream>) -> Vec<Ticket> {
        let left = self.destroyed.iter();
        left.filter(|(device, _)| *device == stream.device && self.is_default(stream))
            .map(|(_, ticket)| *ticket)
            .collect()
    }

    /// What has to be done before a stream is said to be done, besides its own work. The manual does not say whether that of
    /// the legacy default stream takes in what the blocking ones have to do: so it is waited for, and makes no order.
    fn unfinished(&self, process: &Process, stream: &Arc<Stream>) -> Vec<Ticket> {
        let blocking = self.before(stream).into_iter();
        let blocking = blocking.filter(|_| self.is_default(stream));
        let mut all: Vec<_> = blocking.map(|other| other.latest(process).0).collect();
        all.extend(self.left_before(stream));
        all
    }

    /// Issues an operation, with `then` told its ticket and its clock while the board is locked.
    pub(crate) fn issue(
        &self,
        process: &Process,
        stream: &Arc<Stream>,
        issue: Issue,
        then: impl FnOnce(&mut crate::board::Guard, Ticket, &Clock),
    ) -> (Ticket, Clock) {
        let others = self.before(stream);
        let mut after = self.left_before(stream);
        let mut queue = stream.queue.lock().unwrap_or_else(PoisonError::into_inner);
        let mut tables = process.board.lock();
        let mut clock = tables.streams[stream.slot].clock;
        clock.join(&tables.host);
        for other in others {
            let row = &tables.streams[other.slot];
            clock.join(&row.clock);
            after.push(other.ticket(row.issued));
        }
        if let Some((ticket, theirs)) = &issue.after {
            clock.join(theirs);
            after.push(*ticket);
        }
        let lenient = tables.streams[stream.slot].lenient;
        if lenient {
            tables.join_all(&mut clock);
        }
        let row = &mut tables.streams[stream.slot];
        row.issued = row.issued.wrapping_add(1).max(1);
        let sequence = row.issued;
        clock.set(stream.slot, sequence);
        row.clock = clock;
        if process.knobs.races && !lenient {
            let place = process.place(issue.call);
            let by = crate::board::Access {
                stream: stream.slot as u16,
                sequence,
                ..place
            };
            for (target, bytes, touch) in &issue.touches {
                if process.board.words.lives(target.index, target.generation) {
                    tables.touch(target.index, *bytes, *touch, by, &clock);
                }
            }
        }
        let ticket = stream.ticket(sequence);
        then(&mut tables, ticket, &clock);
        drop(tables);
        queue.items.push_back(Item {
            sequence,
            after,
            work: issue.work,
        });
        stream.ready.notify_one();
        (ticket, clock)
    }
}

impl Process {
    pub(crate) fn progress(&self, ticket: Ticket) -> Progress {
        let happen = self.knobs.dead_events_happen;
        let progress = self.board.words.progress(ticket, happen);
        if progress == Progress::Pending && happen {
            self.bury();
            return self.board.words.progress(ticket, happen);
        }
        progress
    }

    /// Waits for an operation. For one that never will be finished, for ever, as on a device.
    fn wait_ticket(&self, ticket: Ticket) {
        let happen = self.knobs.dead_events_happen;
        while !self.board.words.wait(ticket, happen) {
            if happen {
                self.bury();
            }
        }
    }

    fn bury(&self) {
        self.board.lock().bury(self.board, &self.file);
    }

    /// Waits for an operation, and knows then that all before it is finished.
    pub(crate) fn wait_for(&self, (ticket, clock): (Ticket, Clock)) {
        self.wait_ticket(ticket);
        self.board.lock().host.join(&clock);
    }

    /// Waits for everything that this process issued on a device.
    pub(crate) fn synchronize(&self, device: usize) {
        let streams = self.local().streams_of(device);
        for stream in streams {
            self.wait_for(stream.latest(self));
        }
    }

    /// Waits for everything in a stream.
    pub(crate) fn synchronize_stream(&'static self, handle: usize) -> Answer {
        let current = self.current()?;
        let mut local = self.local();
        let stream = local.stream(self, handle, current)?;
        let others = local.unfinished(self, &stream);
        drop(local);
        self.wait_for(stream.latest(self));
        others.into_iter().for_each(|other| self.wait_ticket(other));
        self.check_device(stream.device)
    }

    /// Whether everything in a stream is done.
    pub(crate) fn query_stream(&'static self, handle: usize) -> Answer {
        let current = self.current()?;
        let mut local = self.local();
        let stream = local.stream(self, handle, current)?;
        let others = local.unfinished(self, &stream);
        drop(local);
        let (ticket, clock) = stream.latest(self);
        let mut all = std::iter::once(ticket).chain(others);
        if all.any(|ticket| self.progress(ticket) != Progress::Done) {
            return refuse(code::NOT_READY, "the stream has work left");
        }
        self.board.lock().host.join(&clock);
        Ok(())
    }
}

/// Whether memory of that kind has its bytes in the board's file.
pub(crate) fn is_heap(what: u8) -> bool {
    what != What::Virtual as u8
}
