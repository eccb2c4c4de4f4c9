//! `r1.text`: functions over text, and the constructors of tokenizers and templates.

use std::rc::Rc;

use mlua::{Lua, Table, Value};
use serde_json::{Value as Json, json};

use super::args::{FromField, TableFields, fail, fail_with, in_time, raise, text};
use super::arguments::{Arguments, arguments};
use super::format::Callable;
use super::template::template;
use super::text_files::opener;
use super::tokenizer::tokenizer;
use crate::error::suggest;
use crate::script::runtime::convert::{from_json, kind};
use crate::script::runtime::definitions::FormatHandle;
use crate::script::runtime::host::Host;
use crate::text::{CODE_TOOL, Format, read_with, schema};

arguments! {
    /// Options of `r1.text.parse_tool_calls`.
    pub(super) struct ParseOptions {
        tools: Schemas = Schemas::default();
        /// Whether the reply begins inside a thinking block.
        thinking: bool = false;
        code_tool: String = CODE_TOOL.to_owned();
    }
}

/// Schemas of tools.
#[derive(Default)]
pub(super) struct Schemas(Vec<Json>);

impl FromField for Schemas {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        match fields.plain(name, value)? {
            Json::Array(tools) => Ok(Self(tools)),
            Json::Object(empty) if empty.is_empty() => Ok(Self(Vec::new())),
            _ => Err(fields.refuse(name, "a list of schemas", value)),
        }
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table, host: &Rc<Host>) -> mlua::Result<()> {
    let table = lua.create_table()?;
    table.raw_set("tokenizer", opener(lua, host, "r1.text.tokenizer", tokenizer)?)?;
    table.raw_set("template", opener(lua, host, "r1.text.template", template)?)?;
    let parse = lua.create_function(|lua, (format, reply, options)| parse(lua, &format, &reply, &options))?;
    table.raw_set("parse_tool_calls", parse)?;
    table.raw_set("rank", lua.create_function(|lua, (query, texts): (Value, Value)| rank(lua, &query, &texts))?)?;
    let lower =
        lua.create_function(|lua, value: Value| Ok(text(lua, "r1.text.lower", "text", &value)?.to_lowercase()))?;
    table.raw_set("lower", lower)?;
    super::index::install(lua, &table)?;
    super::namespace(lua, r1, "r1.text", table)
}

/// Bytes of all texts of `r1.text.rank`.
const RANKED: usize = 256 << 20;

/// `r1.text.rank(query, texts)`: `{ { index =, score = }, … }`, best first.
fn rank(lua: &Lua, query: &Value, texts: &Value) -> mlua::Result<Table> {
    const NAME: &str = "r1.text.rank";
    let query = text(lua, NAME, "query", query)?;
    let Value::Table(list) = texts else {
        return Err(fail(lua, NAME, format!("`texts` must be a list of texts, got {}", kind(texts))));
    };
    // A text that occurs many times is copied each time.
    let (mut texts, mut bytes) = (Vec::new(), 0);
    for index in 1..=list.raw_len() {
        in_time(lua)?;
        let text = text(lua, NAME, &format!("texts[{index}]"), &list.raw_get(index)?)?;
        bytes += text.len();
        if bytes > RANKED {
            return Err(fail(lua, NAME, format!("the texts have more than {} MiB", RANKED >> 20)));
        }
        texts.push(text);
    }
    super::index::matches(lua, crate::script::runtime::rank::rank(&query, &texts, || in_time(lua))?)
}

/// `r1.text.parse_tool_calls(format, text, options)`: parses a response like the policy's.
/// Arguments are validated if tools are given.
fn parse(lua: &Lua, format: &Value, reply: &Value, options: &Value) -> mlua::Result<Table> {
    const NAME: &str = "r1.text.parse_tool_calls";
    let recipe_format = format.as_userdata().and_then(|data| Some(data.borrow::<FormatHandle>().ok()?.0.clone()));
    let reply = text(lua, NAME, "text", reply)?;
    let ParseOptions { tools: Schemas(tools), thinking, code_tool } = ParseOptions::read_optional(lua, NAME, options)?;
    let read = if let Some(recipe_format) = &recipe_format {
        read_with(&Callable { format: recipe_format, lua, vm: None }, &reply, thinking, &tools)
    } else {
        let name = text(lua, NAME, "format", format)?;
        let format = Format::from_name(&name).map_err(|error| fail_with(lua, NAME, error))?;
        format.read(&reply, thinking, &code_tool, &tools)
    };
    let mut read = read.map_err(raise)?;
    for call in &read.tool_calls {
        if tools.is_empty() {
            break;
        }
        let function = |tool: &Json| tool.get("function").unwrap_or(tool).clone();
        let named = tools.iter().map(function).find(|tool| tool["name"] == call.name.as_str());
        let refused = if let Some(tool) = named {
            let parameters = tool.get("parameters");
            parameters.map_or(Ok(()), |schema| schema::check(schema, &call.arguments)).err().map(|why| why.to_string())
        } else {
            let names: Vec<Json> = tools.iter().map(|tool| function(tool)["name"].clone()).collect();
            let help = suggest(&call.name, names.iter().filter_map(Json::as_str));
            Some(format!("there is no tool `{}`; {help}", call.name))
        };
        read.errors.extend(refused);
    }
    let calls: Vec<Json> = read
        .tool_calls
        .into_iter()
        .map(|call| {
            let mut shown = json!({ "name": call.name, "arguments": call.arguments });
            if let Some(id) = call.id {
                shown["id"] = id.into();
            }
            shown
        })
        .collect();
    let table = lua.create_table()?;
    table.raw_set("content", read.content)?;
    table.raw_set("reasoning", read.reasoning)?;
    table.raw_set("calls", from_json(lua, &calls.into())?)?;
    table.raw_set("errors", from_json(lua, &read.errors.into())?)?;
    Ok(table)
}
