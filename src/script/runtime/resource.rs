//! Resources: data files that a script reads whole, such as a corpus to search. A file is read once
//! per process, when the script is loaded; all virtual machines share the rows and their indexes.
//!
//! Rows are kept as JSON text, which takes about as much memory as the file. A row is converted to
//! a Lua table on access.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::SystemTime;

use serde_json::{Value as Json, json};
use sha2::{Digest, Sha256};

use super::rank::{Bm25Weights, TextIndex};
use crate::config::{Columns, Compression, DataFormat};
use crate::data::{Dataset, check_place};
use crate::error::{Error, Kind, Result, readable};
use crate::json;

/// Default maximum size of a file in MiB.
pub(crate) const MOST: u64 = 256;

/// Arguments of `r1.resource`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct ResourceSpec {
    /// As written in the script; relative to its directory.
    pub(crate) path: PathBuf,
    pub(crate) format: Option<ResourceFormat>,
    pub(crate) columns: Columns,
    /// MiB.
    pub(crate) max_size: u64,
    pub(crate) keep: KeptParts,
}

/// The parts of a file that stay in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KeptParts {
    /// Its rows.
    Rows,
    /// Its bytes.
    Bytes,
    /// Nothing: a table of it is built (`tables`).
    Nothing,
}

impl ResourceSpec {
    /// A file in the format of its extension.
    pub(crate) fn new(path: impl Into<PathBuf>, max_size: u64, keep: KeptParts) -> Self {
        Self { path: path.into(), format: None, columns: Columns::new(), max_size, keep }
    }

    /// The full path of the file.
    pub(crate) fn path_in(&self, directory: &Path) -> PathBuf {
        if directory == Path::new(".") { self.path.clone() } else { directory.join(&self.path) }
    }
}

/// File format of a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ResourceFormat {
    Rows(DataFormat),
    /// One row `{ text = … }` for each line that is not blank.
    Text,
}

impl ResourceFormat {
    pub(crate) fn named(name: &str) -> Option<Self> {
        if name == "text" {
            return Some(Self::Text);
        }
        serde_json::from_value(name.into()).ok().map(Self::Rows)
    }

    /// The format of rows that are more than a text.
    pub(crate) fn of_rows(self) -> Option<DataFormat> {
        match self {
            Self::Rows(format) => Some(format),
            Self::Text => None,
        }
    }

    /// The format of a file extension; `.gz` or `.zst` may follow it.
    fn of(path: &Path) -> Option<Self> {
        let plain = if Compression::of(path).is_some() { path.file_stem().map(Path::new)? } else { path };
        let is_text = plain.extension().is_some_and(|end| ["txt", "text", "md"].iter().any(|ending| end == *ending));
        if is_text { Some(Self::Text) } else { DataFormat::of(path).map(Self::Rows) }
    }
}

pub(crate) const FORMATS: [&str; 7] = ["jsonl", "json", "csv", "tsv", "parquet", "arrow", "text"];

/// A file that was read.
#[derive(Debug)]
pub(crate) struct Resource {
    /// Path of the file.
    pub(crate) path: PathBuf,
    /// SHA-256 of the file, hex.
    pub(crate) sha256: String,
    pub(crate) bytes: u64,
    /// Each row as a JSON object.
    rows: Vec<Box<str>>,
    /// The file as it is, if its bytes are kept.
    pub(crate) content: Arc<[u8]>,
    /// Cached indexes, by column and weights.
    indexes: Mutex<TextIndexes>,
}

/// Indexes by column and weights.
type TextIndexes = BTreeMap<(String, [u64; 2]), Arc<TextIndex>>;

impl Resource {
    /// Reads the file of `spec`, or returns the cached one.
    ///
    /// # Errors
    /// [`Kind::Data`] for a file that is missing, too large, outside the readable directories, or
    /// malformed.
    pub(crate) fn open(spec: &ResourceSpec, directory: &Path) -> Result<Arc<Self>> {
        let path = spec.path_in(directory);
        // On another thread, since reading does not count as CPU time of the script.
        let share =
            |path: &Path| std::thread::scope(|scope| scope.spawn(|| Self::shared(spec, path, directory)).join());
        share(&path).unwrap_or_else(|_| Err(Error::new(Kind::Internal, "reading the resource stopped").at_path(&path)))
    }

