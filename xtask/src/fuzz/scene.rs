//! The scenes: an arena with something of everything, a change to it, and all that reads it.
//!
//! Two take part, both in this process: the one whose arena is changed behind its back, and a peer, so that references
//! are held on both sides.

use std::fs::OpenOptions;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mp_queue::{ErrorKind, Queue};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shm_core::letterbox::Letterbox;
use shm_core::strategy::file_system::{list, path_of, sweep};
use shm_core::{Arena, DynTensor, Tensor};

use super::input::{Input, Length, Target};
use super::pokes::{Victim, copy};
use super::value::{TEXTS, Tensors, Value};
use crate::Result;

const CAPACITY: u64 = 64 << 20;
/// Where an arena's header has the inode of its file (docs/src/wire.md).
const INODE: u64 = 88;
const QUEUE: &str = "queue";
/// The peer's row: it is the second to come.
const PEER: u16 = 1;

/// Counts what was refused.
#[derive(Debug, Default)]
pub(super) struct Refused(pub(super) u64);

impl Refused {
    pub(super) fn ok<T, E: std::fmt::Display>(&mut self, done: Result<T, E>) -> Option<T> {
        if let Err(error) = &done {
            self.0 += 1;
            eprintln!("{error}");
        }
        done.ok()
    }
}

/// Plays the input's scene in that empty folder. Answers how often something was refused.
pub(crate) fn play(input: &Input, folder: &Path) -> Result<u64> {
    let mut refused = Refused::default();
    match input.target {
        Target::Attach => attach(input, folder, &mut refused)?,
        Target::Message => message(input, &mut refused)?,
        Target::Names => names(input, &mut refused)?,
        Target::Structures => structures(input, &mut refused)?,
        Target::Device => super::device::play(input, &mut refused)?,
    }
    Ok(refused.0)
}

pub(super) fn file_of(arena: &Arena) -> Result<OwnedFd> {
    // Opened anew: the offset is its own.
    let path = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&arena.as_fd())
    );
    Ok(OpenOptions::new().read(true).write(true).open(path)?.into())
}

/// Makes the changes once.
fn poke(file: OwnedFd, input: &Input) -> Result<()> {
    let victim = Victim::look(file, &TEXTS)?;
    if input.dies {
        victim.bereave(PEER)?;
    }
    for change in victim.plan(&input.pokes) {
        victim.write(change.at, change.after)?;
    }
    Ok(())
}

fn two() -> Result<(Arena, Arena)> {
    let arena = Arena::builder()
        .strategy("file_descriptor")
        .capacity(CAPACITY)
        .create()?;
    let peer = Arena::join(arena.as_fd().try_clone_to_owned()?)?;
    Ok((arena, peer))
}

/// A queue under a name, with messages of the peer's in it.
fn filled(arena: &Arena, peer: &Arena) -> Result<(Queue<Value>, Queue<Value>)> {
    let queue = Queue::bounded_in(arena, 8)?;
    arena.publish(QUEUE, &queue)?;
    let theirs: Queue<Value> = peer.open(QUEUE)?;
    for value in Value::all(peer)? {
        theirs.put(value)?;
    }
    Ok((queue, theirs))
}

/// What a participant held goes: by its own hand, or by those that bury it.
fn leave<T>(input: &Input, held: T) {
    match input.dies {
        true => std::mem::forget(held),
        false => drop(held),
    }
}

fn attach(input: &Input, folder: &Path, refused: &mut Refused) -> Result<()> {
    let arena = Arena::builder()
        .name("original")
        .directory(folder)
        .capacity(CAPACITY)
        .create()?;
    let peer = Arena::join(arena.as_fd().try_clone_to_owned()?)?;
    let _kept = filled(&arena, &peer)?;
    let path = path_of(folder, "copy")?;
    let options = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?;
    copy(file_of(&arena)?, options.as_fd(), CAPACITY)?;
    // Else all that would be seen of it is that it is a copy.
    let inode = options.metadata()?.ino();
    options.write_all_at(&inode.to_ne_bytes(), INODE)?;
    poke(options.try_clone()?.into(), input)?;
    match input.length {
        Some(Length::Cut(bytes)) => options.set_len(bytes)?,
        Some(Length::Grow(bytes)) => options.set_len(CAPACITY + bytes)?,
        None => {}
    }
    refused.ok(list(folder));
    if let Some(arena) = refused.ok(Arena::attach(&path)) {
        look_around(&arena, refused);
        names_of(&arena, refused);
        tensors(&arena, refused);
    }
    refused.ok(sweep(folder, true));
    Ok(())
}

fn message(input: &Input, refused: &mut Refused) -> Result<()> {
    let (arena, peer) = two()?;
    let (queue, theirs) = filled(&arena, &peer)?;
    poke(file_of(&arena)?, input)?;
    for _ in 0..6 {
        match input.read_as {
            0 => {
                if let Some(value) = take(&queue, refused) {
                    refused.0 += value.use_up();
                }
            }
            1 => drop(take_as::<Tensors>(&arena, refused)),
            2 => drop(take_as::<DynTensor>(&arena, refused)),
            3 => drop(take_as::<(u32, String, Vec<Tensor<f32>>)>(&arena, refused)),
            _ => drop(take_as::<(u32, String, Queue<u8>)>(&arena, refused)),
        }
    }
    if let Some(mut values) = refused.ok(Value::all(&arena)) {
        refused.ok(queue.try_put(values.remove(0)));
    }
    leave(input, (theirs, peer));
    look_around(&arena, refused);
    drop(queue);
    look_around(&arena, refused);
    Ok(())
}

