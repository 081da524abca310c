//! One shared arena for the processes of a program.

#[macro_use]
pub mod failpoint;

pub mod arena;
pub mod audit;
pub mod cells;
mod chunk;
mod class;
pub mod clock;
pub mod error;
pub mod event;
pub mod failure;
mod heap;
mod held;
pub mod lane;
mod layout;
mod lease;
pub mod letterbox;
mod line;
pub mod message;
pub mod names;
pub mod object;
pub mod participant;
mod reap;
pub mod room;
pub mod segment;
pub mod slots;
mod storage;
pub mod strategy;
pub mod sync;
pub mod tensor;
pub mod transfer;
mod watcher;
pub mod word;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use arena::Arena;
pub use error::{Error, ErrorKind, Result};
pub use strategy::{Strategy, all_sharing_strategies, set_sharing_strategy, sharing_strategy};
pub use tensor::{
    Bool, Complex64, Complex128, Dtype, DynTensor, Element, Elements, MAX_DIMS, Number, Shape,
    SharedTensor, Strided, Tensor, bf16, f16,
};
