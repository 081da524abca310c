//! Copies and fills.

use super::driver_calls;
use crate::context;
use crate::copy::End::{Any, Device, Host};

driver_calls! {
    fn cuMemcpyHtoD_v2(process, call, to: u64, from: usize, len: usize) {
        process.copy(call, Device(to), Host(from), len, 0, true)
    }

    fn cuMemcpyHtoDAsync_v2(process, call, to: u64, from: usize, len: usize, stream: usize) {
        process.copy(call, Device(to), Host(from), len, stream, false)
    }

    fn cuMemcpyDtoH_v2(process, call, to: usize, from: u64, len: usize) {
        process.copy(call, Host(to), Device(from), len, 0, true)
    }

    fn cuMemcpyDtoHAsync_v2(process, call, to: usize, from: u64, len: usize, stream: usize) {
        process.copy(call, Host(to), Device(from), len, stream, false)
    }

    fn cuMemcpyDtoD_v2(process, call, to: u64, from: u64, len: usize) {
        process.copy(call, Device(to), Device(from), len, 0, true)
    }

    fn cuMemcpyDtoDAsync_v2(process, call, to: u64, from: u64, len: usize, stream: usize) {
        process.copy(call, Device(to), Device(from), len, stream, false)
    }

    fn cuMemcpy(process, call, to: u64, from: u64, len: usize) {
        process.copy(call, Any(to), Any(from), len, 0, true)
    }

    fn cuMemcpyAsync(process, call, to: u64, from: u64, len: usize, stream: usize) {
        process.copy(call, Any(to), Any(from), len, stream, false)
    }

    fn cuMemcpyPeer(process, call, to: u64, to_context: usize, from: u64, from_context: usize, len: usize) {
        context::device_of(to_context)?;
        context::device_of(from_context)?;
        process.copy(call, Device(to), Device(from), len, 0, false)
    }

    fn cuMemcpyPeerAsync(
        process, call, to: u64, to_context: usize, from: u64, from_context: usize, len: usize, stream: usize,
    ) {
        context::device_of(to_context)?;
        context::device_of(from_context)?;
        process.copy(call, Device(to), Device(from), len, stream, false)
    }

    fn cuMemsetD8_v2(process, call, to: u64, value: u8, count: usize) {
        process.fill(call, to, &[value], count, 0)
    }

    fn cuMemsetD8Async(process, call, to: u64, value: u8, count: usize, stream: usize) {
        process.fill(call, to, &[value], count, stream)
    }

    fn cuMemsetD32_v2(process, call, to: u64, value: u32, count: usize) {
        process.fill(call, to, &value.to_ne_bytes(), count, 0)
    }

    fn cuMemsetD32Async(process, call, to: u64, value: u32, count: usize, stream: usize) {
        process.fill(call, to, &value.to_ne_bytes(), count, stream)
    }
}
