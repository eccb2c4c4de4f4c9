//! Conversion of messages, tool calls and actions between Lua tables and [`crate::mdp`], without
//! JSON.

use mlua::{Lua, Table, Value};
use serde_json::Value as Json;

use super::convert::{NonJson, Stopped, each_pair, from_json, kind, show, to_json};
use crate::error::{nearest, suggest};
use crate::mdp::conversation::{IGNORED_FIELDS, MESSAGE_FIELDS, parts};
use crate::mdp::{Action, Content, Invalid, Message, Role, ToolCall};

/// Name of a value, computed only for an error.
type ValuePath<'a> = &'a dyn Fn() -> String;

/// A list of message tables; `at` is its name in errors.
///
/// # Errors
/// The invalid field of a message.
pub(crate) fn messages(list: &Table, at: &str) -> Result<Vec<Message>, Invalid> {
    let mut out = Vec::with_capacity(list.raw_len());
    for index in 1..=list.raw_len() {
        let item: Value = list.raw_get(index).map_err(|error| machine(at, &error))?;
        out.push(message(&item, &|| format!("{at}[{index}]"))?);
    }
    if out.is_empty() {
        let named = list.pairs::<Value, Value>().next().is_some();
        return Err(Invalid::new(at, if named { "is not a list of messages" } else { "is empty" }));
    }
    Ok(out)
}

/// The virtual machine could not read a value.
fn machine(at: &str, error: &mlua::Error) -> Invalid {
    Invalid::new(at, format!("can't be read: {error}"))
}

fn message(value: &Value, at: ValuePath<'_>) -> Result<Message, Invalid> {
    let Value::Table(table) = value else {
        let problem = format!("is {}; a message is a table with `role` and `content`", kind(value));
        return Err(Invalid::new(at(), problem));
    };
    let mut message = Message::new(Role::User, Content::default());
    let mut role = None;
    let text = |name: &str, value: &Value| match value {
        Value::String(text) => Ok(text.to_string_lossy()),
        other => Err(Invalid::new(format!("{}.{name}", at()), format!("is {}; it must be text", kind(other)))),
    };
    each_pair(table, |key: Value, value: Value| {
        let Value::String(name) = &key else {
            return Err(Invalid::new(at(), format!("has the key {}", show(&key))));
        };
        match &*name.as_bytes() {
            b"role" => role = Some(self::role(&value, at)?),
            b"content" => message.content = content(&value, &|| format!("{}.content", at()))?,
            b"reasoning_content" => message.reasoning_content = Some(text("reasoning_content", &value)?),
            b"name" => message.name = Some(text("name", &value)?),
            b"tool_call_id" => message.tool_call_id = Some(text("tool_call_id", &value)?),
            b"tool_calls" => message.tool_calls = tool_calls(&value, &|| format!("{}.tool_calls", at()))?,
            // Used by supervised training.
            b"weight" => {}
            name if IGNORED_FIELDS.iter().any(|ignored| ignored.as_bytes() == name) => {}
            _ => {
                let name = name.to_string_lossy();
                let help = suggest(&name, MESSAGE_FIELDS);
                return Err(Invalid::new(at(), format!("has the unknown field `{name}` ({help})")));
            }
        }
        Ok(())
    })
    .map_err(|stopped| match stopped {
        Stopped::By(error) => error,
        Stopped::Machine(error) => machine(&at(), &error),
    })?;
    message.role = role.ok_or_else(|| Invalid::new(at(), "has no `role`"))?;
    Ok(message)
}

fn role(value: &Value, at: ValuePath<'_>) -> Result<Role, Invalid> {
    let invalid = |help: &str| Invalid::new(format!("{}.role", at()), format!("is {}; {help}", kind(value)));
    let names = ["system", "user", "assistant", "tool"];
    if let Value::String(name) = value {
        if let Some(role) = name.to_str().ok().and_then(|name| Role::from_name(&name)) {
            return Ok(role);
        }
        let near = nearest(&name.to_string_lossy(), names);
        if let [near, ..] = near[..] {
            return Err(invalid(&format!("did you mean `{near}`?")));
        }
    }
    Err(invalid(&format!("it is one of `{}`", names.join("`, `"))))
}

fn content(value: &Value, at: ValuePath<'_>) -> Result<Content, Invalid> {
    let not_parts = |why: &str| Invalid::new(at(), format!("is not a list of parts: {why}"));
    let read = |list: &[Json]| parts(list).map_err(|error| not_parts(&error.to_string()));
    match value {
        Value::String(text) => Ok(Content::Text(text.to_string_lossy())),
        Value::Table(table) => {
            let json = to_json(value, &at(), NonJson::Refuse)?;
            match json {
                Json::Array(list) => read(&list),
                Json::Object(_) if table.raw_len() == 0 => read(&[]),
                _ => Err(not_parts("it has named fields")),
            }
        }
        other => Err(Invalid::new(at(), format!("is {}; it is text or a list of parts", kind(other)))),
    }
}

/// Calls in the form that [`action`] makes, or in the OpenAI shape (`function = { name, arguments =
/// "json" }`).
fn tool_calls(value: &Value, at: ValuePath<'_>) -> Result<Vec<ToolCall>, Invalid> {
    let json = to_json(value, &at(), NonJson::Refuse)?;
    let items = match json {
        Json::Array(items) => items,
        Json::Object(fields) if fields.is_empty() => Vec::new(),
        _ => return Err(Invalid::new(at(), "is not a list of calls")),
    };
    let call = |(index, json): (usize, &Json)| {
        ToolCall::from_json(json).map_err(|error| error.inside(&format!("{}[{}]", at(), index + 1)))
    };
    items.iter().enumerate().map(call).collect()
}

/// An action as `lua/measure.lua` takes it: text, token ids, finish reason, calls; nil for an empty
/// list.
pub(crate) type ActionParts<'a> = (&'a str, Option<Table>, &'static str, Option<Table>);

/// The parts of an action for a script. Calls that could not be parsed follow the parsed ones, as
/// `{ error = … }`.
pub(crate) fn action<'a>(lua: &Lua, action: &'a Action) -> mlua::Result<ActionParts<'a>> {
    let ids = (!action.token_ids.is_empty()).then(|| lua.create_sequence_from(action.token_ids.iter().copied()));
    let (text, ids, reason) = (action.text.as_str(), ids.transpose()?, action.finish_reason.name());
    if action.tool_calls.is_empty() && action.errors.is_empty() {
        return Ok((text, ids, reason, None));
    }
    let calls = lua.create_table_with_capacity(action.tool_calls.len() + action.errors.len(), 0)?;
    for call in &action.tool_calls {
        let item = lua.create_table_with_capacity(0, 3)?;
        item.raw_set("id", call.id.as_deref())?;
        item.raw_set("name", call.name.as_str())?;
        item.raw_set("arguments", from_json(lua, &call.arguments)?)?;
        calls.raw_push(item)?;
    }
    for error in &action.errors {
        let item = lua.create_table_with_capacity(0, 1)?;
        item.raw_set("error", error.as_str())?;
        calls.raw_push(item)?;
    }
    Ok((text, ids, reason, Some(calls)))
}
