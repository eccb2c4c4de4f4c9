//! `r1.env { … }`: tools, format, and the functions `reset` and `step` (with defaults).

use std::rc::Rc;

use mlua::{Function, Lua, Table, Value};
use serde_json::Value as Json;

use super::args::{FromField, TableFields, fail, fail_with};
use super::argument::host_object;
use super::arguments::{Arguments, arguments};
use super::format::FormatArgument;
use crate::config::EnvSettings;
use crate::error::{Error, Kind};
use crate::schema::Section;
use crate::script::runtime::convert::kind;
use crate::script::runtime::definitions::Env;
use crate::script::runtime::host::Host;
use crate::script::runtime::servers::{EnvTool, ServerHandle};
use crate::script::runtime::tool::ToolHandle;
use crate::script::settings;
use crate::text::{AUTO, Format};

arguments! {
    /// Arguments of `r1.env`.
    pub(super) struct EnvArguments {
        tools: Tools = Tools::default();
        reset: Option<Function>;
        step: Option<Function>;
        flow: Option<Function>;
        context: Option<Function>;
        reward: Option<Function>;
        close: Option<Function>;
        format: Option<FormatArgument>;
        ..settings: EnvSettings::FIELDS;
    }
}

/// Tools with different names, and MCP servers.
#[derive(Default)]
pub(super) struct Tools(Vec<EnvTool>);

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let host = host.clone();
    r1.raw_set("env", lua.create_function(move |lua, value: Value| env(lua, &host, &value))?)
}

fn env(lua: &Lua, host: &Host, value: &Value) -> mlua::Result<Env> {
    const NAME: &str = "r1.env";
    let EnvArguments { tools, reset, step, flow, context, reward, close, format, mut settings } =
        EnvArguments::read(lua, NAME, value)?;
    let Tools(tools) = tools;
    let format = match format {
        None => None,
        Some(FormatArgument::Own(format)) => Some(format.options.name.clone()),
        Some(FormatArgument::Named(name)) => {
            let formats = host.formats.borrow();
            let names: Vec<&str> = formats.iter().map(|format| format.options.name.as_str()).collect();
            if name != AUTO && !names.contains(&name.as_str()) && Format::from_name(&name).is_err() {
                let error = Format::unknown(&name, &names);
                return Err(fail_with(lua, NAME, error.about_setting("format")));
            }
            Some(name)
        }
    };
    settings.extend(format.map(|name| ("format".to_owned(), Json::from(name))));
    let settings = Json::Object(settings);
    let read: EnvSettings = settings::section("env", &settings).map_err(|error| fail_with(lua, NAME, error))?;
    let function = if flow.is_some() { flow.as_ref().map(|_| "flow") } else { reset.as_ref().map(|_| "reset") };
    if let Some(function) = function.filter(|_| !read.system.is_empty()) {
        let why = format!(
            "`system` is for the default reset; with a `{function}` of your own, put r1.system(…) first in its messages"
        );
        return Err(fail(lua, NAME, why));
    }
    if flow.is_some() {
        let step_functions = [("reset", &reset), ("step", &step), ("context", &context)];
        if let Some((name, _)) = step_functions.into_iter().find(|(_, function)| function.is_some()) {
            return Err(fail_with(lua, NAME, conflict_with_flow(name)));
        }
    }
    Ok(Env { settings, tools, reset, step, flow, context, reward, close })
}

/// The error for a function that a flow replaces.
pub(super) fn conflict_with_flow(name: &str) -> Error {
    let does = match name {
        "context" => "a flow chooses the prompt itself: it passes the messages to policy:generate",
        _ => "a flow replaces them: it runs its own loop over policy:generate",
    };
    let hint = format!("{does}; leave out `{name}`, or `flow` (docs/guide/environments.md)");
    Error::new(Kind::Script, format!("`flow` and `{name}` are both set")).hint(hint)
}

impl FromField for Tools {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        // `tools = r1.tools.mcp { … }`: a server is a list of tools.
        if let Some(ServerHandle(server)) = host_object(value) {
            return Ok(Self(vec![EnvTool::Server(server)]));
        }
        let Value::Table(list) = value else { return Err(fields.refuse(name, "a list of tools", value)) };
        let refuse = |why: String| Err(fields.refused(name, Error::new(Kind::Script, why)));
        let mut tools: Vec<EnvTool> = Vec::new();
        for pair in list.pairs::<Value, Value>() {
            let (_, item) = pair?;
            if let Some(ServerHandle(server)) = host_object(&item) {
                tools.push(EnvTool::Server(server));
                continue;
            }
            let Some(ToolHandle(tool)) = host_object(&item) else {
                let made = "tools are made by r1.tool and r1.tools.*, such as r1.tools.python";
                return refuse(format!("`{name}` contains {}; {made}", kind(&item)));
            };
            if tools.iter().any(|other| matches!(other, EnvTool::One(other) if other.name == tool.name)) {
                return refuse(format!("two tools are called `{}`", tool.name));
            }
            tools.push(EnvTool::One(tool));
        }
        if list.raw_len() != tools.len() {
            return refuse(format!("`{name}` must be a list: {{ python, search }}"));
        }
        Ok(Self(tools))
    }
}
