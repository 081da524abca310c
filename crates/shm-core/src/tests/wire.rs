//! Messages: what goes in comes out, what is still held is not sent, and no bytes make the reader panic.

use std::cell::RefCell;
use std::sync::{Arc, Mutex};

use proptest::prelude::*;
use serde::{Deserialize, Serialize, Serializer};

use super::{arena, assert_clean, assert_empty, join, queue};
use crate::arena::Arena;
use crate::cells::PAYLOAD_WORDS;
use crate::error::{ErrorKind, Result};
use crate::layout::CHUNK;
use crate::line::Mode;
use crate::message::{self, Outgoing};
use crate::object::Object;
use crate::storage::Storage;
use crate::tensor::{SharedTensor, Tensor};
use crate::transfer::{Get, Put};

fn encode<T: Serialize>(arena: &Arena, value: T) -> Result<Outgoing> {
    message::encode(arena, value).map_err(|failed| failed.error)
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    match result {
        Ok(_) => panic!("it worked"),
        Err(error) => error.kind().clone(),
    }
}

/// What is sent, without the memory behind it.
#[derive(Clone, Debug)]
enum Tree {
    Text(String),
    Owned(Vec<i32>),
    Shared { elements: Vec<u8>, copies: usize },
    Views(Vec<i64>),
    Many(Vec<Tree>),
}

#[derive(Serialize, Deserialize)]
enum Value {
    Text(String),
    Owned(Tensor<i32>),
    Shared(Vec<SharedTensor<u8>>),
    Views(SharedTensor<i64>, SharedTensor<i64>),
    Many(Vec<Value>),
}

fn tree() -> impl Strategy<Value = Tree> {
    let leaf = prop_oneof![
        "[a-z]{0,40}".prop_map(Tree::Text),
        prop::collection::vec(any::<i32>(), 0..50).prop_map(Tree::Owned),
        (prop::collection::vec(any::<u8>(), 0..50), 0..4_usize)
            .prop_map(|(elements, copies)| Tree::Shared { elements, copies }),
        prop::collection::vec(any::<i64>(), 2..20).prop_map(Tree::Views),
    ];
    leaf.prop_recursive(3, 24, 5, |inner| {
        prop::collection::vec(inner, 0..5).prop_map(Tree::Many)
    })
}

fn build(arena: &Arena, tree: &Tree) -> Value {
    match tree {
        Tree::Text(text) => Value::Text(text.clone()),
        Tree::Owned(elements) => {
            Value::Owned(Tensor::from_slice_in(arena, [elements.len()], elements).unwrap())
        }
        Tree::Shared { elements, copies } => {
            let shared = Tensor::from_slice_in(arena, [elements.len()], elements)
                .unwrap()
                .freeze();
            Value::Shared(vec![shared; *copies])
        }
        Tree::Views(elements) => {
            let whole = Tensor::from_slice_in(arena, [elements.len()], elements)
                .unwrap()
                .freeze();
            let part = whole.slice(0, 1.., 1).unwrap();
            Value::Views(whole, part)
        }
        Tree::Many(trees) => Value::Many(trees.iter().map(|tree| build(arena, tree)).collect()),
    }
}

