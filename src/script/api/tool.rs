//! `r1.tool`, `r1.tools.python`, `r1.tools.rhai`: tools of the policy.

use std::cell::RefCell;
use std::fmt::Write as _;
use std::rc::Rc;
use std::time::Duration;

use mlua::{Function, Lua, Table, Value};
use serde_json::{Map, Value as Json, json};

use super::args::{Fields, FromField, fail, fail_with};
use super::argument::{Mebibytes, Seconds};
use super::arguments::{Arguments, arguments};
use super::tool_files;
use super::tool_limits::LimitArguments;
use crate::error::{Error, Kind, Result};
use crate::schema::Section;
use crate::script::runtime::host::place_of_recipe;
use crate::script::runtime::require::Loader;
use crate::script::runtime::tool::{CacheScope, CallLimits, FileSource, Run, Tool, ToolFile, ToolHandle, ToolRewards};
use crate::script::settings;
use crate::text::schema;
use crate::text::schema_order::schema_in_order;
use crate::tools::{PythonOptions, RhaiOptions};

pub(super) fn install(lua: &Lua, r1: &Table, tools: &Table, loader: &Rc<RefCell<Loader>>) -> mlua::Result<()> {
    r1.raw_set("tool", lua.create_function(|lua, value: Value| tool(lua, &value))?)?;
    let own = Rc::clone(loader);
    tools.raw_set("python", lua.create_function(move |lua, value: Value| python(lua, &value, &own))?)?;
    tools.raw_set("rhai", lua.create_function(|lua, value: Value| rhai(lua, &value))?)
}

arguments! {
    /// Fields that all tools have.
    pub(super) struct ToolArguments {
        name: Option<String>;
        description: Option<String>;
        max_result_tokens: Option<usize>;
        rewards: ToolRewards = ToolRewards::default();
        hidden: bool = false;
    }

    /// Arguments of `r1.tool`.
    pub(super) struct LuaToolArguments {
        run: Function, needs("a function of the arguments");
        parameters: Json;
        timeout: Option<Duration>;
        + tool: ToolArguments;
        + limits: LimitArguments;
    }

    /// Arguments of `r1.tools.python`.
    pub(super) struct PythonArguments {
        session: bool = false;
        files: Value;
        timeout: Option<Seconds>;
        memory: Option<Mebibytes>;
        disk: Option<Mebibytes>;
        + tool: ToolArguments;
        + limits: LimitArguments;
        ..options: PythonOptions::FIELDS;
    }

    /// Arguments of `r1.tools.rhai`.
    pub(super) struct RhaiArguments {
        timeout: Option<Seconds>;
        + tool: ToolArguments;
        + limits: LimitArguments;
        ..options: RhaiOptions::FIELDS;
    }
}

impl FromField for ToolRewards {
    fn from_field(fields: &Fields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        settings::section(name, &fields.plain(name, value)?).map_err(|error| fields.raise(error))
    }
}

impl ToolArguments {
    /// The tool with these fields, and its name and description if they are left out.
    pub(super) fn tool(
        self,
        lua: &Lua,
        name: &str,
        description: &str,
        parameters: Json,
        limits: CallLimits,
        run: Run,
    ) -> ToolHandle {
        let Self { name: own, description: about, max_result_tokens, rewards, hidden } = self;
        let name = own.unwrap_or_else(|| name.to_owned());
        let description = about.unwrap_or_else(|| description.to_owned());
        ToolHandle(Rc::new(Tool {
            name,
            description,
            parameters,
            max_result_tokens,
            rewards,
            limits,
            hidden,
            place: place_of_recipe(lua),
            run,
        }))
    }
}

/// `r1.tool { name =, description =, parameters =, timeout =, run = function(arguments) … end }`.
fn tool(lua: &Lua, value: &Value) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tool";
    let LuaToolArguments { run, parameters, timeout, tool, limits } = LuaToolArguments::read(lua, NAME, value)?;
    if tool.name.is_none() {
        return Err(fail(lua, NAME, "needs `name`"));
    }
    let parameters = self::parameters(parameters).map_err(|error| fail_with(lua, NAME, error))?;
    schema::refuse_unknown(&parameters).map_err(|why| {
        let dot = if why.path.is_empty() { "" } else { "." };
        let error = Error::new(Kind::Script, format!("`parameters`: {why}"));
        fail_with(lua, NAME, error.about_setting(format!("parameters{dot}{}", why.path)))
    })?;
    Ok(tool.tool(lua, "", "", parameters, limits.into(), Run::Lua { run, timeout }))
}

