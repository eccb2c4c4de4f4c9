//! Messages of a server from its JSON.
//!
//! `rmcp` drops what is not exactly of the protocol, and the call then waits until its time limit.
//! Here, what is unambiguous is read: the JSON of Python and JavaScript ([`crate::json`]), batches,
//! content of unknown kinds. The rest of what a waiting call may have been answered with becomes an
//! error for that call.

use rmcp::model::{ContentBlock, ErrorCode, ErrorData, RequestId, ServerJsonRpcMessage};
use serde_json::{Map, Value, json};

use crate::json;

/// Characters of an unreadable answer that are shown.
const SHOWN: usize = 100;

/// A part of what a server sent.
#[derive(Clone, Debug)]
pub(super) enum MessagePart {
    Message(Box<ServerJsonRpcMessage>),
    /// An answer that can't be read: the request that it names, if it does, and the reason.
    Unreadable(Option<RequestId>, String),
}

/// The messages in a text, which may be a batch; `None` for a text that is no message, such as a
/// line of a log.
pub(super) fn read(text: &[u8]) -> Option<Vec<MessagePart>> {
    let value = match json::read_foreign(text) {
        Ok(value) => value,
        Err(error) if is_like_a_message(text) => {
            return Some(vec![MessagePart::Unreadable(named_id(text), format!("is not JSON: {error}"))]);
        }
        Err(_) => return None,
    };
    let parts = match value {
        Value::Array(batch) => batch.into_iter().filter_map(one).collect(),
        other => Vec::from_iter(one(other)),
    };
    Some(parts).filter(|parts: &Vec<MessagePart>| !parts.is_empty())
}

/// Whether text is the complete or incomplete JSON of a message, rather than other output.
fn is_like_a_message(text: &[u8]) -> bool {
    let start = text.trim_ascii_start();
    start.starts_with(b"{") && text.windows(9).any(|part| part == b"\"jsonrpc\"")
}

/// The id in the JSON of a message that can't be read.
fn named_id(text: &[u8]) -> Option<RequestId> {
    let text = String::from_utf8_lossy(text);
    let (_, after) = text.split_once("\"id\"")?;
    let after = after.trim_start().strip_prefix(':')?.trim_start();
    let end = after.find(|letter: char| !letter.is_ascii_digit() && letter != '-').unwrap_or(after.len());
    after[..end].parse().ok().map(RequestId::Number)
}

/// A message from its JSON.
fn one(mut value: Value) -> Option<MessagePart> {
    let is_answer = value.get("method").is_none();
    let fields = value.as_object_mut()?;
    if is_answer {
        complete(fields);
    }
    let id = fields.get("id").and_then(|id| serde_json::from_value::<RequestId>(id.clone()).ok());
    let has_answer = fields.contains_key("result") || fields.contains_key("error");
    match serde_json::from_value(value) {
        Ok(message) => Some(MessagePart::Message(Box::new(message))),
        Err(error) if is_answer && (has_answer || id.is_some()) => {
            Some(MessagePart::Unreadable(id, format!("can't be read: {error}")))
        }
        Err(_) => None,
    }
}

/// Brings an answer into the form of the protocol where only one reading is possible.
fn complete(answer: &mut Map<String, Value>) {
    // JSON-RPC has one of the two; some libraries write both.
    if let (Some(result), Some(error)) = (answer.get("result"), answer.get("error")) {
        let absent = match (result.is_null(), error.is_null()) {
            (_, true) => Some("error"),
            (true, false) => Some("result"),
            (false, false) => None,
        };
        absent.map(|name| answer.shift_remove(name));
    }
    if let Some(error) = answer.get_mut("error") {
        complete_error(error);
    }
    // A request without an id has no answer; an unknown one is null.
    if answer.get("id").is_some_and(Value::is_null) {
        answer.shift_remove("id");
    }
    let Some(Value::Object(result)) = answer.get_mut("result") else { return };
    if let Some(Value::Object(info)) = result.get_mut("serverInfo") {
        for name in ["name", "version"] {
            info.entry(name).or_insert_with(|| "".into());
        }
    }
    match result.get_mut("content") {
        Some(Value::Array(blocks)) => blocks.iter_mut().for_each(complete_block),
        // A text or one block.
        Some(block @ (Value::String(_) | Value::Object(_))) => {
            complete_block(block);
            *block = Value::Array(vec![block.take()]);
        }
        _ => {}
    }
}

/// An error with a code and a message.
fn complete_error(error: &mut Value) {
    let message = match &*error {
        Value::Object(fields) if fields.get("message").is_some_and(Value::is_string) => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    };
    if let Some(message) = message {
        *error = json!({ "message": message });
    }
    if !error["code"].is_i64() {
        error["code"] = ErrorCode::INTERNAL_ERROR.0.into();
    }
}

/// A block of content that the protocol has. One of an unknown kind becomes a mark, so that the
/// text beside it is kept.
fn complete_block(block: &mut Value) {
    if let Value::String(text) = block {
        *block = json!({ "type": "text", "text": text });
    }
    if serde_json::from_value::<ContentBlock>(block.clone()).is_err() {
        let mark = match (&block["type"], &block["text"]) {
            (_, Value::String(text)) => text.clone(),
            (Value::String(kind), _) => format!("[content of the unknown kind {kind}]"),
            _ => "[content of an unknown kind]".to_owned(),
        };
        *block = json!({ "type": "text", "text": mark });
    }
}

