//! Elements as the bytes that they are.

use shm_core::Element;

/// The bytes of elements.
pub(crate) fn bytes_of<T: Element>(elements: &[T]) -> &[u8] {
    let length = size_of_val(elements);
    // SAFETY: an element has no padding (`Element` is implemented for numbers and pairs of equal ones only), so each of
    // the bytes is initialised; they are those of the slice, for as long as it is borrowed.
    unsafe { core::slice::from_raw_parts(elements.as_ptr().cast::<u8>(), length) }
}

/// The bytes of elements, to overwrite.
pub(crate) fn bytes_of_mut<T: Element>(elements: &mut [T]) -> &mut [u8] {
    let length = size_of_val(elements);
    // SAFETY: as above, and every bit pattern is an element, so that any bytes may be written.
    unsafe { core::slice::from_raw_parts_mut(elements.as_mut_ptr().cast::<u8>(), length) }
}

/// Elements to be overwritten.
pub(crate) fn zeros<T: Element>(count: usize) -> Vec<T> {
    // SAFETY: every bit pattern is an element (`Element`), so that of all zeros is.
    let zero: T = unsafe { core::mem::zeroed() };
    vec![zero; count]
}
