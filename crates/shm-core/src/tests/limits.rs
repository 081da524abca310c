//! Limits and misuse: each is an error that says so, and leaves everything as it was.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::ExitStatusExt;
use std::sync::atomic::Ordering;

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};

use super::death::{borrowed, lend};
use super::{arena, assert_clean, assert_empty, join, kill, queue};
use crate::arena::Arena;
use crate::error::{ErrorKind, Result};
use crate::held::Held;
use crate::layout::{self, LINE, counted, header};
use crate::line::{COUNT_MAX, Counted, Mode};
use crate::message;
use crate::object::Object;
use crate::participant::table::{Life, Row, RowState};
use crate::storage::Storage;
use crate::tensor::Tensor;
use crate::testing::{assert_passed, output, rerun};
use crate::transfer::{Get, Put};

fn kind<T>(result: Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("it worked"),
        Err(error) => error.kind().clone(),
    }
}

#[test]
fn a_handle_to_what_is_gone_is_stale_also_when_its_place_is_used_again() {
    let arena = arena();
    let first = queue(&arena, 1);
    let handle = first.handle();
    drop(Object::open(&arena, handle).unwrap());
    drop(first);
    assert_eq!(kind(Object::open(&arena, handle)), ErrorKind::Stale);
    // The next one of its size lies at its place.
    let second = queue(&arena, 1);
    assert_eq!(second.handle()[0], handle[0]);
    assert_eq!(kind(Object::open(&arena, handle)), ErrorKind::Stale);
    drop(second);
    // The chunk becomes part of a run, and then a slab once more.
    let all: Vec<Storage> =
        std::iter::from_fn(|| Storage::allocate(&arena, 2 << 20, Mode::Message).ok()).collect();
    assert_eq!(kind(Object::open(&arena, handle)), ErrorKind::Stale);
    drop(all);
    let third = queue(&arena, 1);
    assert_eq!(kind(Object::open(&arena, handle)), ErrorKind::Stale);
    for line in [
        0,
        1,
        63,
        handle[0] + 1,
        u64::MAX,
        u64::MAX / 64,
        third.end_line(0),
    ] {
        assert!(Object::open(&arena, [line, handle[1]]).is_err());
    }
    // A tensor's line is no object, and looking does not touch it.
    let tensor = Storage::allocate(&arena, 100, Mode::Exclusive).unwrap();
    let (line, generation) = tensor.id();
    assert_eq!(
        kind(Object::open(&arena, [line, generation])),
        ErrorKind::Stale
    );
    drop((third, tensor));
    assert_empty(&arena);
}

#[test]
fn one_reference_too_many_is_an_error_and_the_message_stays_the_senders() {
    let arena = arena();
    let queue = queue(&arena, 2);
    let shared = Tensor::<u8>::full_in(&arena, [4], 5).unwrap().freeze();
    let mut message = message::encode(&arena, vec![shared; 3]).unwrap();
    let (line, generation) = (message.pins[0].held.line, message.pins[0].held.generation);
    let word = arena.segment().word(line * LINE + counted::WORD);
    let full = Counted::new(generation, COUNT_MAX).to_word();
    // It needs two references more, since it has one for all three; with room for one it keeps that, and asks for one again.
    for count in [COUNT_MAX, COUNT_MAX - 1] {
        let counted = Counted::new(generation, count).to_word();
        word.store(counted, Ordering::SeqCst);
        for array in [0, 1] {
            let refused = queue.try_put(array, &mut message);
            assert_eq!(kind(refused), ErrorKind::CountOverflow);
            assert_eq!(word.load(Ordering::SeqCst), full);
        }
    }
    let opened = Held::open(&arena, line, generation);
    assert_eq!(kind(opened), ErrorKind::CountOverflow);
    word.store(Counted::new(generation, 2).to_word(), Ordering::SeqCst);
    // Nothing was claimed for what could not be sent.
    assert!(queue.holds_nothing() && queue.traffic() == (0, 0));
    for array in [0, 1] {
        let mut copy = message.duplicate().unwrap();
        assert!(matches!(
            queue.try_put(array, &mut copy).unwrap(),
            Put::Done(_)
        ));
        assert!(matches!(
            queue.try_get(array, &mut u64::MAX.clone()).unwrap(),
            Get::Message(..)
        ));
    }
    drop((queue, message));
    assert_empty(&arena);
}

