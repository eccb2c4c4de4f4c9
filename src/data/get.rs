//! Downloads a published dataset, converts its columns, and writes a file for each split, with a
//! record of where the rows are from (`dataset.json`).

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::catalog::{Published, SplitFiles};
use super::mapping::convert;
use super::rows::Dataset;
use super::write::write_rows;
use crate::error::{Error, Kind, Result, suggest};
use crate::hub::{DataFiles, Hub, ModelId, Watch, commit_of};
use crate::store::write_atomic;

/// The name of the record beside the files.
const RECORD: &str = "dataset.json";
/// Rows between two checks for Ctrl-C.
const LOOK_EVERY: u64 = 256;

/// What to download.
pub(crate) struct GetOptions<'a> {
    pub(crate) dataset: &'a Published,
    /// A revision instead of the catalogue's.
    pub(crate) revision: Option<&'a str>,
    /// The splits; all if empty.
    pub(crate) splits: &'a [String],
    /// The folder of the files.
    pub(crate) out: &'a Path,
    /// The extension of the files: `jsonl` or `parquet`.
    pub(crate) extension: &'a str,
}

/// The record of a downloaded dataset.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct Fetched {
    pub(crate) name: String,
    /// Its repository on the Hub.
    pub(crate) hub: String,
    /// The commit of the rows.
    pub(crate) commit: String,
    pub(crate) licence: String,
    pub(crate) source: String,
    /// verl's `data_source` and `ability` of the rows.
    pub(crate) data_source: String,
    pub(crate) ability: String,
    pub(crate) splits: BTreeMap<String, FetchedSplit>,
}

/// A split that has been written.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub(crate) struct FetchedSplit {
    /// The file, relative to the record.
    pub(crate) file: String,
    pub(crate) rows: u64,
    pub(crate) bytes: u64,
    /// Rows that the source repeats, which are left out.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub(crate) repeated: u64,
    /// It was there already, at this commit.
    #[serde(skip)]
    pub(crate) kept: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref)] // The signature that serde needs.
fn is_zero(count: &u64) -> bool {
    *count == 0
}

impl Fetched {
    /// The record of a folder; `None` without a readable one.
    pub(crate) fn read(folder: &Path) -> Option<Self> {
        serde_json::from_slice(&std::fs::read(folder.join(RECORD)).ok()?).ok()
    }
}

/// Downloads the splits that the folder lacks. `progress` receives the number of converted rows and
/// of all rows of a split; it begins with 0 for every pass over a split.
///
/// # Errors
/// [`Kind::Usage`] for an unknown split; errors of [`Hub::fetch_data`] and of [`write_rows`].
pub(crate) fn get(
    hub: &Hub,
    options: &GetOptions<'_>,
    watch: &Watch<'_>,
    progress: &dyn Fn(u64, u64),
) -> Result<Fetched> {
    let GetOptions { dataset, out, .. } = options;
    let wanted = splits(dataset, options.splits)?;
    let before = Fetched::read(out).filter(|record| record.hub == dataset.hub);
    let revision = revision(options, before.as_ref());
    let id = ModelId::dataset(&format!("{}@{revision}", dataset.hub))?;
    let mut record = Fetched {
        name: dataset.name.to_owned(),
        hub: dataset.hub.to_owned(),
        commit: revision.clone(),
        licence: dataset.licence.to_owned(),
        source: dataset.source.to_owned(),
        data_source: dataset.data_source.to_owned(),
        ability: dataset.ability.to_owned(),
        splits: BTreeMap::new(),
    };
    let old = before.as_ref().filter(|old| old.commit == revision);
    // Splits of the same commit that are not fetched now stay in the record.
    record.splits.extend(old.map(|old| old.splits.clone()).unwrap_or_default());
    let mut shown = record.clone();
    shown.splits.clear();
    for split in wanted {
        let file = format!("{}.{}", split.name, options.extension);
        let path = out.join(&file);
        let earlier = record.splits.get(split.name).filter(|fetched_split| fetched_split.file == file);
        let is_there =
            |fetched_split: &&FetchedSplit| path.metadata().is_ok_and(|meta| meta.len() == fetched_split.bytes);
        let fetched_split = if let Some(fetched_split) = earlier.filter(is_there) {
            FetchedSplit { kept: true, ..fetched_split.clone() }
        } else {
            let (fetched_split, commit) = write(hub, &id, dataset, split, &path, watch, progress)?;
            if record.commit != commit {
                // A branch has been resolved; files of another commit are not of this record.
                record.commit.clone_from(&commit);
                shown.commit = commit;
                let same = before.as_ref().filter(|old| old.commit == record.commit);
                record.splits.extend(same.map(|old| old.splits.clone()).unwrap_or_default());
            }
            FetchedSplit { file, ..fetched_split }
        };
        record.splits.insert(split.name.to_owned(), fetched_split.clone());
        shown.splits.insert(split.name.to_owned(), fetched_split);
        save(&record, &out.join(RECORD))?;
    }
    Ok(shown)
}

