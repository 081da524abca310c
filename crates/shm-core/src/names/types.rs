//! Whether the type that a name is opened as can be the one that was published.
//!
//! Programs that share a name may call one message type by different paths, and may open a tensor as one whose element
//! type is known at run time only. So the names of two types decide nothing, except that they are the same but for the
//! elements of tensors in them: then no message of the one is ever a message of the other.

/// Behind this comes an element type.
const TENSOR: &str = "Tensor<";

/// Whether two names of types are the same but for the element types of tensors.
pub(super) fn elements_differ(published: &str, wanted: &str) -> bool {
    published != wanted && without_elements(published) == without_elements(wanted)
}

/// The pieces of a name between the elements of tensors. Elements that are generic themselves there are none.
fn without_elements(name: &str) -> Vec<&str> {
    let mut pieces = name.split(TENSOR);
    let first = pieces.next();
    let rest = pieces.map(|piece| piece.find('>').map_or(piece, |end| &piece[end..]));
    first.into_iter().chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::elements_differ;

    #[test]
    fn only_the_elements_of_tensors_tell_two_names_apart() {
        let receiver = |of: &str| format!("mp_queue::channel::Receiver<{of}>");
        let bytes = receiver("shm_core::tensor::Tensor<u8>");
        assert!(elements_differ(
            &bytes,
            &receiver("shm_core::tensor::Tensor<f32>")
        ));
        assert!(elements_differ(
            "(u8, a::Tensor<u8>)",
            "(u8, a::Tensor<i8>)"
        ));
        for other in [
            bytes.clone(),
            receiver("shm_core::tensor::DynTensor"),
            receiver("shm_core::tensor::SharedTensor<f32>"),
            receiver("app::Frame"),
            "()".to_owned(),
        ] {
            assert!(!elements_differ(&bytes, &other), "{other}");
        }
        // Integers are written alike whatever their width.
        assert!(!elements_differ(&receiver("u32"), &receiver("u64")));
        assert!(!elements_differ("a::Frame", "b::Frame"));
    }
}
