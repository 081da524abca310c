//! Tests of named files: what is refused, who removes them, and every order of coming and leaving.

use std::io::{Read, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, symlink};

use rustix::fs::{FileExt, fcntl_getfl};

use super::*;
use crate::arena::Arena;
use crate::layout::{PAGE, header};

mod deaths;

const SIZE: u64 = 128 << 20;

fn directory() -> tempfile::TempDir {
    // Not in /dev/shm, where tests of other suites look for leftovers.
    tempfile::tempdir().unwrap()
}

fn named(directory: &Path, name: &str) -> Arena {
    Arena::builder()
        .name(name)
        .directory(directory)
        .capacity(SIZE)
        .create()
        .unwrap()
}

fn kind(place: impl AsRef<Path>) -> ErrorKind {
    Arena::attach(place).unwrap_err().kind().clone()
}

fn files(directory: &Path) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

#[test]
fn the_file_is_the_users_alone_and_closes_on_exec() {
    let directory = directory();
    let arena = named(directory.path(), "a");
    let path = arena.path().unwrap();
    assert_eq!(path, path_of(directory.path(), "a").unwrap());
    let mode = std::fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o600);
    for file in [&arena, &Arena::attach(&path).unwrap()] {
        let flags = rustix::io::fcntl_getfd(file).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        assert!(fcntl_getfl(file).unwrap().contains(OFlags::RDWR));
    }
}

#[test]
fn the_last_to_leave_removes_the_file() {
    let directory = directory();
    let first = named(directory.path(), "a");
    let second = Arena::attach(first.path().unwrap()).unwrap();
    let copy = rustix::io::fcntl_dupfd_cloexec(&second, 0).unwrap();
    let third = Arena::join(copy).unwrap();
    assert_eq!(third.strategy(), &"file_system");
    assert_eq!(third.participants(), 3);
    drop(first);
    drop(second);
    let path = third.path().unwrap();
    assert_eq!(Arena::attach(&path).unwrap().participants(), 2);
    // One that got it as a descriptor, and was never told its name.
    drop(third);
    assert_eq!(files(directory.path()), 0);
    assert_eq!(kind(&path), ErrorKind::NotFound);
}

#[test]
fn an_arena_that_cannot_be_made_leaves_no_file() {
    let directory = directory();
    let _there = named(directory.path(), "a");
    let again = Arena::builder()
        .name("a")
        .directory(directory.path())
        .capacity(SIZE)
        .create();
    let error = again.unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::AlreadyExists);
    let own = std::process::id().to_string();
    assert!(error.to_string().contains(&own), "{error}");
    let small = Arena::builder()
        .directory(directory.path())
        .capacity(2 << 20)
        .create();
    assert_eq!(small.unwrap_err().kind(), &ErrorKind::Layout);
    let limits = std::sync::Arc::new(crate::room::FixedLimits::new(0));
    let full = Arena::builder()
        .directory(directory.path())
        .limits(limits)
        .create();
    assert!(matches!(full.unwrap_err().kind(), ErrorKind::OutOfRoom(_)));
    let nowhere = Arena::builder()
        .directory(directory.path().join("nowhere"))
        .create();
    assert!(matches!(
        nowhere.unwrap_err().kind(),
        ErrorKind::System {
            operation: "open",
            ..
        }
    ));
    assert_eq!(files(directory.path()), 1);
}

#[test]
fn a_strategy_without_names_refuses_one() {
    for place in [
        Arena::builder().name("a"),
        Arena::builder().directory("/tmp"),
    ] {
        let error = place.strategy("file_descriptor").create().unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Unsupported);
    }
}

#[test]
fn a_name_that_is_no_file_name_is_an_error() {
    let long = "x".repeat(201);
    for name in ["", "a\nb", "a\0b", &long] {
        assert_eq!(kind(name), ErrorKind::Name, "{name:?}");
        let error = Arena::builder().name(name).create().unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::Name, "{name:?}");
    }
    let slash = Arena::builder().name("../a").create().unwrap_err();
    assert_eq!(slash.kind(), &ErrorKind::Name);
    assert_eq!(kind("no arena of that name"), ErrorKind::NotFound);
}

#[test]
fn a_planted_link_pipe_or_directory_is_refused() {
    let directory = directory();
    let arena = named(directory.path(), "a");
    let link = directory.path().join("link");
    symlink(arena.path().unwrap(), &link).unwrap();
    let pipe = directory.path().join("pipe");
    rustix::fs::mkfifoat(CWD, &pipe, Mode::RUSR | Mode::WUSR).unwrap();
    for planted in [link, pipe, directory.path().to_owned()] {
        assert_eq!(kind(&planted), ErrorKind::NotAnArena, "{planted:?}");
    }
}

