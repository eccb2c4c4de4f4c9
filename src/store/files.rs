//! Atomic writes: temporary name, sync, rename, sync of the directory.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Error, Kind, Result, readable};

/// Suffix of incomplete files and directories, which [`remove_unfinished`] removes.
pub(super) const UNFINISHED: &str = ".part";

pub(super) fn failed(what: &str, path: &Path, error: &io::Error) -> Error {
    Error::io(Kind::Store, what, path, error)
}

/// Creates a directory, unless it exists. Its parent is not made: the directory of a run that has
/// vanished, such as one that is no longer mounted, is not made again with a part of its files.
pub(super) fn make_dir(path: &Path) -> Result<()> {
    match fs::create_dir(path) {
        Err(e) if !path.is_dir() => Err(failed("make the directory", path, &e)),
        _ => Ok(()),
    }
}

/// Creates a directory and its parents.
pub(super) fn make_dirs(path: &Path) -> Result<()> {
    fs::create_dir_all(path).map_err(|e| failed("make the directory", path, &e))
}

/// Creates a hidden temporary file or directory next to `name`, with the permissions of the user's
/// umask.
pub(super) fn unfinished<R>(name: &str, mode: u32, make: impl FnOnce(&tempfile::Builder<'_, '_>) -> R) -> R {
    let prefix = format!(".{name}-");
    let mut builder = tempfile::Builder::new();
    builder.prefix(&prefix).suffix(UNFINISHED);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        builder.permissions(fs::Permissions::from_mode(mode));
    }
    #[cfg(not(unix))]
    let _ = mode;
    make(&builder)
}

/// Writes a file through `fill`; `path` keeps its old content until the new content is complete and
/// synced.
pub fn write_atomic(path: &Path, fill: impl FnOnce(&mut (dyn Write + Send)) -> Result<()>) -> Result<()> {
    replace(path, fill)?;
    sync_dir(directory_of(path))
}

