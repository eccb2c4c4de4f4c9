//! `r1.env { … }`: tools, format, and the functions `reset` and `step` (with defaults).

use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde_json::Value as Json;

use super::args::{Fields, fail, fail_with};
use super::fields;
use crate::config::EnvSettings;
use crate::error::{Error, Kind};
use crate::script::runtime::convert::kind;
use crate::script::runtime::definitions::{Env, FormatHandle};
use crate::script::runtime::host::Host;
use crate::script::runtime::tool::{Tool, ToolHandle};
use crate::script::settings;
use crate::text::{AUTO, Format};

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let host = host.clone();
    r1.raw_set("env", lua.create_function(move |lua, value: Value| env(lua, &host, &value))?)
}

fn env(lua: &Lua, host: &Host, value: &Value) -> mlua::Result<Env> {
    const NAME: &str = "r1.env";
    let fields = Fields::new(lua, NAME, value, &fields::of_env())?;
    let tools = tools(lua, &fields)?;
    let (reset, step) = (fields.function("reset")?, fields.function("step")?);
    let (context, reward) = (fields.function("context")?, fields.function("reward")?);
    let flow = fields.function("flow")?;
    let mut settings = fields.rest(&[&fields::ENV_OBJECTS[..], &["format"]].concat())?;
    let format = match fields.get("format")? {
        Value::Nil => None,
        Value::String(name) => {
            let name = name.to_string_lossy();
            let known = host.formats.borrow();
            let own: Vec<&str> = known.iter().map(|format| format.options.name.as_str()).collect();
            if name != AUTO && !own.contains(&name.as_str()) && Format::from_name(&name).is_err() {
                let error = Format::unknown(&name, &own);
                return Err(fail_with(lua, NAME, error.about_setting("format")));
            }
            Some(name)
        }
        Value::Function(_) => return Err(fields.misplaced_function("format")),
        other => {
            let handle = other.as_userdata().and_then(|data| data.borrow::<FormatHandle>().ok());
            let handle = handle.ok_or_else(|| fields.refuse("format", "a name, or what r1.format gives", &other))?;
            Some(handle.0.options.name.clone())
        }
    };
    settings.extend(format.map(|name| ("format".to_owned(), Json::from(name))));
    let settings = Json::Object(settings);
    let read: EnvSettings = settings::section("env", &settings).map_err(|error| fail_with(lua, NAME, error))?;
    let own = if flow.is_some() { flow.as_ref().map(|_| "flow") } else { reset.as_ref().map(|_| "reset") };
    if let Some(own) = own.filter(|_| !read.system.is_empty()) {
        let why = format!(
            "`system` is for the default reset; with a `{own}` of your own, put r1.system(…) first in its messages"
        );
        return Err(fail(lua, NAME, why));
    }
    if flow.is_some() {
        let beside = [("reset", &reset), ("step", &step), ("context", &context)];
        if let Some((name, _)) = beside.into_iter().find(|(_, function)| function.is_some()) {
            return Err(fail_with(lua, NAME, beside_flow(name)));
        }
    }
    Ok(Env { settings, tools, reset, step, flow, context, reward })
}

/// The error for a function that a flow replaces.
pub(super) fn beside_flow(name: &str) -> Error {
    let does = match name {
        "context" => "a flow chooses the prompt itself: it passes the messages to policy:generate",
        _ => "a flow replaces them: it runs its own loop over policy:generate",
    };
    let hint = format!("{does}; leave out `{name}`, or `flow` (docs/environments.md)");
    Error::new(Kind::Script, format!("`flow` and `{name}` are both set")).hint(hint)
}

fn tools(lua: &Lua, fields: &Fields<'_>) -> mlua::Result<Vec<Rc<Tool>>> {
    let list = match fields.get("tools")? {
        Value::Nil => return Ok(Vec::new()),
        Value::Table(list) => list,
        other => return Err(fields.refuse("tools", "a list of tools", &other)),
    };
    let mut tools: Vec<Rc<Tool>> = Vec::new();
    let mut seen = 0;
    list.for_each(|_: Value, item: Value| {
        seen += 1;
        let handle = item.as_userdata().and_then(|data| data.borrow::<ToolHandle>().ok());
        let Some(handle) = handle else {
            let why =
                format!("`tools` holds {}; tools are made by r1.tool, r1.tools.python or r1.tools.rhai", kind(&item));
            return Err(fail(lua, "r1.env", why));
        };
        if tools.iter().any(|tool| tool.name == handle.0.name) {
            return Err(fail(lua, "r1.env", format!("two tools are called `{}`", handle.0.name)));
        }
        tools.push(handle.0.clone());
        Ok(())
    })?;
    if list.raw_len() != seen {
        return Err(fail(lua, "r1.env", "`tools` must be a list: { python, search }"));
    }
    Ok(tools)
}
