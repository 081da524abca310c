//! What a look from outside sees, and that it leaves no trace.

use core::sync::atomic::Ordering;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd};
use std::process::{Command, Stdio};

use rustix::fs::{MemfdFlags, fstat, ftruncate, memfd_create};
use rustix::io::pwrite;

use super::*;
use crate::arena::Arena;
use crate::error::ErrorKind;
use crate::layout::{self, WORD, descriptor, header, row};
use crate::participant::liveness::Verdict;
use crate::tensor::Tensor;

fn arena() -> Arena {
    Arena::builder().capacity(1 << 30).create().unwrap()
}

#[test]
fn a_look_from_outside_sees_what_the_arena_says_of_itself() {
    let arena = arena();
    arena.recorder().set_name("maker");
    let small: Vec<_> = (0..100)
        .map(|_| Tensor::<u8>::zeros_in(&arena, 4096).unwrap())
        .collect();
    let large = Tensor::<u8>::zeros_in(&arena, 5 << 20).unwrap();
    let (seen, stats) = (inspect(&arena).unwrap(), arena.stats());
    assert_eq!(
        (
            seen.capacity,
            seen.committed,
            seen.live,
            seen.cached,
            seen.blocks
        ),
        (
            stats.capacity,
            stats.committed,
            stats.live,
            stats.cached,
            stats.blocks
        )
    );
    assert_eq!((seen.blocks, seen.is_inhabited()), (101, true));
    let [member] = &seen.members[..] else {
        panic!("{seen:?}")
    };
    assert_eq!((member.who, member.name.as_str()), (arena.me(), "maker"));
    assert_eq!((member.blocks, member.bytes), (101, seen.live));
    assert!(member.pid_is_ours && member.verdict == Verdict::Alive);
    drop((small, large));
    let seen = inspect(&arena).unwrap();
    assert_eq!((seen.blocks, seen.live, seen.members[0].blocks), (0, 0, 0));
    assert_eq!(seen.cached, arena.stats().cached);
}

#[test]
fn a_look_takes_no_row_and_no_memory_and_writes_nothing() {
    let arena = arena();
    let tensor = Tensor::<u8>::zeros_in(&arena, 3 << 20).unwrap();
    let content = || {
        let taken = fstat(&arena).unwrap().st_blocks;
        let words = (0..layout::PAGE / WORD + 256).map(|index| {
            let word = arena.segment().word(index * WORD);
            word.load(Ordering::Relaxed)
        });
        (taken, words.collect::<Vec<_>>())
    };
    let before = content();
    let read_only = rustix::fs::open(
        format!("/proc/self/fd/{}", arena.as_fd().as_raw_fd()),
        rustix::fs::OFlags::RDONLY,
        rustix::fs::Mode::empty(),
    );
    assert_eq!(inspect(read_only.unwrap()).unwrap().members.len(), 1);
    assert_eq!(content(), before);
    drop(tensor);
}

#[test]
fn who_only_looks_at_an_arena_is_no_holder_of_it() {
    let arena = arena();
    let place = format!("/proc/self/fd/{}", arena.as_fd().as_raw_fd());
    let looks = File::open(&place).unwrap();
    // It waits for what we never write, with the arena as its output.
    let mut looker = Command::new("cat")
        .stdin(Stdio::piped())
        .stdout(looks)
        .spawn()
        .unwrap();
    let id = inspect(&arena).unwrap().id;
    let all = find::<&str>(&[]).unwrap();
    let this = |seen: &&Seen| seen.contents.as_ref().is_ok_and(|seen| seen.id == id);
    let holders = &all.iter().find(this).unwrap().holders;
    drop(looker.stdin.take());
    assert!(looker.wait().unwrap().success());
    assert!(holders.contains(&std::process::id()), "{holders:?}");
    assert!(!holders.contains(&looker.id()), "{holders:?}");
}

#[test]
fn files_that_are_no_arenas_say_what_they_are_instead() {
    let kind = |file: std::os::fd::OwnedFd| inspect(file).unwrap_err().kind().clone();
    let file = |size: u64| {
        let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
        ftruncate(&file, size).unwrap();
        file
    };
    assert_eq!(kind(file(0)), ErrorKind::NotAnArena);
    assert_eq!(kind(file(100)), ErrorKind::NotAnArena);
    assert_eq!(kind(file(1 << 60)), ErrorKind::NotAnArena);
    let (pipe, _writer) = rustix::pipe::pipe().unwrap();
    assert_eq!(kind(pipe), ErrorKind::NotAnArena);
    let with = |words: &[(u64, u64)]| {
        let size = 1 << 50;
        let file = file(size);
        let good = [
            (header::MAGIC, layout::MAGIC),
            (header::VERSION, layout::VERSION),
            (header::SHAPE, crate::shape::FINGERPRINT),
            (header::CAPACITY, size),
            (header::INODE, fstat(&file).unwrap().st_ino),
        ];
        for (at, word) in good.iter().chain(words) {
            pwrite(&file, &word.to_ne_bytes(), *at).unwrap();
        }
        file
    };
    assert!(inspect(with(&[])).unwrap().members.is_empty());
    assert!(matches!(
        kind(with(&[(header::VERSION, 9)])),
        ErrorKind::WrongVersion { found: 9, .. }
    ));
    assert_eq!(kind(with(&[(header::CAPACITY, 7)])), ErrorKind::Size);
    assert_eq!(
        kind(with(&[(header::ROWS_HIGH, 1 << 40)])),
        ErrorKind::Layout
    );
    // Half a billion chunks, which fit into the size it has: more than anyone would wait for.
    let chunks = layout::chunk_count(1 << 50);
    assert_eq!(
        kind(with(&[(header::CHUNKS_HIGH, chunks)])),
        ErrorKind::Layout
    );
}

