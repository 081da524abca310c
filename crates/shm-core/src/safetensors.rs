//! Files of tensors in the [safetensors] format: loaded straight into the arena, one copy for all processes, and saved.
//!
//! [`load`] reads the data of a file into one block, and each tensor is a view of it; handing the tensors to other
//! processes, one by one or as a [`TensorFile`] in a message or an argument, hands over handles. [`load_one`] reads a
//! single tensor into a block of its own, to write to.
//!
//! ```
//! use shm_core::safetensors::{load, save};
//! use shm_core::{DynTensor, Tensor};
//!
//! # let folder = tempfile::tempdir().unwrap();
//! # let path = folder.path().join("model.safetensors");
//! let weight = Tensor::<f32>::full([2, 3], 0.5)?.freeze();
//! save(&path, [("weight", &DynTensor::from(weight))], [("format", "pt")])?;
//! let file = load(&path)?;
//! let weight = file.get::<f32>("weight")?;
//! assert_eq!(weight.as_slice(), [0.5; 6]);
//! # Ok::<(), shm_core::Error>(())
//! ```
//!
//! The file is read, not mapped: nothing that happens to it afterwards reaches the tensors.
//!
//! [safetensors]: https://github.com/huggingface/safetensors

use std::borrow::Cow;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;

use ::safetensors::tensor::{Dtype as Code, Metadata, SafeTensorError, TensorInfo, View};
use serde::{Deserialize, Serialize};

use crate::arena::Arena;
use crate::error::{Error, ErrorKind, Result};
use crate::tensor::{Dtype, DynTensor, Element, Geometry, SharedTensor};

const _: () = assert!(
    cfg!(target_endian = "little"),
    "elements of safetensors files are little-endian; this machine would have to swap bytes"
);

/// The largest header that is read, as in the format's own library.
const HEADER_MAX: u64 = 100_000_000;
const PREFIX: u64 = 8;

/// The tensors of a file, all in one block of the arena.
///
/// It can be sent in a message or as an argument; whoever receives it shares the block.
#[derive(Debug, Serialize, Deserialize)]
pub struct TensorFile {
    tensors: BTreeMap<String, DynTensor>,
    metadata: BTreeMap<String, String>,
}

impl TensorFile {
    /// The names, in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(String::as_str)
    }

    /// The tensor of a name and an element type.
    ///
    /// # Errors
    /// `NotFound` when there is none of that name, and when its elements are of another type (both are named).
    pub fn get<T: Element>(&self, name: &str) -> Result<SharedTensor<T>> {
        let tensor = self
            .tensors
            .get(name)
            .ok_or_else(|| no_such(name, self.names()))?;
        tensor.try_clone()?.downcast_shared().map_err(|error| {
            error.while_doing(format_args!("taking the tensor \"{name}\" out of a file"))
        })
    }

    /// All tensors by their names.
    pub fn tensors(&self) -> &BTreeMap<String, DynTensor> {
        &self.tensors
    }

    /// The tensors by their names, for oneself.
    pub fn into_tensors(self) -> BTreeMap<String, DynTensor> {
        self.tensors
    }

    /// The same tensors once more, for another process.
    ///
    /// # Errors
    /// Only when this was received from a process that put exclusive tensors into it.
    pub fn try_clone(&self) -> Result<TensorFile> {
        let tensors = self.tensors.iter();
        let clones = tensors.map(|(name, tensor)| Ok((name.clone(), tensor.try_clone()?)));
        Ok(TensorFile {
            tensors: clones.collect::<Result<_>>()?,
            metadata: self.metadata.clone(),
        })
    }

    /// The texts that the file's maker added, under `__metadata__`.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }
}

/// Loads all tensors of a file into one block of the current arena.
///
/// A tensor that does not begin at a multiple of its element's size, which the format allows but its libraries do not
/// write, gets a block of its own.
///
/// # Errors
/// When the file cannot be read, is not in the format or longer or shorter than its header says (`Decode`), has a tensor
/// of an element type or number of dimensions that there is none of here, or the arena has no room.
pub fn load(path: impl AsRef<Path>) -> Result<TensorFile> {
    load_in(&Arena::current()?, path)
}

/// As [`load`], into this arena.
///
/// # Errors
/// As for [`load`].
pub fn load_in(arena: &Arena, path: impl AsRef<Path>) -> Result<TensorFile> {
    let path = path.as_ref();
    let mut source = Source::open(path)?;
    let length = source.metadata.data_len();
    let whole = source.read(arena, Geometry::contiguous(Dtype::U8, length)?, 0)?;
    let whole = whole.freeze();
    let mut tensors = BTreeMap::new();
    for (name, info) in source.metadata.tensors() {
        let tensor = tensor_of(arena, &whole, info).map_err(|error| about(path, &name, error))?;
        tensors.insert(name, tensor);
    }
    let metadata = source.metadata.metadata().iter().flatten();
    Ok(TensorFile {
        tensors,
        metadata: metadata
            .map(|(key, text)| (key.clone(), text.clone()))
            .collect(),
    })
}

