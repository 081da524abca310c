//! Tensors handed out and taken back in, and what other libraries might hand out that cannot be taken.

use std::ffi::c_void;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::sys::{DLDataType, DLDevice, DLManagedTensorVersioned, DLPackVersion, DLTensor};
use super::{ManagedTensor, code_of, sys};
use crate::error::ErrorKind;
use crate::tensor::{Dtype, DynTensor, SharedTensor, Tensor};
use proptest::prelude::*;

/// What another library might hand out: everything is its own, and it counts how often it gets it back.
struct Foreign {
    tensor: DLManagedTensorVersioned,
    shape: Vec<i64>,
    strides: Vec<i64>,
    elements: Vec<i16>,
    returned: &'static AtomicUsize,
}

unsafe extern "C" fn count(tensor: *mut DLManagedTensorVersioned) {
    // SAFETY: the tensor is live until it is given back.
    let context = unsafe { (*tensor).manager_ctx };
    // SAFETY: the context is the box of a `Foreign`, given back once.
    let foreign = unsafe { Box::from_raw(context.cast::<Foreign>()) };
    foreign.returned.fetch_add(1, Ordering::Relaxed);
}

impl Foreign {
    fn new(elements: Vec<i16>, shape: &[i64], strides: &[i64], first: usize) -> Box<Self> {
        let mut foreign = Box::new(Foreign {
            tensor: DLManagedTensorVersioned {
                version: DLPackVersion { major: 1, minor: 0 },
                manager_ctx: null_mut(),
                deleter: Some(count),
                flags: 0,
                dl_tensor: DLTensor {
                    data: null_mut(),
                    device: DLDevice {
                        device_type: sys::CPU,
                        device_id: 0,
                    },
                    ndim: shape.len() as i32,
                    dtype: code_of(Dtype::I16),
                    shape: null_mut(),
                    strides: null_mut(),
                    byte_offset: 2 * first as u64,
                },
            },
            shape: shape.to_vec(),
            strides: strides.to_vec(),
            elements,
            returned: Box::leak(Box::new(AtomicUsize::new(0))),
        });
        let described = &mut foreign.tensor.dl_tensor;
        described.data = foreign.elements.as_mut_ptr().cast::<c_void>();
        described.shape = foreign.shape.as_mut_ptr();
        described.strides = foreign.strides.as_mut_ptr();
        foreign
    }

    /// Handed out, and the counter of what comes back.
    fn hand_out(self: Box<Self>) -> (crate::Result<ManagedTensor>, &'static AtomicUsize) {
        let returned = self.returned;
        let context = Box::into_raw(self);
        // SAFETY: the box is live, and nobody else uses it.
        unsafe { (*context).tensor.manager_ctx = context.cast() };
        // SAFETY: as above; the tensor is a field of the box.
        let tensor = unsafe { &raw mut (*context).tensor };
        // SAFETY: shape, strides and elements live in the box until the deleter frees it, and what a test makes wrong
        // about them is to be found before they are read.
        (unsafe { ManagedTensor::from_raw(tensor) }, returned)
    }

    fn import(self: Box<Self>) -> crate::Result<DynTensor> {
        let (managed, returned) = self.hand_out();
        let imported = managed.and_then(|managed| DynTensor::from_dlpack(&managed));
        assert_eq!(returned.load(Ordering::Relaxed), 1, "given back once");
        imported
    }
}

fn cube() -> SharedTensor<i64> {
    let tensor = Tensor::arange(0, 24, 1).unwrap();
    tensor.into_reshaped([2, 3, 4]).unwrap().freeze()
}

#[test]
fn what_is_exported_is_the_memory_itself_and_is_held_until_given_back() {
    let tensor = cube();
    let view = tensor.select(1, 2).unwrap();
    let exported = view.to_dlpack();
    drop(view);
    let described = exported.get().dl_tensor;
    assert_eq!(
        described.data.cast_const().cast(),
        tensor.as_slice()[8..].as_ptr()
    );
    assert_eq!((described.ndim, described.byte_offset), (2, 0));
    assert!(exported.is_read_only());
    let tensor = tensor.try_thaw().unwrap_err();
    let raw = exported.into_raw();
    std::thread::scope(|scope| {
        let address = raw.expose_provenance();
        // Any thread may give it back.
        scope.spawn(move || {
            let raw = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: it comes from `into_raw` and is given back once.
            drop(unsafe { ManagedTensor::from_raw(raw) });
        });
    });
    assert!(tensor.try_thaw().is_ok(), "nobody holds it any more");
}

#[test]
fn an_exclusive_tensor_is_handed_out_to_write() {
    let exported = Tensor::<u16>::zeros([4]).unwrap().into_dlpack();
    assert!(!exported.is_read_only());
    // SAFETY: the tensor has four elements, and the consumer, that is this test, alone touches them.
    unsafe { exported.get().dl_tensor.data.cast::<u16>().write(7) };
    let copy = DynTensor::from_dlpack(&exported).unwrap();
    assert_eq!(copy.as_slice::<u16>().unwrap(), [7, 0, 0, 0]);
}

#[test]
fn an_aliased_tensor_stays_aliased_while_it_is_handed_out() {
    let tensor = Tensor::<f32>::full([2, 2], 1.5).unwrap().alias();
    // SAFETY: nobody writes to it meanwhile.
    let exported = unsafe { tensor.transpose(0, 1).unwrap().to_dlpack() };
    let tensor = tensor.try_unalias().unwrap_err();
    let copy = DynTensor::from_dlpack(&exported).unwrap();
    assert_eq!(copy.as_slice::<f32>().unwrap(), [1.5; 4]);
    drop(exported);
    assert!(tensor.try_unalias().is_ok());
}