#[test]
fn a_full_table_is_an_error_and_a_leaving_one_makes_room() {
    let root = arena();
    // As if 4,094 others had joined; they are this process, so nobody takes them for dead.
    let own = Row::get(root.segment(), 0).unwrap();
    let state = own.state();
    let mut high = layout::ROWS_STEP;
    while high < layout::ROWS {
        crate::participant::table::commit_rows(root.segment(), high).unwrap();
        high = crate::participant::table::rows_high(root.segment());
    }
    for number in 1..layout::ROWS as u16 {
        let row = Row::get(root.segment(), number).unwrap();
        for field in [layout::row::START_TIME, layout::row::PID_NAMESPACE] {
            row.word(field)
                .store(own.word(field).load(Ordering::SeqCst), Ordering::SeqCst);
        }
        assert!(row.change(RowState::free(0), RowState { epoch: 1, ..state }));
    }
    root.bury_the_dead();
    let copy = || rustix::io::fcntl_dupfd_cloexec(root.as_fd(), 0).unwrap();
    let full = Arena::join(copy());
    assert_eq!(kind(full), ErrorKind::ParticipantsFull { rows: 4095 });
    let last = Row::get(root.segment(), 4094).unwrap();
    assert!(last.change(RowState { epoch: 1, ..state }, RowState::free(1)));
    let joined = Arena::join(copy()).unwrap();
    assert_eq!((joined.me().row, joined.me().epoch), (4094, 2));
    let tensor = Tensor::<u8>::zeros_in(&joined, [4]).unwrap();
    assert_clean(&root);
    drop((tensor, joined));
    for number in 1..layout::ROWS as u16 {
        let row = Row::get(root.segment(), number).unwrap();
        row.change(row.state(), RowState::free(1));
    }
}

#[test]
fn an_epoch_wraps_and_the_row_goes_on() {
    let root = arena();
    let first = join(&root);
    let number = first.me().row;
    drop(first);
    let row = Row::get(root.segment(), number).unwrap();
    assert!(row.change(row.state(), RowState::free(u16::MAX)));
    let joined = join(&root);
    assert_eq!((joined.me().row, joined.me().epoch), (number, 0));
    let object = queue(&joined, 1);
    let dead = kill(joined, object);
    root.bury_for_certain(dead);
    assert_empty(&root);
}

#[test]
fn one_who_dies_while_joining_is_buried_and_touches_nothing_of_his_predecessor() {
    let root = arena();
    let first = join(&root);
    let second = join(&root);
    let row = Row::get(root.segment(), first.me().row).unwrap();
    drop(Tensor::<u8>::zeros_in(&first, [4]).unwrap());
    let epoch = first.me().epoch;
    drop(first);
    // `second` now holds things; its lease chunk may be the one that the row's old directory names.
    let tensor = Tensor::<u8>::zeros_in(&second, [4]).unwrap();
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    let pid = ended.id();
    ended.wait().unwrap();
    let joining = RowState {
        life: Life::Joining,
        epoch: epoch + 1,
        pid,
        tag: crate::participant::table::tag_of(
            crate::participant::liveness::own_namespace().unwrap(),
        ),
    };
    assert!(row.change(row.state(), joining));
    root.bury_the_dead();
    assert_eq!(row.state(), RowState::free(epoch + 1));
    // One that is alive, or of another namespace, stays.
    for other in [
        RowState {
            pid: std::process::id(),
            epoch: epoch + 2,
            ..joining
        },
        RowState {
            tag: joining.tag ^ 1,
            epoch: epoch + 3,
            ..joining
        },
    ] {
        assert!(row.change(row.state(), other));
        root.bury_the_dead();
        assert_eq!(row.state(), other);
    }
    assert_clean(&root);
    drop((tensor, second));
}

fn sealed(len: u64, content: &[u8]) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, len).unwrap();
    rustix::io::pwrite(&file, content, 0).unwrap();
    if content.len() as u64 > header::INODE {
        // Else it would be a copy.
        let inode = fstat(&file).unwrap().st_ino;
        rustix::io::pwrite(&file, &inode.to_ne_bytes(), header::INODE).unwrap();
    }
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL).unwrap();
    file
}

