//! What nobody should do, and some will: lengths that nothing has, use at the end of a thread, owners that panic, what is used in
//! two streams.

use cuda_emulator::{Feature, Knobs};
use cuda_ipc::{DeviceTensor, ErrorKind};
use cudarc::driver::CudaContext;
use integration_tests::{Test, tests};
use tensormp::prelude::*;

use crate::support::{all_is_well, machine, no_memory_is_left, with};

pub(crate) const TESTS: &[Test] = &tests![
    lengths_that_nothing_has_are_errors_and_no_panics,
    slots_that_nothing_can_hold_are_an_error,
    slots_take_back_what_nobody_uses,
    a_context_that_could_not_be_made_is_tried_again,
];

fn lengths_that_nothing_has_are_errors_and_no_panics() {
    let session = with(&Knobs::new().without(Feature::Pools));
    let is_refused = |outcome: cuda_ipc::Result<()>| {
        let error = outcome.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Shape, "{error}");
    };
    is_refused(DeviceTensor::<u8>::from_slice([usize::MAX, 2], &[1]).map(drop));
    is_refused(DeviceTensor::<u8>::from_slice([1 << 32, 1 << 32], &[]).map(drop));
    is_refused(DeviceTensor::<f64>::zeros([usize::MAX]).map(drop));
    let stream = CudaContext::new(0).unwrap().default_stream();
    let slice = stream.clone_htod(&[3_u32; 32]).unwrap();
    is_refused(DeviceTensor::copy_cudarc(&slice, [usize::MAX, 2]).map(drop));
    let (error, slice) = DeviceTensor::wrap_cudarc(slice, [usize::MAX, 2]).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Shape, "{error}");
    // Behind the beginning of its storage, so that the sum is more than any number.
    let mut bytes = DeviceTensor::<u8>::zeros([16]).unwrap();
    bytes.narrow(0, 8, 8).unwrap();
    is_refused(bytes.part_mut::<u8>(usize::MAX, [1]).map(drop));
    is_refused(bytes.part_mut::<u8>(usize::MAX, [usize::MAX]).map(drop));
    let shared = bytes.freeze();
    is_refused(shared.part::<u16>(usize::MAX - 7, [4]).map(drop));
    is_refused(shared.part::<u8>(usize::MAX, [0]).map(drop));
    drop((shared, slice));
    no_memory_is_left(session);
}

fn slots_that_nothing_can_hold_are_an_error() {
    let session = machine();
    // All of them have 2 MiB more than there are numbers for.
    let third = ((1_usize << 43) + 1) / 3;
    for (count, bytes) in [(3, third << 21), (1 << 20, 1 << 44), (2, 1 << 62)] {
        let error = DeviceTensor::<u8>::slots(count, [bytes]).unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Shape, "{error}");
        assert!(error.to_string().contains(&bytes.to_string()), "{error}");
    }
    all_is_well(session);
}

fn slots_take_back_what_nobody_uses() {
    let session = with(&Knobs::new().memory(64));
    drop(DeviceTensor::<u8>::zeros([50 << 20]).unwrap());
    drop(DeviceTensor::<u8>::slots(3, [10 << 20]).unwrap());
    let error = DeviceTensor::<u8>::slots(3, [30 << 20]).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::OutOfMemory { asked } if *asked >= 90 << 20),
        "{error}"
    );
    assert!(error.to_string().contains("this process has"), "{error}");
    no_memory_is_left(session);
}

fn a_context_that_could_not_be_made_is_tried_again() {
    // As on a device that others have filled.
    let session = with(&Knobs::new().fail("cuDevicePrimaryCtxRetain", 2, Some(1)));
    let error = DeviceTensor::<u8>::zeros([4]).unwrap_err();
    assert!(
        matches!(error.kind(), ErrorKind::OutOfMemory { .. }),
        "{error}"
    );
    drop(DeviceTensor::<u8>::zeros([4]).unwrap());
    no_memory_is_left(session);
}

fn is_refused<T>(outcome: cuda_ipc::Result<T>) -> bool {
    outcome.is_err_and(|error| *error.kind() == ErrorKind::AfterFork)
}
