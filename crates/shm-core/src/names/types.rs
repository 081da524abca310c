//! Whether the type that a name is opened as can be the one that was published.
//!
//! Programs that share a name may call one type by different paths, and may open a tensor as one whose element type is known
//! at run time only. So the names of two types decide nothing, except that they are the same but for the primitive types in
//! them: then what is written of the one is read as another value of the other, or as none.
//!
//! Within one program a type has one path. A queue whose messages are of another type of the program than those that it was
//! published with would lose each message at `get`, so it is not opened there. What has the same bytes, by design, is opened as
//! what was published.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::sync::OnceLock;

use super::Entry;
use crate::error::{Error, Result};

/// Crates whose types are said in more than one way for the same messages: `SharedTensor` and `DynTensor`, `String` and
/// `Box<str>`.
const COMMON: [&str; 9] = [
    "alloc", "core", "std", "half", "shm_core", "mp_queue", "pipeline", "cuda_ipc", "spawn",
];

/// Fails if what was published cannot be meant by `T`: a number reads as another one, and a queue as one of other messages.
pub(super) fn check<T>(entry: &Entry) -> Result<()> {
    let wanted = std::any::type_name::<T>();
    let published = &*entry.type_name;
    let is_of_this_program = entry.build != 0 && entry.build == build();
    let other = is_of_this_program && messages_differ(published, wanted);
    if other || primitives_differ(published, wanted) {
        return Err(Error::mode(format!(
            "opening {:?} as {wanted}: process {} published a {published}",
            entry.name, entry.pid
        )));
    }
    Ok(())
}

/// A number for the file that this process runs; 0 if that cannot be looked at.
pub(super) fn build() -> u64 {
    static BUILD: OnceLock<u64> = OnceLock::new();
    *BUILD.get_or_init(|| {
        std::fs::metadata("/proc/self/exe").map_or(0, |file| {
            let parts = [
                file.dev(),
                file.ino(),
                file.size(),
                file.mtime_nsec() as u64,
            ];
            let digest = parts.iter().fold(file.mtime() as u64, |hash, part| {
                (hash ^ part)
                    .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                    .rotate_left(29)
            });
            digest.max(1)
        })
    })
}

/// Whether a queue is named with messages of one program's types, and wanted with messages of others of them.
fn messages_differ(published: &str, wanted: &str) -> bool {
    published.starts_with("mp_queue::") && types_of(published) != types_of(wanted)
}

/// The program's own types in the name of a type.
fn types_of(name: &str) -> BTreeSet<&str> {
    name.split(|c: char| !(c.is_alphanumeric() || c == '_' || c == ':'))
        .filter(|path| {
            let root = path.split_once("::").map(|(root, _)| root);
            root.is_some_and(|root| !root.is_empty() && !COMMON.contains(&root))
        })
        .collect()
}

/// What an element of a tensor, or a value without parts, can be.
const PRIMITIVE: [&str; 18] = [
    "bool", "char", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128",
    "isize", "f16", "bf16", "f32", "f64",
];

/// Whether two names of types are the same but for the primitive types in them.
fn primitives_differ(published: &str, wanted: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let pieces = |name: &str| -> Vec<String> {
        name.split_inclusive(|c| !is_part(c))
            .map(|piece| {
                let word = piece.trim_end_matches(|c| !is_part(c));
                match PRIMITIVE.contains(&word) {
                    true => piece.replace(word, "_"),
                    false => piece.to_owned(),
                }
            })
            .collect()
    };
    published != wanted && pieces(published) == pieces(wanted)
}

#[cfg(test)]
mod tests {
    use super::{messages_differ, primitives_differ};

    #[test]
    fn only_types_of_the_program_tell_two_queues_of_it_apart() {
        let receiver = |of: &str| format!("mp_queue::queue::Receiver<{of}>");
        let frames = receiver("app::Frame");
        for other in [
            "app::Clip",
            "u32",
            "(app::Frame, app::Clip)",
            "alloc::vec::Vec<app::Clip>",
        ] {
            assert!(messages_differ(&frames, &receiver(other)), "{other}");
        }
        for (one, other) in [
            (frames.clone(), frames.clone()),
            (frames.clone(), receiver("alloc::boxed::Box<app::Frame>")),
            (
                receiver("shm_core::tensor::exclusive::Tensor<u8>"),
                receiver("shm_core::tensor::dynamic::DynTensor"),
            ),
            (
                receiver("alloc::string::String"),
                receiver("alloc::boxed::Box<str>"),
            ),
            // No queue: what is read was read whole.
            ("app::Config".to_owned(), "app::View".to_owned()),
        ] {
            assert!(!messages_differ(&one, &other), "{one} {other}");
        }
    }

    #[test]
    fn only_primitive_types_tell_two_names_apart() {
        let receiver = |of: &str| format!("mp_queue::channel::Receiver<{of}>");
        let bytes = receiver("shm_core::tensor::Tensor<u8>");
        for (one, other) in [
            (&*bytes, &*receiver("shm_core::tensor::Tensor<f32>")),
            ("(u8, a::Tensor<u8>)", "(u8, a::Tensor<i8>)"),
            ("u32", "i64"),
            (&receiver("u32"), &receiver("u64")),
        ] {
            assert!(primitives_differ(one, other), "{one} {other}");
        }
        for other in [
            bytes.clone(),
            receiver("shm_core::tensor::DynTensor"),
            receiver("shm_core::tensor::SharedTensor<f32>"),
            receiver("app::Frame"),
            "()".to_owned(),
        ] {
            assert!(!primitives_differ(&bytes, &other), "{other}");
        }
        assert!(!primitives_differ("a::Frame", "b::Frame"));
        assert!(!primitives_differ("a::u8::Frame", "a::u8::Frame"));
    }
}
