//! Functions of the host as fields of Lua tables.

use mlua::{FromLuaMulti, IntoLuaMulti, Lua, Table};

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
