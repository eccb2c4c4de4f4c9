//! Arguments of host functions: every error names the function, the field and the line.

use std::sync::Arc;
use std::time::Duration;

use mlua::{Lua, Table, Value};
use serde::Serialize;

use super::argument::Argument;
use super::misplaced;
pub(crate) use crate::algorithms::raise;
use crate::config::Limits;
use crate::error::{Error, Kind, clip, suggest};
use crate::json::Odd;
use crate::mdp::Message;
use crate::script::runtime::convert::{NonJson, from_answer, kind, show, to_json};
use crate::script::runtime::host::{Host, MESSAGE, misuse, place};
use crate::script::runtime::limits::WatchedVm;
use crate::script::runtime::source_map::{Location, SourceMap};
use crate::script::runtime::texts::Texts;

/// A misuse of `function`, at the line of its caller.
pub(crate) fn fail(lua: &Lua, function: &str, message: impl std::fmt::Display) -> mlua::Error {
    raise(misuse(lua, format!("{function}: {message}")))
}

/// A value of a field that `function` refuses.
pub(crate) fn refused(lua: &Lua, function: &str, field: &str, why: impl Into<String>) -> mlua::Error {
    fail_with(lua, function, Error::new(Kind::Script, why).about_setting(field))
}

/// Access to a field that an object does not have; `object` is such as "an index".
pub(crate) fn no_field(lua: &Lua, object: &str, name: &Value, names: &[&'static str]) -> mlua::Result<Value> {
    let name = name.to_string()?;
    let error = misuse(lua, format!("{object} has no `{name}`"));
    Err(raise(error.hint(suggest(&name, names.iter().copied()))))
}

/// An argument as plain data; `name` is its name in messages.
pub(crate) fn plain(lua: &Lua, function: &str, name: &str, value: &Value) -> mlua::Result<serde_json::Value> {
    to_json(value, name, NonJson::Refuse).map_err(|not_plain| fail_with(lua, function, not_plain))
}

/// An error, at the caller's line if it has no place.
pub(crate) fn raise_here(lua: &Lua, error: Error) -> mlua::Error {
    raise(Error { place: error.place.or_else(|| place(lua)), ..error })
}

/// An error in a settings section, at the line where the setting is set, or at the caller's line.
pub(crate) fn fail_with(lua: &Lua, function: &str, error: impl Into<Error>) -> mlua::Error {
    let error = error.into();
    let message = clip(&format!("{function}: {}", error.message), MESSAGE);
    let error = Error { message, place: None, ..error };
    let Some(caller) = place(lua) else { return raise(error) };
    let key = error.setting().map(str::to_owned);
    let set = key.and_then(|key| Some((field_place(lua, &caller, function, &key)?, key)));
    raise(match set {
        Some((location, key)) => location.of(error, &key),
        None => error.at(caller),
    })
}

/// The line where the call of `function` at `caller` sets a field. The VM has the line of the call
/// only, which may be far above the field.
fn field_place(lua: &Lua, caller: &str, function: &str, key: &str) -> Option<Location> {
    let texts = lua.app_data_ref::<Texts>()?;
    let (path, line) = caller.rsplit_once(':')?;
    let line = line.parse().ok()?;
    let files = texts.texts.iter().map(|(path, text)| (path.as_str(), text.as_str()));
    let map = SourceMap::new(files, texts.modules.clone());
    let function = function.split(": ").next().unwrap_or(function);
    // `trainer.lr` is written `lr` in r1.grpo { … }.
    let section = match function {
        "r1.grpo" | "r1.ppo" | "r1.sft" | "r1.trainer" => "trainer",
        "r1.env" => "env",
        other => other.strip_prefix("r1.data.").unwrap_or(other),
    };
    let local_key = key.strip_prefix(section).and_then(|rest| rest.strip_prefix('.')).unwrap_or(key);
    map.argument(path, line, function, local_key)
}

/// The dotted name of a field; a function such as `r1.recipe: data` reads that table of the recipe.
fn inside(function: &str, name: &str) -> String {
    function.split_once(": ").map_or_else(|| name.to_owned(), |(_, table)| format!("{table}.{name}"))
}

/// The fields of a table of named arguments; unknown ones are refused.
pub(crate) struct TableFields<'a> {
    pub(super) lua: &'a Lua,
    function: &'static str,
    pub(super) table: Table,
    /// The field whose value the table is, for a table inside another.
    at: Option<&'a str>,
}

