//! What is refused, with the value given back where it is whole.

use std::sync::Arc;
use std::time::Duration;

use integration_tests::{Test, tests};
use mp_queue::{ErrorKind, PutError};
use serde::{Deserialize, Serialize, Serializer};
use tensormp::mp_queue;
use tensormp::prelude::*;
use tensormp::shm_core::ErrorKind as ArenaErrorKind;
use tensormp::shm_core::object::{Array, Object, ObjectKind};

pub(crate) const TESTS: &[Test] = &tests![
    a_queue_is_not_opened_as_one_of_other_tensors,
    a_queue_of_this_program_is_not_opened_as_one_of_other_structs,
    trying_an_empty_queue_says_empty,
    waiting_for_a_message_says_when_the_time_is_over,
    a_full_queue_gives_the_value_back,
    a_tensor_that_is_held_elsewhere_is_not_sent,
    a_tensor_that_occurs_twice_is_not_sent,
    a_tensor_of_another_arena_is_not_sent,
    a_value_that_cannot_be_written_comes_back,
    a_message_of_another_type_is_an_error_for_that_message_only,
    an_exclusive_tensor_goes_to_one_process_only,
    a_queue_is_not_put_into_itself,
    a_handle_of_another_thing_says_what_was_wrong,
    a_queue_without_room_is_refused,
];

const SHORT: Duration = Duration::from_millis(20);

#[track_caller]
fn refused<T>(result: Result<(), PutError<T>>, kind: ErrorKind) -> Option<T> {
    let error = result.expect_err("refused");
    assert_eq!(error.kind(), &kind, "{error}");
    error.into_value()
}

fn trying_an_empty_queue_says_empty() {
    let queue = Queue::<u8>::bounded(1).unwrap();
    assert_eq!(queue.try_get().unwrap_err().kind(), &ErrorKind::Empty);
    let (_sender, mut receiver) = pair::<u8>(1).unwrap();
    assert_eq!(receiver.try_get().unwrap_err().kind(), &ErrorKind::Empty);
}

fn waiting_for_a_message_says_when_the_time_is_over() {
    let queue = Queue::<u8>::bounded(1).unwrap();
    let error = queue.get_timeout(SHORT).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::TimedOut);
    assert!(
        error.to_string().contains("refusals.rs:"),
        "where the queue was made: {error}"
    );
    let (_sender, mut receiver) = pair::<u8>(1).unwrap();
    let error = receiver.get_timeout(SHORT).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::TimedOut);
    // A time too long to be added is no time at all.
    queue.put(3).unwrap();
    assert_eq!(queue.get_timeout(Duration::MAX).unwrap(), 3);
}

fn a_full_queue_gives_the_value_back() {
    let value = |i: u32| {
        (
            "a name that needs a block of its own".repeat(2),
            Tensor::full(4, i).unwrap(),
        )
    };
    let queue = Queue::bounded(2).unwrap();
    queue.put(value(0)).unwrap();
    queue.put(value(1)).unwrap();
    let third = value(2);
    let place = third.1.as_slice().as_ptr();
    let third = refused(queue.try_put(third), ErrorKind::Full).unwrap();
    let third = refused(queue.put_timeout(third, SHORT), ErrorKind::TimedOut).unwrap();
    assert_eq!((third.0.len(), third.1.as_slice()), (72, &[2; 4][..]));
    assert_eq!(third.1.as_slice().as_ptr(), place);
    queue.close();
    let third = refused(queue.put(third), ErrorKind::Closed).unwrap();
    assert_eq!(third.1.as_slice().as_ptr(), place);
    for i in 0..2 {
        assert_eq!(queue.get().unwrap().1.as_slice(), [i; 4]);
    }

    let (mut sender, receiver) = pair(1).unwrap();
    sender.put(value(0)).unwrap();
    let third = refused(sender.try_put(third), ErrorKind::Full).unwrap();
    let third = refused(sender.put_timeout(third, SHORT), ErrorKind::TimedOut).unwrap();
    drop(receiver);
    let third = refused(sender.put(third), ErrorKind::Closed).unwrap();
    assert_eq!(third.1.as_slice().as_ptr(), place);
}

fn a_tensor_that_is_held_elsewhere_is_not_sent() {
    let queue = Queue::<Arc<Tensor<u8>>>::bounded(2).unwrap();
    let kept = Arc::new(Tensor::full(3, 1).unwrap());
    let back = refused(
        queue.put(Arc::clone(&kept)),
        ErrorKind::Arena(ArenaErrorKind::StillHeld),
    );
    assert!(back.is_none(), "whoever kept it has it");
    assert!(queue.is_empty());
    assert_eq!(kept.as_slice(), [1; 3]);
    // The only owner may send it.
    queue.put(kept).unwrap();
    assert_eq!(queue.get().unwrap().as_slice(), [1; 3]);

    // Two owners in one message.
    let queue = Queue::bounded(2).unwrap();
    let both = Arc::new(Tensor::full(3, 1_u8).unwrap());
    let error = queue.put((Arc::clone(&both), both)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Arena(ArenaErrorKind::StillHeld));
    assert!(error.to_string().contains("freeze"), "what to do: {error}");
    assert!(queue.is_empty());
}

