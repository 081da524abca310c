//! cudarc's views of device tensors in several of its streams, and behind work of the dead.

use std::time::Duration;

use cuda_emulator::{Driver, Feature, Knobs, Session};
use cuda_ipc::{Device, DeviceTensor, ErrorKind, Stream};
use cudarc::driver::{CudaContext, CudaSlice, CudaStream, DevicePtr, DevicePtrMut};
use integration_tests::{Test, tests};

use crate::behind::{Behind, behind, dies};
use crate::support::{all_is_well, machine, no_memory_is_left, slow_machine, with};

pub(crate) const TESTS: &[Test] = &tests![
    a_tensor_waits_for_all_streams_of_cudarc_that_have_read_it,
    streams_of_cudarc_write_a_tensor_one_after_the_other,
    a_tensor_that_cudarc_used_behind_work_of_the_dead_is_an_error_and_no_hang,
    cudarc_gets_no_view_of_a_tensor_that_is_lost,
    a_slice_is_copied_behind_all_streams_that_wrote_it,
    a_slice_becomes_a_tensor_behind_all_streams_that_wrote_it,
    a_slice_that_became_a_tensor_is_not_written_before_it_was_read,
];

/// A machine that takes its time, whose devices have no pools: there cudarc allocates so that others can be shown it.
fn without_pools() -> Session {
    let delay = Duration::from_millis(2);
    with(&Knobs::new().delay(delay).without(Feature::Pools))
}

fn a_tensor_waits_for_all_streams_of_cudarc_that_have_read_it() {
    let session = slow_machine();
    let context = CudaContext::new(0).unwrap();
    let streams = [(); 2].map(|()| context.new_stream().unwrap());
    let driver = Driver::loaded();
    let mut tensor = DeviceTensor::from_slice([1000], &[1_u8; 1000]).unwrap();
    let copies = [(); 2].map(|()| DeviceTensor::<u8>::zeros([1000]).unwrap());
    tensor.stream().synchronize().unwrap();
    let view = tensor.for_cudarc(&streams[0]).unwrap();
    for ((stream, copy), times) in streams.iter().zip(&copies).zip([20, 1]) {
        let (address, _after) = view.device_ptr(stream);
        let to = copy.read_in(copy.stream()).unwrap();
        for _ in 0..times {
            let raw = stream.cu_stream().addr();
            driver.copy_async(to, address, 1000, raw).unwrap();
        }
    }
    drop(view);
    tensor.clear().unwrap();
    streams
        .iter()
        .for_each(|stream| stream.synchronize().unwrap());
    drop((tensor, copies));
    all_is_well(session);
}

fn streams_of_cudarc_write_a_tensor_one_after_the_other() {
    let session = slow_machine();
    let context = CudaContext::new(0).unwrap();
    let [one, two] = [(); 2].map(|()| context.new_stream().unwrap());
    let driver = Driver::loaded();
    let mut tensor = DeviceTensor::from_slice([64], &[1_u32; 64]).unwrap();
    let mut view = tensor.for_cudarc_mut(&one).unwrap();
    for (value, stream) in (2..).zip([&one, &two, &one, &two]) {
        let (address, _after) = view.device_ptr_mut(stream);
        let raw = stream.cu_stream().addr();
        driver.fill_words_async(address, value, 64, raw).unwrap();
    }
    drop(view);
    assert_eq!(tensor.to_vec().unwrap(), [5; 64]);
    drop(tensor);
    all_is_well(session);
}

/// A stream of cudarc uses one tensor after the other, of which the first is never written.
fn a_tensor_that_cudarc_used_behind_work_of_the_dead_is_an_error_and_no_hang() {
    let session = machine();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let side = Stream::new(Device::new(0).unwrap()).unwrap();
    let other = DeviceTensor::from_slice_on(&side, [3], &[1_u8, 2, 3]).unwrap();
    // All of it is kept: the side stream comes to wait for the dead by way of cudarc's alone.
    let Behind {
        writer,
        theirs,
        mine: _mine,
    } = behind(&session);
    for tensor in [&theirs, &other.freeze()] {
        let view = tensor.for_cudarc(&stream).unwrap();
        drop(view.device_ptr(&stream));
    }
    let next = DeviceTensor::<u8>::zeros_on(&side, [3]).unwrap();
    dies(writer, &session);
    let error = next.to_vec().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
}

fn cudarc_gets_no_view_of_a_tensor_that_is_lost() {
    let session = machine();
    let context = CudaContext::new(0).unwrap();
    let stream = context.new_stream().unwrap();
    let Behind {
        writer, mut mine, ..
    } = behind(&session);
    dies(writer, &session);
    let error = mine.for_cudarc(&stream).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
    let error = mine.for_cudarc_mut(&stream).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::WriterGone, "{error}");
}

/// A slice of one stream, which another one writes for a while.
fn written_elsewhere(
    context: &std::sync::Arc<CudaContext>,
) -> (CudaSlice<u32>, [std::sync::Arc<CudaStream>; 2]) {
    // What is done once a process, and waits, is done.
    drop(DeviceTensor::<u32>::zeros([32]).unwrap());
    let [one, two] = [(); 2].map(|()| context.new_stream().unwrap());
    let mut slice = one.clone_htod(&[0_u32; 32]).unwrap();
    let (address, after) = slice.device_ptr_mut(&two);
    let raw = two.cu_stream().addr();
    for value in 0..20 {
        let driver = Driver::loaded();
        driver.fill_words_async(address, value, 32, raw).unwrap();
    }
    drop(after);
    (slice, [one, two])
}

fn a_slice_is_copied_behind_all_streams_that_wrote_it() {
    let session = without_pools();
    let context = CudaContext::new(0).unwrap();
    let (slice, _streams) = written_elsewhere(&context);
    let copy = DeviceTensor::copy_cudarc(&slice, [4, 8]).unwrap();
    assert_eq!(copy.to_vec().unwrap(), [19; 32]);
    drop((copy, slice));
    no_memory_is_left(session);
}

fn a_slice_becomes_a_tensor_behind_all_streams_that_wrote_it() {
    let session = without_pools();
    let context = CudaContext::new(0).unwrap();
    let (slice, _streams) = written_elsewhere(&context);
    let tensor = DeviceTensor::wrap_cudarc(slice, [32]).unwrap();
    assert_eq!(tensor.to_vec().unwrap(), [19; 32]);
    drop(tensor);
    no_memory_is_left(session);
}

fn a_slice_that_became_a_tensor_is_not_written_before_it_was_read() {
    let session = without_pools();
    let context = CudaContext::new(0).unwrap();
    let [one, two] = [(); 2].map(|()| context.new_stream().unwrap());
    let slice = one.clone_htod(&[3_u32; 32]).unwrap();
    let target = DeviceTensor::<u32>::zeros([32]).unwrap();
    target.stream().synchronize().unwrap();
    let (address, after) = slice.device_ptr(&two);
    let to = target.read_in(target.stream()).unwrap();
    for _ in 0..20 {
        let raw = two.cu_stream().addr();
        Driver::loaded().copy_async(to, address, 128, raw).unwrap();
    }
    drop(after);
    let mut tensor = DeviceTensor::wrap_cudarc(slice, [32]).unwrap();
    tensor.clear().unwrap();
    two.synchronize().unwrap();
    assert_eq!(target.to_vec().unwrap(), [3; 32]);
    drop((tensor, target));
    no_memory_is_left(session);
}
