//! `r1.tool`: a tool written in Lua.

use std::time::{Duration, Instant};

use futures_util::future::LocalBoxFuture;
use mlua::{ErrorContext, Function, Lua, Table, Value};
use serde_json::{Map, Value as Json, json};

use super::super::args::{fail, fail_with, raise, refused};
use super::super::arguments::{Arguments, arguments};
use super::super::call;
use super::declaration::ToolArguments;
use super::host_tool::{AttemptResult, CallAttempt, HostTool};
use super::limits::LimitArguments;
use crate::error::{Error, Kind, Result, Subject};
use crate::script::runtime::convert::{self, NonJson, kind, to_json};
use crate::script::runtime::host::misuse;
use crate::script::runtime::place::at_definition;
use crate::script::runtime::suspended::{Suspended, with_room};
use crate::script::runtime::tool::{LuaTool, Run, ToolHandle};
use crate::text::schema;
use crate::text::schema_order::schema_in_order;
use crate::tools::Output;

arguments! {
    /// Arguments of `r1.tool`.
    pub(crate) struct LuaToolArguments {
        run: Function, needs("a function of the arguments");
        parameters: Json;
        timeout: Option<Duration>;
        + tool: ToolArguments;
        + limits: LimitArguments;
    }
}

/// `r1.tool { name =, description =, parameters =, timeout =, run = function(arguments) … end }`.
pub(super) fn declare(lua: &Lua, value: &Value) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tool";
    let LuaToolArguments { run, parameters, timeout, tool, limits } = LuaToolArguments::read(lua, NAME, value)?;
    if tool.name.is_none() {
        return Err(fail(lua, NAME, "needs `name`"));
    }
    let parameters = self::parameters(parameters).map_err(|error| fail_with(lua, NAME, error))?;
    schema::refuse_unknown(&parameters).map_err(|why| {
        let dot = if why.path.is_empty() { "" } else { "." };
        refused(lua, NAME, &format!("parameters{dot}{}", why.path), format!("`parameters`: {why}"))
    })?;
    Ok(tool.tool(lua, "", "", parameters, limits.into(), Run::Lua(LuaTool { run, timeout })))
}

/// A JSON Schema, or the short form `{ city = { type = "string" }, days = "integer" }`, in which
/// parameters without `optional = true` are required.
fn parameters(declared: Json) -> Result<Json> {
    let wrong = |name: String, message: String| Err(Error::new(Kind::Script, message).about_setting(name));
    let mut declared = match declared {
        Json::Null => Map::new(),
        Json::Object(declared) => declared,
        _ => return wrong("parameters".to_owned(), "`parameters` must be a table of named parameters".to_owned()),
    };
    if declared.get("type").and_then(Json::as_str) == Some("object") {
        declared.entry("properties").or_insert_with(|| json!({}));
        // An empty Lua table may be a list or an object.
        if declared.get("required").is_some_and(|required| required.as_object().is_some_and(Map::is_empty)) {
            declared.remove("required");
        }
        return Ok(schema_in_order(&Json::Object(declared)));
    }
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, schema) in declared {
        let mut schema = match schema {
            Json::String(kind) => Map::from_iter([("type".to_owned(), Json::String(kind))]),
            Json::Object(schema) => schema,
            _ => {
                let message = format!("parameter `{name}` must be a type such as \"string\", or a schema");
                return wrong(format!("parameters.{name}"), message);
            }
        };
        if schema.remove("optional") != Some(Json::Bool(true)) {
            required.push(name.clone());
        }
        properties.insert(name, Json::Object(schema));
    }
    // Tables are unordered; sorting makes the prompt deterministic.
    required.sort_unstable();
    Ok(schema_in_order(&json!({ "type": "object", "properties": properties, "required": required })))
}

