//! An MCP server that serves tools of r1, over standard input and output or streamable HTTP.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response, StatusCode, http};
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer, ServerInitializeError};
use rmcp::transport::streamable_http_server::session::local::LocalSessionManager;
use rmcp::transport::streamable_http_server::{StreamableHttpServerConfig, StreamableHttpService};
use rmcp::{ServerHandler, ServiceExt};
use serde_json::{Map, Value};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot};

use super::{MOST_MESSAGE, RemoteTool, Reply};
use crate::error::{Error, Kind, Result};
use crate::net::{ServerLimits, serve_streams};

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
    pub reply: oneshot::Sender<Reply>,
}

/// The tools of a recipe, and where calls go.
#[derive(Clone)]
pub struct ServedTools {
    pub tools: Vec<RemoteTool>,
    /// What clients read about the server.
    pub about: String,
    pub calls: mpsc::Sender<Served>,
}

/// One session of a client.
struct Session {
    own: ServedTools,
    /// Its id over HTTP, known with the first call.
    id: OnceLock<String>,
}

/// The header of a session's id.
const SESSION: &str = "mcp-session-id";

impl Session {
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

impl Drop for Session {
    fn drop(&mut self) {
        if let Some(id) = self.id.take() {
            let calls = self.own.calls.clone();
            // A full queue: the state of the session stays until another one takes its place.
            let _ = calls.try_send(Served::End(id));
        }
    }
}

impl ServerHandler for Session {
    fn get_info(&self) -> ServerConfig {
        let own = Implementation::new("r1", env!("CARGO_PKG_VERSION"));
        let info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.with_server_info(own).with_instructions(self.own.about.clone())
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        let tools = self.own.tools.iter().map(|tool| {
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
        let call = ServedCall {
            session: self.of(&context),
            tool: request.name.into_owned(),
            arguments: request.arguments.unwrap_or_default(),
            reply,
        };
        let gone = || ErrorData::internal_error("the tools have stopped", None);
        self.own.calls.send(Served::Call(call)).await.map_err(|_| gone())?;
        let reply = tokio::select! {
            reply = answer => reply.map_err(|_| gone())?,
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("cancelled", None)),
        };
        let content = vec![ContentBlock::text(reply.text)];
        let result = if reply.ok { CallToolResult::success(content) } else { CallToolResult::error(content) };
        Ok(CallToolResponse::Complete(result))
    }
}

/// Serves tools on standard input and output until the client closes its end.
///
/// # Errors
/// [`Kind::Usage`] for a client that does not begin with the handshake of the protocol.
pub async fn serve_stdio(tools: ServedTools) -> Result<()> {
    let served = Session { own: tools, id: OnceLock::new() };
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

/// Serves tools over streamable HTTP until `stop` completes. On a loopback address, requests with
/// another `Host`, or from another page of a browser (`Origin`), are refused.
pub async fn serve_http(tools: ServedTools, listener: TcpListener, stop: impl Future<Output = ()>) {
    let local = listener.local_addr().is_ok_and(|address| address.ip().is_loopback());
    let config = StreamableHttpServerConfig::default().with_max_request_body_bytes(MOST_MESSAGE);
    let config = if local { config.enforce_origin_validation() } else { config.disable_allowed_hosts() };
    let sessions = Arc::new(LocalSessionManager::default());
    let new = move || Ok(Session { own: tools.clone(), id: OnceLock::new() });
    let service = StreamableHttpService::new(new, sessions, config);
    let handler = move |request: Request<Incoming>| {
        let service = service.clone();
        async move {
            if request.uri().path() == PATH {
                return service.handle(request).await;
            }
            let body = Full::new(Bytes::from(format!("the MCP server is at {PATH}\n"))).boxed();
            let mut missing = Response::new(body);
            *missing.status_mut() = StatusCode::NOT_FOUND;
            missing
        }
    };
    serve_streams(listener, ServerLimits::new(MOST_MESSAGE), handler, stop).await;
}
