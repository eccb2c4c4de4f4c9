//! External resources of a script: its declared needs and its search indexes.

use super::load::{Script, directory};
use crate::script::runtime::grants::Grants;
use crate::store::FileVersion;

impl Script {
    /// The external calls that the script may make.
    pub(crate) fn grants(&self) -> Grants {
        Grants::declared(&self.settings.needs, directory(&self.path))
    }

    /// The search indexes and re-ranking models that the script names at its top: directory, size,
    /// and the SHA-256 of an index's manifest, which has the checksums of all files, or of a
    /// model's files. Those that are missing are left out: a run reports them at its start.
    pub fn indexes(&self) -> Vec<FileVersion> {
        let mut indexes: Vec<FileVersion> =
            self.searches.iter().filter_map(|part| part.version(self.search_models)).collect();
        indexes.sort_by(|one, other| one.path.cmp(&other.path));
        indexes.dedup();
        indexes
    }
}
