//! Conversations in datasets, as JSON: the format of the OpenAI chat and fine-tuning API, with the
//! changes that Hugging Face datasets and Parquet files make (missing values as null, arguments as
//! tables).

use serde_json::{Map, Value};

use super::{Content, Invalid, Message, Part, Role, ToolCall};
use crate::error::suggest;
use crate::json;

/// Fields of a message that r1 reads.
pub const MESSAGE_FIELDS: [&str; 7] =
    ["role", "content", "reasoning_content", "tool_calls", "name", "tool_call_id", "weight"];

/// Fields that other programs write into messages; ignored here.
pub const IGNORED_FIELDS: [&str; 5] = ["annotations", "audio", "refusal", "function_call", "id"];

/// Roles and their other names: OpenAI's `developer` is the system prompt, `function` the result of
/// a tool.
const ROLES: [(&str, Role); 6] = [
    ("system", Role::System),
    ("developer", Role::System),
    ("user", Role::User),
    ("assistant", Role::Assistant),
    ("tool", Role::Tool),
    ("function", Role::Tool),
];

/// A message of a row for supervised training.
#[derive(Clone, Debug, PartialEq)]
pub struct DatasetMessage {
    pub message: Message,
    /// Has a loss in supervised training: `weight` is not 0. Only assistant messages have a loss.
    pub trained: bool,
}

impl Role {
    /// The role with this name, including other names.
    pub fn from_name(name: &str) -> Option<Self> {
        ROLES.iter().find(|(other, _)| *other == name).map(|(_, role)| *role)
    }
}

impl ToolCall {
    /// A call as r1 writes it (`{ name, arguments }`) or in the OpenAI format (`{ function = {
    /// name, arguments } }`), with the arguments as a table or as JSON text.
    ///
    /// # Errors
    /// The missing field or the invalid JSON; the path is that within the call.
    pub fn from_json(json: &Value) -> Result<Self, Invalid> {
        let function = json.get("function").filter(|function| function.is_object()).unwrap_or(json);
        let Some(name) = function.get("name").and_then(Value::as_str) else {
            return Err(Invalid::new("", "is not a call; a call is { name = …, arguments = { … } }"));
        };
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => Value::Object(Map::new()),
            Some(Value::String(text)) if text.trim().is_empty() => Value::Object(Map::new()),
            Some(Value::String(text)) => json::read(text.as_bytes())
                .map_err(|error| Invalid::new("", format!("has arguments that are not JSON: {error}")))?,
            Some(arguments) => arguments.clone(),
        };
        let id = json.get("id").and_then(Value::as_str).map(str::to_owned);
        Ok(Self { id, name: name.to_owned(), arguments })
    }
}

/// A list of messages, or its JSON text; `at` names it in errors.
///
/// # Errors
/// The invalid message and the reason.
pub fn messages(json: &Value, at: &str) -> Result<Vec<DatasetMessage>, Invalid> {
    let parsed;
    let list = match json {
        Value::Array(list) => list,
        Value::String(text) => {
            parsed = json::read(text.as_bytes()).map_err(|error| Invalid::new(at, format!("is not JSON: {error}")))?;
            parsed.as_array().ok_or_else(|| Invalid::new(at, "is not a list of messages"))?
        }
        other => return Err(Invalid::new(at, format!("is not a list of messages, it is {}", kind(other)))),
    };
    if list.is_empty() {
        return Err(Invalid::new(at, "is empty"));
    }
    list.iter().enumerate().map(|(index, item)| message(item, &format!("{at}[{}]", index + 1))).collect()
}

