//! One shared arena for the processes of a program.

pub mod clock;
pub mod error;
pub mod participant;
pub mod room;
pub mod segment;
pub mod strategy;

#[cfg(test)]
mod testing;
