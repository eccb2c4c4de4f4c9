//! Test data that is too large for the repository: weights, tokenizers, chat templates, and
//! responses recorded from other engines. Tests that need it are `#[ignore]`d; `just test-data`
//! runs them. And the comparison of files with the declarations that they are made from.
// Packages in crates share the file and use parts of it.
#![allow(clippy::unwrap_used, dead_code)]

use std::path::{Path, PathBuf};

/// Folder `name` of the reference data, in `R1_SHARED` or in `../shared/data` next to the
/// repository.
///
/// # Panics
/// If the folder is missing: a test must not pass without its data.
pub(crate) fn reference_data(name: &str) -> PathBuf {
    let path = root().join(name);
    assert!(path.exists(), "{} is missing: set R1_SHARED to the folder of the reference data", path.display());
    path
}

/// Optional reference data for additional checks; `None` if it is missing.
pub(crate) fn optional_reference_data(name: &str) -> Option<PathBuf> {
    Some(root().join(name)).filter(|path| path.exists())
}

fn root() -> PathBuf {
    // Next to the repository, of which this package is the root or a folder.
    let default_directory = || {
        let above = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().map(|folder| folder.join("shared/data"));
        above.into_iter().find(|folder| folder.is_dir()).unwrap_or_else(|| PathBuf::from("../shared/data"))
    };
    std::env::var_os("R1_SHARED").map_or_else(default_directory, PathBuf::from)
}

/// Compares a file that is made from declarations; R1_UPDATE_DOCS=1 writes it.
pub(crate) fn up_to_date(path: &str, made: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
    let there = std::fs::read_to_string(&path).unwrap_or_default();
    if there != made && std::env::var_os("R1_UPDATE_DOCS").is_some() {
        std::fs::write(&path, made).unwrap();
    } else {
        assert!(there == made, "{} differs from the declarations: run `just docs`", path.display());
    }
}

/// Compares the parts of a page that are made from declarations: the text between `<!-- NAME -->`
/// and the next `<!-- end -->`. Returns the page.
pub(crate) fn parts_up_to_date(path: &str, parts: &[(&str, String)]) -> String {
    let page = std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(path)).unwrap();
    let made = parts.iter().fold(page, |page, (name, part)| {
        let open = format!("<!-- {name} -->\n");
        let (before, rest) = page.split_once(&open).unwrap_or_else(|| panic!("no {open}"));
        let (_, after) = rest.split_once("<!-- end -->").unwrap_or_else(|| panic!("{name} has no end"));
        format!("{before}{open}{part}<!-- end -->{after}")
    });
    up_to_date(path, &made);
    made
}
