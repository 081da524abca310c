//! What memory costs, what is kept of it, and what is there when it is full.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{arena, join, kill};
use crate::arena::Arena;
use crate::chunk::Chunks;
use crate::error::ErrorKind;
use crate::held::Held;
use crate::layout::descriptor;
use crate::line::Mode;
use crate::room::FixedLimits;
use crate::segment::HugePages;
use crate::tensor::Tensor;
use crate::testing::{self, assert_passed, output, rerun};

const MIB: u64 = 1 << 20;

/// Bytes of memory that the arena's file has.
fn taken(arena: &Arena) -> u64 {
    rustix::fs::fstat(arena.as_fd()).unwrap().st_blocks as u64 * 512
}

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter(|line| line.contains("memfd:")).count()
}

#[test]
fn a_million_tensors_take_one_descriptor_one_mapping_and_128_bytes_each_beside_their_own() {
    const NAME: &str = "tests::memory::a_million_tensors_take_one_descriptor_one_mapping_and_128_bytes_each_beside_their_own";
    const COUNT: u64 = 1_000_000;
    const EACH: u64 = 64;
    if let Some(mut child) = rerun(NAME) {
        return assert_passed(&output(&mut child));
    }
    let arena = Arena::builder().capacity(1 << 30).create().unwrap();
    let new = taken(&arena);
    assert!(new <= MIB, "a new arena takes {new} bytes");
    drop(Held::allocate(&arena, EACH, Mode::Exclusive).unwrap());
    // Who has more than a little memory watches: one descriptor more, however much it is.
    arena.watch();
    let (before, open, mapped) = (taken(&arena), descriptors(), mappings());
    let all: Vec<Held> = (0..COUNT)
        .map(|_| Held::allocate(&arena, EACH, Mode::Exclusive).unwrap())
        .collect();
    assert_eq!((descriptors(), mappings()), (open, mapped));
    assert_eq!(mapped, 1);
    let each = (taken(&arena) - before) as f64 / COUNT as f64;
    assert!(
        each <= (EACH + 128) as f64,
        "{each} bytes for each of {EACH}"
    );
    assert_eq!(arena.stats().blocks, COUNT);
    drop(all);
    assert_eq!(arena.stats().blocks, 0);
    assert!(arena.trim() > 0);
}

#[test]
fn joining_takes_no_memory_in_proportion_to_the_capacity() {
    let mut grown = Vec::new();
    for capacity in [1 << 30, 64 << 30] {
        let arena = Arena::builder().capacity(capacity).create().unwrap();
        let before = taken(&arena);
        let others: Vec<Arena> = (0..8).map(|_| join(&arena)).collect();
        grown.push(taken(&arena) - before);
        drop(others);
    }
    assert_eq!(grown[0], grown[1]);
    assert!(grown[0] <= MIB);
}

#[test]
fn free_memory_above_the_cache_limit_goes_back_but_not_what_a_device_has_pinned() {
    let limit = 16 * MIB;
    let arena = Arena::builder()
        .capacity(1 << 30)
        .cache_limit(limit)
        .create()
        .unwrap();
    let allocate = |bytes| Held::allocate(&arena, bytes, Mode::Exclusive).unwrap();
    for bytes in [40 * MIB, 12 * MIB, 3 * MIB] {
        let blocks: Vec<Held> = (0..80 * MIB / bytes).map(|_| allocate(bytes)).collect();
        drop(blocks);
        let stats = arena.stats();
        assert!(stats.cached <= 2 * limit, "{bytes}: {stats:?}");
    }
    let small: Vec<Held> = (0..20_000).map(|_| allocate(4096)).collect();
    assert!(arena.stats().live >= 75 * MIB);
    drop(small);
    let stats = arena.stats();
    assert!(stats.cached <= 2 * limit, "{stats:?}");
    // Under the limit it is kept.
    drop(allocate(12 * MIB));
    let paid = arena.stats().committed;
    drop(allocate(12 * MIB));
    assert_eq!(arena.stats().committed, paid);
    // Pinned.
    let large = allocate(60 * MIB);
    let chunks = Chunks::new(arena.segment());
    let chunk = crate::heap::locate(arena.segment(), large.line)
        .unwrap()
        .chunk;
    let me = arena.me();
    let pins = chunks.word(chunk, descriptor::PINS[0]);
    pins.store(
        u64::from(me.row + 1) | u64::from(me.epoch) << 16,
        Ordering::SeqCst,
    );
    let committed = || {
        chunks
            .word(chunk, descriptor::COMMITTED)
            .load(Ordering::SeqCst)
    };
    drop(large);
    assert_eq!(committed(), 60 * MIB);
    pins.store(0, Ordering::SeqCst);
    drop(allocate(12 * MIB));
    assert!(arena.stats().cached <= 2 * limit, "{:?}", arena.stats());
}

