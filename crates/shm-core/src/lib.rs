//! One shared arena for the processes of a program: tensors, references and participants that survive any death.
//!
//! ```
//! use shm_core::{SharedTensor, Tensor};
//!
//! let mut tensor = Tensor::<f32>::zeros([2, 3])?; // in this process's arena, made at first use
//! tensor.as_mut_slice()[4] = 1.0;
//! let shared: SharedTensor<f32> = tensor.freeze(); // from now on anyone may read it, and nobody write
//! assert_eq!(shared.select(0, 1)?.to_vec(), [0.0, 1.0, 0.0]);
//! # Ok::<(), shm_core::Error>(())
//! ```
//!
//! An [`Arena`] is one sparse shared file that each process of a group maps whole. Everything lies in it and is named by
//! a handle, so that what travels from process to process is a few bytes, however large the tensor. Counts are of
//! processes and messages; what each process holds is written down where others can read it, so that whatever a killed
//! process held comes back.
//!
//! Users of tensors need [`Tensor`], [`SharedTensor`], [`DynTensor`] and [`Arena`]. The other modules are for crates that
//! build on the arena: [`message`] (values with handles inside), [`object`] (control words, cells, lanes, ends),
//! [`slots`] (tensors that go round), [`letterbox`]; and [`cells`], [`lane`], [`event`], [`sync`], [`word`], the
//! algorithms themselves, generic over where their atomics lie.
//!
//! What it does not do: start processes, wait, or reach other machines. Linux only, 64-bit.

#[macro_use]
pub mod failpoint;
#[macro_use]
pub mod say;

pub mod arena;
pub mod audit;
pub mod cells;
mod chunk;
mod class;
pub mod clock;
pub mod crowd;
pub mod deadlock;
pub mod descriptor;
#[cfg(feature = "dlpack")]
pub mod dlpack;
pub mod doubt;
pub mod error;
pub mod event;
pub mod exit;
pub mod failure;
mod heap;
mod held;
mod holders;
pub mod inspect;
#[doc(hidden)]
pub mod intake;
pub mod lane;
mod layout;
mod lease;
pub mod letterbox;
mod line;
pub mod message;
pub mod names;
pub mod object;
pub mod participant;
pub mod patience;
pub mod permits;
pub mod pin;
mod prefetch;
pub mod readers;
mod reap;
pub mod room;
pub mod rounds;
#[cfg(feature = "safetensors")]
pub mod safetensors;
pub mod segment;
mod shape;
pub mod slots;
pub mod steps;
mod storage;
pub mod strategy;
pub mod sync;
pub mod tensor;
pub mod trace;
pub mod transfer;
pub mod turn;
pub mod vigil;
mod watcher;
pub mod word;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use arena::Arena;
pub use error::{Error, ErrorKind, Result};
pub use segment::{HugePages, PageSize};
pub use strategy::{Strategy, all_sharing_strategies, set_sharing_strategy, sharing_strategy};
pub use tensor::{
    Addend, AliasedTensor, AtomicElement, Bool, Complex64, Complex128, Dtype, DynTensor, Element,
    Elements, ElementsMut, ExclusiveBytes, Integer, MAX_DIMS, Number, Shape, SharedBytes,
    SharedTensor, Strided, Tensor, bf16, elements_of, elements_of_mut, f16,
};
