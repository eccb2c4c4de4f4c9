//! One connection to a running server.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use rmcp::RoleClient;
use rmcp::model::{CallToolRequestParams, CallToolResponse, JsonObject};
use rmcp::service::{ClientInitializeError, RunningService, ServiceError, serve_client};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until};

use super::super::Endpoint;
use super::super::child::Process;
use super::super::lines::Traffic;
use super::call::{Notifications, RunningCall};
use super::http::LastFault;
use super::listing::{self, Listing};
use super::stdio::Stdio;
use super::{MOST_MESSAGE, MOST_OUTPUT, MOST_SILENT, McpOptions, McpReply, content, http};
use crate::error::{Error, Kind, Result, clip};

/// A connection. Dropping it ends the session, and a server that was started for it.
pub(super) struct Connection {
    name: String,
    service: RunningService<RoleClient, Notifications>,
    process: Option<Process>,
    /// For a server over HTTP: why the last exchange failed.
    last_fault: LastFault,
    traffic: Arc<Traffic>,
    /// Notified when a message is too long to be read.
    too_long: Arc<Notify>,
    /// Number of consecutive calls without an answer.
    silent: AtomicU32,
}

impl Connection {
    /// Starts the server, and waits until it has answered the handshake.
    ///
    /// # Errors
    /// [`Kind::Tool`], with the server's message.
    pub(super) async fn open(options: &McpOptions) -> Result<Self> {
        let limit = options.start_timeout;
        let (traffic, too_long) = (Arc::<Traffic>::default(), Arc::<Notify>::default());
        let (mut process, mut last_fault) = (None, LastFault::default());
        let opened = tokio::time::timeout(limit, async {
            match &options.endpoint {
                Endpoint::Command { argv, env, directory } => {
                    let (child, pipes) =
                        Process::start(&format!("MCP server `{}`", options.name), argv, env, directory)?;
                    process = Some(child);
                    Ok(serve_client(
                        Notifications::default(),
                        Stdio::new(pipes, Arc::clone(&traffic), Arc::clone(&too_long)),
                    )
                    .await)
                }
                Endpoint::Url { url, headers, reach } => {
                    let (transport, last) = http::transport(url, headers, *reach, options.timeout)?;
                    last_fault = last;
                    Ok(serve_client(Notifications::default(), transport).await)
                }
            }
        });
        let failed = |why: String| Error::new(Kind::Tool, format!("MCP server `{}`: {why}", options.name));
        let service = match opened.await {
            Ok(Ok(Ok(service))) => service,
            Ok(Err(error)) => return Err(error),
            Ok(Ok(Err(error))) => {
                let why = match (&process, &error) {
                    (Some(process), ClientInitializeError::ConnectionClosed(_)) => process.ending().await,
                    _ => last_fault.get().unwrap_or_else(|| refusal(&error)),
                };
                return Err(failed(why).hint(hint(options, &traffic)));
            }
            Err(_) => {
                let last_line = process.as_ref().and_then(Process::last_line).map(|line| format!(": {line}"));
                let why = format!("no answer within {} s{}", limit.as_secs_f64(), last_line.unwrap_or_default());
                return Err(failed(why).hint(format!("{}; `start_timeout` sets the limit", hint(options, &traffic))));
            }
        };
        let (name, silent) = (options.name.clone(), AtomicU32::new(0));
        Ok(Self { name, service, process, last_fault, traffic, too_long, silent })
    }

    /// Whether calls can be sent.
    pub(super) fn is_open(&self) -> bool {
        !self.service.peer().is_transport_closed()
            && !self.service.is_closed()
            && self.silent.load(Ordering::Relaxed) < MOST_SILENT
    }

    /// The server's tools.
    ///
    /// # Errors
    /// [`Kind::Tool`] for a list that can't be used.
    pub(super) async fn list(&self) -> Result<Listing> {
        let failed = |why: String| Error::new(Kind::Tool, format!("MCP server `{}`: {why}", self.name));
        let (tools, unusable) = listing::tools(self.service.peer()).await.map_err(|why| failed(why.to_string()))?;
        let info = self.service.peer().peer_info();
        let (server, protocol) = info.map_or_else(Default::default, |info| {
            let implementation = info
                .server_info
                .as_ref()
                .map(|implementation| format!("{} {}", implementation.name, implementation.version).trim().to_owned());
            (implementation.unwrap_or_default(), info.protocol_version.to_string())
        });
        Ok(Listing { server, protocol, tools, unusable })
    }

