//! A script that is not a recipe: run once, with arguments, files and models (`r1 lua`).
//!
//! Programs are trusted: no time limit, access to files and standard input. The sandbox (read-only
//! globals, the host's `require` and `math.random`) is the same as for recipes, so that code can be
//! shared.

pub(crate) mod condition;
pub(crate) mod suite;

use std::path::Path;
use std::rc::Rc;

use mlua::{MultiValue, Value};
use serde_json::Value as Json;

use super::api::program::exit_code;
use crate::config::Limits;
use crate::error::{Error, Kind, Result};
use crate::script::api;
use crate::script::recipe::load::directory;
use crate::script::runtime::convert::{NonJson, to_json};
use crate::script::runtime::failure::Failure;
use crate::script::runtime::host::{Call, EntryPoint, Host, ProgramApi};
use crate::script::runtime::log::Echo;
use crate::script::runtime::sources::SourceOrigin;

/// CPU and waiting time of a program in seconds, practically unlimited.
const FOREVER: f64 = 1e9;
/// Memory limit of a program's virtual machine, MiB.
const MEMORY: usize = 16 << 10;

#[derive(Clone, Debug, PartialEq)]
pub enum End {
    /// It returned these values. Infinite numbers and NaN, which JSON cannot represent, are text.
    Returned(Vec<Json>),
    /// It called `os.exit` with this code.
    Exited(u8),
}

/// A script to run once.
pub struct ScriptProgram<'a> {
    /// As shown in messages; `require` searches its directory.
    pub path: &'a Path,
    pub source: &'a str,
    /// `...` and the global `arg`.
    pub arguments: &'a [String],
    pub seed: u64,
    /// Functions over models, scripts and runs.
    pub(crate) api: Option<Rc<dyn ProgramApi>>,
    pub echo: Echo,
}

impl ScriptProgram<'_> {
    /// Runs the program to its end. Needs a tokio runtime with time and I/O enabled.
    ///
    /// # Errors
    /// [`Kind::Script`] with file, line and frames for an uncaught error.
    pub async fn run(self) -> Result<End> {
        let limits = Limits {
            cpu: FOREVER,
            wait: FOREVER,
            memory: MEMORY,
            trajectory: MEMORY,
            text: MEMORY,
            result: MEMORY << 10,
            log: usize::MAX,
        };
        let host = Host::for_program(self.api, self.echo);
        let vm = api::program_vm(limits.clone(), SourceOrigin::Disk(directory(self.path)), host, self.arguments)?;
        let function = vm.compile(self.path, self.source).map_err(|failure| with_callers(&failure, self.path))?;
        let call = Call::new(EntryPoint::Load, (self.seed, 0), &limits);
        let arguments: MultiValue = self
            .arguments
            .iter()
            .map(|text| vm.lua.create_string(text).map(Value::String))
            .collect::<mlua::Result<_>>()
            .map_err(|error| Error::new(Kind::Script, error.to_string()))?;
        match vm.call::<MultiValue>(&call, &function, arguments).await {
            Ok(values) => without_trailing_nil(values)
                .iter()
                .map(|value| show(value, self.path))
                .collect::<Result<_>>()
                .map(End::Returned),
            Err(failure) => match exit_code(&failure.error) {
                Some(code) => Ok(End::Exited(code)),
                None => Err(with_callers(&failure, self.path)),
            },
        }
    }
}

/// Values to print: a trailing nil after other values is dropped, as in `text, nil`.
pub(crate) fn without_trailing_nil(mut values: MultiValue) -> MultiValue {
    while values.len() > 1 && values.back().is_some_and(Value::is_nil) {
        values.pop_back();
    }
    values
}

/// A value returned by the program.
fn show(value: &Value, path: &Path) -> Result<Json> {
    match value {
        Value::Number(number) if !number.is_finite() => Ok(Json::String(number.to_string())),
        Value::String(text) => Ok(Json::String(text.to_string_lossy())),
        other => to_json(other, "the returned value", NonJson::Refuse).map_err(|not_plain| {
            Error::from(not_plain).at_path(path).hint("return text, numbers, booleans or tables of these")
        }),
    }
}

fn with_callers(failure: &Failure, path: &Path) -> Error {
    let mut error = failure.error.clone();
    let frames: Vec<&str> = failure.traceback.iter().skip(1).map(String::as_str).collect();
    if !frames.is_empty() && error.hint.is_none() {
        error = error.hint(format!("called from {}", frames.join(", ")));
    }
    if error.place.is_none() { error.at_path(path) } else { error }
}
