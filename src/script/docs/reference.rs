//! The texts that lua/reference.lua makes of the declarations: the reference in
//! docs/reference/lua.md and the types for lua-language-server.

use mlua::{Function, Lua};
use serde_json::{Value as Json, json};

use super::luacats::in_luacats;
use super::{Entry, all, named_types};
use crate::config::{Settings, settings};
use crate::schema::{Field, Table};
use crate::script::runtime::convert::from_answer;
use crate::tools::table::TableOptions;
use crate::tools::{PythonOptions, RhaiOptions};

/// The reference in docs/reference/lua.md.
pub fn markdown() -> String {
    written("markdown", &declared())
}

/// The contents of lua/types/r1.lua. Functions of Luau that are not in Lua 5.4 come last.
pub fn luacats() -> String {
    written("luacats", &declared()) + include_str!("luau.lua")
}

/// The types of settings, which docs/reference/settings.md and the options of tools list.
pub(super) fn setting_types() -> Vec<Table> {
    [Settings::tables(), PythonOptions::tables(), RhaiOptions::tables(), TableOptions::tables()].concat()
}

/// The declarations as plain data.
fn declared() -> Json {
    let function = |entry: &Entry| {
        let mut shown = json!(entry);
        (shown["signature"], shown["space"]) = (entry.signature().into(), entry.space().into());
        shown
    };
    let functions: Vec<Json> = all().map(function).collect();
    let open: Vec<&str> = named_types().iter().filter(|named| named.is_open).map(|named| named.name.as_str()).collect();
    let settings = settings().map(|setting| json!({ "name": setting.name(), "doc": setting.summary() }));
    let settings: Vec<Json> = settings.collect();
    let tables: Vec<&str> = setting_types().iter().map(|table| table.name).collect();
    json!({ "functions": functions, "types": named_types(), "open": open, "settings": settings, "tables": tables })
}

/// The text that a function of lua/reference.lua writes. A test calls them all, so that this
/// can't fail.
pub(super) fn written(function: &str, data: &Json) -> String {
    let lua = Lua::new();
    let write = || -> mlua::Result<String> {
        let functions: mlua::Table = lua.load(include_str!("../../../lua/reference.lua")).call(())?;
        let shown = lua.create_function(|_, kind: String| Ok(in_luacats(&kind)))?;
        functions.get::<Function>(function)?.call((from_answer(&lua, data)?, shown))
    };
    write().unwrap_or_default()
}
