//! The list of a server's tools, as plain data.

use rmcp::model::{
    ClientRequest, Extensions, ListToolsRequest, ListToolsRequestMethod, PaginatedRequestParams, ServerResult,
};
use rmcp::service::{Peer, RoleClient, ServiceError};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::error::clip;

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
    /// Names of tools that can't be used, each with the reason.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unusable: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RemoteTool {
    /// Its name on the server.
    pub name: String,
    pub description: String,
    /// JSON Schema of the arguments, as the server gives it.
    pub parameters: Value,
}

/// The reason why a list can't be used.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoListing {
    #[error("it refuses to list its tools: {0}")]
    Refused(String),
    /// The server did not answer.
    #[error("it does not list its tools: {0}")]
    Failed(ServiceError),
    /// The answer is not a list of tools; the invalid part.
    #[error("its list of tools can't be read: {0}")]
    Malformed(String),
    #[error("it lists more than {TOOLS} tools, or more than {PAGES} pages of them")]
    TooMany,
    /// The reason for the first.
    #[error("none of its tools can be used: `{0}`: {1}")]
    NoneUsable(String, String),
}

/// Tools that can't be used, with the reasons.
type Unusable = Vec<(String, String)>;

/// Requests all tools of a server: those that can be used, and the others.
pub(super) async fn tools(peer: &Peer<RoleClient>) -> Result<(Vec<RemoteTool>, Unusable), NoListing> {
    let (mut tools, mut unusable) = (Vec::<RemoteTool>::new(), Unusable::new());
    let mut cursor = None;
    for _ in 0..PAGES {
        let (page, next) = page(peer, cursor).await?;
        for (number, tool) in (1..).zip(&page) {
            match read(tool, number)? {
                // Pages may overlap, and a server may list a tool twice.
                Ok(tool) if tools.iter().any(|listed| listed.name == tool.name) => {}
                Ok(tool) => tools.push(tool),
                Err(fault) if unusable.contains(&fault) => {}
                Err(fault) => unusable.push(fault),
            }
        }
        cursor = next.filter(|cursor| !cursor.is_empty());
        if tools.len() + unusable.len() > TOOLS {
            break;
        }
        if cursor.is_none() {
            return match unusable.first() {
                Some((name, why)) if tools.is_empty() => Err(NoListing::NoneUsable(name.clone(), why.clone())),
                _ => Ok((tools, unusable)),
            };
        }
    }
    Err(NoListing::TooMany)
}

/// The tools of a page as the server sent them, and the cursor of the next page.
async fn page(peer: &Peer<RoleClient>, cursor: Option<String>) -> Result<(Vec<Value>, Option<String>), NoListing> {
    let request = ListToolsRequest {
        method: ListToolsRequestMethod,
        params: cursor.map(|cursor| PaginatedRequestParams::default().with_cursor(Some(cursor))),
        extensions: Extensions::default(),
    };
    let answer = peer.send_request(ClientRequest::ListToolsRequest(request)).await;
    let malformed = |why: &str| NoListing::Malformed(why.to_owned());
    let failed = |error| match error {
        ServiceError::McpError(error) => NoListing::Refused(error.message.into_owned()),
        error => NoListing::Failed(error),
    };
    match answer.map_err(failed)? {
        ServerResult::ListToolsResult(page) => {
            let tools = page.tools.iter().filter_map(|tool| serde_json::to_value(tool).ok()).collect();
            Ok((tools, page.next_cursor))
        }
        // `rmcp` returns a result of an unknown form as a custom one.
        ServerResult::CustomResult(other) => match other.0.get("tools") {
            Some(Value::Array(tools)) => {
                let next = other.0.get("nextCursor").and_then(Value::as_str).map(str::to_owned);
                Ok((tools.clone(), next))
            }
            Some(_) => Err(malformed("`tools` is not a list")),
            None => Err(malformed("it has no `tools`")),
        },
        _ => Err(malformed("it has no `tools`")),
    }
}

/// The tool with this number in its page, or its name and the reason why it can't be used.
///
/// # Errors
/// [`NoListing::Malformed`] for one without a name.
fn read(tool: &Value, number: usize) -> Result<Result<RemoteTool, (String, String)>, NoListing> {
    let Some(name) = tool.get("name").and_then(Value::as_str) else {
        return Err(NoListing::Malformed(format!("tool {number} has no name")));
    };
    let unusable = |why: String| Ok(Err((name.to_owned(), why)));
    let mut parameters = match tool.get("inputSchema") {
        Some(schema @ Value::Object(_)) => schema.clone(),
        None | Some(Value::Null) => return unusable("it has no `inputSchema`".to_owned()),
        Some(_) => return unusable("its `inputSchema` is not an object".to_owned()),
    };
    if parameters.to_string().len() > SCHEMA {
        return unusable(format!("its schema has more than {} KiB", SCHEMA >> 10));
    }
    // Arguments are always an object; chat templates read both fields.
    if parameters.get("type").is_none() {
        parameters["type"] = json!("object");
    }
    if !parameters.get("properties").is_some_and(Value::is_object) {
        parameters["properties"] = json!({});
    }
    let text = |field: &str| tool.get(field).and_then(Value::as_str);
    let description = clip(text("description").or_else(|| text("title")).unwrap_or_default().trim(), DESCRIPTION);
    Ok(Ok(RemoteTool { name: name.to_owned(), description, parameters }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn tool(json: &Value) -> Result<RemoteTool, (String, String)> {
        read(json, 1).unwrap()
    }

    #[test]
    fn schemas_of_mcp_tools_are_bounded_and_kept() {
        let declaration = json!({ "name": "a", "inputSchema": { "$defs": { "x": { "not": {} } }, "properties": { "p": { "$ref": "#/$defs/x" } } } });
        let read = tool(&declaration).unwrap();
        assert_eq!(
            read.parameters,
            json!({ "$defs": { "x": { "not": {} } }, "properties": { "p": { "$ref": "#/$defs/x" } }, "type": "object" })
        );
        let bare = tool(&json!({ "name": "a", "title": "A", "inputSchema": {} })).unwrap();
        assert_eq!((bare.description.as_str(), bare.parameters), ("A", json!({ "type": "object", "properties": {} })));
        let long = json!({ "name": "a", "description": "ä".repeat(DESCRIPTION + 1), "inputSchema": {} });
        let long = tool(&long).unwrap().description;
        assert!(long.chars().count() == DESCRIPTION + 1 && long.ends_with('…'));
        let large = json!({ "name": "big", "inputSchema": { "description": "x".repeat(SCHEMA) } });
        for (unusable, why) in [
            (large, "its schema has more than 64 KiB"),
            (json!({ "name": "big" }), "it has no `inputSchema`"),
            (json!({ "name": "big", "inputSchema": [] }), "its `inputSchema` is not an object"),
        ] {
            assert_eq!(tool(&unusable), Err(("big".to_owned(), why.to_owned())));
        }
        assert_eq!(
            super::read(&json!({}), 3).unwrap_err().to_string(),
            "its list of tools can't be read: tool 3 has no name"
        );
    }
}
