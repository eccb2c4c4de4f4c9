//! The parent directory of programs' scratch directories.
//!
//! Its owner holds a lock on it. A process that was killed can't remove its own directory, so each
//! new one removes those without a lock.

use std::fs::File;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tempfile::TempDir;

const PREFIX: &str = "r1-python-";

/// A locked directory; removed when dropped.
#[derive(Debug)]
pub(super) struct Scratch {
    directory: TempDir,
    /// The path without links, as rules and mounts need it.
    pub(super) path: PathBuf,
    _lock: File,
}

impl Scratch {
    /// Creates one in the system's directory for temporary files.
    pub(super) fn new() -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(parent: &Path) -> io::Result<Self> {
        sweep(parent);
        loop {
            let private = std::fs::Permissions::from_mode(0o700);
            let directory = tempfile::Builder::new().prefix(PREFIX).permissions(private).tempdir_in(parent)?;
            let path = directory.path().canonicalize();
            let lock = File::open(directory.path()).and_then(|lock| lock.lock().map(|()| lock));
            // Another process may have removed it before it was locked.
            if directory.path().exists() {
                return Ok(Self { directory, path: path?, _lock: lock? });
            }
        }
    }

    /// Removes it; dying children may still write into it for a moment.
    pub(super) async fn remove(self) {
        for _ in 0..100 {
            match remove_tree(self.directory.path()) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {}
                _ => break,
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Removes the directories of dead processes. Directories of other users can't be opened, and
/// directories in use can't be locked.
fn sweep(parent: &Path) {
    for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with(PREFIX)
            && let Ok(directory) = File::open(entry.path())
            && directory.try_lock().is_ok()
        {
            let _ = remove_tree(&entry.path());
        }
    }
}

/// Removes a directory in which programs may have changed permissions.
fn remove_tree(path: &Path) -> io::Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let mut folders = vec![path.to_path_buf()];
            while let Some(folder) = folders.pop() {
                std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o700))?;
                let inner = std::fs::read_dir(&folder)?.flatten();
                folders.extend(
                    inner.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()),
                );
            }
            std::fs::remove_dir_all(path)
        }
        other => other,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn abandoned_scratch_directories_are_removed_and_locked_ones_stay() {
        let parent = tempfile::tempdir().unwrap();
        let stale = parent.path().join("r1-python-stale");
        let other = parent.path().join("another");
        std::fs::create_dir_all(stale.join("7/deep/inner")).unwrap();
        std::fs::set_permissions(stale.join("7/deep"), std::fs::Permissions::from_mode(0o000)).unwrap();
        std::fs::create_dir(&other).unwrap();
        let first = Scratch::new_in(parent.path()).unwrap();
        let second = Scratch::new_in(parent.path()).unwrap();
        assert!(!stale.exists() && other.exists());
        assert!(first.path.exists() && second.path.exists());
        let path = first.path.clone();
        drop(first);
        assert!(!path.exists() && second.path.exists());
    }
}
