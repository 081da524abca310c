//! One shared arena for the processes of a program.

pub mod arena;
pub mod error;
mod message;
mod storage;
pub mod tensor;

pub use arena::Arena;
pub use error::{Error, ErrorKind, Result};
pub use tensor::{
    Bool, Complex64, Complex128, Dtype, DynTensor, Element, Elements, MAX_DIMS, Number, Shape,
    SharedTensor, Strided, Tensor, bf16, f16,
};
