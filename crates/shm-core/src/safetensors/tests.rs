//! Files that go there and back, also through the format's own library, and files that are not what they should be.

use std::path::PathBuf;

use super::*;
use crate::message;
use crate::tensor::{Bool, Tensor, f16};
use ::safetensors::SafeTensors;
use ::safetensors::tensor::TensorView;
use proptest::prelude::*;

const NO_TEXTS: [(&str, &str); 0] = [];

struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        Folder(tempfile::tempdir().unwrap())
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("tensors.safetensors")
    }

    fn with(bytes: &[u8]) -> Self {
        let folder = Self::new();
        std::fs::write(folder.path(), bytes).unwrap();
        folder
    }
}

/// A file of a header and as much data as is said.
fn file(header: &str, data: usize) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend(header.bytes());
    bytes.extend((0..data).map(|byte| byte as u8));
    bytes
}

fn refusal(bytes: &[u8]) -> Error {
    let folder = Folder::with(bytes);
    let error = load(folder.path()).unwrap_err();
    assert!(load_one(folder.path(), "a").is_err());
    error
}

#[test]
fn all_tensors_of_a_file_lie_in_one_block_and_can_be_sent_as_one_value() {
    let folder = Folder::new();
    let weight = DynTensor::from(
        Tensor::arange(0, 6, 1)
            .unwrap()
            .into_reshaped([2, 3])
            .unwrap(),
    );
    let turned = weight.freeze().transpose(0, 1).unwrap();
    let scalar = DynTensor::from(Tensor::full((), f16::ONE).unwrap());
    let empty = DynTensor::zeros(Dtype::F64, [0, 4]).unwrap();
    let flags = DynTensor::from(Tensor::from_slice(3, &[Bool(0), Bool(1), Bool(200)]).unwrap());
    let tensors = [
        ("turned", &turned),
        ("scalar", &scalar),
        ("empty", &empty),
        ("flags", &flags),
    ];
    save(folder.path(), tensors, [("format", "pt")]).unwrap();

    let loaded = load(folder.path()).unwrap();
    let file: TensorFile = message::send(loaded.try_clone().unwrap()).unwrap();
    assert!(file.tensors()["empty"].same_storage(&loaded.tensors()["empty"]));
    drop(loaded);
    assert_eq!(
        file.names().collect::<Vec<_>>(),
        ["empty", "flags", "scalar", "turned"]
    );
    assert_eq!(file.metadata()["format"], "pt");
    let turned = file.get::<i32>("turned").unwrap();
    assert_eq!(
        (turned.shape(), turned.as_slice()),
        (&[3, 2][..], &[0, 3, 1, 4, 2, 5][..])
    );
    assert_eq!(file.get::<f16>("scalar").unwrap().to_vec(), [f16::ONE]);
    assert_eq!(file.get::<f64>("empty").unwrap().shape(), [0, 4]);
    assert_eq!(
        file.tensors()["flags"].as_bytes().unwrap(),
        [0, 1, 1],
        "as others know it"
    );
    let mut tensors = file.into_tensors().into_values();
    let first = tensors.next().unwrap();
    assert!(tensors.all(|tensor| tensor.same_storage(&first)));
}

#[test]
fn a_missing_name_and_another_type_are_errors_that_name_what_there_is() {
    let folder = Folder::new();
    let tensor = DynTensor::zeros(Dtype::F32, 2).unwrap();
    save(folder.path(), [("bias", &tensor)], NO_TEXTS).unwrap();
    let file = load(folder.path()).unwrap();
    let error = file.get::<f32>("weight").unwrap_err();
    assert_eq!(error.kind(), &ErrorKind::NotFound);
    assert!(error.to_string().contains("bias"), "{error}");
    let error = file.get::<f64>("bias").unwrap_err().to_string();
    assert!(
        error.contains("f64") && error.contains("f32") && error.contains("bias"),
        "{error}"
    );
    assert_eq!(
        load_one(folder.path(), "weight").unwrap_err().kind(),
        &ErrorKind::NotFound
    );
}

