//! Allowed locations of data files. The names of its files are shown to the user who starts a
//! recipe; this check prevents reading other files than data: system information, keys, passwords.

use std::path::Path;

use crate::error::{Error, Kind, Result};

/// Directories of files made by the system.
const OF_THE_SYSTEM: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Refuses a file that is not a data file. `directory` contains the script; `is_data` tests for the
/// extension of a data file (`.jsonl`, `.parquet` …), which files outside the directory must have.
/// Paths that are not files are accepted: reading them fails.
///
/// # Errors
/// [`Kind::Data`], with the path.
pub(crate) fn check_place(path: &Path, directory: &Path, is_data: impl Fn(&Path) -> bool) -> Result<()> {
    let Some(real) = path.canonicalize().ok().filter(|real| real.is_file()) else { return Ok(()) };
    let shared_memory = real.starts_with("/dev/shm");
    if let Some(system) = OF_THE_SYSTEM.iter().find(|folder| real.starts_with(folder) && !shared_memory) {
        return Err(Error::new(Kind::Data, format!("data can't be read from {system}")).at_path(path));
    }
    // Files of a Hub cache are links to files named by their hash.
    let stored = real.parent().and_then(Path::file_name).is_some_and(|folder| folder == "blobs");
    let named = is_data(path) && (stored || is_data(&real));
    if named || directory.canonicalize().is_ok_and(|directory| real.starts_with(directory)) {
        return Ok(());
    }
    let message = "a data file outside of the script's directory needs the extension of a data format";
    let hint = "call it .jsonl, .json, .csv, .tsv, .parquet or .arrow, put it next to the script, or name it on the command \
                line: data.train=FILE";
    Err(Error::new(Kind::Data, message).at_path(real).hint(hint))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn data_files_are_below_the_script_or_have_a_data_extension() {
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
