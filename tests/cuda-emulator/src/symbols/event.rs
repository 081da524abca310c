//! Events.

use super::driver_calls;
use crate::raw::Out;

driver_calls! {
    fn cuEventCreate(process, call, event: Out<usize>, flags: u32) {
        event.set(process.create_event(flags)?)
    }

    fn cuEventDestroy_v2(process, call, event: usize) {
        process.destroy_event(event)
    }

    fn cuEventRecord(process, call, event: usize, stream: usize) {
        process.record(call, event, stream)
    }

    fn cuEventQuery(process, call, event: usize) {
        process.query_event(call, event)
    }

    fn cuEventSynchronize(process, call, event: usize) {
        process.synchronize_event(call, event)
    }

    fn cuStreamWaitEvent(process, call, stream: usize, event: usize, flags: u32) {
        process.wait_event(call, stream, event, flags)
    }
}
