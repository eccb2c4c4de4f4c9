//! `r1.tools.python`: programs in sandboxed interpreters.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Arc;

use futures_util::future::LocalBoxFuture;
use mlua::{Lua, Value};
use serde_json::Value as Json;

use super::super::args::refused;
use super::super::argument::{Mebibytes, Seconds};
use super::super::arguments::{Arguments, arguments};
use super::declaration::{ToolArguments, section, text_parameter};
use super::files;
use super::host_tool::{AttemptResult, CallAttempt, HostTool};
use super::limits::LimitArguments;
use crate::error::{Error, Kind, Result};
use crate::schema::Section;
use crate::script::runtime::grants::Grants;
use crate::script::runtime::interpreters;
use crate::script::runtime::require::Loader;
use crate::script::runtime::servers::Listings;
use crate::script::runtime::tool::{CacheScope, CallLimits, FileSource, PythonTool, Run, Tool, ToolFile, ToolHandle};
use crate::tools::python::PythonCall;
use crate::tools::table::Tables;
use crate::tools::{Python, PythonOptions};

arguments! {
    /// Arguments of `r1.tools.python`.
    pub(crate) struct PythonArguments {
        session: bool = false;
        files: Value;
        timeout: Option<Seconds>;
        memory: Option<Mebibytes>;
        disk: Option<Mebibytes>;
        + tool: ToolArguments;
        + limits: LimitArguments;
        ..options: PythonOptions::FIELDS;
    }
}

/// `r1.tools.python { timeout = 5, memory = "512MiB", session = false, … }`.
pub(super) fn declare(lua: &Lua, value: &Value, loader: &RefCell<Loader>) -> mlua::Result<ToolHandle> {
    const NAME: &str = "r1.tools.python";
    let arguments = PythonArguments::read_optional(lua, NAME, value)?;
    let PythonArguments { session, files, timeout, memory, disk, tool, limits, mut options } = arguments;
    let limits = CallLimits::from(limits);
    for (setting, arguments) in [("cache", limits.cache.is_some()), ("retries", limits.retries > 0)] {
        if session && arguments {
            let why = format!("`{setting}` needs independent programs: with `session` they depend on earlier ones");
            return Err(refused(lua, NAME, setting, why));
        }
    }
    options.extend(timeout.map(|time| ("timeout".to_owned(), time.0.into())));
    options.extend(memory.map(|size| ("memory_mb".to_owned(), size.0.into())));
    options.extend(disk.map(|size| ("disk_mb".to_owned(), size.0.into())));
    let options: PythonOptions = section(lua, NAME, options)?;
    let refuse_cache = |why: &str| Err(refused(lua, NAME, "cache", why));
    if limits.cache.is_some() && (options.keep_files || options.plots) {
        return refuse_cache("`cache` keeps texts, and the results have files (`keep_files`, `plots`)");
    }
    let files = files::read(lua, NAME, &files, loader, options.disk_mb)?;
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
    let parameters = text_parameter("code", "The program");
    let run = Run::Python(PythonTool { options, session, files });
    Ok(tool.tool(lua, "python", &description, parameters, limits, run))
}

/// Whether a file of a program has the name of an image.
fn is_image(name: &str) -> bool {
    let extension = Path::new(name).extension().map(OsStr::to_ascii_lowercase);
    extension.is_some_and(|kind| ["png", "jpg", "jpeg", "webp", "gif"].iter().any(|image| kind == *image))
}

impl HostTool for PythonTool {
    fn call<'a>(&'a self, attempt: &'a CallAttempt<'a>) -> LocalBoxFuture<'a, mlua::Result<AttemptResult>> {
        Box::pin(async move {
            let (call, of) = (attempt.call, attempt.of);
            let live = async {
                let python: Arc<Python> = interpreters::python(&self.options)?;
                let mut files = Vec::new();
                let columns = call.env.as_ref().map_or(&Json::Null, |env| &env.columns);
                for file in &self.files {
                    files.push(file.read(&of.tool.name, columns)?);
                }
                // Files of the call replace files of the tool.
                files.retain(|file| of.files.iter().all(|extra| extra.name != file.name));
                files.extend(of.files.iter().cloned());
                if !of.files.is_empty() {
                    files::check_together(&files)?;
                }
                let code = attempt.text("code");
                // A grader compares the whole output.
                let output_bytes = if of.hidden { call.result } else { 0 };
                let prelude = &of.prelude;
                let program = PythonCall { code: &code, prelude, files: &files, session: None, output_bytes };
                let output = match call.session.as_ref().filter(|_| self.session) {
                    Some(session) => session.run(&python, program).await,
                    None => python.call(program).await,
                }?;
                let files = output.files.iter().filter(|file| is_image(&file.name));
                let files = files.map(|file| (file.name.clone(), file.content())).collect();
                attempt.with_images(output, files)
            };
            attempt.recorded(&of.prelude, &of.files, live).await
        })
    }

    fn task_columns(&self) -> Vec<&str> {
        let columns = self.files.iter().filter_map(|file| match &file.source {
            FileSource::Column(column) => Some(column.as_str()),
            FileSource::Content(_) => None,
        });
        columns.collect()
    }

    // Only checked: files are made for a call.
    fn read_task(&self, tool: &str, task: &Json) -> Result<Option<Arc<Tables>>> {
        self.files.iter().try_for_each(|file| file.read(tool, task).map(drop)).map(|()| None)
    }

    // An interpreter given by path runs unconfined once to read its version and library path. A
    // bare name is searched on the PATH, as `python3` is.
    fn check(&self, tool: &Tool, grants: &Grants) -> Result<()> {
        let path = self.options.interpreter.to_string_lossy();
        if !path.contains('/') || grants.runs(&path) {
            return Ok(());
        }
        let why = format!("tool `{}`: the recipe does not declare that it runs the interpreter {path}", tool.name);
        let hint = format!("add needs = {{ \"process:{path}\" }} to r1.recipe");
        Err(tool.placed(Error::new(Kind::Script, why).hint(hint)))
    }

    fn program(&self) -> Option<&str> {
        self.options.interpreter.to_str()
    }

    fn prepare(&self, tool: &Tool, _: &Listings, _: &Grants) -> Result<()> {
        let named = |error: Error| Error { message: format!("tool `{}`: {}", tool.name, error.message), ..error };
        interpreters::python(&self.options).map(drop).map_err(|error| tool.placed(named(error)))
    }
}