#[test]
fn a_file_of_another_mode_or_owner_is_refused() {
    let directory = directory();
    let arena = named(directory.path(), "a");
    let path = arena.path().unwrap();
    let mode = |bits| std::fs::set_permissions(&path, PermissionsExt::from_mode(bits)).unwrap();
    for bits in [0o644, 0o660, 0o400, 0o4600] {
        mode(bits);
        let wanted = ErrorKind::WrongPermission {
            found: bits,
            wanted: 0o600,
        };
        assert_eq!(kind(&path), wanted);
    }
    mode(0o600);
    if !geteuid().is_root() {
        eprintln!("skipped: only root can give a file to another user");
        return;
    }
    std::os::unix::fs::chown(&path, Some(12345), None).unwrap();
    let wanted = ErrorKind::WrongOwner {
        found: 12345,
        wanted: 0,
    };
    assert_eq!(kind(&path), wanted);
    std::os::unix::fs::chown(&path, Some(0), None).unwrap();
}

#[test]
fn each_way_in_which_a_file_is_no_arena_has_its_error() {
    let directory = directory();
    let arena = named(directory.path(), "a");
    let path = arena.path().unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    let with = |field: u64, value: u64| {
        let before = arena
            .segment()
            .word(field)
            .swap(value, core::sync::atomic::Ordering::SeqCst);
        let kind = kind(&path);
        let restored = before.to_ne_bytes();
        file.write_all_at(&restored, field).unwrap();
        kind
    };
    assert_eq!(with(header::MAGIC, 7), ErrorKind::NotAnArena);
    let version = ErrorKind::WrongVersion {
        found: 999,
        wanted: crate::layout::VERSION as u32,
    };
    assert_eq!(with(header::VERSION, 999), version);
    let version = ErrorKind::WrongVersion {
        found: crate::layout::VERSION as u32,
        wanted: crate::layout::VERSION as u32,
    };
    assert_eq!(with(header::SHAPE, 7), version, "its words look different");
    assert_eq!(with(header::CAPACITY, SIZE - PAGE), ErrorKind::Size);
    assert_eq!(with(header::INODE, 1), ErrorKind::Copied);
    assert_eq!(with(header::BOOT, 1), ErrorKind::Stale);
    assert_eq!(with(header::ROWS_HIGH, 4096), ErrorKind::Layout);
    assert_eq!(with(header::CHUNKS_HIGH, 60), ErrorKind::Layout);
    assert!(Arena::attach(&path).is_ok());

    let other = directory.path().join("other");
    for (size, wanted) in [
        (0, ErrorKind::Size),
        (PAGE + 1, ErrorKind::Size),
        (PAGE, ErrorKind::NotAnArena),
        (SIZE, ErrorKind::NotAnArena),
    ] {
        std::fs::write(&other, []).unwrap();
        std::fs::set_permissions(&other, PermissionsExt::from_mode(0o600)).unwrap();
        let file = std::fs::File::options().write(true).open(&other).unwrap();
        file.set_len(size).unwrap();
        assert_eq!(kind(&other), wanted, "{size} bytes");
    }
    // One whose size and header agree, but which is too small for the parts of an arena.
    let file = std::fs::File::options().write(true).open(&other).unwrap();
    file.set_len(PAGE).unwrap();
    for (field, value) in [
        (header::MAGIC, crate::layout::MAGIC),
        (header::VERSION, crate::layout::VERSION),
        (header::SHAPE, crate::shape::FINGERPRINT),
        (header::CAPACITY, PAGE),
    ] {
        file.write_all_at(&value.to_ne_bytes(), field).unwrap();
    }
    assert_eq!(kind(&other), ErrorKind::Size);
}

#[test]
fn a_memory_file_that_could_shrink_is_adopted_by_no_strategy() {
    let file = rustix::fs::memfd_create("bare", rustix::fs::MemfdFlags::ALLOW_SEALING).unwrap();
    fchmod(&file, Mode::from_raw_mode(MODE)).unwrap();
    ftruncate(&file, SIZE).unwrap();
    assert_eq!(
        Arena::join(file).unwrap_err().kind(),
        &ErrorKind::NotAnArena
    );
}

