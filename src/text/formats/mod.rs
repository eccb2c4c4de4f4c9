//! The tool-call formats, a file each: what a call looks like, how it is read ([`Scan`](super::stream::Scan)) and how
//! it is written. What they share is here and in `json` and `literal`.

pub(super) mod answer;
pub(super) mod deepseek;
pub(super) mod harmony;
pub(super) mod hermes;
pub(super) mod inside;
mod json;
mod literal;
pub(super) mod llama;
pub(super) mod mistral;
pub(super) mod native;
pub(super) mod pythonic;
pub(super) mod qwen_coder;
pub(super) mod retool;
pub(super) mod tir;

use serde_json::{Value, json};

use crate::mdp::ToolCall;

/// A call without an id.
fn call(name: &str, arguments: Value) -> ToolCall {
    ToolCall { id: None, name: name.to_owned(), arguments }
}

/// A program as a call of the tool that runs code.
fn code_call(tool: &str, code: &str) -> ToolCall {
    call(tool, json!({ "code": code }))
}

/// The program of such a call; other arguments are written as JSON, so that nothing is lost from sight.
fn code_of(call: &ToolCall) -> String {
    match call.arguments.get("code") {
        Some(Value::String(code)) => code.clone(),
        _ => super::python::dumps(&call.arguments),
    }
}

/// Appends a call to an assistant's text, on a line of its own.
fn on_a_line(mut text: String, call: &str) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(call);
    text
}
