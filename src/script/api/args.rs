//! Reading the arguments of host functions: every refusal names the function, the field and the line.

use mlua::{Function, Lua, Table, Value};

use crate::error::{Error, suggest};
use crate::script::convert::{Odd, kind, show, to_json};
use crate::script::host::misuse;

/// Raises an error inside the VM.
pub(crate) fn raise(error: Error) -> mlua::Error {
    mlua::Error::external(error)
}

/// Raises a misuse of `function` at the line of its caller.
pub(crate) fn fail(lua: &Lua, function: &str, message: impl std::fmt::Display) -> mlua::Error {
    raise(misuse(lua, format!("{function}: {message}")))
}

/// Raises an error of a settings section at the line of the caller.
pub(crate) fn fail_with(lua: &Lua, function: &str, error: Error) -> mlua::Error {
    let here = misuse(lua, String::new());
    raise(Error { message: format!("{function}: {}", error.message), place: here.place, ..error })
}

/// The fields of the one table a constructor takes; unknown ones are refused.
pub(crate) struct Fields<'a> {
    lua: &'a Lua,
    function: &'static str,
    table: Table,
}

impl<'a> Fields<'a> {
    pub(crate) fn new(lua: &'a Lua, function: &'static str, value: &Value, known: &[&str]) -> mlua::Result<Self> {
        let Value::Table(table) = value else {
            let got = if value.is_nil() { "nothing".to_owned() } else { kind(value) };
            return Err(fail(lua, function, format!("takes a table, got {got}")));
        };
        let fields = Self { lua, function, table: table.clone() };
        table.for_each(|key: Value, _: Value| match &key {
            Value::String(name) if known.iter().any(|known| *name == **known) => Ok(()),
            Value::String(name) => {
                let name = name.to_string_lossy();
                let error = misuse(lua, format!("{function}: unknown field `{name}`"));
                Err(raise(error.hint(suggest(&name, known.iter().copied()))))
            }
            other => Err(fail(lua, function, format!("fields have names, got {}", show(other)))),
        })?;
        Ok(fields)
    }

    pub(crate) fn get(&self, name: &str) -> mlua::Result<Value> {
        self.table.raw_get(name)
    }

    pub(crate) fn refuse(&self, name: &str, wanted: &str, got: &Value) -> mlua::Error {
        fail(self.lua, self.function, format!("`{name}` must be {wanted}, got {}", kind(got)))
    }

    pub(crate) fn text(&self, name: &str) -> mlua::Result<Option<String>> {
        match self.get(name)? {
            Value::Nil => Ok(None),
            Value::String(text) => Ok(Some(text.to_string_lossy())),
            other => Err(self.refuse(name, "text", &other)),
        }
    }

    pub(crate) fn function(&self, name: &str) -> mlua::Result<Option<Function>> {
        match self.get(name)? {
            Value::Nil => Ok(None),
            Value::Function(function) => Ok(Some(function)),
            other => Err(self.refuse(name, "a function", &other)),
        }
    }

    /// A field's plain data.
    pub(crate) fn json(&self, name: &str) -> mlua::Result<serde_json::Value> {
        to_json(&self.get(name)?, name, Odd::Refuse).map_err(|message| fail(self.lua, self.function, message))
    }

    /// All fields but `without`, as one object.
    pub(crate) fn rest(&self, without: &[&str]) -> mlua::Result<serde_json::Map<String, serde_json::Value>> {
        let mut object = serde_json::Map::new();
        self.table.for_each(|name: String, value: Value| {
            if !without.contains(&name.as_str()) {
                let json = to_json(&value, &name, Odd::Refuse).map_err(|why| fail(self.lua, self.function, why))?;
                object.insert(name, json);
            }
            Ok(())
        })?;
        Ok(object)
    }
}

/// A text argument.
pub(crate) fn text(lua: &Lua, function: &str, name: &str, value: &Value) -> mlua::Result<String> {
    match value {
        Value::String(text) => Ok(text.to_string_lossy()),
        other => Err(fail(lua, function, format!("`{name}` must be text, got {}", kind(other)))),
    }
}

/// An argument that counts something.
pub(crate) fn count(lua: &Lua, function: &str, name: &str, value: &Value) -> mlua::Result<usize> {
    match value {
        Value::Integer(count) if *count >= 0 => Ok(*count as usize),
        other => Err(fail(lua, function, format!("`{name}` must be a whole number, 0 or more, got {}", kind(other)))),
    }
}
