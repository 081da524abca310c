//! Aliased tensors: as plain tensors while nobody interferes, and what stays true when threads do.

use super::*;
use crate::error::ErrorKind;
use crate::storage::Storage;
use crate::tensor::{Bool, Complex64, Complex128, DynTensor, bf16, f16};
use proptest::prelude::*;

fn matrix() -> AliasedTensor<i32> {
    Tensor::from_slice([2, 3], &[1, 2, 3, 4, 5, 6])
        .unwrap()
        .alias()
}

fn accesses<T: Element>() {
    let tensor = Tensor::<T>::zeros([2, 2]).unwrap().alias();
    tensor.store(&[1, 0], T::ONE).unwrap();
    assert_eq!(tensor.load(&[1, 0]).unwrap(), T::ONE);
    assert_eq!(tensor.to_vec(), [T::ZERO, T::ZERO, T::ONE, T::ZERO]);
    tensor.fill(T::ONE);
    tensor
        .copy_from_slice(&[T::ONE, T::ZERO, T::ZERO, T::ONE])
        .unwrap();
    let mut out = [T::ONE; 4];
    tensor
        .transpose(0, 1)
        .unwrap()
        .copy_to_slice(&mut out)
        .unwrap();
    assert_eq!(out, [T::ONE, T::ZERO, T::ZERO, T::ONE]);
    tensor.apply(&[T::ONE; 4], |_, operand| operand).unwrap();
    let copy = tensor.copy_into(&Arena::current().unwrap()).unwrap();
    assert_eq!(copy.as_slice(), [T::ONE; 4]);
    assert_eq!(tensor.try_unalias().unwrap().as_slice(), [T::ONE; 4]);
}

fn swaps<T: AtomicElement>() {
    let tensor = Tensor::<T>::zeros(3).unwrap().alias();
    assert_eq!(tensor.swap(&[1], T::ONE).unwrap(), T::ZERO);
    assert_eq!(
        tensor.compare_exchange(&[1], T::ZERO, T::ZERO).unwrap(),
        Err(T::ONE)
    );
    assert_eq!(
        tensor.compare_exchange(&[1], T::ONE, T::ZERO).unwrap(),
        Ok(T::ONE)
    );
    assert_eq!(tensor.fetch_update(&[2], |_| T::ONE).unwrap(), T::ZERO);
    assert_eq!(tensor.to_vec(), [T::ZERO, T::ZERO, T::ONE]);
    accesses::<T>();
}

#[test]
fn every_element_type_is_read_and_written() {
    swaps::<Bool>();
    swaps::<u8>();
    swaps::<u16>();
    swaps::<u32>();
    swaps::<u64>();
    swaps::<i8>();
    swaps::<i16>();
    swaps::<i32>();
    swaps::<i64>();
    swaps::<f16>();
    swaps::<bf16>();
    swaps::<f32>();
    swaps::<f64>();
    swaps::<Complex64>();
    accesses::<Complex128>();
}

fn counts<T: Integer>(max: T, min: T) {
    let tensor = Tensor::full(1, max).unwrap().alias();
    assert_eq!(tensor.fetch_add(&[0], T::ONE).unwrap(), max);
    assert_eq!(tensor.load(&[0]).unwrap(), min, "around the end");
    assert_eq!(tensor.fetch_sub(&[0], T::ONE).unwrap(), min);
    assert_eq!(tensor.fetch_min(&[0], T::ZERO).unwrap(), max);
    assert_eq!(tensor.fetch_max(&[0], T::ONE).unwrap(), T::ZERO);
    assert_eq!(tensor.fetch_max(&[0], min).unwrap(), T::ONE);
    assert_eq!(tensor.load(&[0]).unwrap(), T::ONE);
}

#[test]
fn every_integer_type_counts_around_its_end() {
    counts(u8::MAX, u8::MIN);
    counts(u16::MAX, u16::MIN);
    counts(u32::MAX, u32::MIN);
    counts(u64::MAX, u64::MIN);
    counts(i8::MAX, i8::MIN);
    counts(i16::MAX, i16::MIN);
    counts(i32::MAX, i32::MIN);
    counts(i64::MAX, i64::MIN);
}

