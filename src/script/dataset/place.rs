//! Where data may be read from. A recipe names its files itself, and whoever starts it sees the names; this keeps it from
//! taking other things than data: what the system says of processes and devices, keys, passwords.

use std::path::Path;

use crate::error::{Error, Kind, Result};

/// Folders whose files are made by the system.
const OF_THE_SYSTEM: [&str; 3] = ["/proc", "/sys", "/dev"];

/// Refuses a file that is not one of data. `real` is its path with links followed, `directory` that of the script. A file
/// outside of the directory must be `named` as files of data are (`.jsonl`, `.parquet` …).
///
/// # Errors
/// [`Kind::Data`], with the path.
pub(crate) fn check_place(real: &Path, directory: &Path, named: bool) -> Result<()> {
    let shared_memory = real.starts_with("/dev/shm");
    if let Some(system) = OF_THE_SYSTEM.iter().find(|folder| real.starts_with(folder) && !shared_memory) {
        return Err(Error::new(Kind::Data, format!("no data is read from {system}")).at_path(real));
    }
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
        let (own, other) = (dir.path().join("own"), dir.path().join("other"));
        std::fs::create_dir_all(&own).unwrap();
        std::fs::create_dir_all(&other).unwrap();
        for (path, named, allowed) in [
            (own.join("x"), false, true),
            (other.join("x"), false, false),
            (other.join("x.jsonl"), true, true),
            ("/proc/self/environ".into(), true, false),
            ("/sys/x.csv".into(), true, false),
            ("/dev/x.csv".into(), true, false),
            ("/dev/shm/x.csv".into(), true, true),
        ] {
            let real = dir.path().canonicalize().unwrap().join(path.strip_prefix(dir.path()).unwrap_or(&path));
            assert_eq!(check_place(&real, &own, named).is_ok(), allowed, "{}", path.display());
        }
    }
}
