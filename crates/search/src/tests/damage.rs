//! Damaged indexes: cut, missing, changed and foreign files.

use std::path::{Path, PathBuf};

use super::super::{Index, verify};
use super::{build, options, rows};

/// An index, and the path of one of its files by extension.
fn built() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("i");
    let texts: Vec<String> = (0..200).map(|number| format!("passage {number} of many")).collect();
    build(&out, options(), &rows(&texts.iter().map(String::as_str).collect::<Vec<_>>())).unwrap();
    (dir, out)
}

fn files(out: &Path) -> Vec<PathBuf> {
    let manifest = super::super::Manifest::read(out).unwrap();
    manifest.parts.files().map(|file| out.join(&file.path)).collect()
}

fn opening(out: &Path) -> String {
    let shown = Index::open(out).unwrap_err().to_string();
    shown.replace(&format!("{}/", out.parent().unwrap().display()), "")
}

fn shows(text: &str, part: &str) {
    assert!(text.contains(part), "{text}");
}

#[test]
fn missing_and_foreign_index_directories_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    shows(&opening(&dir.path().join("none")), "there is no such index");
    let out = dir.path().join("i");
    std::fs::create_dir(&out).unwrap();
    shows(&opening(&out), "the directory is not a search index");
    std::fs::write(out.join("manifest.json"), "{\"format\": 9, \"x\": 1}").unwrap();
    shows(&opening(&out), "the index has format 9; this version of r1 reads format 1");
    std::fs::write(out.join("manifest.json"), "{\"format\": 1,").unwrap();
    shows(&opening(&out), "the index's manifest can't be read: EOF");
    std::fs::write(out.join("manifest.json"), "[]").unwrap();
    shows(&opening(&out), "it has no `format`");
    #[cfg(unix)]
    {
        std::fs::remove_file(out.join("manifest.json")).unwrap();
        assert!(std::process::Command::new("mkfifo").arg(out.join("manifest.json")).status().unwrap().success());
        shows(&opening(&out), "can't read the index: it is not a regular file");
    }
}

/// Fields that no file's checksum includes.
#[test]
fn a_manifest_with_a_changed_field_is_refused() {
    let (_dir, out) = built();
    let path = out.join("manifest.json");
    let manifest = std::fs::read_to_string(&path).unwrap();
    for (field, other) in [("\"k1\": 1.2", "\"k1\": 1.3"), ("\"passages\": 200", "\"passages\": 201")] {
        assert!(manifest.contains(field), "{manifest}");
        std::fs::write(&path, manifest.replace(field, other)).unwrap();
        shows(&opening(&out), "the index's manifest can't be read: its checksum is another one");
    }
    // Older versions wrote none.
    std::fs::write(&path, &manifest).unwrap();
    super::change(&out, "", "");
    Index::open(&out).unwrap();
}

/// A user who may read the directory can open the index.
#[test]
fn files_of_an_index_have_the_permissions_of_new_files() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, out) = built();
    let new = dir.path().join("new");
    std::fs::write(&new, "").unwrap();
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode();
    for file in files(&out) {
        assert_eq!(mode(&file), mode(&new), "{}", file.display());
    }
}

#[test]
fn cut_and_missing_index_files_are_refused_by_name() {
    let (_dir, out) = built();
    for file in files(&out) {
        let bytes = std::fs::read(&file).unwrap();
        std::fs::write(&file, &bytes[..bytes.len() / 2]).unwrap();
        assert!(opening(&out).starts_with("a file of the index has "), "{}", file.display());
        std::fs::remove_file(&file).unwrap();
        let text = opening(&out);
        assert!(text.starts_with("a file of the index is missing"), "{text}");
        assert!(text.contains(&*file.file_name().unwrap().to_string_lossy()), "{text}");
        std::fs::write(&file, &bytes).unwrap();
        Index::open(&out).unwrap();
    }
}

#[test]
fn index_files_with_other_contents_are_found_by_verify_and_never_end_the_process() {
    let (_dir, out) = built();
    assert!(verify(&out, |_| true).unwrap().is_empty());
    for file in files(&out) {
        let bytes = std::fs::read(&file).unwrap();
        let name = file.strip_prefix(&out).unwrap().display().to_string();
        for at in [0, bytes.len() / 3, bytes.len() / 2, bytes.len() - 1] {
            let mut changed = bytes.clone();
            changed[at] ^= 0xff;
            std::fs::write(&file, &changed).unwrap();
            assert_eq!(verify(&out, |_| true).unwrap().keys().collect::<Vec<_>>(), [&name]);
            // The hits may be wrong, or the search refused; the process continues.
            if let Ok(index) = Index::open(&out) {
                for query in ["passage 7", "many", "of 199"] {
                    drop(index.search(query, 10, super::super::Mode::Sparse));
                }
            }
        }
        std::fs::write(&file, &bytes).unwrap();
    }
    assert!(verify(&out, |_| true).unwrap().is_empty());
}

#[test]
fn manifests_that_name_files_outside_the_index_are_refused() {
    let (dir, out) = built();
    std::fs::write(dir.path().join("secret"), "x").unwrap();
    let manifest = std::fs::read_to_string(out.join("manifest.json")).unwrap();
    for path in ["../secret", "/etc/passwd", ""] {
        std::fs::write(out.join("manifest.json"), manifest.replace("documents.zst", path)).unwrap();
        assert!(opening(&out).contains("which is not inside the index"), "{}", opening(&out));
    }
}
