//! One shared arena for the processes of a program.

pub mod cells;
pub mod event;
pub mod lane;
pub mod sync;
pub mod word;