#[test]
fn what_a_process_shares_because_it_has_too_much_counts_against_the_cache_limit() {
    // Above what a process keeps of so small an arena, so that the rest is shared before the limit is reached.
    let limit = 36 * MIB;
    let arena = Arena::builder()
        .capacity(256 << 20)
        .cache_limit(limit)
        .create()
        .unwrap();
    let blocks: Vec<Held> = (0..12)
        .map(|_| Held::allocate(&arena, 10 * MIB, Mode::Exclusive).unwrap())
        .collect();
    drop(blocks);
    assert!(arena.stats().cached <= 2 * limit, "{:?}", arena.stats());
}

#[test]
fn what_the_gone_and_the_dead_kept_counts_against_the_cache_limit() {
    let limit = 8 * MIB;
    let root = Arena::builder()
        .capacity(1 << 30)
        .cache_limit(limit)
        .create()
        .unwrap();
    for dies in [false, true] {
        let other = join(&root);
        let block = Held::allocate(&other, 40 * MIB, Mode::Exclusive).unwrap();
        if dies {
            let dead = kill(other, block);
            root.bury_for_certain(dead);
        } else {
            drop((block, other));
        }
        assert!(root.stats().cached <= limit, "{:?}", root.stats());
    }
}

#[test]
fn memory_taken_up_front_is_there_and_used_first() {
    let arena = Arena::builder()
        .capacity(1 << 30)
        .prefault(33 * MIB)
        .create()
        .unwrap();
    let before = arena.stats();
    assert_eq!((before.committed, before.cached), (34 * MIB, 34 * MIB));
    let block = Held::allocate(&arena, 20 * MIB, Mode::Exclusive).unwrap();
    assert_eq!(arena.stats().committed, 34 * MIB);
    drop(block);
    // But for the chunk with the lease of the block.
    assert_eq!(arena.trim(), 32 * MIB);
}

#[test]
fn memory_that_is_not_there_up_front_is_an_error_and_no_arena() {
    let builder = || {
        Arena::builder()
            .capacity(1 << 30)
            .limits(Arc::new(FixedLimits::new(16 * MIB)))
    };
    let folder = tempfile::tempdir().unwrap();
    for builder in [builder(), builder().directory(folder.path()).name("none")] {
        let error = builder.prefault(17 * MIB).create().unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::OutOfRoom(_)), "{error}");
    }
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    let error = Arena::builder()
        .capacity(1 << 30)
        .prefault(2 << 30)
        .limits(Arc::new(FixedLimits::new(u64::MAX)))
        .create()
        .unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::CapacityExhausted { .. }),
        "{error}"
    );
    builder().prefault(4 * MIB).create().unwrap();
}

#[test]
fn huge_pages_are_there_or_it_is_said_why_not() {
    let plain = arena();
    assert_eq!(plain.page_size().why_not, None);
    let asked = || Arena::builder().capacity(128 << 20).prefault(4 * MIB);
    let arena = asked().huge_pages(HugePages::IfPossible).create().unwrap();
    let pages = arena.page_size();
    assert_eq!(pages.huge, pages.why_not.is_none(), "{pages}");
    assert_eq!(join(&arena).page_size(), pages);
    let demanded = asked().huge_pages(HugePages::Required).create();
    match &pages.why_not {
        None => assert!(demanded.unwrap().page_size().huge),
        Some(reason) => {
            let error = demanded.unwrap_err();
            assert_eq!(*error.kind(), ErrorKind::Unsupported, "{error}");
            assert!(error.to_string().contains(reason.as_str()), "{error}");
        }
    }
    let mut tensor = Tensor::<u8>::full_in(&arena, 3 << 20, 7).unwrap();
    tensor.as_mut_slice()[1] = 8;
    assert_eq!(tensor.as_slice()[..3], [7, 8, 7]);
}

/// A hugetlbfs that we may write to and that has free pages.
fn hugetlbfs() -> Result<std::path::PathBuf, String> {
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mut places = mounts.lines().filter_map(|line| {
        let mut words = line.split(' ').skip(1);
        let place = words.next()?;
        (words.next()? == "hugetlbfs").then_some(place)
    });
    let place = places.next().ok_or("no hugetlbfs is mounted")?;
    let free = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let free = free.lines().find_map(|line| {
        let number = line.strip_prefix("HugePages_Free:")?;
        number.trim().parse::<u64>().ok()
    });
    match free {
        Some(pages) if pages >= 24 => Ok(place.into()),
        _ => Err(format!("only {free:?} huge pages are free, of 24")),
    }
}

#[test]
fn an_arena_on_a_hugetlbfs_takes_and_gives_back_whole_huge_pages() {
    let place = match hugetlbfs() {
        Ok(place) => place,
        Err(reason) => return println!("skipped: {reason}"),
    };
    let made = Arena::builder()
        .capacity(128 << 20)
        .directory(&place)
        .huge_pages(HugePages::Required)
        .create();
    let arena = match made {
        Ok(arena) => arena,
        Err(error) => return println!("skipped: {error}"),
    };
    let pages = arena.page_size().clone();
    assert!(pages.huge && pages.bytes >= 2 * MIB, "{pages}");
    let small = Tensor::<u8>::full_in(&arena, 100, 1).unwrap();
    assert!(arena.stats().committed >= 2 * MIB);
    let large = Tensor::<u8>::full_in(&arena, 5 << 20, 2).unwrap();
    assert!(large.as_slice().iter().all(|&byte| byte == 2));
    assert!(small.as_slice().iter().all(|&byte| byte == 1));
    let before = taken(&arena);
    drop(large);
    assert!(arena.trim() >= 6 * MIB);
    assert!(taken(&arena) + 6 * MIB <= before);
    // More than there is: the typed error, and nobody is killed by SIGBUS.
    let mut all = Vec::new();
    let error = loop {
        match Tensor::<u8>::full_in(&arena, 2 << 20, 3) {
            Ok(tensor) => all.push(tensor),
            Err(error) => break error,
        }
    };
    assert!(
        matches!(
            error.kind(),
            ErrorKind::OutOfRoom(_) | ErrorKind::CapacityExhausted { .. }
        ),
        "{error}"
    );
}

