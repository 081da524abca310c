//! Memory of the host that is registered and not needed any more, where a stream of this process waits for another process:
//! the driver would wait for that stream, and nobody else does.

use cuda_emulator::Session;
use cuda_ipc::{Device, DeviceTensor, PinnedTensor};
use integration_tests::{Test, resume, stop, tests};
use tensormp::prelude::*;

use crate::behind::{Behind, behind, dies};
use crate::support::machine;

pub(crate) const TESTS: &[Test] = &tests![
    collecting_leaves_registered_memory_where_a_stream_waits_for_the_dead,
    collecting_leaves_registered_memory_where_a_stream_waits_for_one_that_is_stopped,
    dropping_a_pinned_tensor_waits_for_no_other_process,
    pinning_waits_for_no_other_process,
];

fn pin(bytes: usize) -> PinnedTensor<u8> {
    let host = Tensor::<u8>::zeros([bytes]).unwrap();
    PinnedTensor::new(host, Device::new(0).unwrap()).unwrap()
}

fn regions() -> u64 {
    cuda_ipc::stats().pinned.regions
}

fn collecting_leaves_registered_memory_where_a_stream_waits_for_the_dead() {
    let session = machine();
    drop(pin(1 << 20));
    let Behind { writer, mine, .. } = behind(&session);
    dies(writer, &session);
    // Whether that is known already or not.
    cuda_ipc::collect();
    assert!(mine.to_vec().is_err());
    cuda_ipc::collect();
    assert_eq!(regions(), 1);
    assert!(session.faults().is_empty(), "{:#?}", session.faults());
}

fn collecting_leaves_registered_memory_where_a_stream_waits_for_one_that_is_stopped() {
    let session = machine();
    drop(pin(1 << 20));
    stay_behind_one_that_is_stopped(&session, 1, || {
        cuda_ipc::collect();
    });
}

/// So many regions stay registered when that was done while a stream waits for a process that is stopped, and none when it goes
/// on.
fn stay_behind_one_that_is_stopped(session: &Session, count: u64, act: impl FnOnce()) {
    let Behind {
        mut writer, mine, ..
    } = behind(session);
    let pid = writer.pids()[0];
    stop(pid);
    session.let_go();
    act();
    assert_eq!(regions(), count);
    resume(pid);
    assert_eq!(mine.to_vec().unwrap(), [0; 3]);
    cuda_ipc::collect();
    assert_eq!(regions(), 0);
    writer.kill();
    assert!(writer.join().is_err());
}

/// More than stays registered for the next tensor goes at the next occasion on which the device is at rest.
fn dropping_a_pinned_tensor_waits_for_no_other_process() {
    let session = machine();
    let all = [(); 2].map(|()| pin(160 << 20));
    let [first, second] = all;
    first.outcome().unwrap();
    second.outcome().unwrap();
    stay_behind_one_that_is_stopped(&session, 2, || drop((first, second)));
}

/// What is registered of a chunk of memory, and in the way of what there is of it by now, stays.
fn pinning_waits_for_no_other_process() {
    let session = machine();
    let mut there = DeviceTensor::<u8>::zeros([1000]).unwrap();
    drop(pin(1000));
    let bytes = cuda_ipc::stats().pinned.bytes;
    let mut more = Vec::new();
    let Behind { writer, mine, .. } = behind(&session);
    dies(writer, &session);
    let refused = loop {
        let tensor = pin(1000);
        if tensor.outcome().is_err() {
            break tensor;
        }
        assert!(more.len() as u64 * 1000 < bytes, "the first region is full");
        more.push(tensor.into_inner().unwrap());
    };
    let why = refused.outcome().unwrap_err();
    assert!(why.contains("waits for another process"), "{why}");
    assert!(mine.to_vec().is_err());
    // And is copied all the same.
    there = DeviceTensor::<u8>::zeros([1000]).unwrap_or(there);
    refused.copy_to(&mut there).unwrap();
    assert_eq!(there.to_vec().unwrap(), [0; 1000]);
}
