//! A geometry as bytes.
//!
//! One byte for the element type, one with the number of dimensions and two flags, then the lengths, then the strides
//! (zigzag) unless they are those of packed elements, then the offset unless it is zero; all as LEB128 numbers. There is
//! exactly one encoding of each geometry, and every other sequence of bytes is an error, as it is hostile or damaged.

use crate::error::{Error, Result};
use crate::tensor::dtype::Dtype;
use crate::tensor::geometry::{Geometry, contiguous_strides};
use crate::tensor::shape::MAX_DIMS;

/// The most bytes that a geometry takes: two, and ten for each length, each stride and the offset.
pub(crate) const GEOMETRY_BYTES: usize = 2 + (2 * MAX_DIMS + 1) * 10;

const NDIM: u8 = 0x0f;
const HAS_STRIDES: u8 = 0x10;
const HAS_OFFSET: u8 = 0x20;

/// What the second byte is made of, for the fingerprint of what words look like.
pub(crate) const HEAD: [u8; 3] = [NDIM, HAS_STRIDES, HAS_OFFSET];

impl Geometry {
    /// Appends this geometry to `out`: 4 bytes for a small matrix.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let mut bytes = [0; GEOMETRY_BYTES];
        let length = self.encode_to(&mut bytes);
        out.extend_from_slice(&bytes[..length]);
    }

    /// Writes this geometry to the start of `out`, which has room for [`GEOMETRY_BYTES`], and answers how many bytes it
    /// takes: 4 for a small matrix.
    #[inline]
    pub(crate) fn encode_to(&self, out: &mut [u8]) -> usize {
        let packed = self.has_packed_strides();
        let mut head = self.ndim() as u8;
        head |= if packed { 0 } else { HAS_STRIDES };
        head |= if self.offset() == 0 { 0 } else { HAS_OFFSET };
        out[0] = self.dtype().code();
        out[1] = head;
        let mut at = 2;
        for &length in self.shape() {
            put(out, &mut at, length as u64);
        }
        if !packed {
            for &stride in self.strides() {
                put(out, &mut at, zigzag(stride));
            }
        }
        if self.offset() != 0 {
            put(out, &mut at, self.offset() as u64);
        }
        at
    }

    /// Reads a geometry from the start of `bytes`; also says how many of them it took.
    ///
    /// What comes out has passed [`Geometry::new`]; it still has to be checked against its storage.
    ///
    /// # Errors
    /// When the bytes are not what `encode` writes.
    pub fn decode(bytes: &[u8]) -> Result<(Geometry, usize)> {
        let mut geometry = Geometry::SCALAR;
        let used = geometry.read(bytes)?;
        Ok((geometry, used))
    }

    /// As [`decode`](Self::decode), in the place of a [`SCALAR`](Self::SCALAR).
    ///
    /// # Errors
    /// As there; then there is nothing of use in it.
    #[inline]
    pub(crate) fn read(&mut self, bytes: &[u8]) -> Result<usize> {
        if self.read_packed(bytes).is_some() {
            return Ok(bytes.len());
        }
        self.read_any(bytes)
    }

    /// As [`read`](Self::read), for what most geometries are, and nothing but the geometry. `None`: look more closely.
    #[inline]
    fn read_packed(&mut self, bytes: &[u8]) -> Option<()> {
        let [dtype, ndim, rest @ ..] = bytes else {
            return None;
        };
        let mut rest = rest.iter();
        self.pack(Dtype::from_code(*dtype).ok()?, usize::from(*ndim), || {
            let (mut length, mut shift) = (0, 0);
            loop {
                let byte = *rest.next()?;
                length |= usize::from(byte & 0x7f) << shift;
                if byte < 0x80 {
                    // A last byte of 0 could have been left out.
                    if byte == 0 && shift > 0 {
                        return None;
                    }
                    return Some(length);
                }
                shift += 7;
                if shift > 56 {
                    return None;
                }
            }
        })?;
        (rest.len() == 0).then_some(())
    }

    fn read_any(&mut self, bytes: &[u8]) -> Result<usize> {
        let mut rest = bytes;
        let dtype = Dtype::from_code(take_byte(&mut rest)?)?;
        let head = take_byte(&mut rest)?;
        let ndim = usize::from(head & NDIM);
        if head & !(NDIM | HAS_STRIDES | HAS_OFFSET) != 0 || ndim > MAX_DIMS {
            return Err(malformed(format!(
                "the byte {head:#04x} asks for {ndim} dimensions (at most {MAX_DIMS}) or has unknown flags"
            )));
        }
        let mut shape = [0; MAX_DIMS];
        for length in &mut shape[..ndim] {
            *length = take_usize(&mut rest)?;
        }
        let shape = &shape[..ndim];
        let packed = contiguous_strides(shape);
        let strides = if head & HAS_STRIDES != 0 {
            let mut strides = [0; MAX_DIMS];
            for stride in &mut strides[..ndim] {
                *stride = unzigzag(take(&mut rest)?);
            }
            if Some(strides) == packed {
                return Err(malformed(format!(
                    "the strides {:?} were written although the shape implies them",
                    &strides[..ndim]
                )));
            }
            strides
        } else {
            packed.ok_or_else(|| malformed(format!("the shape {shape:?} overflows")))?
        };
        let mut offset = 0;
        if head & HAS_OFFSET != 0 {
            offset = take_usize(&mut rest)?;
            if offset == 0 {
                return Err(malformed(
                    "an offset of zero was written although it is implied".to_string(),
                ));
            }
        }
        *self = Geometry::new(dtype, shape, &strides[..ndim], offset)?;
        Ok(bytes.len() - rest.len())
    }
}

