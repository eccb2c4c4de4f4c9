//! Errors and values of the Lua functions of an algorithm.

use mlua::serde::SerializeOptions;
use mlua::{Function, Lua, LuaSerdeExt, Value};
use serde_json::Value as Json;

use crate::error::{Error, Kind};

/// Maximum length of a message, in characters.
const MESSAGE: usize = 2000;

/// An error of the host as one of Lua.
pub(crate) fn raise(error: Error) -> mlua::Error {
    mlua::Error::external(error)
}

/// A misuse of `function`, at the line of its caller.
pub(super) fn fail(lua: &Lua, function: &str, message: impl std::fmt::Display) -> mlua::Error {
    raise(misuse(lua, &format!("{function}: {message}")))
}

/// The error for a misuse of a host function, at the calling line.
pub(super) fn misuse(lua: &Lua, message: &str) -> Error {
    let error = Error::new(Kind::Script, message.chars().take(MESSAGE).collect::<String>());
    match location(lua) {
        Some(location) => error.at(location),
        None => error,
    }
}

/// The nearest frame of a file, as `path:line`. Sources of files start with `@`.
pub(super) fn location(lua: &Lua) -> Option<String> {
    let frame = |level: usize| {
        lua.inspect_stack(level, |frame| {
            let source = frame.source().source?.strip_prefix('@')?.to_owned();
            Some(format!("{source}:{}", frame.current_line()?))
        })
    };
    (0..64).map_while(frame).flatten().next()
}

/// The line where a function is defined: `my_loss.lua:14`.
pub(crate) fn definition(function: &Function) -> Option<String> {
    let info = function.info();
    let path = info.source?.strip_prefix('@')?.to_owned();
    Some(format!("{path}:{}", info.line_defined?))
}

/// An error with the line where `function` is defined as its place, unless a closer one is known.
pub(crate) fn at_function(function: &Function, error: Error) -> Error {
    match definition(function) {
        Some(location) => error.at(location),
        None => error,
    }
}

/// Options as a Lua value.
pub(super) fn from_json(lua: &Lua, json: &Json) -> mlua::Result<Value> {
    let options = SerializeOptions::new().set_array_metatable(false).serialize_none_to_null(false);
    lua.to_value_with(json, options.serialize_unit_to_null(false))
}

pub(super) fn kind(value: &Value) -> String {
    match value {
        Value::Nil => "nil".to_owned(),
        Value::Boolean(truth) => truth.to_string(),
        Value::Integer(_) | Value::Number(_) => format!("the number {}", value.to_string().unwrap_or_default()),
        Value::String(text) => {
            format!("the text {:?}", text.to_string_lossy().chars().take(40).collect::<String>())
        }
        Value::Table(_) => "a table".to_owned(),
        other => format!("a {}", other.type_name()),
    }
}