    fn shared(spec: &ResourceSpec, path: &Path, directory: &Path) -> Result<Arc<Self>> {
        let failed = |error: std::io::Error| {
            let error = Error::io(Kind::Data, "read the resource", path, &error);
            if path.exists() { error } else { error.hint("paths of resources are relative to the script's directory") }
        };
        readable(path).map_err(failed)?;
        let real = path.canonicalize().map_err(failed)?;
        check_place(path, directory, |path| ResourceFormat::of(path).is_some())?;

        let seen = FileStamp::of(&real).map_err(failed)?;
        if seen.length >> 20 >= spec.max_size {
            let size = seen.length >> 20;
            let message = format!("the resource has {size} MiB and max_size is {} MiB", spec.max_size);
            return Err(Error::new(Kind::Data, message).at_path(path).hint(match spec.keep {
                KeptParts::Rows => "r1.resource { path = …, max_size = \"1GiB\" } reads more; the rows stay in memory",
                KeptParts::Bytes => "{ path = …, max_size = \"1GiB\" } reads more; the file stays in memory",
                KeptParts::Nothing => {
                    "{ path = …, max_size = \"1GiB\" } reads more; the table is kept in a temporary file"
                }
            }));
        }
        let key = ResourceKey { path: real, seen, format: spec.format, columns: spec.columns.clone(), keep: spec.keep };
        // The lock is held while the file is read, so that two threads do not read it twice.
        let mut cache = READ.lock().unwrap_or_else(PoisonError::into_inner);
        cache.retain(|(_, read)| read.strong_count() > 0);
        if let Some(read) = cache.iter().find(|(cached, _)| *cached == key).and_then(|(_, read)| read.upgrade()) {
            return Ok(read);
        }
        let read = Arc::new(Self::read(spec, path)?);
        if FileStamp::of(&key.path).map_err(failed)? != key.seen {
            return Err(Error::new(Kind::Data, "the resource was changed while it was read").at_path(path));
        }
        cache.push((key, Arc::downgrade(&read)));
        Ok(read)
    }

    fn read(spec: &ResourceSpec, path: &Path) -> Result<Self> {
        let failed = |error: std::io::Error| Error::io(Kind::Data, "read the resource", path, &error);
        if spec.keep == KeptParts::Nothing {
            let mut hash = Sha256::new();
            let bytes = fs::File::open(path).and_then(|mut file| std::io::copy(&mut file, &mut hash));
            let (bytes, sha256) = (bytes.map_err(failed)?, format!("{:x}", hash.finalize()));
            return Ok(Self { path: path.to_owned(), sha256, bytes, ..Self::empty() });
        }
        let bytes = fs::read(path).map_err(failed)?;
        let sha256 = format!("{:x}", Sha256::digest(&bytes));
        let size = bytes.len() as u64;
        if spec.keep == KeptParts::Bytes {
            return Ok(Self { path: path.to_owned(), sha256, bytes: size, content: bytes.into(), ..Self::empty() });
        }
        let rows = match spec.format.or_else(|| ResourceFormat::of(path)) {
            Some(ResourceFormat::Text) => {
                drop(bytes);
                lines(path)?
            }
            Some(ResourceFormat::Rows(DataFormat::Json)) if one_object(&bytes) => {
                vec![json::read(&bytes).unwrap_or_default().to_string().into_boxed_str()]
            }
            format => {
                drop(bytes);
                let format = format.and_then(ResourceFormat::of_rows);
                let data = Dataset::open(&[path.to_owned()], format, &spec.columns)?;
                (0..data.len()).map(|index| Ok(data.row(index)?.to_string().into_boxed_str())).collect::<Result<_>>()?
            }
        };
        Ok(Self { path: path.to_owned(), sha256, bytes: size, rows, ..Self::empty() })
    }

