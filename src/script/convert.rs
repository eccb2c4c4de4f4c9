//! Between Lua values and plain data: JSON, messages, observations.
//!
//! Lua has one table type and one number type. Going out, a table whose keys are exactly 1..n is a list, one whose
//! keys are strings is an object, an empty one is an object (unless it came in as an empty list); whole numbers up
//! to 2^53 are integers. Coming in, `null` in an object is left out, and in a list it is `r1.json.null`.

use mlua::{Lua, Table, Value};
use serde_json::{Map, Number, Value as Json};

use crate::error::{nearest, suggest};
use crate::mdp::{Action, Content, Message, Part, Role, ToolCall};

/// Deepest nesting of tables that is taken for data; a cycle runs into it.
const DEPTH: usize = 100;

/// The key under which a snapshot keeps what JSON has no form for.
const TAG: &str = "$r1";

/// What to do with data that JSON can't hold: tables with other keys, strings that are not UTF-8, NaN, infinity.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Odd {
    /// Say so.
    Refuse,
    /// Keep it under [`TAG`], for [`from_snapshot`] to read.
    Tag,
}

/// Plain data as JSON; `at` names the value in messages (`state`, `policy`).
pub(crate) fn to_json(value: &Value, at: &str, odd: Odd) -> Result<Json, String> {
    let mut path = at.to_owned();
    write_json(value, &mut path, odd, 0)
}

fn write_json(value: &Value, path: &mut String, odd: Odd, depth: usize) -> Result<Json, String> {
    let tagged = |kind: &str, value: Json| {
        let mut map = Map::new();
        map.insert(TAG.to_owned(), Json::String(kind.to_owned()));
        map.insert("value".to_owned(), value);
        Json::Object(map)
    };
    match value {
        Value::Nil => Ok(Json::Null),
        value if value.is_null() => Ok(Json::Null),
        Value::Boolean(truth) => Ok(Json::Bool(*truth)),
        Value::Integer(whole) => Ok(Json::Number((*whole).into())),
        Value::Number(number) => match Number::from_f64(*number) {
            Some(number) => Ok(Json::Number(number)),
            None if odd == Odd::Tag => Ok(tagged("number", Json::String(number.to_string()))),
            None => Err(format!("{path} is {}", show(value))),
        },
        Value::String(text) => match text.to_str() {
            Ok(text) => Ok(Json::String(text.to_owned())),
            Err(_) if odd == Odd::Tag => {
                Ok(tagged("bytes", text.as_bytes().iter().map(|byte| Json::from(*byte)).collect()))
            }
            Err(_) => Err(format!("{path} is not valid UTF-8")),
        },
        Value::Table(table) => {
            if depth == DEPTH {
                return Err(format!("{} is nested too deeply, or contains itself", short(path)));
            }
            let empty_list = is_empty_list(table);
            if table.metatable().is_some() && !empty_list {
                return Err(format!("{path} has a metatable; plain data has none"));
            }
            let length = table.raw_len();
            let mut list = Vec::with_capacity(length);
            let mut object = Map::new();
            let mut others = Vec::new();
            let start = path.len();
            table
                .for_each(|key: Value, item: Value| {
                    match &key {
                        Value::Integer(index) => path.push_str(&format!("[{index}]")),
                        Value::String(name) => path.push_str(&format!(".{}", name.to_string_lossy())),
                        other => path.push_str(&format!("[{}]", show(other))),
                    }
                    let json = write_json(&item, path, odd, depth + 1).map_err(mlua::Error::runtime)?;
                    path.truncate(start);
                    match key {
                        Value::Integer(index) if index as usize == list.len() + 1 => list.push(json),
                        Value::String(name) if others.is_empty() && name.to_str().is_ok() => {
                            object.insert(name.to_string_lossy(), json);
                        }
                        key => others.push((key, json)),
                    }
                    Ok(())
                })
                .map_err(|error| match error {
                    mlua::Error::RuntimeError(message) => message,
                    other => other.to_string(),
                })?;
            let kinds =
                usize::from(!list.is_empty()) + usize::from(!object.is_empty()) + usize::from(!others.is_empty());
            if kinds <= 1 && others.is_empty() && !object.contains_key(TAG) {
                return Ok(if object.is_empty() && (empty_list || !list.is_empty()) {
                    Json::Array(list)
                } else {
                    Json::Object(object)
                });
            }
            if odd == Odd::Refuse {
                return Err(if list.is_empty() && object.is_empty() {
                    format!("{path} has keys that are neither names nor 1, 2, 3 …")
                } else {
                    format!("{path} mixes a list with named keys")
                });
            }
            let mut pairs: Vec<Json> = list
                .into_iter()
                .enumerate()
                .map(|(index, item)| Json::Array(vec![Json::from(index + 1), item]))
                .collect();
            pairs.extend(object.into_iter().map(|(name, item)| Json::Array(vec![Json::String(name), item])));
            for (key, item) in others {
                if matches!(key, Value::Table(_)) {
                    return Err(format!("{path} has a table as a key"));
                }
                let key = write_json(&key, path, odd, depth + 1)?;
                pairs.push(Json::Array(vec![key, item]));
            }
            Ok(tagged("pairs", Json::Array(pairs)))
        }
        other => Err(format!("{path} is a {}; plain data holds text, numbers, booleans and tables", other.type_name())),
    }
}

