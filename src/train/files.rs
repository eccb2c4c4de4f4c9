//! Files of a training run that need tensors or belong to the model: optimiser state, tokenizer files, exports.

use std::collections::HashMap;
use std::path::Path;

use tch::Tensor;

use super::RunOptions;
use crate::config::Dtype;
use crate::error::{Error, Kind, Result};
use crate::model::Model;
use crate::script::Script;

/// Files beside the weights that make a directory a whole model.
const TEXT_FILES: [&str; 8] = [
    "tokenizer.json",
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
];

/// The run's name: as typed, as the recipe says, or the script's stem.
pub(super) fn run_name(options: &RunOptions, script: &Script) -> String {
    let stem =
        || options.script.file_stem().map_or_else(|| "run".to_owned(), |stem| stem.to_string_lossy().into_owned());
    match (&options.name, script.settings.name.as_str()) {
        (Some(name), _) => name.clone(),
        (None, "") => stem(),
        (None, name) => name.to_owned(),
    }
}

pub(super) fn read_tensors(path: &Path) -> Result<HashMap<String, Tensor>> {
    let tensors = Tensor::read_safetensors(path).map_err(|error| {
        Error::new(Kind::Store, format!("can't read the optimiser state: {error}"))
            .at_path(path)
            .hint("resume from an older checkpoint, or start again from this one's model with policy.model=")
    })?;
    Ok(tensors.into_iter().collect())
}

pub(super) fn write_tensors(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let named: Vec<(&str, &Tensor)> = tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
    Tensor::write_safetensors(&named, path)
        .map_err(|error| Error::new(Kind::Store, format!("can't write the optimiser state: {error}")).at_path(path))
}

/// Copies tokenizer, template and generation settings, so that a checkpoint is a whole model.
pub(super) fn copy_text_files(from: &Path, to: &Path) -> Result<()> {
    for name in TEXT_FILES {
        let source = from.join(name);
        if source.is_file() {
            let target = to.join(name);
            std::fs::copy(&source, &target).map_err(|error| Error::io(Kind::Store, "write", &target, &error))?;
        }
    }
    Ok(())
}

/// Writes a checkpoint's model, without optimiser and counters, to a directory of its own.
pub(super) fn export(checkpoint: &Path, out: &Path, dtype: Dtype) -> Result<()> {
    std::fs::create_dir_all(out).map_err(|error| Error::io(Kind::Store, "make the directory", out, &error))?;
    if dtype == Dtype::Auto {
        let failed = |path: &Path, error: &std::io::Error| Error::io(Kind::Store, "write", path, error);
        for entry in std::fs::read_dir(checkpoint).map_err(|error| failed(checkpoint, &error))? {
            let name = entry.map_err(|error| failed(checkpoint, &error))?.file_name();
            // One file of weights, or shards and their index; the optimiser's are named otherwise.
            if name == "config.json" || name.to_string_lossy().starts_with("model") {
                let target = out.join(&name);
                std::fs::copy(checkpoint.join(&name), &target).map_err(|error| failed(&target, &error))?;
            }
        }
    } else {
        let kind = if dtype == Dtype::Bf16 { tch::Kind::BFloat16 } else { tch::Kind::Float };
        Model::load(checkpoint, tch::Device::Cpu, kind)?.save(out)?;
    }
    copy_text_files(checkpoint, out)
}