/// Loads one tensor of a file into a block of its own in the current arena, exclusive.
///
/// # Errors
/// As for [`load`], and `NotFound` when there is none of that name.
pub fn load_one(path: impl AsRef<Path>, name: &str) -> Result<DynTensor> {
    load_one_in(&Arena::current()?, path, name)
}

/// As [`load_one`], into this arena.
///
/// # Errors
/// As for [`load_one`].
pub fn load_one_in(arena: &Arena, path: impl AsRef<Path>, name: &str) -> Result<DynTensor> {
    let path = path.as_ref();
    let mut source = Source::open(path)?;
    let Some(info) = source.metadata.info(name).cloned() else {
        let names = source.metadata.offset_keys();
        let error = no_such(name, names.iter().map(String::as_str));
        return Err(error.while_doing(path.display()));
    };
    let read = dtype_of(info.dtype)
        .and_then(|dtype| Geometry::contiguous(dtype, info.shape))
        .and_then(|geometry| source.read(arena, geometry, info.data_offsets.0));
    read.map_err(|error| about(path, name, error))
}

/// Saves tensors with their names, and texts for `__metadata__`, which may be empty.
///
/// The file appears when it is complete, in place of one of that name; only its user may read it, as with the format's
/// own library. What is not contiguous is written in row-major order.
///
/// # Errors
/// When the file cannot be written, or there is a tensor of complex128, which the format has no type for.
pub fn save<'a, N, K, V>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, &'a DynTensor)>,
    metadata: impl IntoIterator<Item = (K, V)>,
) -> Result<()>
where
    N: Into<String>,
    K: Into<String>,
    V: Into<String>,
{
    let path = path.as_ref();
    let mut views = Vec::new();
    let mut names = HashSet::new();
    for (name, tensor) in tensors {
        let name: String = name.into();
        let code = code_of(tensor.dtype()).map_err(|error| about(path, &name, error))?;
        if !names.insert(name.clone()) {
            return Err(Error::new(
                ErrorKind::Encode,
                format!(
                    "saving tensors to {}: two of them have the name {name:?}; a file holds one of each name",
                    path.display()
                ),
            ));
        }
        views.push((name, Saved { tensor, code }));
    }
    let metadata: HashMap<String, String> = metadata
        .into_iter()
        .map(|(key, text)| (key.into(), text.into()))
        .collect();
    let metadata = (!metadata.is_empty()).then_some(metadata);
    ::safetensors::serialize_to_file(views, metadata, path).map_err(|error| match error {
        SafeTensorError::IoError(error) => Error::io(
            "write",
            error,
            format_args!("saving tensors to {}", path.display()),
        ),
        error => {
            let tried = format!("saving tensors to {}: {error}", path.display());
            Error::new(ErrorKind::Encode, tried).because(error)
        }
    })
}

/// A file whose header was read and checked.
struct Source<'a> {
    path: &'a Path,
    file: File,
    metadata: Metadata,
    /// Where the data begins in the file.
    start: u64,
}

impl<'a> Source<'a> {
    fn open(path: &'a Path) -> Result<Self> {
        let shown = path.display();
        let tried = || format!("reading tensors from {shown}");
        // Asked before it is opened, as opening a pipe waits for a writer.
        let about = std::fs::metadata(path).map_err(|error| Error::io("stat", error, tried()))?;
        if !about.is_file() {
            return Err(malformed(path, "it is no regular file"));
        }
        let mut file = File::open(path).map_err(|error| Error::io("open", error, tried()))?;
        let available = about.len();
        let mut prefix = [0; PREFIX as usize];
        file.read_exact(&mut prefix)
            .map_err(|error| unreadable(path, error))?;
        let length = u64::from_le_bytes(prefix);
        if length > HEADER_MAX || length > available.saturating_sub(PREFIX) {
            return Err(malformed(
                path,
                format_args!(
                    "its first 8 bytes announce a header of {length} bytes, and the file has {available}"
                ),
            ));
        }
        let mut header = vec![0; length as usize]; // at most HEADER_MAX
        file.read_exact(&mut header)
            .map_err(|error| unreadable(path, error))?;
        // Reading it checks that the tensors follow one another without gap or overlap, each as long as its shape says.
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| malformed(path, format_args!("its header: {error}")).because(error))?;
        let start = PREFIX + length;
        let data = available - start;
        if metadata.data_len() as u64 != data {
            return Err(malformed(
                path,
                format_args!(
                    "its tensors take {} bytes, and {data} follow the header",
                    metadata.data_len()
                ),
            ));
        }
        Ok(Source {
            path,
            file,
            metadata,
            start,
        })
    }

    /// Reads as many bytes of the data as a geometry takes, from `begin`, into a block.
    fn read(&mut self, arena: &Arena, geometry: Geometry, begin: usize) -> Result<DynTensor> {
        let mut tensor = DynTensor::uninit_in(arena, geometry.dtype(), geometry.shape())?;
        self.file
            .seek(SeekFrom::Start(self.start + begin as u64))
            .map_err(|error| unreadable(self.path, error))?;
        self.file
            .read_exact(tensor.as_bytes_mut()?)
            .map_err(|error| unreadable(self.path, error))?;
        Ok(tensor)
    }
}

