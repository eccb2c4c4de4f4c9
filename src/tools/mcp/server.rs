//! A server that is started on first use and started again when it ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Map, Value};
use tokio::sync::Mutex;

use super::super::background::{block_on, spawn};
use super::super::child::back_off;
use super::connection::Connection;
use super::listing::Listing;
use super::{McpOptions, McpReply};
use crate::error::{Error, Result};

/// A handle to a server; clones share it. The last one ends the server.
#[derive(Clone)]
pub struct McpServer(Arc<McpServerInner>);

struct McpServerInner {
    options: McpOptions,
    /// A connection was opened.
    started: AtomicBool,
    state: Mutex<McpServerState>,
}

#[derive(Default)]
struct McpServerState {
    connection: Option<Arc<Connection>>,
    /// Number of starts so far, including failed ones.
    starts: u32,
    /// The cause of the last failed start.
    failure: Option<Error>,
}

impl std::fmt::Debug for McpServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Server").field(&self.0.options.name).finish()
    }
}

impl McpServer {
    /// A server that is not started yet.
    pub fn new(options: McpOptions) -> Self {
        Self(Arc::new(McpServerInner { options, started: AtomicBool::new(false), state: Mutex::default() }))
    }

    pub fn options(&self) -> &McpOptions {
        &self.0.options
    }

    /// Starts the server if it does not run, and lists its tools. Blocks the thread.
    ///
    /// # Errors
    /// [`Kind::Tool`](crate::Kind::Tool): the program is missing, it ends, it does not answer in
    /// time, or its list of tools can't be used.
    pub fn list(&self) -> Result<Listing> {
        let inner = Arc::clone(&self.0);
        let limit = inner.options.start_timeout;
        let name = inner.options.name.clone();
        block_on(async move {
            let deadline = tokio::time::Instant::now() + limit;
            // The handshake has the same limit, and an error of its own.
            let connection = inner.connection().await?;
            tokio::time::timeout_at(deadline, connection.list()).await.unwrap_or_else(|_| {
                let why = format!("MCP server `{name}`: no list of tools within {} s", limit.as_secs_f64());
                Err(Error::new(crate::error::Kind::Tool, why).hint("`start_timeout` sets the limit"))
            })
        })?
    }

    /// Starts the server and lists its tools, unless it was started before. Blocks the thread.
    ///
    /// # Errors
    /// As [`McpServer::list`].
    pub fn prepare(&self) -> Result<Option<Listing>> {
        if self.0.started.load(Ordering::Relaxed) { Ok(None) } else { self.list().map(Some) }
    }

    /// Calls a tool; every failure is a reply. If the future is dropped, the call is cancelled. A
    /// start of the server does not count towards the time limit of the call.
    ///
    /// # Errors
    /// [`Kind::Internal`](crate::Kind::Internal) if the thread of the servers can't be started.
    pub async fn call(&self, tool: &str, arguments: Map<String, Value>) -> Result<McpReply> {
        let (inner, tool) = (Arc::clone(&self.0), tool.to_owned());
        let task = spawn(async move { inner.call(&tool, arguments).await })?;
        // Fails only if the call panicked or the process exits.
        Ok(task.await.unwrap_or_else(|error| McpReply::failed(format!("the call was lost: {error}"))))
    }

    /// Number of times the server was started.
    pub async fn starts(&self) -> u32 {
        self.0.state.lock().await.starts
    }
}

impl McpServerInner {
    async fn call(&self, tool: &str, arguments: Map<String, Value>) -> McpReply {
        // The start has its own limit.
        let connection = match self.connection().await {
            Ok(connection) => connection,
            Err(error) => return McpReply::failed(error.message),
        };
        let started = Instant::now();
        let mut reply = connection.call(tool, arguments, &self.options).await;
        reply.seconds = started.elapsed().as_secs_f64();
        reply
    }

    /// The open connection, or a new one. Concurrent callers wait for the same start.
    async fn connection(&self) -> Result<Arc<Connection>> {
        let mut state = self.state.lock().await;
        if let Some(open) = state.connection.as_ref().filter(|connection| connection.is_open()) {
            return Ok(Arc::clone(open));
        }
        state.connection = None;
        if state.starts > self.options.restarts {
            let last = state.failure.as_ref().map(|error| format!(": {}", error.message)).unwrap_or_default();
            let why = format!(
                "the server `{}` has ended {} times and is not started again{last}",
                self.options.name, state.starts
            );
            return Err(Error::new(crate::error::Kind::Tool, why));
        }
        back_off(state.starts).await;
        state.starts += 1;
        match Connection::open(&self.options).await {
            Ok(opened) => {
                let opened = Arc::new(opened);
                self.started.store(true, Ordering::Relaxed);
                state.connection = Some(Arc::clone(&opened));
                Ok(opened)
            }
            Err(error) => {
                state.failure = Some(error.clone());
                Err(error)
            }
        }
    }
}