fn assert_same(value: &Value, tree: &Tree) {
    match (value, tree) {
        (Value::Text(found), Tree::Text(text)) => assert_eq!(found, text),
        (Value::Owned(found), Tree::Owned(elements)) => assert_eq!(found.as_slice(), elements),
        (Value::Shared(found), Tree::Shared { elements, copies }) => {
            assert_eq!(found.len(), *copies);
            assert!(found.iter().all(|found| found.to_vec() == *elements));
        }
        (Value::Views(whole, part), Tree::Views(elements)) => {
            assert_eq!(whole.to_vec(), *elements);
            assert_eq!(part.to_vec(), elements[1..]);
            assert!(whole.same_storage(part));
        }
        (Value::Many(found), Tree::Many(trees)) => {
            assert_eq!(found.len(), trees.len());
            for (value, tree) in found.iter().zip(trees) {
                assert_same(value, tree);
            }
        }
        _ => panic!("something else came out"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn any_value_arrives_as_it_was_sent(tree in tree()) {
        let (here, there) = { let here = arena(); let there = join(&here); (here, there) };
        let sender = queue(&here, 2);
        let receiver = Object::open(&there, sender.handle()).unwrap();
        for array in [0, 1] {
            let mut message = encode(&here, build(&here, &tree)).unwrap();
            prop_assert!(matches!(sender.try_put(array, &mut message).unwrap(), Put::Done(_)));
            prop_assert!(message.pins.is_empty());
            let Get::Message(arrived, _) = receiver.try_get(array, &mut u64::MAX.clone()).unwrap() else {
                panic!("nothing arrived");
            };
            assert_clean(&here);
            assert_same(&arrived.decode().unwrap(), &tree);
        }
        drop((sender, receiver));
        assert_empty(&here);
    }
}

/// Emits its tensor as often as it says.
struct Repeated(Tensor<u8>, usize);

impl Serialize for Repeated {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(std::iter::repeat_n(&self.0, self.1))
    }
}

#[test]
fn an_exclusive_tensor_that_occurs_twice_is_not_sent() {
    let arena = arena();
    let tensor = Tensor::<u8>::zeros_in(&arena, [4]).unwrap();
    let twice = encode(&arena, Repeated(tensor, 2));
    assert_eq!(kind(twice), ErrorKind::StillHeld);
    let tensor = Tensor::<u8>::zeros_in(&arena, [4]).unwrap();
    let once = encode(&arena, Repeated(tensor, 1)).unwrap();
    assert_eq!(once.decode::<Vec<Tensor<u8>>>().unwrap().len(), 1);
    assert_empty(&arena);
}

/// Serializes through a reference count, as serde's `rc` feature does.
struct Counted(Arc<Tensor<u8>>);

impl Serialize for Counted {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.0.serialize(serializer)
    }
}

#[test]
fn an_exclusive_tensor_that_somebody_still_holds_is_not_sent() {
    let arena = arena();
    let kept = Arc::new(Tensor::<u8>::full_in(&arena, [4], 7).unwrap());
    let sent = encode(&arena, Counted(Arc::clone(&kept)));
    assert_eq!(kind(sent), ErrorKind::StillHeld);
    assert_eq!(
        kept.as_slice(),
        [7; 4],
        "whoever held on to it has it still"
    );
    let sent = encode(&arena, &*kept);
    assert_eq!(
        kind(sent),
        ErrorKind::StillHeld,
        "a reference gives nothing away"
    );
    drop(kept);
    assert_empty(&arena);
}

/// Gives the tensor away by `&self`, right after it was serialized.
struct Thief {
    tensor: Mutex<Option<Tensor<u8>>>,
    loot: Arc<Mutex<Option<SharedTensor<u8>>>>,
    arena: Arena,
    queue: Object,
}

impl Serialize for Thief {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let tensor = self.tensor.lock().unwrap().take().unwrap();
        let done = tensor.serialize(serializer);
        let shared = tensor.freeze();
        let mut message = encode(&self.arena, shared.clone()).unwrap();
        assert!(matches!(
            self.queue.try_put(0, &mut message).unwrap(),
            Put::Done(_)
        ));
        *self.loot.lock().unwrap() = Some(shared);
        done
    }
}

#[test]
fn a_tensor_that_was_frozen_and_sent_while_it_was_serialized_is_not_sent_as_exclusive() {
    let arena = arena();
    let queue = queue(&arena, 2);
    let loot = Arc::new(Mutex::new(None));
    let thief = Thief {
        tensor: Mutex::new(Some(Tensor::zeros_in(&arena, [4]).unwrap())),
        loot: Arc::clone(&loot),
        arena: arena.clone(),
        queue: queue.clone(),
    };
    assert_eq!(kind(encode(&arena, thief)), ErrorKind::StillHeld);
    // The same with nobody here who still has it: only the message in the queue reads it.
    drop(loot);
    let loot = Arc::new(Mutex::new(None));
    let thief = Thief {
        tensor: Mutex::new(Some(Tensor::zeros_in(&arena, [4]).unwrap())),
        loot,
        arena: arena.clone(),
        queue: queue.clone(),
    };
    assert_eq!(kind(encode(&arena, thief)), ErrorKind::StillHeld);
    drop(queue);
    assert_empty(&arena);
}

#[test]
fn tensors_of_another_arena_are_refused_by_encoding_and_by_putting() {
    let (one, other) = (arena(), arena());
    let tensor = Tensor::<u8>::zeros_in(&one, [4]).unwrap();
    let failed = message::encode(&other, tensor).unwrap_err();
    assert_eq!(failed.error.kind(), &ErrorKind::ForeignArena);
    let mut message = encode(&one, failed.value.unwrap()).unwrap();
    let queue = queue(&other, 2);
    for array in [0, 1] {
        let refused = queue.try_put(array, &mut message);
        assert_eq!(kind(refused), ErrorKind::ForeignArena);
    }
    // Joined twice in one process: the lease tables are two.
    let again = join(&one);
    let queue = Object::create(
        &again,
        crate::object::ObjectKind::Queue,
        [
            crate::object::Array::Cells { capacity: 1 },
            crate::object::Array::None,
        ],
        0,
    )
    .unwrap();
    assert_eq!(
        kind(queue.try_put(0, &mut message)),
        ErrorKind::ForeignArena
    );
    drop((message, queue));
    assert_empty(&one);
}