#[cold]
fn malformed(what: String) -> Error {
    Error::malformed(format!(
        "cannot read the geometry of a tensor from a message: {what}; the bytes are damaged or of another version"
    ))
}

#[cold]
fn cut_short() -> Error {
    malformed("it is cut short".to_string())
}

/// Small numbers of either sign become small numbers.
fn zigzag(value: isize) -> u64 {
    let value = value as i64;
    ((value << 1) ^ (value >> 63)) as u64
}

fn unzigzag(value: u64) -> isize {
    ((value >> 1) as i64 ^ -((value & 1) as i64)) as isize
}

#[inline]
fn put(out: &mut [u8], at: &mut usize, mut value: u64) {
    while value >= 0x80 {
        out[*at] = value as u8 | 0x80;
        *at += 1;
        value >>= 7;
    }
    out[*at] = value as u8;
    *at += 1;
}

#[inline]
fn take_byte(rest: &mut &[u8]) -> Result<u8> {
    let (&first, after) = rest.split_first().ok_or_else(cut_short)?;
    *rest = after;
    Ok(first)
}

#[inline]
fn take(rest: &mut &[u8]) -> Result<u64> {
    let mut value = 0_u64;
    for shift in (0..u64::BITS).step_by(7) {
        let byte = take_byte(rest)?;
        let bits = u64::from(byte & 0x7f);
        if bits << shift >> shift != bits {
            return Err(malformed("a number does not fit into 64 bits".to_string()));
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            if byte == 0 && shift > 0 {
                return Err(malformed(format!(
                    "the number {value} was written with more bytes than it takes"
                )));
            }
            return Ok(value);
        }
    }
    Err(malformed(
        "a number goes on for more than ten bytes".to_string(),
    ))
}

fn take_usize(rest: &mut &[u8]) -> Result<usize> {
    let value = take(rest)?;
    usize::try_from(value)
        .map_err(|_| malformed(format!("{value} does not fit into the address space")))
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Geometry {
        /// The bytes that it is on the wire.
        pub(in crate::tensor) fn to_bytes(self) -> Vec<u8> {
            let mut bytes = vec![0; GEOMETRY_BYTES];
            let len = self.encode_to(&mut bytes);
            bytes.truncate(len);
            bytes
        }
    }

    fn encoded(geometry: Geometry) -> Vec<u8> {
        geometry.to_bytes()
    }

    #[test]
    fn the_bytes_are_as_documented() {
        let matrix = Geometry::contiguous(Dtype::F32, [2, 300]).unwrap();
        assert_eq!(encoded(matrix), [12, 2, 2, 0xac, 0x02]);
        let column = matrix.select(1, 3).unwrap();
        assert_eq!(encoded(column), [12, 0x31, 2, 0xd8, 0x04, 3]);
        let scalar = Geometry::contiguous(Dtype::U8, ()).unwrap();
        assert_eq!(encoded(scalar), [2, 0]);
    }

    #[test]
    fn each_kind_of_malformed_bytes_is_an_error() {
        let longest = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01]; // u64::MAX
        let cases: &[(&str, &[u8])] = &[
            ("nothing", &[]),
            ("no dtype of this code", &[0, 0]),
            ("no dtype of this code", &[16, 0]),
            ("cut after the dtype", &[2]),
            ("nine dimensions", &[2, 9, 1, 1, 1, 1, 1, 1, 1, 1, 1]),
            ("an unknown flag", &[2, 0x40]),
            ("an unknown flag", &[2, 0x80]),
            ("cut in the shape", &[2, 2, 1]),
            ("cut in a number", &[2, 1, 0x80]),
            ("a number with a needless byte", &[2, 1, 0x81, 0x00]),
            (
                "a number of more than 64 bits",
                &[
                    2, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02,
                ],
            ),
            (
                "a number without an end",
                &[
                    2, 1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01,
                ],
            ),
            ("cut in the strides", &[2, 0x11, 5]),
            ("strides that the shape implies", &[2, 0x11, 5, 2]),
            ("strides without dimensions", &[2, 0x10]),
            ("an offset of zero", &[2, 0x20, 0]),
            ("no offset", &[2, 0x20]),
            ("an element before the storage", &[2, 0x11, 5, 1]),
        ];
        for (what, bytes) in cases {
            assert!(Geometry::decode(bytes).is_err(), "{what}");
        }
        assert!(
            Geometry::decode(&[&[2, 1][..], &longest].concat()).is_err(),
            "a shape that overflows"
        );
        assert!(
            Geometry::decode(&[&[2, 2][..], &longest, &longest].concat()).is_err(),
            "a shape that overflows"
        );
        assert!(
            Geometry::decode(&[&[2, 0x20][..], &longest].concat()).is_err(),
            "an offset that overflows"
        );
        assert!(
            Geometry::decode(&[&[2, 0x11, 2][..], &longest].concat()).is_err(),
            "a stride that overflows"
        );
    }

    #[test]
    fn zigzag_keeps_every_stride() {
        for stride in [0, 1, -1, 63, -64, isize::MAX, isize::MIN] {
            assert_eq!(unzigzag(zigzag(stride)), stride);
        }
        assert_eq!([0, -1, 1, -2].map(zigzag), [0, 1, 2, 3]);
    }
}