impl<'a> TableFields<'a> {
    pub(crate) fn new(lua: &'a Lua, function: &'static str, value: &Value, names: &[&str]) -> mlua::Result<Self> {
        let Value::Table(table) = value else {
            let got = if value.is_nil() { "nothing".to_owned() } else { kind(value) };
            return Err(fail(lua, function, format!("takes a table, got {got}")));
        };
        let fields = Self { lua, function, table: table.clone(), at: None };
        fields.refuse_unknown(names)?;
        Ok(fields)
    }

    /// The fields of a table that may be left out.
    pub(crate) fn optional(lua: &'a Lua, function: &'static str, value: &Value, names: &[&str]) -> mlua::Result<Self> {
        match value {
            Value::Nil => Ok(Self { lua, function, table: lua.create_table()?, at: None }),
            table => Self::new(lua, function, table, names),
        }
    }

    /// The fields of a table that is the value of a field.
    pub(crate) fn inside<'b>(&'b self, at: &'b str, table: &Table, names: &[&str]) -> mlua::Result<TableFields<'b>> {
        let fields = TableFields { lua: self.lua, function: self.function, table: table.clone(), at: Some(at) };
        fields.refuse_unknown(names)?;
        Ok(fields)
    }

    fn refuse_unknown(&self, names: &[&str]) -> mlua::Result<()> {
        self.table.for_each(|key: Value, _: Value| match &key {
            Value::String(name) if names.iter().any(|listed| *name == **listed) => Ok(()),
            Value::String(name) => {
                let name = name.to_string_lossy();
                let error = Error::new(Kind::Script, format!("unknown field `{}`", self.named(&name)));
                let hint = match self.at {
                    None => misplaced::unknown_field(self.function, &name, names),
                    Some(_) => None,
                };
                let hint = hint.unwrap_or_else(|| suggest(&name, names.iter().copied()));
                Err(self.refused(&name, error.hint(hint)))
            }
            other => Err(fail(self.lua, self.function, format!("fields have names, got {}", show(other)))),
        })
    }

    /// The name of a field in messages.
    fn named(&self, name: &str) -> String {
        self.at.map_or_else(|| name.to_owned(), |at| format!("{at}.{name}"))
    }