/// The first part of a path that repeats itself.
fn short(path: &str) -> &str {
    path.char_indices().nth(60).map_or(path, |(end, _)| &path[..end])
}

fn is_empty_list(table: &Table) -> bool {
    table.raw_len() == 0 && table.metatable().is_some_and(|meta| meta.raw_get::<bool>("__r1_list").unwrap_or(false))
}

/// JSON as Lua data.
pub(crate) fn from_json(lua: &Lua, json: &Json) -> mlua::Result<Value> {
    match json {
        Json::Null => Ok(Value::Nil),
        Json::Bool(truth) => Ok(Value::Boolean(*truth)),
        Json::Number(number) => Ok(number_value(number)),
        Json::String(text) => Ok(Value::String(lua.create_string(text)?)),
        Json::Array(items) => {
            let list = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                let value = from_json(lua, item)?;
                list.raw_push(if value.is_nil() { Value::NULL } else { value })?;
            }
            if items.is_empty() {
                list.set_metatable(Some(list_metatable(lua)?))?;
            }
            Ok(Value::Table(list))
        }
        Json::Object(fields) => {
            let object = lua.create_table_with_capacity(0, fields.len())?;
            for (name, item) in fields {
                object.raw_set(name.as_str(), from_json(lua, item)?)?;
            }
            Ok(Value::Table(object))
        }
    }
}

/// Marks a list that came in empty, so that it goes out as `[]`.
fn list_metatable(lua: &Lua) -> mlua::Result<Table> {
    const KEY: &str = "r1.empty_list";
    if let Ok(Some(meta)) = lua.named_registry_value::<Option<Table>>(KEY) {
        return Ok(meta);
    }
    let meta = lua.create_table()?;
    meta.raw_set("__r1_list", true)?;
    meta.set_readonly(true);
    lua.set_named_registry_value(KEY, &meta)?;
    Ok(meta)
}

fn number_value(number: &Number) -> Value {
    match number.as_i64() {
        Some(whole) => Value::Integer(whole),
        None => Value::Number(number.as_f64().unwrap_or(f64::NAN)),
    }
}

/// The inverse of [`to_json`] with [`Odd::Tag`].
pub(crate) fn from_snapshot(lua: &Lua, json: &Json) -> mlua::Result<Value> {
    let bad = || mlua::Error::runtime("not a snapshot of a state");
    match json {
        Json::Object(fields) if fields.contains_key(TAG) => {
            let value = fields.get("value").ok_or_else(bad)?;
            match (fields.get(TAG).and_then(Json::as_str), value) {
                (Some("number"), Json::String(text)) => Ok(Value::Number(text.parse().map_err(|_| bad())?)),
                (Some("bytes"), Json::Array(bytes)) => {
                    let bytes: Vec<u8> = bytes.iter().filter_map(Json::as_u64).map(|byte| byte as u8).collect();
                    Ok(Value::String(lua.create_string(bytes)?))
                }
                (Some("pairs"), Json::Array(pairs)) => {
                    let table = lua.create_table_with_capacity(0, pairs.len())?;
                    for pair in pairs {
                        let key = from_snapshot(lua, pair.get(0).ok_or_else(bad)?)?;
                        table.raw_set(key, from_snapshot(lua, pair.get(1).ok_or_else(bad)?)?)?;
                    }
                    Ok(Value::Table(table))
                }
                _ => Err(bad()),
            }
        }
        Json::Object(fields) => {
            let object = lua.create_table_with_capacity(0, fields.len())?;
            for (name, item) in fields {
                object.raw_set(name.as_str(), from_snapshot(lua, item)?)?;
            }
            Ok(Value::Table(object))
        }
        Json::Array(items) if !items.is_empty() => {
            let list = lua.create_table_with_capacity(items.len(), 0)?;
            for item in items {
                let value = from_snapshot(lua, item)?;
                list.raw_push(if value.is_nil() { Value::NULL } else { value })?;
            }
            Ok(Value::Table(list))
        }
        plain => from_json(lua, plain),
    }
}