fn message(json: &Value, at: &str) -> Result<DatasetMessage, Invalid> {
    let field = |name: &str, problem: String| Invalid::new(format!("{at}.{name}"), problem);
    let Some(fields) = json.as_object() else {
        return Err(Invalid::new(at, format!("is {}; a message has `role` and `content`", kind(json))));
    };
    let Some(name) = fields.get("role").and_then(Value::as_str) else {
        return Err(Invalid::new(at, "has no `role`"));
    };
    let Some(role) = Role::from_name(name) else {
        let names: Vec<&str> = ROLES.iter().map(|(name, _)| *name).collect();
        return Err(field("role", format!("is \"{name}\"; it is one of `{}`", names.join("`, `"))));
    };
    let mut row = DatasetMessage { message: Message::new(role, Content::default()), trained: true };
    let message = &mut row.message;
    for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
        let text = || value.as_str().map(str::to_owned).ok_or_else(|| field(name, "is not text".to_owned()));
        match name.as_str() {
            "role" => {}
            "content" => message.content = content(value, at)?,
            "reasoning_content" => message.reasoning_content = Some(text()?),
            "name" => message.name = Some(text()?),
            "tool_call_id" => message.tool_call_id = Some(text()?),
            "tool_calls" => {
                let calls = value.as_array();
                let calls = calls.ok_or_else(|| field(name, "is not a list of calls".to_owned()))?;
                for (index, call) in calls.iter().enumerate() {
                    let path = || format!("{at}.tool_calls[{}]", index + 1);
                    let call = ToolCall::from_json(call).map_err(|error| error.inside(&path()))?;
                    message.tool_calls.push(call);
                }
            }
            "weight" => {
                row.trained = match value.as_f64() {
                    Some(0.0) => false,
                    Some(1.0) => true,
                    _ => return Err(field(name, format!("is {value}; it is 0 or 1"))),
                };
            }
            name if IGNORED_FIELDS.contains(&name) => {}
            _ => {
                let help = suggest(name, MESSAGE_FIELDS);
                return Err(Invalid::new(at, format!("has the unknown field `{name}` ({help})")));
            }
        }
    }
    Ok(row)
}

fn content(json: &Value, at: &str) -> Result<Content, Invalid> {
    let invalid = |problem: String| Invalid::new(format!("{at}.content"), problem);
    match json {
        Value::String(text) => Ok(Content::Text(text.clone())),
        Value::Array(list) => parts(list).map_err(|error| invalid(format!("is not a list of parts: {error}"))),
        other => Err(invalid(format!("is {}; it is text or a list of parts", kind(other)))),
    }
}

/// Content in parts. Fields that are null are absent: columns of Parquet files have every field of
/// every part.
///
/// # Errors
/// The error in the part.
pub fn parts(list: &[Value]) -> Result<Content, serde_json::Error> {
    let part = |part: &Value| {
        let mut part = part.clone();
        if let Some(fields) = part.as_object_mut() {
            fields.retain(|_, value| !value.is_null());
        }
        serde_json::from_value(part)
    };
    let parts: Result<Vec<Part>, _> = list.iter().map(part).collect();
    parts.map(Content::Parts)
}

/// The schemas of tools: a list, or its JSON text; empty if there are none.
///
/// # Errors
/// The type of the invalid value.
pub fn tools(json: Option<&Value>) -> Result<Vec<Value>, Invalid> {
    let not_a_list = |value: &Value| Invalid::new("tools", format!("must be a list, not {}", kind(value)));
    match json {
        None | Some(Value::Null) => Ok(Vec::new()),
        Some(Value::Array(tools)) => Ok(tools.clone()),
        Some(Value::String(text)) if text.trim().is_empty() => Ok(Vec::new()),
        Some(Value::String(text)) => match json::read(text.as_bytes()) {
            Ok(Value::Array(tools)) => Ok(tools),
            Ok(Value::Null) => Ok(Vec::new()),
            Ok(other) => Err(not_a_list(&other)),
            Err(error) => Err(Invalid::new("tools", format!("is not JSON: {error}"))),
        },
        Some(other) => Err(not_a_list(other)),
    }
}

/// The name of a value's type.
pub(super) fn kind(json: &Value) -> &'static str {
    match json {
        Value::Null => "null",
        Value::Bool(_) => "a boolean",
        Value::Number(_) => "a number",
        Value::String(_) => "text",
        Value::Array(_) => "a list",
        Value::Object(_) => "a table",
    }
}
