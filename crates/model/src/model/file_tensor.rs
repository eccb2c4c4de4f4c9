//! The tensors of the files of a checkpoint: the numbers of safetensors, or the blocks of GGUF
//! files, which are dequantised when a tensor is read.

use std::borrow::Cow;
use std::fmt;

use safetensors::tensor::Dtype;
use tch::Tensor;

use super::gguf::blocks::BlockType;
use r1_base::error::{Error, Kind, Result};

/// A tensor of a file.
#[derive(Clone)]
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

/// What must be undone in the numbers of a tensor.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Rearrangement {
    None,
    /// The rows of each of so many heads alternate between the first and the second half of the
    /// head, as rotary embeddings over neighbouring numbers need it.
    Interleaved(i64),
    /// The weights of a norm plus 1.
    PlusOne,
}

impl Rearrangement {
    /// Undoes it in a tensor of f32.
    pub(super) fn undo(self, tensor: Tensor) -> Result<Tensor> {
        Ok(match self {
            Self::None => tensor,
            Self::PlusOne => tensor.f_sub_scalar(1.0)?,
            Self::Interleaved(heads) => {
                let pairs = tensor.f_reshape([heads, -1, 2, tensor.numel() as i64 / tensor.size()[0]])?;
                pairs.f_transpose(1, 2)?.f_reshape(tensor.size())?
            }
        })
    }
}
