//! This process as a user of the driver: started once, refused after a fork, and what each call passes through.

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::mem::ManuallyDrop;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicI32, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::board::{self, Access, Board, Kind, Ticket};
use crate::calls::Call;
use crate::code::{self, Answer, refuse};
use crate::context::Context;
use crate::event::Event;
use crate::host::Pinned;
use crate::knobs::{self, Knobs};
use crate::space::Space;
use crate::stream::Stream;
use crate::vmm::{Segment, Virtual};

/// The process, from `cuInit` on.
pub(crate) struct Process {
    pub(crate) pid: u32,
    pub(crate) file: File,
    pub(crate) board: &'static Board,
    /// Where device memory is mapped, for the streams.
    pub(crate) heap: usize,
    /// The row in the board's table.
    pub(crate) row: usize,
    pub(crate) knobs: Knobs,
    /// Of each device, the error that all calls get from now on.
    sticky: [AtomicI32; board::DEVICES],
    serial: AtomicU32,
    local: Mutex<Local>,
}

/// What this process has, under its own lock. The order of locks is: this, a stream's queue, the board.
pub(crate) struct Local {
    handles: usize,
    pub(crate) contexts: [Context; board::DEVICES],
    pub(crate) streams: HashMap<usize, Arc<Stream>>,
    /// Handles of streams that were destroyed, to be given out again.
    pub(crate) free_handles: Vec<usize>,
    /// What blocking streams had to do, by their device, when they were destroyed.
    pub(crate) destroyed: Vec<(usize, Ticket)>,
    pub(crate) events: HashMap<usize, Event>,
    pub(crate) space: Space,
    pub(crate) pinned: BTreeMap<usize, Pinned>,
    pub(crate) virtuals: HashMap<u64, Virtual>,
    /// What is mapped at reserved addresses.
    pub(crate) mapped: HashMap<u64, Arc<Segment>>,
}

static PROCESS: OnceLock<Process> = OnceLock::new();

thread_local! {
    /// The thread's stack of current contexts. Never dropped: a thread may use the driver where its other values are.
    pub(crate) static CURRENT: RefCell<ManuallyDrop<Vec<usize>>> =
        const { RefCell::new(ManuallyDrop::new(Vec::new())) };
}

/// Starts the driver in this process, if it is not.
pub(crate) fn start() -> Answer {
    static STARTING: Mutex<()> = Mutex::new(());
    let _one = STARTING.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(process) = PROCESS.get() {
        return process.check_fork();
    }
    let knobs = Knobs::from_environment();
    if knobs.devices.is_empty() {
        return refuse(
            code::NO_DEVICE,
            "no device is there, or visible to this process",
        );
    }
    let process = Process::new(knobs).map_err(|error| code::Refusal {
        code: code::OPERATING_SYSTEM,
        why: format!("the board of the emulated devices: {error}").into(),
    })?;
    if PROCESS.set(process).is_ok() {
        crate::exit::at_exit();
    }
    Ok(())
}

/// The process, when it has started the driver and is not a fork of one that had.
pub(crate) fn started() -> Option<&'static Process> {
    PROCESS
        .get()
        .filter(|process| process.pid == std::process::id())
}

/// What each call of the driver goes through: is the driver there, is this call made to fail, and a count and a report.
pub(crate) fn enter(call: Call, body: impl FnOnce(&'static Process) -> Answer) -> i32 {
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let Some(process) = PROCESS.get() else {
            return Err(code::Refusal {
                code: code::NOT_INITIALIZED,
                why: "cuInit was not called".into(),
            });
        };
        process.check_fork()?;
        process.count(call)?;
        body(process)
    }));
    let refusal = match outcome {
        Ok(Ok(())) => return code::SUCCESS,
        Ok(Err(refusal)) => refusal,
        Err(_) => code::Refusal {
            code: code::UNKNOWN,
            why: "the emulator panicked".into(),
        },
    };
    if refusal.code != code::NOT_READY
        && let Some(process) = started()
    {
        let name = code::name(refusal.code).map_or("a code that no list has".into(), |name| {
            name.to_string_lossy()
        });
        process.report(
            Kind::Refused,
            &format!(
                "{}: {} ({name}): {}",
                call.name(),
                refusal.code,
                refusal.why
            ),
        );
    }
    refusal.code
}

/// The same for calls that do not need the driver to be started.
pub(crate) fn enter_plain(body: impl FnOnce() -> Answer) -> i32 {
    let answer = catch_unwind(AssertUnwindSafe(body));
    answer.map_or(code::UNKNOWN, |answer| {
        answer.err().map_or(code::SUCCESS, |refusal| refusal.code)
    })
}

