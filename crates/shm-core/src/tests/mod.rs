//! Tests of the whole: several participants, their deaths, hostile bytes. Each file is one promise's neighbourhood.

mod bereaved;
mod block;
mod death;
mod doubt;
mod garbage;
mod heap;
mod life_lock;
mod limits;
mod memory;
mod misuse;
mod names;
mod pressure;
mod transfer;
mod wire;

use std::os::fd::AsFd;

use crate::arena::Arena;
use crate::cells::Owner;
use crate::object::{Array, Object, ObjectKind};

/// A small arena of its own for one test.
fn arena() -> Arena {
    Arena::builder().capacity(128 << 20).create().unwrap()
}

/// One more participant of the same arena, in this process.
fn join(arena: &Arena) -> Arena {
    let copy = rustix::io::fcntl_dupfd_cloexec(arena.as_fd(), 0).unwrap();
    Arena::join(copy).unwrap()
}

/// Ends a participant of this process as SIGKILL would: nothing of it is dropped. The mapping stays, so few of these.
fn kill(arena: Arena, held: impl Sized) -> Owner {
    let owner = arena.me();
    arena.end_watcher();
    std::mem::forget(held);
    std::mem::forget(arena);
    owner
}

/// Gives the memory of an arena back whose killed participants keep it mapped. Nothing of it may be used afterwards.
fn wipe(arena: &Arena) {
    let segment = arena.segment();
    segment.punch(0, segment.capacity()).unwrap();
}

fn queue(arena: &Arena, capacity: u32) -> Object {
    Object::create(
        arena,
        ObjectKind::Queue,
        [Array::Cells { capacity }, Array::Lane { capacity }],
        // Two of the test's own, and three that a reaper counts in.
        5,
    )
    .unwrap()
}

/// The audit finds every count right.
#[track_caller]
fn assert_clean(arena: &Arena) {
    let audit = arena.audit();
    assert!(
        audit.leaked.is_empty() && audit.missing.is_empty(),
        "{audit:?}"
    );
}

/// The audit finds every count right, and nothing in use.
#[track_caller]
fn assert_empty(arena: &Arena) {
    assert_clean(arena);
    assert_eq!(arena.audit().lines, 0);
}

/// Tells a child where the arena of its parent is.
fn lend(command: &mut std::process::Command, arena: &Arena) {
    let fd = std::os::fd::AsRawFd::as_raw_fd(&arena.as_fd());
    command.env(
        "TEST_ARENA",
        format!("/proc/{}/fd/{fd}", std::process::id()),
    );
}

/// The file of the parent's arena, in the child.
fn lent() -> std::os::fd::OwnedFd {
    let path = std::env::var("TEST_ARENA").unwrap();
    let mut options = std::fs::OpenOptions::new();
    options.read(true).write(true).open(path).unwrap().into()
}
