//! Files of a training run that need tensors or belong to the model: optimiser state, tokenizer
//! files, exports.

use std::collections::BTreeMap;
use std::path::Path;

use crate::config::{CheckpointSettings, DeviceChoice, Dtype, PolicySettings};
use crate::error::{Error, Kind, Result};
use crate::hub::Fetching;
use crate::load::adapter;
use crate::model::{LoraConfig, Model, UnwrittenFile};
use crate::script::Script;
use crate::store::Origin;
use crate::text::{CHATML_TEMPLATE, Renderer, named_templates};
use crate::train::options::RunOptions;

/// Files that a model directory has in addition to the weights.
const MODEL_FILES: [&str; 12] = [
    TOKENIZER,
    "tokenizer_config.json",
    "generation_config.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "added_tokens.json",
    "tokenizer.model",
    "vocab.json",
    "merges.txt",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
];
const TOKENIZER: &str = "tokenizer.json";

/// The files of a model other than its weights (tokenizer, chat template, generation settings),
/// with the bytes that they had when the model was opened. They are kept in memory because their
/// directory may be removed before a checkpoint is written: a resumed run removes the checkpoint it
/// started from as soon as `checkpoint.keep` newer ones exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ModelFiles(BTreeMap<String, Vec<u8>>);

impl ModelFiles {
    /// Reads the files in `dir`.
    ///
    /// # Errors
    /// `Kind::Model` with the path of a file that can't be read, or if there is no
    /// `tokenizer.json`.
    pub(crate) fn read(dir: &Path) -> Result<Self> {
        let mut files = BTreeMap::new();
        for name in MODEL_FILES.into_iter().map(str::to_owned).chain(named_templates(dir)?) {
            let path = dir.join(&name);
            match std::fs::read(&path) {
                Ok(bytes) => drop(files.insert(name, bytes)),
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
                Err(error) => return Err(Error::io(Kind::Model, "read the model's file", &path, &error)),
            }
        }
        if files.contains_key(TOKENIZER) {
            return Ok(Self(files));
        }
        Err(Error::new(Kind::Model, format!("there is no {TOKENIZER}"))
            .at_path(dir)
            .hint("copy it from the model that this one was trained from"))
    }

    /// Adds the chat template of the run if the model has none.
    pub(crate) fn with_template_of(mut self, renderer: &Renderer) -> Self {
        if renderer.template().is_default() {
            self.0.insert("chat_template.jinja".to_owned(), CHATML_TEMPLATE.as_bytes().to_vec());
        }
        self
    }

    /// The files before they are written.
    pub(crate) fn unwritten(&self) -> impl Iterator<Item = UnwrittenFile> {
        self.0.iter().map(|(name, bytes)| UnwrittenFile::bytes(name, bytes.clone()))
    }

    /// Writes the files into `dir`, which exists.
    ///
    /// # Errors
    /// `Kind::Store` with the path.
    pub(crate) fn write(&self, dir: &Path) -> Result<()> {
        self.unwritten().try_for_each(|file| file.write(dir))
    }
}

/// The name of the run: from the command line, the recipe, or the file name of the script.
pub(crate) fn run_name(options: &RunOptions, script: &Script) -> String {
    let stem =
        || options.script.file_stem().map_or_else(|| "run".to_owned(), |stem| stem.to_string_lossy().into_owned());
    match (&options.name, script.settings.name.as_str()) {
        (Some(name), _) => name.clone(),
        (None, "") => stem(),
        (None, name) => name.to_owned(),
    }
}

/// Writes a checkpoint's model or adapter, without optimiser and counters, to another directory.
/// `computed` is the compute type of the run, `origin` its initial model.
pub(crate) fn export(
    checkpoint: &Path,
    out: &Path,
    settings: &CheckpointSettings,
    computed: tch::Kind,
    origin: Option<&Origin>,
    fetching: Fetching<'_>,
) -> Result<()> {
    // Files that the checkpoint already has are not changed.
    let dtype = match (settings.export, origin.and_then(|origin| origin.dtype.as_deref())) {
        (Dtype::Auto, Some("bf16")) if computed != tch::Kind::BFloat16 => Dtype::Bf16,
        (Dtype::Auto, Some("f32")) if computed != tch::Kind::Float => Dtype::F32,
        (files, _) => files,
    };
    let is_adapter = LoraConfig::load(checkpoint)?.is_some();
    std::fs::create_dir_all(out).map_err(|error| Error::io(Kind::Store, "make the directory", out, &error))?;
    if !settings.merge && (dtype == Dtype::Auto || is_adapter) {
        let failed = |path: &Path, error: &std::io::Error| Error::io(Kind::Store, "write", path, error);
        for entry in std::fs::read_dir(checkpoint).map_err(|error| failed(checkpoint, &error))? {
            let name = entry.map_err(|error| failed(checkpoint, &error))?.file_name();
            // One file of weights, or shards and their index.
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
            files => files,
        };
        let policy = PolicySettings { dtype, device: DeviceChoice::Cpu, ..PolicySettings::default() };
        let (mut model, _) = adapter::load_with(checkpoint, &policy, Model::load_base, fetching)?;
        if is_adapter {
            model.merge_adapter()?;
        }
        model.save(out)?;
    }
    ModelFiles::read(checkpoint)?.write(out)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A checkpoint is a whole model: transformers reads named templates from their folder.
    #[test]
    fn checkpoints_keep_the_chat_templates_with_names() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let template = "additional_chat_templates/tool_use.jinja";
        std::fs::create_dir(from.path().join("additional_chat_templates")).unwrap();
        for name in [TOKENIZER, template] {
            std::fs::write(from.path().join(name), name).unwrap();
        }
        ModelFiles::read(from.path()).unwrap().write(to.path()).unwrap();
        assert_eq!(std::fs::read_to_string(to.path().join(template)).unwrap(), template);
    }
}
