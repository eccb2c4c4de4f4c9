//! Functions of the host as fields of Lua tables, and functions of r1 that are written in Lua.

use mlua::{FromLuaMulti, IntoLuaMulti, Lua, LuaString, Table, Value};

use super::convert::kind;
use super::host::misuse;
use crate::error::{Error, suggest};

/// Sets a field of a table to a function of the host.
pub(crate) fn bind<A: FromLuaMulti, R: IntoLuaMulti>(
    lua: &Lua,
    table: &Table,
    name: &str,
    function: impl Fn(&Lua, A) -> mlua::Result<R> + 'static,
) -> mlua::Result<()> {
    table.raw_set(name, lua.create_function(function)?)
}

/// As [`bind`], for a function that waits.
pub(crate) fn bind_async<A: FromLuaMulti, R: IntoLuaMulti, F: Future<Output = mlua::Result<R>> + 'static>(
    lua: &Lua,
    table: &Table,
    name: &str,
    function: impl Fn(Lua, A) -> F + 'static,
) -> mlua::Result<()> {
    table.raw_set(name, lua.create_async_function(function)?)
}

/// Runs a part of r1 that is written in Lua. It gets `arguments`, then three functions of the host:
/// `kind(value)` is the type of a value in words, `fail(function, message, hint)` raises the misuse
/// of a function at the line of its caller, and `suggest(name, names)` is the hint for an unknown
/// name.
pub(crate) fn in_lua<R: FromLuaMulti>(lua: &Lua, source: &str, arguments: impl IntoLuaMulti) -> mlua::Result<R> {
    let fail = |lua: &Lua, (function, message, hint): (String, LuaString, Option<String>)| -> mlua::Result<()> {
        let error = misuse(lua, format!("{function}: {}", message.to_string_lossy()));
        Err(mlua::Error::external(Error { hint, ..error }))
    };
    let hint = |_: &Lua, (name, names): (LuaString, Vec<String>)| {
        Ok(suggest(&name.to_string_lossy(), names.iter().map(String::as_str)))
    };
    let mut arguments = arguments.into_lua_multi(lua)?;
    arguments.push_back(Value::Function(lua.create_function(|_, value: Value| Ok(kind(&value)))?));
    arguments.push_back(Value::Function(lua.create_function(fail)?));
    arguments.push_back(Value::Function(lua.create_function(hint)?));
    lua.load(source).set_name("=[r1]").call(arguments)
}
