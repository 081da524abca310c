//! Putting the library where a driver would be: found beside the test, loaded before anything asks for `libcuda.so`.
//!
//! A library that is loaded answers to its own name from then on, so whoever loads `libcuda.so` later in this process gets
//! the emulated one, whatever the system has. Children find the library and the board by environment variables, and have to
//! call [`load`] as well, first thing in their `main`. Symbols that are to be missing are renamed in a copy that lives in
//! memory.

use std::env;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create};

use crate::board::{self, Board};
use crate::knobs::{self, Feature};
use crate::session::Session;

/// The file's name, as cargo makes it from the package's.
const FILE: &str = "libcuda_emulator.so";

/// Since which driver a symbol is there; those that this knows of.
const SINCE: [(&str, i32); 6] = [
    ("cuDeviceGetUuid_v2", 11_040),
    ("cuGetProcAddress_v2", 12_000),
    ("cuStreamGetId", 12_000),
    ("cuStreamWaitValue32_v2", 11_070),
    ("cuStreamWaitValue64_v2", 11_070),
    ("cuStreamWriteValue64_v2", 11_070),
];

/// Why the library could not be loaded.
#[derive(Debug)]
pub struct Error(String);

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the emulated CUDA driver cannot be loaded: {}", self.0)
    }
}

impl std::error::Error for Error {}

