//! Names for what is in the arena: processes that attached to it find queues and tensors by them.
//!
//! The header names one object, and counts as a holder of it for as long as the arena exists. Its first array holds the
//! *table*: one message with all names, each with a reference to an object that holds the published value as a message.
//! Its second array holds a *token*; whoever has it in its hands (TAKING) may change the table. The table is never
//! changed in place: a new one is put behind it, and then the old one is taken out. So a process that is killed at any
//! step leaves a whole table, by the same rules as any queue: a token and an old table in its hands are handed back, a
//! half-written table is void, and of two whole ones the later counts.
//!
//! Who only looks needs no token (`look`), so nobody who changes the table delays it, stopped or not: it reads the
//! newest whole table where that lies, takes references of its own, and then sees whether the table is still there.
//!
//! A published value is read where it lies: whoever opens it takes references of its own to what the message holds,
//! which stays in its cell for as long as the name does. So what is exclusive can't be published.

use core::sync::atomic::Ordering;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::arena::Arena;
use crate::cells::{CellArray, Take};
use crate::error::{Error, ErrorKind, Result};
use crate::heap;
use crate::held::{self, Held};
use crate::layout::{LINE, counted, header};
use crate::line::{self, Counted};
use crate::message::{self, Arrived, Entries, Incoming, What, parse};
use crate::object::{Array, Object, ObjectKind};
use crate::transfer::{Get, Put};
use crate::word::{CellState, decode};

mod look;
mod types;

/// The array that holds the table, with room for tables that killed processes left half put.
const TABLES: usize = 0;
const ROOM: u32 = 16;
/// The array that holds the token.
const TOKEN: usize = 1;

/// How long whoever changes the table waits for another who does, before it gives up: it is for microseconds only.
const PATIENCE: Duration = Duration::from_secs(10);

/// How many names an error lists.
const LISTED: usize = 20;

/// A name in an arena, as [`Arena::published`] lists them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Published {
    /// The name.
    pub name: String,
    /// What the publisher's Rust calls the value's type.
    pub type_name: String,
    /// The process that published it, in its own pid namespace. It may be gone.
    pub pid: u32,
}

/// One name in the table.
#[derive(Debug, Serialize, Deserialize)]
struct Entry {
    name: String,
    type_name: String,
    pid: u32,
    /// [`types::build`] of who published it.
    build: u64,
    value: Object,
}

impl Arena {
    /// Gives a value a name by which any process in the arena can [open](Arena::open) it: a queue, an event, a shared
    /// tensor, or a value with such things in it.
    ///
    /// The name holds what the value refers to, whatever becomes of this process, until it is unpublished or the arena
    /// ends. A published queue counts as one of its senders and receivers, so its loops do not end before that.
    ///
    /// ```
    /// use shm_core::{Arena, SharedTensor, Tensor};
    ///
    /// let arena = Arena::current()?;
    /// let weights = Tensor::from_slice(3, &[1.0_f32, 2.0, 3.0])?.freeze();
    /// arena.publish("weights", &weights)?;
    /// // In any process that joined or attached:
    /// let found: SharedTensor<f32> = arena.open("weights")?;
    /// assert_eq!(found.as_slice(), [1.0, 2.0, 3.0]);
    /// arena.unpublish("weights")?;
    /// # Ok::<(), shm_core::Error>(())
    /// ```
    ///
    /// # Errors
    /// `AlreadyExists` when the name is taken ([`republish`](Self::republish) takes it over); `StillHeld` for what is
    /// exclusive, which can't be in two places; `Name` for an empty name or one of more than 255 bytes; what encoding a
    /// message and allocating can answer; `TimedOut` when a stopped process has the table in its hands.
    #[track_caller]
    pub fn publish<T: Serialize>(&self, name: &str, value: &T) -> Result<()> {
        self.put_name(name, value, false)
    }

    /// As [`publish`](Self::publish), in the place of what had the name before. Who opened that keeps it.
    ///
    /// # Errors
    /// As [`publish`](Self::publish), except `AlreadyExists`.
    #[track_caller]
    pub fn republish<T: Serialize>(&self, name: &str, value: &T) -> Result<()> {
        self.put_name(name, value, true)
    }