#[test]
fn one_tensor_is_loaded_to_be_written() {
    let folder = Folder::new();
    let (one, two) = (
        DynTensor::zeros(Dtype::F32, 2).unwrap(),
        Tensor::full([3], 7_i64).unwrap(),
    );
    save(
        folder.path(),
        [("one", &one), ("two", &two.into())],
        NO_TEXTS,
    )
    .unwrap();
    let mut two = load_one(folder.path(), "two")
        .unwrap()
        .downcast::<i64>()
        .unwrap();
    two.as_mut_slice()[0] = 8;
    assert_eq!(two.as_slice(), [8, 7, 7]);
}

#[test]
fn a_tensor_that_would_not_be_aligned_gets_a_block_of_its_own() {
    let header = r#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"b":{"dtype":"I16","shape":[2],"data_offsets":[3,7]},"c":{"dtype":"U8","shape":[1],"data_offsets":[7,8]}}"#;
    let folder = Folder::with(&file(header, 8));
    let loaded = load(folder.path()).unwrap();
    let b = loaded.get::<i16>("b").unwrap();
    assert_eq!(b.as_slice(), [0x0403, 0x0605]);
    let tensors = loaded.tensors();
    assert!(tensors["a"].same_storage(&tensors["c"]) && !tensors["a"].same_storage(&tensors["b"]));
    let alone = load_one(folder.path(), "b").unwrap();
    assert_eq!(alone.as_slice::<i16>().unwrap(), b.as_slice());
}

#[test]
fn files_that_are_damaged_or_lie_are_errors() {
    let good = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
    let folder = Folder::with(&file(good, 8));
    assert!(load(folder.path()).is_ok());
    let mut endless = file(good, 8);
    endless[..8].copy_from_slice(&u64::MAX.to_le_bytes());
    let cases = [
        ("nothing", Vec::new()),
        ("half a prefix", vec![1, 0, 0]),
        ("a header without end", endless),
        ("a header cut short", file(good, 8)[..30].to_vec()),
        ("data cut short", file(good, 7)),
        ("data left over", file(good, 9)),
        ("no JSON", file("{\"a\"", 8)),
        (
            "no UTF-8",
            [&2_u64.to_le_bytes()[..], &[0xff, 0xff]].concat(),
        ),
        ("another JSON", file("[1, 2]", 0)),
        ("an unknown type", file(&good.replace("F32", "F33"), 8)),
        (
            "a shape that is longer",
            file(&good.replace("[2]", "[3]"), 8),
        ),
        ("a negative length", file(&good.replace("[2]", "[-2]"), 8)),
        (
            "a shape that overflows",
            file(&good.replace("[2]", "[4294967296,4294967296]"), 8),
        ),
        (
            "a shape of zero and of too many",
            file(
                r#"{"a":{"dtype":"F32","shape":[0,18446744073709551615,18446744073709551615],"data_offsets":[0,0]}}"#,
                0,
            ),
        ),
        (
            "a gap before it",
            file(&good.replace("[0,8]", "[4,12]"), 12),
        ),
        (
            "an end before its start",
            file(&good.replace("[0,8]", "[8,0]"), 8),
        ),
        (
            "overlapping tensors",
            file(
                r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#,
                6,
            ),
        ),
    ];
    for (what, bytes) in cases {
        let error = refusal(&bytes);
        assert!(
            matches!(error.kind(), ErrorKind::Decode | ErrorKind::Shape),
            "{what}: {error}"
        );
        assert!(
            error.to_string().contains("tensors.safetensors"),
            "{what}: {error}"
        );
    }
}

#[test]
fn types_and_dimensions_that_only_one_side_knows_are_errors_that_say_so() {
    let eight = r#"{"a":{"dtype":"F8_E4M3","shape":[2],"data_offsets":[0,2]}}"#;
    let error = refusal(&file(eight, 2));
    assert_eq!(error.kind(), &ErrorKind::Unsupported);
    assert!(
        error.to_string().contains("F8_E4M3") && error.to_string().contains("\"a\""),
        "{error}"
    );
    let nine = r#"{"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,1]}}"#;
    assert_eq!(refusal(&file(nine, 1)).kind(), &ErrorKind::Shape);
    let folder = Folder::new();
    let complex = DynTensor::zeros(Dtype::Complex128, 1).unwrap();
    let error = save(folder.path(), [("z", &complex)], NO_TEXTS).unwrap_err();
    assert!(error.to_string().contains("complex128"), "{error}");
    assert!(!folder.path().exists());
}

