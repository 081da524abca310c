//! Tensors to and from another library, by DLPack; the other side is the crate dlpark with arrays of ndarray.

use dlpark::TryFromDlpack;
use dlpark::allocation::dynamic::Initialized;
use dlpark::ffi::DLManagedTensorVersioned;
use dlpark::versioned::Dlpack;
use integration_tests::{Test, tests};
use ndarray::{Array, ArrayD, ArrayViewD, ArrayViewMutD, Axis, array};
use tensormp::dlpack::ManagedTensor;
use tensormp::prelude::*;

pub(crate) const TESTS: &[Test] = &tests![
    what_a_child_made_is_read_by_another_library_without_a_copy,
    another_library_writes_into_an_exclusive_tensor,
    a_read_only_tensor_is_not_written_by_a_library_that_asks,
    arrays_of_another_library_are_copied_into_the_arena,
];

/// What another library sees.
fn hand_over(tensor: ManagedTensor) -> Dlpack {
    let raw = tensor.into_raw().cast::<DLManagedTensorVersioned>();
    // SAFETY: the two structs are the same C struct, ours and theirs, and ownership goes with the pointer.
    unsafe { Dlpack::from_raw(raw) }.unwrap()
}

/// What another library hands out.
fn taken_over(array: ArrayD<f32>) -> ManagedTensor {
    let made: Initialized<DLManagedTensorVersioned> = Box::new(array).try_into().unwrap();
    // SAFETY: the conversion has described the array, which the tensor owns.
    let theirs: Dlpack = unsafe { made.finish() };
    // SAFETY: as in `hand_over`, the other way round.
    unsafe { ManagedTensor::from_raw(theirs.into_raw().cast()) }.unwrap()
}

fn what_a_child_made_is_read_by_another_library_without_a_copy() {
    fn make(_rank: usize, (): ()) -> tensormp::Result<SharedTensor<i32>> {
        Ok(Tensor::arange(0, 24, 1)?.into_reshaped([2, 3, 4])?.freeze())
    }
    let context = spawn(make, (), 1).unwrap();
    let tensor = context.into_results().unwrap().remove(0);
    let view = tensor
        .permute(&[2, 0, 1])
        .unwrap()
        .slice(0, 1.., 2)
        .unwrap();
    let theirs = hand_over(view.to_dlpack());
    // SAFETY: the elements are shared, and so nobody writes them.
    let array = unsafe { ArrayViewD::<i32>::try_from_dlpack(&theirs, ()) }.unwrap();
    assert_eq!(array, view.as_ndarray());
    assert_eq!(array.as_ptr(), &raw const tensor.as_slice()[1]);
    drop(view);
    let tensor = tensor.try_thaw().unwrap_err();
    drop(theirs);
    assert!(tensor.try_thaw().is_ok(), "given back");
}

fn another_library_writes_into_an_exclusive_tensor() {
    let mut tensor = Tensor::<f32>::zeros([2, 3]).unwrap();
    tensor.transpose(0, 1).unwrap();
    let mut theirs = hand_over(tensor.into_dlpack());
    // SAFETY: the tensor went to them, so nobody else reaches it.
    let mut array = unsafe { ArrayViewMutD::<f32>::try_from_dlpack(&mut theirs, ()) }.unwrap();
    array.index_axis_mut(Axis(0), 2).fill(1.5);
    // SAFETY: as in `hand_over`.
    let ours = unsafe { ManagedTensor::from_raw(theirs.into_raw().cast()) }.unwrap();
    let copy = DynTensor::from_dlpack(&ours).unwrap();
    assert_eq!(
        copy.as_slice::<f32>().unwrap(),
        [0.0, 0.0, 0.0, 0.0, 1.5, 1.5]
    );
}

fn a_read_only_tensor_is_not_written_by_a_library_that_asks() {
    let tensor = Tensor::<f32>::zeros(3).unwrap().freeze();
    let mut theirs = hand_over(tensor.to_dlpack());
    // SAFETY: it is refused.
    assert!(unsafe { ArrayViewMutD::<f32>::try_from_dlpack(&mut theirs, ()) }.is_err());
}

fn arrays_of_another_library_are_copied_into_the_arena() {
    let plain = array![[1.0_f32, 2.0], [3.0, 4.0]];
    let mut backwards = plain.clone();
    backwards.invert_axis(Axis(0));
    for array in [plain.clone(), plain.clone().reversed_axes(), backwards] {
        let wanted: Vec<f32> = array.iter().copied().collect();
        let theirs = taken_over(array.into_dyn());
        let copy = DynTensor::from_dlpack(&theirs).unwrap();
        drop(theirs);
        assert_eq!(
            (copy.shape(), copy.as_slice().unwrap()),
            (&[2, 2][..], &wanted[..])
        );
    }
    let empty = taken_over(Array::zeros(vec![0, 7]));
    assert_eq!(DynTensor::from_dlpack(&empty).unwrap().shape(), [0, 7]);
}
