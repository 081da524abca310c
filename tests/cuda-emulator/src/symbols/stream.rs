//! Streams, and what they do besides copies.

use super::driver_calls;
use crate::code::invalid;
use crate::context;
use crate::raw::{HostFunction, Out};
use crate::stream::{Issue, Stream, Work};

driver_calls! {
    fn cuStreamCreate(process, call, stream: Out<usize>, flags: u32) {
        let device = process.current()?;
        if flags > 1 {
            return invalid(format!("flags {flags:#x}"));
        }
        let opened = Stream::open(process, device, flags)?;
        stream.set(process.local().keep_stream(opened))
    }

    fn cuStreamCreateWithPriority(process, call, stream: Out<usize>, flags: u32, _priority: i32) {
        let device = process.current()?;
        if flags > 1 {
            return invalid(format!("flags {flags:#x}"));
        }
        let opened = Stream::open(process, device, flags)?;
        stream.set(process.local().keep_stream(opened))
    }

    fn cuStreamDestroy_v2(process, call, stream: usize) {
        process.current()?;
        process.local().destroy_stream(process, stream)
    }

    fn cuStreamSynchronize(process, call, stream: usize) {
        process.synchronize_stream(stream)
    }

    fn cuStreamQuery(process, call, stream: usize) {
        process.query_stream(stream)
    }

    fn cuStreamGetFlags(process, call, stream: usize, flags: Out<u32>) {
        let current = process.current()?;
        let stream = process.local().stream(process, stream, current)?;
        flags.set(stream.flags())
    }

    fn cuStreamGetId(process, call, stream: usize, id: Out<u64>) {
        let current = process.current()?;
        let stream = process.local().stream(process, stream, current)?;
        id.set(stream.id)
    }

    fn cuStreamGetCtx(process, call, stream: usize, context: Out<usize>) {
        let current = process.current()?;
        let stream = process.local().stream(process, stream, current)?;
        context.set(context::handle(stream.device))
    }

    fn cuLaunchHostFunc(process, call, stream: usize, function: Option<HostFunction>, data: usize) {
        let current = process.current()?;
        let Some(function) = function else {
            return invalid("no function");
        };
        let mut local = process.local();
        let stream = local.stream(process, stream, current)?;
        local.issue(process, &stream, Issue::new(call, Work::Call(function, data)), |_, _, _| ());
        Ok(())
    }

    fn cuStreamWriteValue32_v2(process, call, stream: usize, at: u64, value: u32, flags: u32) {
        process.write_value(call, stream, at, u64::from(value), false, flags)
    }

    fn cuStreamWriteValue64_v2(process, call, stream: usize, at: u64, value: u64, flags: u32) {
        process.write_value(call, stream, at, value, true, flags)
    }

    fn cuStreamWaitValue32_v2(process, call, stream: usize, at: u64, value: u32, flags: u32) {
        process.wait_value(call, stream, at, u64::from(value), false, flags)
    }

    fn cuStreamWaitValue64_v2(process, call, stream: usize, at: u64, value: u64, flags: u32) {
        process.wait_value(call, stream, at, value, true, flags)
    }
}
