//! Tensors of the state of training in a checkpoint.

use std::collections::HashMap;
use std::path::Path;

use tch::Tensor;

use crate::error::{Error, Kind, Result};

/// The state of an optimiser in `folder`: the tensors of the file `NAME.safetensors`, or of the
/// files of all processes that have written a part of it.
pub(crate) fn read_optimizer(folder: &Path, name: &str) -> Result<HashMap<String, Tensor>> {
    let whole = folder.join(format!("{name}.safetensors"));
    let entries = std::fs::read_dir(folder).ok().filter(|_| !whole.is_file()).into_iter().flatten().flatten();
    let first = format!("{name}-00001-of-");
    let count = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix(&first)?.strip_suffix(".safetensors")?.parse::<usize>().ok()
    });
    let Some(count) = count.max() else { return read_tensors(&whole) };
    let mut all = HashMap::new();
    for number in 1..=count {
        all.extend(read_tensors(&folder.join(format!("{name}-{number:05}-of-{count:05}.safetensors")))?);
    }
    Ok(all)
}

/// The tensors of a file, by name.
pub(crate) fn read_tensors(path: &Path) -> Result<HashMap<String, Tensor>> {
    let tensors = Tensor::read_safetensors(path).map_err(|error| {
        Error::new(Kind::Store, format!("can't read the optimiser state: {error}"))
            .at_path(path)
            .hint("resume from an older checkpoint, or start again from this one's model with policy.model=")
    })?;
    Ok(tensors.into_iter().collect())
}
