//! The element types by name, as they are known at run time and on the wire.

use crate::error::{Error, Result};
use crate::tensor::element::{Complex64, Complex128};
use std::fmt;

/// The type of a tensor's elements, known at run time.
///
/// The numbers are what travels between processes; they never change and are never given again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum Dtype {
    /// [`Bool`](crate::tensor::Bool): one byte, true unless zero.
    Bool = 1,
    /// `u8`.
    U8 = 2,
    /// `u16`.
    U16 = 3,
    /// `u32`.
    U32 = 4,
    /// `u64`.
    U64 = 5,
    /// `i8`.
    I8 = 6,
    /// `i16`.
    I16 = 7,
    /// `i32`.
    I32 = 8,
    /// `i64`.
    I64 = 9,
    /// [`f16`](crate::tensor::f16): IEEE 754 half precision.
    F16 = 10,
    /// [`bf16`](crate::tensor::bf16): the upper half of an `f32`.
    Bf16 = 11,
    /// `f32`.
    F32 = 12,
    /// `f64`.
    F64 = 13,
    /// [`Complex64`]: two `f32`.
    Complex64 = 14,
    /// [`Complex128`]: two `f64`.
    Complex128 = 15,
}

impl Dtype {
    /// All element types there are.
    pub const ALL: [Dtype; 15] = [
        Dtype::Bool,
        Dtype::U8,
        Dtype::U16,
        Dtype::U32,
        Dtype::U64,
        Dtype::I8,
        Dtype::I16,
        Dtype::I32,
        Dtype::I64,
        Dtype::F16,
        Dtype::Bf16,
        Dtype::F32,
        Dtype::F64,
        Dtype::Complex64,
        Dtype::Complex128,
    ];

    /// The number that stands for this type on the wire.
    pub const fn code(self) -> u8 {
        self as u8
    }

    /// The type that a number from the wire stands for.
    ///
    /// # Errors
    /// When no type has this number: the bytes are damaged, or come from a newer version of this crate.
    pub fn from_code(code: u8) -> Result<Dtype> {
        Dtype::ALL
            .into_iter()
            .find(|dtype| dtype.code() == code)
            .ok_or_else(|| {
                Error::malformed(format!(
                    "read the code of an element type and found {code}, which no element type has; the codes known here are 1 to {}",
                    Dtype::ALL.len()
                ))
            })
    }

    /// How many bytes an element takes.
    ///
    /// ```
    /// assert_eq!(shm_core::Dtype::Bf16.size(), 2);
    /// ```
    pub const fn size(self) -> usize {
        match self {
            Dtype::Bool | Dtype::U8 | Dtype::I8 => 1,
            Dtype::U16 | Dtype::I16 | Dtype::F16 | Dtype::Bf16 => 2,
            Dtype::U32 | Dtype::I32 | Dtype::F32 => 4,
            Dtype::U64 | Dtype::I64 | Dtype::F64 => 8,
            Dtype::Complex64 => size_of::<Complex64>(),
            Dtype::Complex128 => size_of::<Complex128>(),
        }
    }

    /// The alignment of an element in bytes.
    pub const fn align(self) -> usize {
        match self {
            Dtype::Complex64 => align_of::<Complex64>(),
            Dtype::Complex128 => align_of::<Complex128>(),
            other => other.size(),
        }
    }

    /// The name of this type, as in Rust.
    pub const fn name(self) -> &'static str {
        match self {
            Dtype::Bool => "bool",
            Dtype::U8 => "u8",
            Dtype::U16 => "u16",
            Dtype::U32 => "u32",
            Dtype::U64 => "u64",
            Dtype::I8 => "i8",
            Dtype::I16 => "i16",
            Dtype::I32 => "i32",
            Dtype::I64 => "i64",
            Dtype::F16 => "f16",
            Dtype::Bf16 => "bf16",
            Dtype::F32 => "f32",
            Dtype::F64 => "f64",
            Dtype::Complex64 => "complex64",
            Dtype::Complex128 => "complex128",
        }
    }
}

impl fmt::Display for Dtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_on_the_wire_never_change() {
        let codes: Vec<_> = Dtype::ALL.map(|dtype| (dtype.code(), dtype.name())).into();
        assert_eq!(
            codes,
            [
                (1, "bool"),
                (2, "u8"),
                (3, "u16"),
                (4, "u32"),
                (5, "u64"),
                (6, "i8"),
                (7, "i16"),
                (8, "i32"),
                (9, "i64"),
                (10, "f16"),
                (11, "bf16"),
                (12, "f32"),
                (13, "f64"),
                (14, "complex64"),
                (15, "complex128"),
            ]
        );
    }

    #[test]
    fn an_unknown_code_is_an_error_that_names_it() {
        for code in (0..=u8::MAX).filter(|code| !(1..=15).contains(code)) {
            let error = Dtype::from_code(code).unwrap_err();
            assert!(error.to_string().contains(&code.to_string()), "{error}");
        }
        for dtype in Dtype::ALL {
            assert_eq!(Dtype::from_code(dtype.code()).unwrap(), dtype);
        }
    }
}
