//! The embedded model: its files in this binary, and their directory on disk.

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::MODEL_NANO;
use crate::error::{Error, Kind, Result};

/// The embedded model's files, so that `r1` works from any directory. `just nano` makes the model
/// with a binary that does not have it yet (build.rs).
#[cfg(not(nano))]
const NANO_FILES: [(&str, &[u8]); 0] = [];
#[cfg(nano)]
const NANO_FILES: [(&str, &[u8]); 5] = [
    ("config.json", include_bytes!("../../models/r1-nano/config.json")),
    ("generation_config.json", include_bytes!("../../models/r1-nano/generation_config.json")),
    ("model.safetensors", include_bytes!("../../models/r1-nano/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../models/r1-nano/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../models/r1-nano/tokenizer_config.json")),
];

/// Writes the embedded model to a file system where files can be mapped; once per content.
pub(super) fn unpack_nano() -> Result<PathBuf> {
    if NANO_FILES.is_empty() {
        return Err(Error::new(Kind::Model, "this binary was built without the embedded model")
            .hint("make it with `just nano`, then `just build`"));
    }
    let mut hash = Sha256::new();
    for (_, bytes) in NANO_FILES {
        hash.update(bytes);
    }
    let digest: u64 = hash.finalize().iter().take(6).fold(0, |digest, byte| digest << 8 | u64::from(*byte));
    let name = format!("{MODEL_NANO}-{digest:012x}");
    let mut failed = None;
    for cache in caches() {
        match unpacked(&cache, &name) {
            Ok(dir) => return Ok(dir),
            Err(error) => failed = failed.or(Some(error)),
        }
    }
    Err(failed
        .unwrap_or_else(|| Error::new(Kind::Model, "there is no directory for the embedded model"))
        .hint("XDG_CACHE_HOME names the directory in which its files are kept"))
}

/// Directories for files that can be made again, the best first. The last one is of this user.
fn caches() -> Vec<PathBuf> {
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

/// The embedded model in a cache directory. Files there that differ from this program's, or that
/// belong to another user, are not used.
fn unpacked(cache: &Path, name: &str) -> Result<PathBuf> {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};
    let parent = cache.join("r1");
    let dir = parent.join(name);
    let io = |error: std::io::Error| Error::io(Kind::Model, "unpack the embedded model", &dir, &error);
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
        let same = |(name, bytes): &(&str, &[u8])| std::fs::read(dir.join(name)).is_ok_and(|present| present == *bytes);
        is_own(&dir).unwrap_or(false) && NANO_FILES.iter().all(same)
    };
    if is_whole() {
        return Ok(dir);
    }
    let part = tempfile::Builder::new().prefix(".nano").tempdir_in(&parent).map_err(io)?;
    for (name, bytes) in NANO_FILES {
        std::fs::write(part.path().join(name), bytes).map_err(io)?;
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
