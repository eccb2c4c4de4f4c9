//! `r1.tools.table`: SQL over tables as a tool of the policy.

use std::sync::Arc;
use std::time::Instant;

use futures_util::future::LocalBoxFuture;
use mlua::{Lua, Value};
use serde_json::Value as Json;

use super::super::args::{fail, fail_with, raise};
use super::super::argument::{Mebibytes, Seconds, Whole};
use super::super::arguments::{Arguments, arguments};
use super::super::resource::placed;
use super::super::table::{Files, named};
use super::declaration::{ToolArguments, section, text_parameter};
use super::host_tool::{AttemptResult, CallAttempt, HostTool};
use super::limits::LimitArguments;
use crate::error::{Error, Kind, Result};
use crate::schema::Section;
use crate::script::runtime::host::misuse;
use crate::script::runtime::tables::{self, NamedTable, TableSource, TableTool, ToolTables};
use crate::script::runtime::tool::{CacheScope, CallLimits, Run, ToolHandle};
use crate::tools::Output;
use crate::tools::table::{ColumnTypes, TableOptions, Tables, show};

const TOOL: &str = "r1.tools.table";

arguments! {
    /// Arguments of `r1.tools.table`.
    pub(crate) struct ToolTableArguments {
        tables: Value;
        column: Option<String>;
        preview: Whole<0, 10> = Whole(0);
        timeout: Option<Seconds>;
        memory: Option<Mebibytes>;
        + tool: ToolArguments;
        + limits: LimitArguments;
        ..options: TableOptions::FIELDS;
    }
}

/// `r1.tools.table { tables = { films = "films.csv" }, … }` or `{ column = "table" }`.
pub(super) fn declare(lua: &Lua, value: &Value, loader: &Files) -> mlua::Result<ToolHandle> {
    let ToolTableArguments { tables, column, preview, timeout, memory, tool, limits, mut options } =
        ToolTableArguments::read_optional(lua, TOOL, value)?;
    let limits = CallLimits::from(limits);
    options.extend(timeout.map(|time| ("timeout".to_owned(), time.0.into())));
    options.extend(memory.map(|size| ("memory_mb".to_owned(), size.0.into())));
    let options: TableOptions = section(lua, TOOL, options)?;
    options.check().map_err(|error| fail_with(lua, TOOL, error))?;
    let mut tables = if tables.is_nil() { Vec::new() } else { named(lua, TOOL, &tables, loader)? };
    if let Some(column) = column {
        let source = TableSource::Column(column);
        tables.push(NamedTable { name: String::new(), source, types: ColumnTypes::default() });
    }
    if tables.is_empty() {
        return Err(fail(lua, TOOL, "needs `tables`, or `column` for tables of the task"));
    }
    let refused = |field: &str, error: Error| Err(fail_with(lua, TOOL, error.about_setting(field)));
    let of_task = |table: &NamedTable| matches!(table.source, TableSource::Column(_));
    let tables = if tables.iter().any(of_task) {
        if let Some(fixed) = tables.iter().find(|table| !of_task(table)) {
            let why = format!("table `{}` is the same for all tasks, and others are columns of the task", fixed.name);
            let error = Error::new(Kind::Script, why).hint("use two tools: a query uses tables of one of them");
            return refused("tables", error);
        }
        if limits.cache == Some(CacheScope::Run) {
            let why = "`cache` = \"run\" would mix results of different tasks: the tables are columns of the task";
            return refused("cache", Error::new(Kind::Script, why));
        }
        ToolTables::OfTask(tables)
    } else {
        ToolTables::Fixed(tables::open(&tables).map_err(|error| placed(lua, TOOL, error))?)
    };
    let run = TableTool { options, preview: preview.0 as usize, tables };
    let mut description = tool
        .description
        .clone()
        .unwrap_or_else(|| "Runs one SQL SELECT statement (SQLite) and gives its rows.".to_owned());
    if let ToolTables::Fixed(tables) = &run.tables {
        description.push_str(&run.describe(tables));
    }
    let parameters = text_parameter("sql", "One SELECT statement");
    // Tables follow a description of the recipe too.
    let tool = ToolArguments { description: Some(description), ..tool };
    Ok(tool.tool(lua, "sql", "", parameters, limits, Run::Table(run)))
}

impl HostTool for TableTool {
    fn call<'a>(&'a self, attempt: &'a CallAttempt<'a>) -> LocalBoxFuture<'a, mlua::Result<AttemptResult>> {
        Box::pin(async move {
            let name = &attempt.tool().name;
            let tables = match &self.tables {
                ToolTables::Fixed(tables) => Some(tables.clone()),
                ToolTables::OfTask(_) => attempt.call.env.as_ref().and_then(|env| env.tables.get(name).cloned()),
            };
            let Some(tables) = tables else {
                let why = format!("tool `{name}` has the tables of a task, and there is no task");
                return Err(raise(misuse(attempt.lua, why)));
            };
            let live = query(&tables, attempt.text("sql"), &self.options);
            // A prelude is for programs.
            attempt.recorded("", &[], live).await
        })
    }

    fn task_columns(&self) -> Vec<&str> {
        self.columns().collect()
    }

    fn read_task(&self, tool: &str, task: &Json) -> Result<Option<Arc<Tables>>> {
        self.of_task(tool, task)
    }

    fn describe_task(&self, tables: &Tables) -> String {
        self.describe(tables)
    }
}

/// One query of the tool, as text for the policy.
async fn query(tables: &Arc<Tables>, sql: String, options: &TableOptions) -> Result<Output, Error> {
    let started = Instant::now();
    let result = tables.query(sql, options.limits()).await?;
    let (text, ok, timed_out) = match result {
        Ok(result) => (show(&result, options), true, false),
        Err(error) => (format!("Error: {error}"), false, error.timed_out()),
    };
    Ok(Output { text, ok, timed_out, seconds: started.elapsed().as_secs_f64(), ..Output::default() })
}
