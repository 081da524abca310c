//! What a process lets others see of its streams: how far each has come, what they wait for, and which will never go on.
//!
//! A stream that waits for work of a process that has died can never go on, and what is recorded in it later never happens,
//! though its own process lives. Whoever waits for such an event looks here, since it sees nobody dead. And an event that was
//! recorded anew says nothing of its earlier record, which is seen here, too. A process that uses device tensors has one
//! ledger, an object of the arena that its row names; who waits for the process keeps it, also when the process has ended.
//!
//! - *recorded* and *done*: of each stream, by its number in marks, how many events were recorded in it for others, and how
//!   many of these have happened, as far as the process knows: whenever it has waited for the stream, and when it ends in
//!   peace. Both only grow, also when the number is given to another stream, which happens when they are equal; so a count
//!   says which of the streams of that number is meant.
//! - *lost*: the first record of a stream that may never happen. The process says so when it finds out: in a thread that
//!   waits, or in the one that watches the arena, which looks at what streams wait for twice a second.
//! - *waits*: which stream waits for which stream of whom, up to which of its records, and since which of its own. So whoever
//!   waits for the process sees, also when that one is stopped and finds out nothing, that there is somebody dead behind it.
//!   The list may have too much in it; it has too little only where there is no room, which it says nothing of.
//! - *asked*: somebody waits until *done* says something, since there is no event that would. The process looks how far its
//!   streams have come when it sees that, also of those that go on.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use shm_core::Arena;
use shm_core::object::{Array, Object, ObjectKind};
use shm_core::word::Owner;
use smallvec::SmallVec;

use crate::device::Device;
use crate::error::Result;
use crate::layout::{owner_of, owner_word, streams};
use crate::mark::{By, NO_NUMBER};
use crate::sabotage;

/// What a process says of its streams.
pub(crate) type Book = Arc<Object>;

/// The ledger of this process.
#[derive(Debug)]
struct Ledger {
    book: Book,
    /// Which places of the list are in use.
    taken: Mutex<[bool; streams::ROOM as usize]>,
}

static MINE: OnceLock<Ledger> = OnceLock::new();

/// Those of others, as far as they were needed.
static THEIRS: Mutex<Option<HashMap<Owner, Book>>> = Mutex::new(None);

/// Who those are, or were, for whom a stream waits or waited: noted while they lived.
static NAMES: Mutex<Option<HashMap<Owner, String>>> = Mutex::new(None);
/// So many of them.
const NAMES_KEPT: usize = 4_096;

/// Bit 63 of the first word of a place of the list: somebody is in it.
const TAKEN: u64 = 1 << 63;

/// What a ledger says of the records of a stream, up to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// They have happened.
    Over,
    /// They may never happen.
    Lost,
    /// Nothing.
    Nothing,
}

/// What a stream's counts say of its records up to number `upto`.
pub(crate) const fn judge(done: u64, lost: u64, upto: u64) -> Said {
    if upto != 0 && upto <= done {
        Said::Over
    } else if lost != 0 && upto >= lost {
        Said::Lost
    } else {
        Said::Nothing
    }
}

fn mine(arena: &Arena) -> Result<&'static Ledger> {
    if let Some(mine) = MINE.get() {
        return Ok(mine);
    }
    static MAKING: Mutex<()> = Mutex::new(());
    let _making = MAKING.lock();
    if let Some(mine) = MINE.get() {
        return Ok(mine);
    }
    let none = [Array::None, Array::None];
    let object = Object::create(arena, ObjectKind::DeviceStreams, none, streams::WORDS)?;
    let pid = u64::from(std::process::id());
    object.word(streams::PID).store(pid, Ordering::Relaxed);
    arena.recorder().set_streams(&object);
    Ok(MINE.get_or_init(|| Ledger {
        book: Arc::new(object),
        taken: Mutex::new([false; streams::ROOM as usize]),
    }))
}

/// Before this process records something for others: where it says so is there.
pub(crate) fn open(arena: &Arena) -> Result<()> {
    mine(arena).map(drop)
}

/// An event was recorded for others in a stream of this process, and nobody was told yet.
pub(crate) fn count(stream: u8) {
    if let Some(mine) = MINE.get() {
        let word = mine.book.word(streams::RECORDED + u64::from(stream));
        // Release: whoever sees the mark, which is stored later, sees a count with the record in it.
        word.fetch_add(1, Ordering::Release);
    }
}