#[test]
fn what_is_no_file_is_an_error_and_does_not_wait() {
    let folder = Folder::new();
    assert!(
        load(folder.path())
            .unwrap_err()
            .to_string()
            .contains("tensors.safetensors")
    );
    assert!(load(folder.0.path()).is_err());
    let tensor = DynTensor::zeros(Dtype::U8, 1).unwrap();
    let nowhere = folder.0.path().join("no folder").join("file");
    let error = save(nowhere, [("a", &tensor)], NO_TEXTS).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::System { .. }), "{error}");
}

#[test]
fn the_formats_own_library_reads_what_is_saved_and_the_other_way_round() {
    let folder = Folder::new();
    let tensor = Tensor::arange(0.0_f32, 6.0, 1.0)
        .unwrap()
        .into_reshaped([3, 2])
        .unwrap();
    let tensor = DynTensor::from(tensor);
    save(folder.path(), [("x", &tensor)], [("by", "us")]).unwrap();
    let bytes = std::fs::read(folder.path()).unwrap();
    let read = SafeTensors::deserialize(&bytes).unwrap();
    let view = read.tensor("x").unwrap();
    assert_eq!((view.dtype(), view.shape()), (Code::F32, &[3, 2][..]));
    assert_eq!(view.data(), tensor.as_bytes().unwrap());

    for (dtype, code) in TYPES {
        let data: Vec<u8> = (0..2 * dtype.size() as u8).collect();
        let view = TensorView::new(code, vec![2], &data).unwrap();
        let folder = Folder::with(&::safetensors::serialize([("t", view)], None).unwrap());
        let loaded = load(folder.path()).unwrap();
        let tensor = &loaded.tensors()["t"];
        assert_eq!(
            (tensor.dtype(), tensor.as_bytes().unwrap()),
            (dtype, &data[..])
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_tensors_go_there_and_back(
        shapes in prop::collection::vec((prop::sample::select(&TYPES[..]), prop::collection::vec(0..4_usize, 0..4)), 0..5),
    ) {
        let folder = Folder::new();
        let mut made = BTreeMap::new();
        for (number, ((dtype, _), shape)) in shapes.iter().enumerate() {
            let mut tensor = DynTensor::zeros(*dtype, shape).unwrap();
            tensor.as_bytes_mut().unwrap().iter_mut().for_each(|byte| *byte = number as u8 & 1);
            made.insert(format!("tensor {number}"), tensor);
        }
        save(folder.path(), made.iter(), NO_TEXTS).unwrap();
        let loaded = load(folder.path()).unwrap();
        prop_assert!(loaded.names().eq(made.keys()));
        for (name, tensor) in &made {
            let back = &loaded.tensors()[name];
            prop_assert_eq!((back.dtype(), back.shape()), (tensor.dtype(), tensor.shape()));
            prop_assert_eq!(back.as_bytes().unwrap(), tensor.as_bytes().unwrap());
        }
    }

    #[test]
    fn any_bytes_are_a_file_or_an_error(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200),
        short in any::<bool>(),
    ) {
        if short && bytes.len() >= 8 {
            bytes[1..8].fill(0);
        }
        let folder = Folder::with(&bytes);
        let _ = load(folder.path());
    }

    #[test]
    fn a_good_file_with_one_byte_changed_is_a_file_or_an_error(at in 0..80_usize, byte in any::<u8>()) {
        let good = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}"#;
        let mut bytes = file(good, 8);
        if let Some(changed) = bytes.get_mut(at) {
            *changed = byte;
        }
        let folder = Folder::with(&bytes);
        let _ = (load(folder.path()), load_one(folder.path(), "a"));
    }
}

#[test]
fn two_tensors_of_one_name_are_refused() {
    let tensor = DynTensor::from(Tensor::from_slice([2], &[1_u8, 2]).unwrap().freeze());
    let folder = Folder::new();
    let error = save(folder.path(), [("w", &tensor), ("w", &tensor)], NO_TEXTS).unwrap_err();
    assert!(error.to_string().contains("\"w\""), "{error}");
    assert!(!folder.path().exists());
}
