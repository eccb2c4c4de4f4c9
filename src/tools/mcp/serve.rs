//! An MCP server that serves tools of r1, over standard input and output or streamable HTTP.

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{AUTHORIZATION, HeaderMap};
use hyper::{Method, Request, Response, StatusCode, http};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer, ServerInitializeError};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{SessionManager, StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ServerHandler, ServiceExt};
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::super::child::lock;
use super::{MOST_MESSAGE, McpReply, RemoteTool};
use crate::error::{Error, Kind, Result};
use crate::net::{HeldBytes, ServerLimits, is_equal, is_local, read_body, refuse_web_pages, refused, serve_streams};

/// What clients send, for the thread that runs the tools.
pub enum Served {
    Call(ServedCall),
    /// The session with this id has ended.
    End(String),
}

/// A call of a client.
pub struct ServedCall {
    /// The session; empty over standard input and output, and for clients without sessions.
    pub session: String,
    pub tool: String,
    pub arguments: Map<String, Value>,
    /// Closed when the client cancels the call or disconnects.
    pub reply: oneshot::Sender<McpReply>,
}

/// The tools of a recipe, and where calls go.
#[derive(Clone)]
pub struct ServedTools {
    pub tools: Vec<RemoteTool>,
    /// What clients read about the server.
    pub about: String,
    pub calls: mpsc::Sender<Served>,
}

struct ClientSession {
    tools: ServedTools,
    /// Its id over HTTP, known with the first call.
    id: OnceLock<String>,
}

/// The header of a session's id.
const SESSION: &str = "mcp-session-id";

impl ClientSession {
    /// The id of the session of a request; empty without one.
    fn of(&self, context: &RequestContext<RoleServer>) -> String {
        let head = context.extensions.get::<http::request::Parts>();
        let id = head.and_then(|head| head.headers.get(SESSION)).and_then(|id| id.to_str().ok()).unwrap_or_default();
        if !id.is_empty() {
            let _ = self.id.set(id.to_owned());
        }
        id.to_owned()
    }
}

impl Drop for ClientSession {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let calls = self.tools.calls.clone();
            // A full queue: the state of the session stays until another one takes its place.
            let _ = calls.try_send(Served::End(id));
        }
    }
}

impl ServerHandler for ClientSession {
    fn get_info(&self) -> ServerConfig {
        let implementation = Implementation::new("r1", env!("CARGO_PKG_VERSION"));
        let info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.with_server_info(implementation).with_instructions(self.tools.about.clone())
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        let tools = self.tools.tools.iter().map(|tool| {
            let schema = tool.parameters.as_object().cloned().unwrap_or_default();
            Tool::new(Cow::Owned(tool.name.clone()), Cow::Owned(tool.description.clone()), Arc::new(schema))
        });
        Ok(ListToolsResult::with_all_items(tools.collect()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let (reply, answer) = oneshot::channel();
        let arguments = request.arguments.unwrap_or_default();
        let mut held = HeldBytes::default();
        if !held.add(arguments.values().map(size_of_value).sum(), MOST_MESSAGE) {
            let why = "the arguments of the calls under way have too many bytes: send smaller ones, or try again later";
            return Err(ErrorData::internal_error(why, None));
        }
        let call = ServedCall { session: self.of(&context), tool: request.name.into_owned(), arguments, reply };
        let gone = || ErrorData::internal_error("the tools have stopped", None);
        self.tools.calls.send(Served::Call(call)).await.map_err(|_| gone())?;
        let reply = tokio::select! {
            reply = answer => reply.map_err(|_| gone())?,
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("cancelled", None)),
        };
        let content = vec![ContentBlock::text(reply.text)];
        let result = if reply.ok { CallToolResult::success(content) } else { CallToolResult::error(content) };
        Ok(CallToolResponse::Complete(result))
    }
}

/// The memory of a value, in bytes.
fn size_of_value(value: &Value) -> usize {
    let parts = match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(size_of_value).sum(),
        Value::Object(fields) => fields.iter().map(|(name, value)| name.len() + size_of_value(value)).sum(),
        _ => 0,
    };
    parts + size_of::<Value>()
}

/// Serves tools on standard input and output until the client closes its end.
///
/// # Errors
/// [`Kind::Usage`] for a client that does not begin with the handshake of the protocol.
pub async fn serve_stdio(tools: ServedTools) -> Result<()> {
    let served = ClientSession { tools, id: OnceLock::new() };
    let lost = |error: &dyn std::fmt::Display| Error::new(Kind::Internal, format!("the MCP session stopped: {error}"));
    let running = match served.serve(rmcp::transport::stdio()).await {
        Ok(running) => running,
        // The client disconnected before the handshake.
        Err(ServerInitializeError::ConnectionClosed(_)) => return Ok(()),
        Err(error) => {
            let why = format!("the client did not begin an MCP session: {error}");
            return Err(Error::new(Kind::Usage, why)
                .hint("r1 mcp uses the Model Context Protocol on standard input and output; MCP clients start it"));
        }
    };
    running.waiting().await.map(drop).map_err(|error| lost(&error))
}

