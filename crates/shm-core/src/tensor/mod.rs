//! Tensors: typed, strided elements in a block of the arena.
//!
//! Who may touch a tensor's elements is decided by its type, across processes as the borrow checker does within one:
//! a [`Tensor`] is the only one that can reach its elements and may write them; a [`SharedTensor`] can be cloned, sent to
//! any number of processes and cut into views, and is read only. An [`AliasedTensor`] can be cloned and sent as well, and
//! all its holders write it at the same time, by atomics. [`DynTensor`] is either of the first two with its element type
//! known at run time only. What those can do for a reader is in [`Strided`].
//!
//! ```
//! use shm_core::{SharedTensor, Tensor};
//!
//! let mut image = Tensor::<u8>::zeros([4, 6])?;
//! image.as_mut_slice()[7] = 255; // row 1, column 1
//! let image: SharedTensor<u8> = image.freeze();
//! let column = image.select(1, 1)?; // the same memory, seen with another stride
//! assert_eq!(column.to_vec(), [0, 255, 0, 0]);
//! assert!(column.same_storage(&image));
//! # Ok::<(), shm_core::Error>(())
//! ```
//!
//! How elements lie in a block (shape, strides, offset) is the business of `geometry` and `view`; `placed` alone turns it
//! into references, and `racy` into atomics.

mod aliased;
mod atomic;
#[cfg(feature = "candle")]
mod candle;
mod cast;
mod create;
mod dtype;
mod dynamic;
mod element;
mod encoding;
pub(crate) use encoding::HEAD as GEOMETRY_HEAD;
mod exclusive;
mod geometry;
#[cfg(test)]
mod model;
#[cfg(feature = "ndarray")]
mod ndarray;
mod placed;
mod racy;
mod shape;
mod shared;
mod strided;
mod view;
mod walk;
mod whole;

pub use aliased::AliasedTensor;
pub use atomic::{Addend, AtomicElement, Integer};
pub use cast::{elements_of, elements_of_mut};
pub use dtype::Dtype;
pub use dynamic::DynTensor;
pub use element::{Bool, Complex64, Complex128, Element, Number, bf16, f16};
pub(crate) use encoding::GEOMETRY_BYTES;
pub use exclusive::Tensor;
pub use geometry::Geometry;
pub use shape::{MAX_DIMS, Shape};
pub use shared::SharedTensor;
pub use strided::Strided;
pub use walk::{Elements, ElementsMut};
pub use whole::{ExclusiveBytes, SharedBytes};