/// A type that says the same tensor twice, which serde's `&self` allows.
#[derive(Debug)]
struct Twice(Tensor<u8>);

impl Serialize for Twice {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        (&self.0, &self.0).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Twice {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        <(Tensor<u8>, Tensor<u8>)>::deserialize(deserializer).map(|(first, _)| Self(first))
    }
}

fn a_tensor_that_occurs_twice_is_not_sent() {
    let queue = Queue::bounded(2).unwrap();
    refused(
        queue.put(Twice(Tensor::zeros(3).unwrap())),
        ErrorKind::Arena(ArenaErrorKind::StillHeld),
    );
    assert!(queue.is_empty());
    // Nor as an argument.
    let error = spawn(|_, _: Twice| (), Twice(Tensor::zeros(3).unwrap()), 1).unwrap_err();
    assert!(error.to_string().contains("occurs twice"), "{error}");
}

fn a_tensor_of_another_arena_is_not_sent() {
    let other = Arena::builder().capacity(64 << 20).create().unwrap();
    let queue = Queue::bounded(2).unwrap();
    let foreign = Tensor::full_in(&other, 3, 5_u8).unwrap();
    let back = refused(
        queue.put(("beside it".to_owned(), foreign)),
        ErrorKind::Arena(ArenaErrorKind::ForeignArena),
    );
    assert_eq!(back.unwrap().1.as_slice(), [5; 3]);
    assert!(queue.is_empty());
    // A queue of that arena takes it.
    let there = Queue::bounded_in(&other, 1).unwrap();
    there
        .put(Tensor::full_in(&other, 3, 6_u8).unwrap())
        .unwrap();
    assert_eq!(there.get().unwrap().as_slice(), [6; 3]);
    // But can itself not go through this one.
    let queues = Queue::bounded(1).unwrap();
    refused(
        queues.put(there),
        ErrorKind::Arena(ArenaErrorKind::ForeignArena),
    )
    .unwrap();
}

#[derive(Debug, Deserialize)]
struct Unwritable(Tensor<u8>);

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        // Half of it is written when it fails.
        self.0.serialize(serializer)?;
        Err(serde::ser::Error::custom("this stays here"))
    }
}

fn a_value_that_cannot_be_written_comes_back() {
    let queue = Queue::bounded(2).unwrap();
    let value = Unwritable(Tensor::full(3, 2).unwrap());
    let back = refused(queue.put(value), ErrorKind::Arena(ArenaErrorKind::Encode));
    assert_eq!(back.unwrap().0.as_slice(), [2; 3]);
    // The next message is a fresh one.
    let fine = Queue::bounded(2).unwrap();
    fine.put(Tensor::full(3, 1_u8).unwrap()).unwrap();
    assert_eq!(fine.get().unwrap().as_slice(), [1; 3]);
}

/// Writes itself as one thing and expects another.
struct Misread;

impl Serialize for Misread {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Tensor::<u8>::zeros(4)
            .map_err(serde::ser::Error::custom)?
            .freeze()
            .serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Misread {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        SharedTensor::<f64>::deserialize(deserializer).map(|_| Self)
    }
}

fn a_message_of_another_type_is_an_error_for_that_message_only() {
    let queue = Queue::bounded(2).unwrap();
    queue.put(Misread).unwrap();
    queue.put(Misread).unwrap();
    for _ in 0..2 {
        let Err(error) = queue.get() else {
            panic!("read as another type");
        };
        let text = error.to_string();
        assert!(text.contains("u8") && text.contains("f64"), "{text}");
    }
    assert_eq!(queue.try_get().err().unwrap().kind(), &ErrorKind::Empty);
}

fn an_exclusive_tensor_goes_to_one_process_only() {
    fn takes(_rank: usize, _: Tensor<u8>) {}
    let error = spawn(takes, Tensor::zeros(3).unwrap(), 2).unwrap_err();
    assert!(error.to_string().contains("freeze"), "{error}");
    fn lane(_rank: usize, _: LaneSender<u8>) {}
    let (sender, _receiver) = pair(1).unwrap();
    let error = spawn(lane, sender, 2).unwrap_err();
    assert!(error.to_string().contains("2 processes"), "{error}");
}

