//! The tensors of the files of a checkpoint: the numbers of safetensors, or the blocks of GGUF
//! files, which are dequantised when a tensor is read.

use std::borrow::Cow;
use std::fmt;
use std::fs::File;
use std::path::Path;

use safetensors::tensor::{Dtype, SafeTensors};
use tch::Tensor;

use super::gguf::{self, BlockType, Rearrangement};
use r1_base::error::{Error, Kind, Result, readable};

/// A tensor of a file.
pub(super) struct FileTensor<'a> {
    pub(super) name: Cow<'a, str>,
    pub(super) shape: Vec<i64>,
    pub(super) numbers: FileNumbers,
    pub(super) bytes: &'a [u8],
}

/// How the bytes of a tensor represent its numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum FileNumbers {
    Plain(Dtype),
    Blocks(&'static BlockType, Rearrangement),
}

impl fmt::Display for FileNumbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain(dtype) => write!(f, "{dtype:?}"),
            Self::Blocks(kind, _) => f.write_str(kind.name),
        }
    }
}

impl FileTensor<'_> {
    /// The numbers, on the CPU: in the type of the file, or f32 for blocks.
    pub(super) fn read(&self) -> Result<Tensor> {
        let dtype = match self.numbers {
            FileNumbers::Plain(dtype) => dtype,
            FileNumbers::Blocks(kind, rearrangement) => {
                let numbers = Tensor::f_from_slice(&kind.dequantise(self.bytes))?;
                return rearrangement.undo(numbers.f_view(self.shape.as_slice())?);
            }
        };
        let kind = match dtype {
            Dtype::F32 => tch::Kind::Float,
            Dtype::BF16 => tch::Kind::BFloat16,
            Dtype::F16 => tch::Kind::Half,
            Dtype::F64 => tch::Kind::Double,
            other => {
                let message = format!("{} is stored as {other:?}, which is not supported", self.name);
                return Err(Error::new(Kind::Model, message).hint("f32, bf16 and f16 checkpoints are"));
            }
        };
        Ok(Tensor::f_from_data_size(self.bytes, &self.shape, kind)?)
    }

    /// The number of its numbers.
    pub(super) fn numel(&self) -> u128 {
        self.shape.iter().map(|&size| size as u128).product()
    }

    /// The type of its numbers: `f32`, `bf16`, `f16`, `f64`, or the name of a type of blocks
    /// (`q4_k`); `None` for another one.
    pub(super) fn dtype(&self) -> Option<&'static str> {
        match self.numbers {
            FileNumbers::Plain(Dtype::F32) => Some("f32"),
            FileNumbers::Plain(Dtype::BF16) => Some("bf16"),
            FileNumbers::Plain(Dtype::F16) => Some("f16"),
            FileNumbers::Plain(Dtype::F64) => Some("f64"),
            FileNumbers::Plain(_) => None,
            FileNumbers::Blocks(kind, _) => Some(kind.name),
        }
    }
}

/// Maps a file, safetensors or GGUF, and passes its tensors to `f`.
pub(super) fn with_tensors<T>(path: &Path, f: impl FnOnce(&[FileTensor<'_>]) -> Result<T>) -> Result<T> {
    if path.extension().is_some_and(|extension| extension == "gguf") {
        return gguf::with_file(path, |gguf, bytes| f(&gguf::renamed(&gguf, bytes)?));
    }
    let file = readable(path).and_then(|()| File::open(path));
    let file = file.map_err(|error| Error::io(Kind::Model, "open the weights", path, &error))?;
    // SAFETY: the map is read only during this call. Truncation by another process in this time
    // would end the program, as for every reader of mapped checkpoints.
    let map = unsafe { memmap2::Mmap::map(&file) }
        .map_err(|error| Error::io(Kind::Model, "read the weights", path, &error))?;
    let tensors = SafeTensors::deserialize(&map).map_err(|error| {
        Error::new(Kind::Model, format!("the weights are damaged or cut short: {error}"))
            .at_path(path)
            .hint("fetch or copy the file again")
    })?;
    let views: Vec<_> = tensors.iter().collect();
    let tensors: Vec<FileTensor<'_>> = views
        .iter()
        .map(|(name, view)| FileTensor {
            name: Cow::Borrowed(*name),
            shape: view.shape().iter().map(|&size| size as i64).collect(),
            numbers: FileNumbers::Plain(view.dtype()),
            bytes: view.data(),
        })
        .collect();
    f(&tensors)
}
