//! The second participant of a test: a spawned process, or a thread that joined the arena once more.

use std::cell::RefCell;
use std::os::fd::AsFd;
use std::thread::JoinHandle;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensormp::prelude::*;
use tensormp::shm_core::letterbox::Letterbox;

use crate::ONE_PROCESS;

thread_local! {
    static HERE: RefCell<Option<Arena>> = const { RefCell::new(None) };
}

/// The first part of the test's name, in the test's own process.
pub(crate) fn way() -> Option<String> {
    let name = std::env::args().nth(2)?;
    let (way, _) = name.split_once("::")?;
    Some(way.to_owned())
}

/// The arena as the participant on this thread has it.
pub(crate) fn here() -> Arena {
    HERE.with_borrow(Clone::clone)
        .unwrap_or_else(|| Arena::current().unwrap())
}

/// A second participant at work.
pub(crate) enum Peer<T> {
    Process(SpawnContext<T>),
    /// With the letterboxes of its arguments and its answer.
    Thread(JoinHandle<()>, [Letterbox; 2]),
}

impl<T: DeserializeOwned + Serialize + 'static> Peer<T> {
    /// What it answered.
    pub(crate) fn join(self) -> T {
        match self {
            Self::Process(context) => context.into_results().unwrap().pop().unwrap(),
            Self::Thread(thread, [_, answer]) => {
                thread.join().unwrap();
                answer.try_recv().unwrap().unwrap()
            }
        }
    }
}

/// Runs `work` as a second participant. Its arguments and its answer are messages.
pub(crate) fn peer<F, A, T>(work: F, arguments: A) -> Peer<T>
where
    F: Fn(usize, A) -> tensormp::Result<T> + Copy + Send + 'static,
    A: Serialize + DeserializeOwned + Send + 'static,
    T: Serialize + DeserializeOwned + Send + 'static,
{
    if way().as_deref() != Some(ONE_PROCESS) {
        return Peer::Process(spawn(work, arguments, 1).unwrap());
    }
    let arena = Arena::current().unwrap();
    let copy = arena.as_fd().try_clone_to_owned().unwrap();
    let letters = [(); 2].map(|()| Letterbox::create(&arena, 1).unwrap());
    let handles = letters.each_ref().map(Letterbox::handle);
    letters[0].send(arguments).unwrap();
    let thread = std::thread::spawn(move || {
        let second = Arena::join(copy).unwrap();
        assert_ne!(second.me(), Arena::current().unwrap().me());
        HERE.set(Some(second.clone()));
        let [letter, answer] = handles.map(|handle| Letterbox::open(&second, handle).unwrap());
        let arguments = letter.try_recv().unwrap().unwrap();
        answer.send(work(0, arguments).unwrap()).unwrap();
        HERE.set(None);
    });
    Peer::Thread(thread, letters)
}