impl HostTool for LuaTool {
    fn call<'a>(&'a self, attempt: &'a CallAttempt<'a>) -> LocalBoxFuture<'a, mlua::Result<AttemptResult>> {
        Box::pin(async move {
            let (lua, name) = (attempt.lua, &attempt.tool().name);
            let started = Instant::now();
            let options = match attempt.tool().limits.cache {
                Some(_) => without_state(lua, name, &attempt.of.options)?,
                None => attempt.of.options.clone(),
            };
            let arguments = (attempt.of.lua_arguments.clone(), options);
            let mut future = Suspended::<(Value, Value, Value, Value)>::inner(lua, &self.run, arguments);
            let called = |result: mlua::Result<_>| result.context(format!("{}, tool `{name}`", call::NAME));
            let result = match self.timeout {
                None => Some(called(future.await)?),
                Some(limit) => {
                    let result = attempt.call.within(limit, &mut future).await;
                    with_room(lua, || drop(future));
                    result.map(called).transpose()?
                }
            };
            let timed_out = result.is_none();
            let Returned { text, images, ok, reward, retryable } = if let Some(values) = result {
                let returned = read_result(attempt, &self.run, &values)?;
                Returned { text: attempt.cut(returned.text), ..returned }
            } else {
                let seconds = self.timeout.unwrap_or_default().as_secs_f64();
                Returned { text: format!("Error: timed out after {seconds} s"), ..Returned::default() }
            };
            let seconds = started.elapsed().as_secs_f64();
            let output = Output { text, images, ok, timed_out, seconds, ..Output::default() };
            Ok(AttemptResult { output, reward, retryable })
        })
    }
}

/// Options for a tool with a cache: its results must only depend on the arguments.
fn without_state(lua: &Lua, name: &str, options: &Value) -> mlua::Result<Value> {
    let copied = lua.create_table()?;
    if let Value::Table(options) = options {
        options.for_each(
            |name: String, value: Value| if name == "state" { Ok(()) } else { copied.raw_set(name, value) },
        )?;
    }
    let refused = format!("tool `{name}` has a cache and uses call.state: its results would depend on the trajectory");
    let meta = lua.create_table()?;
    let index = move |lua: &Lua, (_, key): (Table, Value)| -> mlua::Result<Value> {
        if key.as_string().is_some_and(|key| *key == "state") {
            let hint = "leave out `cache`, or pass what the tool needs as arguments";
            return Err(raise(misuse(lua, refused.clone()).hint(hint)));
        }
        Ok(Value::Nil)
    };
    meta.raw_set("__index", lua.create_function(index)?)?;
    copied.set_metatable(Some(meta))?;
    Ok(Value::Table(copied))
}

/// Result of a tool written in Lua.
#[derive(Default)]
struct Returned {
    text: String,
    /// Hashes of images.
    images: Vec<String>,
    ok: bool,
    reward: Option<f64>,
    retryable: bool,
}

/// Text, an image or parts, and a process reward; or nil, an error message, a process reward, and
/// whether a retry may succeed.
fn read_result(
    attempt: &CallAttempt<'_>,
    run: &Function,
    values: &(Value, Value, Value, Value),
) -> mlua::Result<Returned> {
    let name = &attempt.tool().name;
    let wrong = |field: &str, what: String| {
        let subject = Subject::Returned { function: format!("tool {name}"), field: Some(field.to_owned()) };
        raise(at_definition(run, format!("tool `{name}` {what}")).about(subject))
    };
    let reward_of = |value: &Value| match value {
        Value::Nil => Ok(None),
        Value::Integer(_) | Value::Number(_) => {
            let reward = convert::float(value).filter(|reward| reward.is_finite());
            let why = || wrong("reward", format!("returned the reward {}", convert::show(value)));
            reward.map(Some).ok_or_else(why)
        }
        other => Err(wrong("reward", format!("returned {} as its reward; it must be a number", kind(other)))),
    };
    let (first, second, third, fourth) = values;
    let parts = first.as_table().map(|table| attempt.in_parts(table)).transpose()?.flatten();
    if let Some((text, images)) = parts {
        return Ok(Returned { text, images, ok: true, reward: reward_of(second)?, retryable: false });
    }
    let text = match first {
        Value::String(text) => text.to_string_lossy(),
        Value::Integer(_) | Value::Number(_) | Value::Boolean(_) => first.to_string()?,
        Value::Table(_) => to_json(first, "the result", NonJson::Refuse)
            .map_err(|not_plain| wrong("result", not_plain.to_string()))?
            .to_string(),
        Value::Nil => {
            let Value::String(message) = second else {
                return Err(wrong("result", "returned nil; it must return text, or nil and a message".to_owned()));
            };
            let retryable = match fourth {
                Value::Nil => false,
                Value::Boolean(retryable) => *retryable,
                other => {
                    let why = "as fourth value; it must be true or false: whether a retry may succeed";
                    return Err(wrong("retryable", format!("returned {} {why}", kind(other))));
                }
            };
            let reward = reward_of(third)?;
            return Ok(Returned { text: message.to_string_lossy(), reward, retryable, ..Returned::default() });
        }
        other => return Err(wrong("result", format!("returned {}; it must return text", kind(other)))),
    };
    Ok(Returned { text, ok: true, reward: reward_of(second)?, ..Returned::default() })
}