    #[track_caller]
    fn put_name<T: Serialize>(&self, name: &str, value: &T, anew: bool) -> Result<()> {
        let doing = format!("publishing {name:?}");
        if name.is_empty() || name.len() > 255 {
            return Err(Error::new(
                ErrorKind::Name,
                format!(
                    "{doing}: a name has 1 to 255 bytes, this one has {}",
                    name.len()
                ),
            ));
        }
        let mut message = message::encode(self, value).map_err(|failed| {
            match failed.error.kind() {
                ErrorKind::StillHeld => Error::new(
                    ErrorKind::StillHeld,
                    "the value holds an exclusive tensor (or lane end), which only one process can have; `freeze()` the tensor and publish that, or publish a \
                     queue and send the tensor through it",
                ),
                _ => failed.error,
            }
            .while_doing(&doing)
        })?;
        let stored = Object::create(
            self,
            ObjectKind::Published,
            [Array::Cells { capacity: 1 }, Array::None],
            0,
        )?;
        put(&stored, 0, &mut message)?;
        let names = find_or_make(self)?;
        let table = Table::lock(&names)?;
        let mut entries = table.read()?;
        let before = entries.iter().position(|entry| entry.name == name);
        if let Some(at) = before {
            if !anew {
                let Entry { type_name, pid, .. } = &entries[at];
                return Err(Error::new(
                    ErrorKind::AlreadyExists,
                    format!(
                        "{doing}: process {pid} has published a {type_name} by that name; unpublish it, or take it over with `republish`"
                    ),
                ));
            }
            entries.remove(at);
        }
        entries.push(Entry {
            name: name.to_owned(),
            type_name: std::any::type_name::<T>().to_owned(),
            pid: std::process::id(),
            build: types::build(),
            value: stored,
        });
        table.write(entries)
    }

    /// The value of that name. `T` must be what was published: what arrives is checked as in a message.
    ///
    /// # Errors
    /// `NotFound`, with the names that exist; `Decode` or `WrongMode` for another type, also if only a number or the
    /// elements of a queue's tensors are of another one, and, where this process runs the program that published it, if
    /// messages of a queue are of another type; `LeasesFull`. Elsewhere only `get` can tell of the latter.
    pub fn open<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let entries = entries(self)?;
        let Some(entry) = entries.iter().find(|entry| entry.name == name) else {
            return Err(unknown(name, &entries));
        };
        let array = entry.value.cells(0)?.0;
        let payload = whole(&array).pop().map(|(_, payload)| payload);
        let payload = payload.ok_or_else(damaged)?;
        // Our reference to the object keeps the message where it is.
        let value = copy_of(self, &payload)?.decode().map_err(|error| {
            error.while_doing(format_args!(
                "opening {name:?}, which process {} published as {}",
                entry.pid, entry.type_name
            ))
        })?;
        types::check::<T>(entry)?;
        Ok(value)
    }

    /// Takes a name away, and with it what it held. Who opened the value keeps it.
    ///
    /// # Errors
    /// `NotFound`, with the names that exist; `OutOfRoom`, `LeasesFull`, `TimedOut`.
    pub fn unpublish(&self, name: &str) -> Result<()> {
        let Some(names) = find(self)? else {
            return Err(unknown(name, &[]));
        };
        let table = Table::lock(&names)?;
        let mut entries = table.read()?;
        match entries.iter().position(|entry| entry.name == name) {
            Some(at) => {
                // Given back after the table is unlocked: it may hold much.
                let removed = entries.remove(at);
                let written = table.write(entries);
                drop(removed);
                written
            }
            None => Err(unknown(name, &entries)),
        }
    }

    /// The names there are, in the order in which they were published.
    ///
    /// # Errors
    /// `LeasesFull`.
    pub fn published(&self) -> Result<Vec<Published>> {
        Ok(entries(self)?
            .into_iter()
            .map(|entry| Published {
                name: entry.name,
                type_name: entry.type_name,
                pid: entry.pid,
            })
            .collect())
    }
}

fn unknown(name: &str, entries: &[Entry]) -> Error {
    // The newest are the likeliest to be meant. Escaped, since any process may have given them.
    let names = entries.iter().rev().map(|entry| &entry.name).take(LISTED);
    let known: Vec<_> = names.map(|name| format!("{name:?}")).collect();
    let known = known.join(", ");
    let there = match entries.len() {
        0 => "nothing has been published in it".to_owned(),
        1 => format!("there is one name: {known}"),
        many if many > LISTED => {
            format!("there are {many} names: {known} and {} more", many - LISTED)
        }
        many => format!("there are {many} names: {known}"),
    };
    let text = format!("nothing in the arena has the name {name:?}; {there}");
    Error::new(ErrorKind::NotFound, text)
}