#[test]
fn files_that_are_no_arena_are_refused() {
    let size = 128_u64 << 20;
    let mut page = vec![0_u8; 4096];
    let set = |page: &mut [u8], at: u64, value: u64| {
        page[at as usize..at as usize + 8].copy_from_slice(&value.to_le_bytes());
    };
    assert_eq!(
        kind(Arena::join(sealed(size, &page))),
        ErrorKind::NotAnArena
    );
    set(&mut page, header::MAGIC, layout::MAGIC);
    assert_eq!(
        kind(Arena::join(sealed(size, &page))),
        ErrorKind::WrongVersion {
            found: 0,
            wanted: 1
        }
    );
    set(&mut page, header::VERSION, layout::VERSION);
    assert!(matches!(
        kind(Arena::join(sealed(size, &page))),
        ErrorKind::WrongVersion { .. }
    ));
    set(&mut page, header::SHAPE, crate::shape::FINGERPRINT);
    assert_eq!(kind(Arena::join(sealed(size, &page))), ErrorKind::Size);
    set(&mut page, header::CAPACITY, size);
    assert_eq!(
        kind(Arena::join(sealed(size / 2, &page))),
        ErrorKind::Size,
        "cut"
    );
    set(&mut page, header::CAPACITY, 2 << 20);
    assert_eq!(
        kind(Arena::join(sealed(2 << 20, &page))),
        ErrorKind::Size,
        "too small"
    );
    assert!(Arena::join(sealed(100, b"tensormp")).is_err());
    let unsealed = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&unsealed, size).unwrap();
    assert_eq!(kind(Arena::join(unsealed)), ErrorKind::NotAnArena);
    // A header that is right, and nothing else: no row is committed, and the first is made.
    set(&mut page, header::CAPACITY, size);
    let bare = Arena::join(sealed(size, &page)).unwrap();
    drop(Tensor::<u8>::zeros_in(&bare, [100]).unwrap());
    for garbage in [u64::MAX, 1, 1 << 40] {
        let mut page = page.clone();
        for at in (64..4096).step_by(8) {
            set(&mut page, at, garbage);
        }
        // Whatever it says: no panic. Rows that do not exist are not used.
        let _ = Arena::join(sealed(size, &page)).map(|arena| {
            let _ = Tensor::<u8>::zeros_in(&arena, [100]);
            arena.audit()
        });
    }
}

fn is_after_fork<T>(result: Result<T>) -> bool {
    result.is_err_and(|error| *error.kind() == ErrorKind::AfterFork)
}

#[test]
fn a_bare_fork_can_use_nothing_and_harms_nothing() {
    const NAME: &str = "tests::limits::a_bare_fork_can_use_nothing_and_harms_nothing";
    if let Some(mut child) = rerun(NAME) {
        return assert_passed(&output(&mut child));
    }
    let arena = arena();
    arena.watch();
    let queue = queue(&arena, 2);
    let end = queue.end(0).unwrap();
    let tensor = Tensor::<u8>::full_in(&arena, [4], 1).unwrap();
    let shared = Tensor::<u8>::full_in(&arena, [4], 2).unwrap().freeze();
    let mut message = message::encode(&arena, shared.clone()).unwrap();
    let audit = arena.audit();
    // SAFETY: the test runs alone in this process. The child uses only this thread's own state and the allocator, which
    // glibc makes usable after a fork, and ends by `_exit`.
    let child = unsafe { libc::fork() };
    assert!(child >= 0, "fork failed");
    if child == 0 {
        let checks = [
            is_after_fork(Tensor::<u8>::zeros_in(&arena, [4])),
            is_after_fork(Object::open(&arena, queue.handle())),
            is_after_fork(queue.try_put(0, &mut message)),
            is_after_fork(queue.try_put(1, &mut message)),
            is_after_fork(queue.try_get(0, &mut 0)),
            is_after_fork(queue.end(1)),
            message::encode(&arena, &shared)
                .is_err_and(|failed| *failed.error.kind() == ErrorKind::AfterFork),
            shared.clone().try_thaw().is_err(),
        ];
        arena.recorder().set_name("the fork");
        arena.bury_the_dead();
        drop((end, message, tensor.freeze(), shared, queue, arena));
        let failed = checks.iter().position(|check| !check);
        // SAFETY: ends the forked child at once, without running anything of the parent's.
        unsafe { libc::_exit(failed.map_or(0, |index| index as i32 + 1)) };
    }
    let pid = rustix::process::Pid::from_raw(child).unwrap();
    let (_, status) = rustix::process::waitpid(Some(pid), rustix::process::WaitOptions::empty())
        .unwrap()
        .unwrap();
    assert_eq!(
        status.exit_status(),
        Some(0),
        "that check failed, or it was killed"
    );
    assert_eq!(arena.audit(), audit);
    assert_eq!(arena.record_of(arena.me()).unwrap().name, "");
    assert_eq!(
        (tensor.as_slice(), shared.to_vec()),
        (&[1; 4][..], vec![2; 4])
    );
    assert!(matches!(
        queue.try_put(0, &mut message).unwrap(),
        Put::Done(_)
    ));
    // The watcher is still there: it buries one that nobody else would.
    let other = join(&arena);
    let dead = kill(other, ());
    let row = Row::get(arena.segment(), dead.row).unwrap();
    let state = row.state();
    // The forked child's pid is nobody's by now.
    assert!(row.change(
        state,
        RowState {
            pid: child as u32,
            ..state
        }
    ));
    while arena.is_present(dead) {
        std::thread::yield_now();
    }
    drop((end, message, tensor, shared, queue));
    assert_empty(&arena);
}

