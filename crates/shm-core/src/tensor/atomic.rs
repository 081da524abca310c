//! Elements as atomics: how an element that others may be writing at this moment is read and written.
//!
//! Each access is one relaxed atomic access of the element's own size, the same for all who touch the element, so two
//! of them never race in the sense of the language, and none sees half of another's value. The one exception is
//! [`Complex128`](crate::Complex128), for which there is no atomic: it is two accesses, one for each part.

use crate::tensor::element::{Bool, Complex64, Element, Number, bf16, f16};
use crate::tensor::racy::{bits_of, bits_to, update};
use std::sync::atomic::{AtomicU8, AtomicU16, AtomicU32, AtomicU64, Ordering};

/// An element type that one atomic holds: every one but [`Complex128`](crate::Complex128).
pub trait AtomicElement: Element {
    /// The atomic of the same size.
    #[doc(hidden)]
    type Word: Word;
}

/// A number type, in which several processes can sum up at once: integers and floats.
pub trait Addend: AtomicElement + Number {
    /// Adds to an element, and answers what was there.
    #[doc(hidden)]
    fn add_in(word: &Self::Word, value: Self) -> Self;
}

/// An integer type, which can be counted in by several processes at once.
pub trait Integer: Addend + Ord {}

/// What is needed of the four atomics.
#[doc(hidden)]
pub trait Word: Sized + Sync + 'static {
    /// The unsigned integer within.
    type Bits: Element + Eq;

    #[must_use]
    fn get(&self) -> Self::Bits;
    fn put(&self, bits: Self::Bits);
    #[must_use]
    fn exchange(&self, bits: Self::Bits) -> Self::Bits;
    fn replace(&self, old: Self::Bits, new: Self::Bits) -> Result<Self::Bits, Self::Bits>;
    fn add(&self, bits: Self::Bits) -> Self::Bits;
    fn sub(&self, bits: Self::Bits) -> Self::Bits;
}

macro_rules! words {
    ($($word:ident => $bits:ident: $($element:ident)*;)*) => {$(
        // Relaxed throughout: elements publish nothing. Who has to see them all, gets a message, or an event, first.
        impl Word for $word {
            type Bits = $bits;

            #[inline]
            fn get(&self) -> $bits {
                self.load(Ordering::Relaxed)
            }

            #[inline]
            fn put(&self, bits: $bits) {
                self.store(bits, Ordering::Relaxed);
            }

            #[inline]
            fn exchange(&self, bits: $bits) -> $bits {
                self.swap(bits, Ordering::Relaxed)
            }

            #[inline]
            fn replace(&self, old: $bits, new: $bits) -> Result<$bits, $bits> {
                self.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed)
            }

            #[inline]
            fn add(&self, bits: $bits) -> $bits {
                self.fetch_add(bits, Ordering::Relaxed)
            }

            #[inline]
            fn sub(&self, bits: $bits) -> $bits {
                self.fetch_sub(bits, Ordering::Relaxed)
            }
        }

        $(
            impl AtomicElement for $element {
                type Word = $word;
            }

            const _: () = assert!(size_of::<$element>() == size_of::<$word>());
        )*
    )*};
}

words! {
    AtomicU8 => u8: Bool u8 i8;
    AtomicU16 => u16: u16 i16 f16 bf16;
    AtomicU32 => u32: u32 i32 f32;
    AtomicU64 => u64: u64 i64 f64 Complex64;
}

macro_rules! integers {
    ($($integer:ident)*) => {$(
        impl Integer for $integer {}

        impl Addend for $integer {
            fn add_in(word: &Self::Word, value: Self) -> Self {
                // Two's complement: adding the bits is adding the numbers, signed or not.
                bits_to(word.add(bits_of(value)))
            }
        }
    )*};
}

integers! { u8 u16 u32 u64 i8 i16 i32 i64 }

macro_rules! floats {
    ($($float:ident)*) => {$(
        impl Addend for $float {
            fn add_in(word: &Self::Word, value: Self) -> Self {
                // No processor adds floats in memory.
                update(word, |sum: Self| sum + value)
            }
        }
    )*};
}

floats! { f16 bf16 f32 f64 }

/// The value of type `B` that has the bytes of `value`; the types are of one size.
#[inline]
pub(super) fn cast<A: Element, B: Element>(value: A) -> B {
    assert_eq!(size_of::<A>(), size_of::<B>(), "elements of one size");
    // SAFETY: both are elements, so neither has padding and every bit pattern is a valid `B`; the sizes are equal, as
    // just checked.
    unsafe { std::mem::transmute_copy(&value) }
}

/// The value of type `T` whose bytes are those of two words.
///
/// Only for elements of 16 bytes; for others this is never called.
pub(super) fn join<T: Element>(halves: [u64; 2]) -> T {
    assert_eq!(size_of::<T>(), 16, "an element of two halves");
    // SAFETY: the sizes are equal, and every bit pattern is a valid element.
    unsafe { std::mem::transmute_copy(&halves) }
}

/// The two words of an element of 16 bytes.
pub(super) fn split<T: Element>(value: T) -> [u64; 2] {
    assert_eq!(size_of::<T>(), 16, "an element of two halves");
    // SAFETY: the sizes are equal, and an element has no padding, so all its bytes are those of some integers.
    unsafe { std::mem::transmute_copy(&value) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tensor::Complex128;

    #[test]
    fn an_element_is_its_bits_and_back() {
        let bits: u32 = cast(1.5_f32);
        assert_eq!(bits, 1.5_f32.to_bits());
        assert_eq!(cast::<u32, f32>(bits), 1.5);
        assert_eq!(cast::<i8, u8>(-1), 255);
        let number = Complex128::new(-0.5, f64::MAX);
        assert_eq!(split(number), [(-0.5_f64).to_bits(), f64::MAX.to_bits()]);
        assert_eq!(join::<Complex128>(split(number)), number);
    }
}