#[test]
fn a_view_writes_where_its_elements_are() {
    let tensor = matrix();
    let column = tensor.select(1, 2).unwrap();
    column.fill(9);
    column.store(&[1], 8).unwrap();
    assert_eq!(tensor.to_vec(), [1, 2, 9, 4, 5, 8]);
    assert!(column.same_storage(&tensor) && !column.is_contiguous());
    assert!(!matrix().same_storage(&tensor));
    let wide = tensor.select(0, 0).unwrap().expand([3, 3]).unwrap();
    wide.store(&[2, 0], 7).unwrap();
    assert_eq!(wide.to_vec(), [7, 2, 9, 7, 2, 9, 7, 2, 9]);
}

#[test]
fn only_a_sole_holder_gets_it_back() {
    let tensor = matrix();
    let view = tensor.narrow(0, 1, 1).unwrap();
    let tensor = tensor.try_unalias().unwrap_err();
    let tensor = tensor.try_freeze().unwrap_err();
    drop(tensor);
    let frozen = view.try_freeze().unwrap();
    assert_eq!(frozen.as_slice(), [4, 5, 6]);
    let mut own = frozen.try_thaw().unwrap();
    own.as_mut_slice()[0] = 0;
    let back = own.alias().try_unalias().unwrap();
    assert_eq!(back.as_slice(), [0, 5, 6]);
}

#[test]
fn elements_that_repeat_are_never_exclusive() {
    let wide = matrix().select(0, 0).unwrap().expand([2, 3]).unwrap();
    let wide = wide.try_unalias().unwrap_err();
    assert_eq!(wide.try_freeze().unwrap().to_vec(), [1, 2, 3, 1, 2, 3]);
}