/// A copy that shares no table with the original.
pub(crate) fn deep_copy(lua: &Lua, value: &Value, depth: usize) -> mlua::Result<Value> {
    let Value::Table(table) = value else { return Ok(value.clone()) };
    if depth == DEPTH {
        return Err(mlua::Error::runtime("the state is nested too deeply, or contains itself"));
    }
    let copy = lua.create_table_with_capacity(table.raw_len(), 0)?;
    table.for_each(|key: Value, item: Value| copy.raw_set(key, deep_copy(lua, &item, depth + 1)?))?;
    copy.set_metatable(table.metatable())?;
    Ok(Value::Table(copy))
}

/// A Lua number, whole or not.
pub(crate) fn float(value: &Value) -> Option<f64> {
    match value {
        Value::Integer(whole) => Some(*whole as f64),
        Value::Number(number) => Some(*number),
        _ => None,
    }
}

/// A value as a person reads it in a message: short, on one line.
pub(crate) fn show(value: &Value) -> String {
    match value {
        Value::Nil => "nil".to_owned(),
        value if value.is_null() => "null".to_owned(),
        Value::Number(number) if number.is_nan() => "NaN".to_owned(),
        Value::Number(number) if number.is_infinite() => "infinity".to_owned(),
        Value::String(text) => format!("\"{}\"", clip(&text.to_string_lossy(), 60)),
        Value::Boolean(_) | Value::Integer(_) | Value::Number(_) => value.to_string().unwrap_or_default(),
        Value::Table(_) => {
            to_json(value, "", Odd::Refuse).map_or_else(|_| "a table".to_owned(), |json| clip(&json.to_string(), 200))
        }
        other => format!("a {}", other.type_name()),
    }
}

/// At most `most` characters; what is cut off is shown as `…`.
pub(crate) fn clip(text: &str, most: usize) -> String {
    match text.char_indices().nth(most) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// A name for the type of a value, with its article: what was got where something else was wanted.
pub(crate) fn kind(value: &Value) -> String {
    match value {
        Value::Nil | Value::Boolean(_) => show(value),
        Value::Integer(_) | Value::Number(_) => format!("the number {}", show(value)),
        Value::String(_) => format!("the text {}", show(value)),
        Value::Table(_) => "a table".to_owned(),
        other => format!("a {}", other.type_name()),
    }
}

/// A list of message tables; `at` names it in messages of errors.
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

const MESSAGE_FIELDS: [&str; 6] = ["role", "content", "reasoning_content", "tool_calls", "name", "tool_call_id"];

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
        match &*name.as_bytes() {
            b"system" => return Ok(Role::System),
            b"user" => return Ok(Role::User),
            b"assistant" => return Ok(Role::Assistant),
            b"tool" => return Ok(Role::Tool),
            _ => {}
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
        Value::Table(parts) => {
            let json = to_json(value, "content", Odd::Refuse)?;
            let list = if parts.raw_len() == 0 { Json::Array(Vec::new()) } else { json };
            let parts: Vec<Part> = serde_json::from_value(list)
                .map_err(|error| format!("{}.content is not a list of parts: {error}", at()))?;
            Ok(Content::Parts(parts))
        }
        other => Err(format!("{}.content is {}; it is text or a list of parts", at(), kind(other))),
    }
}

/// Calls as [`action`] makes them, or in the OpenAI shape (`function = { name, arguments = "json" }`).
fn tool_calls(value: &Value, at: &dyn Fn() -> String) -> Result<Vec<ToolCall>, String> {
    let json = to_json(value, &at(), Odd::Refuse)?;
    let items = match json {
        Json::Array(items) => items,
        Json::Object(fields) if fields.is_empty() => Vec::new(),
        _ => return Err(format!("{} is not a list of calls", at())),
    };
    items.iter().map(tool_call).collect::<Option<Vec<_>>>().ok_or_else(|| {
        format!("{} holds something that is not a call; a call is {{ name = …, arguments = {{ … }} }}", at())
    })
}

fn tool_call(json: &Json) -> Option<ToolCall> {
    let own = json.get("function").unwrap_or(json);
    let arguments = match own.get("arguments") {
        Some(Json::String(text)) => serde_json::from_str(text).ok()?,
        Some(arguments) => arguments.clone(),
        None => Json::Object(Map::new()),
    };
    Some(ToolCall {
        id: json.get("id").and_then(Json::as_str).map(str::to_owned),
        name: own.get("name")?.as_str()?.to_owned(),
        arguments,
    })
}

/// An action as a script sees it. Calls that could not be parsed follow the good ones, as `{ error = … }`.
pub(crate) fn action(lua: &Lua, action: &Action) -> mlua::Result<Table> {
    let table = lua.create_table_with_capacity(0, 4)?;
    table.raw_set("text", action.text.as_str())?;
    table.raw_set("token_ids", lua.create_sequence_from(action.token_ids.iter().copied())?)?;
    table.raw_set("finish_reason", action.finish_reason.name())?;
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
    table.raw_set("tool_calls", calls)?;
    Ok(table)
}
