//! Calls as JSON objects, parsed from the start of a text that may be incomplete.

use serde_json::{Map, Value};

use crate::malformed::Malformed;
use r1_base::json;
use r1_base::mdp::ToolCall;

/// The result of parsing the start of a text.
pub(super) enum ParsedStart {
    /// A value and its length in bytes.
    Value(Value, usize),
    /// Only white space.
    Nothing,
    /// Invalid JSON. With [`serde_json::Error::is_eof`] the text may only be incomplete.
    Broken(serde_json::Error),
}

/// Parses the JSON value at the start of `text`; `None` if more text is needed. Text after the
/// value is not read, so a closing tag inside a string has no effect.
pub(super) fn leading_value(text: &str, done: bool) -> Option<ParsedStart> {
    let mut stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    match stream.next() {
        Some(Ok(value)) => {
            let used = stream.byte_offset();
            // With the digits of long numbers.
            let value = json::read(&text.as_bytes()[..used]).unwrap_or(value);
            // `12` may become `123`.
            let closed = matches!(value, Value::Object(_) | Value::Array(_) | Value::String(_));
            (closed || done || used < text.len()).then_some(ParsedStart::Value(value, used))
        }
        None => done.then_some(ParsedStart::Nothing),
        Some(Err(error)) if error.is_eof() => done.then_some(ParsedStart::Broken(error)),
        Some(Err(error)) => Some(ParsedStart::Broken(error)),
    }
}

/// A call from `{"name": …, "arguments": {…}}`; Llama uses `parameters`, Mistral adds an `id`.
pub(super) fn call(value: Value) -> Result<ToolCall, Malformed> {
    let Value::Object(mut object) = value else {
        return Err(Malformed::NotAnObject { actual: kind(&value) });
    };
    // {"type": "function", "function": {…}}, as in the OpenAI API.
    if let Some(Value::Object(function)) = object.get_mut("function") {
        object = std::mem::take(function);
    }
    let name = match object.remove("name") {
        Some(Value::String(name)) if !name.is_empty() => name,
        Some(other) => {
            return Err(Malformed::Field { name: "name", wanted: "a non-empty string", actual: kind(&other) });
        }
        None => return Err(Malformed::NoField("name")),
    };
    let id = object.remove("id").and_then(|id| id.as_str().map(str::to_owned)).filter(|id| !id.is_empty());
    let arguments = object.remove("arguments").or_else(|| object.remove("parameters")).unwrap_or_default();
    Ok(ToolCall { id, name, arguments: self::arguments(arguments)? })
}

/// Arguments: an object, an object encoded as a string, or nothing, which is an empty object.
pub(super) fn arguments(value: Value) -> Result<Value, Malformed> {
    let malformed =
        |value: &Value| Malformed::Field { name: "arguments", wanted: "a JSON object", actual: kind(value) };
    match value {
        Value::Null => Ok(Value::Object(Map::new())),
        Value::Object(_) => Ok(value),
        Value::String(text) => match json::read(text.as_bytes()) {
            Ok(Value::Object(arguments)) => Ok(Value::Object(arguments)),
            Ok(other) => Err(malformed(&other)),
            Err(error) => Err(Malformed::ArgumentsNotJson(error)),
        },
        other => Err(malformed(&other)),
    }
}

/// The name of a value's type.
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
