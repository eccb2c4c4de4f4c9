//! Model directories in the user's cache: the embedded model, and models of GGUF files.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::error::{Error, Kind, Result};

/// A model directory that can be made again at any time.
pub(super) struct CachedModel<'a> {
    /// Its name, before a hash of the content.
    pub(super) name: &'a str,
    /// What it is, in errors.
    pub(super) what: &'a str,
    /// Names and contents of files.
    pub(super) files: Vec<(&'a str, &'a [u8])>,
    /// A link: its name and target.
    pub(super) link: Option<(&'a str, &'a Path)>,
}

impl CachedModel<'_> {
    /// Writes the model to a file system where files can be mapped, once per content. `check`
    /// examines the directory before it gets its name.
    pub(super) fn directory(&self, check: impl Fn(&Path) -> Result<()>) -> Result<PathBuf> {
        let mut hash = Sha256::new();
        for (_, bytes) in &self.files {
            hash.update(bytes);
        }
        hash.update(self.link.map_or(&[][..], |(_, target)| target.as_os_str().as_encoded_bytes()));
        let digest: u64 = hash.finalize().iter().take(6).fold(0, |digest, byte| digest << 8 | u64::from(*byte));
        let name = format!("{}-{digest:012x}", self.name);
        let mut failed = None;
        for cache in caches() {
            match self.unpacked(&cache, &name, &check) {
                Ok(dir) => return Ok(dir),
                Err(error) => failed = failed.or(Some(error)),
            }
        }
        Err(failed.unwrap_or_else(|| Error::new(Kind::Model, format!("there is no directory for {}", self.name))))
    }

    /// The model in a cache directory. Files there that differ from these, or that belong to
    /// another user, are not used.
    fn unpacked(&self, cache: &Path, name: &str, check: impl Fn(&Path) -> Result<()>) -> Result<PathBuf> {
        use std::os::unix::fs::{DirBuilderExt, MetadataExt, symlink};
        let parent = cache.join("r1");
        let dir = parent.join(name);
        let io = |error: std::io::Error| {
            Error::io(Kind::Model, &format!("unpack {}", self.what), &dir, &error)
                .hint("XDG_CACHE_HOME names the directory in which its files are kept")
        };
        let is_own = |path: &Path| {
            let about = std::fs::symlink_metadata(path)?;
            Ok::<_, std::io::Error>(about.is_dir() && (about.uid() == user() || about.uid() == 0))
        };
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(&parent).map_err(io)?;
        // A link to a directory of this user is one.
        let real = parent.canonicalize().map_err(io)?;
        if !is_own(&real).map_err(io)? {
            let why = format!("the directory {} belongs to another user", real.display());
            return Err(Error::new(Kind::Model, why));
        }
        let is_whole = || {
            let same =
                |(name, bytes): &(&str, &[u8])| std::fs::read(dir.join(name)).is_ok_and(|present| present == *bytes);
            let leads = |(name, target)| std::fs::read_link(dir.join::<&str>(name)).is_ok_and(|link| link == target);
            is_own(&dir).unwrap_or(false) && self.files.iter().all(same) && self.link.is_none_or(leads)
        };
        if is_whole() {
            return Ok(dir);
        }
        let part = tempfile::Builder::new().prefix(".model").tempdir_in(&parent).map_err(io)?;
        for (name, bytes) in &self.files {
            std::fs::write(part.path().join(name), bytes).map_err(io)?;
        }
        if let Some((name, target)) = self.link {
            symlink(target, part.path().join(name)).map_err(io)?;
        }
        check(part.path())?;
        // Another process may have been faster.
        if is_whole() {
            return Ok(dir);
        }
        if dir.symlink_metadata().is_ok() {
            // Another process may do the same.
            let _ = std::fs::rename(&dir, part.path().with_extension("old"));
            let _ = std::fs::remove_dir_all(part.path().with_extension("old"));
        }
        let part = part.keep();
        if let Err(error) = std::fs::rename(&part, &dir) {
            let _ = std::fs::remove_dir_all(&part);
            // Another process may have been faster; its copy is the same.
            if !is_whole() {
                return Err(io(error));
            }
        }
        Ok(dir)
    }
}

/// Directories for files that can be made again, the best first. The last one is of this user.
pub(super) fn caches() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = variable("HOME").map(|home| home.join(".cache"));
    let temporary = std::env::temp_dir().join(format!("r1-cache-{}", user()));
    variable("XDG_CACHE_HOME").or(home).into_iter().chain([temporary]).collect()
}

#[allow(unsafe_code)]
fn user() -> u32 {
    // SAFETY: it has no preconditions.
    unsafe { libc::geteuid() }
}
