//! Published datasets that `r1 data get` downloads: catalog.json is the only list of their names,
//! sources, revisions, licences and columns.
//!
//! A revision is a commit where a published one is known; otherwise it is a branch, and the commit
//! is recorded at the download (`dataset.json`). Licences are those that the publishers state.

use std::path::Path;
use std::sync::LazyLock;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Kind, Result, suggest};

/// A published dataset, serialised for `r1 data list`.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Published {
    pub(crate) name: &'static str,
    /// Other names for it.
    #[serde(default)]
    pub(crate) aliases: Vec<&'static str>,
    /// One line for `r1 data list`.
    pub(crate) about: &'static str,
    /// Its repository on the Hugging Face Hub.
    pub(crate) hub: &'static str,
    /// A commit, a branch, or another reference of the Hub.
    #[serde(default = "main")]
    pub(crate) revision: &'static str,
    /// The folder of the files, or empty.
    #[serde(default, skip_serializing)]
    pub(crate) subset: &'static str,
    pub(crate) splits: Vec<SplitFiles>,
    #[serde(default = "not_stated")]
    pub(crate) licence: &'static str,
    /// The publication or the page of the data.
    pub(crate) source: &'static str,
    /// verl's `data_source`, which selects the scoring function there.
    #[serde(skip_serializing)]
    pub(crate) data_source: &'static str,
    /// verl's `ability`.
    #[serde(default = "math", skip_serializing)]
    pub(crate) ability: &'static str,
    /// The columns of the rows that are written.
    #[serde(default = "problem_and_answer")]
    pub(crate) columns: &'static str,
    /// The source repeats rows, which are written once.
    #[serde(default, skip_serializing)]
    pub(crate) repeated: bool,
    /// How its columns are converted; without one the rows are written as published.
    #[serde(default, skip_serializing)]
    pub(crate) mapping: &'static str,
}

fn main() -> &'static str {
    "main"
}

fn not_stated() -> &'static str {
    "not stated"
}

fn math() -> &'static str {
    "math"
}

fn problem_and_answer() -> &'static str {
    "problem, answer"
}

/// A split of a published dataset.
#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SplitFiles {
    /// The name of the file that is written.
    pub(crate) name: &'static str,
    /// The split on the Hub.
    #[serde(default, skip_serializing)]
    pub(crate) split: &'static str,
    /// File names instead, or empty; `*` matches any text.
    #[serde(default, skip_serializing)]
    pub(crate) file: &'static str,
    /// Number of rows that are published, for `r1 data list`; 0: not stated.
    pub(crate) rows: u64,
}

/// All of them, by name. A test reads the file, so that it can't fail here.
pub(crate) static CATALOG: LazyLock<Vec<Published>> =
    LazyLock::new(|| serde_json::from_str(include_str!("catalog.json")).unwrap_or_default());

impl Published {
    fn is_called(&self, name: &str) -> bool {
        let plain = |name: &str| name.to_ascii_lowercase().replace('_', "-");
        plain(self.name) == plain(name) || self.aliases.iter().any(|alias| plain(alias) == plain(name))
    }
}

/// The dataset with a name or an alias, in any case.
///
/// # Errors
/// [`Kind::Usage`] for an unknown name, with the nearest ones.
pub(crate) fn published(name: &str) -> Result<&'static Published> {
    CATALOG.iter().find(|dataset| dataset.is_called(name)).ok_or_else(|| {
        let names = CATALOG.iter().flat_map(|dataset| dataset.aliases.iter().copied().chain([dataset.name]));
        let near = crate::error::nearest(name, names.clone());
        // Without a near one the list has the names alone.
        let hint = if near.is_empty() {
            suggest(name, CATALOG.iter().map(|dataset| dataset.name))
        } else {
            suggest(name, names)
        };
        Error::new(Kind::Usage, format!("there is no dataset `{name}`"))
            .hint(format!("{hint}; r1 data list shows all; another dataset of the Hub is data.train.hf=ORG/NAME"))
    })
}

/// How to get the missing file of a published dataset: for a path with its name in a folder or in
/// the file.
pub(crate) fn hint_for(missing: &Path) -> Option<String> {
    let stem = |part: &std::ffi::OsStr| Some(part.to_str()?.split('.').next()?.to_owned());
    let parts: Vec<String> = missing.iter().filter_map(stem).collect();
    let (dataset, folder) = parts.iter().enumerate().rev().find_map(|(index, part)| {
        let dataset = CATALOG.iter().find(|dataset| dataset.is_called(part))?;
        // The last part is the file.
        let folder = (index + 1 < parts.len()).then(|| missing.iter().take(index + 1).collect::<std::path::PathBuf>());
        Some((dataset, folder))
    })?;
    let name = dataset.name;
    let split = dataset.splits.first().map_or("train", |split| split.name);
    Some(match folder {
        Some(folder) if folder != Path::new("data").join(name) => {
            format!("r1 data get {name} --out {} downloads it", folder.display())
        }
        Some(_) => format!("r1 data get {name} downloads it"),
        None => format!("r1 data get {name} downloads it to data/{name}/{split}.jsonl"),
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::hub::ModelId;

    #[test]
    fn catalog_is_sorted_and_complete() {
        assert_eq!(CATALOG.len(), 14);
        assert!(CATALOG.is_sorted_by(|a, b| a.name < b.name));
        let mut names: Vec<&str> =
            CATALOG.iter().flat_map(|entry| entry.aliases.iter().copied().chain([entry.name])).collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
        for dataset in &*CATALOG {
            ModelId::dataset(&format!("{}@{}", dataset.hub, dataset.revision)).unwrap();
            assert!(!dataset.splits.is_empty() && !dataset.about.is_empty() && !dataset.source.is_empty());
            assert!(!dataset.data_source.is_empty() && !dataset.licence.is_empty());
        }
    }

    #[test]
    fn datasets_have_aliases_and_unknown_names_the_nearest() {
        assert_eq!(published("MATH").unwrap().name, "math-500");
        assert_eq!(published("2wiki").unwrap().name, "2wikimultihopqa");
        assert_eq!(published("dapo_math_17k").unwrap().name, "dapo-math-17k");
        let hint = |name: &str| published(name).unwrap_err().hint.unwrap();
        assert!(hint("gsm8").starts_with("did you mean `gsm8k`?"), "{}", hint("gsm8"));
        assert!(hint("zzz").starts_with("known: `2wikimultihopqa`, `aime24`"), "{}", hint("zzz"));
    }

    #[test]
    fn missing_files_name_the_command_that_fetches_them() {
        let hint = |path: &str| hint_for(Path::new(path));
        assert_eq!(hint("data/gsm8k/train.jsonl").unwrap(), "r1 data get gsm8k downloads it");
        assert_eq!(
            hint("../sets/hotpotqa/train.jsonl").unwrap(),
            "r1 data get hotpotqa --out ../sets/hotpotqa downloads it"
        );
        assert_eq!(hint("aime24.jsonl").unwrap(), "r1 data get aime24 downloads it to data/aime24/test.jsonl");
        assert_eq!(hint("data/mine/train.jsonl"), None);
    }
}
