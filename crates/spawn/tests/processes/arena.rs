//! Tensors and other things of the arena as arguments and results, and what peers learn of a failure.

use std::path::PathBuf;

use libtest_mimic::Trial;
use serde::{Deserialize, Serialize};
use shm_core::failure::PeerFailure;
use shm_core::object::{Array, Object, ObjectKind};
use shm_core::{Arena, SharedTensor, Tensor};
use spawn::ErrorKind;

use crate::support::{self, Gate, open_gate, spawn, wait_at_gate};
use crate::{trials, trials_once};

pub(crate) fn tests() -> Vec<Trial> {
    let mut trials = trials![
        tensors_come_and_go_by_handle,
        an_exclusive_tensor_goes_to_one_process_only,
        a_shared_tensor_goes_to_all,
        what_workers_share_learns_of_a_failure_before_they_are_joined,
        what_workers_share_learns_who_left_in_peace,
        an_error_that_only_follows_is_not_taken_for_the_reason,
    ];
    // Long, and what it counts is in the arena, which knows nothing of start methods.
    trials.extend(trials_once![workers_leave_nothing_behind_in_the_arena]);
    trials
}

fn tensors_come_and_go_by_handle() {
    fn add(_rank: usize, (mut tensor, x): (Tensor<f32>, f32)) -> Result<Tensor<f32>, String> {
        for element in tensor.as_mut_slice() {
            *element += x;
        }
        Ok(tensor)
    }
    let tensor = Tensor::full([512, 512], 1.0_f32).unwrap();
    let mut results = spawn(add, (tensor, 2.0), 1)
        .unwrap()
        .into_results()
        .unwrap();
    // The worker is gone; its result is not.
    let tensor = results.pop().unwrap();
    assert!(tensor.as_slice().iter().all(|&x| x == 3.0));
}

fn an_exclusive_tensor_goes_to_one_process_only() {
    fn takes(_rank: usize, _: Tensor<u8>) {}
    let error = spawn(takes, Tensor::zeros([16]).unwrap(), 2).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Arguments), "{error:?}");
    let text = error.to_string();
    assert!(
        text.contains("freeze") && text.contains("use one process"),
        "{text}"
    );
}

fn a_shared_tensor_goes_to_all() {
    fn sum(rank: usize, tensor: SharedTensor<u32>) -> Result<u32, String> {
        Ok(tensor.as_slice().iter().sum::<u32>() + rank as u32)
    }
    let tensor = Tensor::full([100], 7_u32).unwrap().freeze();
    assert_eq!(
        spawn(sum, tensor.clone(), 3).unwrap().join().unwrap(),
        [700, 701, 702]
    );
    assert_eq!(tensor.as_slice()[99], 7);
}

/// Something that processes share, as a queue or an event holds it.
fn object() -> Object {
    Object::create(
        &Arena::current().unwrap(),
        ObjectKind::Event,
        [Array::None, Array::None],
        1,
    )
    .unwrap()
}

fn what_workers_share_learns_of_a_failure_before_they_are_joined() {
    #[derive(Serialize, Deserialize)]
    struct Work {
        shared: Object,
    }
    fn fails(rank: usize, work: Work) {
        if rank == 1 {
            let _ = rustix::process::kill_process(
                rustix::process::getpid(),
                rustix::process::Signal::KILL,
            );
        }
        // As a wait on a queue would: it ends with the failure, and this process then with an error of its own.
        while work.shared.failure().is_none() {
            std::thread::yield_now();
        }
    }
    let shared = object();
    let mut context = spawn(
        fails,
        Work {
            shared: shared.clone(),
        },
        2,
    )
    .unwrap();
    while shared.failure().is_none() {
        std::thread::yield_now();
    }
    let failure = shared.failure().unwrap();
    assert_eq!((failure.rank, failure.pid), (1, context.pids()[1]));
    assert!(
        failure.cause.starts_with("was killed by SIGKILL"),
        "{failure}"
    );
    assert_eq!(context.join().unwrap_err().worker().unwrap().rank, 1);
}

fn what_workers_share_learns_who_left_in_peace() {
    let shared = object();
    let mut context = spawn(|_, _: Object| (), shared.clone(), 1).unwrap();
    context.join().unwrap();
    assert_eq!(shared.failure(), None);
    assert_eq!(shared.departed(), Some((0, context.pids()[0])));
}

fn an_error_that_only_follows_is_not_taken_for_the_reason() {
    fn one_after_the_other(
        rank: usize,
        (there, gate): (PathBuf, PathBuf),
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        if rank == 0 {
            // The reason is waited for a moment, in which nobody has to start.
            wait_at_gate(&there);
            open_gate(&gate);
            return Err(PeerFailure {
                rank: 1,
                pid: 1,
                name: String::new(),
                cause: "left".into(),
            }
            .into());
        }
        open_gate(&there);
        wait_at_gate(&gate);
        Err("the reason".into())
    }
    let (there, gate) = (Gate::new("there"), Gate::new("follows"));
    let error = spawn(one_after_the_other, (there.path(), gate.path()), 2)
        .unwrap()
        .join()
        .unwrap_err();
    assert!(error.to_string().contains("the reason"), "{error}");
}

fn workers_leave_nothing_behind_in_the_arena() {
    support::play("arena");
}

/// The arena of this program is small and nobody else's, so what is in it can be counted.
pub(crate) fn arena_scene() {
    /// Written at once and not number by number, which takes minutes here on a busy machine.
    #[derive(Debug)]
    struct Bytes(Vec<u8>);
    impl Serialize for Bytes {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.serialize_bytes(&self.0)
        }
    }
    impl<'de> Deserialize<'de> for Bytes {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Bytes, D::Error> {
            <&[u8]>::deserialize(deserializer).map(|bytes| Bytes(bytes.to_vec()))
        }
    }
    fn much(_rank: usize, bytes: usize) -> Result<Bytes, String> {
        Ok(Bytes(vec![1; bytes]))
    }
    fn dies_with_tensors(_rank: usize, shared: SharedTensor<u8>) -> Result<u8, String> {
        let own = Tensor::full([1 << 20], 1_u8).map_err(|error| error.to_string())?;
        std::mem::forget((own, shared));
        std::process::abort();
    }
    support::guarded("arena", || {
        let arena = Arena::builder().capacity(64 << 20).create().unwrap();
        Arena::install_current(arena.clone()).unwrap();

        // A result that does not fit is told, and so are arguments.
        let error = spawn(much, 100 << 20, 1).unwrap().join().unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::ResultLost { .. }),
            "{error:?}"
        );
        let error = spawn(|_, _: Bytes| (), Bytes(vec![1; 100 << 20]), 1).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Arguments), "{error:?}");

        // More rounds than the arena could hold if the dead kept what they had: 20 × (1 MiB + 8 MiB).
        let shared = Tensor::full([1 << 20], 7_u8).unwrap().freeze();
        for _ in 0..20 {
            assert!(
                spawn(dies_with_tensors, shared.clone(), 1)
                    .unwrap()
                    .join()
                    .is_err()
            );
            // A result that nobody takes goes back too.
            drop(spawn(much, 8 << 20, 1).unwrap());
        }
        assert_eq!(arena.participants(), 1);
        // Nobody else has it any more.
        assert!(shared.try_thaw().is_ok());
    });
}