    fn empty() -> Self {
        let (path, sha256) = (PathBuf::new(), String::new());
        Self { path, sha256, bytes: 0, rows: Vec::new(), content: Arc::default(), indexes: Mutex::default() }
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// A row, counted from 0.
    pub(crate) fn row(&self, index: usize) -> Option<Json> {
        self.rows.get(index).map(|row| serde_json::from_str(row).unwrap_or_default())
    }

    /// The index of a column, cached.
    ///
    /// # Errors
    /// [`Kind::Script`] for a row whose column is not text.
    pub(crate) fn index(&self, column: &str, weights: Bm25Weights) -> Result<Arc<TextIndex>> {
        let key = (column.to_owned(), [weights.k1, weights.b].map(f64::to_bits));
        let mut indexes = self.indexes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = indexes.get(&key) {
            return Ok(Arc::clone(index));
        }
        // On another thread, as in `open`: building does not count as CPU time of the script.
        let build = || std::thread::scope(|scope| scope.spawn(|| self.build(column, weights)).join());
        let built = build().unwrap_or_else(|_| Err(Error::new(Kind::Internal, "building the index stopped")))?;
        let built = Arc::new(built);
        indexes.insert(key, Arc::clone(&built));
        Ok(built)
    }

    fn build(&self, column: &str, weights: Bm25Weights) -> Result<TextIndex> {
        let mut index = TextIndex::new(weights);
        for row_index in 0..self.rows.len() {
            let row = self.row(row_index).unwrap_or_default();
            match row.get(column) {
                Some(Json::String(text)) => index.add(text),
                Some(Json::Null) | None => {
                    let columns = row.as_object().into_iter().flat_map(|row| row.keys()).map(String::as_str);
                    let message = format!("row {} of {} has no column `{column}`", row_index + 1, self.path.display());
                    return Err(Error::new(Kind::Script, message).hint(crate::error::suggest(column, columns)));
                }
                Some(_) => {
                    let path = self.path.display();
                    let message = format!("row {} of {path}: the column `{column}` is not text", row_index + 1);
                    return Err(Error::new(Kind::Script, message));
                }
            }
        }
        index.finish();
        Ok(index)
    }
}

/// The resources that this process has read and still holds.
static READ: Mutex<Vec<(ResourceKey, Weak<Resource>)>> = Mutex::new(Vec::new());

#[derive(Debug, PartialEq, Eq)]
struct ResourceKey {
    path: PathBuf,
    seen: FileStamp,
    format: Option<ResourceFormat>,
    columns: Columns,
    keep: KeptParts,
}

/// File metadata that changes with the content: time, length or identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FileStamp {
    modified: Option<SystemTime>,
    length: u64,
    /// Device, inode and change time.
    identity: (u64, u64, i64, i64),
}

impl FileStamp {
    pub(crate) fn of(path: &Path) -> std::io::Result<Self> {
        use std::os::unix::fs::MetadataExt;
        let meta = fs::metadata(path)?;
        let identity = (meta.dev(), meta.ino(), meta.ctime(), meta.ctime_nsec());
        Ok(Self { modified: meta.modified().ok(), length: meta.len(), identity })
    }
}

/// Whether a file contains a single JSON object, not one per line.
fn one_object(bytes: &[u8]) -> bool {
    serde_json::from_slice::<Json>(bytes).is_ok_and(|json| json.is_object())
}

/// The lines of a text as rows, without blank ones.
fn lines(path: &Path) -> Result<Vec<Box<str>>> {
    let mut text = Vec::new();
    crate::data::open_text(path)?
        .read_to_end(&mut text)
        .map_err(|error| Error::io(Kind::Data, "read the resource", path, &error))?;
    let text = text.strip_prefix(b"\xEF\xBB\xBF").unwrap_or(&text);
    let text = crate::data::utf8(text, path, 1)?;
    let rows: Vec<Box<str>> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .map(|line| json!({ "text": line }).to_string().into_boxed_str())
        .collect();
    if rows.is_empty() {
        return Err(Error::new(Kind::Data, "the resource has no lines").at_path(path));
    }
    Ok(rows)
}
