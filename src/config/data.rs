//! Settings of datasets.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// Where tasks come from.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct DataSettings {
    pub train: Option<Source>,
    pub eval: Option<Source>,
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
}

#[derive(Deserialize)]
#[serde(untagged)]
enum SourceForm {
    Path(PathBuf),
    File(DataFile),
    Hub(HubData),
    Generated(GeneratedForm),
    Rows(Vec<serde_json::Value>),
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
            SourceForm::Path(path) => Self::File(DataFile { path, ..DataFile::default() }),
            SourceForm::File(file) => Self::File(file),
            SourceForm::Hub(data) => Self::Hub(data),
            SourceForm::Generated(GeneratedForm { count, seed }) => Self::Generated { count, seed },
            SourceForm::Rows(rows) => Self::Rows(rows),
        }
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DataFile {
    pub path: PathBuf,
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
pub type Columns = std::collections::BTreeMap<String, String>;

/// How a file holds its rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum DataFormat {
    Jsonl,
    Json,
    Csv,
    Tsv,
    Parquet,
}

impl DataFormat {
    /// What a file's name says.
    pub fn of(path: &std::path::Path) -> Option<Self> {
        Some(match path.extension()?.to_str()?.to_ascii_lowercase().as_str() {
            "jsonl" | "ndjson" => Self::Jsonl,
            "json" => Self::Json,
            "csv" => Self::Csv,
            "tsv" => Self::Tsv,
            "parquet" => Self::Parquet,
            _ => return None,
        })
    }
}