    pub(crate) fn lua(&self) -> &'a Lua {
        self.lua
    }

    pub(crate) fn get(&self, name: &str) -> mlua::Result<Value> {
        self.table.raw_get(name)
    }

    pub(crate) fn refuse(&self, name: &str, wanted: &str, got: &Value) -> mlua::Error {
        let why = format!("`{}` must be {wanted}, got {}", self.named(name), kind(got));
        self.refused(name, Error::new(Kind::Script, why))
    }

    /// An error that names its field.
    pub(crate) fn raise(&self, error: impl Into<Error>) -> mlua::Error {
        fail_with(self.lua, self.function, error)
    }

    /// The error for the value of a field.
    pub(crate) fn refused(&self, name: &str, error: Error) -> mlua::Error {
        let name = inside(self.function, &self.named(name));
        self.raise(error.about_setting(name))
    }

    /// A field; an `Option` may be left out.
    pub(crate) fn read<T: FromField>(&self, name: &str) -> mlua::Result<T> {
        T::from_field(self, name, &self.get(name)?)
    }

    /// A field that must be given; `what` says what it is.
    pub(crate) fn needed<T: FromField>(&self, name: &str, what: &str) -> mlua::Result<T> {
        self.read::<Option<T>>(name)?.ok_or_else(|| self.missing(name, what))
    }

    /// The error for a field that is left out.
    pub(crate) fn missing(&self, name: &str, what: &str) -> mlua::Error {
        let what = if what.is_empty() { String::new() } else { format!(", {what}") };
        let Some(at) = self.at else { return fail(self.lua, self.function, format!("needs `{name}`{what}")) };
        let error = Error::new(Kind::Script, format!("`{at}` needs `{name}`{what}"));
        self.raise(error.about_setting(inside(self.function, at)))
    }

    /// The value of a field as plain data.
    pub(crate) fn plain(&self, name: &str, value: &Value) -> mlua::Result<serde_json::Value> {
        to_json(value, name, NonJson::Refuse).map_err(|not_plain| match not_plain.function() {
            Some(path) => self.misplaced_function(path),
            None => self.raise(not_plain),
        })
    }

    /// The error for a function where plain data is expected.
    pub(crate) fn misplaced_function(&self, path: &str) -> mlua::Error {
        self.raise(misplaced::misplaced_function(self.function, path))
    }

    /// All fields except `without`, as one object.
    pub(crate) fn rest(&self, without: &[&str]) -> mlua::Result<serde_json::Map<String, serde_json::Value>> {
        let mut object = serde_json::Map::new();
        self.table.for_each(|name: String, value: Value| {
            if !without.contains(&name.as_str()) {
                let json = self.plain(&name, &value)?;
                object.insert(name, json);
            }
            Ok(())
        })?;
        Ok(object)
    }
}

/// A type that a field can have: an [`Argument`], or a type whose errors say which part of the
/// value is wrong.
pub(crate) trait FromField: Sized {
    /// Reads the field `name`; nil if it is left out.
    ///
    /// # Errors
    /// A value of another type, at the line of the field.
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self>;
}

impl<T: Argument> FromField for T {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        Self::read(value).ok_or_else(|| match value {
            Value::Nil => fields.missing(name, ""),
            other => fields.refuse(name, &Self::wanted(), other),
        })
    }
}

/// A field that may be left out.
impl<T: FromField> FromField for Option<T> {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        if value.is_nil() { Ok(None) } else { T::from_field(fields, name, value).map(Some) }
    }
}

/// Plain data; null if left out.
impl FromField for serde_json::Value {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        fields.plain(name, value)
    }
}

/// Refuses an external call while a recipe is loaded.
pub(crate) fn refuse_while_loading(lua: &Lua, host: &Host, function: &str) -> mlua::Result<()> {
    if !host.grants.borrow().is_loading() {
        return Ok(());
    }
    let why = format!("{function}: external calls are not allowed while a recipe is loaded");
    Err(raise(misuse(lua, why).hint("call it in reset, step, context, reward or the `run` of a tool")))
}

/// The error for an undeclared external call; `need` would allow it.
pub(crate) fn undeclared(lua: &Lua, host: &Host, function: &str, need: &str) -> mlua::Error {
    if let Err(error) = refuse_while_loading(lua, host, function) {
        return error;
    }
    let why = format!("{function}: the recipe does not declare that it needs this");
    let error = misuse(lua, why).hint(format!("add needs = {{ \"{need}\" }} to r1.recipe"));
    host.current().undeclared.replace(Some(error.clone()));
    raise(error)
}

/// Fails where the call has used up its CPU time: host functions that may run long check it between
/// their steps, since Luau's interrupts do not reach them.
pub(crate) fn in_time(lua: &Lua) -> mlua::Result<()> {
    match lua.app_data_ref::<Arc<WatchedVm>>() {
        Some(slot) if slot.expired() => Err(raise(misuse(lua, crate::script::runtime::host::OUT_OF_TIME))),
        _ => Ok(()),
    }
}

