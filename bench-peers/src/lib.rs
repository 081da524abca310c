//! What the peers that carry messages have in common: one of two processes, the messages it exchanges with the other,
//! and the times that it takes. The same steps as `cargo xtask bench queue` takes with a queue of ours.
//!
//! The arguments are the side (`a` begins), the way to wait (`busy` or `parked`), the size of a message and a folder in
//! which both sides find each other. `ready` on stdout says that they did. Then each line of stdin is an order, samples
//! and round trips, and the answer is a line with the times that this side took, in nanoseconds.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::time::{ClockId, clock_gettime};

/// Whatever goes wrong ends the program with a message.
pub type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What each message begins with.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// Which message it is.
    pub number: u64,
    /// When it was put, by a clock that both sides share.
    pub stamp: u64,
}

/// Sends to the other side and receives from it.
pub trait Ends {
    /// Sends a message.
    fn put(&mut self, head: Head) -> Result<()>;
    /// Waits for the next message and verifies that it is whole.
    fn get(&mut self) -> Result<Head>;
}

/// What the arguments say.
#[derive(Debug)]
pub struct Setup {
    /// Whether this side begins.
    pub is_a: bool,
    /// Whether it sleeps until something comes.
    pub parked: bool,
    /// Of a message.
    pub bytes: usize,
    /// Where both sides find each other.
    pub folder: PathBuf,
}

impl Setup {
    fn from_args() -> Result<Self> {
        let args: Vec<String> = std::env::args().skip(1).collect();
        let [side, way, bytes, folder] = args.as_slice() else {
            return Err("the arguments are SIDE WAY BYTES FOLDER".into());
        };
        Ok(Self {
            is_a: side == "a",
            parked: way == "parked",
            bytes: bytes.parse()?,
            folder: folder.into(),
        })
    }

    /// What this side sends on, and what it receives from.
    pub fn names(&self) -> [&'static str; 2] {
        if self.is_a {
            ["ab", "ba"]
        } else {
            ["ba", "ab"]
        }
    }

    /// Where something of that name lies.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Tries until it succeeds: the other side makes it.
pub fn patiently<T, E: Into<Box<dyn Error>>>(
    mut attempt: impl FnMut() -> std::result::Result<T, E>,
) -> Result<T> {
    let start = Instant::now();
    loop {
        match attempt() {
            Ok(value) => return Ok(value),
            Err(error) if start.elapsed() > Duration::from_secs(20) => return Err(error.into()),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Waits until the other side has made this file.
pub fn wait_for(path: &Path) -> Result<()> {
    patiently(|| std::fs::metadata(path)).map(drop)
}

const WORD: usize = size_of::<u64>();

/// Writes head and last word of a message.
pub fn seal(bytes: &mut [u8], head: Head) {
    let last = bytes.len() - WORD;
    bytes[..WORD].copy_from_slice(&head.number.to_le_bytes());
    bytes[WORD..2 * WORD].copy_from_slice(&head.stamp.to_le_bytes());
    bytes[last..].copy_from_slice(&head.number.to_le_bytes());
}

/// Reads them.
pub fn open(bytes: &[u8], expected: usize) -> Result<Head> {
    let word = |at: usize| {
        let mut word = [0; WORD];
        word.copy_from_slice(&bytes[at..at + WORD]);
        u64::from_le_bytes(word)
    };
    if bytes.len() != expected || word(0) != word(expected - WORD) {
        return Err(format!("a message of {} bytes is not whole", bytes.len()).into());
    }
    Ok(Head {
        number: word(0),
        stamp: word(WORD),
    })
}

/// Does what is ordered until stdin ends.
pub fn serve<E: Ends>(connect: impl FnOnce(&Setup) -> Result<E>) -> Result<()> {
    // This side may spin or sleep for ever when the other one is gone.
    set_parent_process_death_signal(Some(Signal::KILL))?;
    let setup = Setup::from_args()?;
    let mut side = Side {
        ends: connect(&setup)?,
        is_a: setup.is_a,
        number: 0,
    };
    answer("ready")?;
    for line in std::io::stdin().lines() {
        let line = line?;
        let (samples, trips) = line.split_once(' ').ok_or("an order is two numbers")?;
        let (samples, trips) = (samples.parse::<usize>()?, trips.parse::<u64>()?);
        let mut times = Vec::new();
        for _ in 0..samples {
            side.number += 2;
            let took = match (setup.parked, setup.is_a) {
                (false, true) => Some(side.send_round(trips)?),
                (false, false) => side.send_back(trips)?,
                (true, true) => {
                    side.wake()?;
                    side.sleep()?
                }
                (true, false) => {
                    let took = side.sleep()?;
                    side.wake()?;
                    took
                }
            };
            times.extend(took.map(|took| took.to_string()));
        }
        answer(&times.join(" "))?;
    }
    Ok(())
}

fn answer(line: &str) -> Result<()> {
    println!("{line}");
    Ok(std::io::stdout().flush()?)
}

/// Nanoseconds of the monotonic clock, which is the same for all processes.
pub fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// How long the side whose turn it is waits until it hands over to one that should sleep.
const SETTLE_NS: u64 = 50_000;
/// A receiver that asked that long before the hand-over sleeps when it comes.
const ASLEEP_NS: u64 = 20_000;

struct Side<E> {
    ends: E,
    is_a: bool,
    number: u64,
}

impl<E: Ends> Side<E> {
    fn put(&mut self, stamp: u64) -> Result<()> {
        let number = self.number + u64::from(!self.is_a);
        self.ends.put(Head { number, stamp })
    }

    fn get(&mut self) -> Result<Head> {
        let due = self.number + u64::from(self.is_a);
        let head = self.ends.get()?;
        if head.number != due {
            return Err(format!("message {} arrived where {due} was due", head.number).into());
        }
        Ok(head)
    }

    fn send_round(&mut self, trips: u64) -> Result<u64> {
        // The first round trip says that the other side is there.
        self.put(0)?;
        self.get()?;
        let start = now();
        for _ in 0..trips {
            self.put(0)?;
            self.get()?;
        }
        Ok((now() - start) / (2 * trips))
    }

    fn send_back(&mut self, trips: u64) -> Result<Option<u64>> {
        for _ in 0..=trips {
            self.get()?;
            self.put(0)?;
        }
        Ok(None)
    }

    fn wake(&mut self) -> Result<()> {
        let end = now() + SETTLE_NS;
        while now() < end {
            std::hint::spin_loop();
        }
        self.put(now())
    }

    /// How long it took if this side slept.
    fn sleep(&mut self) -> Result<Option<u64>> {
        let asked = now();
        let head = self.get()?;
        let now = now();
        Ok((head.stamp > asked + ASLEEP_NS).then(|| now - head.stamp))
    }
}
