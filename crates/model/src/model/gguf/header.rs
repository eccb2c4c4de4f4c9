//! The header of a GGUF file, which may be hostile: every count, length and offset is compared with
//! the size of the file before it is used.

use std::collections::BTreeSet;
use std::fs::File;
use std::path::Path;

use serde_json::{Map, Value};

use super::blocks::BlockType;
use crate::model::json_file::clipped;
use r1_base::error::{Error, Kind, Result, readable};

/// Name of a GGUF file in a model directory.
pub const GGUF_FILE: &str = "model.gguf";

/// Maximum size of the header, bytes. A vocabulary of 262,144 tokens has 13 MB.
const MAX_HEADER: usize = 256 << 20;
/// Maximum number of values in the metadata, elements of lists included. A value takes up to 72
/// bytes of memory.
const MAX_VALUES: u64 = 1 << 22;
/// Maximum length of a name of a field or a tensor, bytes.
const MAX_NAME: usize = 512;
/// Maximum number of tensors. The largest public models have about 2,500.
const MAX_TENSORS: u64 = 1 << 16;

/// The header of a GGUF file.
#[derive(Debug)]
pub struct Gguf {
    /// Metadata by name (`llama.block_count`).
    pub metadata: Map<String, Value>,
    tensors: Vec<GgufTensor>,
}

/// A tensor of a GGUF file.
#[derive(Debug)]
pub(in crate::model) struct GgufTensor {
    pub(super) name: String,
    /// Sizes in the order of PyTorch: the last one is contiguous.
    pub(super) shape: Vec<u64>,
    pub(super) kind: &'static BlockType,
    /// The first byte in the file, and the number of bytes.
    start: usize,
    length: usize,
}

impl Gguf {
    /// Reads the header of the file at `path`.
    ///
    /// # Errors
    /// `Kind::Model` with the path: for a file of another format or version, one that is cut short,
    /// contradicts itself or has tensors of an unsupported type.
    pub fn open(path: &Path) -> Result<Self> {
        with_file(path, |gguf, _| Ok(gguf))
    }

    pub(super) fn tensors(&self) -> &[GgufTensor] {
        &self.tensors
    }

    pub(super) fn tensor(&self, name: &str) -> Option<&GgufTensor> {
        self.tensors.iter().find(|tensor| tensor.name == name)
    }

    /// The architecture, as llama.cpp names it.
    pub(super) fn architecture(&self) -> Result<&str> {
        self.metadata.get("general.architecture").and_then(Value::as_str).ok_or_else(|| {
            Error::new(Kind::Model, "the metadata has no `general.architecture`")
                .hint("the file may be a vocabulary, an adapter or a part of a model")
        })
    }

    pub(super) fn parse(bytes: &[u8]) -> Result<Self> {
        let mut reader = HeaderReader { bytes, at: 0 };
        if reader.take(4)? != b"GGUF" {
            return Err(wrong("does not begin with GGUF, as files of this format do"));
        }
        let version = reader.u32()?;
        match version {
            2 | 3 => {}
            1 => return Err(wrong("has version 1 of the format; versions 2 and 3 are supported")),
            _ if [2, 3].contains(&version.swap_bytes()) => return Err(wrong("is for big-endian machines")),
            _ => return Err(wrong(&format!("has version {version} of the format; versions 2 and 3 are supported"))),
        }
        let (tensor_count, field_count) = (reader.u64()?, reader.u64()?);
        if tensor_count > MAX_TENSORS {
            return Err(wrong(&format!(
                "has a header with {tensor_count} tensors; no model has more than {MAX_TENSORS}"
            )));
        }
        let (mut metadata, mut values) = (Map::new(), 0);
        for _ in 0..field_count {
            let name = reader.name()?;
            let kind = reader.u32()?;
            let value = reader.value(kind, &name, &mut values)?;
            if metadata.insert(name.clone(), value).is_some() {
                return Err(wrong(&format!("has the metadata `{}` twice", clipped(&name))));
            }
        }
        let alignment = match metadata.get("general.alignment") {
            None => 32,
            Some(value) => {
                value.as_u64().filter(|size| size.is_power_of_two() && *size <= 1 << 20).ok_or_else(|| {
                    wrong(&format!("gives the alignment {}, which is not a power of 2", clipped(&value.to_string())))
                })?
            }
        } as usize;
        let mut infos = Vec::new();
        for _ in 0..tensor_count {
            infos.push((reader.name()?, reader.shape()?, reader.u32()?, reader.u64()?));
        }
        let data = reader.at.next_multiple_of(alignment);
        let mut tensors = Vec::new();
        for (name, shape, id, offset) in infos {
            tensors.push(GgufTensor::new(name, shape, id, (data, offset, alignment), bytes.len())?);
        }
        let mut names = BTreeSet::new();
        if let Some(twice) = tensors.iter().find(|tensor| !names.insert(&tensor.name)) {
            return Err(wrong(&format!("has the tensor {} twice", clipped(&twice.name))));
        }
        let mut ends: Vec<_> = tensors.iter().map(|tensor| (tensor.start, tensor.start + tensor.length)).collect();
        ends.sort_unstable();
        if ends.windows(2).any(|pair| pair[0].1 > pair[1].0) {
            return Err(wrong("has tensors that overlap"));
        }
        Ok(Self { metadata, tensors })
    }
}

