//! What a queue and its sides look like to who debugs a program.

use std::any::type_name;
use std::fmt;

use super::{Queue, Receiver, Sender};
use crate::channel::Channel;
use crate::lane::{LaneReceiver, LaneSender};

fn show<T>(f: &mut fmt::Formatter<'_>, side: &str, channel: &Channel) -> fmt::Result {
    f.debug_struct(side)
        .field("message", &format_args!("{}", type_name::<T>()))
        .field("len", &channel.len())
        .field("capacity", &channel.capacity())
        .field("closed", &channel.is_closed())
        .field("made_at", &channel.object.site())
        .finish()
}

// Not derived: the messages need not be printable.
impl<T> fmt::Debug for Queue<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show::<T>(f, "Queue", &self.sender.channel)
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show::<T>(f, "Sender", &self.channel)
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show::<T>(f, "Receiver", &self.channel)
    }
}

impl<T> fmt::Debug for LaneSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show::<T>(f, "LaneSender", &self.channel)
    }
}

impl<T> fmt::Debug for LaneReceiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        show::<T>(f, "LaneReceiver", &self.channel)
    }
}

#[cfg(test)]
mod tests {
    use crate::Queue;

    /// Not printable.
    #[derive(serde::Serialize, serde::Deserialize)]
    struct Opaque;

    #[test]
    fn a_queue_shows_what_it_is_for_and_how_full_it_is() {
        let arena = shm_core::Arena::builder()
            .capacity(64 << 20)
            .create()
            .unwrap();
        let queue = Queue::bounded_in(&arena, 3).unwrap();
        queue.put(Opaque).unwrap();
        let shown = format!("{queue:?}");
        assert!(shown.starts_with("Queue { message: mp_queue::"), "{shown}");
        assert!(
            shown.contains("Opaque, len: 1, capacity: 3, closed: false"),
            "{shown}"
        );
        assert!(shown.contains("shown.rs:"), "{shown}");
        assert!(format!("{:?}", queue.receiver()).starts_with("Receiver {"));
    }
}
