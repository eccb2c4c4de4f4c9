//! The cache on disk, in the layout of Python's `huggingface_hub`, so that both share it:
//!
//! ```text
//! models--ORG--NAME/blobs/ETAG                  contents of a file, by checksum
//! models--ORG--NAME/refs/REVISION               commit of a branch or tag
//! models--ORG--NAME/snapshots/COMMIT/FILE       links to blobs
//! .locks/models--ORG--NAME/ETAG.lock            held while a blob is fetched
//! datasets--ORG--NAME/…                         the same for a dataset
//! ```

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use hf_hub::{Cache, Repo};

use super::id::{ModelId, is_commit, is_path};
use super::{DataFiles, DownloadEvent, Watch, data, files};
use crate::error::{Error, Kind, Result};
use crate::net;

/// The folder of one repository in the cache.
#[derive(Clone, Debug)]
pub(super) struct Folder {
    root: PathBuf,
    repo: Repo,
}

impl Folder {
    pub(super) fn new(root: &Path, id: &ModelId) -> Self {
        Self { root: root.to_owned(), repo: id.repo() }
    }

    fn path(&self) -> PathBuf {
        self.root.join(self.repo.folder_name())
    }

    pub(super) fn snapshot(&self, commit: &str) -> PathBuf {
        Cache::new(self.root.clone()).repo(self.repo.clone()).pointer_path(commit)
    }

    pub(super) fn blob(&self, etag: &str) -> PathBuf {
        self.path().join("blobs").join(etag)
    }

    /// The file of a partial download.
    pub(super) fn part(&self, etag: &str) -> PathBuf {
        self.path().join("blobs").join(format!("{etag}.incomplete"))
    }

    /// Creates the folders of a snapshot.
    pub(super) fn prepare(&self, commit: &str) -> Result<()> {
        for folder in [self.path().join("blobs"), self.snapshot(commit)] {
            fs::create_dir_all(&folder).map_err(|error| failed("make the folder", &folder, &error))?;
        }
        // Excludes it from backups (bford.info/cachedir).
        let tag = self.root.join("CACHEDIR.TAG");
        if !tag.exists() {
            let text = "Signature: 8a477f597d28d172789f06886806bc55\n# Models fetched from the Hugging Face hub\n";
            fs::write(&tag, text).map_err(|error| failed("write", &tag, &error))?;
        }
        Ok(())
    }

    /// The commit of a revision when it was last resolved.
    pub(super) fn commit_of(&self, revision: &str) -> Option<String> {
        if is_commit(revision) {
            return Some(revision.to_owned());
        }
        let path = self.path().join("refs").join(revision);
        fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|commit| is_commit(commit))
    }

    /// Stores the commit of a revision. Nothing is stored if the revision is a commit.
    pub(super) fn note_commit(&self, revision: &str, commit: &str) -> Result<()> {
        if revision == commit || self.commit_of(revision).as_deref() == Some(commit) {
            return Ok(());
        }
        let path = self.path().join("refs").join(revision);
        let failed = |error: &io::Error| failed("write", &path, error);
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(|error| failed(&error))?;
        let part = tempfile::Builder::new().prefix(".ref").tempfile_in(folder).map_err(|error| failed(&error))?;
        fs::write(part.path(), commit).map_err(|error| failed(&error))?;
        part.persist(&path).map(drop).map_err(|error| failed(&error.error))
    }

    /// Links a file of a commit to its blob. The link is relative, so that the cache can be moved.
    pub(super) fn link(&self, commit: &str, file: &str, etag: &str) -> Result<()> {
        let path = self.snapshot(commit).join(file);
        let up = "../".repeat(2 + file.matches('/').count());
        let target = format!("{up}blobs/{etag}");
        if fs::read_link(&path).is_ok_and(|link| link == Path::new(&target)) {
            return Ok(());
        }
        let folder = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(folder).map_err(|error| failed("make the folder", folder, &error))?;
        let part = folder.join(format!(".{}.{etag}", std::process::id()));
        let made = std::os::unix::fs::symlink(&target, &part).or_else(|error| match error.kind() {
            // Some file systems have no links: copy instead.
            io::ErrorKind::PermissionDenied | io::ErrorKind::Unsupported => fs::copy(self.blob(etag), &part).map(drop),
            io::ErrorKind::AlreadyExists => Ok(()),
            _ => Err(error),
        });
        made.and_then(|()| fs::rename(&part, &path)).map_err(|error| failed("link", &path, &error))
    }

    /// Waits until no other process downloads this blob. The returned file holds the lock; `None`
    /// on a file system without locks.
    pub(super) fn lock(&self, etag: &str, watch: &Watch<'_>) -> Result<Option<File>> {
        let path = self.root.join(".locks").join(self.repo.folder_name()).join(format!("{etag}.lock"));
        let failed = |error: &io::Error| failed("lock", &path, error);
        fs::create_dir_all(path.parent().unwrap_or(&self.root)).map_err(|error| failed(&error))?;
        let file = File::options().create(true).append(true).open(&path).map_err(|error| failed(&error))?;
        let mut reported = false;
        loop {
            match file.try_lock() {
                Ok(()) => return Ok(Some(file)),
                Err(TryLockError::Error(error)) if error.kind() == io::ErrorKind::Unsupported => return Ok(None),
                Err(TryLockError::Error(error)) => return Err(failed(&error)),
                Err(TryLockError::WouldBlock) => {}
            }
            if !reported {
                (watch.event)(DownloadEvent::Note("another process is fetching the same file; waiting for it"));
                reported = true;
            }
            if net::pause(Duration::from_millis(100), watch.stop).is_err() {
                return Err(super::stopped());
            }
        }
    }

    /// The newest snapshot of a revision, if it has all files that a model needs.
    pub(super) fn complete(&self, revision: &str) -> Option<PathBuf> {
        let dir = self.snapshot(&self.commit_of(revision)?);
        let names: Vec<String> = fs::read_dir(&dir)
            .ok()?
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| is_path(name) && dir.join(name).is_file())
            .collect();
        let plan = files::plan(&names).ok()?;
        let shards = match &plan.index {
            Some(index) => files::shards(&fs::read(dir.join(index)).ok()?, &names).ok()?,
            None => plan.weights,
        };
        let has = |name: &str| names.iter().any(|present| present == name);
        let whole = shards.iter().all(|shard| has(shard)) && (has("tokenizer.json") || !has("config.json"));
        whole.then_some(dir)
    }

    /// The newest snapshot of a revision, and the paths of its files.
    fn files(&self, revision: &str) -> Option<(PathBuf, Vec<String>)> {
        let dir = self.snapshot(&self.commit_of(revision)?);
        let mut names = Vec::new();
        walk(&dir, "", &mut names);
        Some((dir, names))
    }

    /// A GGUF file in the newest snapshot of a revision.
    pub(super) fn gguf(&self, revision: &str, wanted: &str) -> Option<PathBuf> {
        let (dir, names) = self.files(revision)?;
        files::gguf(&names, wanted).ok().map(|name| dir.join(name))
    }

    /// The newest snapshot of a revision, if it has a tokenizer.
    pub(super) fn text(&self, revision: &str) -> Option<PathBuf> {
        let dir = self.snapshot(&self.commit_of(revision)?);
        dir.join(files::TOKENIZER).is_file().then_some(dir)
    }

    /// The files of a dataset in the newest snapshot of a revision, unless their names show that
    /// one is missing.
    pub(super) fn data(&self, revision: &str, wanted: &DataFiles<'_>) -> Option<Vec<PathBuf>> {
        let (dir, names) = self.files(revision)?;
        let names = data::choose(&names, wanted).ok().filter(|names| data::complete(names))?;
        Some(names.iter().map(|name| dir.join(name)).collect())
    }
}