impl Process {
    fn new(knobs: Knobs) -> std::io::Result<Self> {
        let (file, board) = match std::env::var(knobs::BOARD) {
            Ok(path) => Board::open(&path)?,
            Err(_) => Board::create()?,
        };
        let heap = board::map_heap(&file)?;
        let entered = board.lock().enter(board, &file);
        let (row, serial) = entered.map_err(|refusal| std::io::Error::other(refusal.why))?;
        Ok(Self {
            pid: std::process::id(),
            board,
            heap,
            row,
            knobs,
            sticky: Default::default(),
            serial: AtomicU32::new(0),
            local: Mutex::new(Local {
                handles: 0,
                contexts: Default::default(),
                streams: HashMap::new(),
                free_handles: Vec::new(),
                destroyed: Vec::new(),
                events: HashMap::new(),
                space: Space::new(serial)?,
                pinned: BTreeMap::new(),
                virtuals: HashMap::new(),
                mapped: HashMap::new(),
            }),
            file,
        })
    }

    fn check_fork(&self) -> Answer {
        match self.pid == std::process::id() {
            true => Ok(()),
            false => refuse(
                code::NOT_INITIALIZED,
                format!(
                    "process {} was forked from {}, which had started the driver",
                    std::process::id(),
                    self.pid
                ),
            ),
        }
    }

    fn count(&self, call: Call) -> Answer {
        let count = &self.board.words.processes[self.row].calls[usize::from(call.0)];
        let nth = count.fetch_add(1, Ordering::Relaxed) + 1;
        let of_all = self.serial.fetch_add(1, Ordering::Relaxed) + 1;
        for failure in &self.knobs.failures {
            let nth = match &*failure.call {
                knobs::ANY => u64::from(of_all),
                name if name == call.name() => nth,
                _ => continue,
            };
            if failure.is_it(nth) {
                return refuse(failure.code, "a knob makes this call fail");
            }
        }
        if let Some(time) = self.knobs.begins_after(call.name()) {
            std::thread::sleep(time);
        }
        Ok(())
    }

    pub(crate) fn local(&self) -> MutexGuard<'_, Local> {
        self.local.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn report(&self, kind: Kind, text: &str) {
        self.board.lock().log.add(kind, text);
    }

    /// From now on each call that uses the device is answered by that code.
    pub(crate) fn break_device(&self, device: usize, code: i32) {
        self.sticky[device].store(code, Ordering::Relaxed);
    }

    /// Whether the device still works.
    pub(crate) fn check_device(&self, device: usize) -> Answer {
        match self.sticky[device].load(Ordering::Relaxed) {
            0 => Ok(()),
            code => refuse(
                code,
                format!("an earlier operation broke the context of device {device}"),
            ),
        }
    }

    pub(crate) fn mend_device(&self, device: usize) {
        self.sticky[device].store(0, Ordering::Relaxed);
    }

    /// The device's number here, as the board counts them.
    pub(crate) fn device(&self, ordinal: i32) -> Answer<usize> {
        let device = usize::try_from(ordinal)
            .ok()
            .and_then(|at| self.knobs.devices.get(at));
        match device {
            Some(&device) => Ok(device),
            None => refuse(
                code::INVALID_DEVICE,
                format!("device {ordinal} of {}", self.knobs.devices.len()),
            ),
        }
    }

    /// The other way round. A device that this process does not see has no number here.
    pub(crate) fn ordinal(&self, device: usize) -> i32 {
        let at = self.knobs.devices.iter().position(|&it| it == device);
        at.map_or(-1, |at| at as i32)
    }

    /// Where the caller is, for reports. The stream's operation is filled in when it is issued.
    pub(crate) fn place(&self, call: Call) -> Access {
        let mut name = [0; 16];
        // Asked of the kernel: this library's std did not start the thread, and does not know it.
        let text = rustix::thread::name().unwrap_or_default();
        let text = text.as_bytes();
        name[..text.len().min(16)].copy_from_slice(&text[..text.len().min(16)]);
        Access {
            stream: 0,
            call: call.0,
            sequence: 0,
            pid: self.pid,
            serial: self.serial.load(Ordering::Relaxed),
            thread: name,
        }
    }
}

impl Local {
    /// A number that no other object of this process ever has, and that is nobody's address.
    pub(crate) fn handle(&mut self) -> usize {
        self.handles += 1;
        0x0e00_0000_0000_0000 | (self.handles << 4)
    }
}