/// A JSON Schema, or the short form `{ city = { type = "string" }, days = "integer" }`, in which
/// parameters without `optional = true` are required.
fn parameters(given: Json) -> Result<Json> {
    let wrong = |name: String, message: String| Err(Error::new(Kind::Script, message).about_setting(name));
    let mut given = match given {
        Json::Null => Map::new(),
        Json::Object(given) => given,
        _ => return wrong("parameters".to_owned(), "`parameters` must be a table of named parameters".to_owned()),
    };
    if given.get("type").and_then(Json::as_str) == Some("object") {
        given.entry("properties").or_insert_with(|| json!({}));
        // An empty Lua table may be a list or an object.
        if given.get("required").is_some_and(|required| required.as_object().is_some_and(Map::is_empty)) {
            given.remove("required");
        }
        return Ok(schema_in_order(&Json::Object(given)));
    }
    let (mut properties, mut required) = (Map::new(), Vec::new());
    for (name, schema) in given {
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

/// The parameters of a code interpreter.
fn code_parameters() -> Json {
    json!({
        "type": "object",
        "properties": { "code": { "type": "string", "description": "The program" } },
        "required": ["code"],
    })
}

/// `r1.tools.python { timeout = 5, memory = "512MiB", session = false, … }`.
fn python(lua: &Lua, value: &Value, loader: &RefCell<Loader>) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tools.python";
    let given = PythonArguments::read_optional(lua, NAME, value)?;
    let PythonArguments { session, files, timeout, memory, disk, tool, limits, mut options } = given;
    let limits = CallLimits::from(limits);
    for (setting, given) in [("cache", limits.cache.is_some()), ("retries", limits.retries > 0)] {
        if session && given {
            let why = format!("`{setting}` needs independent programs: with `session` they depend on earlier ones");
            return Err(fail_with(lua, NAME, Error::new(Kind::Script, why).about_setting(setting)));
        }
    }
    options.extend(timeout.map(|time| ("timeout".to_owned(), time.0.into())));
    options.extend(memory.map(|size| ("memory_mb".to_owned(), size.0.into())));
    options.extend(disk.map(|size| ("disk_mb".to_owned(), size.0.into())));
    let options: PythonOptions = section(lua, NAME, options)?;
    let refuse_cache = |why: &str| Err(fail_with(lua, NAME, Error::new(Kind::Script, why).about_setting("cache")));
    if limits.cache.is_some() && (options.keep_files || options.plots) {
        return refuse_cache("`cache` keeps texts, and the results have files (`keep_files`, `plots`)");
    }
    let files = tool_files::read(lua, NAME, &files, loader, options.disk_mb)?;
    let of_task = |file: &ToolFile| matches!(file.source, FileSource::Column(_));
    if limits.cache == Some(CacheScope::Run) && files.iter().any(of_task) {
        return refuse_cache("`cache` = \"run\" would mix results of different tasks: a file is a column of the task");
    }
    let mut description = if session {
        "Runs a Python program and gives what it prints. Names and files stay for the next call."
    } else {
        "Runs a Python program and gives what it prints. Each call starts afresh."
    }
    .to_owned();
    if !files.is_empty() {
        let names: Vec<String> = files.iter().map(|file| format!("`{}`", file.name)).collect();
        let _ = write!(description, " Files in its directory: {}.", names.join(", "));
    }
    if !options.packages.is_empty() {
        let _ = write!(description, " Packages: {}.", options.packages.join(", "));
    }
    Ok(tool.tool(lua, "python", &description, code_parameters(), limits, Run::Python { options, session, files }))
}

/// `r1.tools.rhai { … }`.
fn rhai(lua: &Lua, value: &Value) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tools.rhai";
    let RhaiArguments { timeout, tool, limits, mut options } = RhaiArguments::read_optional(lua, NAME, value)?;
    options.extend(timeout.map(|time| ("timeout".to_owned(), time.0.into())));
    let options = section(lua, NAME, options)?;
    let description = "Runs a Rhai program and gives what it prints.";
    Ok(tool.tool(lua, "rhai", description, code_parameters(), limits.into(), Run::Rhai(options)))
}

/// The options of an interpreter.
pub(super) fn section<O: Section>(lua: &Lua, function: &str, options: Map<String, Json>) -> mlua::Result<O> {
    settings::section(function, &Json::Object(options)).map_err(|error| fail_with(lua, "tool", error))
}