fn take<T: Serialize + DeserializeOwned>(queue: &Queue<T>, refused: &mut Refused) -> Option<T> {
    match queue.try_get() {
        Err(error) if *error.kind() == ErrorKind::Empty => None,
        got => refused.ok(got),
    }
}

fn take_as<T: Serialize + DeserializeOwned>(arena: &Arena, refused: &mut Refused) -> Option<T> {
    let queue = refused.ok(arena.open::<Queue<T>>(QUEUE))?;
    take(&queue, refused)
}

fn names(input: &Input, refused: &mut Refused) -> Result<()> {
    let (arena, peer) = two()?;
    for (value, text) in Value::all(&peer)?.iter().zip(TEXTS) {
        // What is exclusive can't be published.
        if matches!(value, Value::Views(..) | Value::Queues(..)) {
            peer.publish(text, value)?;
        }
    }
    arena.publish(TEXTS[0], &7_u32)?;
    poke(file_of(&arena)?, input)?;
    names_of(&arena, refused);
    leave(input, peer);
    look_around(&arena, refused);
    Ok(())
}

/// Looks names up, gives and takes them. A token that is lost costs a wait, so only once.
fn names_of(arena: &Arena, refused: &mut Refused) {
    let Some(published) = refused.ok(arena.published()) else {
        return;
    };
    for published in published {
        // Some names are of a queue, a tensor or a number.
        if let Ok(value) = arena.open::<Value>(&published.name) {
            refused.0 += value.use_up();
        }
        // Mostly of another type.
        let _ = arena.open::<u64>(&published.name);
    }
    refused.ok(arena.publish("new", &1_u8));
    refused.ok(arena.republish(TEXTS[0], &2_u8));
    // Which not every scene has.
    let _ = arena.unpublish(TEXTS[1]);
    refused.ok(arena.unpublish("new"));
}

/// What is done now and then with an arena as a whole.
fn look_around(arena: &Arena, refused: &mut Refused) {
    std::hint::black_box(arena.stats());
    arena.bury_the_dead();
    arena.trim();
    let audit = arena.audit();
    refused.0 += u64::from(!audit.leaked.is_empty() || !audit.missing.is_empty());
    std::hint::black_box(format!("{arena:?}"));
}

/// Allocations of each kind.
fn tensors(arena: &Arena, refused: &mut Refused) {
    let mut kept = Vec::new();
    for length in [0, 1, 10, 1000, 100_000, 300_000] {
        kept.extend(refused.ok(Tensor::<u8>::full_in(arena, length, 1)));
    }
    for tensor in kept {
        drop(tensor.freeze());
    }
}

fn structures(input: &Input, refused: &mut Refused) -> Result<()> {
    let (arena, peer) = two()?;
    let (queue, theirs) = filled(&arena, &peer)?;
    let letters = Letterbox::create(&arena, 4)?;
    let their_letters = Letterbox::open(&peer, letters.handle())?;
    let letter = their_letters.send((1_u8, Tensor::<u8>::zeros_in(&peer, 10)?));
    letter.map_err(|failed| failed.error)?;
    arena.publish("tensor", &Tensor::<u8>::zeros_in(&arena, 5)?.freeze())?;
    let kept = Tensor::<u32>::zeros_in(&arena, 100)?;
    let their_tensors = [10, 70_000].map(|length| Tensor::<u32>::zeros_in(&peer, length));
    let victim = Victim::look(file_of(&arena)?, &TEXTS)?;
    if input.dies {
        victim.bereave(PEER)?;
    }
    let changes = victim.plan(&input.pokes);
    let done = AtomicBool::new(false);
    let scribble = || {
        for change in &changes {
            // What cannot be written is not changed, and the next input comes.
            let _ = victim.write(change.at, change.after);
        }
        while input.again && !done.load(Ordering::Relaxed) {
            for change in &changes {
                let _ = victim.write(change.at, change.before);
                std::thread::yield_now();
                let _ = victim.write(change.at, change.after);
            }
        }
    };
    std::thread::scope(|scope| {
        let scribbler = scope.spawn(scribble);
        if !input.again {
            let _ = scribbler.join();
        }
        // Also when something panics: the scope waits for its threads.
        let guard = Done(&done);
        tensors(&arena, refused);
        for _ in 0..3 {
            if let Some(value) = take(&queue, refused) {
                refused.0 += value.use_up();
            }
            refused.ok(queue.put_timeout(
                Value::Own(
                    String::new(),
                    match Tensor::zeros_in(&arena, 4) {
                        Ok(tensor) => tensor,
                        Err(_) => break,
                    },
                ),
                Duration::from_millis(1),
            ));
            refused.ok(letters.try_recv::<(u8, Tensor<u8>)>());
        }
        refused.ok(queue.get_timeout(Duration::from_millis(1)));
        names_of(&arena, refused);
        refused.ok(Arena::join(arena.as_fd().try_clone_to_owned()?));
        look_around(&arena, refused);
        drop(kept);
        leave(input, (their_tensors, theirs, their_letters, peer));
        look_around(&arena, refused);
        drop((queue, letters));
        drop(guard);
        arena.repair_leaks_of_the_dead();
        look_around(&arena, refused);
        Ok(())
    })
}

/// Ends the scribbling.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
