//! Handles for other processes.

use super::driver_calls;
use crate::ipc::Handle;
use crate::raw::Out;

driver_calls! {
    fn cuIpcGetMemHandle(process, call, handle: Out<Handle>, at: u64) {
        handle.set(process.export_memory(at)?)
    }

    fn cuIpcOpenMemHandle_v2(process, call, at: Out<u64>, handle: Handle, flags: u32) {
        at.set(process.open_memory(&handle, flags)?)
    }

    fn cuIpcCloseMemHandle(process, call, at: u64) {
        process.close_memory(at)
    }

    fn cuIpcGetEventHandle(process, call, handle: Out<Handle>, event: usize) {
        handle.set(process.export_event(event)?)
    }

    fn cuIpcOpenEventHandle(process, call, event: Out<usize>, handle: Handle) {
        event.set(process.open_event(&handle)?)
    }
}