fn damaged() -> Error {
    Error::new(
        ErrorKind::Layout,
        "the table of names does not add up; a participant wrote where it must not",
    )
}

/// The table as it is now.
fn entries(arena: &Arena) -> Result<Vec<Entry>> {
    arena.check_not_forked("looking for a name")?;
    match find(arena)? {
        Some(names) => look::entries(&names),
        None => Ok(Vec::new()),
    }
}

/// What the header names: line and generation of the object that it holds.
pub(crate) fn header_reference(arena: &Arena) -> Option<(u64, u64)> {
    let segment = arena.segment();
    // Acquire: pairs with the exchange in `find_or_make`.
    let line = segment.word(header::NAMES).load(Ordering::Acquire);
    if line == 0 || heap::locate(segment, line).is_none() {
        return None;
    }
    // Never changes: the header's own reference keeps the object for good.
    let word = segment.word(line * LINE + counted::WORD);
    Some((
        line,
        Counted::from_word(word.load(Ordering::Acquire)).generation,
    ))
}

fn find(arena: &Arena) -> Result<Option<Object>> {
    let Some((line, generation)) = header_reference(arena) else {
        return Ok(None);
    };
    let object = Object::open(arena, [line, generation])?;
    object.expect(ObjectKind::Names)?;
    Ok(Some(object))
}

fn find_or_make(arena: &Arena) -> Result<Object> {
    if let Some(there) = find(arena)? {
        return Ok(there);
    }
    let arrays = [
        Array::Cells { capacity: ROOM },
        Array::Cells { capacity: 1 },
    ];
    let made = Object::create(arena, ObjectKind::Names, arrays, 0)?;
    let mut token = message::encode(arena, ()).map_err(|failed| failed.error)?;
    put(&made, TOKEN, &mut token)?;
    let [line, generation] = made.handle();
    let segment = arena.segment();
    // The header's reference comes before the header names it: a kill between leaks one small object.
    line::increment(segment.word(line * LINE + counted::WORD), generation)?;
    crate::failpoint!("names.counted");
    // AcqRel: who finds it there finds a whole object, whoever made it.
    let exchange =
        segment
            .word(header::NAMES)
            .compare_exchange(0, line, Ordering::AcqRel, Ordering::Acquire);
    if exchange.is_ok() {
        return Ok(made);
    }
    // Somebody was faster. We hold it as well, so this is not the last reference.
    held::subtract_shared(arena, line, generation);
    find(arena)?.ok_or_else(damaged)
}

fn put(object: &Object, array: usize, message: &mut message::Outgoing) -> Result<()> {
    match object.try_put(array, message)? {
        Put::Done(_) => Ok(()),
        Put::Full | Put::Pending(_) | Put::Closed => Err(damaged()),
    }
}

/// The messages of an array that are whole, by position.
fn whole(array: &impl CellArray<M = crate::sync::Shared>) -> Vec<(u64, [u64; 7])> {
    let mut found: Vec<_> = (0..array.capacity())
        .filter_map(
            |cell| match decode(array.word(cell).load(Ordering::Acquire)) {
                CellState::Ready { pos, .. } => {
                    let payload = array.payload(cell).each_ref();
                    Some((pos, payload.map(|word| word.load(Ordering::Relaxed))))
                }
                _ => None,
            },
        )
        .collect();
    found.sort_unstable_by_key(|&(pos, _)| pos);
    found
}

/// A message like the one in a cell, with references of its own. The cell keeps its message meanwhile.
fn copy_of(arena: &Arena, payload: &[u64; 7]) -> Result<Incoming> {
    let parsed = parse(arena, payload)?;
    let mut entries = Entries::default();
    for entry in parsed.entries {
        if matches!(
            entry.what,
            What::Exclusive | What::ExclusiveEnd | What::Slot
        ) {
            return Err(damaged());
        }
        entries.0.push(Some(Arrived {
            held: Held::open(arena, entry.line, entry.generation)?,
            what: entry.what,
            extra: entry.extra,
            place: entry.place,
        }));
    }
    Ok(Incoming {
        entries: Some(entries),
        bytes: parsed.bytes,
    })
}