#[test]
fn positions_and_lengths_that_do_not_fit_are_errors_with_the_numbers() {
    let tensor = matrix();
    for position in [&[2, 0][..], &[0, 3], &[0], &[]] {
        let text = tensor.load(position).unwrap_err().to_string();
        assert!(
            text.contains(&format!("{position:?}")) && text.contains("[2, 3]"),
            "{text}"
        );
        assert!(tensor.store(position, 0).is_err() && tensor.fetch_add(position, 1).is_err());
    }
    let errors = [
        tensor.copy_to_slice(&mut [0; 5]).unwrap_err(),
        tensor.copy_from_slice(&[0; 7]).unwrap_err(),
        tensor.apply(&[], |old, _| old).unwrap_err(),
    ];
    for error in errors {
        assert_eq!(error.kind(), &ErrorKind::Shape);
        assert!(error.to_string().contains('6'), "{error}");
    }
    assert_eq!(tensor.to_vec(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn slices_are_those_of_the_view_and_only_of_contiguous_ones() {
    let mut row = matrix().select(0, 1).unwrap();
    // SAFETY: nobody else has it.
    unsafe { row.as_mut_slice() }.unwrap()[1] = 50;
    // SAFETY: nobody writes meanwhile.
    assert_eq!(unsafe { row.as_slice() }.unwrap(), [4, 50, 6]);
    let column = matrix().select(1, 0).unwrap();
    // SAFETY: as above.
    let refused = unsafe { column.as_slice() }.unwrap_err();
    assert_eq!(refused.kind(), &ErrorKind::Shape);
}

#[test]
fn a_tensor_of_nothing_and_a_scalar_work() {
    let empty = Tensor::<Complex128>::zeros([0, 3]).unwrap().alias();
    empty.fill(Complex128::new(1.0, 2.0));
    assert!(empty.is_empty() && empty.to_vec().is_empty());
    let scalar = Tensor::full((), 3_u8).unwrap().alias();
    assert_eq!(scalar.fetch_add(&[], 4).unwrap(), 3);
    assert_eq!(format!("{scalar:?}"), "AliasedTensor<u8>[] [7]");
}

#[test]
fn it_travels_in_messages_as_what_it_is_and_nothing_else() {
    let tensor = matrix();
    let column = tensor.select(1, 1).unwrap();
    let (back, column): (AliasedTensor<i32>, AliasedTensor<i32>) =
        message::send((tensor.clone(), column)).unwrap();
    assert!(back.same_storage(&tensor) && column.same_storage(&tensor));
    column.store(&[0], 20).unwrap();
    assert_eq!(tensor.load(&[0, 1]).unwrap(), 20);
    assert!(
        message::send::<_, AliasedTensor<u32>>(tensor.clone()).is_err(),
        "of another type"
    );
    assert!(
        message::send::<_, SharedTensor<i32>>(tensor.clone()).is_err(),
        "not shared"
    );
    assert!(
        message::send::<_, Tensor<i32>>(tensor.clone()).is_err(),
        "not exclusive"
    );
    assert!(message::send::<_, DynTensor>(tensor.clone()).is_err());
    assert!(message::send::<_, AliasedTensor<i32>>(Tensor::<i32>::zeros(1).unwrap()).is_err());
    let shared = Tensor::<i32>::zeros(1).unwrap().freeze();
    assert!(message::send::<_, AliasedTensor<i32>>(shared).is_err());
    drop((back, column));
    assert!(tensor.try_unalias().is_ok(), "no message holds it any more");
    assert!(postcard::to_stdvec(&matrix()).is_err());
}

#[test]
fn a_handle_that_does_not_fit_its_storage_is_refused() {
    let arena = Arena::current().unwrap();
    let geometry =
        |shape: &[usize], offset| Geometry::new(Dtype::U32, shape, &[1], offset).unwrap();
    let storage = |mode| Storage::allocate(&arena, 24, mode).unwrap();
    assert!(Racy::new::<u32>(storage(Mode::Aliased), geometry(&[6], 0)).is_ok());
    assert!(Racy::new::<u32>(storage(Mode::Aliased), geometry(&[6], 1)).is_err());
    assert!(Racy::new::<i32>(storage(Mode::Aliased), geometry(&[6], 0)).is_err());
    for mode in [
        Mode::Exclusive,
        Mode::Shared,
        Mode::Object,
        Mode::Message,
        Mode::Slots,
    ] {
        let error = Racy::new::<u32>(storage(mode), geometry(&[6], 0)).unwrap_err();
        assert_eq!(error.kind(), &ErrorKind::WrongMode);
    }
}

#[test]
fn threads_that_count_lose_nothing() {
    fn shareable<T: Send + Sync + Clone + 'static>() {}
    shareable::<AliasedTensor<f32>>();
    let bytes = Tensor::<u8>::zeros(16).unwrap().alias();
    let sums = Tensor::<f64>::zeros(2).unwrap().alias();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for round in 0..1000 {
                    bytes.fetch_add(&[round % 16], 1).unwrap();
                    sums.fetch_add(&[round % 2], 0.5).unwrap();
                }
            });
        }
    });
    let wanted: Vec<u8> = (0..16)
        .map(|i| (4 * (1000 / 16 + usize::from(i < 8))) as u8)
        .collect();
    assert_eq!(bytes.to_vec(), wanted);
    assert_eq!(sums.to_vec(), [1000.0, 1000.0]);
}

/// Writers write whole patterns; a reader must never see a mixture within one element.
#[test]
fn a_value_is_never_half_of_one_and_half_of_another() {
    const PATTERNS: [u64; 2] = [0, u64::MAX];
    let tensor = Tensor::<Complex64>::zeros(4).unwrap().alias();
    let value = |bits: u64| {
        Complex64::new(
            f32::from_bits(bits as u32),
            f32::from_bits((bits >> 32) as u32),
        )
    };
    std::thread::scope(|scope| {
        let writer = |bits| {
            let tensor = tensor.clone();
            move || (0..5000).for_each(|_| tensor.fill(value(bits)))
        };
        scope.spawn(writer(PATTERNS[0]));
        scope.spawn(writer(PATTERNS[1]));
        for _ in 0..5000 {
            for element in tensor.to_vec() {
                let bits = u64::from(element.re.to_bits()) | u64::from(element.im.to_bits()) << 32;
                assert!(PATTERNS.contains(&bits), "{bits:x}");
            }
        }
    });
}