/// How many events were recorded in a stream of this process for others.
pub(crate) fn recorded(stream: u8) -> u64 {
    MINE.get().map_or(0, |mine| recorded_in(&mine.book, stream))
}

/// As [`recorded`], of a process that may be another one.
pub(crate) fn recorded_in(book: &Object, stream: u8) -> u64 {
    let word = book.word(streams::RECORDED + u64::from(stream));
    word.load(Ordering::Acquire)
}

/// The first so many records of a stream of this process have happened.
pub(crate) fn set_done(stream: u8, upto: u64) {
    // Of those without a number nobody knows which is meant.
    if stream != NO_NUMBER {
        say_done(stream, upto);
    }
}

/// Asks a process that lives to say how far its streams have come, at its next look; asked again until it has.
pub(crate) fn ask(book: &Object) {
    // Relaxed: it says nothing of anything else, and what is said in answer is loaded by `said`.
    book.word(streams::ASKED).store(1, Ordering::Relaxed);
}

/// Whether somebody has asked that of this process since the last time.
pub(crate) fn was_asked() -> bool {
    let asked = |mine: &Ledger| mine.book.word(streams::ASKED).swap(0, Ordering::Relaxed) != 0;
    MINE.get().is_some_and(asked)
}

/// The first so many records in streams without a number have happened, whichever these are.
pub(crate) fn set_all_done(upto: u64) {
    say_done(NO_NUMBER, upto);
}

fn say_done(stream: u8, upto: u64) {
    if let Some(mine) = MINE.get() {
        let word = mine.book.word(streams::DONE + u64::from(stream));
        // Release: pairs with the acquire in `said`; the work was seen to be done before.
        word.fetch_max(upto, Ordering::Release);
    }
}

/// Whether all records of a stream of this process are known to have happened.
pub(crate) fn is_done(stream: u8) -> bool {
    MINE.get().is_none_or(|mine| {
        let done = mine.book.word(streams::DONE + u64::from(stream));
        recorded_in(&mine.book, stream) <= done.load(Ordering::Acquire)
    })
}

/// A stream of this process will never go on: what was recorded after that many others may never happen.
pub(crate) fn set_lost(arena: &Arena, stream: u8, since: u64) {
    if stream == NO_NUMBER {
        return;
    }
    match mine(arena) {
        Ok(mine) => {
            let word = mine.book.word(streams::LOST + u64::from(stream));
            // Release: pairs with the acquire in `said`.
            let first = if sabotage::is("since") { 1 } else { since + 1 };
            word.store(first, Ordering::Release);
        }
        Err(error) => tracing::warn!(%error, "others are not told that a stream is lost"),
    }
}

/// A device stands still in this process, for somebody dead.
pub(crate) fn set_stuck(arena: &Arena, device: Device, dead: Owner) {
    if let Ok(mine) = mine(arena) {
        let pid = pid_of(arena, dead).map_or(u64::MAX, u64::from);
        mine.book.word(streams::STUCK).store(pid, Ordering::Release);
        // Release: whoever sees the bit sees for whom.
        let devices = mine.book.word(streams::STUCK_ON);
        devices.fetch_or(device.uuid().bit(), Ordering::Release);
    }
}

/// For whom a device stands still in a process, in words, if it does.
pub(crate) fn stuck_for(arena: &Arena, who: Owner, device: Device) -> Option<String> {
    let book = of(arena, who)?;
    // Acquire: pairs with the release in `set_stuck`.
    let devices = book.word(streams::STUCK_ON).load(Ordering::Acquire);
    if devices & device.uuid().bit() == 0 {
        return None;
    }
    match book.word(streams::STUCK).load(Ordering::Acquire) {
        0 => None,
        u64::MAX => Some("a process".to_owned()),
        pid => Some(format!("process {pid}")),
    }
}

/// What a ledger says of a stream's records, up to number `upto`.
pub(crate) fn said(book: &Object, stream: u8, upto: u64) -> Said {
    let stream = u64::from(stream);
    // Acquire: pairs with the release where they are set.
    let load = |word| book.word(word + stream).load(Ordering::Acquire);
    let done = if sabotage::is("done") {
        0
    } else {
        load(streams::DONE)
    };
    let lost = if sabotage::is("lost") {
        0
    } else {
        load(streams::LOST)
    };
    judge(done, lost, upto)
}

