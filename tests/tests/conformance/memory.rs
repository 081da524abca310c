//! What it costs and where it ends: descriptors, mappings, room, files.

use std::os::fd::AsFd;
use std::sync::Arc;

use integration_tests::{Test, tests};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tensormp::prelude::*;
use tensormp::shm_core::ErrorKind;
use tensormp::shm_core::room::FixedLimits;

use crate::peer::{peer, way};

pub(crate) const PROMISES: &[Test] = &tests![
    thousands_of_tensors_take_no_descriptor_and_no_mapping,
    a_descriptor_that_cannot_be_had_is_an_error_that_says_so,
    a_full_limit_is_an_error_that_names_it_and_what_to_do,
    what_was_dropped_is_free_again,
    the_arena_is_of_the_strategy_that_was_set,
    the_strategy_cannot_change_under_an_arena,
    a_descriptor_of_an_arena_closes_on_exec,
];

fn descriptors() -> usize {
    std::fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps")
        .unwrap()
        .lines()
        .count()
}

fn thousands_of_tensors_take_no_descriptor_and_no_mapping() {
    fn count(_rank: usize, from: Receiver<Tensor<u32>>) -> tensormp::Result<(usize, usize, usize)> {
        let first = from.get()?;
        let (open, mapped) = (descriptors(), mappings());
        let mut kept = vec![first];
        kept.extend(from.iter());
        assert!(
            kept.iter()
                .zip(0..)
                .all(|(tensor, i)| tensor.as_slice() == [i; 8])
        );
        // The process's own heap may grow by a mapping or two, and the thread that watches over peers has two files.
        let more = (
            descriptors().saturating_sub(open) / 16,
            mappings().saturating_sub(mapped) / 16,
        );
        Ok((kept.len(), more.0, more.1))
    }
    let (sender, receiver) = Queue::bounded(64).unwrap().split();
    let worker = peer(count, receiver);
    for i in 0..5000 {
        sender.put(Tensor::full(8, i).unwrap()).unwrap();
    }
    drop(sender);
    assert_eq!(worker.join(), (5000, 0, 0));
}

fn a_descriptor_that_cannot_be_had_is_an_error_that_says_so() {
    let tensor = Tensor::full(8, 1_u8).unwrap();
    let (sender, receiver) = Queue::bounded(1).unwrap().split();
    let maximum = getrlimit(Resource::Nofile).maximum;
    let limit = |current| {
        let current = Some(current);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
    };
    limit(3);
    let error = Arena::builder().create().unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::DescriptorLimit, "{error}");
    assert!(error.to_string().contains("ulimit -n"), "{error}");
    // What is there needs none.
    sender.put(tensor).unwrap();
    assert_eq!(receiver.get().unwrap().as_slice(), [1; 8]);
    limit(1000);
}

fn a_full_limit_is_an_error_that_names_it_and_what_to_do() {
    let limits = Arc::new(FixedLimits::new(16 << 20));
    let arena = Arena::builder()
        .limits(limits.clone())
        .capacity(1 << 30)
        .create()
        .unwrap();
    assert_eq!(arena.strategy().name(), way().unwrap());
    let kept = Tensor::<u8>::full_in(&arena, 1 << 20, 7).unwrap();
    limits.set_free(1 << 20);
    let error = Tensor::<u8>::zeros_in(&arena, 64 << 20).unwrap_err();
    let ErrorKind::OutOfRoom(shortage) = error.kind() else {
        panic!("{error}")
    };
    assert!(
        shortage.asked > 1 << 20 && shortage.free == 1 << 20,
        "{shortage:?}"
    );
    let text = error.to_string();
    assert!(
        text.contains("stated budget") && text.contains("raise the budget"),
        "{text}"
    );
    let error = Tensor::<u8>::zeros_in(&arena, 2 << 30).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::CapacityExhausted { .. }),
        "{error}"
    );
    limits.set_free(1 << 30);
    Tensor::<u8>::zeros_in(&arena, 64 << 20).unwrap();
    assert!(kept.as_slice().iter().all(|&byte| byte == 7));
}

fn what_was_dropped_is_free_again() {
    fn drop_all(_rank: usize, from: Receiver<Tensor<u8>>) -> tensormp::Result<()> {
        from.iter().for_each(drop);
        Ok(())
    }
    let (sender, receiver) = Queue::bounded(2).unwrap().split();
    let worker = peer(drop_all, receiver);
    let committed = || Arena::current().unwrap().stats().committed;
    for _ in 0..20 {
        sender.put(Tensor::zeros(4 << 20).unwrap()).unwrap();
    }
    let after = committed();
    for _ in 0..200 {
        sender.put(Tensor::zeros(4 << 20).unwrap()).unwrap();
    }
    // At most four are alive at any time.
    assert!(
        committed() < after + (32 << 20),
        "{after} and then {}",
        committed()
    );
    drop(sender);
    worker.join();
}

fn the_arena_is_of_the_strategy_that_was_set() {
    fn strategy(_rank: usize, (): ()) -> tensormp::Result<String> {
        Ok(tensormp::sharing_strategy()?.to_string())
    }
    let way = way().unwrap();
    assert_eq!(tensormp::sharing_strategy().unwrap(), way.as_str());
    let arena = Arena::current().unwrap();
    assert_eq!(arena.strategy(), &way.as_str());
    assert_eq!(
        arena.path().is_some(),
        arena.strategy().get().unwrap().outlives_processes()
    );
    assert_eq!(peer(strategy, ()).join(), way);
}

fn the_strategy_cannot_change_under_an_arena() {
    tensormp::set_sharing_strategy("file_descriptor").unwrap();
    tensormp::set_sharing_strategy(way().unwrap()).unwrap();
    Arena::current().unwrap();
    let error = tensormp::set_sharing_strategy("file_descriptor").unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::TooLate);
    assert!(error.to_string().contains(&way().unwrap()), "{error}");
    assert_eq!(
        tensormp::sharing_strategy().unwrap(),
        way().unwrap().as_str()
    );
}

fn a_descriptor_of_an_arena_closes_on_exec() {
    let arena = Arena::current().unwrap();
    let flags = rustix::io::fcntl_getfd(arena.as_fd()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    let copy = arena.as_fd().try_clone_to_owned().unwrap();
    let again = Arena::join(copy).unwrap();
    let flags = rustix::io::fcntl_getfd(again.as_fd()).unwrap();
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
}