#[test]
fn every_element_type_scalar_and_empty_tensor_comes_back() {
    for dtype in Dtype::ALL {
        for shape in [&[][..], &[0, 3], &[2, 1]] {
            let mut tensor = DynTensor::zeros(dtype, shape).unwrap();
            let bytes = tensor.as_bytes_mut().unwrap();
            bytes.iter_mut().zip(1..).for_each(|(to, byte)| *to = byte);
            let wanted = bytes.to_vec();
            let exported = tensor.into_dlpack();
            assert_eq!(exported.get().dl_tensor.data.is_null(), wanted.is_empty());
            let back = DynTensor::from_dlpack(&exported).unwrap();
            assert_eq!((back.dtype(), back.shape()), (dtype, shape));
            assert_eq!(back.as_bytes().unwrap(), wanted);
        }
    }
}

#[test]
fn strides_may_be_missing_or_negative_and_the_start_may_be_inside() {
    let numbers = || (0..12).collect::<Vec<i16>>();
    let mut packed = Foreign::new(numbers(), &[2, 3], &[], 4);
    packed.tensor.dl_tensor.strides = null_mut();
    let packed = packed.import().unwrap();
    assert_eq!(packed.shape(), [2, 3]);
    assert_eq!(packed.as_slice::<i16>().unwrap(), [4, 5, 6, 7, 8, 9]);
    let backwards = Foreign::new(numbers(), &[2, 3], &[4, -1], 3)
        .import()
        .unwrap();
    assert_eq!(backwards.as_slice::<i16>().unwrap(), [3, 2, 1, 7, 6, 5]);
    let empty = Foreign::new(vec![], &[0, 5], &[i64::MAX, 1], 0)
        .import()
        .unwrap();
    assert_eq!(empty.numel(), 0);
}

#[test]
fn what_cannot_be_taken_over_is_an_error_and_is_given_back() {
    let make = || Foreign::new(vec![0; 6], &[2, 3], &[3, 1], 0);
    type Break = fn(&mut Foreign);
    let cases: [(&str, Break); 12] = [
        ("version 2.0", |f| f.tensor.version.major = 2),
        ("device of type 2", |f| {
            f.tensor.dl_tensor.device.device_type = 2
        }),
        ("2 lanes", |f| f.tensor.dl_tensor.dtype.lanes = 2),
        ("code 2 with 8 bits", |f| {
            f.tensor.dl_tensor.dtype = DLDataType {
                code: 2,
                bits: 8,
                lanes: 1,
            };
        }),
        ("code 17", |f| f.tensor.dl_tensor.dtype.code = 17),
        ("9 dimensions", |f| f.tensor.dl_tensor.ndim = 9),
        ("-1 dimensions", |f| f.tensor.dl_tensor.ndim = -1),
        ("no shape", |f| f.tensor.dl_tensor.shape = null_mut()),
        ("[2, -3]", |f| f.shape[1] = -3),
        ("address", |f| f.shape[1] = i64::MAX),
        ("address", |f| f.strides[0] = i64::MIN),
        ("data pointer is null", |f| {
            f.tensor.dl_tensor.data = null_mut()
        }),
    ];
    for (words, break_it) in cases {
        let mut foreign = make();
        break_it(&mut foreign);
        let error = foreign.import().unwrap_err();
        assert!(error.to_string().contains(words), "{words}: {error}");
        assert!(matches!(
            error.kind(),
            ErrorKind::Unsupported | ErrorKind::Shape
        ));
    }
    // SAFETY: null is refused.
    assert!(unsafe { ManagedTensor::from_raw(null_mut()) }.is_err());
    assert!(make().import().is_ok());
}

#[test]
fn a_tensor_without_a_deleter_is_left_alone() {
    let mut foreign = Foreign::new(vec![1, 2], &[2], &[1], 0);
    foreign.tensor.deleter = None;
    // SAFETY: `foreign` outlives it.
    let managed = unsafe { ManagedTensor::from_raw(&raw mut foreign.tensor) }.unwrap();
    let copy = DynTensor::from_dlpack(&managed).unwrap();
    drop(managed);
    assert_eq!(copy.as_slice::<i16>().unwrap(), foreign.elements);
}

#[test]
fn structs_are_laid_out_as_c_has_them() {
    assert_eq!(size_of::<DLTensor>(), 48);
    assert_eq!(size_of::<DLManagedTensorVersioned>(), 80);
    assert_eq!(std::mem::offset_of!(DLManagedTensorVersioned, flags), 24);
    assert_eq!(
        std::mem::offset_of!(DLManagedTensorVersioned, dl_tensor),
        32
    );
    assert_eq!(std::mem::offset_of!(DLTensor, dtype), 20);
}

proptest! {
    #[test]
    fn a_view_comes_back_as_a_copy_of_the_same_elements(
        order in Just(vec![0, 1, 2]).prop_shuffle(),
        start in 0..2_usize,
        step in 1..3_usize,
    ) {
        let view = cube().permute(&order).unwrap().slice(0, start.., step).unwrap();
        let back = DynTensor::from_dlpack(&view.to_dlpack()).unwrap();
        prop_assert_eq!(back.shape(), view.shape());
        prop_assert_eq!(back.as_slice::<i64>().unwrap(), view.to_vec());
    }
}