/// Adds CPU time of another thread to the call's; fails if the call has used up its time.
pub(crate) fn charge(lua: &Lua, time: Duration) -> mlua::Result<()> {
    if let Some(slot) = lua.app_data_ref::<Arc<WatchedVm>>() {
        slot.charge(time);
    }
    in_time(lua)
}

/// Remaining CPU time of the call.
pub(crate) fn time_left(lua: &Lua) -> Duration {
    lua.app_data_ref::<Arc<WatchedVm>>().map_or(Duration::MAX, |slot| slot.left())
}

/// Bytes as JSON for the record: text if they are valid UTF-8.
pub(crate) fn json_of(bytes: &[u8]) -> serde_json::Value {
    match std::str::from_utf8(bytes) {
        Ok(text) => text.into(),
        Err(_) => crate::json::of_bytes(bytes),
    }
}

/// The inverse of [`json_of`].
pub(crate) fn bytes_of(json: &serde_json::Value) -> Vec<u8> {
    match json {
        serde_json::Value::String(text) => text.clone().into_bytes(),
        // Records of earlier versions.
        serde_json::Value::Array(items) => items.iter().filter_map(|byte| u8::try_from(byte.as_u64()?).ok()).collect(),
        odd => match Odd::of(odd) {
            Some(Odd::Bytes(bytes)) => bytes,
            _ => Vec::new(),
        },
    }
}

/// A text argument, at most `limits.text` long: the CPU limit does not apply while a host function
/// reads it.
pub(crate) fn text(lua: &Lua, function: &str, name: &str, value: &Value) -> mlua::Result<String> {
    let limit = lua.app_data_ref::<Limits>().map_or(usize::MAX, |limits| limits.text);
    match value {
        Value::String(text) if text.as_bytes().len() >> 20 >= limit => {
            let size = text.as_bytes().len() >> 20;
            Err(fail(lua, function, format!("`{name}` has {size} MiB of text; limits.text = {limit} MiB")))
        }
        Value::String(text) => Ok(text.to_string_lossy()),
        other => Err(fail(lua, function, format!("`{name}` must be text, got {}", kind(other)))),
    }
}

/// Refuses messages with more text than `limits.text`: the CPU limit does not apply while they are
/// tokenized.
pub(crate) fn check_text(lua: &Lua, function: &str, messages: &[Message]) -> mlua::Result<()> {
    let limit = lua.app_data_ref::<Limits>().map_or(usize::MAX, |limits| limits.text);
    let size = |message: &Message| {
        let calls: usize = message.tool_calls.iter().map(|call| call.arguments.to_string().len()).sum();
        message.content.text().len() + message.reasoning_content.as_deref().map_or(0, str::len) + calls
    };
    let size = messages.iter().map(size).sum::<usize>() >> 20;
    if size < limit {
        return Ok(());
    }
    Err(fail(lua, function, format!("the messages have {size} MiB of text; limits.text = {limit} MiB")))
}

/// Reads a positional argument of `function`.
pub(crate) fn required<T: Argument>(lua: &Lua, function: &str, name: &str, value: &Value) -> mlua::Result<T> {
    let refused = || fail(lua, function, format!("`{name}` must be {}, got {}", T::wanted(), kind(value)));
    T::read(value).ok_or_else(refused)
}

/// Reads a positional argument that may be nil.
pub(crate) fn optional<T: Argument>(lua: &Lua, function: &str, name: &str, value: &Value) -> mlua::Result<Option<T>> {
    if value.is_nil() { Ok(None) } else { required(lua, function, name, value).map(Some) }
}

/// A result of the host as a Lua value.
pub(crate) fn answer(lua: &Lua, result: &impl Serialize) -> mlua::Result<Value> {
    from_answer(lua, &serde_json::to_value(result).map_err(mlua::Error::external)?)
}
