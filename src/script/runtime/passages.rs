//! Indexes of passages of scripts, opened on first use, once per process, and kept while a handle
//! exists; and the cross-encoders that re-rank their hits.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Kind, Result};
use crate::search::{Index, SearchModels};
use crate::store::FileVersion;

/// Directories of files made by the system.
const OF_THE_SYSTEM: [&str; 3] = ["/proc", "/sys", "/dev"];

/// An index by its directory. A replay never opens it.
#[derive(Clone, Debug)]
pub(crate) struct Passages {
    /// As written in the script.
    pub(crate) name: String,
    path: PathBuf,
    models: &'static dyn SearchModels,
    open: Arc<Mutex<Option<Arc<Index>>>>,
}

impl Passages {
    /// The index `name`, relative to `directory`.
    pub(crate) fn new(name: String, directory: &Path, models: &'static dyn SearchModels) -> Self {
        let path = if directory == Path::new(".") { PathBuf::from(&name) } else { directory.join(&name) };
        Self { name, path, models, open: Arc::default() }
    }

    /// The open index.
    ///
    /// # Errors
    /// [`Kind::Data`] for a directory that is not a complete index. Only directories with the
    /// manifest of an index are read, so that no declaration is needed, as for datasets.
    pub(crate) fn open(&self) -> Result<Arc<Index>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(index) = &*open {
            return Ok(Arc::clone(index));
        }
        let real = self.path.canonicalize().unwrap_or_else(|_| self.path.clone());
        if let Some(system) =
            OF_THE_SYSTEM.iter().find(|folder| real.starts_with(folder) && !real.starts_with("/dev/shm"))
        {
            return Err(Error::new(Kind::Data, format!("an index can't be read from {system}")).at_path(&self.path));
        }
        let index = Index::shared(&self.path, self.models)?;
        *open = Some(Arc::clone(&index));
        Ok(index)
    }
}

/// What a script names at its top for its searches; a run opens it before its first trajectory.
#[derive(Clone, Debug)]
pub(crate) enum SearchPart {
    Index(Passages),
    /// The directory of a cross-encoder.
    Reranker(PathBuf),
}

impl SearchPart {
    /// Its version: the SHA-256 of an index's manifest, or of a model's files. `None` if it is
    /// missing.
    pub(crate) fn version(&self, models: &dyn SearchModels) -> Option<FileVersion> {
        let (path, (bytes, sha256)) = match self {
            Self::Index(Passages { path, .. }) => (path, crate::search::identity(path).ok()?),
            Self::Reranker(path) => (path, (bytes_of(path), models.identity(path).ok()?)),
        };
        Some(FileVersion { path: path.clone(), bytes, sha256: Some(sha256) })
    }

    /// Opens an index. A re-ranking model is loaded by its tool.
    ///
    /// # Errors
    /// As [`Passages::open`].
    pub(crate) fn prepare(&self) -> Result<()> {
        match self {
            Self::Index(passages) => passages.open().map(drop),
            Self::Reranker(_) => Ok(()),
        }
    }
}

/// Bytes of the files in a directory.
fn bytes_of(directory: &Path) -> u64 {
    let files = std::fs::read_dir(directory).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).filter(std::fs::Metadata::is_file).map(|meta| meta.len()).sum()
}