/// Every file below `dir`, by its relative path.
fn walk(dir: &Path, within: &str, paths: &mut Vec<String>) {
    for entry in fs::read_dir(dir.join(within)).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let path = if within.is_empty() { name } else { format!("{within}/{name}") };
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(dir, &path, paths);
        } else if is_path(&path) && dir.join(&path).is_file() {
            paths.push(path);
        }
    }
}

/// Free bytes on the file system of `path`.
#[allow(unsafe_code)]
pub(super) fn room(path: &Path) -> Option<u64> {
    use std::os::unix::ffi::OsStrExt;
    let path = std::ffi::CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: `statvfs` fills the given plain struct and reads a string that ends with NUL.
    let stats = unsafe {
        let mut stats: libc::statvfs = std::mem::zeroed();
        (libc::statvfs(path.as_ptr(), &raw mut stats) == 0).then_some(stats)
    }?;
    #[allow(clippy::unnecessary_cast, clippy::useless_conversion)] // 32 bits on some systems
    Some((stats.f_bavail as u64).saturating_mul(stats.f_frsize as u64))
}

/// Refuses a download that does not fit on the disk.
pub(super) fn check_room(needed: u64, room: Option<u64>, root: &Path) -> Result<()> {
    match room {
        Some(room) if room < needed => {
            Err(full(format!("fetching it takes {} and {} are free", megabytes(needed), megabytes(room)), root))
        }
        _ => Ok(()),
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{:.1} MB", bytes as f64 / 1e6)
}

/// An I/O error of the cache.
pub(super) fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
        return full(format!("can't {what}: the disk is full"), path);
    }
    Error::io(Kind::Store, what, path, error).hint("HF_HOME sets the directory of the model cache")
}

fn full(message: String, path: &Path) -> Error {
    Error::new(Kind::Store, message)
        .at_path(path)
        .hint("free some space, or set HF_HOME to a larger disk; what was fetched is kept")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_full_disk_is_an_error_before_and_during_a_download() {
        let root = Path::new("/cache");
        let error = check_room(3_100_000_000, Some(1_200_000), root).unwrap_err();
        assert_eq!(
            (error.kind, error.message.as_str()),
            (Kind::Store, "fetching it takes 3100.0 MB and 1.2 MB are free")
        );
        assert!(check_room(5, Some(5), root).is_ok() && check_room(5, None, root).is_ok());
        let error = failed("write", root, &io::Error::from(io::ErrorKind::StorageFull));
        assert_eq!((error.kind, error.message.as_str()), (Kind::Store, "can't write: the disk is full"));
        assert!(error.hint.unwrap().contains("HF_HOME"));
        assert!(room(Path::new("/")).is_some_and(|bytes| bytes > 0) && room(Path::new("/no/such/place")).is_none());
    }
}