/// Whether a process has said that a stream of it will never go on.
pub(crate) fn is_lost(arena: &Arena, who: Owner, stream: u8) -> bool {
    of(arena, who).is_some_and(|book| said(&book, stream, u64::MAX) == Said::Lost)
}

/// The ledger of a process, if it has one and was not buried before anybody here looked.
pub(crate) fn of(arena: &Arena, who: Owner) -> Option<Book> {
    if who == arena.me() {
        return MINE.get().map(|mine| mine.book.clone());
    }
    let mut theirs = THEIRS.lock();
    let theirs = theirs.get_or_insert_default();
    if let Some(book) = theirs.get(&who) {
        return Some(book.clone());
    }
    let book = open_book(arena, arena.streams_of(who)?)?;
    // Those of the dead say what they said as long as somebody waits for one of them.
    theirs.retain(|known, book| arena.is_present(*known) || Arc::strong_count(book) > 1);
    theirs.insert(who, book.clone());
    remember(arena, who);
    Some(book)
}

fn open_book(arena: &Arena, handle: [u64; 2]) -> Option<Book> {
    let object = Object::open(arena, handle).ok()?;
    let is_one = object.expect(ObjectKind::DeviceStreams).is_ok();
    (is_one && object.word_count() >= streams::WORDS).then(|| Arc::new(object))
}

/// A stream's wait for another one, up to a record of it.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    pub(crate) by: By,
    pub(crate) upto: u64,
    /// So many had been recorded in the waiting stream.
    pub(crate) since: u64,
    pub(crate) book: Option<&'a Book>,
}

fn word_of(place: u64, word: u64) -> u64 {
    streams::WAITS + place * streams::WAIT + word
}

/// A stream of this process is about to wait for another one: said before it does. Where it was said, if there was room.
pub(crate) fn list(arena: &Arena, stream: u8, wait: &Wait<'_>) -> Result<Option<u64>> {
    let mine = mine(arena)?;
    let pid = remember(arena, wait.by.who);
    let mut taken = mine.taken.lock();
    let Some(place) = taken.iter().position(|taken| !taken) else {
        return Ok(None);
    };
    taken[place] = true;
    drop(taken);
    let place = place as u64;
    let store = |word, value, order| mine.book.word(word_of(place, word)).store(value, order);
    store(1, wait.upto, Ordering::Relaxed);
    store(2, wait.since, Ordering::Relaxed);
    let [line, tag] = wait.book.map_or([0; 2], |book| book.handle());
    store(3, line, Ordering::Relaxed);
    store(4, tag, Ordering::Relaxed);
    store(5, pid.map_or(0, u64::from), Ordering::Relaxed);
    let By {
        who,
        stream: theirs,
    } = wait.by;
    let first = owner_word(who) | u64::from(theirs) << 32 | u64::from(stream) << 40 | TAKEN;
    // Release: pairs with the acquire in `waits_of`.
    store(0, first, Ordering::Release);
    Ok(Some(place))
}

/// The wait that was said there is for a later record; `begun`: again, behind so many of one's own.
pub(crate) fn raise(place: u64, upto: u64, begun: Option<u64>) {
    if let Some(mine) = MINE.get() {
        let word = |word| mine.book.word(word_of(place, word));
        if let Some(since) = begun {
            word(2).store(since, Ordering::Relaxed);
        }
        // Release: pairs with the acquire in `waits_of`.
        word(1).store(upto, Ordering::Release);
    }
}

/// The wait that was said there is over, or the stream lost, as was said before; there may be another one.
pub(crate) fn pause(place: u64) {
    if let Some(mine) = MINE.get() {
        // Release: whoever misses it sees what was said of the stream before.
        mine.book
            .word(word_of(place, 1))
            .store(0, Ordering::Release);
    }
}

/// The wait that was said there is over, or the stream lost, as was said before.
pub(crate) fn unlist(place: u64) {
    if let Some(mine) = MINE.get() {
        // Release: whoever misses it sees what was said of the stream before.
        mine.book
            .word(word_of(place, 0))
            .store(0, Ordering::Release);
        mine.taken.lock()[place as usize] = false;
    }
}

