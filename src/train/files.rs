//! Files of a training run that need tensors or belong to the model: optimiser state, tokenizer files, exports.

use std::collections::HashMap;
use std::path::Path;

use tch::Tensor;

use super::source::Fetching;
use super::{RunOptions, adapter};
use crate::config::{CheckpointSettings, DeviceChoice, Dtype, PolicySettings};
use crate::error::{Error, Kind, Result};
use crate::model::{LoraConfig, Model};
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

/// Writes a checkpoint's model or adapter, without optimiser and counters, to a directory of its own. `computed` is the type
/// the run computed in.
pub(super) fn export(
    checkpoint: &Path,
    out: &Path,
    settings: &CheckpointSettings,
    computed: tch::Kind,
    fetching: Fetching<'_>,
) -> Result<()> {
    let dtype = settings.export;
    let is_adapter = LoraConfig::load(checkpoint)?.is_some();
    std::fs::create_dir_all(out).map_err(|error| Error::io(Kind::Store, "make the directory", out, &error))?;
    if !settings.merge && (dtype == Dtype::Auto || is_adapter) {
        let failed = |path: &Path, error: &std::io::Error| Error::io(Kind::Store, "write", path, error);
        for entry in std::fs::read_dir(checkpoint).map_err(|error| failed(checkpoint, &error))? {
            let name = entry.map_err(|error| failed(checkpoint, &error))?.file_name();
            // One file of weights, or shards and their index; the optimiser's are named otherwise.
            if name == "config.json"
                || ["model", "adapter_"].iter().any(|start| name.to_string_lossy().starts_with(start))
            {
                let target = out.join(&name);
                std::fs::copy(checkpoint.join(&name), &target).map_err(|error| failed(&target, &error))?;
            }
        }
    } else {
        let dtype = match dtype {
            Dtype::Auto if computed == tch::Kind::BFloat16 => Dtype::Bf16,
            own => own,
        };
        let policy = PolicySettings { dtype, device: DeviceChoice::Cpu, ..PolicySettings::default() };
        let (mut model, _) = adapter::load_with(checkpoint, &policy, Model::load_base, fetching)?;
        if is_adapter {
            model.merge_adapter()?;
        }
        model.save(out)?;
    }
    copy_text_files(checkpoint, out)
}
