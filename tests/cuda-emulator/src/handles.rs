//! What a process calls its streams: numbers that no other one ever has, unless a knob gives those of destroyed streams again.

use std::sync::Arc;

use crate::board::Progress;
use crate::code::{self, Answer, refuse};
use crate::process::{Local, Process};
use crate::stream::Stream;

impl Local {
    /// A new stream has a handle from now on.
    pub(crate) fn keep_stream(&mut self, stream: Arc<Stream>) -> usize {
        let again = self.free_handles.pop();
        let handle = again.unwrap_or_else(|| self.handle());
        self.streams.insert(handle, stream);
        handle
    }

    /// No more comes in a stream; what is in it is still done.
    pub(crate) fn destroy_stream(&mut self, process: &Process, handle: usize) -> Answer {
        let Some(stream) = self.streams.remove(&handle) else {
            return refuse(
                code::INVALID_HANDLE,
                "the stream was destroyed, or never was one of this process",
            );
        };
        self.destroyed
            .retain(|(_, ticket)| process.progress(*ticket) != Progress::Done);
        if stream.blocking {
            let (ticket, _) = stream.latest(process);
            self.destroyed.push((stream.device, ticket));
        }
        if process.knobs.handles_again {
            self.free_handles.push(handle);
        }
        stream.close();
        Ok(())
    }
}