/// A queue of its own kind.
#[derive(Debug, Serialize, Deserialize)]
struct Nested(Option<Queue<Nested>>);

fn a_queue_is_not_put_into_itself() {
    let queue = Queue::bounded(2).unwrap();
    let value = Nested(Some(queue.clone()));
    let back = refused(queue.put(value), ErrorKind::Arena(ArenaErrorKind::Cycle));
    // It came back whole, and another one may carry it.
    let other = Queue::bounded(1).unwrap();
    other.put(back.unwrap()).unwrap();
    drop(queue);
    let queue = other.get().unwrap().0.unwrap();
    queue.put(Nested(None)).unwrap();
    assert!(queue.get().unwrap().0.is_none());
}

fn a_handle_of_another_thing_says_what_was_wrong() {
    #[track_caller]
    fn opened_as<T: for<'de> Deserialize<'de>>(value: &impl Serialize, wanted: &[&str]) {
        let arena = Arena::current().unwrap();
        arena.republish("thing", value).unwrap();
        let Err(error) = arena.open::<T>("thing") else {
            panic!("opened as another thing");
        };
        let text = error.to_string();
        assert!(wanted.iter().all(|part| text.contains(part)), "{text}");
    }
    let barrier = Barrier::new(2).unwrap();
    opened_as::<Event>(&barrier, &["is barrier", "be event"]);
    let event = Event::new().unwrap();
    opened_as::<Barrier>(&event, &["is event", "be barrier"]);
    // The end of one queue beside another.
    let [one, other] = [(); 2].map(|()| {
        let arrays = [Array::Cells { capacity: 1 }, Array::None];
        let arena = Arena::current().unwrap();
        Object::create(&arena, ObjectKind::Queue, arrays, 0).unwrap()
    });
    let mixed = (one.end(0).unwrap(), other.clone());
    opened_as::<Sender<u8>>(&mixed, &["arrived with another", "refusals.rs:"]);
    // And an end of what is no queue at all.
    let end = one.end(0).unwrap();
    opened_as::<Sender<u8>>(&(end, event), &["is event", "be queue"]);
    Arena::current().unwrap().unpublish("thing").unwrap();
}

fn a_queue_without_room_is_refused() {
    for capacity in [0, usize::MAX] {
        let error = Queue::<u8>::bounded(capacity).unwrap_err();
        assert!(error.to_string().contains(&capacity.to_string()), "{error}");
    }
}

fn a_queue_of_this_program_is_not_opened_as_one_of_other_structs() {
    #[derive(Debug, Serialize, Deserialize)]
    struct Frame {
        id: u32,
        text: String,
    }
    #[derive(Debug, Serialize, Deserialize)]
    struct Clip {
        length: u8,
    }
    let arena = Arena::builder().capacity(64 << 20).create().unwrap();
    let (sender, receiver) = Queue::bounded_in(&arena, 1).unwrap().split();
    arena.publish("frames", &receiver).unwrap();
    let text = "first".to_owned();
    sender.put(Frame { id: 1, text }).unwrap();
    let error = arena.open::<Receiver<Clip>>("frames").unwrap_err();
    assert_eq!(error.kind(), &ArenaErrorKind::WrongMode);
    assert!(error.to_string().contains("Frame"), "{error}");
    // Nothing was lost.
    let frame = arena
        .open::<Receiver<Frame>>("frames")
        .unwrap()
        .get()
        .unwrap();
    assert_eq!((frame.id, &*frame.text), (1, "first"));
    // A value that is read whole at once may be read as what it is to be.
    arena.publish("clip", &Clip { length: 7 }).unwrap();
    assert_eq!(arena.open::<(u8,)>("clip").unwrap(), (7,));
    for name in ["frames", "clip"] {
        arena.unpublish(name).unwrap();
    }
}

fn a_queue_is_not_opened_as_one_of_other_tensors() {
    let arena = Arena::builder().capacity(64 << 20).create().unwrap();
    let (sender, receiver) = Queue::bounded_in(&arena, 1).unwrap().split();
    arena.publish("frames", &receiver).unwrap();
    sender
        .put(Tensor::full_in(&arena, 3, 6_u8).unwrap())
        .unwrap();
    let error = arena.open::<Receiver<Tensor<f32>>>("frames").unwrap_err();
    assert_eq!(error.kind(), &ArenaErrorKind::WrongMode);
    assert!(error.to_string().contains("Tensor<u8>"), "{error}");
    // Nothing was lost, and a type that is known at run time only takes all.
    let any = arena.open::<Receiver<DynTensor>>("frames").unwrap();
    assert_eq!(any.get().unwrap().dtype(), Dtype::U8);
    arena.unpublish("frames").unwrap();
}
