//! `r1.tool`, `r1.tools.python`, `r1.tools.rhai`: tools of the policy.

use std::rc::Rc;
use std::time::Duration;

use mlua::{Lua, Table, Value};
use serde_json::{Map, Value as Json, json};

use super::args::{Fields, fail, fail_with};
use super::argument::{ANY, Mebibytes, Seconds, Whole};
use super::tool_limits;
use crate::error::{Error, Kind, Result};
use crate::schema::Section;
use crate::script::runtime::tool::{CallLimits, Run, Tool, ToolHandle, ToolRewards};
use crate::script::settings;
use crate::text::schema;
use crate::tools::{PythonOptions, RhaiOptions};

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    r1.raw_set("tool", lua.create_function(|lua, value: Value| tool(lua, &value))?)?;
    let tools = lua.create_table()?;
    tools.raw_set("python", lua.create_function(|lua, value: Value| python(lua, &value))?)?;
    tools.raw_set("rhai", lua.create_function(|lua, value: Value| rhai(lua, &value))?)?;
    super::seal(lua, "r1.tools", &tools)?;
    r1.raw_set("tools", tools)
}

/// `r1.tool { name =, description =, parameters =, timeout =, run = function(arguments) … end }`.
fn tool(lua: &Lua, value: &Value) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tool";
    const OWN: [&str; 7] = ["name", "description", "parameters", "timeout", "run", "max_result_tokens", "rewards"];
    let fields = Fields::new(lua, NAME, value, &[&OWN[..], &tool_limits::FIELDS].concat())?;
    let name = fields.text("name")?.ok_or_else(|| fail(lua, NAME, "needs `name`"))?;
    let run = fields.function("run")?.ok_or_else(|| fail(lua, NAME, "needs `run`, a function of the arguments"))?;
    let timeout = fields.read::<Duration>("timeout")?;
    let description = fields.text("description")?.unwrap_or_default();
    let parameters = parameters(fields.json("parameters")?).map_err(|error| fail_with(lua, NAME, error))?;
    schema::refuse_unknown(&parameters).map_err(|why| {
        let dot = if why.path.is_empty() { "" } else { "." };
        let message = format!("`parameters`: {why}");
        fields.refused(&format!("parameters{dot}{}", why.path), Error::new(Kind::Script, message))
    })?;
    let (max_result_tokens, rewards) = (max_result_tokens(&fields)?, rewards(lua, NAME, &fields)?);
    let (limits, run) = (tool_limits::read(&fields)?, Run::Lua { run, timeout });
    Ok(ToolHandle(Rc::new(Tool { name, description, parameters, max_result_tokens, rewards, limits, run })))
}

fn max_result_tokens(fields: &Fields<'_>) -> mlua::Result<Option<usize>> {
    Ok(fields.read::<Whole<0, ANY>>("max_result_tokens")?.map(|tokens| tokens.0 as usize))
}

fn rewards(lua: &Lua, function: &str, fields: &Fields<'_>) -> mlua::Result<ToolRewards> {
    settings::section("rewards", &fields.json("rewards")?).map_err(|error| fail_with(lua, function, error))
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
        return Ok(ordered(&Json::Object(given)));
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
    Ok(ordered(&json!({ "type": "object", "properties": properties, "required": required })))
}

/// A schema with its keywords in the order people write them, so that a chat template shows models
/// what they know; others follow as they were given.
fn ordered(schema: &Json) -> Json {
    const ORDER: [&str; 7] = ["type", "description", "enum", "properties", "items", "required", "additionalProperties"];
    let Json::Object(fields) = schema else { return schema.clone() };
    let mut names: Vec<&String> = fields.keys().collect();
    names.sort_by_key(|name| ORDER.iter().position(|known| known == name).unwrap_or(ORDER.len()));
    let value = |name: &String| match (name.as_str(), &fields[name]) {
        ("properties", Json::Object(properties)) => {
            Json::Object(properties.iter().map(|(name, schema)| (name.clone(), ordered(schema))).collect())
        }
        ("items", items) => ordered(items),
        (_, other) => other.clone(),
    };
    Json::Object(names.into_iter().map(|name| (name.clone(), value(name))).collect())
}

