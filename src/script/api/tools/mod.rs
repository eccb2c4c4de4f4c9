//! The tools of the policy, a kind in each file: its declaration and its calls
//! ([`host_tool::HostTool`]).

pub(super) mod declaration;
pub(super) mod files;
pub(crate) mod host_tool;
mod images;
pub(super) mod limits;
pub(super) mod lua;
pub(super) mod mcp;
pub(super) mod python;
pub(super) mod rhai_programs;
pub(super) mod run;
pub(super) mod search;
pub(super) mod table;

use std::cell::RefCell;
use std::rc::Rc;

use mlua::{Lua, Table, Value};

use crate::script::runtime::host::Host;
use crate::script::runtime::require::Loader;

pub(super) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>, loader: &Rc<RefCell<Loader>>) -> mlua::Result<()> {
    r1.raw_set("tool", lua.create_function(|lua, value: Value| lua::declare(lua, &value))?)?;
    let tools = lua.create_table()?;
    let files = Rc::clone(loader);
    tools.raw_set("python", lua.create_function(move |lua, value: Value| python::declare(lua, &value, &files))?)?;
    tools.raw_set("rhai", lua.create_function(|lua, value: Value| rhai_programs::declare(lua, &value))?)?;
    let files = Rc::clone(loader);
    tools.raw_set("table", lua.create_function(move |lua, value: Value| table::declare(lua, &value, &files))?)?;
    tools.raw_set("mcp", lua.create_function(|lua, value: Value| mcp::declare(lua, &value))?)?;
    let host = Rc::clone(host);
    tools.raw_set("search", lua.create_function(move |lua, value: Value| search::declare(lua, &host, &value))?)?;
    super::namespace(lua, r1, "r1.tools", tools)
}
