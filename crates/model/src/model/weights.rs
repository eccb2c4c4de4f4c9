//! Checkpoints in safetensors, one file or shards with an index, and in a GGUF file, which is only
//! read. This module handles names, shapes and files only; `file_tensor` reads the numbers.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, SafeTensors, View};
use tch::Tensor;

use super::file_tensor::{FileNumbers, FileTensor};
use super::gguf::header::{GGUF_FILE, with_file};
use super::gguf::names::renamed;
use super::json_file::{clipped, read_json};
use super::mxfp4;
use super::stored::StoredTensor;
use super::text_model;
use r1_base::error::{Error, Kind, Result, Subject, readable};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// Fills every parameter from the files of a checkpoint, converting to the parameter's type and
/// device.
///
/// Names in the checkpoint that match `ignored` can be unused. Errors are `Kind::Model` and name
/// the file and every missing, unexpected or misshapen tensor.
pub(super) fn read(files: &[PathBuf], parameters: &[(String, Tensor)], ignored: impl Fn(&str) -> bool) -> Result<()> {
    read_stored(files, &StoredTensor::all(parameters), ignored)
}

/// As [`read`], for tensors that hold several parameters.
pub(super) fn read_stored(
    files: &[PathBuf],
    parameters: &[StoredTensor],
    ignored: impl Fn(&str) -> bool,
) -> Result<()> {
    let problems = read_files(files, parameters, ignored)?;
    if problems.is_empty() {
        return Ok(());
    }
    let error = problems.into_error("weights and config.json disagree").hint(SAME_MODEL);
    Err(match files.first() {
        Some(first) => error.at_path(first),
        None => error,
    })
}

const SAME_MODEL: &str = "config.json and the weights must come from the same model";

/// Refuses a config.json that describes `wanted` weights if the files have far fewer, before their
/// allocation.
pub(super) fn check_size(dir: &Path, files: &[PathBuf], wanted: u128) -> Result<()> {
    let mut held = 0;
    for path in files {
        held += with_tensors(path, |tensors| Ok(tensors.iter().map(FileTensor::numel).sum::<u128>()))?;
    }
    if wanted <= 2 * held + (1 << 20) {
        return Ok(());
    }
    let why = format!("config.json describes {wanted} weights, the files have {held}");
    Err(Error::new(Kind::Model, format!("weights and config.json disagree; {why}")).at_path(dir).hint(SAME_MODEL))
}

/// Shape of a tensor of the files; `None` if there is no such tensor.
pub(super) fn shape_of(files: &[PathBuf], name: &str) -> Result<Option<Vec<i64>>> {
    for path in files {
        let tensor_shape = with_tensors(path, |tensors| {
            Ok(tensors.iter().find(|tensor| tensor.name == name).map(|tensor| tensor.shape.clone()))
        })?;
        if tensor_shape.is_some() {
            return Ok(tensor_shape);
        }
    }
    Ok(None)
}

/// Type of the weights in `dir`: the one of most numbers, such as `bf16` or `q4_k`; `None` without
/// a tensor of a type of weights.
pub fn stored_dtype(dir: &Path) -> Option<&'static str> {
    let first = files(dir).ok()?.into_iter().next()?;
    let mut numbers: BTreeMap<&'static str, u128> = BTreeMap::new();
    with_tensors(&first, |tensors| {
        for (dtype, tensor) in tensors.iter().filter_map(|tensor| Some((tensor.dtype()?, tensor))) {
            *numbers.entry(dtype).or_default() += tensor.numel();
        }
        Ok(())
    })
    .ok()?;
    Some(numbers.into_iter().max_by_key(|(_, count)| *count)?.0)
}

/// Names of the tensors in a file.
pub(super) fn names(path: &Path) -> Result<BTreeSet<String>> {
    with_tensors(path, |tensors| Ok(tensors.iter().map(|tensor| tensor.name.to_string()).collect()))
}

/// Whether two tensors of the files differ; false if one of them is missing.
pub(super) fn differ(files: &[PathBuf], one: &str, other: &str) -> Result<bool> {
    let mut digests = Vec::new();
    for path in files {
        with_tensors(path, |tensors| {
            for tensor in tensors.iter().filter(|tensor| tensor.name == one || tensor.name == other) {
                let mut hasher = DefaultHasher::new();
                tensor.bytes.hash(&mut hasher);
                digests.push((tensor.shape.clone(), tensor.numbers, hasher.finish()));
            }
            Ok(())
        })?;
    }
    Ok(matches!(digests.as_slice(), [one, other] if one != other))
}

