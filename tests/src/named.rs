//! Functions that two executables have: the worker `named-worker`, and the test that spawns them in it.

use std::ops::Add;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tensormp::Tensor;

/// The sum of a tensor's elements, and the name of the executable that made it.
///
/// # Errors
/// When the executable cannot be found.
pub fn decode(rank: usize, tensor: Tensor<f32>) -> Result<(f32, String), std::io::Error> {
    let path = std::env::current_exe()?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok((
        tensor.as_slice().iter().sum::<f32>() + rank as f32,
        name.into_owned(),
    ))
}

/// Twice the value.
///
/// # Errors
/// None.
pub fn double<T>(_rank: usize, x: T) -> Result<T, String>
where
    T: Add<Output = T> + Copy + Serialize + DeserializeOwned + 'static,
{
    Ok(x + x)
}

/// Panics.
pub fn panics(_rank: usize, why: String) {
    panic!("{why}");
}

/// A function that the worker does not name.
pub fn unnamed(_rank: usize, _: ()) {}
