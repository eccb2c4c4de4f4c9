//! Calls and their text, as most formats need them.

use serde_json::{Value, json};

use r1_base::mdp::ToolCall;

/// A call without an id.
pub(super) fn call(name: &str, arguments: Value) -> ToolCall {
    ToolCall { id: None, name: name.to_owned(), arguments }
}

/// A program as a call of the tool that runs code.
pub(super) fn code_call(tool: &str, code: &str) -> ToolCall {
    call(tool, json!({ "code": code }))
}

/// The text of a call's only argument; other arguments are written as JSON.
pub(super) fn argument(call: &ToolCall, name: &str) -> String {
    match call.arguments.get(name) {
        Some(Value::String(text)) => text.clone(),
        _ => crate::python::dumps(&call.arguments),
    }
}

/// Appends a call to an assistant's text, on a new line.
pub(crate) fn on_a_line(mut text: String, call: &str) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(call);
    text
}