/// A tensor as a view of the block with all data, or, if it would not be aligned there, as a copy.
fn tensor_of(arena: &Arena, whole: &DynTensor, info: &TensorInfo) -> Result<DynTensor> {
    let dtype = dtype_of(info.dtype)?;
    let packed = Geometry::contiguous(dtype, info.shape.as_slice())?;
    let (begin, end) = info.data_offsets;
    if begin.is_multiple_of(dtype.size()) {
        // The block begins at a multiple of 64, so each element lies at a multiple of its size.
        let first = begin / dtype.size();
        let geometry = Geometry::new(dtype, packed.shape(), packed.strides(), first)?;
        return whole.reinterpreted(geometry);
    }
    let mut own = DynTensor::uninit_in(arena, dtype, packed.shape())?;
    own.as_bytes_mut()?
        .copy_from_slice(&whole.as_bytes()?[begin..end]);
    Ok(own.freeze())
}

/// A tensor as the format's library wants to see it.
struct Saved<'a> {
    tensor: &'a DynTensor,
    code: Code,
}

impl View for Saved<'_> {
    fn dtype(&self) -> Code {
        self.code
    }

    fn shape(&self) -> &[usize] {
        self.tensor.shape()
    }

    fn data(&self) -> Cow<'_, [u8]> {
        let bytes = self.tensor.to_bytes();
        if self.code == Code::BOOL && bytes.iter().any(|&byte| byte > 1) {
            // Any byte but 0 is true here, but other readers may know 1 only.
            return bytes.iter().map(|&byte| u8::from(byte != 0)).collect();
        }
        bytes
    }

    fn data_len(&self) -> usize {
        self.tensor.numel() * self.tensor.dtype().size()
    }
}

/// The types that both know, with the format's name.
const TYPES: [(Dtype, Code); 14] = [
    (Dtype::Bool, Code::BOOL),
    (Dtype::U8, Code::U8),
    (Dtype::U16, Code::U16),
    (Dtype::U32, Code::U32),
    (Dtype::U64, Code::U64),
    (Dtype::I8, Code::I8),
    (Dtype::I16, Code::I16),
    (Dtype::I32, Code::I32),
    (Dtype::I64, Code::I64),
    (Dtype::F16, Code::F16),
    (Dtype::Bf16, Code::BF16),
    (Dtype::F32, Code::F32),
    (Dtype::F64, Code::F64),
    (Dtype::Complex64, Code::C64),
];

fn dtype_of(code: Code) -> Result<Dtype> {
    let found = TYPES.iter().find(|(_, other)| *other == code);
    found.map(|&(dtype, _)| dtype).ok_or_else(|| {
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "its elements are {code}, which no element type here is; convert the file first"
            ),
        )
    })
}

fn code_of(dtype: Dtype) -> Result<Code> {
    let found = TYPES.iter().find(|(other, _)| *other == dtype);
    found.map(|&(_, code)| code).ok_or_else(|| {
        Error::new(
            ErrorKind::Unsupported,
            format!(
                "its elements are {dtype}, which the format has no type for; save the parts as f64"
            ),
        )
    })
}

fn about(path: &Path, name: &str, error: Error) -> Error {
    error.while_doing(format_args!("the tensor \"{name}\" of {}", path.display()))
}

fn no_such<'a>(name: &str, names: impl Iterator<Item = &'a str>) -> Error {
    const SHOWN: usize = 8;
    let mut known: Vec<&str> = names.take(SHOWN + 1).collect();
    if known.len() > SHOWN {
        known[SHOWN] = "…";
    }
    Error::new(
        ErrorKind::NotFound,
        format!("there is no tensor \"{name}\"; there are {known:?}"),
    )
}

fn malformed(path: &Path, why: impl std::fmt::Display) -> Error {
    let path = path.display();
    Error::malformed(format!("{path} is no whole safetensors file: {why}"))
}

fn unreadable(path: &Path, error: std::io::Error) -> Error {
    if error.kind() == std::io::ErrorKind::UnexpectedEof {
        return malformed(path, "it ends too early");
    }
    Error::io(
        "read",
        error,
        format_args!("reading tensors from {}", path.display()),
    )
}

#[cfg(test)]
mod tests;