/// Waiting for what lasts microseconds, unless a process was stopped or killed in it.
struct Patience<'a> {
    arena: &'a Arena,
    rounds: u32,
    waited: Duration,
}

impl<'a> Patience<'a> {
    const fn new(arena: &'a Arena) -> Self {
        Self {
            arena,
            rounds: 0,
            waited: Duration::ZERO,
        }
    }

    /// Waits a little, and longer each time. `false` when it has lasted [`PATIENCE`].
    fn pause(&mut self) -> bool {
        self.rounds += 1;
        if self.rounds < 100 {
            std::thread::yield_now();
            return true;
        }
        let pause = Duration::from_millis(1);
        std::thread::sleep(pause);
        self.waited += pause;
        if self.rounds.is_multiple_of(100) {
            self.arena.bury_the_dead();
        }
        self.waited < PATIENCE
    }
}

/// The table, in our hands.
struct Table<'a> {
    object: &'a Object,
    /// Where the token was taken.
    token: u64,
}

impl<'a> Table<'a> {
    /// Waits for the token. It is in somebody's hands for microseconds, unless that process was stopped or killed.
    fn lock(object: &'a Object) -> Result<Self> {
        let arena = object.arena();
        let cells = object.cells(TOKEN)?;
        let mut patience = Patience::new(arena);
        loop {
            match cells.take(arena.me(), &mut 0) {
                Take::At { pos, .. } => {
                    crate::failpoint!("names.locked");
                    return Ok(Self { object, token: pos });
                }
                Take::Empty | Take::Pending(_) => {}
                Take::Drained | Take::Damaged => return Err(damaged()),
            }
            if !patience.pause() {
                break;
            }
        }
        let holder = match decode(cells.0.word(0).load(Ordering::Relaxed)) {
            CellState::Taking { owner, .. } => arena.record_of(owner),
            _ => None,
        };
        let holder = holder.map_or("another process".to_owned(), |record| {
            crate::failure::Named(&record.name, record.pid).to_string()
        });
        Err(Error::new(
            ErrorKind::TimedOut,
            format!(
                "{holder} has had the table of names in its hands for {PATIENCE:?}; is it stopped?"
            ),
        ))
    }

    /// The names in the table.
    fn read(&self) -> Result<Vec<Entry>> {
        let array = self.object.cells(TABLES)?.0;
        match whole(&array).pop() {
            Some((_, payload)) => copy_of(self.object.arena(), &payload)?.decode(),
            None => Ok(Vec::new()),
        }
    }

    /// Puts another table in its place.
    fn write(self, entries: Vec<Entry>) -> Result<()> {
        let mut message =
            message::encode(self.object.arena(), entries).map_err(|failed| failed.error)?;
        // What was there before; given back when the token is back, since it may hold much.
        let mut old = Vec::new();
        let mut rounds = 0..1_000;
        loop {
            rounds.next().ok_or_else(damaged)?;
            match self.object.try_put(TABLES, &mut message)? {
                Put::Done(_) => break,
                // Only after killed processes voided all the other cells, one after the other: then the old table has
                // to go first.
                Put::Full => old.extend(self.take()?),
                // Of a killed process; nobody else may be here.
                Put::Pending(_) => self.object.arena().bury_the_dead(),
                Put::Closed => return Err(damaged()),
            }
        }
        crate::failpoint!("names.two_tables");
        while whole(&self.object.cells(TABLES)?.0).len() > 1 {
            rounds.next().ok_or_else(damaged)?;
            old.extend(self.take()?);
        }
        crate::failpoint!("names.one_table");
        drop(self);
        drop(old);
        Ok(())
    }

    /// Takes the oldest table out.
    fn take(&self) -> Result<Option<Incoming>> {
        match self.object.try_get(TABLES, &mut 0)? {
            Get::Message(message, _) => Ok(Some(message)),
            Get::Empty | Get::Pending(_) => {
                self.object.arena().bury_the_dead();
                Ok(None)
            }
            Get::Drained => Err(damaged()),
        }
    }
}

impl Drop for Table<'_> {
    fn drop(&mut self) {
        if let Ok(cells) = self.object.cells(TOKEN) {
            cells.hand_back(self.token);
        }
    }
}
