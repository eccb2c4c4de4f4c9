//! Indexes of passages of scripts: opened on first use, once per process, and kept while a handle
//! exists.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::{Error, Kind, Result};
use crate::search::Index;
use crate::store::FileVersion;

/// Directories of files made by the system.
const OF_THE_SYSTEM: [&str; 3] = ["/proc", "/sys", "/dev"];

/// An index by its directory. A replay never opens it.
#[derive(Clone, Debug)]
pub(crate) struct Passages {
    /// As written in the script.
    pub(crate) name: String,
    path: PathBuf,
    open: Arc<Mutex<Option<Arc<Index>>>>,
}

impl Passages {
    /// The index `name`, relative to `directory`.
    pub(crate) fn new(name: String, directory: &Path) -> Self {
        let path = if directory == Path::new(".") { PathBuf::from(&name) } else { directory.join(&name) };
        Self { name, path, open: Arc::default() }
    }

    /// The version of the index; `None` if there is none.
    pub(crate) fn version(&self) -> Option<FileVersion> {
        let (bytes, sha256) = crate::search::identity(&self.path).ok()?;
        Some(FileVersion { path: self.path.clone(), bytes, sha256: Some(sha256) })
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
        let index = Index::shared(&self.path)?;
        *open = Some(Arc::clone(&index));
        Ok(index)
    }
}
