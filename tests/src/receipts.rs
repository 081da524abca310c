//! Receipts: what processes have sent and taken, written so that SIGKILL cannot take it back.
//!
//! Each is one `write` to a file in memory that the test's process holds; the others open it by way of /proc. What a
//! process did last before it was killed may be missing, and nothing else.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// The file, in the process that reads it.
#[derive(Debug)]
pub struct Receipts(File);

/// A way to the file for other processes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Writer(PathBuf);

/// Where one process writes.
#[derive(Debug)]
pub struct Pen(File);

impl Receipts {
    /// An empty file.
    ///
    /// # Panics
    /// When the system gives none.
    #[must_use]
    pub fn new() -> Self {
        let file = rustix::fs::memfd_create("receipts", rustix::fs::MemfdFlags::CLOEXEC);
        Self(file.expect("a file in memory").into())
    }

    /// For the processes that are to write.
    #[must_use]
    pub fn writer(&self) -> Writer {
        let (pid, fd) = (std::process::id(), self.0.as_raw_fd());
        Writer(format!("/proc/{pid}/fd/{fd}").into())
    }

    /// Everything written so far.
    ///
    /// # Panics
    /// When it cannot be read.
    #[must_use]
    pub fn read(&self) -> Account {
        let path = format!("/proc/self/fd/{}", self.0.as_raw_fd());
        let text = std::fs::read_to_string(path).expect("the receipts");
        let mut account = Account::default();
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            let number = |at: usize| words[at].parse::<u64>().expect("a number");
            match words[0] {
                "sent" => assert!(
                    account.sent.insert((number(1), number(2))),
                    "sent twice: {line}"
                ),
                _ => account
                    .taken
                    .entry(number(3))
                    .or_default()
                    .push((number(1), number(2))),
            }
        }
        account
    }

    /// How many receipts there are: a line each, all of one length.
    ///
    /// # Panics
    /// When the file is gone.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.0.metadata().expect("the receipts' size").len() / LINE
    }
}

impl Default for Receipts {
    fn default() -> Self {
        Self::new()
    }
}

const LINE: u64 = 24;

impl Writer {
    /// Opens the file.
    ///
    /// # Panics
    /// When the process that reads it is gone.
    #[must_use]
    pub fn open(&self) -> Pen {
        let file = OpenOptions::new().append(true).open(&self.0);
        Pen(file.expect("the receipts of a living process"))
    }
}

impl Pen {
    /// This message was put.
    pub fn sent(&mut self, producer: u64, number: u64) {
        self.write(format_args!("sent  {producer:03} {number:06}"));
    }

    /// This message was taken by that consumer.
    pub fn taken(&mut self, producer: u64, number: u64, consumer: u64) {
        self.write(format_args!(
            "taken {producer:03} {number:06} {consumer:03}"
        ));
    }

    fn write(&mut self, line: std::fmt::Arguments<'_>) {
        let line = format!("{:<1$}\n", line.to_string(), LINE as usize - 1);
        self.0
            .write_all(line.as_bytes())
            .expect("a write to memory");
    }
}

/// What was sent, and what was taken by whom in which order; a message is a producer and a number.
#[derive(Debug, Default)]
pub struct Account {
    /// Messages whose put returned.
    pub sent: BTreeSet<(u64, u64)>,
    /// What each consumer took, in order.
    pub taken: BTreeMap<u64, Vec<(u64, u64)>>,
}

impl Account {
    /// Every message that was taken, by whomever.
    ///
    /// # Panics
    /// When one was taken twice.
    #[must_use]
    pub fn taken_once(&self) -> BTreeSet<(u64, u64)> {
        let mut all = BTreeSet::new();
        for &message in self.taken.values().flatten() {
            assert!(
                all.insert(message),
                "{message:?} was delivered twice: {self:?}"
            );
        }
        all
    }

    /// Whether each consumer took each producer's messages in order.
    #[must_use]
    pub fn in_order(&self) -> bool {
        self.taken.values().all(|taken| {
            let producers: BTreeSet<u64> = taken.iter().map(|&(producer, _)| producer).collect();
            producers.into_iter().all(|producer| {
                let of_one = taken.iter().filter(|&&(from, _)| from == producer);
                of_one.is_sorted()
            })
        })
    }
}