/// Maps a file, safetensors or GGUF, and passes its tensors to `f`.
fn with_tensors<T>(path: &Path, f: impl FnOnce(&[FileTensor<'_>]) -> Result<T>) -> Result<T> {
    if path.extension().is_some_and(|extension| extension == "gguf") {
        return with_file(path, |gguf, bytes| f(&renamed(&gguf, bytes)?));
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

/// Fills every parameter from the files; returns the missing, unexpected or misshapen tensors.
pub(super) fn read_files(
    files: &[PathBuf],
    parameters: &[StoredTensor],
    ignored: impl Fn(&str) -> bool,
) -> Result<Problems> {
    let _guard = tch::no_grad_guard();
    let all: HashMap<&str, &StoredTensor> = parameters.iter().map(|stored| (stored.name.as_str(), stored)).collect();
    let quantised = |name: &str, end: &str| {
        let stored = name.strip_suffix(end).and_then(|name| all.get(name));
        stored.copied().filter(|stored| stored.holds_matrices_of_experts())
    };
    let mut wanted = all.clone();
    let (mut extra, mut misshapen) = (Vec::new(), Vec::new());
    for path in files {
        with_tensors(path, |tensors| {
            let parts = tensors.iter().flat_map(|tensor| {
                let is_parameter = |name: &str| all.contains_key(name);
                if is_parameter(&tensor.name) { vec![tensor.clone()] } else { text_model::parts(tensor, is_parameter) }
            });
            for tensor in &parts.collect::<Vec<_>>() {
                let name = &*tensor.name;
                if let Some(stored) = wanted.remove(name) {
                    if tensor.shape == stored.shape {
                        tensor.read().and_then(|numbers| stored.set(&numbers)).map_err(|error| error.at_path(path))?;
                    } else {
                        misshapen.push((name.to_owned(), shapes(tensor, &stored.shape)));
                    }
                } else if let Some(stored) = quantised(name, "_blocks") {
                    if wanted.remove(stored.name.as_str()).is_none() {
                        extra.push(name.to_owned());
                        continue;
                    }
                    misshapen.extend(dequantise(files, stored, tensor)?);
                } else if !ignored(name) && quantised(name, "_scales").is_none() {
                    extra.push(name.to_owned());
                }
            }
            Ok(())
        })?;
    }
    let missing: Vec<String> = parameters
        .iter()
        .map(|stored| &stored.name)
        .filter(|name| wanted.contains_key(name.as_str()))
        .cloned()
        .collect();
    Ok(Problems { missing, extra, misshapen })
}

fn shapes(tensor: &FileTensor<'_>, expected: &[i64]) -> String {
    format!("{:?}, not {expected:?}", tensor.shape)
}

/// Sets the weights of experts from blocks of MXFP4 and their scales, which can be in another file.
/// Returns a tensor of another type or shape, or without its scales.
fn dequantise(files: &[PathBuf], stored: &StoredTensor, blocks: &FileTensor<'_>) -> Result<Option<(String, String)>> {
    let [experts, inputs, outputs] = stored.shape[..] else { return Ok(None) };
    let groups = inputs / mxfp4::BLOCK;
    let expected = [experts, outputs, groups, mxfp4::BLOCK / 2];
    let problem = |tensor: &FileTensor<'_>, why: String| Ok(Some((tensor.name.to_string(), why)));
    if groups * mxfp4::BLOCK != inputs {
        return problem(blocks, format!("in blocks, and {inputs} inputs are not whole blocks"));
    }
    let bytes = FileNumbers::Plain(Dtype::U8);
    if blocks.shape != expected || blocks.numbers != bytes {
        return problem(blocks, format!("{} {}", blocks.numbers, shapes(blocks, &expected)));
    }
    let scales_name = format!("{}_scales", stored.name);
    for path in files {
        let problem = with_tensors(path, |tensors| {
            let Some(scales) = tensors.iter().find(|tensor| tensor.name == scales_name) else { return Ok(None) };
            if scales.shape != expected[..3] || scales.numbers != bytes {
                let shapes = format!("{} {}", scales.numbers, shapes(scales, &expected[..3]));
                return Ok(Some(Some((scales_name.clone(), shapes))));
            }
            let of_expert = (outputs * groups) as usize;
            let blocks = blocks.bytes.chunks_exact(of_expert * (mxfp4::BLOCK / 2) as usize);
            for (expert, (blocks, scales)) in blocks.zip(scales.bytes.chunks_exact(of_expert)).enumerate() {
                let weights = Tensor::f_from_slice(&mxfp4::dequantised(blocks, scales))?;
                stored.set_expert(expert, &weights.f_view([outputs, inputs])?.f_tr()?)?;
            }
            Ok(Some(None))
        })?;
        if let Some(problem) = problem {
            return Ok(problem);
        }
    }
    problem(blocks, format!("without {scales_name}"))
}

/// Differences between the tensors of files and the parameters of a model.
#[derive(Debug)]
pub(super) struct Problems {
    missing: Vec<String>,
    extra: Vec<String>,
    /// Name and shapes.
    misshapen: Vec<(String, String)>,
}

impl Problems {
    pub(super) fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.extra.is_empty() && self.misshapen.is_empty()
    }

    /// An error about these tensors; `what` begins its message.
    pub(super) fn into_error(self, what: &str) -> Error {
        let Self { missing, extra, misshapen } = self;
        let names = misshapen.iter().map(|(name, _)| name);
        let all: Vec<String> = missing.iter().chain(&extra).chain(names).cloned().collect();
        let misshapen = misshapen.into_iter().map(|(name, shapes)| format!("{name} is {shapes}")).collect();
        let parts: Vec<String> = [("missing", missing), ("not part of the model", extra), ("misshapen", misshapen)]
            .into_iter()
            .filter(|(_, names)| !names.is_empty())
            .map(|(how, names)| format!("{how}: {}", shortened(names)))
            .collect();
        Error::new(Kind::Model, format!("{what}; {}", parts.join("; "))).about(Subject::Tensors(all))
    }
}

/// How weights are divided into files, and which of them are written.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShardLimits {
    /// Maximum bytes of a shard, which has at least one tensor.
    pub bytes: u64,
    /// The number of this process and of all processes: it writes the shards with the numbers that
    /// leave this remainder. The first one writes the index.
    pub part: (usize, usize),
}

/// Writes the tensors to `dir`: one file, or shards with an index. Other weight files of earlier
/// saves are removed at the end.
pub(super) fn write(dir: &Path, parameters: &[StoredTensor], limits: ShardLimits, sync: bool) -> Result<()> {
    let ShardLimits { bytes: limit, part: (rank, size) } = limits;
    let mut shards: Vec<(u64, &[StoredTensor])> = Vec::new();
    let mut start = 0;
    for (at, stored) in parameters.iter().enumerate() {
        let bytes = stored.bytes();
        if let Some(last) = shards.last_mut().filter(|(held, _)| held + bytes <= limit) {
            *last = (last.0 + bytes, &parameters[start..=at]);
        } else {
            start = at;
            shards.push((bytes, &parameters[at..=at]));
        }
    }
    let mut kept = Vec::new();
    if let [(_, all)] = shards[..] {
        if rank == 0 {
            write_stored(&dir.join(SINGLE), all, sync)?;
        }
        kept.push(SINGLE.to_owned());
    } else {
        let mut map = serde_json::Map::new();
        for (index, (_, tensors)) in shards.iter().enumerate() {
            let name = format!("model-{:05}-of-{:05}.safetensors", index + 1, shards.len());
            if index % size == rank {
                write_stored(&dir.join(&name), tensors, sync)?;
            }
            map.extend(tensors.iter().map(|stored| (stored.name.clone(), name.clone().into())));
            kept.push(name);
        }
        map.sort_keys();
        let total: u64 = shards.iter().map(|(bytes, _)| bytes).sum();
        let index = serde_json::json!({"metadata": {"total_size": total}, "weight_map": map});
        if rank == 0 {
            write_bytes(&dir.join(INDEX), format!("{index:#}\n").as_bytes(), sync)?;
        }
        kept.push(INDEX.to_owned());
    }
    remove_others(dir, &kept).map_err(|error| Error::io(Kind::Store, "remove old weights", dir, &error))
}

/// Removes weights and indices that a reader could use instead of those just written.
fn remove_others(dir: &Path, kept: &[String]) -> std::io::Result<()> {
    for entry in std::fs::read_dir(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let shard = name.starts_with("model-") && name.ends_with(".safetensors") && name.contains("-of-");
        if (shard || name == SINGLE || name == INDEX) && !kept.contains(&name) {
            std::fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// Writes a file atomically; without `sync` the caller syncs it.
pub(super) fn write_bytes(path: &Path, bytes: &[u8], sync: bool) -> Result<()> {
    let part = path.with_added_extension("part");
    std::fs::write(&part, bytes)
        .and_then(|()| publish(&part, path, sync))
        .map_err(|error| Error::io(Kind::Store, "write", path, &error))
}

/// Writes the tensors to one safetensors file, atomically.
///
/// # Errors
/// `Kind::Store` with the path.
pub fn write_file(path: &Path, parameters: &[(String, Tensor)]) -> Result<()> {
    write_stored(path, &StoredTensor::all(parameters), true)
}

pub(super) fn write_stored(path: &Path, parameters: &[StoredTensor], sync: bool) -> Result<()> {
    let views = parameters
        .iter()
        .map(|stored| Ok((stored.name.as_str(), HeldParameter::new(stored)?)))
        .collect::<Result<Vec<_>>>()?;
    let part = path.with_added_extension("part");
    let failed = |error: &std::io::Error| Error::io(Kind::Store, "write the tensors", path, error);
    // transformers requires this metadata.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(views, Some(metadata), &part).map_err(|error| match error {
        safetensors::SafeTensorError::IoError(error) => failed(&error),
        other => Error::new(Kind::Store, format!("can't write the tensors: {other}")).at_path(path),
    })?;
    publish(&part, path, sync).map_err(|error| failed(&error))
}

/// Renames `part` to `path`, after a sync.
fn publish(part: &Path, path: &Path, sync: bool) -> std::io::Result<()> {
    if sync {
        File::open(part)?.sync_all()?;
    }
    std::fs::rename(part, path)
}

/// Weight files of a checkpoint: the single file, all shards of the index, or the GGUF file.
pub fn files(dir: &Path) -> Result<Vec<PathBuf>> {
    let single = dir.join(SINGLE);
    if single.exists() {
        return Ok(vec![single]);
    }
    let (path, blocks) = (dir.join(INDEX), dir.join(GGUF_FILE));
    if !path.exists() && blocks.exists() {
        return Ok(vec![blocks]);
    }
    if !path.exists() {
        return Err(Error::new(Kind::Model, format!("no {SINGLE} and no {INDEX}"))
            .at_path(dir)
            .hint("weights in other formats (pytorch_model.bin) are not read; convert them to safetensors"));
    }
    let bad = |why: String| Error::new(Kind::Model, format!("the index of the shards {why}")).at_path(&path);
    let index = read_json(&path, "the index of the shards")?;
    let map = index["weight_map"].as_object().ok_or_else(|| bad("has no `weight_map`".to_owned()))?;
    let mut names = BTreeSet::new();
    for (tensor, file) in map {
        // A file name in this directory, of at most 255 bytes.
        let name = file
            .as_str()
            .filter(|name| name.len() < 256 && Path::new(name).file_name().is_some_and(|last| last == *name));
        names.insert(
            name.ok_or_else(|| {
                bad(format!("gives {} as the file of {}", clipped(&file.to_string()), clipped(tensor)))
            })?,
        );
    }
    Ok(names.into_iter().map(|name| dir.join(name)).collect())
}

/// At most eight names, and the number of further ones.
fn shortened(mut names: Vec<String>) -> String {
    names.sort();
    let more = names.len().saturating_sub(8);
    names.truncate(8);
    let text = names.iter().map(|name| clipped(name)).collect::<Vec<_>>().join(", ");
    if more == 0 { text } else { format!("{text} and {more} more") }
}

/// A tensor to be written.
struct HeldParameter<'a> {
    stored: &'a StoredTensor,
    dtype: Dtype,
    shape: Vec<usize>,
}

impl<'a> HeldParameter<'a> {
    fn new(stored: &'a StoredTensor) -> Result<Self> {
        let dtype = match stored.kind() {
            tch::Kind::Float => Dtype::F32,
            tch::Kind::BFloat16 => Dtype::BF16,
            tch::Kind::Half => Dtype::F16,
            tch::Kind::Double => Dtype::F64,
            tch::Kind::Int64 => Dtype::I64,
            other => return Err(Error::new(Kind::Internal, format!("{} is held as {other:?}", stored.name))),
        };
        Ok(Self { stored, dtype, shape: stored.shape.iter().map(|&size| size as usize).collect() })
    }
}

impl View for HeldParameter<'_> {
    fn dtype(&self) -> Dtype {
        self.dtype
    }

    fn shape(&self) -> &[usize] {
        &self.shape
    }

    fn data(&self) -> Cow<'_, [u8]> {
        if let Some(bytes) = self.stored.bytes_in_place() {
            return Cow::Borrowed(bytes);
        }
        let tensor = self.stored.get().unwrap_or_default().contiguous().to_device(tch::Device::Cpu);
        let mut bytes = vec![0; self.data_len()];
        tensor.copy_data_u8(&mut bytes, tensor.numel());
        Cow::Owned(bytes)
    }

    fn data_len(&self) -> usize {
        self.stored.bytes() as usize
    }
}
