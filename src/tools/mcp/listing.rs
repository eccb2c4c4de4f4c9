//! The list of a server's tools, as plain data.

use rmcp::model::{
    ClientRequest, Extensions, ListToolsRequest, ListToolsRequestMethod, ListToolsResult, PaginatedRequestParams,
    ServerResult, Tool,
};
use rmcp::service::{Peer, RoleClient, ServiceError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Longest description of a tool, in characters; a longer one is cut, and ends in `…`.
pub const DESCRIPTION: usize = 1024;
/// Maximum number of tools of a server, and of pages of their list.
const TOOLS: usize = 512;
const PAGES: usize = 64;
/// Longest schema of a tool's arguments, as bytes of JSON: it is part of every prompt.
const SCHEMA: usize = 64 << 10;

/// The tools of a server, in its order.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Listing {
    /// The server's own name and version.
    pub server: String,
    /// The protocol version that it chose.
    pub protocol: String,
    pub tools: Vec<RemoteTool>,
}

/// A tool of a server.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RemoteTool {
    /// Its name on the server.
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, as the server gives it.
    pub parameters: Value,
}

/// The reason why a list can't be used.
#[derive(Debug)]
pub(super) enum NoListing {
    /// The server did not answer, or answered with an error.
    Failed(ServiceError),
    /// The answer is not a list of tools; the invalid part.
    Malformed(String),
    /// More than [`TOOLS`] tools or [`PAGES`] pages.
    TooMany,
    /// The schema of this tool is larger than [`SCHEMA`].
    TooLarge(String),
}

impl std::fmt::Display for NoListing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Failed(ServiceError::McpError(error)) => write!(f, "it refuses to list its tools: {}", error.message),
            Self::Failed(error) => write!(f, "it does not list its tools: {error}"),
            Self::Malformed(why) => write!(f, "its list of tools can't be read: {why}"),
            Self::TooMany => write!(f, "it lists more than {TOOLS} tools, or more than {PAGES} pages of them"),
            Self::TooLarge(tool) => {
                write!(f, "the schema of its tool `{tool}` has more than {} KiB", SCHEMA >> 10)
            }
        }
    }
}

/// Requests all tools of a server.
pub(super) async fn tools(peer: &Peer<RoleClient>) -> Result<Vec<RemoteTool>, NoListing> {
    let mut tools: Vec<RemoteTool> = Vec::new();
    let mut cursor = None;
    for _ in 0..PAGES {
        let page = page(peer, cursor).await?;
        for tool in page.tools {
            let tool = read(tool)?;
            // Pages may overlap, and a server may list a tool twice.
            if !tools.iter().any(|known| known.name == tool.name) {
                tools.push(tool);
            }
        }
        cursor = page.next_cursor.filter(|cursor| !cursor.is_empty());
        if tools.len() > TOOLS {
            break;
        }
        if cursor.is_none() {
            return Ok(tools);
        }
    }
    Err(NoListing::TooMany)
}

async fn page(peer: &Peer<RoleClient>, cursor: Option<String>) -> Result<ListToolsResult, NoListing> {
    let request = ListToolsRequest {
        method: ListToolsRequestMethod,
        params: cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor))),
        extensions: Extensions::default(),
    };
    let answer = peer.send_request(ClientRequest::ListToolsRequest(request)).await;
    match answer.map_err(NoListing::Failed)? {
        ServerResult::ListToolsResult(page) => Ok(page),
        // `rmcp` returns a result of an unknown form as a custom one.
        ServerResult::CustomResult(other) => Err(NoListing::Malformed(first_fault(&other.0))),
        _ => Err(NoListing::Malformed("it has no `tools`".to_owned())),
    }
}

/// The first part of an answer that is invalid in a list of tools.
fn first_fault(answer: &Value) -> String {
    let Some(tools) = answer.get("tools") else { return "it has no `tools`".to_owned() };
    let Some(tools) = tools.as_array() else { return "`tools` is not a list".to_owned() };
    for (index, tool) in tools.iter().enumerate() {
        let Some(name) = tool.get("name").and_then(Value::as_str) else {
            return format!("tool {} has no name", index + 1);
        };
        if !tool.get("inputSchema").is_some_and(Value::is_object) {
            return format!("tool `{name}` has no `inputSchema`");
        }
        if let Err(error) = serde_json::from_value::<Tool>(tool.clone()) {
            return format!("tool `{name}`: {error}");
        }
    }
    "a field has another type than in the protocol".to_owned()
}

fn read(tool: Tool) -> Result<RemoteTool, NoListing> {
    let name = tool.name.into_owned();
    let mut parameters = Value::Object((*tool.input_schema).clone());
    if parameters.to_string().len() > SCHEMA {
        return Err(NoListing::TooLarge(name));
    }
    // Arguments are always an object; chat templates read both fields.
    if parameters.get("type").is_none() {
        parameters["type"] = json!("object");
    }
    if !parameters.get("properties").is_some_and(Value::is_object) {
        parameters["properties"] = json!({});
    }
    let description = tool.description.map(std::borrow::Cow::into_owned).or(tool.title).unwrap_or_default();
    Ok(RemoteTool { name, description: cut(description.trim()), parameters })
}

fn cut(text: &str) -> String {
    match text.char_indices().nth(DESCRIPTION) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tool(json: Value) -> Result<RemoteTool, NoListing> {
        read(serde_json::from_value(json).unwrap())
    }

    #[test]
    fn schemas_of_mcp_tools_are_bounded_and_kept() {
        let own = json!({ "name": "a", "inputSchema": { "$defs": { "x": { "not": {} } }, "properties": { "p": { "$ref": "#/$defs/x" } } } });
        let read = tool(own).unwrap();
        assert_eq!(
            read.parameters,
            json!({ "$defs": { "x": { "not": {} } }, "properties": { "p": { "$ref": "#/$defs/x" } }, "type": "object" })
        );
        let bare = tool(json!({ "name": "a", "title": "A", "inputSchema": {} })).unwrap();
        assert_eq!((bare.description.as_str(), bare.parameters), ("A", json!({ "type": "object", "properties": {} })));
        let long = json!({ "name": "a", "description": "ä".repeat(DESCRIPTION + 1), "inputSchema": {} });
        let long = tool(long).unwrap().description;
        assert!(long.chars().count() == DESCRIPTION + 1 && long.ends_with('…'));
        let large = json!({ "name": "big", "inputSchema": { "description": "x".repeat(SCHEMA) } });
        assert_eq!(tool(large).unwrap_err().to_string(), "the schema of its tool `big` has more than 64 KiB");
    }

    #[test]
    fn malformed_lists_of_mcp_tools_name_the_fault() {
        for (answer, why) in [
            (json!({}), "it has no `tools`"),
            (json!({ "tools": 4 }), "`tools` is not a list"),
            (json!({ "tools": [{}] }), "tool 1 has no name"),
            (json!({ "tools": [{ "name": "a", "inputSchema": "text" }] }), "tool `a` has no `inputSchema`"),
        ] {
            assert_eq!(first_fault(&answer), why);
        }
    }
}
