//! cuda-ipc.
