//! `manifest.json` of an index directory: format version, options, counts, and the checksum of
//! every file of every part.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value as Json;
use sha2::{Digest, Sha256};

use super::analyzer::Analyzer;
use super::bm25::Bm25;
use super::vectors::{EncoderOptions, HnswOptions, VectorType};
use r1_base::error::{Error, Kind, Result, readable};

/// The format that this version writes and reads.
pub(super) const FORMAT: u32 = 1;
pub(super) const FILE: &str = "manifest.json";

/// Contents of an index directory.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Manifest {
    /// Version of the layout of the directory.
    pub format: u32,
    /// Version of r1 that wrote it.
    pub r1: String,
    /// The origin of the passages: names, sizes and checksums of the corpus files.
    pub corpus: Json,
    pub counts: BuildCounts,
    pub parts: IndexParts,
    /// SHA-256 of the other fields, in hex; empty in indexes of older versions.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub sha256: String,
}

/// Counts of a build.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildCounts {
    /// Rows of the corpus, and passages in the index.
    pub rows: u64,
    pub passages: u64,
    /// Rows that were left out: without title and text, and with the id of another one.
    pub empty: u64,
    pub duplicates: u64,
    /// Passages with NUL characters, which are kept.
    pub with_nul: u64,
}

/// The parts of an index. Each is complete, or absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IndexParts {
    /// The files with the passages.
    pub documents: Vec<FileEntry>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sparse: Option<SparsePart>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dense: Option<DensePart>,
}

/// The inverted index.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SparsePart {
    pub analyzer: Analyzer,
    pub bm25: Bm25,
    /// The number of terms in titles and texts, and in titles alone.
    pub terms: u64,
    pub title_terms: u64,
    pub files: Vec<FileEntry>,
}

/// The vectors of the passages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DensePart {
    pub vectors: VectorType,
    /// Dimension of a vector.
    pub dimension: usize,
    /// The directory of the encoder at the time of the build.
    pub encoder: PathBuf,
    /// SHA-256 of the encoder's configuration, weights and tokenizer, in hex.
    pub encoder_sha256: String,
    pub options: EncoderOptions,
    /// `None`: an index without a graph over the vectors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hnsw: Option<HnswOptions>,
    pub files: Vec<FileEntry>,
}

/// A file of a part, by its path relative to the index.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileEntry {
    pub path: String,
    pub bytes: u64,
    /// Hex.
    pub sha256: String,
}

impl Manifest {
    /// Reads the manifest of an index and checks that its files are there, with their sizes.
    ///
    /// # Errors
    /// [`Kind::Data`] for a directory that is missing, not an index, of another format, or whose
    /// files are missing or cut.
    pub fn read(directory: &Path) -> Result<Self> {
        let path = directory.join(FILE);
        let read = readable(&path).and_then(|()| std::fs::read(&path));
        let text = read.map_err(|error| unreadable(directory, &path, &error))?;
        let damaged = |why: String| {
            Error::new(Kind::Data, format!("the index's manifest can't be read: {why}"))
                .at_path(&path)
                .hint("build the index again with `r1 index build`")
        };
        let json: Json = serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
        match json.get("format").and_then(Json::as_u64) {
            Some(format) if format == u64::from(FORMAT) => {}
            Some(format) => {
                let why = format!("the index has format {format}; this version of r1 reads format {FORMAT}");
                return Err(Error::new(Kind::Data, why).at_path(&path).hint("build it again with this version of r1"));
            }
            None => return Err(damaged("it has no `format`".to_owned())),
        }
        let manifest: Self = serde_json::from_value(json).map_err(|error| damaged(error.to_string()))?;
        manifest.parts.files().try_for_each(|file| file.check_size(directory))?;
        if !manifest.sha256.is_empty() && manifest.sha256 != manifest.checksum()? {
            return Err(damaged("its checksum is another one: a field was changed".to_owned()));
        }
        Ok(manifest)
    }

    /// The checksum of all fields but itself.
    fn checksum(&self) -> Result<String> {
        let plain = Self { sha256: String::new(), ..self.clone() };
        let text = serde_json::to_string(&plain)
            .map_err(|error| Error::new(Kind::Internal, format!("the manifest can't be written: {error}")))?;
        Ok(format!("{:x}", Sha256::digest(text)))
    }

    /// Writes the manifest; an index without one is incomplete.
    pub(super) fn write(&mut self, directory: &Path) -> Result<()> {
        let path = directory.join(FILE);
        self.sha256 = self.checksum()?;
        let mut text = serde_json::to_string_pretty(self)
            .map_err(|error| Error::new(Kind::Internal, format!("the manifest can't be written: {error}")))?;
        text.push('\n');
        let written = std::fs::write(&path, text).and_then(|()| File::open(&path)?.sync_all());
        written.map_err(|error| Error::io(Kind::Store, "write", &path, &error))
    }