#[test]
fn words_of_a_broken_peer_are_an_answer_or_an_error_and_nothing_else() {
    // As in the fuzzers: any word may become anything.
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let arena = arena();
    let _kept: Vec<_> = (0..50)
        .map(|index| Tensor::<u8>::zeros_in(&arena, 1000 * index).unwrap())
        .collect();
    let taken = usize::try_from(inspect(&arena).unwrap().taken).unwrap();
    let mut copy = vec![0; taken.min(16 << 20)];
    let length = rustix::io::pread(&arena, &mut copy[..], 0).unwrap();
    let file = memfd_create("test", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, arena.segment().capacity()).unwrap();
    pwrite(&file, &copy[..length], 0).unwrap();
    be_original(&file);
    let first = layout::ROWS_START;
    let interesting = [
        header::ROWS_HIGH,
        header::CHUNKS_HIGH,
        header::COMMITTED,
        first + row::STATE,
        first + row::LEASES_HIGH,
        first + row::DIRECTORY,
        first + row::NAME,
        layout::DESCRIPTORS_START + descriptor::STATE,
        layout::DESCRIPTORS_START + descriptor::BUMP,
        layout::DESCRIPTORS_START + descriptor::COMMITTED,
    ];
    for _ in 0..300 {
        let at = interesting[random() as usize % interesting.len()];
        let word = random() >> (random() % 64);
        pwrite(&file, &word.to_ne_bytes(), at).unwrap();
        match inspect(&file) {
            Ok(seen) => assert!(seen.members.len() <= layout::ROWS as usize),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::Layout), "{error}"),
        }
    }
}

#[test]
fn reading_a_hole_takes_no_memory() {
    let arena = arena();
    let taken = || fstat(&arena).unwrap().st_blocks;
    let before = taken();
    let stat = fstat(&arena).unwrap();
    let reader = Reader::new(&arena, &stat, Path::new("a test"));
    assert!(
        reader
            .words(512 << 20, 1 << 17)
            .unwrap()
            .iter()
            .all(|&word| word == 0)
    );
    assert_eq!(taken(), before);
    // A look through a mapping would: that is what this avoids.
    assert_eq!(arena.segment().word(512 << 20).load(Ordering::Relaxed), 0);
    assert!(taken() > before);
}

#[test]
fn an_arena_whose_descriptors_are_closed_is_found_by_its_mappings() {
    let arena = arena();
    let mut head = vec![0; 1 << 20];
    let length = rustix::io::pread(&arena, &mut head[..], 0).unwrap();
    let file = memfd_create("tensormp", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::fchmod(&file, rustix::fs::Mode::from_raw_mode(0o600)).unwrap();
    ftruncate(&file, arena.segment().capacity()).unwrap();
    // An identity of its own, to know it by.
    head[header::ID_LOW as usize] ^= 1;
    pwrite(&file, &head[..length], 0).unwrap();
    be_original(&file);
    let id = inspect(&arena).unwrap().id[0] ^ 1;
    let map = memmap2::MmapOptions::new()
        .len(4096)
        .map_raw(&file)
        .unwrap();
    drop(file);
    let all = find::<&str>(&[]).unwrap();
    // A child that another test is just starting has this process's memory until it runs its program.
    let here = std::process::id();
    let ours = |seen: &&Seen| seen.holders.contains(&here) && seen.path.is_none();
    let looked_into = |seen: &Seen| seen.contents.as_ref().is_ok_and(|seen| seen.id[0] == id);
    let refused = |seen: &Seen| {
        let error = seen.contents.as_ref().err();
        error.is_some_and(|error| error.to_string().contains("has an arena mapped"))
    };
    // Who may follow such links gets in, others are told.
    let able = rustix::fs::stat(format!("/proc/self/map_files/{}", range_of(&map))).is_ok();
    match able {
        true => assert!(all.iter().filter(ours).any(looked_into), "{all:?}"),
        false => assert!(all.iter().filter(ours).any(refused), "{all:?}"),
    }
}

/// Makes a copy of an arena's file look like no copy.
fn be_original(file: &std::os::fd::OwnedFd) {
    let inode = fstat(file).unwrap().st_ino;
    pwrite(file, &inode.to_ne_bytes(), header::INODE).unwrap();
}

/// As the mapping is called in /proc/self/map_files.
fn range_of(map: &memmap2::MmapRaw) -> String {
    let start = map.as_ptr() as usize;
    format!("{:x}-{:x}", start, start + map.len())
}
