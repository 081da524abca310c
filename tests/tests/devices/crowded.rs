//! Device tensors in an arena that has no room for what stands for them.

use cuda_emulator::{Driver, Feature, Knobs};
use cuda_ipc::{Device, DeviceTensor, ErrorKind, Stream};
use cudarc::driver::CudaContext;
use integration_tests::{Test, tests};
use tensormp::prelude::*;

use crate::support::{all_is_well, no_memory_is_left, slow_machine, with};

pub(crate) const TESTS: &[Test] = &tests![
    a_slice_comes_back_where_the_arena_is_full,
    a_block_that_became_no_tensor_is_used_behind_all_that_used_it,
];

fn a_slice_comes_back_where_the_arena_is_full() {
    let arena = Arena::builder().capacity(32 << 20).create().unwrap();
    Arena::install_current(arena).unwrap();
    let session = with(&Knobs::new().without(Feature::Pools));
    let stream = CudaContext::new(0).unwrap().default_stream();
    let mut slice = stream.clone_htod(&[3_u32; 32]).unwrap();
    drop(DeviceTensor::<u8>::zeros([4]).unwrap());
    let fill = |bytes: usize| -> Vec<_> {
        std::iter::from_fn(|| Tensor::<u8>::uninit([bytes]).ok()).collect()
    };
    // In one of these there is room for what stands for the memory, and none for what stands for the tensor.
    for bytes in [512, 1024, 1536, 2048, 3072, 4096] {
        let mut large = fill(bytes);
        let small = fill(48);
        large.pop();
        slice = match DeviceTensor::wrap_cudarc(slice, [32]) {
            Err((error, slice)) => {
                assert!(matches!(error.kind(), ErrorKind::Arena(_)), "{error}");
                assert_eq!(cuda_ipc::stats().wrapped, 0);
                slice
            }
            // It had room for both.
            Ok(_) => stream.clone_htod(&[3_u32; 32]).unwrap(),
        };
        drop((large, small));
    }
    drop(DeviceTensor::wrap_cudarc(slice, [32]).unwrap());
    no_memory_is_left(session);
}

fn a_block_that_became_no_tensor_is_used_behind_all_that_used_it() {
    let arena = Arena::builder().capacity(32 << 20).create().unwrap();
    Arena::install_current(arena).unwrap();
    let session = slow_machine();
    let driver = Driver::loaded();
    driver.start(0).unwrap();
    let copy = driver.alloc(4096).unwrap();
    let device = Device::new(0).unwrap();
    let streams = [(); 3].map(|()| Stream::new(device).unwrap());
    let [reading, in_vain, writing] = &streams;
    let tensor = reading.scope(|| DeviceTensor::from_slice([1024], &[3_u32; 1024]).unwrap());
    let from = tensor.read_in(reading).unwrap();
    driver
        .copy_async(copy, from, 4096, reading.as_raw())
        .unwrap();
    drop(tensor);
    let fill = |bytes: usize| -> Vec<_> {
        std::iter::from_fn(|| Tensor::<u8>::uninit([bytes]).ok()).collect()
    };
    let full = (fill(4096), fill(48));
    let refused = in_vain.scope(|| DeviceTensor::<u32>::uninit([1024]));
    assert!(matches!(refused.unwrap_err().kind(), ErrorKind::Arena(_)));
    drop(full);
    let mut tensor = writing.scope(|| DeviceTensor::<u32>::uninit([1024]).unwrap());
    assert_eq!(tensor.read_in(writing).unwrap(), from, "the same block");
    tensor.copy_from_slice(&[7; 1024]).unwrap();
    drop(tensor);
    streams.iter().for_each(|one| one.synchronize().unwrap());
    driver.free(copy).unwrap();
    all_is_well(session);
}