    /// Bytes of all files.
    pub fn bytes(&self) -> u64 {
        self.parts.files().map(|file| file.bytes).sum()
    }
}

/// Bytes of all files of an index, and the SHA-256 of its manifest, which has the checksums of all
/// files: the identity of the index.
///
/// # Errors
/// As [`Manifest::read`].
pub fn identity(directory: &Path) -> Result<(u64, String)> {
    let bytes = Manifest::read(directory)?.bytes();
    Ok((bytes, FileEntry::of(directory, FILE)?.sha256))
}

/// The directory in which an index is built.
pub(super) fn part_of(out: &Path) -> PathBuf {
    out.with_added_extension("part")
}

/// The error of a missing manifest.
fn unreadable(directory: &Path, path: &Path, error: &std::io::Error) -> Error {
    if error.kind() != std::io::ErrorKind::NotFound {
        return Error::io(Kind::Data, "read the index", path, error);
    }
    let part = part_of(directory);
    if part.is_dir() {
        return Error::new(Kind::Data, "the index is not complete: its build was interrupted")
            .at_path(&part)
            .hint("run the same `r1 index build` again to resume it");
    }
    let why = if directory.is_dir() { "the directory is not a search index" } else { "there is no such index" };
    Error::new(Kind::Data, why).at_path(directory).hint("`r1 index build CORPUS --out DIR` makes one")
}

impl IndexParts {
    pub fn files(&self) -> impl Iterator<Item = &FileEntry> {
        let sparse = self.sparse.iter().flat_map(|part| &part.files);
        self.documents.iter().chain(sparse).chain(self.dense.iter().flat_map(|part| &part.files))
    }
}

impl FileEntry {
    /// The entry of an existing file.
    pub(super) fn of(directory: &Path, path: &str) -> Result<Self> {
        let full = directory.join(path);
        let failed = |error: std::io::Error| Error::io(Kind::Store, "read back", &full, &error);
        let (bytes, sha256) = digest(&full).map_err(failed)?;
        Ok(Self { path: path.to_owned(), bytes, sha256 })
    }

    /// The full path. A manifest may come from another source, so its paths must be inside the
    /// index.
    fn within(&self, directory: &Path) -> Result<PathBuf> {
        let path = Path::new(&self.path);
        if self.path.is_empty() || !path.components().all(|part| matches!(part, Component::Normal(_))) {
            let why = format!("the index's manifest names the file {:?}, which is not inside the index", self.path);
            return Err(Error::new(Kind::Data, why).at_path(directory));
        }
        Ok(directory.join(path))
    }

    fn check_size(&self, directory: &Path) -> Result<()> {
        let path = self.within(directory)?;
        let hint = "copy the index again, or build it again with `r1 index build`";
        match std::fs::metadata(&path) {
            Ok(metadata) if metadata.len() == self.bytes => Ok(()),
            Ok(metadata) => {
                let why = format!("a file of the index has {} bytes instead of {}", metadata.len(), self.bytes);
                Err(Error::new(Kind::Data, why).at_path(path).hint(hint))
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(Error::new(Kind::Data, "a file of the index is missing").at_path(path).hint(hint))
            }
            Err(error) => Err(Error::io(Kind::Data, "read the index", path, &error)),
        }
    }
}

/// Compares every file with its checksum. `progress` is called with the bytes read; it returns
/// false to stop. Returns the files that differ, by their path relative to the index.
///
/// # Errors
/// As [`Manifest::read`]; [`Kind::Interrupted`] if `progress` stopped it.
pub fn verify(directory: &Path, mut progress: impl FnMut(u64) -> bool) -> Result<BTreeMap<String, String>> {
    let manifest = Manifest::read(directory)?;
    let mut wrong = BTreeMap::new();
    for file in manifest.parts.files() {
        let path = file.within(directory)?;
        let failed = |error: std::io::Error| Error::io(Kind::Data, "read the index", &path, &error);
        match digest_with(&path, &mut progress).map_err(failed)? {
            None => return Err(Error::new(Kind::Interrupted, "the index was not verified: interrupted")),
            Some((_, sha256)) if sha256 == file.sha256 => {}
            Some((_, sha256)) => {
                wrong.insert(file.path.clone(), sha256);
            }
        }
    }
    Ok(wrong)
}

/// Size and SHA-256 of a file.
fn digest(path: &Path) -> std::io::Result<(u64, String)> {
    Ok(digest_with(path, &mut |_| true)?.unwrap_or_default())
}

fn digest_with(path: &Path, progress: &mut dyn FnMut(u64) -> bool) -> std::io::Result<Option<(u64, String)>> {
    let mut file = File::open(path)?;
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let read = file.read(&mut buffer)?;
        if read == 0 {
            return Ok(Some((bytes, format!("{:x}", hash.finalize()))));
        }
        hash.update(&buffer[..read]);
        bytes += read as u64;
        if !progress(read as u64) {
            return Ok(None);
        }
    }
}
