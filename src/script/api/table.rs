//! `r1.table.open`: SQL over tables for scripts; and the tables of `r1.tools.table`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use mlua::{Lua, MetaMethod, Table, UserData, UserDataFields, UserDataMethods, Value};
use serde_json::{Value as Json, json};

use super::args::{FromField, TableFields, charge, fail, fail_with, in_time, optional, plain, raise, text, time_left};
use super::argument::{ANY, Mebibytes, Whole};
use super::arguments::{Arguments, arguments};
use super::outcome::NilReason;
use super::resource::{ResourceArguments, placed};
use crate::config::Limits;
use crate::error::{Error, Kind};
use crate::script::runtime::convert::{from_json, kind};
use crate::script::runtime::host::out_of_time;
use crate::script::runtime::require::Loader;
use crate::script::runtime::resource::{KeptParts, ResourceSpec};
use crate::script::runtime::tables::{self, NamedTable, TableSource, name_of};
use crate::tools::table::{Cell, ColumnType, ColumnTypes, QueryLimits, TableNames, TableOptions, Tables, describe};

const OPEN: &str = "r1.table.open";

/// Largest file of a table, MiB: rows are kept in a temporary file.
const MOST: u64 = 1024;

pub(super) type Files = Rc<RefCell<Loader>>;

/// Adds `r1.table`.
pub(crate) fn install(lua: &Lua, r1: &Table, loader: &Files) -> mlua::Result<()> {
    let loader = Rc::clone(loader);
    let open = move |lua: &Lua, (tables, options): (Value, Value)| open(lua, &tables, &options, &loader);
    let table = lua.create_table()?;
    table.raw_set("open", lua.create_function(open)?)?;
    super::namespace(lua, r1, "r1.table", table)
}

arguments! {
    /// Types of a table's columns.
    struct TypeArguments {
        types: Types = Types::default();
        infer: Option<bool>;
        thousands: bool = false;
    }

    /// A table in a file.
    struct FileArguments {
        + file: ResourceArguments;
        + types: TypeArguments;
    }

    /// A table in a column of the task.
    struct ColumnArguments {
        column: String, needs("a column of the task");
        + types: TypeArguments;
    }

    /// A table of plain data.
    struct DataArguments {
        data: Json;
        + types: TypeArguments;
    }

    /// Options of `r1.table.open`.
    pub(super) struct OpenOptions {
        timeout: Duration = Duration::from_secs(5);
        memory: Mebibytes = Mebibytes(256);
        max_rows: Whole<1, ANY> = Whole(10_000);
    }
}

/// Types by column.
#[derive(Default)]
struct Types(BTreeMap<String, ColumnType>);

impl FromField for Types {
    fn from_field(fields: &TableFields<'_>, name: &str, value: &Value) -> mlua::Result<Self> {
        let wrong = || fields.refuse(name, "types by column: { year = \"integer\" }", value);
        let Json::Object(all) = fields.plain(name, value)? else { return Err(wrong()) };
        let mut types = BTreeMap::new();
        for (column, kind) in all {
            let Some(text) = kind.as_str() else { return Err(wrong()) };
            let Ok(kind) = serde_json::from_value::<ColumnType>(kind.clone()) else {
                let why = format!("`{name}.{column}` is \"{text}\"; it is one of integer, real, text, mixed");
                let hint = crate::error::suggest(text, ["integer", "real", "text", "mixed"]);
                return Err(fields.refused(name, Error::new(Kind::Script, why).hint(hint)));
            };
            types.insert(column, kind);
        }
        Ok(Self(types))
    }
}

impl From<TypeArguments> for ColumnTypes {
    fn from(TypeArguments { types, infer, thousands }: TypeArguments) -> Self {
        Self { declared: types.0, infer, thousands }
    }
}

/// `{ films = "films.csv", … }`, or a list of paths that name their tables.
pub(super) fn named(
    lua: &Lua,
    function: &'static str,
    argument: &Value,
    loader: &Files,
) -> mlua::Result<Vec<NamedTable>> {
    let Value::Table(argument) = argument else {
        return Err(fail(lua, function, format!("`tables` must be tables by name, got {}", kind(argument))));
    };
    let mut tables = BTreeMap::new();
    let mut names = TableNames::default();
    for pair in argument.pairs::<Value, Value>() {
        let (key, value) = pair?;
        let name = match (&key, &value) {
            (Value::String(name), _) => name.to_string_lossy(),
            (_, Value::String(path)) => name_of(path.to_string_lossy().as_ref()).ok_or_else(|| {
                let path = path.to_string_lossy();
                fail(lua, function, format!("`{path}` gives its table no name; write {{ NAME = \"{path}\" }}"))
            })?,
            (key, _) => return Err(fail(lua, function, format!("tables have names, got {}", kind(key)))),
        };
        tables::check_name(&name).map_err(|error| fail_with(lua, function, error))?;
        if !names.table(&name) {
            return Err(fail(lua, function, format!("two tables are called `{name}`")));
        }
        let (source, types) = source(lua, function, &name, &value, loader)?;
        tables.insert(name.clone(), NamedTable { name, source, types });
    }
    Ok(tables.into_values().collect())
}

