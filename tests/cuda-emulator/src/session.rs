//! What a test sees of the emulated machine: counts of calls, reports, what is there, and a brake for all streams.

use std::fs::File;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::board::{Board, Kind};
use crate::calls;

/// The emulated machine, as all processes of a test share it.
#[derive(Clone, Copy)]
pub struct Session {
    board: &'static Board,
    file: &'static File,
    is_emulated: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("live", &self.live())
            .finish()
    }
}

/// One thing that went wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// What it is about.
    pub kind: Kind,
    /// The process that reported it.
    pub pid: u32,
    /// What, where, by whom.
    pub text: String,
}

/// How often each call was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Calls([u64; calls::COUNT]);

/// What is there of all processes that live.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    /// Processes that have started the driver.
    pub processes: usize,
    /// Pieces of memory.
    pub allocations: usize,
    /// Their bytes.
    pub bytes: u64,
    /// Memory that processes have open which did not make it.
    pub imports: usize,
    /// Events.
    pub events: usize,
    /// Streams, each process's default ones included.
    pub streams: usize,
}

impl Session {
    pub(crate) fn new(board: &'static Board, file: &'static File) -> Self {
        Self {
            board,
            file,
            is_emulated: true,
        }
    }

    /// Nothing is seen of a real driver: all counts are zero, and nothing is ever reported.
    pub(crate) fn of_a_real_driver((board, file): (&'static Board, &'static File)) -> Self {
        Self {
            board,
            file,
            is_emulated: false,
        }
    }

    /// Whether the driver is the emulated one, so that there is something to see here.
    #[must_use]
    pub fn is_emulated(&self) -> bool {
        self.is_emulated
    }

    /// Ends the test's process where the driver is a real one, with the exit code (77) by which a harness knows that it was
    /// skipped. What only the emulated driver can show calls this by itself: counts of calls, and holding streams back.
    pub fn only_emulated(&self) {
        if !self.is_emulated {
            println!("needs the emulated driver");
            std::process::exit(77);
        }
    }

    /// The processes that have started the driver and live, in the order in which they did.
    #[must_use]
    pub fn processes(&self) -> Vec<u32> {
        let mut tables = self.board.lock();
        tables.bury(self.board, self.file);
        let mut people: Vec<_> = tables
            .processes
            .iter()
            .filter(|person| person.pid != 0)
            .collect();
        people.sort_unstable_by_key(|person| person.serial);
        people.iter().map(|person| person.pid).collect()
    }

    /// The calls of all processes so far. Not on a real driver ([`only_emulated`](Self::only_emulated)).
    #[must_use]
    pub fn calls(&self) -> Calls {
        self.only_emulated();
        let tables = self.board.lock();
        let mut sum = Calls(tables.past_calls);
        for (row, _) in tables
            .processes
            .iter()
            .enumerate()
            .filter(|(_, person)| person.pid != 0)
        {
            sum.add(self, row);
        }
        sum
    }

    /// The calls of one process so far; none when it is gone, or has not started the driver.
    #[must_use]
    pub fn calls_of(&self, pid: u32) -> Calls {
        self.only_emulated();
        let tables = self.board.lock();
        let mut sum = Calls([0; calls::COUNT]);
        for (row, _) in tables
            .processes
            .iter()
            .enumerate()
            .filter(|(_, person)| person.pid == pid)
        {
            sum.add(self, row);
        }
        sum
    }

    /// What was reported so far. Beyond 512 reports, only the first are kept.
    #[must_use]
    pub fn reports(&self) -> Vec<Report> {
        let tables = self.board.lock();
        let (_, entries) = tables.log.read();
        entries
            .map(|entry| Report {
                kind: entry.kind(),
                pid: entry.pid,
                text: entry.text(),
            })
            .collect()
    }

    /// The reports of one kind.
    #[must_use]
    pub fn reports_of(&self, kind: Kind) -> Vec<Report> {
        let mut reports = self.reports();
        reports.retain(|report| report.kind == kind);
        reports
    }

    /// Races, accesses to freed memory, and memory that was freed while in use: what must never be there.
    #[must_use]
    pub fn faults(&self) -> Vec<Report> {
        let mut reports = self.reports();
        reports.retain(|report| {
            matches!(
                report.kind,
                Kind::Race | Kind::UseAfterFree | Kind::FreedWhileOpen
            )
        });
        reports
    }

    /// Forgets the reports.
    pub fn clear_reports(&self) {
        self.board.lock().log.clear();
    }

    /// Holds all streams of all processes back: operations are issued, and none is done. Not on a real driver.
    pub fn hold(&self) {
        self.only_emulated();
        self.board.words.set_hold(true);
    }

    /// Lets them go on.
    pub fn let_go(&self) {
        self.board.words.set_hold(false);
    }

    /// Waits until the streams of all processes are done with what they have to do, so that a test does not depend on who is
    /// first. On a real driver it does nothing. A stream that waits for the dead never is.
    pub fn settle(&self) {
        while self.is_emulated && !self.is_settled() {
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    fn is_settled(&self) -> bool {
        let mut tables = self.board.lock();
        tables.bury(self.board, self.file);
        let mut streams = tables.streams.iter().enumerate();
        streams.all(|(slot, stream)| {
            stream.owner == 0 || self.board.words.has_done(slot, stream.issued)
        })
    }

    /// What is there, after a driver took back what dead processes had.
    #[must_use]
    pub fn live(&self) -> Live {
        let mut tables = self.board.lock();
        tables.bury(self.board, self.file);
        let mut live = Live {
            processes: tables
                .processes
                .iter()
                .filter(|person| person.pid != 0)
                .count(),
            streams: tables
                .streams
                .iter()
                .filter(|stream| stream.owner != 0)
                .count(),
            ..Live::default()
        };
        for event in tables.known_events() {
            live.events += usize::from(tables.events[event].live);
        }
        for index in tables.known_allocations() {
            let it = &tables.allocations[index];
            if it.live {
                live.allocations += 1;
                live.bytes += it.size;
                live.imports += it.importers.iter().filter(|&&count| count > 0).count();
            }
        }
        live
    }
}

impl Calls {
    fn add(&mut self, session: &Session, row: usize) {
        let counts = &session.board.words.processes[row].calls;
        for (sum, count) in self.0.iter_mut().zip(counts) {
            *sum += count.load(Ordering::Relaxed);
        }
    }

    /// How often that symbol was called.
    ///
    /// # Panics
    /// When the library has no such symbol: a test that asks for it would count nothing.
    #[must_use]
    pub fn of(&self, symbol: &str) -> u64 {
        let index = calls::NAMES.iter().position(|&name| name == symbol);
        self.0[index.unwrap_or_else(|| panic!("the emulated driver has no {symbol}"))]
    }

    /// What was called since an earlier count, by name; calls that were not made are left out.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Vec<(&'static str, u64)> {
        let differences = self
            .0
            .iter()
            .zip(&earlier.0)
            .map(|(now, then)| now.saturating_sub(*then));
        let named = calls::NAMES.iter().copied().zip(differences);
        named.filter(|(_, count)| *count > 0).collect()
    }
}
