//! mp-queue.
