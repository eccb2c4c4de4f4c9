//! The checksums of a checkpoint's files: `trainer_state/manifest.json`.
//!
//! CRC-32C detects damage by disks, networks and copies, not deliberate changes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::checkpoint::TRAINER_STATE;
use super::files::{self, failed};
use crate::error::{Error, Kind, Result, readable};

const FILE: &str = "manifest.json";

#[derive(Debug, Default, Serialize, Deserialize)]
struct ChecksumManifest {
    /// Checksums by path within the checkpoint.
    files: BTreeMap<String, Sum>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Sum {
    bytes: u64,
    /// Hexadecimal.
    crc32c: String,
}

/// Writes the manifest of the files in `checkpoint`.
pub(super) fn write(checkpoint: &Path) -> Result<()> {
    let mut manifest = ChecksumManifest::default();
    collect(checkpoint, checkpoint, &mut manifest.files)?;
    // An earlier one is replaced.
    manifest.files.remove(&format!("{TRAINER_STATE}/{FILE}"));
    files::write_json(&checkpoint.join(TRAINER_STATE).join(FILE), "the manifest", &manifest)
}

fn collect(root: &Path, folder: &Path, sums: &mut BTreeMap<String, Sum>) -> Result<()> {
    for path in files::list(folder)? {
        if path.is_dir() {
            collect(root, &path, sums)?;
        } else if let Some(name) = path.strip_prefix(root).ok().and_then(Path::to_str) {
            sums.insert(name.to_owned(), sum(&path).map_err(|e| failed("read the file", &path, &e))?);
        }
    }
    Ok(())
}

/// Compares the files of a checkpoint with its manifest: all files, or with `model_only` the
/// model's files at the top level. A directory without a manifest is not checked.
///
/// # Errors
/// [`Kind::Store`] with the path of a missing or changed file.
pub fn verify(checkpoint: &Path, model_only: bool) -> Result<()> {
    damage(checkpoint, model_only)?.map_or(Ok(()), Err)
}

/// What is damaged in a checkpoint, as [`verify`]; `None` if it is complete.
///
/// # Errors
/// [`Kind::Store`] with the path of a file that this user may not read: it may be complete.
pub fn damage(checkpoint: &Path, model_only: bool) -> Result<Option<Error>> {
    let path = checkpoint.join(TRAINER_STATE).join(FILE);
    let bytes = match files::read_bytes(&path) {
        Ok(bytes) => bytes,
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(None),
        Err(e) => return Err(failed("read the file", &path, &e)),
    };
    let manifest: ChecksumManifest = match files::parse_json(&path, &bytes) {
        Ok(manifest) => manifest,
        Err(error) => return Ok(Some(error)),
    };
    for (name, written) in manifest.files.iter().filter(|(name, _)| !(model_only && name.contains('/'))) {
        let file = checkpoint.join(name);
        let now = match sum(&file) {
            Ok(now) => now,
            Err(e) => {
                let error = failed("read the checkpoint's file", &file, &e);
                return if e.kind() == io::ErrorKind::PermissionDenied { Err(error) } else { Ok(Some(error)) };
            }
        };
        if now != *written {
            let message = if now.bytes == written.bytes {
                "the file has changed since the checkpoint was written".to_owned()
            } else {
                format!("the file has {} bytes; {} were written", now.bytes, written.bytes)
            };
            return Ok(Some(Error::new(Kind::Store, message).at_path(&file).hint(format!(
                "copy it again or use another checkpoint; if it was changed on purpose, remove {}",
                path.display()
            ))));
        }
    }
    Ok(None)
}

fn sum(path: &Path) -> io::Result<Sum> {
    readable(path)?;
    let (bytes, crc32c) = files::checksum(File::open(path)?)?;
    Ok(Sum { bytes, crc32c })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use std::fs;

    use super::*;

    #[test]
    fn manifest_detects_flipped_bytes_and_missing_files() {
        let dir = tempfile::tempdir().unwrap();
        let state_dir = dir.path().join(TRAINER_STATE);
        fs::create_dir(&state_dir).unwrap();
        verify(dir.path(), false).unwrap();
        fs::write(dir.path().join("model.safetensors"), b"weights").unwrap();
        fs::write(state_dir.join("state.json"), b"{}").unwrap();
        write(dir.path()).unwrap();
        verify(dir.path(), false).unwrap();
        for (file, top) in [("model.safetensors", true), ("trainer_state/state.json", false)] {
            let path = dir.path().join(file);
            let whole = fs::read(&path).unwrap();
            for at in 0..whole.len() {
                let mut bytes = whole.clone();
                bytes[at] ^= 0x40;
                fs::write(&path, &bytes).unwrap();
                let error = verify(dir.path(), false).unwrap_err();
                assert_eq!((error.kind, error.place.as_deref()), (Kind::Store, path.to_str()));
                assert_eq!(verify(dir.path(), true).is_err(), top);
            }
            fs::write(&path, &whole[1..]).unwrap();
            assert!(verify(dir.path(), false).unwrap_err().message.contains("bytes;"));
            fs::remove_file(&path).unwrap();
            assert!(verify(dir.path(), false).unwrap_err().message.contains("no such file"));
            fs::write(&path, &whole).unwrap();
        }
    }
}
