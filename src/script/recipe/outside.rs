//! External resources of a script: its declared needs, and the tools of its MCP servers.

use serde_json::Value as Json;

use super::load::{Script, directory};
use crate::script::runtime::grants::Grants;

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

    /// The MCP servers and their tools, a line each.
    pub fn servers_in_words(&self) -> Vec<String> {
        self.listings.in_words()
    }
}
