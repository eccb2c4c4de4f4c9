//! Settings of datasets.

use std::collections::BTreeMap;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where tasks come from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSettings {
    pub train: Option<Source>,
    pub eval: Option<Source>,
    /// Longest first prompt of a task, tokens; 0: whatever leaves room for a reply in the context.
    pub max_prompt_tokens: usize,
    /// What happens to rows whose first prompt is longer.
    pub overlong_prompts: OverlongPrompts,
    /// Rows of each dataset that are looked at before step 1, from its first; 0: all. The others are read beside the
    /// training, and their prompts are not measured.
    pub check_rows: u64,
}

impl Default for DataSettings {
    fn default() -> Self {
        let overlong_prompts = OverlongPrompts::default();
        Self { train: None, eval: None, max_prompt_tokens: 0, overlong_prompts, check_rows: 20_000 }
    }
}

impl DataSettings {
    /// Of so many rows of a dataset, those that are looked at before a run starts.
    pub fn checked(&self, rows: u64) -> u64 {
        match (self.overlong_prompts, self.check_rows) {
            // Whoever asks for all rows to be measured waits for it.
            (OverlongPrompts::Filter | OverlongPrompts::Error, _) | (_, 0) => rows,
            (OverlongPrompts::Auto | OverlongPrompts::Keep, most) => rows.min(most),
        }
    }
}

/// What happens to rows whose first prompt is too long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OverlongPrompts {
    /// As `filter` for rows of files and of the recipe; rows that a function makes are not looked at.
    #[default]
    Auto,
    /// They are left out before the run starts, and counted.
    Filter,
    /// The run does not start.
    Error,
    /// They stay in; nothing is looked at.
    Keep,
}

/// A dataset. A plain string is the path of a file.
///
/// `columns` renames: what the script calls a column -> what the file calls it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(from = "SourceForm", untagged)]
pub enum Source {
    /// A file of rows.
    File(DataFile),
    /// Files of a dataset of the Hugging Face hub.
    Hub(HubData),
    /// Rows made by a Lua function of the recipe: `row(index)` with `math.random` seeded from (seed, index).
    Generated { count: u64, seed: u64 },
    /// Rows that stand in the recipe.
    Rows(Vec<serde_json::Value>),
    /// Several datasets by name, mixed.
    Mixed(BTreeMap<String, Part>),
}

/// A dataset among others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "serde_json::Value", into = "serde_json::Value")]
pub struct Part {
    /// Share of the tasks that are drawn from it, relative to the others. Without any weights each has as many as it has
    /// rows; with some, the others have 1.
    pub weight: Option<f64>,
    /// The environment of rows that name none.
    pub env: Option<String>,
    pub source: Source,
}

impl TryFrom<serde_json::Value> for Part {
    type Error = serde_json::Error;

    fn try_from(mut json: serde_json::Value) -> Result<Self, Self::Error> {
        let mut take = |name: &str| json.as_object_mut().and_then(|fields| fields.remove(name)).unwrap_or_default();
        let (weight, env) = (serde_json::from_value(take("weight"))?, serde_json::from_value(take("env"))?);
        let rows = take("rows");
        let source = serde_json::from_value(if rows.is_null() { json } else { rows })?;
        Ok(Self { weight, env, source })
    }
}

impl From<Part> for serde_json::Value {
    fn from(part: Part) -> Self {
        let mut json = serde_json::to_value(&part.source).unwrap_or_default();
        if json.is_array() {
            json = serde_json::json!({ "rows": json });
        }
        if let Some(weight) = part.weight {
            json["weight"] = weight.into();
        }
        if let Some(env) = part.env {
            json["env"] = env.into();
        }
        json
    }
}

impl Source {
    /// Its datasets by name; the name of one that stands alone is empty.
    pub fn parts(&self) -> Vec<(&str, &Self)> {
        match self {
            Self::Mixed(parts) => parts.iter().map(|(name, part)| (name.as_str(), &part.source)).collect(),
            alone => vec![("", alone)],
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SourceForm {
    Path(PathBuf),
    Paths(Vec<PathBuf>),
    File(DataFile),
    Hub(HubData),
    Generated(GeneratedForm),
    Rows(Vec<serde_json::Value>),
    Mixed(BTreeMap<String, Part>),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct GeneratedForm {
    count: u64,
    #[serde(default)]
    seed: u64,
}

impl From<SourceForm> for Source {
    fn from(form: SourceForm) -> Self {
        match form {
            SourceForm::Path(path) => Self::File(DataFile { path: path.into(), ..DataFile::default() }),
            SourceForm::Paths(paths) => Self::File(DataFile { path: Paths::Several(paths), ..DataFile::default() }),
            SourceForm::File(file) => Self::File(file),
            SourceForm::Hub(data) => Self::Hub(data),
            SourceForm::Generated(GeneratedForm { count, seed }) => Self::Generated { count, seed },
            SourceForm::Rows(rows) => Self::Rows(rows),
            SourceForm::Mixed(parts) => Self::Mixed(parts),
        }
    }
}

/// Files of rows: one, several, a folder, or a pattern in which `*` stands for anything within a name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Paths {
    #[default]
    None,
    One(PathBuf),
    Several(Vec<PathBuf>),
}

impl Paths {
    pub fn all(&self) -> &[PathBuf] {
        match self {
            Self::None => &[],
            Self::One(path) => std::slice::from_ref(path),
            Self::Several(paths) => paths,
        }
    }
}

impl<P: Into<PathBuf>> From<P> for Paths {
    fn from(path: P) -> Self {
        Self::One(path.into())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFile {
    pub path: Paths,
    /// What the file is where its name does not say it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<DataFormat>,
    #[serde(default)]
    pub columns: Columns,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HubData {
    /// `ORG/NAME[@REVISION]`
    pub hf: String,
    /// `train`, `test` …; the split of the recipe if empty.
    #[serde(default)]
    pub split: String,
    /// A configuration of the dataset: a folder of it.
    #[serde(default)]
    pub subset: String,
    /// A file of the repository instead of a split; `*` stands for anything.
    #[serde(default)]
    pub file: String,
    #[serde(default)]
    pub columns: Columns,
}

/// What the script calls a column -> what the file calls it.
pub type Columns = BTreeMap<String, String>;

/// How a file holds its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataFormat {
    Jsonl,
    Json,
    Csv,
    Tsv,
    Parquet,
    /// Arrow's IPC format, as a file or a stream: what `datasets` writes with `save_to_disk`.
    Arrow,
}

impl DataFormat {
    /// What a file's name says, behind which `.gz` or `.zst` may stand.
    pub fn of(path: &std::path::Path) -> Option<Self> {
        let path = if Compression::of(path).is_some() { path.file_stem()?.as_ref() } else { path };
        Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" => Self::Jsonl,
            "json" => Self::Json,
            "csv" => Self::Csv,
            "tsv" => Self::Tsv,
            "parquet" => Self::Parquet,
            "arrow" => Self::Arrow,
            _ => return None,
        })
    }
}

/// How a file is compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    Gzip,
    Zstd,
}

impl Compression {
    /// What a file's name says.
    pub fn of(path: &std::path::Path) -> Option<Self> {
        match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "gz" => Some(Self::Gzip),
            "zst" => Some(Self::Zstd),
            _ => None,
        }
    }
}