#[test]
fn a_file_is_seen_only_when_the_arena_in_it_is_whole() {
    let directory = directory();
    let strategy = FileSystem::new().directory(directory.path());
    let mut backing = strategy.create().unwrap();
    let path = backing.path().unwrap().to_owned();
    for _ in 0..2 {
        assert_eq!(kind(&path), ErrorKind::NotFound);
        // Its maker is at it.
        assert_eq!(sweep(directory.path(), false).unwrap(), []);
        strategy.fix_size(&mut backing, SIZE).unwrap();
    }
    strategy.reveal(&backing).unwrap();
    assert_eq!(files(directory.path()), 1);
    assert!(path.exists());
    drop(backing);
    std::fs::remove_file(path).unwrap();
    drop(strategy.create().unwrap());
    assert_eq!(files(directory.path()), 0);
}

#[test]
fn whoever_comes_while_the_last_one_leaves_is_in_or_finds_nothing() {
    let directory = directory();
    let path = path_of(directory.path(), "a").unwrap();
    let (mut came, mut late) = (0, 0);
    for _ in 0..100 {
        let arena = named(directory.path(), "a");
        let barrier = std::sync::Barrier::new(2);
        let attached = std::thread::scope(|scope| {
            let attacher = scope.spawn(|| {
                barrier.wait();
                Arena::attach(&path)
            });
            barrier.wait();
            drop(arena);
            attacher.join().unwrap()
        });
        match attached {
            Ok(arena) => {
                came += 1;
                // In for good: by its name others still find it.
                assert!(is_name_of(&path, arena.as_fd()));
                assert_eq!(Arena::attach(&path).unwrap().participants(), 2);
            }
            Err(error) => {
                late += 1;
                assert_eq!(error.kind(), &ErrorKind::NotFound);
            }
        }
        assert_eq!(files(directory.path()), 0);
    }
    eprintln!("{came} came in, {late} came too late");
}

#[test]
fn a_gate_that_a_stopped_process_holds_is_an_error_not_a_hang() {
    let directory = directory();
    let arena = named(directory.path(), "a");
    let _gate = arena.locks().gate(Duration::ZERO).unwrap().unwrap();
    let other = RowLocksOf(&arena).gate();
    assert!(other.is_none());
}

/// Another description of the arena's file.
struct RowLocksOf<'a>(&'a Arena);

impl RowLocksOf<'_> {
    fn gate(&self) -> Option<()> {
        let locks = crate::participant::lock::RowLocks::open(self.0.as_fd(), SIZE).unwrap();
        let gate = locks.gate(Duration::from_millis(3)).unwrap();
        gate.map(drop)
    }
}

#[test]
fn a_file_that_was_removed_by_hand_is_no_error_for_those_who_leave() {
    let directory = directory();
    let arena = named(directory.path(), "a");
    std::fs::remove_file(arena.path().unwrap()).unwrap();
    assert_eq!(arena.path(), None);
    let next = named(directory.path(), "a");
    // Somebody else's now.
    drop(arena);
    assert!(next.path().unwrap().exists());
}

#[test]
fn a_copy_of_an_arenas_file_is_refused_and_swept_while_the_original_lives() {
    let directory = directory();
    let original = named(directory.path(), "a");
    let path = original.path().unwrap();
    let copy = path_of(directory.path(), "copy").unwrap();
    // The control structures are all there is; as `cp` would, without its time for the holes.
    let mut bytes = vec![0; 1 << 20];
    std::fs::File::open(&path)
        .unwrap()
        .read_exact(&mut bytes)
        .unwrap();
    let file = std::fs::File::options()
        .write(true)
        .create_new(true)
        .mode(MODE)
        .open(&copy)
        .unwrap();
    (&file).write_all(&bytes).unwrap();
    file.set_len(SIZE).unwrap();
    let error = Arena::attach(&copy).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Copied);
    assert!(error.to_string().contains("copy"), "{error}");
    let seen = list(directory.path()).unwrap();
    let standings: Vec<_> = seen
        .iter()
        .map(|found| (found.standing, found.participants.len()))
        .collect();
    assert_eq!(
        standings,
        [(Standing::Inhabited, 1), (Standing::Abandoned, 0)]
    );
    let swept = sweep(directory.path(), false).unwrap();
    assert_eq!(swept.len(), 1);
    assert!(swept[0].removed && swept[0].found.path == copy);
    assert_eq!(original.path(), Some(path));
}

#[test]
fn a_file_of_somebodys_own_that_has_an_arenas_name_is_left_alone() {
    let directory = directory();
    let path = path_of(directory.path(), "notes").unwrap();
    for content in ["t", "my notes", "tensorm", "tensormq"] {
        std::fs::write(&path, content).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(MODE)).unwrap();
        let begins_like_one = "tensormp".starts_with(content);
        let swept = sweep(directory.path(), true).unwrap();
        assert_eq!(swept.len(), usize::from(begins_like_one), "{content}");
    }
}
