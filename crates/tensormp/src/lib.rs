//! tensormp.

#![forbid(unsafe_code)]
