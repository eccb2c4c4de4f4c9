//! Tools of MCP servers (Model Context Protocol, <https://modelcontextprotocol.io>).
//!
//! A [`McpServer`] is a handle to a server that is started, called and started again on one thread,
//! so that the single-threaded runtimes of trajectories share it. The transport is standard input
//! and output of a child process (`stdio`), or streamable HTTP (`http`). The protocol itself is the
//! crate `rmcp`; the handshake is `initialize`.
//!
//! A server counts as hostile: it may end, hang, flood its output, answer twice or with a message
//! of another kind. Each of these is a [`McpReply`] with `ok: false` and a message for the policy.
//! An [`Error`](crate::Error) means that the server cannot be started.

mod call;
mod connection;
mod content;
mod http;
mod listing;
mod messages;
mod serve;
mod server;
mod stdio;

use std::fmt;
use std::time::Duration;

pub use listing::{DESCRIPTION, Listing, RemoteTool};
pub use serve::{PATH, SESSIONS, Served, ServedCall, ServedTools, serve_http, serve_stdio};
pub use server::McpServer;

use super::Endpoint;

/// Longest message of a server, in bytes. A longer one is dropped, and fails the calls that wait.
pub const MOST_MESSAGE: usize = 8 << 20;
/// Bytes that a server may send while no call gets its answer. One that sends more is stopped.
pub const MOST_OUTPUT: usize = 64 << 20;
/// Number of consecutive calls without an answer after which a server is stopped.
pub const MOST_SILENT: u32 = 3;

/// The transport of a server, and its limits.
#[derive(Clone, PartialEq)]
pub struct McpOptions {
    /// Its name in messages.
    pub name: String,
    pub endpoint: Endpoint,
    /// Longest wait for the result of a call.
    pub timeout: Duration,
    /// The wait begins again with each progress notification.
    pub progress: bool,
    /// Longest wait until it has started and listed its tools.
    pub start_timeout: Duration,
    /// Number of restarts after it has ended.
    pub restarts: u32,
}

impl fmt::Debug for McpOptions {
    /// Without environment and headers, which may hold secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerOptions").field("name", &self.name).finish_non_exhaustive()
    }
}

/// The result of a call.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct McpReply {
    /// The text for the policy.
    pub text: String,
    /// The files of its images, which the text has as marks.
    pub images: Vec<Vec<u8>>,
    /// Whether the server answered without an error.
    pub ok: bool,
    pub timed_out: bool,
    pub seconds: f64,
}

impl McpReply {
    fn failed(text: impl fmt::Display) -> Self {
        Self { text: format!("Error: {text}"), ..Self::default() }
    }
}
