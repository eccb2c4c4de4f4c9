//! Reference data of tests that is too large for the repository: weights, tokenizers, chat templates, and replies recorded
//! from other engines. Tests that need it are `#[ignore]`d; `just test-data` runs them.

use std::path::{Path, PathBuf};

/// The folder `name` of the reference data: below `R1_SHARED`, or below `../shared/data` beside the repository.
///
/// # Panics
/// If it is not there: a test without its data has not passed.
pub(crate) fn reference_data(name: &str) -> PathBuf {
    let path = root().join(name);
    assert!(path.exists(), "{} is missing: set R1_SHARED to the folder of the reference data", path.display());
    path
}

/// [`reference_data`] for tests that only look further with it; `None` where it is missing.
pub(crate) fn more_data(name: &str) -> Option<PathBuf> {
    Some(root().join(name)).filter(|path| path.exists())
}

fn root() -> PathBuf {
    let beside = || Path::new(env!("CARGO_MANIFEST_DIR")).join("../shared/data");
    std::env::var_os("R1_SHARED").map_or_else(beside, PathBuf::from)
}
