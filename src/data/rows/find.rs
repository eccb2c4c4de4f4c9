//! Resolves the paths of a recipe's datasets: lists, directories, patterns.

use std::path::{Path, PathBuf};

use crate::config::DataFormat;
use crate::error::{Error, Kind, Result};
use crate::glob;

/// Metadata files in a dataset's directory.
const ABOUT: [&str; 4] = ["dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"];

/// The files of `paths`, each relative to the current directory or else to `base`. Files of a
/// directory or pattern are sorted by name.
///
/// # Errors
/// [`Kind::Data`] for a directory or a pattern without files.
pub(crate) fn find(paths: &[PathBuf], base: &Path, format: Option<DataFormat>) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in paths {
        let other = base.join(path);
        let is_pattern = !path.exists() && !other.exists() && path.to_string_lossy().contains('*');
        if is_pattern {
            let mut all = fitting(path);
            if all.is_empty() {
                all = fitting(&other);
            }
            if all.is_empty() {
                return Err(Error::new(Kind::Data, "no file matches the pattern").at_path(path));
            }
            files.append(&mut all);
            continue;
        }
        let path = if path.exists() || !other.exists() { path.clone() } else { other };
        if !path.is_dir() {
            files.push(path);
            continue;
        }
        let mut all = Vec::new();
        within(&path, format, &mut all)
            .map_err(|error| Error::io(Kind::Data, "read the dataset's folder", &path, &error))?;
        if all.is_empty() {
            let hint = "it reads .jsonl, .json, .csv, .tsv, .parquet, .arrow, and lines compressed as .gz or .zst";
            return Err(Error::new(Kind::Data, "the folder has no files that r1 reads").at_path(&path).hint(hint));
        }
        files.append(&mut all);
    }
    Ok(files)
}

/// The files with rows below a directory. Without a format, those with a known extension.
fn within(folder: &Path, format: Option<DataFormat>, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for path in listed(folder)? {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with(['.', '_']) || ABOUT.contains(&name.as_str()) {
            continue;
        }
        if path.is_dir() {
            within(&path, format, files)?;
        } else if DataFormat::of(&path).is_some_and(|file_format| format.is_none_or(|format| format == file_format)) {
            files.push(path);
        }
    }
    Ok(())
}

/// The paths in a folder, sorted.
pub(crate) fn listed(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = std::fs::read_dir(folder)?.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>()?;
    paths.sort_unstable();
    Ok(paths)
}

/// The files that match a pattern, component by component; unreadable directories match nothing.
fn fitting(pattern: &Path) -> Vec<PathBuf> {
    let mut all = vec![PathBuf::new()];
    for part in pattern.components() {
        let part = part.as_os_str().to_string_lossy();
        let mut next = Vec::new();
        for path in all {
            if !part.contains('*') {
                next.push(path.join(&*part));
                continue;
            }
            let folder = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
            let fits = |matching: &PathBuf| {
                let name = matching.file_name().unwrap_or_default().to_string_lossy();
                !name.starts_with('.') && glob::matches(&part, &name)
            };
            let names = listed(folder).unwrap_or_default().into_iter().filter(fits);
            next.extend(names.map(|matching| path.join(matching.file_name().unwrap_or_default())));
        }
        all = next;
    }
    all.retain(|path| path.is_file());
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn folders_lists_and_patterns_name_files() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("d/inner")).unwrap();
        for name in ["d/b.jsonl", "d/a.jsonl.gz", "d/state.json", "d/notes.txt", "d/.x.csv", "d/inner/c.parquet"] {
            std::fs::write(dir.path().join(name), "").unwrap();
        }
        let names = |paths: &[&str]| -> std::result::Result<Vec<String>, String> {
            let paths: Vec<PathBuf> = paths.iter().map(Into::into).collect();
            let names = find(&paths, dir.path(), None).map_err(|error| error.message)?;
            Ok(names.iter().map(|path| path.strip_prefix(dir.path()).unwrap().display().to_string()).collect())
        };
        assert_eq!(names(&["d"]).unwrap(), ["d/a.jsonl.gz", "d/b.jsonl", "d/inner/c.parquet"]);
        assert_eq!(names(&["d/*.jsonl", "d/inner/*"]).unwrap(), ["d/b.jsonl", "d/inner/c.parquet"]);
        assert_eq!(names(&["d/in*/c*"]).unwrap(), ["d/inner/c.parquet"]);
        assert_eq!(names(&["d/*.tsv"]).unwrap_err(), "no file matches the pattern");
        std::fs::create_dir(dir.path().join("empty")).unwrap();
        assert_eq!(names(&["empty"]).unwrap_err(), "the folder has no files that r1 reads");
    }
}