/// The error that a call receives instead of an answer that can't be read.
pub(super) fn failure(why: &str, id: RequestId) -> ServerJsonRpcMessage {
    let data = ErrorData::new(ErrorCode::PARSE_ERROR, format!("its answer {why}"), None);
    ServerJsonRpcMessage::error(data, Some(id))
}

/// The messages of a response to the request `id`, which waits for it. An error is the answer of
/// this request, whatever its id: JSON-RPC has null if the server could not read the id.
pub(super) fn addressed(parts: Vec<MessagePart>, id: &RequestId) -> Vec<ServerJsonRpcMessage> {
    let mut messages = Vec::with_capacity(parts.len());
    for part in parts {
        messages.push(match part {
            MessagePart::Message(message) => match *message {
                ServerJsonRpcMessage::Error(error) => ServerJsonRpcMessage::error(error.error, Some(id.clone())),
                message => message,
            },
            MessagePart::Unreadable(_, why) => failure(&why, id.clone()),
        });
    }
    messages
}

/// Whether a message ends the call `id`.
pub(super) fn is_answer_to(message: &ServerJsonRpcMessage, id: &RequestId) -> bool {
    match message {
        ServerJsonRpcMessage::Response(answer) => answer.id == *id || answer.id.to_string() == id.to_string(),
        ServerJsonRpcMessage::Error(error) => error.id.as_ref() == Some(id),
        _ => false,
    }
}

/// The beginning of an unreadable text.
pub(super) fn beginning(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// The messages as the JSON that `rmcp` reads; `unreadable ID: WHY` for others.
    fn shown(text: &str) -> Vec<String> {
        let show = |part: &MessagePart| match part {
            MessagePart::Message(message) => serde_json::to_string(message).unwrap(),
            MessagePart::Unreadable(id, why) => {
                format!("unreadable {}: {why}", id.as_ref().map_or("-".into(), RequestId::to_string))
            }
        };
        read(text.as_bytes()).unwrap_or_default().iter().map(show).collect()
    }

    #[test]
    fn answers_of_mcp_servers_are_read_in_any_json() {
        let answer = |text: &str| {
            format!(r#"{{"jsonrpc":"2.0","id":1,"result":{{"content":[{{"type":"text","text":"{text}"}}]}}}}"#)
        };
        for (input, text) in [
            (answer("hello"), "hello"),
            (answer(r"hello\ud83d"), "hello\u{fffd}"),
            (format!("\u{feff}{}", answer("hello")), "hello"),
            (format!("[{}]", answer("hello")), "hello"),
            (answer("hello").replace("}]}", r#"}],"structuredContent":{"x":NaN,"n":123456789012345678901}}"#), "hello"),
            (answer("hello").replace("}]}", r#"}]},"error":null"#), "hello"),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"content":"hello"}}"#.to_owned(), "hello"),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"content":{"type":"text","text":"hello"}}}"#.to_owned(), "hello"),
            (r#"{"jsonrpc":"2.0","id":1,"result":{"content":["hello"]}}"#.to_owned(), "hello"),
        ] {
            let messages = shown(&input);
            assert_eq!(messages.len(), 1, "{input}: {messages:?}");
            let read: Value = serde_json::from_str(&messages[0]).unwrap();
            assert_eq!((&read["id"], &read["result"]["content"][0]["text"]), (&json!(1), &json!(text)), "{input}");
        }
        let odd = r#"{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":"a"},{"type":"video","url":"u"},7,{"type":"text"}]}}"#;
        let read: Value = serde_json::from_str(&shown(odd)[0]).unwrap();
        let texts: Vec<&str> =
            read["result"]["content"].as_array().unwrap().iter().map(|b| b["text"].as_str().unwrap()).collect();
        assert_eq!(
            texts,
            [
                "a",
                "[content of the unknown kind video]",
                "[content of an unknown kind]",
                "[content of the unknown kind text]"
            ]
        );
        let both = format!("[{},{}]", answer("a"), answer("b").replace(":1", ":2"));
        assert_eq!(shown(&both).len(), 2);
    }

    #[test]
    fn answers_of_mcp_servers_that_cannot_be_read_name_their_request() {
        for (input, expected) in [
            (r#"{"jsonrpc": "1.0", "id": 7, "result": {}}"#, "unreadable 7: can't be read: "),
            (r#"{"jsonrpc": "2.0", "id": 7}"#, "unreadable 7: can't be read: "),
            (r#"{"jsonrpc": "2.0", "result": {}}"#, "unreadable -: can't be read: "),
            (r#"{"jsonrpc": "2.0", "id": 7, "result": {"a": b}}"#, "unreadable 7: is not JSON: expected value"),
            ("{\"jsonrpc\": \"2.0\", \"id\": 7, \"result\": \"a\nb\"}", "unreadable 7: is not JSON: control character"),
            (r#"{"jsonrpc": "2.0", "id": null, "error": {"code": 1, "message": "m"}}"#, r#"{"jsonrpc":"2.0","error""#),
            (
                r#"{"jsonrpc": "2.0", "id": 7, "error": "no"}"#,
                r#"{"jsonrpc":"2.0","id":7,"error":{"code":-32603,"message":"no"}}"#,
            ),
        ] {
            let actual = shown(input);
            assert!(actual.len() == 1 && actual[0].starts_with(expected), "{input}: {actual:?}");
        }
        for garbage in ["", "hello", "[1]", "[INFO] start", "{}", r#"{"method": 5}"#, "{ start", "7", "null"] {
            assert!(read(garbage.as_bytes()).is_none(), "{garbage}");
        }
    }
}
