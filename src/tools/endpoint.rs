//! The location of a server with a lasting connection: a program on this machine, or a URL.

use std::path::PathBuf;

use crate::net::AllowedAddresses;

/// The transport of a server.
#[derive(Clone, PartialEq)]
pub enum Endpoint {
    /// A program that is started here, without a sandbox.
    Command {
        /// Name or path, and arguments.
        argv: Vec<String>,
        /// Environment variables in addition to the few that it inherits.
        env: Vec<(String, String)>,
        /// Working directory.
        directory: PathBuf,
    },
    /// A server of another process: streamable HTTP for MCP, WebSocket for connections.
    Url { url: String, headers: Vec<(String, String)>, reach: AllowedAddresses },
}
