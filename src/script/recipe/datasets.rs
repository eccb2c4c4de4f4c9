//! The datasets of a recipe: found, downloaded, opened.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::load::{Script, directory};
use super::rows::Split;
use crate::config::{DataFormat, Source};
use crate::data::{Dataset, check_place};
use crate::error::{Error, Kind, Result};
use crate::hub::{DataFiles, Hub, ModelId, Watch};
use crate::store::FileVersion;

impl Script {
    /// Downloads the recipe's datasets from the Hub and reports progress to `watch`. Otherwise they
    /// are downloaded without progress reports when their first row is read.
    ///
    /// # Errors
    /// [`Kind::Data`], with the reason; [`Kind::Interrupted`].
    pub fn fetch_data(&self, watch: &Watch<'_>) -> Result<()> {
        let mut of_hub = self.all_parts().filter(|(_, part)| matches!(part.source, Source::Hub(_)));
        of_hub.try_for_each(|(split, part)| self.opened(split, part.name, part.source, watch).map(drop))
    }

    /// The datasets of both splits.
    fn all_parts(&self) -> impl Iterator<Item = (Split, NamedDataset<'_>)> {
        [Split::Train, Split::Eval]
            .into_iter()
            .flat_map(|split| self.parts(split).into_iter().map(move |part| (split, part)))
    }

    /// The datasets on the Hub: `train`, `eval` or `train.NAME`, with the name on the Hub.
    pub fn hub_names(&self) -> Vec<(String, String)> {
        let named = |(split, part): (Split, NamedDataset<'_>)| match part.source {
            Source::Hub(data) => Some((key(split, part.name), data.hf.clone())),
            _ => None,
        };
        self.all_parts().filter_map(named).collect()
    }

    /// The first file of each dataset on the Hub, by the names of [`hub_names`](Self::hub_names).
    ///
    /// # Errors
    /// [`Kind::Data`] if one cannot be opened.
    pub fn hub_files(&self) -> Result<BTreeMap<String, PathBuf>> {
        let mut files = BTreeMap::new();
        for (split, part) in self.all_parts().filter(|(_, part)| matches!(part.source, Source::Hub(_))) {
            let path = self.dataset(split, &part)?.and_then(Dataset::first_file);
            files.extend(path.map(|path| (key(split, part.name), path.to_owned())));
        }
        Ok(files)
    }

    /// Sets the commits of datasets on the Hub, by the names of [`hub_names`](Self::hub_names). The
    /// datasets must not be open yet.
    pub fn pin_data(&mut self, commits: BTreeMap<String, String>) {
        self.pins = commits;
    }

