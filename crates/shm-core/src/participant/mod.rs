//! Who takes part in an arena, and how it is known that someone no longer does.

pub mod liveness;
pub mod lock;
pub mod record;
pub(crate) mod table;
pub(crate) mod task;
