//! `config.json` of a run: the current configuration, and earlier ones.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::files::{self, failed};
use crate::error::{Error, Kind, Result};

/// What a run ran with from one of its steps on.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// Training steps that were done when it came into effect: 0 at the start of a run, the step of the checkpoint when it
    /// was resumed, the last step done when a changed script was reloaded.
    #[serde(default)]
    pub from_step: u64,
    /// Version of r1.
    pub r1: String,
    #[serde(default)]
    pub libtorch: String,
    pub script: ScriptVersion,
    /// `key=value` of the command lines of this run so far; a later one for the same key has replaced an earlier one.
    #[serde(default)]
    pub overrides: Vec<String>,
    /// Root of every random stream. It never changes within a run.
    pub seed: u64,
    /// Name of the algorithm: one of [`ALGORITHMS`](crate::config::ALGORITHMS), or `sft`.
    #[serde(default)]
    pub algorithm: String,
    /// Longest prompt plus reply, tokens; 0 where nothing is rolled out.
    #[serde(default)]
    pub max_context: usize,
    /// Where the model, the training data and the evaluation data came from.
    #[serde(default)]
    pub origins: Origins,
    /// The settings in effect, defaults included; `trainer.algorithm` is [`Configuration::algorithm`].
    pub settings: Value,
}

/// A version of the script.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ScriptVersion {
    /// Where it was read.
    pub path: PathBuf,
    /// SHA-256 of the script, the modules it required and the resources it read, as every trajectory records it.
    pub hash: String,
    /// The resources it read.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub resources: Vec<FileVersion>,
}

/// A file of data as it was when it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileVersion {
    pub path: PathBuf,
    pub bytes: u64,
    /// Hex; of resources, which are read whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
}

/// Where what a run used came from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origins {
    /// What the policy started from, which is also the reference policy. None where the run made a new model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Origin>,
    /// Datasets of the Hugging Face hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub train: Option<Origin>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub eval: Option<Origin>,
    /// The files of the other datasets.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub files: Vec<FileVersion>,
    /// Datasets of the hub among several of a split, by `train.NAME` and `eval.NAME`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parts: BTreeMap<String, Origin>,
}

impl Origins {
    /// The dataset of the hub that was read as `train`, `eval`, `train.NAME` or `eval.NAME`.
    pub fn dataset(&self, key: &str) -> Option<&Origin> {
        match key {
            "train" => self.train.as_ref(),
            "eval" => self.eval.as_ref(),
            key => self.parts.get(key),
        }
    }
}

/// A model or dataset, found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    /// As the settings name it.
    pub name: String,
    /// The directory it was read from.
    pub path: PathBuf,
    /// Of a model: the type of its weights in the files, `f32`, `bf16` or `f16`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<String>,
    /// Of what the Hugging Face hub has: the commit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
}

/// The file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct ConfigFile {
    #[serde(flatten)]
    pub(super) current: Configuration,
    /// Earlier configurations, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) history: Vec<Configuration>,
}

impl ConfigFile {
    /// What the run's `config.json` says; `None` before it is written.
    ///
    /// # Errors
    /// [`Kind::Store`] for a file that can't be read, or that is not one of a run.
    pub(super) fn read(run: &Path) -> Result<Option<Self>> {
        let path = run.join("config.json");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(failed("read the file", &path, &e)),
        };
        let damaged = |e: serde_json::Error| Error::new(Kind::Store, format!("damaged file: {e}")).at_path(&path);
        let value: Value = serde_json::from_slice(&bytes).map_err(damaged)?;
        // A model directory has a config.json as well, without a script.
        if !value["script"].is_object() {
            return Err(Error::new(Kind::Store, "not a run directory: its config.json names no script")
                .at_path(run)
                .hint("name a directory that `r1 run` or `r1 sft` made, such as runs/NAME"));
        }
        serde_json::from_value(value).map(Some).map_err(damaged)
    }

    /// Makes `now` the configuration in effect and keeps the one before in the history. Nothing is written if nothing but
    /// the step differs.
    pub(super) fn update(run: &Path, now: Configuration) -> Result<()> {
        let mut history = Vec::new();
        if let Some(old) = Self::read(run)? {
            if old.current == (Configuration { from_step: old.current.from_step, ..now.clone() }) {
                return Ok(());
            }
            history = old.history;
            history.push(old.current);
        }
        let text = serde_json::to_string_pretty(&Self { current: now, history })
            .map_err(|e| Error::new(Kind::Internal, format!("can't write the settings as JSON: {e}")))?;
        files::write_bytes(&run.join("config.json"), format!("{text}\n").as_bytes())
    }

    /// The configurations, oldest first.
    pub(super) fn all(&self) -> impl DoubleEndedIterator<Item = &Configuration> {
        self.history.iter().chain(std::iter::once(&self.current))
    }
}
