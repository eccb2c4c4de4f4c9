//! Test data that is too large for the repository: weights, tokenizers, chat templates, and
//! responses recorded from other engines. Tests that need it are `#[ignore]`d; `just test-data`
//! runs them.

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
    let default_directory = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    std::env::var_os("R1_SHARED").map_or_else(default_directory, PathBuf::from)
}
