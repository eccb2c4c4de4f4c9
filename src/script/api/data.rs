//! `r1.data.jsonl` and `r1.data.generate`: where tasks come from.

use mlua::{Function, Lua, Table, UserData, Value};
use serde_json::{Map, Value as Json};

use super::args::{Fields, fail, fail_with};
use crate::script::settings;

/// A dataset of a recipe: its settings, and the function that makes its rows if it has one.
#[derive(Clone)]
pub(crate) struct Dataset {
    pub(crate) settings: Json,
    pub(crate) row: Option<Function>,
}

impl UserData for Dataset {}

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    let data = lua.create_table()?;
    data.raw_set("jsonl", lua.create_function(|lua, value: Value| jsonl(lua, &value))?)?;
    data.raw_set("generate", lua.create_function(|lua, value: Value| generate(lua, &value))?)?;
    super::seal(lua, "r1.data", &data)?;
    r1.raw_set("data", data)
}

/// `r1.data.jsonl "path"` or `r1.data.jsonl { path =, columns = { mine = "theirs" } }`.
fn jsonl(lua: &Lua, value: &Value) -> mlua::Result<Dataset> {
    let settings = if let Value::String(path) = value {
        Json::Object(Map::from_iter([("path".to_owned(), Json::String(path.to_string_lossy()))]))
    } else {
        Json::Object(Fields::new(lua, "r1.data.jsonl", value, &["path", "columns"])?.rest(&[])?)
    };
    settings::dataset("jsonl", &settings).map_err(|error| fail_with(lua, "r1.data.jsonl", error))?;
    Ok(Dataset { settings, row: None })
}

/// `r1.data.generate { count =, seed =, row = function(index) … end }`; `index` counts from 1.
fn generate(lua: &Lua, value: &Value) -> mlua::Result<Dataset> {
    const NAME: &str = "r1.data.generate";
    let fields = Fields::new(lua, NAME, value, &["count", "seed", "row"])?;
    let row =
        fields.function("row")?.ok_or_else(|| fail(lua, NAME, "needs `row`, a function that makes row `index`"))?;
    if fields.get("count")?.is_nil() {
        return Err(fail(lua, NAME, "needs `count`, how many rows there are"));
    }
    let settings = Json::Object(fields.rest(&["row"])?);
    settings::dataset("generate", &settings).map_err(|error| fail_with(lua, NAME, error))?;
    Ok(Dataset { settings, row: Some(row) })
}
