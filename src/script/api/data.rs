//! `r1.data.jsonl`, `csv`, `parquet`, `hf` and `generate`: datasets of tasks.

use std::collections::BTreeMap;
use std::path::PathBuf;

use mlua::{Function, Lua, MetaMethod, Table, UserData, UserDataMethods, Value};
use serde_json::{Map, Value as Json};

use super::args::{FromField, TableFields, fail, fail_with, plain, text};
use super::argument::host_object;
use super::arguments::{Arguments, arguments};
use crate::config::{DataFormat, Source};
use crate::error::{Error, Kind};
use crate::script::settings;

arguments! {
    /// Arguments of `r1.data.jsonl`, `csv` and `parquet`.
    pub(super) struct FileArguments {
        ..settings: ["path", "columns", "name", "weight", "env"];
    }

    /// Options of `r1.data.hf`.
    pub(super) struct HubOptions {
        ..settings: ["split", "subset", "file", "columns", "name", "weight", "env"];
    }

    /// Arguments of `r1.data.generate`.
    pub(super) struct GenerateArguments {
        row: Function, needs("a function that makes row `index`");
        ..settings: ["count", "seed", "name", "weight", "env"];
    }
}

/// A dataset of a recipe: its settings, and its row function, if any.
#[derive(Clone)]
pub(crate) struct DatasetArgument {
    pub(crate) settings: Json,
    pub(crate) row: Option<Function>,
}

impl UserData for DatasetArgument {
    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        // `r1.data.hf "org/name" { split = "test" }`
        methods.add_meta_method(MetaMethod::Call, |lua, this, options: Value| {
            let Some(id) = this.settings.get("hf").and_then(Json::as_str) else {
                return Err(fail(lua, "r1.data", "only r1.data.hf takes options after its name"));
            };
            hf(lua, &Value::String(lua.create_string(id)?), &options)
        });
    }
}

pub(crate) fn install(lua: &Lua, r1: &Table) -> mlua::Result<()> {
    let data = lua.create_table()?;
    let files = [
        ("jsonl", "r1.data.jsonl", [DataFormat::Jsonl, DataFormat::Json]),
        ("csv", "r1.data.csv", [DataFormat::Csv, DataFormat::Tsv]),
        ("parquet", "r1.data.parquet", [DataFormat::Parquet, DataFormat::Parquet]),
    ];
    for (name, function, formats) in files {
        data.raw_set(name, lua.create_function(move |lua, value: Value| file(lua, function, formats, &value))?)?;
    }
    data.raw_set("hf", lua.create_function(|lua, (id, options): (Value, Value)| hf(lua, &id, &options))?)?;
    data.raw_set("generate", lua.create_function(|lua, value: Value| generate(lua, &value))?)?;
    super::namespace(lua, r1, "r1.data", data)
}

/// `r1.data.jsonl "path"` or `r1.data.jsonl { path =, columns = { mine = "theirs" } }`, and the
/// same for other formats.
fn file(lua: &Lua, function: &'static str, formats: [DataFormat; 2], value: &Value) -> mlua::Result<DatasetArgument> {
    let mut settings = if let Value::String(path) = value {
        Map::from_iter([("path".to_owned(), Json::String(path.to_string_lossy()))])
    } else {
        FileArguments::read(lua, function, value)?.settings
    };
    let path = settings.get("path").map(|path| path.get(0).unwrap_or(path));
    let path = path.and_then(Json::as_str).map(PathBuf::from).unwrap_or_default();
    match DataFormat::of(&path) {
        Some(named_format) if formats.contains(&named_format) => {}
        Some(_) => {
            let path = path.display();
            let why = "is that of another format; a plain path selects the format by extension";
            return Err(fail(lua, function, format!("the extension of {path} {why}")));
        }
        None => {
            let format = serde_json::to_value(formats[0]).unwrap_or_default();
            settings.insert("format".to_owned(), format);
        }
    }
    dataset(lua, function, settings, None)
}

/// A dataset from the fields of its function.
fn dataset(
    lua: &Lua,
    function: &'static str,
    settings: Map<String, Json>,
    row: Option<Function>,
) -> mlua::Result<DatasetArgument> {
    let settings = Json::Object(settings);
    settings::dataset(function.trim_start_matches("r1.data."), &settings)
        .map_err(|error| fail_with(lua, function, error))?;
    Ok(DatasetArgument { settings, row })
}

