//! An MCP server over standard input and output that serves tools of r1.

use std::borrow::Cow;
use std::sync::Arc;

use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, ErrorData, Implementation, ListToolsResult,
    PaginatedRequestParams, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::{RequestContext, RoleServer, ServerInitializeError};
use rmcp::{ServerHandler, ServiceExt};
use serde_json::{Map, Value};
use tokio::sync::{mpsc, oneshot};

use super::{RemoteTool, Reply};
use crate::error::{Error, Kind, Result};

/// A call of a client, for the thread that runs the tools.
pub struct ServedCall {
    pub tool: String,
    pub arguments: Map<String, Value>,
    /// Closed when the client cancels the call or disconnects.
    pub reply: oneshot::Sender<Reply>,
}

/// Tools and the thread that runs them, as a server.
struct Served {
    tools: Vec<Tool>,
    calls: mpsc::Sender<ServedCall>,
    about: String,
}

impl ServerHandler for Served {
    fn get_info(&self) -> ServerConfig {
        let own = Implementation::new("r1", env!("CARGO_PKG_VERSION"));
        let info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.with_server_info(own).with_instructions(self.about.clone())
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> std::result::Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.clone()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> std::result::Result<CallToolResponse, ErrorData> {
        let (reply, answer) = oneshot::channel();
        let call =
            ServedCall { tool: request.name.into_owned(), arguments: request.arguments.unwrap_or_default(), reply };
        let gone = || ErrorData::internal_error("the tools have stopped", None);
        self.calls.send(call).await.map_err(|_| gone())?;
        let reply = tokio::select! {
            reply = answer => reply.map_err(|_| gone())?,
            () = context.ct.cancelled() => return Err(ErrorData::internal_error("cancelled", None)),
        };
        let content = vec![ContentBlock::text(reply.text)];
        let result = if reply.ok { CallToolResult::success(content) } else { CallToolResult::error(content) };
        Ok(CallToolResponse::Complete(result))
    }
}

/// Serves tools on standard input and output until the client closes its end. Calls go to `calls`.
///
/// # Errors
/// [`Kind::Usage`] for a client that does not begin with the handshake of the protocol.
pub async fn serve_stdio(tools: Vec<RemoteTool>, about: String, calls: mpsc::Sender<ServedCall>) -> Result<()> {
    let tools = tools.into_iter().map(|RemoteTool { name, description, parameters }| {
        let schema = match parameters {
            Value::Object(schema) => schema,
            _ => Map::new(),
        };
        Tool::new(Cow::Owned(name), Cow::Owned(description), Arc::new(schema))
    });
    let served = Served { tools: tools.collect(), calls, about };
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