#[test]
fn a_message_read_as_another_type_is_an_error_that_releases_it() {
    let arena = arena();
    let message = || {
        let tensor = Tensor::<f32>::zeros_in(&arena, [4]).unwrap();
        encode(&arena, ("name", tensor)).unwrap()
    };
    assert_eq!(
        kind(message().decode::<(String, Tensor<u8>)>()),
        ErrorKind::Dtype {
            found: "f32",
            wanted: "u8"
        }
    );
    assert_eq!(kind(message().decode::<String>()), ErrorKind::Decode);
    assert_eq!(
        kind(message().decode::<(String, SharedTensor<f32>)>()),
        ErrorKind::WrongMode
    );
    assert_eq!(
        kind(message().decode::<(String, Object)>()),
        ErrorKind::WrongMode
    );
    assert_eq!(kind(message().decode::<Vec<u64>>()), ErrorKind::Decode);
    assert_empty(&arena);
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
struct Skipping {
    #[serde(skip_serializing_if = "Option::is_none")]
    maybe: Option<u32>,
    /// Never sent, and made anew on arrival: that is no harm.
    #[serde(skip)]
    never: u32,
    always: Vec<u8>,
}

#[derive(Serialize, Deserialize, Debug, PartialEq)]
enum Either {
    One {
        #[serde(skip_serializing_if = "is_zero")]
        small: u8,
        always: Vec<u8>,
    },
}

fn is_zero(number: &u8) -> bool {
    *number == 0
}

#[test]
fn a_field_that_is_left_out_is_an_error_that_names_it() {
    let arena = arena();
    let skipping = |maybe| {
        vec![Some(Skipping {
            maybe,
            never: 0,
            always: vec![1],
        })]
    };
    let back =
        encode(&arena, skipping(Some(5))).and_then(Outgoing::decode::<Vec<Option<Skipping>>>);
    assert_eq!(back.unwrap(), skipping(Some(5)));
    let error = encode(&arena, skipping(None)).unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::Encode);
    assert!(error.to_string().contains("`maybe`"), "{error}");
    // Its bytes without the field are those of another value: no reader could tell.
    let other = Either::One {
        small: 0,
        always: vec![2, 9, 9],
    };
    let error = encode(&arena, other).unwrap_err();
    assert!(error.to_string().contains("`small`"), "{error}");
}

#[test]
fn a_tensor_outside_of_a_message_says_what_to_do() {
    let arena = arena();
    let tensor = Tensor::<u8>::zeros_in(&arena, [4]).unwrap();
    let error = serde_json::to_string(&tensor).unwrap_err();
    assert!(error.to_string().contains("to_vec"), "{error}");
    let error = serde_json::from_str::<Tensor<u8>>("0").unwrap_err();
    assert!(error.to_string().contains("to_vec"), "{error}");
}

#[test]
fn a_panic_in_the_middle_of_serializing_leaves_nothing_behind() {
    struct Panics(Tensor<u8>);
    impl Serialize for Panics {
        fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            let _ = self.0.serialize(serializer);
            panic!("on purpose")
        }
    }
    let arena = arena();
    let tensor = Tensor::<u8>::zeros_in(&arena, [4]).unwrap();
    let value = RefCell::new(Some(Panics(tensor)));
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let _ = message::encode(&arena, value.take().unwrap());
    }));
    assert!(caught.is_err());
    assert_empty(&arena);
    let tensor = Tensor::<u8>::zeros_in(&arena, [4]).unwrap();
    assert!(
        serde_json::to_string(&tensor).is_err(),
        "no scope is left open"
    );
}

/// One for all cases: nothing is received, so nothing stays in it.
static FUZZED: std::sync::OnceLock<Arena> = std::sync::OnceLock::new();

