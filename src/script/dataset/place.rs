//! Where data may be read from. A recipe names its files itself, and whoever starts it sees the names; this keeps it from
//! taking other things than data: what the system says of processes and devices, keys, passwords.

use std::path::Path;

use crate::error::{Error, Kind, Result};

/// Folders whose files are made by the system.
const OF_THE_SYSTEM: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Refuses a file that is not one of data. `directory` is that of the script, `is_data` says of a path whether its name is that
/// of a file of data (`.jsonl`, `.parquet` …), which a file outside of the directory needs. What is no file is let
/// through: whoever reads it says so.
///
/// # Errors
/// [`Kind::Data`], with the path.
pub(crate) fn check_place(path: &Path, directory: &Path, is_data: impl Fn(&Path) -> bool) -> Result<()> {
    let Some(real) = path.canonicalize().ok().filter(|real| real.is_file()) else { return Ok(()) };
    let shared_memory = real.starts_with("/dev/shm");
    if let Some(system) = OF_THE_SYSTEM.iter().find(|folder| real.starts_with(folder) && !shared_memory) {
        return Err(Error::new(Kind::Data, format!("no data is read from {system}")).at_path(path));
    }
    // Files of a hub's cache are links to files that are called by their hash.
    let stored = real.parent().and_then(Path::file_name).is_some_and(|folder| folder == "blobs");
    let named = is_data(path) && (stored || is_data(&real));
    if named || directory.canonicalize().is_ok_and(|directory| real.starts_with(directory)) {
        return Ok(());
    }
    let message = "a file outside of the script's directory is read as data only if its name says that it is data";
    let hint = "call it .jsonl, .json, .csv, .tsv, .parquet or .arrow, put it beside the script, or name it on the command \
                line: data.train=FILE";
    Err(Error::new(Kind::Data, message).at_path(real).hint(hint))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn files_are_beside_the_script_or_called_as_data_is() {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["own", "other", "cache/blobs"] {
            std::fs::create_dir_all(dir.path().join(folder)).unwrap();
        }
        for file in ["own/x", "other/key", "other/x.jsonl", "cache/blobs/1f"] {
            std::fs::write(dir.path().join(file), "x").unwrap();
        }
        for (link, to) in [("own/key.jsonl", "other/key"), ("own/cached.jsonl", "cache/blobs/1f")] {
            std::os::unix::fs::symlink(dir.path().join(to), dir.path().join(link)).unwrap();
        }
        let is_data = |path: &Path| path.extension().is_some_and(|end| end == "jsonl");
        for (path, allowed) in [
            ("own/x", true),
            ("other/key", false),
            ("other/x.jsonl", true),
            ("own/key.jsonl", false),
            ("own/cached.jsonl", true),
            ("cache/blobs/1f", false),
            ("other/missing", true),
            ("/proc/self/environ", false),
            ("/proc/version", false),
        ] {
            let checked = check_place(&dir.path().join(path), &dir.path().join("own"), is_data);
            assert_eq!(checked.is_ok(), allowed, "{path}");
        }
        let shared = tempfile::NamedTempFile::with_suffix_in(".jsonl", "/dev/shm").unwrap();
        check_place(shared.path(), dir.path(), is_data).unwrap();
    }
}
