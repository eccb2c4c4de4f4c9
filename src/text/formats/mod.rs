//! The tool-call formats, one file each: syntax, parser ([`Scan`](super::stream::Scan)) and writer.
//! A new format is a file that implements [`ToolFormat`] and a line in [`ALL`]. `json` and
//! `literal` hold shared parsers; `native` and `inside` are the two ways in which results are
//! returned; `code_block` is shared by formats that run code; `own` is for formats defined by a
//! recipe.

mod answer;
mod code_block;
mod deepseek;
mod harmony;
pub(super) mod hermes;
pub(super) mod inside;
mod json;
mod literal;
mod llama;
mod mistral;
pub(super) mod native;
pub(super) mod own;
mod pythonic;
mod qwen_coder;
mod retool;
mod tir;

use serde_json::{Value, json};

use super::tool_format::ToolFormat;
use crate::mdp::ToolCall;

/// The built-in formats. `auto` is the first whose [`ToolFormat::fits`] accepts the chat template,
/// so formats with distinctive tokens come first.
pub(super) const ALL: &[&dyn ToolFormat] = &[
    &harmony::FORMAT,
    &mistral::FORMAT,
    &deepseek::V3,
    &deepseek::V31,
    &qwen_coder::FORMAT,
    &hermes::FORMAT,
    &pythonic::FORMAT,
    &llama::FORMAT,
    &retool::FORMAT,
    &tir::FORMAT,
    &answer::FORMAT,
];

/// A call without an id.
fn call(name: &str, arguments: Value) -> ToolCall {
    ToolCall { id: None, name: name.to_owned(), arguments }
}

/// A program as a call of the tool that runs code.
fn code_call(tool: &str, code: &str) -> ToolCall {
    call(tool, json!({ "code": code }))
}

/// The program of such a call; other arguments are written as JSON.
fn code_of(call: &ToolCall) -> String {
    match call.arguments.get("code") {
        Some(Value::String(code)) => code.clone(),
        _ => super::python::dumps(&call.arguments),
    }
}

/// Appends a call to an assistant's text, on a new line.
fn on_a_line(mut text: String, call: &str) -> String {
    if !text.is_empty() && !text.ends_with('\n') {
        text.push('\n');
    }
    text.push_str(call);
    text
}
