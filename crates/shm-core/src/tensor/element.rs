//! The element types: plain values that are valid whatever their bytes are, so that nothing another process writes into
//! shared memory can make one invalid.

use crate::error::{Error, Result};
use crate::tensor::dtype::Dtype;
pub use half::{bf16, f16};
use std::fmt;
use std::hash::{Hash, Hasher};

mod sealed {
    pub trait Sealed {}
}

/// A type that can be an element of a tensor.
///
/// # Safety
/// The type has no padding, no pointer and no interior mutability, every bit pattern of its size is a valid value, all
/// bits zero is [`ZERO`](Element::ZERO), and [`DTYPE`](Element::DTYPE) belongs to this type alone and tells its size and
/// alignment. The trait is sealed: the types of [`Dtype`] are all there are.
pub unsafe trait Element:
    sealed::Sealed + Copy + Send + Sync + PartialEq + fmt::Debug + 'static
{
    /// The name of this type at run time.
    const DTYPE: Dtype;
    /// Zero, or false; all its bits are zero.
    const ZERO: Self;
    /// One, or true.
    const ONE: Self;
}

/// An element type with an order, which [`Tensor::arange`](crate::Tensor::arange) can count in: integers and floats.
pub trait Number: Element {
    /// How many values `start`, `start + step`, … lie before `end`.
    ///
    /// # Errors
    /// When `step` is zero, leads away from `end`, or a value is not finite; when there are more than a `usize` counts.
    #[doc(hidden)]
    fn count(start: Self, end: Self, step: Self) -> Result<usize>;

    /// `start + index * step`, for an `index` below the count.
    #[doc(hidden)]
    fn nth(start: Self, step: Self, index: usize) -> Self;
}

/// A truth value of one byte: false is 0, and every other byte is true.
///
/// Rust's `bool` must be 0 or 1, which a byte that another process writes need not be.
///
/// ```
/// use shm_core::Bool;
///
/// assert_eq!(Bool(2), Bool::TRUE);
/// assert!(bool::from(Bool::from(true)));
/// ```
#[derive(Clone, Copy, Default)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl Bool {
    /// False.
    pub const FALSE: Bool = Bool(0);
    /// True, as this crate writes it.
    pub const TRUE: Bool = Bool(1);

    /// Whether this is true: any byte but 0.
    pub const fn is_true(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Bool(u8::from(value))
    }
}

impl From<Bool> for bool {
    fn from(value: Bool) -> Self {
        value.is_true()
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        self.is_true() == other.is_true()
    }
}

impl Eq for Bool {}

impl Hash for Bool {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.is_true().hash(state);
    }
}

impl fmt::Debug for Bool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.is_true().fmt(f)
    }
}

/// A complex number of two `f32`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex64 {
    /// The real part.
    pub re: f32,
    /// The imaginary part.
    pub im: f32,
}

impl Complex64 {
    /// `re + im·i`.
    pub const fn new(re: f32, im: f32) -> Self {
        Complex64 { re, im }
    }
}

/// A complex number of two `f64`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub struct Complex128 {
    /// The real part.
    pub re: f64,
    /// The imaginary part.
    pub im: f64,
}

impl Complex128 {
    /// `re + im·i`.
    pub const fn new(re: f64, im: f64) -> Self {
        Complex128 { re, im }
    }
}

/// Names the element types, each with its dtype, zero and one.
macro_rules! elements {
    ($($type:ty => $dtype:ident, $zero:expr, $one:expr;)*) => {$(
        impl sealed::Sealed for $type {}

        // SAFETY: the types listed below are unsigned and signed integers, IEEE floats (half's are transparent over
        // `u16`), `Bool` (transparent over `u8`) and the two complex structs (`repr(C)`, two equal floats, hence without
        // padding): all bit patterns are valid and zero is all bits zero. That sizes and alignments are the dtype's is
        // checked at compile time just below; that no dtype is named twice, by a test.
        unsafe impl Element for $type {
            const DTYPE: Dtype = Dtype::$dtype;
            const ZERO: Self = $zero;
            const ONE: Self = $one;
        }

        const _: () = assert!(
            size_of::<$type>() == Dtype::$dtype.size() && align_of::<$type>() == Dtype::$dtype.align()
        );
    )*};
}

elements! {
    Bool => Bool, Bool::FALSE, Bool::TRUE;
    u8 => U8, 0, 1;
    u16 => U16, 0, 1;
    u32 => U32, 0, 1;
    u64 => U64, 0, 1;
    i8 => I8, 0, 1;
    i16 => I16, 0, 1;
    i32 => I32, 0, 1;
    i64 => I64, 0, 1;
    f16 => F16, f16::ZERO, f16::ONE;
    bf16 => Bf16, bf16::ZERO, bf16::ONE;
    f32 => F32, 0.0, 1.0;
    f64 => F64, 0.0, 1.0;
    Complex64 => Complex64, Complex64::new(0.0, 0.0), Complex64::new(1.0, 0.0);
    Complex128 => Complex128, Complex128::new(0.0, 0.0), Complex128::new(1.0, 0.0);
}

fn bad_range(
    start: &dyn fmt::Debug,
    end: &dyn fmt::Debug,
    step: &dyn fmt::Debug,
    why: &str,
) -> Error {
    Error::shape(format!(
        "cannot count from {start:?} to {end:?} in steps of {step:?}: {why}"
    ))
}