    /// Calls a tool. If the future is dropped, or the time limit is reached, a cancellation is sent
    /// to the server.
    pub(super) async fn call(&self, tool: &str, arguments: JsonObject, options: &McpOptions) -> McpReply {
        let limit = options.timeout;
        let mut end = Instant::now() + limit;
        let params = CallToolRequestParams::new(tool.to_owned()).with_arguments(arguments);
        // Registered before the request is sent, so that no notice is missed.
        let mut too_long = std::pin::pin!(self.too_long.notified());
        too_long.as_mut().enable();
        let mut call = match RunningCall::send(self.service.peer(), self.service.service(), params).await {
            Ok(call) => call,
            Err(error) => return self.reply(Err(error)).await,
        };
        let mut progress = call.progress.clone();
        let reply = loop {
            tokio::select! {
                biased;
                answer = call.answer() => break self.reply(answer).await,
                () = &mut too_long => {
                    let max = MOST_MESSAGE >> 20;
                    break McpReply::failed(format!("the server `{}` sent a message of more than {max} MiB", self.name));
                }
                Ok(()) = progress.changed(), if options.progress => end = Instant::now() + limit,
                () = sleep_until(end) => {
                    self.count_silence();
                    let at = call.progress.borrow().clone();
                    let at = if at.is_empty() { String::new() } else { format!(" (progress {at})") };
                    let why = format!("timed out after {} s{at}", limit.as_secs_f64());
                    return McpReply { timed_out: true, ..McpReply::failed(why) };
                }
            }
        };
        self.silent.store(0, Ordering::Relaxed);
        reply
    }

    /// Counts a call that got no answer in time.
    fn count_silence(&self) {
        if self.silent.fetch_add(1, Ordering::Relaxed) + 1 == MOST_SILENT {
            self.kill();
        }
    }

    fn kill(&self) {
        if let Some(process) = &self.process {
            process.kill();
        }
        self.silent.store(MOST_SILENT, Ordering::Relaxed);
    }

    async fn reply(&self, answer: std::result::Result<CallToolResponse, ServiceError>) -> McpReply {
        let name = &self.name;
        match answer {
            Ok(CallToolResponse::Complete(result)) => {
                let ok = result.is_error != Some(true);
                McpReply { text: content::text(&result), images: content::images(&result), ok, ..McpReply::default() }
            }
            Ok(_) => McpReply::failed(format!("the server `{name}` requests input, which r1 does not support")),
            Err(ServiceError::McpError(error)) => McpReply::failed(&error.message),
            Err(ServiceError::TransportClosed) if self.traffic.flooded.load(Ordering::Relaxed) => {
                self.kill();
                let limit = MOST_OUTPUT >> 20;
                McpReply::failed(format!("the server `{name}` sent more than {limit} MiB without an answer"))
            }
            Err(ServiceError::TransportClosed) => {
                let how = match &self.process {
                    Some(process) => process.ending().await,
                    None => self.last_fault.get().unwrap_or_else(|| "the connection was closed".to_owned()),
                };
                McpReply::failed(format!("the server `{name}` stopped: {how}"))
            }
            Err(ServiceError::TransportSend(error)) => {
                let why = http::reason(error.error.as_ref());
                McpReply::failed(format!("the server `{name}`: {why}"))
            }
            Err(ServiceError::UnexpectedResponse) => {
                McpReply::failed(format!("the answer of the server `{name}` is not a tool's result"))
            }
            Err(error) => McpReply::failed(format!("the server `{name}`: {error}")),
        }
    }
}

/// The reason why a server did not accept the handshake.
fn refusal(error: &ClientInitializeError) -> String {
    match error {
        ClientInitializeError::JsonRpcError(error) => format!("it refuses the handshake: {}", error.message),
        ClientInitializeError::ConnectionClosed(_) => "the connection was closed".to_owned(),
        ClientInitializeError::TransportError { error, .. } => http::reason(error.error.as_ref()),
        ClientInitializeError::ExpectedInitResult(_) => "its answer to `initialize` can't be read".to_owned(),
        other => clip(&other.to_string(), 300),
    }
}

/// The hint of the error for a server that does not start.
fn hint(options: &McpOptions, traffic: &Traffic) -> String {
    match &options.endpoint {
        Endpoint::Command { .. } if traffic.garbage.load(Ordering::Relaxed) > 0 => {
            "it printed lines that are not messages of the protocol; a server may print only those on standard output"
                .to_owned()
        }
        Endpoint::Command { argv, .. } => {
            format!("run it by hand to see its output: {}", argv.join(" "))
        }
        Endpoint::Url { url, .. } => format!("is there an MCP server at {url}? The path is often /mcp"),
    }
}
