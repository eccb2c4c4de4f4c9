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

/// The program of such a call; other arguments are written as JSON.
pub(super) fn code_of(call: &ToolCall) -> String {
    match call.arguments.get("code") {
        Some(Value::String(code)) => code.clone(),
        _ => crate::python::dumps(&call.arguments),
    }
}

/// Appends a call to an assistant's text, on a new line.
pub(super) fn on_a_line(mut text: String, call: &str) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(call);
    text
}
