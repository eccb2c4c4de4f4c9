//! Calls as JSON objects, parsed from the start of a text that may be incomplete.

use serde_json::{Map, Value};

use crate::malformed::Malformed;
use crate::python;
use crate::stream::find;
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

/// The end of a call whose JSON is followed by a closing tag.
pub(super) struct Closing {
    pub(super) tag: &'static str,
    /// Tags that end a malformed call without a closing tag.
    pub(super) next: &'static [&'static str],
    /// Optional text before the closing tag.
    pub(super) fence: &'static str,
    /// The tag that the message about a call that is cut off names.
    pub(super) missing: Option<&'static str>,
}

impl Closing {
    /// The end of a malformed call: after its closing tag, or before the next tag.
    pub(super) fn end(&self, block: &str, from: usize, done: bool) -> Option<usize> {
        let tag = find(&block[from..], &[&[self.tag][..], self.next].concat());
        let end = tag.map(|(at, tag)| from + at + if tag == self.tag { tag.len() } else { 0 });
        end.or(done.then_some(block.len()))
    }
}

/// The JSON value of a call that begins at `from`, and the end of the call. A call may also end
/// with the reply. `None` if more text is needed.
pub(super) fn closed_value(
    block: &str,
    from: usize,
    closing: &Closing,
    done: bool,
) -> Option<(Result<Value, Malformed>, usize)> {
    let cut_off = Malformed::CutOff { missing: closing.missing };
    let (value, used) = match leading_value(&block[from..], done)? {
        ParsedStart::Value(value, used) => (value, from + used),
        ParsedStart::Nothing => return Some((Err(cut_off), block.len())),
        ParsedStart::Broken(error) => {
            let is_cut_off = error.is_eof() && !block[from..].contains(closing.tag);
            let why = if is_cut_off { cut_off } else { Malformed::NotJson(error) };
            return Some((Err(why), closing.end(block, from, done)?));
        }
    };
    let after = block[used..].trim_start();
    let tail = after.strip_prefix(closing.fence).unwrap_or(after).trim_start();
    if tail.starts_with(closing.tag) {
        return Some((Ok(value), block.len() - tail.len() + closing.tag.len()));
    }
    if !done && (closing.fence.starts_with(after) || closing.tag.starts_with(tail)) {
        return None;
    }
    if tail.is_empty() {
        return Some((Ok(value), block.len()));
    }
    Some((Err(Malformed::StrayBefore(closing.tag)), closing.end(block, used, done)?))
}

/// A call as a JSON object; `key` is the name of its arguments.
pub(super) fn written(call: &ToolCall, key: &str) -> String {
    let name = python::dumps(&call.name.as_str().into());
    format!("{{\"name\": {name}, \"{key}\": {}}}", python::dumps(&call.arguments))
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
