//! Whether the type that a name is opened as can be the one that was published.
//!
//! Programs that share a name may call one type by different paths, and may open a tensor as one whose element type is known
//! at run time only. So the names of two types decide nothing, except that they are the same but for the primitive types in
//! them: then what is written of the one is read as another value of the other, or as none.

/// What an element of a tensor, or a value without parts, can be.
const PRIMITIVE: [&str; 18] = [
    "bool", "char", "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128",
    "isize", "f16", "bf16", "f32", "f64",
];

/// Whether two names of types are the same but for the primitive types in them.
pub(super) fn primitives_differ(published: &str, wanted: &str) -> bool {
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
    use super::primitives_differ;

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