/// A tool in the OpenAI shape with its fields in the order of [`Tool::schema`].
pub(super) fn in_order(tool: &Json) -> Json {
    let Json::Object(fields) = tool else { return tool.clone() };
    let first = |fields: &Map<String, Json>, order: &[&str]| -> Map<String, Json> {
        let known = order.iter().filter_map(|name| fields.get(*name).map(|value| ((*name).to_owned(), value.clone())));
        let others = fields.iter().filter(|(name, _)| !order.contains(&name.as_str()));
        known.chain(others.map(|(name, value)| (name.clone(), value.clone()))).collect()
    };
    let mut tool = first(fields, &["type", "function"]);
    if let Some(Json::Object(function)) = tool.get("function") {
        let mut function = first(function, &["name", "description", "parameters"]);
        if let Some(parameters) = function.get_mut("parameters") {
            *parameters = ordered(parameters);
        }
        tool.insert("function".to_owned(), Json::Object(function));
    }
    Json::Object(tool)
}

/// The parameters of a code interpreter.
fn code_parameters() -> Json {
    json!({
        "type": "object",
        "properties": { "code": { "type": "string", "description": "The program" } },
        "required": ["code"],
    })
}

const OWN_FIELDS: [&str; 8] =
    ["name", "description", "memory", "disk", "session", "max_result_tokens", "rewards", "cache"];

/// `r1.tools.python { timeout = 5, memory = "512MiB", session = false, … }`.
fn python(lua: &Lua, value: &Value) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tools.python";
    let (fields, options) = interpreter::<PythonOptions>(lua, NAME, value, &OWN_FIELDS)?;
    let session = fields.read("session")?.unwrap_or(false);
    let cache = tool_limits::cache(&fields)?;
    if session && cache.is_some() {
        let why = "`cache` needs independent programs: with `session` they depend on earlier ones";
        return Err(fields.refused("cache", Error::new(Kind::Script, why)));
    }
    let description = if session {
        "Runs a Python program and gives what it prints. Names and files stay for the next call."
    } else {
        "Runs a Python program and gives what it prints. Each call starts afresh."
    };
    Ok(ToolHandle(Rc::new(Tool {
        name: fields.text("name")?.unwrap_or_else(|| "python".to_owned()),
        description: fields.text("description")?.unwrap_or_else(|| description.to_owned()),
        parameters: code_parameters(),
        max_result_tokens: max_result_tokens(&fields)?,
        rewards: rewards(lua, NAME, &fields)?,
        limits: CallLimits { cache, ..CallLimits::default() },
        run: Run::Python { options, session },
    })))
}

/// `r1.tools.rhai { … }`.
fn rhai(lua: &Lua, value: &Value) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tools.rhai";
    let (fields, options) = interpreter::<RhaiOptions>(
        lua,
        NAME,
        value,
        &["name", "description", "max_result_tokens", "rewards", "cache"],
    )?;
    Ok(ToolHandle(Rc::new(Tool {
        name: fields.text("name")?.unwrap_or_else(|| "rhai".to_owned()),
        description: fields
            .text("description")?
            .unwrap_or_else(|| "Runs a Rhai program and gives what it prints.".to_owned()),
        parameters: code_parameters(),
        max_result_tokens: max_result_tokens(&fields)?,
        rewards: rewards(lua, NAME, &fields)?,
        limits: CallLimits { cache: tool_limits::cache(&fields)?, ..CallLimits::default() },
        run: Run::Rhai(options),
    })))
}

/// The options of an interpreter, sizes and times with units.
fn interpreter<'a, O: Section>(
    lua: &'a Lua,
    function: &'static str,
    value: &Value,
    own: &[&str],
) -> mlua::Result<(Fields<'a>, O)> {
    let known = [own, O::FIELDS].concat();
    let fields = Fields::optional(lua, function, value, &known)?;
    let mut options = fields.rest(own)?;
    for (name, stored) in [("memory", "memory_mb"), ("disk", "disk_mb")] {
        if own.contains(&name)
            && let Some(size) = fields.read::<Mebibytes>(name)?
        {
            options.insert(stored.to_owned(), Json::from(size.0));
        }
    }
    if O::FIELDS.contains(&"timeout")
        && let Some(time) = fields.read::<Seconds>("timeout")?
    {
        options.insert("timeout".to_owned(), Json::from(time.0));
    }
    let options = settings::section(function, &Json::Object(options)).map_err(|error| fail_with(lua, "tool", error))?;
    Ok((fields, options))
}
