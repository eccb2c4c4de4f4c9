//! External resources of a script: its declared needs, its search indexes, and the tools of its MCP
//! servers.

use serde_json::Value as Json;

use super::load::{Script, directory};
use crate::script::runtime::grants::Grants;
use crate::store::FileVersion;

impl Script {
    /// The external calls that the script may make.
    pub(crate) fn grants(&self) -> Grants {
        Grants::declared(&self.settings.needs, directory(&self.path))
    }

    /// The tools of its MCP servers as plain data, for a run's directory; null until a worker has
    /// requested them.
    pub fn tool_lists(&self) -> Json {
        self.listings.to_json()
    }

    /// Takes the tools of its MCP servers from a run's directory, instead of requesting them from
    /// the servers.
    pub fn use_tool_lists(&self, stored: &Json) {
        self.listings.extend(stored);
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

    /// The programs of its connections, a line each.
    pub fn programs_in_words(&self) -> &[String] {
        &self.programs
    }

    /// MCP servers whose tools differ from the run's first start, a line each.
    pub fn changed_servers_in_words(&self) -> Vec<String> {
        self.listings.changes_in_words()
    }

    /// The MCP servers and their tools, a line each.
    pub fn servers_in_words(&self) -> Vec<String> {
        self.listings.in_words()
    }
}
