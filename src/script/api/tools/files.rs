//! `files` of `r1.tools.python` and of `r1.call_tools`: what programs find in their directory.

use std::cell::RefCell;
use std::sync::Arc;

use mlua::{Lua, Value};

use super::super::args::{fail, fail_with};
use super::super::argument::Mebibytes;
use super::super::arguments::{Arguments, arguments};
use super::super::resource::placed;
use crate::error::{Error, Kind};
use crate::script::runtime::convert::kind;
use crate::script::runtime::require::Loader;
use crate::script::runtime::resource::{KeptParts, ResourceSpec};
use crate::script::runtime::tool::{FileSource, ToolFile};
use crate::tools::python::{InputFile, check_file_name, check_file_names};

/// Largest file of a tool, MiB: it stays in memory.
const MOST: u64 = 64;

arguments! {
    /// A file of a tool, as a table.
    struct ToolFileArguments {
        path: Option<String>;
        text: Option<Vec<u8>>;
        column: Option<String>;
        max_size: Option<Mebibytes>;
    }
}

/// `files = { ["t.csv"] = "films.csv", ["own.csv"] = { column = "table" }, ["notes.txt"] = { text =
/// "…" } }`.
pub(super) fn read(
    lua: &Lua,
    function: &'static str,
    argument: &Value,
    loader: &RefCell<Loader>,
    disk_mb: u64,
) -> mlua::Result<Vec<ToolFile>> {
    let mut files = Vec::new();
    for (name, value) in by_name(lua, function, argument, "files by name")? {
        let path = |path: String, max_size: Option<u64>| {
            let max_size = max_size.unwrap_or(MOST);
            // Not read if it can't be given to a program.
            let large = |error: Error| {
                let why =
                    format!("`disk` of the tool is {disk_mb} MiB: raise it, the program's own files need room too");
                if max_size <= disk_mb { error } else { Error { hint: Some(why), ..error } }
            };
            let spec = ResourceSpec::new(path, max_size.min(disk_mb), KeptParts::Bytes);
            let opened = loader.borrow_mut().resource(&spec);
            let opened = opened.map_err(|error| placed(lua, function, large(error)))?;
            Ok::<_, mlua::Error>(FileSource::Content(opened.content.clone()))
        };
        let source = match &value {
            Value::String(argument) => path(argument.to_string_lossy(), None)?,
            Value::Table(_) => {
                let arguments = ToolFileArguments::read(lua, function, &value)?;
                match (arguments.path, arguments.text, arguments.column) {
                    (Some(argument), None, None) => path(argument, arguments.max_size.map(|size| size.0))?,
                    (None, Some(text), None) => FileSource::Content(text.into()),
                    (None, None, Some(column)) => FileSource::Column(column),
                    _ => {
                        let why = format!("file `{name}` needs one of `path`, `text` and `column`");
                        return Err(fail(lua, function, why));
                    }
                }
            }
            other => {
                let wanted = "a path, or { path = }, { text = } or { column = }";
                return Err(fail(lua, function, format!("file `{name}` must be {wanted}, got {}", kind(other))));
            }
        };
        files.push(ToolFile { name, source });
    }
    let bytes = files.iter().map(|file| match &file.source {
        FileSource::Content(content) => content.len(),
        FileSource::Column(_) => 0,
    });
    let size = bytes.sum::<usize>().div_ceil(1 << 20) as u64;
    if size > disk_mb {
        let why = format!("`files` have {size} MiB and `disk` is {disk_mb} MiB");
        let error = Error::new(Kind::Script, why).hint("raise `disk`: the program's own files need room too");
        return Err(fail_with(lua, function, error));
    }
    Ok(files)
}

/// Files that a script passes with a call: texts by name.
pub(crate) fn of_call(lua: &Lua, function: &'static str, argument: &Value) -> mlua::Result<Vec<InputFile>> {
    let file = |(name, value): (String, Value)| match &value {
        Value::String(text) => Ok(InputFile { name, content: Arc::from(&*text.as_bytes()) }),
        other => Err(fail(lua, function, format!("file `{name}` must be text, got {}", kind(other)))),
    };
    by_name(lua, function, argument, "texts by name")?.into_iter().map(file).collect()
}

/// The entries of a table that may be left out, sorted by name.
fn by_name(lua: &Lua, function: &str, argument: &Value, wanted: &str) -> mlua::Result<Vec<(String, Value)>> {
    let table = match argument {
        Value::Nil => return Ok(Vec::new()),
        Value::Table(table) => table,
        other => return Err(fail(lua, function, format!("`files` must be {wanted}, got {}", kind(other)))),
    };
    let mut all = Vec::new();
    for pair in table.pairs::<Value, Value>() {
        let (key, value) = pair?;
        let Value::String(name) = &key else {
            return Err(fail(lua, function, format!("`files` have names, got {}", kind(&key))));
        };
        let name = name.to_string_lossy();
        check_file_name(&name).map_err(|error| fail_with(lua, function, error))?;
        all.push((name, value));
    }
    all.sort_by(|a, b| a.0.cmp(&b.0));
    let names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
    check_file_names(&names).map_err(|error| fail_with(lua, function, error))?;
    Ok(all)
}

/// Refuses files of a tool and of a call that can't be in one directory.
pub(super) fn check_together(files: &[InputFile]) -> Result<(), Error> {
    let names: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
    check_file_names(&names)
}
