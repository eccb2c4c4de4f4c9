//! Conversion of messages, tool calls and actions between Lua tables and [`crate::mdp`], without
//! JSON.

use mlua::{Lua, Table, Value};
use serde_json::Value as Json;

use super::convert::{Odd, from_json, kind, show, to_json};
use crate::error::{nearest, suggest};
use crate::mdp::conversation::{IGNORED_FIELDS, MESSAGE_FIELDS, parts};
use crate::mdp::{Action, Content, Message, Role, ToolCall};

/// A list of message tables; `at` is its name in errors.
pub(crate) fn messages(list: &Table, at: &str) -> Result<Vec<Message>, String> {
    let mut out = Vec::with_capacity(list.raw_len());
    for index in 1..=list.raw_len() {
        let item: Value = list.raw_get(index).map_err(|error| error.to_string())?;
        out.push(message(&item, &|| format!("{at}[{index}]"))?);
    }
    if out.is_empty() {
        let named = list.pairs::<Value, Value>().next().is_some();
        return Err(if named { format!("{at} is not a list of messages") } else { format!("{at} is empty") });
    }
    Ok(out)
}

fn message(value: &Value, at: &dyn Fn() -> String) -> Result<Message, String> {
    let Value::Table(table) = value else {
        return Err(format!("{} is {}; a message is a table with `role` and `content`", at(), kind(value)));
    };
    let mut message = Message::new(Role::User, Content::default());
    let mut role = None;
    let text = |name: &str, value: &Value| match value {
        Value::String(text) => Ok(text.to_string_lossy()),
        other => Err(format!("{}.{name} is {}; it must be text", at(), kind(other))),
    };
    table
        .for_each(|key: Value, value: Value| {
            let Value::String(name) = &key else {
                return Err(mlua::Error::runtime(format!("{} has the key {}", at(), show(&key))));
            };
            let mut set = || -> Result<(), String> {
                match &*name.as_bytes() {
                    b"role" => role = Some(self::role(&value, at)?),
                    b"content" => message.content = content(&value, at)?,
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
                        return Err(format!("{} has the unknown field `{name}` ({help})", at()));
                    }
                }
                Ok(())
            };
            set().map_err(mlua::Error::runtime)
        })
        .map_err(|error| match error {
            mlua::Error::RuntimeError(message) => message,
            other => other.to_string(),
        })?;
    message.role = role.ok_or_else(|| format!("{} has no `role`", at()))?;
    Ok(message)
}

fn role(value: &Value, at: &dyn Fn() -> String) -> Result<Role, String> {
    let names = ["system", "user", "assistant", "tool"];
    if let Value::String(name) = value {
        if let Some(role) = name.to_str().ok().and_then(|name| Role::from_name(&name)) {
            return Ok(role);
        }
        let near = nearest(&name.to_string_lossy(), names);
        if let [near, ..] = near[..] {
            return Err(format!("{}.role is {}; did you mean `{near}`?", at(), kind(value)));
        }
    }
    Err(format!("{}.role is {}; it is one of `{}`", at(), kind(value), names.join("`, `")))
}

fn content(value: &Value, at: &dyn Fn() -> String) -> Result<Content, String> {
    match value {
        Value::String(text) => Ok(Content::Text(text.to_string_lossy())),
        Value::Table(table) => {
            let json = to_json(value, "content", Odd::Refuse)?;
            match json {
                Json::Array(list) => parts(&list),
                Json::Object(_) if table.raw_len() == 0 => parts(&[]),
                _ => Err("it has named fields".to_owned()),
            }
            .map_err(|why| format!("{}.content is not a list of parts: {why}", at()))
        }
        other => Err(format!("{}.content is {}; it is text or a list of parts", at(), kind(other))),
    }
}

/// Calls in the form that [`action`] makes, or in the OpenAI shape (`function = { name, arguments =
/// "json" }`).
fn tool_calls(value: &Value, at: &dyn Fn() -> String) -> Result<Vec<ToolCall>, String> {
    let json = to_json(value, &at(), Odd::Refuse)?;
    let items = match json {
        Json::Array(items) => items,
        Json::Object(fields) if fields.is_empty() => Vec::new(),
        _ => return Err(format!("{} is not a list of calls", at())),
    };
    let call = |(index, json): (usize, &Json)| {
        ToolCall::from_json(json).map_err(|why| format!("{}[{}] {why}", at(), index + 1))
    };
    items.iter().enumerate().map(call).collect()
}

/// An action as `lua/measure.lua` takes it: text, token ids, finish reason, calls; nil for an empty
/// list.
pub(crate) type Parts<'a> = (&'a str, Option<Table>, &'static str, Option<Table>);

/// The parts of an action for a script. Calls that could not be parsed follow the parsed ones, as
/// `{ error = … }`.
pub(crate) fn action<'a>(lua: &Lua, action: &'a Action) -> mlua::Result<Parts<'a>> {
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