fn source(
    lua: &Lua,
    function: &'static str,
    name: &str,
    value: &Value,
    loader: &Files,
) -> mlua::Result<(TableSource, ColumnTypes)> {
    let file = |spec: ResourceSpec| {
        let opened = loader.borrow_mut().resource(&spec);
        let resource = opened.map_err(|error| placed(lua, function, error))?;
        Ok::<_, mlua::Error>(TableSource::File { resource, spec })
    };
    let table = match value {
        Value::String(path) => {
            let spec = ResourceSpec::new(path.to_string_lossy(), MOST, KeptParts::Nothing);
            return Ok((file(spec)?, ColumnTypes::default()));
        }
        Value::Table(table) => table,
        other => {
            let wanted = "a path, a list of rows, or { path = } or { column = } or { data = }";
            return Err(fail(lua, function, format!("table `{name}` must be {wanted}, got {}", kind(other))));
        }
    };
    let has = |field: &str| table.raw_get::<Value>(field).is_ok_and(|value| !value.is_nil());
    if has("path") {
        let FileArguments { file: arguments, types } = FileArguments::read(lua, function, value)?;
        return Ok((file(arguments.spec(MOST, KeptParts::Nothing))?, types.into()));
    }
    if has("column") {
        let ColumnArguments { column, types } = ColumnArguments::read(lua, function, value)?;
        if function == OPEN {
            return Err(fail(lua, function, "`column` is for r1.tools.table; pass the data itself: task.NAME"));
        }
        return Ok((TableSource::Column(column), types.into()));
    }
    if has("data") {
        let DataArguments { data, types } = DataArguments::read(lua, function, value)?;
        return Ok((TableSource::Data(data), types.into()));
    }
    Ok((TableSource::Data(plain(lua, function, name, value)?), ColumnTypes::default()))
}

/// Tables that a script queries.
struct TablesHandle {
    tables: Arc<Tables>,
    limits: QueryLimits,
}

/// `r1.table.open({ films = "films.csv", own = rows }, { timeout =, memory =, max_rows = })`.
fn open(lua: &Lua, tables: &Value, options: &Value, loader: &Files) -> mlua::Result<TablesHandle> {
    let OpenOptions { timeout, memory, max_rows } = OpenOptions::read_optional(lua, OPEN, options)?;
    let named = named(lua, OPEN, tables, loader)?;
    if named.is_empty() {
        return Err(fail(lua, OPEN, "needs tables by name: { films = \"films.csv\" }"));
    }
    let limits = QueryLimits {
        time: timeout,
        memory: memory.0.max(1).saturating_mul(1 << 20),
        rows: max_rows.0 as usize,
        bytes: 16 << 20,
        repeatable: true,
    };
    let tables = tables::open(&named).map_err(|error| placed(lua, OPEN, error))?;
    Ok(TablesHandle { tables, limits })
}

impl TablesHandle {
    fn query(&self, lua: &Lua, sql: &Value, params: &Value) -> mlua::Result<Result<Value, NilReason>> {
        const NAME: &str = "Tables:query";
        let sql = text(lua, NAME, "sql", sql)?;
        let wrong = || fail(lua, NAME, format!("`params` must be a list of values, got {}", kind(params)));
        let cells = match &plain(lua, NAME, "params", params)? {
            Json::Null if params.is_nil() => Vec::new(),
            Json::Array(values) => values.iter().map(cell).collect::<Option<Vec<Cell>>>().ok_or_else(wrong)?,
            Json::Object(empty) if empty.is_empty() => Vec::new(),
            _ => return Err(wrong()),
        };
        let left = time_left(lua);
        let limits = QueryLimits { time: self.limits.time.min(left), ..self.limits.clone() };
        let mut charged = Duration::ZERO;
        let spend = |used: Duration| {
            let more = used.saturating_sub(charged);
            charged += more;
            charge(lua, more).is_ok()
        };
        let result = self.tables.query_blocking(sql, cells, limits, wait(lua), spend).map_err(raise)?;
        in_time(lua)?;
        match result {
            Ok(result) => {
                let answer = json!({ "columns": result.columns, "rows": result.rows_as_json(), "more": result.more });
                from_json(lua, &answer).map(Ok)
            }
            // The CPU time of the call ended before the time of the query.
            Err(error) if error.timed_out() && left < self.limits.time => Err(out_of_time(lua)),
            Err(error) => Ok(Err(NilReason(error.to_string()))),
        }
    }
}

/// The longest wait for other queries.
fn wait(lua: &Lua) -> Duration {
    let limits = lua.app_data_ref::<Limits>().map(|limits| limits.wait);
    limits.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok()).unwrap_or(Duration::MAX)
}

/// A parameter; `None` for tables.
fn cell(value: &Json) -> Option<Cell> {
    Some(match value {
        Json::Null => Cell::Null,
        Json::Bool(value) => Cell::Integer(i64::from(*value)),
        Json::String(text) => Cell::Text(text.clone()),
        Json::Number(number) => match number.as_i64() {
            Some(number) => Cell::Integer(number),
            None => Cell::Real(number.as_f64()?),
        },
        Json::Array(_) | Json::Object(_) => return None,
    })
}

impl UserData for TablesHandle {
    fn add_fields<F: UserDataFields<Self>>(fields: &mut F) {
        fields.add_meta_field(MetaMethod::Type, "Tables");
    }

    fn add_methods<M: UserDataMethods<Self>>(methods: &mut M) {
        methods.add_method("query", |lua, this, (sql, params): (Value, Value)| this.query(lua, &sql, &params));
        methods.add_method("describe", |lua, this, preview: Value| {
            let preview = optional::<usize>(lua, "Tables:describe", "preview", &preview)?.unwrap_or(0);
            Ok(describe(this.tables.tables(), preview, &TableOptions::default()))
        });
    }
}
