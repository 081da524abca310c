//! Files of tensors that one process loads and all have.

use integration_tests::{Test, tests};
use tensormp::prelude::*;
use tensormp::safetensors::{TensorFile, load, save};

pub(crate) const TESTS: &[Test] = &tests![
    a_file_is_loaded_once_for_all_processes,
    a_tensor_of_a_file_that_a_child_loaded_outlives_the_child,
];

/// Elements of one row of the weights, 4 MB.
const LENGTH: usize = 1_000_000;

fn a_file_is_loaded_once_for_all_processes() {
    fn sum(rank: usize, file: TensorFile) -> tensormp::Result<f64> {
        let before = Arena::current()?.stats().committed;
        let weight = file.get::<f32>("weight")?;
        let sum: f32 = weight.select(0, rank)?.iter().sum();
        assert_eq!(file.metadata()["epoch"], "7");
        // The others start and return meanwhile, which takes some memory; a copy of the file would take 12 MB.
        let more = Arena::current()?.stats().committed.saturating_sub(before);
        assert!(more < 4 * LENGTH as u64, "{more} bytes more");
        Ok(sum.into())
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    let weight = Tensor::from_fn([3, LENGTH], |at| at[0] as f32).unwrap();
    let bias = DynTensor::zeros(Dtype::Bf16, 3).unwrap();
    let tensors = [("weight", &weight.into()), ("bias", &bias)];
    save(&path, tensors, [("epoch", "7")]).unwrap();
    let file = load(&path).unwrap();
    std::fs::remove_file(&path).unwrap();
    let mut context = spawn(sum, file, 3).unwrap();
    assert_eq!(
        context.join().unwrap(),
        [0.0, LENGTH as f64, 2.0 * LENGTH as f64]
    );
}

fn a_tensor_of_a_file_that_a_child_loaded_outlives_the_child() {
    fn read(_rank: usize, path: String) -> tensormp::Result<SharedTensor<i16>> {
        Ok(load(path)?.get("steps")?)
    }
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steps.safetensors");
    let steps = DynTensor::from(Tensor::<i16>::arange(0, 5, 1).unwrap());
    save(&path, [("steps", &steps)], [("", ""); 0]).unwrap();
    let context = spawn(read, path.to_str().unwrap().to_owned(), 1).unwrap();
    let results = context.into_results().unwrap();
    assert_eq!(results[0].as_slice(), [0, 1, 2, 3, 4]);
}
