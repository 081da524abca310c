//! Bytes seen as elements: for memory whose layout is known at run time only, such as the slots of a pipeline.

use crate::error::{Error, ErrorKind, Result};
use crate::tensor::element::Element;

fn misfit<T: Element>(bytes: usize) -> Error {
    Error::new(
        ErrorKind::Shape,
        format!(
            "{bytes} bytes are no whole number of {} elements of {} bytes, or do not begin where such an element may",
            T::DTYPE.name(),
            size_of::<T>()
        ),
    )
}

/// These bytes as elements of `T`, where they are.
///
/// ```
/// let bytes = [0_u8; 8];
/// assert_eq!(shm_core::elements_of::<u8>(&bytes)?, [0; 8]);
/// # Ok::<(), shm_core::Error>(())
/// ```
///
/// # Errors
/// When they are no whole number of elements, or not aligned for them.
pub fn elements_of<T: Element>(bytes: &[u8]) -> Result<&[T]> {
    // SAFETY: an element is valid whatever its bytes are and has no padding (`Element`); `align_to` sees to alignment and
    // length, and the borrow of the bytes covers the elements.
    let (before, elements, after) = unsafe { bytes.align_to::<T>() };
    if before.is_empty() && after.is_empty() {
        Ok(elements)
    } else {
        Err(misfit::<T>(bytes.len()))
    }
}

/// These bytes as elements of `T` to write, where they are.
///
/// # Errors
/// As [`elements_of`].
pub fn elements_of_mut<T: Element>(bytes: &mut [u8]) -> Result<&mut [T]> {
    let len = bytes.len();
    // SAFETY: as in `elements_of`; and whatever is written as an element is valid bytes, since it has no padding.
    let (before, elements, after) = unsafe { bytes.align_to_mut::<T>() };
    if before.is_empty() && after.is_empty() {
        Ok(elements)
    } else {
        Err(misfit::<T>(len))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_seen_as_elements_only_where_they_fit() {
        // A tensor begins where any element may.
        let mut tensor = crate::Tensor::<u8>::zeros([16]).unwrap();
        let bytes = tensor.as_mut_slice();
        bytes[8..].fill(255);
        assert_eq!(elements_of::<u64>(bytes).unwrap(), [0, u64::MAX]);
        elements_of_mut::<f32>(&mut bytes[4..12]).unwrap().fill(1.0);
        assert_eq!(elements_of::<f32>(&bytes[4..8]).unwrap(), [1.0]);
        assert!(elements_of::<u64>(&bytes[..9]).is_err());
        assert!(elements_of::<u32>(&bytes[1..9]).is_err());
        assert!(elements_of_mut::<u16>(&mut bytes[1..3]).is_err());
        assert!(elements_of::<f64>(&[]).unwrap().is_empty());
    }
}
