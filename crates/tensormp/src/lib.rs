//! tensormp.
