//! mp-queue.

#![forbid(unsafe_code)]
