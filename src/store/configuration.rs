//! `config.json` of a run: the current configuration, and earlier ones.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::files::{self, failed};
use crate::error::{Error, Kind, Result};

/// The configuration of a run from one of its steps on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// Completed training steps when it took effect: 0 at the start of a run, the step of the
    /// checkpoint after a resume, the last completed step after a reload of the script.
    #[serde(default)]
    pub from_step: u64,
    /// Version of r1.
    pub r1: String,
    #[serde(default)]
    pub libtorch: String,
    /// Name of the processor.
    #[serde(default)]
    pub cpu: String,
    /// Instruction set of the CPU kernels, on which the last bits of f32 depend.
    #[serde(default)]
    pub kernels: String,
    pub script: ScriptVersion,
    /// `key=value` overrides of this run's command lines; the last one per key.
    #[serde(default)]
    pub overrides: Vec<String>,
    /// Seed of every random stream; constant within a run.
    pub seed: u64,
    /// Name of the algorithm: one of [`algorithm_names`](crate::config::algorithm_names), or `sft`.
    #[serde(default)]
    pub algorithm: String,
    /// Maximum length of prompt plus response, tokens; 0 without rollouts.
    #[serde(default)]
    pub max_context: usize,
    /// Origins of the model and the datasets.
    #[serde(default)]
    pub origins: Origins,
    /// Settings in effect, including defaults; `trainer.algorithm` is [`Configuration::algorithm`].
    pub settings: Value,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptVersion {
    /// Path of the script.
    pub path: PathBuf,
    /// Absolute path of its directory; empty in the first versions of r1.
    #[serde(default, skip_serializing_if = "is_empty")]
    pub directory: PathBuf,
    /// SHA-256 of the script, its modules and its resources, as recorded in every trajectory.
    pub hash: String,
    /// Resources that the script read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<FileVersion>,
    /// Search indexes that it names, with the checksum of the manifest.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub indexes: Vec<FileVersion>,
}

impl ScriptVersion {
    /// Path by which the script's directory is found from the current directory: as given, or
    /// absolute if that is another one.
    pub(super) fn located(&self) -> PathBuf {
        let parent = |path: &Path| match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent.canonicalize().ok(),
            _ => Path::new(".").canonicalize().ok(),
        };
        let moved = self.directory.is_dir() && parent(&self.path) != self.directory.canonicalize().ok();
        match self.path.file_name() {
            Some(name) if moved => self.directory.join(name),
            _ => self.path.clone(),
        }
    }
}

fn is_empty(path: &Path) -> bool {
    path.as_os_str().is_empty()
}

/// Version of a data file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    pub path: PathBuf,
    pub bytes: u64,
    /// Hexadecimal; of resources and indexes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Origins of the model and the datasets of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origins {
    /// The initial model, which is also the reference policy. `None` if the run initialised a new
    /// model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Origin>,
    /// Training dataset from the Hugging Face Hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<Origin>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<Origin>,
    /// Files of other datasets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileVersion>,
    /// The run from whose checkpoint this one began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fork: Option<ForkOrigin>,
    /// Hub datasets of mixtures, by `train.NAME` and `eval.NAME`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, Origin>,
}

impl Origins {
    /// The Hub dataset of `train`, `eval`, `train.NAME` or `eval.NAME`.
    pub fn dataset(&self, key: &str) -> Option<&Origin> {
        match key {
            "train" => self.train.as_ref(),
            "eval" => self.eval.as_ref(),
            key => self.parts.get(key),
        }
    }
}

/// A resolved model or dataset.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// Name in the settings.
    pub name: String,
    /// Local directory.
    pub path: PathBuf,
    /// Type of a model's weights in its files: `f32`, `bf16` or `f16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Commit, for models and datasets from the Hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// The origin of a fork: a checkpoint of another run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForkOrigin {
    /// Absolute path of that run.
    pub run: PathBuf,
    /// Step of the checkpoint; the fork's first step is the next one.
    pub step: u64,
}

/// The file `config.json` of a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ConfigFile {
    #[serde(flatten)]
    pub(super) current: Configuration,
    /// Earlier configurations, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) history: Vec<Configuration>,
}

impl ConfigFile {
    /// Reads the run's `config.json`; `None` before it is written.
    ///
    /// # Errors
    /// [`Kind::Store`] for a file that can't be read or does not belong to a run.
    pub(super) fn read(run: &Path) -> Result<Option<Self>> {
        let path = run.join("config.json");
        let bytes = match files::read_bytes(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed("read the file", &path, &e)),
        };
        let value: Value = files::parse_json(&path, &bytes)?;
        if is_of_model(&value) {
            return Err(Error::new(Kind::Store, "not a run directory: its config.json names no script")
                .at_path(run)
                .hint("name a directory that `r1 run` or `r1 sft` made, such as runs/NAME"));
        }
        serde_json::from_value(value).map(Some).map_err(|e| files::damaged(&path, &e))
    }

    /// As [`read`](Self::read); `None` also for the `config.json` of a model.
    pub(super) fn read_of_run(folder: &Path) -> Result<Option<Self>> {
        let Ok(bytes) = files::read_bytes(&folder.join("config.json")) else { return Ok(None) };
        let is_run = serde_json::from_slice(&bytes)
            .map_or_else(|_| folder.join("recipe.lua").is_file(), |value| !is_of_model(&value));
        if is_run { Self::read(folder) } else { Ok(None) }
    }

    /// Sets the configuration in effect and moves the previous one to the history. Nothing is
    /// written if only the step differs.
    pub(super) fn update(run: &Path, now: Configuration) -> Result<()> {
        let mut history = Vec::new();
        if let Some(old) = Self::read(run)? {
            if old.current == (Configuration { from_step: old.current.from_step, ..now.clone() }) {
                return Ok(());
            }
            history = old.history;
            history.push(old.current);
        }
        files::write_json(&run.join("config.json"), "the settings", &Self { current: now, history })
    }

    /// The configurations, oldest first.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &Configuration> {
        self.history.iter().chain(std::iter::once(&self.current))
    }
}

/// A model directory also has a config.json, without a script.
fn is_of_model(value: &Value) -> bool {
    !value["script"].is_object()
}