#[test]
fn a_hundred_thousand_tensors_are_one_mapping_and_one_descriptor() {
    const NAME: &str =
        "tests::limits::a_hundred_thousand_tensors_are_one_mapping_and_one_descriptor";
    if let Some(mut child) = rerun(NAME) {
        return assert_passed(&output(&mut child));
    }
    let arena = Arena::builder().capacity(1 << 30).create().unwrap();
    let first = Tensor::<u8>::zeros_in(&arena, [1]).unwrap();
    // Who has more than a little memory watches: one descriptor more, however much it is.
    arena.watch();
    let arenas = || {
        std::fs::read_to_string("/proc/self/maps")
            .unwrap()
            .lines()
            .filter(|line| line.contains("memfd:tensormp"))
            .count()
    };
    let descriptors = || std::fs::read_dir("/proc/self/fd").unwrap().count();
    let before = (arenas(), descriptors());
    assert_eq!(before.0, 1);
    let tensors: Vec<Tensor<u32>> = (0..100_000)
        .map(|number| Tensor::full_in(&arena, [10], number).unwrap())
        .collect();
    assert_eq!((arenas(), descriptors()), before);
    assert!(
        tensors
            .iter()
            .zip(0..)
            .all(|(tensor, number)| tensor.as_slice() == [number; 10])
    );
    drop((tensors, first));
    assert_empty(&arena);
}

#[test]
fn a_core_dump_neither_holds_nor_fills_the_arena() {
    const NAME: &str = "tests::limits::a_core_dump_neither_holds_nor_fills_the_arena";
    let pattern = std::fs::read_to_string("/proc/sys/kernel/core_pattern").unwrap();
    let pattern = pattern.trim();
    if rerun(NAME).is_none() {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let limit = Rlimit {
            current: Some(256 << 20),
            maximum: Some(256 << 20),
        };
        // A hard limit below stays; then there is no core, and nothing to see.
        let _ = setrlimit(Resource::Core, limit);
        let (arena, object) = borrowed();
        std::mem::forget(Tensor::<u8>::full_in(&arena, [1 << 20], 1).unwrap());
        std::mem::forget(object);
        std::process::abort();
    }
    if pattern.starts_with('|') || pattern.starts_with('/') {
        println!("skipped: cores go to {pattern:?}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let arena = Arena::builder().capacity(8 << 30).create().unwrap();
    let object = queue(&arena, 1);
    let taken = || {
        let file = format!("/proc/self/fd/{}", arena.as_fd().as_raw_fd());
        std::fs::metadata(file).unwrap().blocks() * 512
    };
    let before = taken();
    let mut child = rerun(NAME).unwrap();
    lend(&mut child, &arena, &object);
    let output = output(child.current_dir(folder.path()));
    assert_eq!(output.status.signal(), Some(6));
    assert!(
        taken() < before + (16 << 20),
        "the core dump filled the arena: {} bytes",
        taken()
    );
    let mut cores = 0;
    for entry in std::fs::read_dir(folder.path()).unwrap().flatten() {
        let size = entry.metadata().unwrap().len();
        assert!(size < 128 << 20, "{:?} has {size} bytes", entry.path());
        cores += 1;
    }
    if cores == 0 {
        println!("skipped: no core was written (a hard limit of 0, or a policy)");
    }
}
