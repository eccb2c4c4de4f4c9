//! Calls as JSON objects, read from the front of a text that may not be all there yet.

use serde_json::{Map, Value};

use crate::mdp::ToolCall;

/// What stands at the front of a text.
pub(super) enum Front {
    /// A value, and how many bytes it takes.
    Value(Value, usize),
    /// Only white space.
    Nothing,
    /// Not JSON: why, and whether it may merely be cut off.
    Broken(String, bool),
}

/// Reads the JSON value at the front of `text`; `None` if only more text can tell. Nothing behind the value is looked
/// at, so that a closing tag inside a string ends nothing.
pub(super) fn front(text: &str, done: bool) -> Option<Front> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match stream.next() {
        Some(Ok(value)) => {
            let used = stream.byte_offset();
            // `12` may go on as `123`.
            let closed = matches!(value, Value::Object(_) | Value::Array(_) | Value::String(_));
            (closed || done || used < text.len()).then_some(Front::Value(value, used))
        }
        None => done.then_some(Front::Nothing),
        Some(Err(error)) if error.is_eof() => done.then(|| Front::Broken(error.to_string(), true)),
        Some(Err(error)) => Some(Front::Broken(error.to_string(), false)),
    }
}

/// `{"name": …, "arguments": {…}}` as a call; Llama says `parameters`, Mistral adds an `id`.
pub(super) fn call(value: Value) -> Result<ToolCall, String> {
    let Value::Object(mut object) = value else {
        return Err(format!("expected a JSON object with `name` and `arguments`, found {}", kind(&value)));
    };
    // {"type": "function", "function": {…}}, as the OpenAI API has it.
    if let Some(Value::Object(function)) = object.get_mut("function") {
        object = std::mem::take(function);
    }
    let name = match object.remove("name") {
        Some(Value::String(name)) if !name.is_empty() => name,
        Some(other) => return Err(format!("`name` must be a non-empty string, found {}", kind(&other))),
        None => return Err("`name` is missing".to_owned()),
    };
    let id = object.remove("id").and_then(|id| id.as_str().map(str::to_owned)).filter(|id| !id.is_empty());
    let arguments = object.remove("arguments").or_else(|| object.remove("parameters")).unwrap_or_default();
    Ok(ToolCall { id, name, arguments: self::arguments(arguments)? })
}

/// Arguments: an object, or one written as a string; nothing is an empty one.
pub(super) fn arguments(value: Value) -> Result<Value, String> {
    let found = |value: &Value| format!("`arguments` must be a JSON object, found {}", kind(value));
    match value {
        Value::Null => Ok(Value::Object(Map::new())),
        Value::Object(_) => Ok(value),
        Value::String(text) => match serde_json::from_str(&text) {
            Ok(Value::Object(arguments)) => Ok(Value::Object(arguments)),
            Ok(other) => Err(found(&other)),
            Err(error) => Err(format!("`arguments` is a string that is not valid JSON, {error}")),
        },
        other => Err(found(&other)),
    }
}

/// A value's kind in words.
pub(super) fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(text) if text.is_empty() => "an empty string",
        Value::String(_) => "a string",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}