#[derive(Clone, Debug)]
enum Act {
    Store(usize, usize, i32),
    Add(usize, usize, i32),
    Fill(i32),
    CopyIn(Vec<i32>),
    Apply(Vec<i32>),
    Transpose,
    Narrow(usize),
}

fn acts() -> impl Strategy<Value = Act> {
    let row = || prop::collection::vec(any::<i32>(), 12);
    prop_oneof![
        (0..5_usize, 0..5_usize, any::<i32>()).prop_map(|(a, b, value)| Act::Store(a, b, value)),
        (0..5_usize, 0..5_usize, any::<i32>()).prop_map(|(a, b, value)| Act::Add(a, b, value)),
        any::<i32>().prop_map(Act::Fill),
        row().prop_map(Act::CopyIn),
        row().prop_map(Act::Apply),
        Just(Act::Transpose),
        (0..2_usize).prop_map(Act::Narrow),
    ]
}

proptest! {
    /// The model: a plain list of elements, and for each position of the view which of them it is.
    #[test]
    fn alone_it_is_a_plain_list(acts in prop::collection::vec(acts(), 0..20)) {
        let whole = Tensor::<i32>::zeros([3, 4]).unwrap().alias();
        let mut view = whole.clone();
        let mut list = [0_i32; 12];
        let mut rows: Vec<Vec<usize>> = (0..3).map(|row| (4 * row..4 * row + 4).collect()).collect();
        for act in acts {
            let count: usize = rows.iter().map(Vec::len).sum();
            let order: Vec<usize> = rows.concat();
            let at = |a: usize, b: usize| rows.get(a).and_then(|row| row.get(b)).copied();
            match act {
                Act::Store(a, b, value) => match at(a, b) {
                    Some(place) => {
                        view.store(&[a, b], value).unwrap();
                        list[place] = value;
                    }
                    None => prop_assert!(view.store(&[a, b], value).is_err()),
                },
                Act::Add(a, b, value) => match at(a, b) {
                    Some(place) => {
                        prop_assert_eq!(view.fetch_add(&[a, b], value).unwrap(), list[place]);
                        list[place] = list[place].wrapping_add(value);
                    }
                    None => prop_assert!(view.fetch_add(&[a, b], value).is_err()),
                },
                Act::Fill(value) => {
                    view.fill(value);
                    order.iter().for_each(|&place| list[place] = value);
                }
                Act::CopyIn(values) => {
                    view.copy_from_slice(&values[..count]).unwrap();
                    order.iter().zip(values).for_each(|(&place, value)| list[place] = value);
                }
                Act::Apply(values) => {
                    view.apply(&values[..count], i32::wrapping_sub).unwrap();
                    order.iter().zip(values).for_each(|(&place, value)| list[place] = list[place].wrapping_sub(value));
                }
                Act::Transpose => {
                    view = view.transpose(0, 1).unwrap();
                    let columns = rows.first().map_or(0, Vec::len);
                    rows = (0..columns).map(|b| rows.iter().map(|row| row[b]).collect()).collect();
                }
                Act::Narrow(start) if rows.len() > start + 1 => {
                    view = view.narrow(0, start, rows.len() - start).unwrap();
                    rows.drain(..start);
                }
                Act::Narrow(_) => {}
            }
            prop_assert_eq!(whole.to_vec(), list);
            let seen: Vec<i32> = rows.concat().iter().map(|&place| list[place]).collect();
            prop_assert_eq!(view.to_vec(), seen);
        }
    }
}