impl GgufTensor {
    fn new(
        name: String,
        shape: Vec<u64>,
        id: u32,
        (data, offset, alignment): (usize, u64, usize),
        file: usize,
    ) -> Result<Self> {
        let kind = BlockType::of(id).ok_or_else(|| {
            Error::new(
                Kind::Model,
                format!("{} has type {id} ({}), which is not supported", clipped(&name), BlockType::other(id)),
            )
            .hint(format!("supported are {}; another file of the model may have one of them", BlockType::names()))
        })?;
        let bad = |why: String| wrong(&format!("has a tensor {} {why}", clipped(&name)));
        let numbers = shape.iter().try_fold(1_u64, |product, &size| product.checked_mul(size));
        let row = shape.last().copied().unwrap_or(1);
        let Some(numbers) = numbers.filter(|&numbers| numbers > 0 && row.is_multiple_of(kind.numbers as u64)) else {
            return Err(bad(format!(
                "of shape {shape:?}, which does not fit {} with {} numbers in a block",
                kind.name, kind.numbers
            )));
        };
        let length = (numbers / kind.numbers as u64).checked_mul(kind.bytes as u64);
        let end = length.and_then(|length| offset.checked_add(length)?.checked_add(data as u64));
        if end.is_none_or(|end| end > file as u64) {
            return Err(wrong(&format!(
                "is cut short or damaged: it has {file} bytes, and the tensor {} of shape {shape:?} is beyond its end",
                clipped(&name)
            ))
            .hint("fetch or copy the file again"));
        }
        if !offset.is_multiple_of(alignment as u64) {
            return Err(bad(format!("at offset {offset}, which is not a multiple of the alignment {alignment}")));
        }
        Ok(Self { name, shape, kind, start: data + offset as usize, length: length.unwrap_or(0) as usize })
    }

    /// The stored bytes, of all bytes of the file.
    pub(super) fn bytes<'a>(&self, file: &'a [u8]) -> &'a [u8] {
        file.get(self.start..self.start + self.length).unwrap_or_default()
    }
}

/// Maps a file, and passes its header and its bytes to `f`.
pub(in crate::model) fn with_file<T>(path: &Path, f: impl FnOnce(Gguf, &[u8]) -> Result<T>) -> Result<T> {
    let file = readable(path).and_then(|()| File::open(path));
    let file = file.map_err(|error| Error::io(Kind::Model, "open the model", path, &error))?;
    // SAFETY: the map is read only during this call. Truncation by another process in this time
    // would end the program, as for every reader of mapped checkpoints.
    let map =
        unsafe { memmap2::Mmap::map(&file) }.map_err(|error| Error::io(Kind::Model, "read the model", path, &error))?;
    f(Gguf::parse(&map).map_err(|error| error.at_path(path))?, &map)
}

/// Bytes of a file from its start, and the position of the next one.
struct HeaderReader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> HeaderReader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8]> {
        let end = self.at.checked_add(count).filter(|&end| end <= self.bytes.len().min(MAX_HEADER));
        let Some(end) = end else {
            let why = if self.bytes.len() > MAX_HEADER { "or its header is too long" } else { "or damaged" };
            return Err(wrong(&format!(
                "is cut short {why}: its header has {count} bytes at {}, and the file has {}",
                self.at,
                self.bytes.len()
            ))
            .hint("fetch or copy the file again"));
        };
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    fn text(&mut self, limit: usize) -> Result<String> {
        let (start, length) = (self.at, self.u64()?);
        if length > limit as u64 {
            return Err(wrong(&format!("has a text of {length} bytes at {start}; {limit} are possible there")));
        }
        let text = self.take(length as usize)?;
        String::from_utf8(text.to_vec()).map_err(|_| wrong(&format!("has a text at {start} that is not UTF-8")))
    }

    fn name(&mut self) -> Result<String> {
        self.text(MAX_NAME)
    }

    /// The sizes of a tensor, in the order of PyTorch.
    fn shape(&mut self) -> Result<Vec<u64>> {
        let count = self.u32()?;
        if !(1..=4).contains(&count) {
            return Err(wrong(&format!("has a tensor with {count} dimensions; 1 to 4 are possible")));
        }
        let mut shape = (0..count).map(|_| self.u64()).collect::<Result<Vec<_>>>()?;
        shape.reverse();
        Ok(shape)
    }

    /// A value of the metadata; `values` is the number of values so far.
    fn value(&mut self, kind: u32, name: &str, values: &mut u64) -> Result<Value> {
        const LIST: u32 = 9;
        *values += 1;
        if *values > MAX_VALUES {
            return Err(wrong(&format!("has more than {MAX_VALUES} values in its metadata")));
        }
        Ok(match kind {
            0 => self.array::<1>()?[0].into(),
            1 => i8::from_le_bytes(self.array()?).into(),
            2 => u16::from_le_bytes(self.array()?).into(),
            3 => i16::from_le_bytes(self.array()?).into(),
            4 => self.u32()?.into(),
            5 => i32::from_le_bytes(self.array()?).into(),
            6 => f32::from_le_bytes(self.array()?).into(),
            7 => (self.array::<1>()?[0] != 0).into(),
            8 => self.text(self.bytes.len())?.into(),
            10 => self.u64()?.into(),
            11 => i64::from_le_bytes(self.array()?).into(),
            12 => f64::from_le_bytes(self.array()?).into(),
            LIST => {
                let (inner, count) = (self.u32()?, self.u64()?);
                if inner == LIST {
                    return Err(wrong(&format!("has a list of lists in its metadata `{}`", clipped(name))));
                }
                let elements = (0..count).map(|_| self.value(inner, name, values));
                Value::Array(elements.collect::<Result<_>>()?)
            }
            _ => return Err(wrong(&format!("has a value of type {kind} in its metadata `{}`", clipped(name)))),
        })
    }
}

/// The error of a file; `why` follows "the GGUF file".
fn wrong(why: &str) -> Error {
    Error::new(Kind::Model, format!("the GGUF file {why}"))
}