/// The given revision, the catalogue's commit, the commit of an earlier download, or the
/// catalogue's branch.
fn revision(options: &GetOptions<'_>, before: Option<&Fetched>) -> String {
    let published = options.dataset.revision;
    let is_commit = published.len() == 40 && published.bytes().all(|byte| byte.is_ascii_hexdigit());
    let earlier = before.filter(|_| !is_commit).map(|record| record.commit.as_str());
    options.revision.or(earlier).unwrap_or(published).to_owned()
}

fn splits<'a>(dataset: &'a Published, names: &[String]) -> Result<Vec<&'a SplitFiles>> {
    if names.is_empty() {
        return Ok(dataset.splits.iter().collect());
    }
    let find = |name: &String| {
        dataset.splits.iter().find(|split| split.name == name).ok_or_else(|| {
            Error::new(Kind::Usage, format!("{} has no split `{name}`", dataset.name))
                .at("--split")
                .hint(suggest(name, dataset.splits.iter().map(|split| split.name)))
        })
    };
    names.iter().map(find).collect()
}

/// Downloads a split and writes its rows. Returns also the commit.
fn write(
    hub: &Hub,
    id: &ModelId,
    dataset: &Published,
    split: &SplitFiles,
    path: &Path,
    watch: &Watch<'_>,
    progress: &dyn Fn(u64, u64),
) -> Result<(FetchedSplit, String)> {
    let wanted = DataFiles { splits: &[split.split], subset: dataset.subset, file: split.file };
    let paths: Vec<PathBuf> = hub.fetch_data(id, &wanted, watch)?;
    let commit = paths.first().and_then(|path| commit_of(path)).unwrap_or_else(|| id.revision.clone());
    let data = Dataset::open(&paths, None, &BTreeMap::new())?;
    let row = |index: u64| {
        if index.is_multiple_of(LOOK_EVERY) {
            if (watch.stop)() {
                return Err(Error::new(Kind::Interrupted, "stopped while writing the rows")
                    .hint("the downloaded files are kept; the same command continues"));
            }
            progress(index, data.len());
        }
        let published = data.raw_row(index)?;
        convert(dataset.mapping, &published).map_err(|error| {
            error.at(data.place(index)).hint("the columns of this revision are not those that r1 converts")
        })
    };
    let mut kept: Vec<u64> = Vec::new();
    if dataset.repeated {
        let mut seen = HashSet::new();
        for index in 0..data.len() {
            let hash: [u8; 32] = Sha256::digest(serde_json::Value::Object(row(index)?).to_string()).into();
            if seen.insert(hash) {
                kept.push(index);
            }
        }
    } else {
        kept.extend(0..data.len());
    }
    write_rows(path, kept.len() as u64, &|position| row(kept[position as usize]))?;
    let bytes = path.metadata().map_err(|error| Error::io(Kind::Store, "read the file", path, &error))?.len();
    let (rows, repeated) = (kept.len() as u64, data.len() - kept.len() as u64);
    Ok((FetchedSplit { file: String::new(), rows, bytes, repeated, kept: false }, commit))
}

fn save(record: &Fetched, path: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(record)
        .map_err(|error| Error::new(Kind::Internal, format!("can't write the record as JSON: {error}")))?;
    write_atomic(path, |file| {
        file.write_all(format!("{text}\n").as_bytes())
            .map_err(|error| Error::io(Kind::Store, "write the record", path, &error))
    })
}