// A bare file name has the empty path as its parent.
fn directory_of(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// As [`write_atomic`], without a sync of the directory: after a power failure `path` can have its
/// old content.
pub(super) fn replace(path: &Path, fill: impl FnOnce(&mut (dyn Write + Send)) -> Result<()>) -> Result<()> {
    let failed = |e: &io::Error| failed("write the file", path, e);
    let directory = directory_of(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let file = unfinished(&name, 0o666, |builder| builder.tempfile_in(directory)).map_err(|e| failed(&e))?;
    let mut writer = io::BufWriter::new(file);
    fill(&mut writer).map_err(|e| e.at_path(path))?;
    let file = writer.into_inner().map_err(|e| failed(e.error()))?;
    file.as_file().sync_all().map_err(|e| failed(&e))?;
    file.persist(path).map_err(|e| failed(&e.error))?;
    Ok(())
}

/// Refuses a directory to write to that is a file, or where no file can be made.
///
/// # Errors
/// [`Kind::Store`] with the path.
pub fn check_writable(dir: &Path) -> Result<()> {
    let exists = |path: &&Path| path.as_os_str().is_empty() || path.exists();
    let above = dir.ancestors().find(exists).filter(|path| !path.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if above.is_file() {
        return Err(Error::new(Kind::Store, "this is a file; a directory is written").at_path(above));
    }
    tempfile::tempfile_in(above).map(drop).map_err(|e| failed("write to the directory", above, &e))
}

/// Writes bytes with [`write_atomic`].
pub fn write_bytes(path: &Path, bytes: &[u8]) -> Result<()> {
    write_atomic(path, |file| file.write_all(bytes).map_err(|e| failed("write the file", path, &e)))
}

/// Writes a value as JSON, on several lines. `what` names it in messages.
pub(super) fn write_json(path: &Path, what: &str, value: &impl Serialize) -> Result<()> {
    let text = serde_json::to_string_pretty(value)
        .map_err(|e| Error::new(Kind::Internal, format!("can't write {what} as JSON: {e}")))?;
    write_bytes(path, format!("{text}\n").as_bytes())
}

/// The bytes of a file.
pub(super) fn read_bytes(path: &Path) -> io::Result<Vec<u8>> {
    readable(path).and_then(|()| fs::read(path))
}

/// The value in the JSON of a file, whose bytes were read.
pub(super) fn parse_json<T: DeserializeOwned>(path: &Path, bytes: &[u8]) -> Result<T> {
    serde_json::from_slice(bytes).map_err(|e| damaged(path, &e))
}

pub(super) fn damaged(path: &Path, error: &serde_json::Error) -> Error {
    Error::new(Kind::Store, format!("damaged file: {error}")).at_path(path)
}

/// Reads a file with JSON.
///
/// # Errors
/// [`Kind::Store`] for a file that can't be read, or that is damaged.
pub fn read_json<T: DeserializeOwned>(path: &Path) -> Result<T> {
    parse_json(path, &read_bytes(path).map_err(|e| failed("read the file", path, &e))?)
}

/// The step in the name of a checkpoint, or of a file with this `extension`.
pub(super) fn step_of(path: &Path, extension: &str) -> Option<u64> {
    path.file_name()?.to_str()?.strip_prefix("step-")?.strip_suffix(extension)?.parse().ok()
}

/// Makes a rename in `path` durable.
pub(super) fn sync_dir(path: &Path) -> Result<()> {
    // Some network file systems can't sync a directory; the rename is not durable there.
    match File::open(path).and_then(|dir| dir.sync_all()) {
        Err(e) if !matches!(e.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported) => {
            Err(failed("sync the directory", path, &e))
        }
        _ => Ok(()),
    }
}

/// Syncs every file and directory below `path`, and `path` itself.
pub(super) fn sync_tree(path: &Path) -> Result<()> {
    for entry in list(path)? {
        if entry.is_dir() {
            sync_tree(&entry)?;
        } else {
            File::open(&entry).and_then(|file| file.sync_all()).map_err(|e| failed("sync the file", &entry, &e))?;
        }
    }
    sync_dir(path)
}

/// Number of bytes of a file's beginning, or of all of it, and their CRC-32C in hexadecimal.
pub(super) fn checksum(mut bytes: impl io::Read) -> io::Result<(u64, String)> {
    let (mut buffer, mut count, mut crc) = (vec![0; 1 << 20], 0, 0);
    loop {
        let read = bytes.read(&mut buffer)?;
        if read == 0 {
            return Ok((count, format!("{crc:08x}")));
        }
        crc = crc32c::crc32c_append(crc, &buffer[..read]);
        count += read as u64;
    }
}

/// Sorted paths in a directory; empty if it does not exist.
pub(super) fn list(path: &Path) -> Result<Vec<std::path::PathBuf>> {
    let entries = match fs::read_dir(path) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(failed("list the directory", path, &e)),
    };
    let paths: io::Result<Vec<_>> = entries.map(|entry| entry.map(|e| e.path())).collect();
    let mut paths = paths.map_err(|e| failed("list the directory", path, &e))?;
    paths.sort();
    Ok(paths)
}

/// The folders and files of a run.
const PARTS: &str = "trajectories evaluations checkpoints scripts best init sft profile tb config.json evaluation.json \
                     recipe.lua metrics.jsonl log.jsonl examples.txt curation.jsonl";

/// Refuses a run with parts that can't be read to their end, such as a FIFO. In one that is
/// `written`, also links: files would be written and removed where they lead.
pub(super) fn check_parts(run: &Path, written: bool) -> Result<()> {
    for part in PARTS.split_whitespace() {
        let part = run.join(part);
        let below = if part.is_dir() { list(&part)? } else { Vec::new() };
        for path in std::iter::once(part).chain(below) {
            if written && path.is_symlink() {
                let hint = "replace it by what it leads to; the directory of the run itself may be a link";
                return Err(Error::new(Kind::Store, "a part of the run is a link").at_path(path).hint(hint));
            }
            // What has been removed in the meantime is no part.
            match readable(&path) {
                Err(error) if error.kind() == io::ErrorKind::InvalidInput => {
                    return Err(failed("read a part of the run", &path, &error));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Removes a file or a directory. A directory is renamed first, so that it is never visible with
/// some of its files.
pub(super) fn remove(path: &Path) -> Result<()> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let removed = if !path.is_dir() {
        fs::remove_file(path)
    } else if is_unfinished(&name) {
        fs::remove_dir_all(path)
    } else {
        let hidden = path.with_file_name(format!(".{name}-removed{UNFINISHED}"));
        fs::rename(path, &hidden).and_then(|()| fs::remove_dir_all(&hidden))
    };
    removed.map_err(|e| failed("remove", path, &e))
}

/// Whether it is the name of an incomplete file or directory.
pub(super) fn is_unfinished(name: &str) -> bool {
    name.starts_with('.') && name.ends_with(UNFINISHED)
}

/// Removes incomplete files of a killed process in `path`.
pub(super) fn remove_unfinished(path: &Path) -> Result<()> {
    for entry in list(path)? {
        if is_unfinished(&entry.file_name().unwrap_or_default().to_string_lossy()) {
            remove(&entry)?;
        }
    }
    Ok(())
}

/// The name of a directory while a new one takes its place.
pub(super) fn replaced(name: &str) -> String {
    format!(".{name}{OLD}")
}

/// End of the name of [`replaced`].
const OLD: &str = "-old.part";

/// Moves directories back that a killed process moved away and did not replace.
pub(super) fn restore_replaced(path: &Path) -> Result<()> {
    for entry in list(path)? {
        let name = entry.file_name().unwrap_or_default().to_string_lossy();
        if let Some(name) = name.strip_prefix('.').and_then(|name| name.strip_suffix(OLD))
            && !path.join(name).exists()
        {
            fs::rename(&entry, path.join(name)).map_err(|e| failed("rename to", &path.join(name), &e))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn failed_atomic_write_keeps_the_old_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.json");
        write_bytes(&path, b"old").unwrap();
        let error = write_atomic(&path, |file| {
            file.write_all(b"half").unwrap();
            Err(Error::new(Kind::Store, "stopped"))
        })
        .unwrap_err();
        assert_eq!(error.place.as_deref(), path.to_str());
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(list(dir.path()).unwrap(), [path]);
    }

    #[test]
    fn directory_error_names_the_path() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        write_bytes(&file, b"").unwrap();
        let error = make_dir(&file.join("below")).unwrap_err();
        assert_eq!(error.kind, Kind::Store);
        assert_eq!(error.message, "can't make the directory: not a directory");
        let below = dir.path().join("a/b");
        assert_eq!(make_dir(&below).unwrap_err().message, "can't make the directory: no such file or directory");
        make_dirs(&below).unwrap();
        make_dir(&below).unwrap();
        let error = write_bytes(&dir.path().join("missing/x"), b"").unwrap_err();
        assert!(error.place.unwrap().ends_with("missing/x"));
    }

    #[test]
    fn only_incomplete_files_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        for name in [".a-1.part", "b.part", ".hidden"] {
            fs::write(dir.path().join(name), "x").unwrap();
        }
        // `d` was replaced, `e` was moved away only.
        for name in [".c.part".to_owned(), "d".to_owned(), replaced("d"), replaced("e")] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        restore_replaced(dir.path()).unwrap();
        remove_unfinished(dir.path()).unwrap();
        let left: Vec<_> = list(dir.path()).unwrap();
        assert_eq!(left, [".hidden", "b.part", "d", "e"].map(|name| dir.path().join(name)));
    }
}