/// Integers count in `i128`, which holds every difference of two 64-bit values.
macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Number for $type {
            fn count(start: Self, end: Self, step: Self) -> Result<usize> {
                let (from, to, by) = (i128::from(start), i128::from(end), i128::from(step));
                let bad = |why| bad_range(&start, &end, &step, why);
                if by == 0 {
                    return Err(bad("the step must not be zero"));
                }
                let way = to - from;
                if way != 0 && (way < 0) != (by < 0) {
                    return Err(bad("the step leads away from the end"));
                }
                let count = way.unsigned_abs().div_ceil(by.unsigned_abs());
                usize::try_from(count).map_err(|_| bad("that is more values than can be counted"))
            }

            fn nth(start: Self, step: Self, index: usize) -> Self {
                // The value lies between the start and the end, so narrowing it back loses nothing.
                (i128::from(start) + index as i128 * i128::from(step)) as Self
            }
        }
    )*};
}

integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

/// Floats count in `f64` and round each value once, so that errors do not add up along the way.
macro_rules! floats {
    ($($type:ty: $narrow:expr;)*) => {$(
        impl Number for $type {
            fn count(start: Self, end: Self, step: Self) -> Result<usize> {
                let (from, to, by) = (f64::from(start), f64::from(end), f64::from(step));
                let bad = |why| bad_range(&start, &end, &step, why);
                if !(from.is_finite() && to.is_finite() && by.is_finite()) {
                    return Err(bad("all three must be finite"));
                }
                if by == 0.0 {
                    return Err(bad("the step must not be zero"));
                }
                let count = ((to - from) / by).ceil();
                if count < 0.0 {
                    return Err(bad("the step leads away from the end"));
                }
                // Beyond 2^53 neighbouring counts cannot be told apart (and no memory would hold them).
                if count > 9_007_199_254_740_992.0 {
                    return Err(bad("that is more values than can be counted"));
                }
                // The last value may be rounded up to the end, which is not to be reached.
                let count = count as usize;
                let last = f64::from(Self::nth(start, step, count.saturating_sub(1)));
                let reached = if by > 0.0 { last >= to } else { last <= to };
                Ok(if reached { count.saturating_sub(1) } else { count })
            }

            fn nth(start: Self, step: Self, index: usize) -> Self {
                $narrow(f64::from(start) + index as f64 * f64::from(step))
            }
        }
    )*};
}

floats! {
    f16: f16::from_f64;
    bf16: bf16::from_f64;
    f32: |wide| wide as f32;
    f64: |wide| wide;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dtypes() -> Vec<Dtype> {
        fn of<T: Element>() -> Dtype {
            assert_ne!(T::ZERO, T::ONE, "{}", T::DTYPE);
            T::DTYPE
        }
        vec![
            of::<Bool>(),
            of::<u8>(),
            of::<u16>(),
            of::<u32>(),
            of::<u64>(),
            of::<i8>(),
            of::<i16>(),
            of::<i32>(),
            of::<i64>(),
            of::<f16>(),
            of::<bf16>(),
            of::<f32>(),
            of::<f64>(),
            of::<Complex64>(),
            of::<Complex128>(),
        ]
    }

    #[test]
    fn each_dtype_has_exactly_one_element_type() {
        assert_eq!(dtypes(), Dtype::ALL);
    }

    #[test]
    fn any_byte_but_zero_is_true() {
        for byte in 1..=u8::MAX {
            assert_eq!(Bool(byte), Bool::TRUE);
        }
        assert_ne!(Bool(0), Bool::TRUE);
        assert_eq!(format!("{:?} {:?}", Bool(7), Bool(0)), "true false");
    }

    #[test]
    fn counting_reaches_the_ends_of_every_integer_type() {
        assert_eq!(u64::count(0, u64::MAX, u64::MAX).unwrap(), 1);
        assert_eq!(i64::count(i64::MIN, i64::MAX, i64::MAX).unwrap(), 3);
        assert_eq!(i64::nth(i64::MIN, i64::MAX, 2), i64::MAX - 1);
        assert_eq!(i8::count(127, -128, -1).unwrap(), 255);
        assert_eq!(i8::nth(127, -1, 254), -127);
        assert_eq!(u8::count(5, 5, 1).unwrap(), 0);
    }

    #[test]
    fn counting_for_ever_or_the_wrong_way_is_an_error() {
        assert!(u8::count(0, 9, 0).is_err());
        assert!(i32::count(0, 9, -1).is_err());
        assert!(i32::count(9, 0, 1).is_err());
        assert!(f32::count(0.0, 1.0, 0.0).is_err());
        assert!(f32::count(0.0, 1.0, -0.5).is_err());
        assert!(f32::count(0.0, f32::INFINITY, 1.0).is_err());
        assert!(f64::count(f64::NAN, 1.0, 1.0).is_err());
        assert!(f64::count(f64::MIN, f64::MAX, 1.0).is_err());
        assert!(f64::count(0.0, 1.0, 1e-300).is_err());
        assert_eq!(f64::count(0.0, 1.0, 0.25).unwrap(), 4);
        assert_eq!(f64::count(1.0, 0.0, -0.3).unwrap(), 4);
        assert_eq!(f64::count(1.0, 1.0, 1.0).unwrap(), 0);
    }

    #[test]
    fn a_last_value_that_rounds_to_the_end_is_left_out() {
        // In f64 three of these steps end just below the end, in f32 at it.
        assert_eq!(f32::count(0.0, 0.3, 0.1).unwrap(), 3);
        assert_eq!(f32::count(0.0, -0.3, -0.1).unwrap(), 3);
    }
}