/// Tensors of 2 MiB, filled, until there is no room; what they hold is looked at afterwards.
fn fill(arena: &Arena) -> (u64, crate::Error) {
    let mut all: Vec<Tensor<u8>> = Vec::new();
    let error = loop {
        match Tensor::full_in(arena, 2 << 20, all.len() as u8) {
            Ok(tensor) => all.push(tensor),
            Err(error) => break error,
        }
    };
    for (number, tensor) in all.iter().enumerate() {
        assert!(tensor.as_slice().iter().all(|&byte| byte == number as u8));
    }
    let filled = all.len() as u64 * 2 * MIB;
    // Small ones fail as well, or have what they say; and what is dropped can be had again.
    while let Ok(tensor) = Tensor::<u8>::full_in(arena, 4096, 1) {
        std::mem::forget(tensor);
    }
    drop(all);
    drop(Tensor::<u8>::full_in(arena, 10 << 20, 1).unwrap());
    (filled, error)
}

#[test]
fn a_named_arena_on_a_full_tmpfs_gives_the_typed_error_and_nobody_is_killed() {
    const NAME: &str =
        "tests::memory::a_named_arena_on_a_full_tmpfs_gives_the_typed_error_and_nobody_is_killed";
    let Some(child) = rerun(NAME) else {
        let place = testing::tmpfs();
        let arena = Arena::builder()
            .capacity(1 << 30)
            .directory(&place)
            .name("full")
            .create()
            .unwrap();
        let other = Arena::attach(arena.path().unwrap()).unwrap();
        let (filled, error) = fill(&other);
        let ErrorKind::OutOfRoom(shortage) = error.kind() else {
            panic!("{error}")
        };
        assert!((52 * MIB..64 * MIB).contains(&filled), "{filled}: {error}");
        assert!(shortage.limit.contains(place.to_str().unwrap()), "{error}");
        return;
    };
    match testing::in_tmpfs(&child, 64) {
        Ok(output) => assert_passed(&output),
        Err(reason) => println!("skipped: {reason}"),
    }
}

#[test]
fn an_arena_in_a_full_cgroup_gives_the_typed_error_and_nobody_is_killed() {
    const NAME: &str =
        "tests::memory::an_arena_in_a_full_cgroup_gives_the_typed_error_and_nobody_is_killed";
    let Some(mut child) = rerun(NAME) else {
        let cgroup = testing::Cgroup::enter();
        for builder in [
            Arena::builder(),
            Arena::builder().strategy(crate::strategy::FileSystem::new()),
        ] {
            let arena = builder.capacity(1 << 30).create().unwrap();
            let (filled, error) = fill(&arena);
            let ErrorKind::OutOfRoom(shortage) = error.kind() else {
                panic!("{error}")
            };
            assert!((30 * MIB..64 * MIB).contains(&filled), "{filled}: {error}");
            assert!(shortage.limit.contains(cgroup.to_str().unwrap()), "{error}");
        }
        return;
    };
    match testing::Cgroup::new(64 * MIB) {
        Ok(cgroup) => assert_passed(&output(cgroup.lend(&mut child))),
        Err(reason) => println!("skipped: no memory cgroup can be made here: {reason}"),
    }
}

#[test]
fn a_full_arena_gives_the_typed_error_by_whatever_limit() {
    let arena = Arena::builder()
        .capacity(1 << 30)
        .limits(Arc::new(Budget(64 * MIB)))
        .create()
        .unwrap();
    let (filled, error) = fill(&arena);
    assert!(matches!(error.kind(), ErrorKind::OutOfRoom(_)), "{error}");
    assert!((52 * MIB..64 * MIB).contains(&filled), "{filled}: {error}");
}

/// A machine with this much memory for the arena's file.
#[derive(Debug)]
struct Budget(u64);

impl crate::room::Limits for Budget {
    fn each(
        &self,
        _: u64,
        file: std::os::fd::BorrowedFd<'_>,
        see: &mut dyn FnMut(crate::room::Limit<'_>),
    ) -> crate::Result<()> {
        let taken = rustix::fs::fstat(file).unwrap().st_blocks as u64 * 512;
        see(crate::room::Limit {
            name: &"the budget",
            free: self.0.saturating_sub(taken),
            reserve: 0,
            hint: "none",
        });
        Ok(())
    }
}