/// Path of the server.
pub const PATH: &str = "/mcp";
/// Sessions over HTTP. A new one ends the one that was idle for the longest time.
pub const SESSIONS: usize = 256;
/// Longest wait for the next request of a connection, and for the rest of one.
const WAIT: Duration = Duration::from_secs(30);

/// The sessions of clients, with the time of their last request.
#[derive(Default)]
struct Recent(Mutex<HashMap<String, Instant>>);

impl Recent {
    /// Notes a request of a session, and returns those to end.
    fn note(&self, id: &str) -> Vec<String> {
        let mut all = lock(&self.0);
        all.insert(id.to_owned(), Instant::now());
        let mut old = Vec::new();
        while all.len() > SESSIONS {
            let Some(idle) = all.iter().min_by_key(|(_, last)| **last).map(|(id, _)| id.clone()) else { break };
            all.remove(&idle);
            old.push(idle);
        }
        old
    }

    fn forget(&self, id: &str) {
        lock(&self.0).remove(id);
    }
}

/// Serves tools over streamable HTTP until `stop` completes. Requests of web pages are refused, as
/// are requests without `token`, if there is one.
pub async fn serve_http(
    tools: ServedTools,
    listener: TcpListener,
    token: Option<String>,
    stop: impl Future<Output = ()>,
) {
    let local = is_local(&listener);
    // `refuse_web_pages` checks `Host` and `Origin`, and `net` has the limits.
    let config = StreamableHttpServerConfig::default().with_max_request_body_bytes(MOST_MESSAGE);
    let config = config.disable_allowed_hosts();
    let sessions = Arc::new(LocalSessionManager::default());
    let new = move || Ok(ClientSession { tools: tools.clone(), id: OnceLock::new() });
    let service = StreamableHttpService::new(new, Arc::clone(&sessions), config);
    let limits = ServerLimits { head_wait: WAIT, body_wait: WAIT, ..ServerLimits::new(MOST_MESSAGE) };
    let (recent, token) = (Arc::new(Recent::default()), token.map(|token| format!("Bearer {token}")));
    let handler = move |request: Request<Incoming>| {
        let (service, sessions, recent) = (service.clone(), Arc::clone(&sessions), Arc::clone(&recent));
        let is_allowed = token.as_ref().is_none_or(|token| {
            let header = request.headers().get(AUTHORIZATION);
            header.is_some_and(|header| is_equal(header.as_bytes(), token.as_bytes()))
        });
        async move {
            let plain = |response: Response<Full<Bytes>>| response.map(BodyExt::boxed);
            if let Some(refusal) = refuse_web_pages(request.headers(), local) {
                return plain(refusal);
            }
            if !is_allowed {
                return plain(refused(401, "the header `Authorization` does not have the server's token"));
            }
            if request.uri().path() != PATH {
                let body = Full::new(Bytes::from(format!("the MCP server is at {PATH}\n")));
                let mut missing = Response::new(body);
                *missing.status_mut() = StatusCode::NOT_FOUND;
                return plain(missing);
            }
            let (head, body) = request.into_parts();
            let ends = (head.method == Method::DELETE).then(|| session_of(&head.headers)).flatten();
            let (body, _held) = match read_body(body, limits).await {
                Ok((body, held)) => (Full::new(Bytes::from(body)), held),
                Err(refusal) => return plain(*refusal),
            };
            let used = session_of(&head.headers);
            let response = service.handle(Request::from_parts(head, body)).await;
            if let Some(id) = ends {
                recent.forget(&id);
            } else if let Some(id) = session_of(response.headers()).or(used.filter(|_| response.status().is_success()))
            {
                for idle in recent.note(&id) {
                    // A session that has ended by itself is not there.
                    let _ = sessions.close_session(&idle.into()).await;
                }
            }
            response
        }
    };
    serve_streams(listener, limits, handler, stop).await;
}

fn session_of(headers: &HeaderMap) -> Option<String> {
    headers.get(SESSION)?.to_str().ok().map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_session_that_was_idle_for_the_longest_time_ends() {
        let recent = Recent::default();
        for number in 0..SESSIONS {
            assert!(recent.note(&number.to_string()).is_empty());
        }
        assert!(recent.note("0").is_empty());
        assert_eq!(recent.note("new"), ["1"]);
        recent.forget("2");
        assert!(recent.note("newer").is_empty());
    }
}