/// `r1.data.hf "org/name"`, `r1.data.hf("org/name", { split =, subset =, file =, columns = })`.
fn hf(lua: &Lua, id: &Value, options: &Value) -> mlua::Result<DatasetArgument> {
    const NAME: &str = "r1.data.hf";
    let id = text(lua, NAME, "name", id)?;
    let HubOptions { mut settings } = HubOptions::read_optional(lua, NAME, options)?;
    settings.insert("hf".to_owned(), Json::String(id));
    dataset(lua, NAME, settings, None)
}

/// `r1.data.generate { count =, seed =, row = function(index) … end }`; `index` starts at 1.
fn generate(lua: &Lua, value: &Value) -> mlua::Result<DatasetArgument> {
    const NAME: &str = "r1.data.generate";
    let GenerateArguments { row, settings } = GenerateArguments::read(lua, NAME, value)?;
    if !settings.contains_key("count") {
        return Err(fail(lua, NAME, "needs `count`, how many rows there are"));
    }
    dataset(lua, NAME, settings, Some(row))
}

/// The field `train` or `eval` of a recipe's `data`: its settings, and its row functions by name.
pub(super) struct DataSource {
    pub(super) settings: Json,
    pub(super) rows: BTreeMap<String, Function>,
}

impl FromField for DataSource {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        match value {
            Value::Function(_) => return Err(fields.misplaced_function(name)),
            Value::UserData(dataset) if dataset.is::<DatasetArgument>() => {}
            Value::String(_) | Value::Table(_) => {}
            other => return Err(fields.refuse(name, "a path or a dataset of r1.data", other)),
        }
        source(fields.lua(), name, value).map(|(settings, rows)| Self { settings, rows })
    }
}

/// `data.train` or `data.eval`: one dataset, or several by name, with their row functions. A single
/// unnamed dataset has an empty name.
fn source(lua: &Lua, name: &str, value: &Value) -> mlua::Result<(Json, BTreeMap<String, Function>)> {
    const NAME: &str = "r1.recipe";
    let at = format!("data.{name}");
    let (mut parts, mut rows) = (Map::new(), BTreeMap::new());
    let mut add = |key: Option<String>, value: &Value| {
        let DatasetArgument { settings, row } = match host_object(value) {
            Some(dataset) => dataset,
            None => DatasetArgument { settings: plain(lua, NAME, &at, value)?, row: None },
        };
        let object = settings.as_object();
        let written_name = object.and_then(|object| object.get("name")).and_then(Json::as_str).map(str::to_owned);
        let Some(name) = key.or(written_name).or_else(|| object.map(Source::name_of)).filter(|name| !name.is_empty())
        else {
            return Err(fail(lua, NAME, format!("a dataset of `{at}` has no name")));
        };
        if row.is_none() && settings.get("count").is_some() {
            return Err(no_rows(lua, &format!("{at}.{name}")));
        }
        if let Some(row) = row {
            rows.insert(name.clone(), row);
        }
        if parts.insert(name.clone(), settings).is_some() {
            let error = Error::new(Kind::Script, format!("two datasets of `{at}` are called `{name}`"));
            return Err(fail_with(lua, NAME, error.hint("give them names: r1.data.jsonl { path = …, name = … }")));
        }
        Ok(())
    };
    if let Some(DatasetArgument { settings, row }) = host_object(value) {
        if ["name", "weight", "env"].iter().all(|field| settings.get(field).is_none()) {
            return Ok((settings, row.into_iter().map(|row| (String::new(), row)).collect()));
        }
        add(None, value)?;
        return Ok((Json::Object(parts), rows));
    }
    match value {
        Value::Table(table) => {
            let is_dataset = |value: &Value| value.as_userdata().is_some_and(mlua::AnyUserData::is::<DatasetArgument>);
            if !table.pairs::<Value, Value>().any(|pair| pair.is_ok_and(|(_, value)| is_dataset(&value))) {
                let settings = plain(lua, NAME, &at, value)?;
                if settings.get("count").is_some() {
                    return Err(no_rows(lua, &at));
                }
                return Ok((settings, rows));
            }
            table.for_each(|key: Value, value: Value| match key {
                Value::String(key) => add(Some(key.to_string_lossy()), &value),
                _ => add(None, &value),
            })?;
        }
        value => return Ok((plain(lua, NAME, &at, value)?, rows)),
    }
    Ok((Json::Object(parts), rows))
}

fn no_rows(lua: &Lua, at: &str) -> mlua::Error {
    let why = format!("`{at}` has `count` but no rows: use r1.data.generate {{ count =, row = }}");
    fail(lua, "r1.recipe", why)
}