fn valid_payloads(arena: &Arena) -> Vec<Outgoing> {
    let small = Tensor::<u8>::zeros_in(arena, [4]).unwrap();
    let shared = Tensor::<u8>::zeros_in(arena, [4]).unwrap().freeze();
    vec![
        encode(arena, 5_u8).unwrap(),
        encode(arena, (1_u8, small)).unwrap(),
        encode(arena, (shared, [7_u64; 20])).unwrap(),
        encode(arena, queue(arena, 2)).unwrap(),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn no_payload_makes_the_parser_panic(
        form in 0..5_u64,
        words in prop::array::uniform7(any::<u64>()),
        flips in prop::collection::vec((0..PAYLOAD_WORDS, 0..64_u32), 0..4),
        which in 0..4_usize,
    ) {
        let arena = FUZZED.get_or_init(arena);
        let mut random = words;
        random[0] = (words[0] & !0xff) | form;
        let _ = message::parse(arena, &random);
        let valid = valid_payloads(arena);
        let mut payload = valid[which].payload;
        prop_assert!(message::parse(arena, &payload).is_ok());
        for (word, bit) in flips {
            payload[word] ^= 1 << bit;
        }
        let _ = message::parse(arena, &payload);
    }

    #[test]
    fn no_spill_block_makes_the_parser_panic(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        lengths in prop::array::uniform3(0..100_u64),
        sane in any::<bool>(),
        claimed in 0..300_u64,
    ) {
        if sane && bytes.len() >= 24 {
            for (at, length) in lengths.iter().enumerate() {
                bytes[at * 8..at * 8 + 8].copy_from_slice(&length.to_le_bytes());
            }
        }
        let arena = FUZZED.get_or_init(arena);
        let spill = Storage::allocate(arena, bytes.len(), Mode::Message).unwrap();
        spill.write_bytes(0, &bytes);
        let (line, generation) = spill.id();
        for length in [claimed, bytes.len() as u64, u64::MAX] {
            let _ = message::parse(arena, &[2, line, generation, length, 0, 0, 0]);
        }
        // Any other line, too.
        let _ = message::parse(arena, &[2, claimed, 0, 1, 0, 0, 0]);
        let _ = message::parse(arena, &[3 | line << 8, generation, 0, 0, 0, 0, 0]);
    }
}

#[test]
fn a_handle_that_occurs_more_often_than_it_is_counted_is_refused() {
    let arena = arena();
    let shared = Tensor::<u8>::zeros_in(&arena, [4]).unwrap().freeze();
    // Two names, inline; but one holder only.
    let message = encode(&arena, (shared.clone(), shared)).unwrap();
    let refused = message::parse(&arena, &message.payload);
    assert!(refused.is_err(), "the sender alone holds it, once");
    let exclusive = Tensor::<u8>::zeros_in(&arena, [4]).unwrap();
    let message = encode(&arena, exclusive).unwrap();
    assert!(message::parse(&arena, &message.payload).is_ok());
    let held = &message.pins[0].held;
    let second = crate::held::Held::open(&join(&arena), held.line, held.generation).unwrap();
    assert!(message::parse(&arena, &message.payload).is_err());
    drop(second);
}

#[test]
fn a_garbage_message_is_an_error_and_the_queue_goes_on() {
    let arena = arena();
    let queue = queue(&arena, 2);
    let cells = queue.cells(0).unwrap();
    let crate::cells::Claim::At(pos) = cells.claim(arena.me()) else {
        panic!("an empty queue has room");
    };
    cells.write(pos, &[0xdead_beef; PAYLOAD_WORDS]);
    cells.publish(pos);
    let mut message = encode(&arena, 5_u8).unwrap();
    assert!(matches!(
        queue.try_put(0, &mut message).unwrap(),
        Put::Done(_)
    ));
    let mut seen = u64::MAX;
    assert_eq!(kind(queue.try_get(0, &mut seen)), ErrorKind::Decode);
    let Get::Message(next, _) = queue.try_get(0, &mut seen).unwrap() else {
        panic!("the next message is whole");
    };
    assert_eq!(next.decode::<u8>().unwrap(), 5);
}

#[test]
fn a_message_larger_than_a_chunk_arrives() {
    let arena = arena();
    let queue = queue(&arena, 1);
    let text = "x".repeat(CHUNK as usize * 2);
    let mut message = encode(&arena, &text).unwrap();
    assert!(matches!(
        queue.try_put(0, &mut message).unwrap(),
        Put::Done(_)
    ));
    let Get::Message(arrived, _) = queue.try_get(0, &mut 0).unwrap() else {
        panic!("it was put");
    };
    assert!(arrived.decode::<String>().unwrap() == text);
    drop(queue);
    assert_empty(&arena);
}