/// How the emulated machine is to be: a set of environment variables, for this process or for a child.
#[derive(Clone, Debug, Default)]
pub struct Knobs(Vec<(&'static str, String)>);

impl Knobs {
    /// Two devices, without a delay, with everything.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn with(mut self, name: &'static str, value: impl ToString) -> Self {
        self.0.retain(|(there, _)| *there != name);
        self.0.push((name, value.to_string()));
        self
    }

    fn with_more(self, name: &'static str, words: impl IntoIterator<Item = String>) -> Self {
        let old = self.0.iter().find(|(there, _)| *there == name);
        let mut all: Vec<String> = old.iter().map(|(_, value)| value.clone()).collect();
        all.extend(words);
        let list = all.join(",");
        self.with(name, list)
    }

    /// 0, 1 or 2 devices.
    #[must_use]
    pub fn devices(self, count: usize) -> Self {
        self.with(knobs::DEVICES, count)
    }

    /// `CUDA_VISIBLE_DEVICES`: which devices, in which order.
    #[must_use]
    pub fn visible(self, list: &str) -> Self {
        self.with(knobs::VISIBLE, list)
    }

    /// Each operation of a stream that does something takes so much longer.
    #[must_use]
    pub fn delay(self, delay: Duration) -> Self {
        self.with(knobs::DELAY, delay.as_micros())
    }

    /// Without that feature.
    #[must_use]
    pub fn without(self, feature: Feature) -> Self {
        self.with_more(knobs::WITHOUT, [feature.word().to_owned()])
    }

    /// Without these symbols, as a driver that is too old.
    #[must_use]
    pub fn missing(self, symbols: &[&str]) -> Self {
        self.with_more(
            knobs::MISSING,
            symbols.iter().map(|&symbol| symbol.to_owned()),
        )
    }

    /// A driver of that version, such as 11040: without the symbols and attributes that came later.
    #[must_use]
    pub fn version(self, version: i32) -> Self {
        let later = SINCE.iter().filter(|(_, since)| *since > version);
        let later: Vec<&str> = later.map(|(symbol, _)| *symbol).collect();
        self.missing(&later).with(knobs::VERSION, version)
    }

    /// How many MiB each device has.
    #[must_use]
    pub fn memory(self, mebibytes: u64) -> Self {
        self.with(knobs::MEMORY, mebibytes)
    }

    /// Without the race detector.
    #[must_use]
    pub fn without_races(self) -> Self {
        self.with(knobs::RACES, 0)
    }

    /// Events that a process left unfinished when it died happen all the same, without the work that was before them: memory
    /// keeps what was there. Without this they never do. Which of the two a driver does is not written anywhere.
    #[must_use]
    pub fn events_of_the_dead_happen(self) -> Self {
        self.with(knobs::DEAD_EVENTS, "happen")
    }

    /// The opposite of [`events_of_the_dead_happen`](Self::events_of_the_dead_happen), also where the environment says that.
    #[must_use]
    pub fn events_of_the_dead_never_happen(self) -> Self {
        self.with(knobs::DEAD_EVENTS, "never")
    }

    /// Each call of that name answers that code; with `nth`, only the how manieth, from 1.
    #[must_use]
    pub fn fail(self, call: &str, code: i32, nth: Option<u64>) -> Self {
        let nth = nth.map_or(String::new(), |nth| format!(":{nth}"));
        self.with_more(knobs::FAIL, [format!("{call}:{code}{nth}")])
    }

    /// The how manieth call of each process, from 1, answers that code, whichever call it is.
    #[must_use]
    pub fn fail_at(self, nth: u64, code: i32) -> Self {
        self.fail(knobs::ANY, code, Some(nth))
    }

    /// Each call of that name takes so long before it does anything, in milliseconds: what others do meanwhile, they do in the
    /// middle of it.
    #[must_use]
    pub fn slow(self, call: &str, time: Duration) -> Self {
        self.with_more(knobs::SLOW, [format!("{call}:{}", time.as_millis())])
    }

    /// A stream gets the handle of one that was destroyed, as from any driver. Without this no handle is ever another stream's, so
    /// that a use of one that was destroyed is told.
    #[must_use]
    pub fn stream_handles_again(self) -> Self {
        self.with(knobs::HANDLES, "again")
    }

    /// As environment variables, for a child's `Command`.
    pub fn variables(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// Sets them for this process and its children, and loads the library.
    ///
    /// # Errors
    /// As [`load`].
    pub fn load(&self) -> Result<Session, Error> {
        for (name, value) in self.variables() {
            set(name, value);
        }
        let session = load()?;
        if self
            .variables()
            .any(|(name, _)| name != knobs::DELAY && name != knobs::RACES)
        {
            // No real machine can be made to be like that.
            session.only_emulated();
        }
        Ok(session)
    }
}

/// A board that no driver uses.
fn board_of_nobody() -> Result<(&'static Board, &'static File), Error> {
    let (file, board) = Board::create().map_err(|error| Error(format!("its board: {error}")))?;
    Ok((board, Box::leak(Box::new(file))))
}

/// Puts the emulated driver in the place of one, for this process and for children that call this too. To be called first
/// thing in `main`, while there are no other threads. Called again, it finds what is there.
///
/// With `CUDA_EMULATOR_OFF` in the environment nothing is loaded, and the test runs on the system's driver:
/// [`Session::is_emulated`] tells.
///
/// # Errors
/// When the library is not where cargo puts it, or cannot be loaded.
pub fn load() -> Result<Session, Error> {
    static LOADED: Mutex<Option<Session>> = Mutex::new(None);
    let mut loaded = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(session) = &*loaded {
        return Ok(*session);
    }
    if env::var_os(knobs::OFF).is_some() {
        return Ok(*loaded.insert(Session::of_a_real_driver(board_of_nobody()?)));
    }
    let path = library()?;
    let (file, board) = match env::var(knobs::BOARD) {
        Ok(path) => Board::open(&path),
        Err(_) => Board::create(),
    }
    .map_err(|error| Error(format!("its board: {error}")))?;
    let missing = knobs::words(knobs::MISSING);
    match missing.is_empty() {
        true => open(&path.display().to_string())?,
        false => open_without(&path, &missing)?,
    }
    set(knobs::LIBRARY, &path.display().to_string());
    set(knobs::BOARD, &board::path_of(&file));
    // Open for as long as this process lives: children find the board through it.
    let file: &'static File = Box::leak(Box::new(file));
    Ok(*loaded.insert(Session::new(board, file)))
}

/// [`load`], when a parent of this process did; nothing otherwise. For the `main` of programs whose children need the
/// driver too, before anything turns a child into a worker.
///
/// # Errors
/// As [`load`].
pub fn inherit() -> Result<Option<Session>, Error> {
    match is_inherited() {
        true => load().map(Some),
        false => Ok(None),
    }
}

/// Whether this process or a parent of it has called [`load`].
#[must_use]
pub fn is_inherited() -> bool {
    env::var_os(knobs::BOARD).is_some()
}

/// The library's path: said by a parent, or where cargo leaves it for a test or a program.
fn library() -> Result<PathBuf, Error> {
    if let Ok(path) = env::var(knobs::LIBRARY) {
        return Ok(path.into());
    }
    let this =
        env::current_exe().map_err(|error| Error(format!("this executable's path: {error}")))?;
    let folders = this.ancestors().skip(1).take(2);
    let places: Vec<PathBuf> = folders
        // In `deps` it is of the same build as this; elsewhere it may have been left by an older one.
        .flat_map(|folder| [folder.join("deps").join(FILE), folder.join(FILE)])
        .collect();
    let found = places.iter().find(|path| path.is_file()).cloned();
    found.ok_or_else(|| {
        let places: Vec<String> = places
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        Error(format!(
            "it is at none of {}; the package of this test has to depend on cuda-emulator",
            places.join(", ")
        ))
    })
}

/// Loads a copy in which symbols have other names, so that nobody finds them.
fn open_without(path: &PathBuf, symbols: &[String]) -> Result<(), Error> {
    let mut bytes =
        fs::read(path).map_err(|error| Error(format!("{}: {error}", path.display())))?;
    for symbol in symbols {
        let name = format!("\0{symbol}\0");
        let mut at = 0;
        while let Some(found) = find(&bytes[at..], name.as_bytes()) {
            bytes[at + found + 1] = b'~';
            at += found + 1;
        }
        if at == 0 {
            return Err(Error(format!(
                "it has no symbol {symbol} that could be missing"
            )));
        }
    }
    let failed = |error: std::io::Error| Error(format!("a copy without symbols: {error}"));
    let copy =
        memfd_create("libcuda.so", MemfdFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    let mut copy = File::from(copy);
    copy.write_all(&bytes).map_err(failed)?;
    open(&format!("/proc/self/fd/{}", copy.as_raw_fd()))
}

/// The C library's search, since the library is large and tests are not optimised.
fn find(bytes: &[u8], wanted: &[u8]) -> Option<usize> {
    // SAFETY: both are slices, passed with their lengths.
    let found = unsafe {
        libc::memmem(
            bytes.as_ptr().cast(),
            bytes.len(),
            wanted.as_ptr().cast(),
            wanted.len(),
        )
    };
    (!found.is_null()).then(|| found as usize - bytes.as_ptr() as usize)
}

/// Loads a library for good.
fn open(path: &str) -> Result<(), Error> {
    let path = CString::new(path).map_err(|_| Error("its path has a zero in it".to_owned()))?;
    // SAFETY: the library is this crate's own, whose start does nothing.
    let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    match library.is_null() {
        true => Err(Error(last_error())),
        false => Ok(()),
    }
}

fn last_error() -> String {
    // SAFETY: the loader's message of this thread, which stays until its next call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "the loader does not say why".to_owned();
    }
    // SAFETY: it is a string that ends.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    text.to_string_lossy().into_owned()
}

fn set(name: &str, value: &str) {
    // SAFETY: tests call `load` first thing, while no other thread reads the environment.
    unsafe { env::set_var(name, value) };
}