    /// The datasets of a split, in the order of their rows.
    pub(crate) fn parts(&self, split: Split) -> Vec<NamedDataset<'_>> {
        match self.source_of(split) {
            None => Vec::new(),
            Some(Source::Mixed(parts)) => parts
                .iter()
                .map(|(name, part)| NamedDataset {
                    name,
                    env: part.env.as_deref(),
                    weight: part.weight,
                    source: &part.source,
                })
                .collect(),
            Some(source) => vec![NamedDataset { name: "", env: None, weight: None, source }],
        }
    }

    /// The files of datasets named by the recipe or the command line, without files of the Hub.
    ///
    /// # Errors
    /// [`Kind::Data`] if one cannot be opened.
    pub fn data_files(&self) -> Result<Vec<FileVersion>> {
        let mut files: Vec<FileVersion> = Vec::new();
        for (split, part) in self.all_parts().filter(|(_, part)| matches!(part.source, Source::File(_))) {
            for path in self.dataset(split, &part)?.into_iter().flat_map(Dataset::paths) {
                let bytes = std::fs::metadata(path).map_or(0, |meta| meta.len());
                if !files.iter().any(|listed| listed.path == path) {
                    files.push(FileVersion { path: path.to_owned(), bytes, sha256: None });
                }
            }
        }
        Ok(files)
    }

    /// What is left out of the rows of its datasets, in words: columns of bytes.
    pub fn left_out_of_rows(&self) -> Vec<String> {
        let mut notes = Vec::new();
        for (split, part) in self.all_parts() {
            // A dataset that can't be opened is an error elsewhere.
            let note = self.dataset(split, &part).ok().flatten().and_then(Dataset::left_out);
            notes.extend(note.filter(|note| !notes.contains(note)));
        }
        notes
    }

    /// Whether a file is neither below the script's directory nor below the current one.
    pub fn is_far(&self, path: &Path) -> bool {
        let Ok(real) = path.canonicalize() else { return false };
        let near = [directory(&self.path), PathBuf::from(".")];
        !near.iter().any(|near| near.canonicalize().is_ok_and(|near| real.starts_with(near)))
    }

    /// The dataset of files, opened on first use.
    pub(crate) fn dataset(&self, split: Split, part: &NamedDataset<'_>) -> Result<Option<&Dataset>> {
        self.opened(split, part.name, part.source, &Watch { event: &|_| (), stop: &crate::hub::is_stopped })
    }

    fn opened(&self, split: Split, name: &str, source: &Source, watch: &Watch<'_>) -> Result<Option<&Dataset>> {
        if !matches!(source, Source::File(_) | Source::Hub(_)) {
            return Ok(None);
        }
        let Some(opened) = self.datasets[split as usize].get(name) else { return Ok(None) };
        let open = || self.open_data(split, name, source, watch);
        opened.get_or_init(open).as_ref().map(Some).map_err(Clone::clone)
    }

    fn open_data(&self, split: Split, name: &str, source: &Source, watch: &Watch<'_>) -> Result<Dataset> {
        let at = format!("data.{}", key(split, name));
        let opened = match source {
            Source::Hub(data) => {
                let splits: &[&str] = match split {
                    _ if !data.split.is_empty() => &[&data.split],
                    Split::Train => &["train"],
                    Split::Eval => &["validation", "test"],
                };
                let wanted = DataFiles { splits, subset: &data.subset, file: &data.file };
                let fetched = ModelId::dataset(&data.hf).and_then(|id| {
                    let id = match self.pins.get(&key(split, name)) {
                        Some(commit) => id.at(commit),
                        None => id,
                    };
                    Hub::from_env()?.fetch_data(&id, &wanted, watch)
                });
                fetched.and_then(|paths| Dataset::open(&paths, None, &data.columns))
            }
            Source::File(file) => {
                let paths_or_error = crate::data::find(file.path.all(), &directory(&self.path), file.format);
                let is_typed = self.typed(&format!("{at}.path")).is_some();
                let allowed = |paths: Vec<PathBuf>| {
                    let base = directory(&self.path);
                    let named = |path: &Path| is_typed || DataFormat::of(path).is_some();
                    paths.iter().try_for_each(|path| check_place(path, &base, named)).map(|()| paths)
                };
                paths_or_error.and_then(allowed).and_then(|paths| Dataset::open(&paths, file.format, &file.columns))
            }
            Source::Generated(_) | Source::Rows(_) | Source::Mixed(_) => {
                Err(Error::new(Kind::Data, "this split has no files"))
            }
        };
        opened.map_err(|error| {
            let names = match self.typed(&format!("{at}.path")) {
                Some(_) => format!("{at} of the command line names it"),
                None => format!("{at} of {} names it", self.path.display()),
            };
            let hint = error.hint.as_ref().map_or_else(|| names.clone(), |hint| format!("{hint}; {names}"));
            error.hint(hint)
        })
    }

    pub(crate) fn source_of(&self, split: Split) -> Option<&Source> {
        match split {
            Split::Train => self.settings.data.train.as_ref(),
            Split::Eval => self.settings.data.eval.as_ref(),
        }
    }
}

/// `train`, or `train.NAME` for one of several datasets.
fn key(split: Split, name: &str) -> String {
    if name.is_empty() { split.name().to_owned() } else { format!("{}.{name}", split.name()) }
}

/// A dataset of a split.
#[derive(Clone, Copy)]
pub(crate) struct NamedDataset<'a> {
    /// Empty for a single dataset.
    pub(crate) name: &'a str,
    /// The environment of rows that name none.
    pub(crate) env: Option<&'a str>,
    pub(crate) weight: Option<f64>,
    pub(crate) source: &'a Source,
}