/// Whether there is not much room left to say what streams wait for.
pub(crate) fn is_tight() -> bool {
    MINE.get().is_some_and(|mine| {
        let taken = mine.taken.lock().iter().filter(|taken| **taken).count() as u64;
        taken > streams::ROOM / 2
    })
}

/// What others wait for, as their ledger says it.
#[derive(Clone, Copy, Debug)]
struct Listed {
    by: By,
    upto: u64,
    since: u64,
    handle: [u64; 2],
    pid: u64,
}

/// What a stream waits for that was so when its record of that number was made.
fn waits_of(book: &Object, stream: u8, upto: u64) -> SmallVec<[Listed; 4]> {
    let listed = (0..streams::ROOM).filter_map(|place| {
        // Acquire: pairs with the release in `list` and `unlist`.
        let load = |word| book.word(word_of(place, word)).load(Ordering::Acquire);
        let first = load(0);
        if first & TAKEN == 0 || (first >> 40) as u8 != stream {
            return None;
        }
        let by = By {
            who: owner_of(first & 0xffff_ffff),
            stream: (first >> 32) as u8,
        };
        let listed = Listed {
            by,
            upto: load(1),
            since: load(2),
            handle: [load(3), load(4)],
            pid: load(5),
        };
        // It was not written anew meanwhile; and what was recorded before the wait is not behind it.
        (load(0) == first && listed.upto != 0 && listed.since < upto).then_some(listed)
    });
    listed.collect()
}

/// Those who are dead, or known to be lost, for whom a stream waits in front of its record of that number, or one waits for
/// which it waits, and so on; and whose work is not known to be done.
pub(crate) fn dead_behind(arena: &Arena, book: &Book, by: By, upto: u64) -> SmallVec<[By; 2]> {
    let mut dead = SmallVec::new();
    let mut seen = vec![by];
    let mut look_at = vec![(book.clone(), by.stream, upto)];
    while let Some((book, stream, upto)) = look_at.pop() {
        for wait in waits_of(&book, stream, upto) {
            let By { who, stream } = wait.by;
            let theirs = of(arena, who).or_else(|| open_book(arena, wait.handle));
            let said = theirs
                .as_ref()
                .map_or(Said::Nothing, |book| said(book, stream, wait.upto));
            let is_gone = || who != arena.me() && !arena.is_running(who);
            match said {
                Said::Over => {}
                Said::Nothing if !is_gone() => {
                    if let Some(book) = theirs
                        && !seen.contains(&wait.by)
                    {
                        seen.push(wait.by);
                        look_at.push((book, stream, wait.upto));
                    }
                }
                Said::Nothing | Said::Lost => {
                    if wait.pid != 0 {
                        keep_name(who, || format!("process {}", wait.pid));
                    }
                    dead.push(wait.by);
                }
            }
        }
    }
    dead
}

fn keep_name(who: Owner, name: impl FnOnce() -> String) {
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    if names.len() < NAMES_KEPT {
        names.entry(who).or_insert_with(name);
    }
}

/// Keeps the name of a process that is there; its process id, then.
fn remember(arena: &Arena, who: Owner) -> Option<u32> {
    let record = arena.record_of(who)?;
    let name = match record.name.as_str() {
        "" => format!("process {}", record.pid),
        name => format!("process {} ({name})", record.pid),
    };
    let mut names = NAMES.lock();
    let names = names.get_or_insert_default();
    if names.len() < NAMES_KEPT {
        names.insert(who, name);
    }
    Some(record.pid)
}

fn pid_of(arena: &Arena, who: Owner) -> Option<u32> {
    if let Some(record) = arena.record_of(who) {
        return Some(record.pid);
    }
    let pid = of(arena, who)?.word(streams::PID).load(Ordering::Relaxed);
    u32::try_from(pid).ok().filter(|pid| *pid != 0)
}

/// Who that is, or was, in words: by its process, where anything is known of that.
pub(crate) fn name_of(arena: &Arena, who: Owner) -> String {
    remember(arena, who);
    let names = NAMES.lock();
    let known = names.as_ref().and_then(|names| names.get(&who));
    known.map_or_else(|| "a process".to_owned(), Clone::clone)
}
